"""The data of the report: the verdict in words, controls, facts and warnings of each run, their comparison, charts, votes, rollouts, skills.

It reads runs and never writes in them, but for the page itself (`write_report`). Plain dictionaries, which `page.render` makes a page of.
"""

from __future__ import annotations

import datetime
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from skill_ttrl.commands.optimize_results import OptimizeSummary, is_optimization, summary_lines
from skill_ttrl.commands.optimize_results import read_summary as read_optimization
from skill_ttrl.commands.reports.compare import FIGURES, compare, is_seeds, named_seeds, read_seeds, runs_in
from skill_ttrl.commands.reports.inspect import inspect, seeds_inspection
from skill_ttrl.commands.reports.page_charts import Curves, Member, charts
from skill_ttrl.commands.reports.page_rollouts import Found, read_document, read_rollouts, read_skills, read_votes
from skill_ttrl.commands.reports.summary_text import (
    CONTROL,
    VOTED,
    closing_lines,
    evaluation_table,
    short,
    summary_table,
    with_interval,
)
from skill_ttrl.config import load_config, recipe_names, settings_digest
from skill_ttrl.errors import RunFolderError, SkillTTRLError
from skill_ttrl.llm.openai.ledger import usage_lines
from skill_ttrl.metrics import unhealthy
from skill_ttrl.runs.checkpoint import list_checkpoints
from skill_ttrl.runs.folder import RunFolder, metric_rows
from skill_ttrl.runs.reader import Run, read_run
from skill_ttrl.runs.summary import Summary
from skill_ttrl.skills.log import is_bank
from skill_ttrl.statistics import PAIRED_TEST, Interval, verdict
from skill_ttrl.storage.jsonl import parse_json
from skill_ttrl.train.open_run import BANK
from skill_ttrl.train.results import Evaluation, read_evaluations
from skill_ttrl.voting.rewards import CONTROLS

WARNING = "Warning: "
"""Begins the lines of a summary that are warnings."""
LEARNED = {
    "majority": "from its own majority votes, without labels",
    "verify": "from whether its answers satisfy each problem's check, without labels",
    "label": "from the true answers: a control that uses labels",
    "random": "from coin tosses: a control",
    "format": "from whether an answer was given at all: a control",
    "env": "from the rewards of its environment",
}
"""Words for `rl.reward`."""
CLEAR = {"better": "clear", "worse": "clear", "unclear": "unclear: it may be noise"}
IMITATION = "imitation of the same votes"
RANDOM = "random reward"


@dataclass
class Part:
    """One of the paths of a report: a run, the runs of a folder of seeds, an optimization, or a bank."""

    path: Path
    runs: Sequence[Run] = ()
    """None of a bank; of seeds those that have begun."""
    kind: str = "run"
    """run, seeds, optimization, bank."""
    name: str = ""
    left_out: list[str] = field(default_factory=list)

    @cached_property
    def evaluations(self) -> list[list[Evaluation]]:
        """Of each run."""
        return [read_evaluations(each.path) for each in self.runs]

    @cached_property
    def rollouts(self) -> list[Found]:
        """Of each run."""
        return [read_rollouts(each.path) for each in self.runs]

    @property
    def summary(self) -> Summary | None:
        """Of a run that has ended."""
        return self.runs[0].summary if self.kind == "run" else None


def page(paths: Sequence[str | Path]) -> dict[str, Any]:
    """The data of the page on one or more runs, folders of seeds, optimizations or banks.

    Raises:
        RunFolderError: a path is none of these, or a file of it cannot be read.
    """
    import skill_ttrl

    parts = [part for path in paths for part in _parts(Path(path))]
    _name(parts)
    return {
        "title": ", ".join(part.name for part in parts),
        "made": f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M} UTC",
        "version": skill_ttrl.__version__,
        "verdicts": [_VERDICTS[part.kind](part, parts) for part in parts if part.kind != "bank"],
        "compared": _compared([part for part in parts if part.kind in ("run", "seeds")]),
        "charts": charts([_curves(part) for part in parts if part.kind != "bank"]),
        "runs": [view for part in parts for view in _views(part)],
    }


def _parts(path: Path) -> list[Part]:
    if is_optimization(path):
        return [Part(path, [read_run(path)], "optimization")]
    if RunFolder.exists(path):
        return [Part(path, [read_run(path)])]
    if is_seeds(path):
        begun = [path / f"seed-{seed}" for seed in named_seeds(path)[1]]
        return [Part(path, [read_run(each) for each in begun if RunFolder.exists(each)], "seeds")]
    if is_bank(path):
        return [Part(path, kind="bank")]
    if path.is_dir() and (runs := runs_in(path)):
        return [part for run in runs for part in _parts(run)]
    raise RunFolderError(
        f"{path} is no run, no folder of runs, no optimization and no skill bank, so there is nothing to report. Name a folder that "
        "`skillttrl train` or `skillttrl optimize` has written."
    )


def _name(parts: Sequence[Part]) -> None:
    """Name each part by its config, its reward and its seed where they differ, else by its path."""
    for part in parts:
        if part.kind == "seeds":
            part.name = f"{named_seeds(part.path)[0]}, {len(part.runs)} seeds"
        elif part.kind == "bank":
            part.name = str(part.path)
        else:
            part.name = f"{part.runs[0].config.name}, seed {part.runs[0].config.seed}"
    if len({part.name for part in parts}) < len(parts):
        for part in parts:
            part.name = str(part.path)


# Verdicts.


def _run_verdict(part: Part, parts: Sequence[Part]) -> dict[str, Any]:
    (run,), summary, evaluations = part.runs, part.summary, part.evaluations[0]
    rows = metric_rows(run.path)
    if summary is None:
        table = evaluation_table(evaluations) if evaluations else None
        done = f"{rows[-1]['phase']} step {int(rows[-1]['step']) + 1}" if rows else "no step"
        sentence = f"{_model(run)} has not ended its training: {done} is done. Continue the run with --resume auto."
        lines, warnings = [], []
    else:
        table = summary_table(summary, full=True)
        sentence = _sentence(summary, run)
        closing = closing_lines(summary, full=True)
        lines = [line for line in closing if not line.startswith((WARNING, "Wall time: "))]
        warnings = [line.removeprefix(WARNING) for line in closing if line.startswith(WARNING)]
    return {
        "name": part.name,
        "sentence": sentence[0].upper() + sentence[1:],
        "table": _table(table),
        "controls": _controls(part, parts),
        "facts": _facts(run, summary),
        "lines": lines,
        "warnings": [_warning(text) for text in warnings] + _unhealthy(rows),
        "config": run.config.to_yaml(sparse=True),
    }


def _sentence(summary: Summary, run: Run) -> str:
    """What was trained on what, from which signal, and what that changed."""
    steps, where = summary.steps, summary.trained_on or run.config.env.id
    if "rl" in steps:
        how = LEARNED.get(summary.reward, f"from the reward {summary.reward}")
        voted = f" (strategy {summary.vote})" if summary.reward == summary.vote != "majority" else ""
        did = f"learned {where} {how}{voted}"
    elif "vote_sft" in steps:
        by = (
            "samples that a control chose" if summary.reward in CONTROLS else "its own majority answers, without labels"
        )
        did = f"was fine-tuned on {where}, on {by}"
    else:
        did = f"imitated demonstrations of {where}"
    if summary.bank_skills is not None:
        did += f", with a bank of {summary.bank_skills} skills"
    first = sum(count for phase, count in steps.items() if phase in ("sft", "dagger"))
    cold = f" A cold start of {first:,} steps on demonstrations came before." if first and set(steps) & VOTED else ""
    samples = summary.samples
    names = {
        "accuracy": f"avg@{samples}" if samples > 1 else "success",
        "majority": f"maj@{samples}",
        "score": "the score",
    }
    for figure, name in names.items():
        before, after = (getattr(summary, f"{figure}_{when}") for when in ("before", "after"))
        if after is None:
            continue
        tasks = f"{name} on {summary.problems} {'training' if summary.transductive else 'held-out'} problems"
        if summary.measured_on and summary.measured_on.partition(" (")[0] != where.partition(" (")[0]:
            tasks += f" of {summary.measured_on}"
        bounds = summary.intervals.get(f"{figure}_change")
        if before is None or bounds is None:
            return f"{_model(run)} {did}: {tasks} is {with_interval(after, summary.intervals.get(f'{figure}_after'))}.{cold}"
        return f"{_model(run)} {did}: {tasks} {_change(before, after, bounds)}.{cold}"
    return f"{_model(run)} {did}. Without true answers nothing says how often it is right.{cold}"


def _change(before: float, after: float, bounds: Interval) -> str:
    """A change in words with its interval and whether it is clear."""
    found = verdict(bounds)
    went = {"better": "rose", "worse": "fell", "unclear": "went"}[found]
    return f"{went} from {before:.3f} to {after:.3f} ({with_interval(after - before, bounds, '+')}, {CLEAR[found]})"


def _model(run: Run) -> str:
    """The model in words: the built-in one with its size, by the header of its newest checkpoint."""
    model = run.config.model
    if model.path != "builtin":
        return f"{model.path}{' with LoRA adapters' if model.lora is not None else ''}"
    count = sum(
        _numbers(file)
        for each in list_checkpoints(RunFolder(run.path, None))[-1:]
        for file in each.path.glob("*.safetensors")
    )
    return f"a {count / 1e6:.1f}M-parameter built-in model" if count else "a built-in model"


def _numbers(file: Path) -> int:
    """Numbers in a file of weights, by its header; 0 where it has none."""
    try:
        with file.open("rb") as stream:
            header = parse_json(stream.read(min(int.from_bytes(stream.read(8), "little"), 10_000_000)))
        sizes = [
            each["data_offsets"][1] - each["data_offsets"][0] for name, each in header.items() if "data_offsets" in each
        ]
        widths = {"F32": 4, "F16": 2, "BF16": 2, "F64": 8}
        kinds = [widths.get(each["dtype"], 4) for each in header.values() if "data_offsets" in each]
        return sum(size // width for size, width in zip(sizes, kinds, strict=True))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError):
        return 0  # a damaged checkpoint hides no other result


def _table(table: Any) -> dict[str, Any]:
    if table is None:
        return {"columns": [], "rows": [], "main": 0}
    return {"columns": [*table.columns], "rows": [[*row] for row in table.rows], "main": table.main}


def _facts(run: Run, summary: Summary | None) -> list[list[str]]:
    """Data sets, seed, date, hardware, durations, cost and versions."""
    info, config = run.info, run.config
    facts = {}
    if summary is not None:
        facts["trained on"] = summary.trained_on
        tasks = f"{summary.problems} problems of {summary.measured_on}, {summary.samples} samples each at temperature {summary.temperature:g}"
        facts["measured on"] = tasks
        facts["algorithm"] = f"{summary.algorithm}, loss {summary.loss}" if summary.algorithm else ""
        facts["steps"] = ", ".join(f"{phase} {count:,}" for phase, count in summary.steps.items())
        phases = {name: seconds for name, seconds in summary.seconds.items() if "." not in name}
        times = ", ".join(f"{name} {_time(seconds)}" for name, seconds in phases.items())
        facts["duration"] = f"{_time(sum(phases.values()))}: {times}" if phases else ""
        facts["cost"] = "; ".join(usage_lines(summary.usage)) or "no remote model was called"
    facts |= {"model": config.model.path, "environment": config.env.id, "seed": str(config.seed)}
    facts["started"] = str(info.get("created", ""))[:16].replace("T", " ") + " UTC"
    facts["hardware"] = _hardware(info.get("hardware"))
    libraries = info.get("libraries")
    versions = {"skill-ttrl": info.get("skill_ttrl"), "python": info.get("python")}
    versions |= libraries if isinstance(libraries, dict) else {}
    facts["versions"] = ", ".join(f"{name} {version}" for name, version in versions.items())
    return [[name, value] for name, value in facts.items() if value]


def _hardware(found: Any) -> str:
    if not isinstance(found, dict):
        return ""
    gpus = found.get("gpus") or []
    return ", ".join([f"{found.get('cpu_threads')} CPU threads of {found.get('cpu')}", *map(str, gpus or ["no GPU"])])


def _time(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.1f} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"


def _warning(text: str, phase: str | None = None, step: int | None = None, *, tripwire: bool = False) -> dict[str, Any]:
    return {"text": text, "phase": phase, "step": step, "tripwire": tripwire}


def _unhealthy(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Metrics of the last step that are outside of their healthy ranges."""
    return [
        _warning(
            f"{each.name} is {each.value:.4g}, healthy {each.healthy}: {each.meaning}. {each.trouble}. Change: {each.change}.".replace(
                "`", ""
            ),
            each.phase,
            each.step,
        )
        for each in (unhealthy(rows[-1]) if rows else ())
    ]


# Controls.


def _controls(part: Part, parts: Sequence[Part]) -> list[dict[str, Any]]:
    """The controls of a run that ran, with their values, and those that did not, with their commands."""
    (run,), summary = part.runs, part.summary
    known = {each.label: each for each in part.evaluations[0]}
    measured = known.get("after") or known.get("before")
    found = [
        _control(
            CONTROL.format(name), with_interval(each.accuracy, each.interval), f"The policy is {_against(each.policy)}."
        )
        for name, each in (measured.controls.items() if measured else ())
    ]
    gain = summary.intervals.get("skill_gain") if summary else None
    if summary is not None and gain and summary.accuracy_no_skills is not None and summary.accuracy_after is not None:
        difference = with_interval(summary.accuracy_after - summary.accuracy_no_skills, gain, "+")
        words = f"The skill bank adds {difference}: {CLEAR[verdict(gain)]}."
        found.append(_control("without the skill bank", short(summary.accuracy_no_skills), words))
    if not run.config.votes or run.config.rl.reward in (*CONTROLS, "label"):
        return found
    rest = [each for each in run.config.phases if each not in VOTED]
    others = [other for other in parts if other is not part and other.kind == "run" and _alike(other.runs[0], run)]
    made = {RANDOM: ["rl.reward=random"]}
    made |= {} if "vote_sft" in run.config.phases else {IMITATION: [f"phases=[{', '.join([*rest, 'vote_sft'])}]"]}
    for name, settings in made.items():
        ran = next((other for other in others if _is_control(other.runs[0], name)), None)
        if ran is not None and ran.summary is not None:
            found.append(_control(name, *_outcome(ran.summary, ran.name)))
        else:
            words = {
                RANDOM: "Not run. If a reward that knows nothing helps as much, the votes taught nothing.",
                IMITATION: "Not run. It says what RL adds to plain fine-tuning on the same majority answers.",
            }[name]
            found.append(_control(name, None, words, _command(run, name.partition(" ")[0], settings)))
    return found


def _control(name: str, value: str | None, words: str, command: str | None = None) -> dict[str, Any]:
    return {"name": name, "value": value, "words": words, "command": command}


def _against(policy: str | None) -> str:
    return {"better": "clearly better", "worse": "clearly worse"}.get(policy or "", "not clearly better or worse")


def _alike(one: Run, other: Run) -> bool:
    """True if two runs train the same model on the same tasks."""
    mine, others = ((each.config.env, each.config.data.train, each.config.model) for each in (one, other))
    return mine == others


def _is_control(run: Run, name: str) -> bool:
    imitates = "vote_sft" in run.config.phases
    return (
        run.config.rl.reward == "random" and not imitates
        if name == RANDOM
        else imitates and run.config.rl.reward not in CONTROLS
    )


def _outcome(summary: Summary, name: str) -> tuple[str, str]:
    bounds = summary.intervals.get("accuracy_change")
    if bounds is None or summary.accuracy_before is None or summary.accuracy_after is None:
        return short(summary.accuracy_after) or "?", f"Run {name}."
    change = _change(summary.accuracy_before, summary.accuracy_after, bounds)
    return short(summary.accuracy_after), f"Run {name}: avg@{summary.samples} {change}."


def _command(run: Run, suffix: str, settings: Sequence[str]) -> str:
    """The command of a run with other settings: by the name of its config where that is a shipped one, else by its saved config."""
    config, path = run.config, run.path
    source, seed = str(path / "config.yaml"), list[str]()
    if config.name in recipe_names():
        shipped = load_config(config.name)
        if settings_digest(shipped) == settings_digest(config):
            source, seed = config.name, [] if shipped.seed == config.seed else ["--seed", str(config.seed)]
    changes = [word for setting in settings for word in ("--set", setting)]
    return shlex.join(["skillttrl", "train", source, *seed, *changes, "-o", f"{path}-{suffix}"])


# Seeds, optimizations and comparisons.


def _seeds_verdict(part: Part, parts: Sequence[Part]) -> dict[str, Any]:
    found, runs = read_seeds(part.path), part.runs
    ended = [run.summary for run in runs if run.summary is not None]
    view = seeds_inspection(found)
    sentence = f"{found.name} has not ended with any of {len(found.seeds)} seeds."
    if ended:
        of_one = Part(runs[0].path, [run for run in runs if run.summary is not None][:1])
        assert of_one.summary is not None
        did = _sentence(of_one.summary, of_one.runs[0]).partition(": ")[0]
        sentence = f"With each of {len(ended)} seeds, {did}"
        label = next(iter(found.change), None)
        if label is not None:
            change = found.change[label]
            means = f"{found.before[label].mean:.3f} to {found.after[label].mean:.3f}"
            judged = CLEAR[verdict(change.interval)] if change.interval else "with no interval over seeds"
            sentence += f": {label} went from {means} in the mean ({with_interval(change.mean, change.interval, '+')} over seeds, {judged})"
        sentence += "."
    warnings = [
        _warning(f"seed {run.config.seed}: {text}") for run in runs if run.summary for text in run.summary.warnings
    ]
    return {
        "name": part.name,
        "sentence": sentence,
        "table": {
            "columns": [*view.columns],
            "rows": [[*row] for row in view.rows],
            "main": view.main_rows or len(view.rows),
        },
        "controls": [],
        "facts": [[name, str(value)] for name, value in view.facts.items()]
        + (_facts(runs[0], runs[0].summary) if runs else []),
        "lines": [*view.notes],
        "warnings": warnings,
        "config": runs[0].config.to_yaml(sparse=True) if runs else "",
    }


def _optimization_verdict(part: Part, parts: Sequence[Part]) -> dict[str, Any]:
    (run,) = part.runs
    found: OptimizeSummary | None = read_optimization(part.path)
    view = inspect(part.path, limit=1_000)
    sentence = f"The optimization of a document for {run.config.env.id} has not ended."
    rows: list[list[str | None]] = []
    if found is not None:
        sentence = f"A skill document was optimized for {found.policy} in {found.environment}, whose weights stayed as they were"
        rows = [
            [
                "success on selection items (these decide)",
                short(found.selection_first.hard),
                short(found.selection_best),
            ]
        ]
        if found.test_first and found.test_best and found.test_change:
            first, best = found.test_first, found.test_best
            change = _change(first.hard, best.hard, found.test_change[1:])
            sentence += f": success on {best.items} test items {change}"
            rows.append(
                ["success on test items", *(with_interval(each.hard, (each.low, each.high)) for each in (first, best))]
            )
        sentence += "."
    return {
        "name": part.name,
        "sentence": sentence,
        "table": {"columns": ["metric", "first document", "best document"], "rows": rows, "main": len(rows)},
        "controls": [],
        "facts": [[name, str(value)] for name, value in view.facts.items()] + _facts(run, None),
        "lines": summary_lines(found) if found else [],
        "warnings": [],
        "config": run.config.to_yaml(sparse=True),
    }


_VERDICTS: dict[str, Callable[[Part, Sequence[Part]], dict[str, Any]]] = {
    "run": _run_verdict,
    "seeds": _seeds_verdict,
    "optimization": _optimization_verdict,
}


def _compared(parts: Sequence[Part]) -> list[dict[str, Any]]:
    """Paired differences of each part from the first one, and in words what they say."""
    tables = []
    for other in parts[1:]:
        title = f"{other.name}, compared with {parts[0].name}"
        rows: list[list[str]] = []
        try:
            (found,) = compare([parts[0].path, other.path])
            words = [*found.notes]
            for name, each in found.figures.items():
                change = with_interval(each.difference, each.interval, "+")
                rows.append([FIGURES[name], short(each.one), short(each.other), change, verdict(each.interval)])
                words.append(_difference(FIGURES[name], each.difference, each.interval, each.tasks))
            words.append(f"Paired by task; {PAIRED_TEST}. Other seeds may differ more.")
        except SkillTTRLError as error:  # two runs on different tasks still stand side by side
            words = [str(error)]
        tables.append(
            {
                "title": title,
                "columns": ["metric", "first", "this", "difference", "verdict"],
                "rows": rows,
                "words": words,
            }
        )
    return tables


def _difference(name: str, difference: float, bounds: Interval, tasks: int) -> str:
    found = verdict(bounds)
    if found == "unclear":
        return f"{name}: the difference of {difference:+.3f} is noise as far as {tasks} tasks can tell: the interval contains 0."
    return f"{name}: clearly {found}, by {abs(difference):.3f} on the same {tasks} tasks."


# Charts and views.


def _curves(part: Part) -> Curves:
    if part.kind == "optimization":
        file = part.path / "history.json"
        try:
            history = parse_json(file.read_text(encoding="utf-8")) if file.is_file() else []
        except (OSError, ValueError) as error:
            raise RunFolderError(f"Cannot read {file}: {error}.") from None
        return Curves(part.name, [Member([{"phase": "optimize", **row} for row in history])])
    parts = zip(part.runs, part.evaluations, part.rollouts, strict=True)
    return Curves(part.name, [Member(metric_rows(run.path), found, played.spread) for run, found, played in parts])


def _views(part: Part) -> list[dict[str, Any]]:
    """Votes, rollouts and skills of each run of a part."""
    if part.kind in ("bank", "optimization"):
        skills = read_skills(part.path) if part.kind == "bank" else read_document(part.path)
        return [_view(part.name, part.path, None, None, skills)]
    views = []
    for run, found in zip(part.runs, part.rollouts, strict=True):
        name = part.name if part.kind == "run" else f"{part.name}: seed {run.config.seed}"
        votes = read_votes(run.path, found, run.config.vote.chosen[0])
        skills = read_skills(run.path / BANK) if is_bank(run.path / BANK) else None
        views.append(_view(name, run.path, votes, found.rollouts, skills))
    return views


def _view(name: str, path: Path, votes: Any, rollouts: Any, skills: Any) -> dict[str, Any]:
    left_out = [part["left_out"] for part in (votes, rollouts, skills) if part and part["left_out"]]
    return {
        "name": name,
        "path": str(path),
        "votes": votes,
        "rollouts": rollouts,
        "skills": skills,
        "left_out": left_out,
    }

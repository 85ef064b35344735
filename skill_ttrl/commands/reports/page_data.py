"""The data of the report: verdict, controls, facts and warnings of each run, their comparison, charts, votes, rollouts, skills.

It reads runs, and writes nothing but the page (`write_report`). Its data are plain dictionaries, which `page.render` makes a page of.
"""

from __future__ import annotations

import datetime
import math
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

import skill_ttrl
from skill_ttrl.commands.optimize_results import is_optimization, read_history
from skill_ttrl.commands.optimize_results import read_summary as read_optimization
from skill_ttrl.commands.reports.compare import FIGURES, Seeds, compare, is_seeds, named_seeds, read_seeds, runs_in
from skill_ttrl.commands.reports.inspect import inspect, listed, signs_of
from skill_ttrl.commands.reports.page_charts import Curves, Member, charts
from skill_ttrl.commands.reports.page_rollouts import Found, read_document, read_rollouts, read_skills, read_votes
from skill_ttrl.commands.reports.summary_text import (
    CONTROL,
    NO_BANK,
    VOTED,
    Inspection,
    Table,
    closing_lines,
    evaluation_table,
    short,
    summary_table,
    with_interval,
)
from skill_ttrl.config import SkillTTRLConfig, load_config, recipe_names, settings_digest
from skill_ttrl.errors import RunFolderError, SkillTTRLError
from skill_ttrl.llm.openai.ledger import usage_lines
from skill_ttrl.progress import Progress
from skill_ttrl.runs.checkpoint import list_checkpoints
from skill_ttrl.runs.folder import RunFolder, Warned, config_differences, metric_rows
from skill_ttrl.runs.reader import Run, read_run, warnings_of
from skill_ttrl.runs.summary import Summary
from skill_ttrl.skills.log import is_bank
from skill_ttrl.statistics import PAIRED_TEST, Interval, repeats_interval, verdict
from skill_ttrl.storage.files import still_running, wrap_os_errors, write_atomic
from skill_ttrl.train.open_run import BANK
from skill_ttrl.train.results import Evaluation, read_evaluations
from skill_ttrl.voting.rewards import CONTROLS

REPORT = "report.html"
GENERATOR = b'<meta name="generator" content="skillttrl report">'
"""Identifies a report, near the beginning of the file."""
LEARNED = {
    "majority": "from its own majority votes, without labels",
    "verify": "from whether its answers satisfy each problem's check, without labels",
    "label": "from the true answers: a control that uses labels",
    "random": "from coin tosses: a control",
    "format": "from whether an answer was given at all: a control",
    "env": "from the rewards of its environment",
}
"""Words for `rl.reward`."""
WENT = {"better": "rose", "worse": "fell", "unclear": "went"}
CLEAR = {"better": "clear", "worse": "clear", "unclear": "unclear: it may be noise"}
AGENTS = {"random": "acting at random, without a model", "first": "always the first listed action, without a model"}
"""Words for the scripted agents that play as controls (`eval.controls`)."""
RANDOM, IMITATION = "random reward", "imitation of the same votes"
WHY = {
    RANDOM: "Not run. If a reward that knows nothing helps as much, this one taught nothing.",
    IMITATION: "Not run. It says what RL adds to plain fine-tuning on the same majority answers.",
}


@dataclass
class Part:
    """One of the paths of a report."""

    path: Path
    kind: str
    """run, seeds, optimization, bank."""
    runs: Sequence[Run] = ()
    """None of a bank; of seeds those that have begun."""
    name: str = ""

    @cached_property
    def evaluations(self) -> list[list[Evaluation]]:
        """Of each run."""
        return [read_evaluations(each.path, each.notes) for each in self.runs]

    @cached_property
    def rows(self) -> list[list[dict[str, Any]]]:
        """Metrics by step of each run; of an optimization its history."""
        if self.kind != "optimization":
            return [metric_rows(run.path, run.notes) for run in self.runs]
        found = [{**row, "phase": "optimize"} for row in read_history(self.path)]
        if not all(isinstance(row.get("step"), int) for row in found):
            raise RunFolderError(f"The history of {self.path} is damaged: a step lacks its number.")
        return [found]

    @cached_property
    def seeds(self) -> Seeds:
        """Of a folder of seeds, their results together."""
        return read_seeds(self.path)

    @cached_property
    def rollouts(self) -> list[Found]:
        """Of each run."""
        return [read_rollouts(each) for each in self.runs]


def page(paths: Sequence[str | Path]) -> dict[str, Any]:
    """The data of the page on one or more runs, folders of seeds, optimizations or banks.

    Raises:
        RunFolderError: a path is none of these, or a file of it cannot be read.
    """
    damaged = list[str]()
    parts = [part for path in paths for part in _parts(Path(path), damaged)]
    if len({part.name for part in parts}) < len(parts):
        _name_by_path(parts)
    runs = [part for part in parts if part.kind in ("run", "seeds")]
    return {
        "title": ", ".join(part.name for part in parts),
        "made": f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M} UTC",
        "version": skill_ttrl.__version__,
        "verdicts": [_verdict(part, parts) for part in parts],
        "compared": [_compared(runs[0], other) for other in runs[1:]],
        "charts": charts([_curves(part) for part in parts if part.runs]),
        "runs": [view for part in parts for view in _views(part)],
        "damaged": damaged,
    }


def _name_by_path(parts: Sequence[Part]) -> None:
    """Name each part by as much of the end of its path as no other shares."""
    paths = [part.path.resolve().parts for part in parts]
    for length in range(1, max(map(len, paths)) + 1):
        ends = [str(Path(*path[-length:])) for path in paths]
        if len({*ends}) == len(ends):
            break
    for part, name in zip(parts, ends, strict=True):
        part.name = name


def write_report(paths: Sequence[str | Path], output: str | Path | None = None) -> tuple[Path, list[str]]:
    """Write the page to a file; default: `report.html` in the folder of the first path. Returns the file and what was left out.

    Raises:
        RunFolderError: see `page`; the file cannot be written, or is there already and is no report.
    """
    from skill_ttrl.commands.reports.page import render

    file = Path(paths[0], REPORT) if output is None else Path(output)
    with wrap_os_errors("write", file):
        if file.exists() and not RunFolder.exists(file.parent) and GENERATOR not in file.read_bytes()[:4000]:
            raise RunFolderError(f"{file} exists already and is no report of skillttrl. Choose another file: -o FILE.")
        found = page(paths)
        write_atomic(file, render(found).encode())
    return file, found["damaged"] + [f"{view['name']}: {text}" for view in found["runs"] for text in view["left_out"]]


def finish_report(path: Path, progress: Progress) -> None:
    """Write the report of a run that has ended. Whatever goes wrong is a warning: the results are there, and the page can be made again."""
    try:
        write_report([path])
    except Exception as error:
        again = f"The results are complete. The page alone can be made again: skillttrl report {path}"
        progress.notice(f"{path / REPORT} was not written: {error} {again}", warning=True)


def _parts(path: Path, damaged: list[str]) -> list[Part]:
    """Parts at a path: one, or for a folder of other runs one for each. Runs that cannot be read are added to `damaged`."""
    if RunFolder.exists(path):
        run = read_run(path)
        kind = "optimization" if is_optimization(path) else "run"
        return [Part(path, kind, [run], f"{run.config.name}, seed {run.config.seed}")]
    if is_seeds(path):
        name, seeds = named_seeds(path)
        begun = [each for seed in seeds if RunFolder.exists(each := path / f"seed-{seed}")]
        return [Part(path, "seeds", [read_run(each) for each in begun], f"{name}, {_count(len(begun), 'seed')}")]
    if is_bank(path):
        return [Part(path, "bank", name=str(path))]
    found = list[Part]()
    for each in runs_in(path) if path.is_dir() else ():
        try:
            listed(each, [])
            found += _parts(each, damaged)
        except SkillTTRLError as error:  # one hides no other
            damaged.append(f"{each} is left out: {error}")
    if found:
        return found
    raise RunFolderError(
        f"{path} is no run, no folder of runs, no optimization and no skill bank, so there is nothing to report. Name a folder that "
        "`skillttrl train` or `skillttrl optimize` has written."
    )


def _verdict(part: Part, parts: Sequence[Part]) -> dict[str, Any]:
    """The verdict on a part, from its own files alone; `parts` may hold its controls."""
    run = part.runs[0] if part.runs else None
    found = _of_run(part, run) if run is not None and part.kind == "run" else _of_results(part, run)
    sentence, table, controls = found["sentence"], found["table"], list[dict[str, Any]]()
    if part.kind in ("run", "seeds") and run is not None:
        controls = _controls(part, parts)
        missing = sum(each["value"] is None for each in controls)
        if missing and any(each.summary for each in part.runs):
            seeds = "One seed, and " if part.kind == "run" else ""
            sentence += f" {seeds}{missing} of {len(controls)} controls not run."
    sentence, _, more = sentence.partition("\n")
    return found | {
        "name": part.name,
        "sentence": f"A{sentence[1:]}" if sentence.startswith("a ") else sentence,  # a model's name stays as it is
        "more": more,
        "table": table._asdict() | {"rows": [[_in_words(str(name)), *cells] for name, *cells in table.rows]},
        "controls": controls,
        "warnings": [asdict(each) for each in found["warnings"]],
        "config": run.config.model_copy(update={"verified": None}).to_yaml(sparse=True) if run else "",
    }


def _of_results(part: Part, run: Run | None) -> dict[str, Any]:
    """Sentence, table, lines, warnings and facts of seeds, an optimization or a bank, from its `inspect`; `run` is its first one."""
    view, warnings = inspect(part.path, limit=1_000), list[Warned]()
    for each in part.runs if part.kind == "seeds" else ():
        warnings += [replace(one, text=f"seed {each.config.seed}: {one.text}") for one in warnings_of(each)]
    warnings.sort(key=lambda each: not each.tripwire)
    table = Table(tuple(view.columns), [tuple(row) for row in view.rows], view.main_rows or len(view.rows))
    table = Table((), [], 0) if part.kind == "bank" else table  # its skills stand further down
    facts = _facts(run, run.summary if part.kind == "seeds" else None) if run else []
    # The view names its own.
    hidden = ("model",) if part.kind == "optimization" else ("seed", "duration", "started")
    facts = [fact for fact in facts if fact[0] not in (*hidden, *view.facts)]
    facts = [[name, str(value)] for name, value in view.facts.items()] + facts
    sentence = _sentence_of(part, view)
    return {"sentence": sentence, "table": table, "lines": [*view.notes], "warnings": warnings, "facts": facts}


def _of_run(part: Part, run: Run) -> dict[str, Any]:
    """As `_of_results`, of one run."""
    rows, summary, warnings, lines = part.rows[0], run.summary, warnings_of(run), list[str]()
    signs = signs_of(run.config, rows, [each.text for each in warnings])
    warnings += [Warned(each.in_words(), each.phase, each.step) for each in signs]
    warnings.sort(key=lambda each: not each.tripwire)
    if summary is None:
        done = f"{rows[-1]['phase']} step {int(rows[-1]['step']) + 1}" if rows else "no step"
        going = still_running(part.path)
        then = f"It is {going}" if going else "Continue it with --resume auto"
        sentence = f"{_model(run)} has not ended its training: {done} is done. {then}."
        table = evaluation_table(part.evaluations[0])
    else:
        sentence, table = _sentence(summary, run), summary_table(summary, full=True)
        said, begin, closing = {each.text for each in warnings}, "Warning: ", closing_lines(summary, full=True)
        others = (text.removeprefix(begin) for text in closing if text.startswith(begin))
        warnings = [*(Warned(text) for text in others if text not in said), *warnings]
        lines = [text for text in closing if not text.startswith((begin, "Wall time: "))]
        lines += _losses(run, rows)
        types = {f"avg@{summary.samples}, {kind}" for kind in summary.by_type_after}
        ordered = sorted(table.rows[table.main :], key=lambda row: row[0] not in types)
        table = Table(table.columns, [*table.rows[: table.main], *ordered], table.main + len(types))
    facts = _facts(run, summary)
    return {"sentence": sentence, "table": table, "lines": lines, "warnings": warnings, "facts": facts}


def _sentence(summary: Summary, run: Run) -> str:
    """One sentence: model, data, training signal, and the change of the main metric."""
    steps, where = summary.steps, summary.trained_on or run.config.env.id
    where += f" (data {data})" if (data := run.config.env.kwargs.get("data")) else ""  # such as generated games
    did = f"imitated demonstrations of {where}"
    if "rl" in steps:
        did = f"learned {where} {LEARNED.get(summary.reward, f'from the reward {summary.reward}')}"
        did += f" (strategy {summary.vote})" if summary.reward == "majority" != summary.vote else ""
    elif "vote_sft" in steps:
        own = "its own majority answers, without labels"
        did = f"was fine-tuned on {'samples that a control chose' if summary.reward in CONTROLS else own}, to {where}"
    if summary.bank_skills is not None:
        given = run.config.skills and run.config.skills.bank
        did += f", with {f'the given bank {given}' if given else 'a bank of its own'} of {summary.bank_skills} skills"
    first = sum(steps.get(phase, 0) for phase in ("sft", "dagger"))
    end = f" A cold start of {first:,} steps on demonstrations came before." if first and {*steps} & VOTED else ""
    for figure, name in (("greedy", "Right greedy answers"), ("majority", f"Right majorities (maj@{summary.samples})")):
        if bounds := summary.intervals.get(f"{figure}_change"):
            one, other = (getattr(summary, f"{figure}_{when}") or 0.0 for when in ("before", "after"))
            end = f" {name} {_change(one, other, bounds)}.{end}"
    several = f"right answers (avg@{summary.samples})"
    names = {"accuracy": several if summary.samples > 1 else "success", "score": "the score"}
    for figure, name in names.items():
        before, after = (getattr(summary, f"{figure}_{when}") for when in ("before", "after"))
        bounds = summary.intervals.get(f"{figure}_change")
        if after is not None:
            value = with_interval(after, summary.intervals.get(f"{figure}_after"))
            change = f"is {value}" if before is None or bounds is None else _change(before, after, bounds)
            end += _without_baseline(run) if before is None else ""
            return f"{_model(run)} {did}: {name} on {_measured_on(summary)} {change}.\n{end}"
    return f"{_model(run)} {did}. Without true answers nothing says how often it is right.\n{end}"


def _without_baseline(run: Run) -> str:
    """For imitation without an evaluation before it: why no change is reported, and the command that measures the baseline."""
    if run.config.model.path == "builtin":
        return " Nothing was measured before the training; a built-in model starts from random weights and learned all of it here."
    before = shlex.join(["skillttrl", "evaluate", run.config.model.path, "--config", str(run.path / "config.yaml")])
    return f" What the training changed is not known: this run was evaluated only after imitation. The model as it was: {before}"


def _losses(run: Run, rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """First and last loss of imitation, and where it jumps because the demonstrations change, which says nothing about the model."""
    sft, source = run.config.sft, run.config.demonstration_source
    jumps = {"dagger": " It jumps where a round begins, whose episodes are new to it."}
    noisy = math.ceil(sft.noise_free_fraction * sft.steps)
    if source is not None and source.path.startswith("synthetic:") and 0 < noisy < sft.steps:
        jumps["sft"] = f" It jumps at step {noisy}: from there demonstrations have errors (sft.noise_free_fraction)."
    for phase in ("sft", "dagger"):
        losses = [row["loss"] for row in rows if row["phase"] == phase and isinstance(row.get("loss"), float)]
        if tenth := len(losses) // 10:
            ends = " to ".join(f"{fmean(each):.3g}" for each in (losses[:tenth], losses[-tenth:]))
            yield f"Loss of {phase}: from {ends}, means of the first and last {_count(tenth, 'step')}.{jumps.get(phase, '')}"


def _in_words(name: str) -> str:
    """The name of a row of a table, with a scripted agent by what it does."""
    before, named, agent = name.partition(CONTROL.format(""))
    return f"{before}{AGENTS.get(agent, f'the scripted agent {agent}')}" if named else name


def _sentence_of(part: Part, view: Inspection) -> str:
    """The verdict on seeds, an optimization or a bank."""
    if part.kind == "bank":
        return f"A skill bank, version {view.facts['version']}; skills: {view.facts['skills']}; uses: {view.facts['uses']}."
    if part.kind == "optimization":
        found = read_optimization(part.path)
        if found is None:
            return "A skill document is being optimized; the run has not ended."
        text = f"A skill document was optimized for {found.policy} in {found.environment}, whose weights stayed as they were"
        if found.test_first is not None and found.test_best is not None and found.test_change is not None:
            change = _change(found.test_first.hard, found.test_best.hard, found.test_change[1:])
            text += f": success on {found.test_best.items} test items {change}"
        return f"{text}."
    ended = [each for each in part.runs if each.summary is not None]
    if not ended or ended[0].summary is None:
        return f"Of {_count(len(part.seeds.seeds), 'seed')} none has ended."
    text = f"With {_count(len(ended), 'seed')}, {_sentence(ended[0].summary, ended[0]).partition(': ')[0]}"
    if main := _main_change(part):
        name = f"right answers ({main[0]})" if "@" in main[0] else main[0]
        text += f": {name} on {_measured_on(ended[0].summary)} {main[2]}"
    return f"{text}."


def _main_change(part: Part) -> tuple[str, float, str] | None:
    """Name, value after training and change in words of the main figure of a run or of seeds; None where it has none yet."""
    if part.kind == "run":
        if (summary := part.runs[0].summary) is None or summary.accuracy_after is None:
            return None
        bounds = summary.intervals.get("accuracy_change", (-1.0, 1.0))
        change = _change(summary.accuracy_before or 0.0, summary.accuracy_after, bounds)
        return f"avg@{summary.samples}", summary.accuracy_after, change
    if not part.seeds.change:
        return None
    label, each = next(iter(part.seeds.change.items()))
    before, after = part.seeds.before[label].mean, part.seeds.after[label].mean
    change = _change(before, after, each.interval) if each.interval else f"went from {before:.3f} to {after:.3f}"
    return label, after, f"{change}, in the mean over seeds"


def _measured_on(summary: Summary) -> str:
    return _count(summary.problems, f"{'training' if summary.transductive else 'held-out'} problem")


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'s' * (number != 1)}"


def _change(before: float, after: float, bounds: Interval) -> str:
    """A change in words with its interval and whether it is clear."""
    found, stayed = verdict(bounds), short(before) == short(after)
    went = f"stayed at {after:.3f}" if stayed else f"{WENT[found]} from {before:.3f} to {after:.3f}"
    return f"{went} ({with_interval(after - before, bounds, '+')}, {CLEAR[found]})"


def _model(run: Run) -> str:
    """The model in words: the built-in one with its size, four bytes a number in its newest checkpoint."""
    model, newest = run.config.model, list_checkpoints(RunFolder(run.path, None))[-1:]
    if model.path != "builtin":
        return f"{model.path}{' with LoRA adapters' if model.lora is not None else ''}"
    size = sum(file.stat().st_size for each in newest for file in each.path.glob("*.safetensors"))
    return f"a {size / 4e6:.1f}M-parameter built-in model" if size else "a built-in model"


def _facts(run: Run, summary: Summary | None) -> list[list[str]]:
    """Data sets, seed, date, hardware, durations, cost and versions."""
    info, config = run.info, run.config
    settings = (f"{name} {each}" for name, each in config.env.kwargs.items() if isinstance(each, str | int | float))
    environment = ", ".join([config.env.id, *settings])
    facts = {"model": config.model.path, "environment": environment, "seed": str(config.seed)}
    if summary is not None:
        measured = f"{_count(summary.problems, 'problem')} of {summary.measured_on or config.env.id}"
        sampled = f"{_count(summary.samples, 'sample')} each at temperature {summary.temperature:g}"
        facts |= {"trained on": summary.trained_on, "measured on": f"{measured}, {sampled}"}
        facts["steps"] = ", ".join(f"{phase} {count:,}" for phase, count in summary.steps.items())
        times = {name: seconds for name, seconds in summary.seconds.items() if "." not in name}
        total, *each = (datetime.timedelta(seconds=round(one)) for one in (sum(times.values()), *times.values()))
        facts["duration"] = f"{total}: {', '.join(f'{name} {time}' for name, time in zip(times, each, strict=True))}"
        facts["cost"] = "; ".join(usage_lines(summary.usage)) or "no remote model was called"
    hardware, libraries = info.get("hardware"), info.get("libraries")
    if isinstance(hardware, dict):
        found = hardware.get("gpus")
        gpus = ", ".join(map(str, found)) if isinstance(found, list) and found else "no GPU"
        facts["hardware"] = f"{hardware.get('cpu_threads')} CPU threads, {gpus}"
    versions = {"skill-ttrl": info.get("skill_ttrl"), "python": info.get("python")}
    versions |= libraries if isinstance(libraries, dict) else {}
    facts["started"] = f"{str(info.get('created'))[:16].replace('T', ' ')} UTC"
    facts["versions"] = ", ".join(f"{name} {version}" for name, version in versions.items())
    return [[name, value] for name, value in facts.items() if value]


def _controls(part: Part, parts: Sequence[Part]) -> list[dict[str, Any]]:
    """The controls of a run or of seeds that ran, with their values, and those that did not, with their commands."""
    run, config = part.runs[0], part.runs[0].config
    found: list[tuple[str, str | None, str, str | None]] = [*_of_seeds(part)] if part.kind == "seeds" else []
    summary = run.summary if part.kind == "run" else None
    known = {each.label: each for each in part.evaluations[0]} if part.kind == "run" else {}
    for name, each in getattr(known.get("after") or known.get("before"), "controls", {}).items():
        words = f"The policy is {'not clearly better or worse' if each.policy in (None, 'unclear') else f'clearly {each.policy}'}."
        found.append((_in_words(CONTROL.format(name)), with_interval(each.accuracy, each.interval), words, None))
    if summary and summary.accuracy_no_skills is not None and (gain := summary.intervals.get("skill_gain")):
        added = with_interval((summary.accuracy_after or 0.0) - summary.accuracy_no_skills, gain, "+")
        words = f"The trained policy without the bank. With it {short(summary.accuracy_after)}: {added}, {CLEAR[verdict(gain)]}."
        found.append((NO_BANK, short(summary.accuracy_no_skills), words, None))
    if config.votes and config.rl.reward not in (*CONTROLS, "label"):
        phases = [each for each in config.phases if each not in VOTED]
        made = {RANDOM: "rl.reward=random"}
        if config.reinforces and config.rl.reward != "env":
            made[IMITATION] = f"phases=[{', '.join([*phases, 'vote_sft'])}]"
        for name, setting in made.items():
            there = (each for each in parts if each.kind in ("run", "seeds") and each.runs)
            ran = next((each for each in there if _is_control(each.runs[0], run, name)), None)
            if ran and (change := _main_change(ran)):
                words = f"Run {ran.name}: {change[0]} {change[2]}.{_apart(config, ran.runs[0].config)}"
                found.append((name, short(change[1]), words, None))
            else:
                found.append((name, None, WHY[name], _command(part, name.split()[0], setting)))
    return [dict(zip(("name", "value", "words", "command"), each, strict=True)) for each in found]


def _of_seeds(part: Part) -> Iterator[tuple[str, str, str, None]]:
    """Means over seeds of the scripted agents, and of the trained policies without their banks."""
    after = part.seeds.after
    for label, each in after.items():
        value = with_interval(each.mean, each.interval)
        if label.endswith(NO_BANK) and (whole := after.get(label.partition(",")[0])):
            gains = [one - other for one, other in zip(whole.values, each.values, strict=True)]
            bounds = repeats_interval(gains)
            gain = with_interval(fmean(gains), bounds, "+") if bounds else f"{fmean(gains):+.3f}"
            judged = f", {CLEAR[verdict(bounds)]}" if bounds else ""
            words = f"The trained policies without their banks. With them {short(whole.mean)}: {gain}{judged}."
            yield NO_BANK, value, words, None
        elif label.startswith(CONTROL.format("")):
            yield _in_words(label), value, "Mean over seeds.", None


def _is_control(other: Run, run: Run, name: str) -> bool:
    """True if `other` is this control of `run`: the same model, on the same tasks."""
    one, two = ((each.config.env, each.config.data.train, each.config.model) for each in (other, run))
    control = (run.config.reinforces, "random") if name == RANDOM else (False, run.config.rl.reward)
    return one == two and (other.config.reinforces, other.config.rl.reward) == control


OF_CONTROLS = ("rl.reward", "phases", "vote_sft", "seed")


def _apart(config: SkillTTRLConfig, control: SkillTTRLConfig) -> str:
    """A sentence where a control has other settings than it has to: it is then no fair one."""
    found = [each for each in config_differences(config, control) if not each.startswith(OF_CONTROLS)]
    return f" Not the same training but for its signal: {'; '.join(found)}." if found else ""


def _command(part: Part, suffix: str, setting: str) -> str:
    """The command of a run or of seeds with another setting: by the name of its config where it is a shipped one, else by its saved config."""
    config, words = part.runs[0].config, [str(part.runs[0].path / "config.yaml")]
    known, one = config.name in recipe_names(), part.kind == "run"
    if known and settings_digest(shipped := load_config(config.name)) == settings_digest(config):
        words = [config.name, *(("--seed", str(config.seed)) if one and config.seed != shipped.seed else ())]
    words += [] if one else ["--seeds", ",".join(map(str, part.seeds.seeds))]
    return shlex.join(["skillttrl", "train", *words, "--set", setting, "-o", f"{part.path}-{suffix}"])


def _compared(first: Part, other: Part) -> dict[str, Any]:
    """Paired differences of a part from the first one, and in words what they say."""
    columns, rows = ["metric", "first", "this", "difference", "verdict"], list[list[str]]()
    try:
        (found,) = compare([first.path, other.path])
        rows = [[FIGURES[name], *each.cells()] for name, each in found.figures.items()]
        words = [*found.in_words(), *found.notes, f"Paired by task: {PAIRED_TEST}."]
        if first.kind == other.kind == "run":
            differ = "; ".join(config_differences(first.runs[0].config, other.runs[0].config)) or "none"
            words.append(f"Settings that differ (there: the first run; here: this one): {differ}.")
    except SkillTTRLError as error:  # runs on different tasks still stand side by side
        words = [str(error)]
    return {"title": f"{other.name}, compared with {first.name}", "columns": columns, "rows": rows, "words": words}


def _curves(part: Part) -> Curves:
    if part.kind == "optimization":
        return Curves(part.name, [Member(part.rows[0])])
    seeds = (each.config.seed if len(part.runs) > 1 else None for each in part.runs)
    each = zip(part.rows, part.evaluations, part.rollouts, seeds, strict=True)
    return Curves(part.name, [Member(rows, measured, found.spread, seed) for rows, measured, found, seed in each])


def _views(part: Part) -> list[dict[str, Any]]:
    """Votes, rollouts and skills of each run of a part."""
    if part.kind == "bank":
        return [_view(part.name, part.path, skills=read_skills(part.path))]
    if part.kind == "optimization":
        return [_view(part.name, part.path, skills=read_document(part.path))]
    views = []
    for run, played in zip(part.runs, part.rollouts, strict=True):
        name = part.name if part.kind == "run" else f"{part.name}: seed {run.config.seed}"
        skills = read_skills(run.path / BANK) if is_bank(run.path / BANK) else None
        votes = read_votes(run, played, run.config.vote.chosen[0])
        view = _view(name, run.path, votes=votes, rollouts=played.rollouts, skills=skills)
        views.append(view | {"left_out": [*view["left_out"], *run.notes]})
    return views


def _view(name: str, path: Path, **parts: Any) -> dict[str, Any]:
    left_out = [each["left_out"] for each in parts.values() if each and each["left_out"]]
    return {"name": name, "path": str(path), "votes": None, "rollouts": None} | parts | {"left_out": left_out}

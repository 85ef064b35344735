"""`skillttrl inspect`: what a path holds, whatever it is. It reads and never writes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from skill_ttrl.commands.optimize_results import is_optimization, read_history, read_summary, summary_lines
from skill_ttrl.commands.reports.bank import inspect_bank, run_bank
from skill_ttrl.commands.reports.compare import OverSeeds, Seeds, is_headline, is_seeds, read_seeds, runs_in
from skill_ttrl.commands.reports.rollouts import ROLLOUT_COLUMNS, rollout_row
from skill_ttrl.commands.reports.summary_text import (
    Inspection,
    closing_lines,
    evaluation_table,
    short,
    summary_table,
    with_interval,
)
from skill_ttrl.config import SkillTTRLConfig, load_config
from skill_ttrl.errors import DataError, RunFolderError, SkillTTRLError
from skill_ttrl.llm.openai.ledger import ASKED, USAGE, read_usage, usage_lines
from skill_ttrl.metrics import UnhealthyMetric, unhealthy
from skill_ttrl.rollout.outcome import EpisodeResult, count_by_type, count_success, episode_result
from skill_ttrl.runs.checkpoint import MANIFEST, load_state, verify
from skill_ttrl.runs.episode_logs import IDENTITY, SAMPLES, SampleFolder, identity_file, read_identity
from skill_ttrl.runs.folder import RunFolder, metric_rows
from skill_ttrl.runs.reader import read_rollout, read_run
from skill_ttrl.skills.log import BANK_FILE, is_bank
from skill_ttrl.statistics import verdict
from skill_ttrl.storage.files import still_running
from skill_ttrl.storage.jsonl import first_keys, parse_json, parsed, read_jsonl, whole_lines
from skill_ttrl.train.metrics import UNREADABLE
from skill_ttrl.train.results import EVALUATION, Evaluation, read_evaluations
from skill_ttrl.types import content


def inspect(path: str | Path, *, limit: int = 10) -> Inspection:
    """Look at a run, an optimization, a checkpoint, kept samples, a skill bank, skills in any format, or a JSONL file.

    Raises:
        RunFolderError: nothing is there, or it is none of these.
        CheckpointError: a checkpoint is damaged.
    """
    path = Path(path)
    if not path.exists():
        raise RunFolderError(f"{path} does not exist.")
    if path.is_dir():
        if is_optimization(path):
            return optimize_inspection(path, limit=limit)
        if RunFolder.exists(path):
            return _run(path)
        if (path / MANIFEST).is_file():
            return _checkpoint(path)
        if SampleFolder.exists(path):
            return _samples(path)
        if is_seeds(path):
            return seeds_inspection(read_seeds(path))
        if is_bank(path):
            return inspect_bank(path, limit=limit)
    if path.name == EVALUATION:
        return evaluation_inspection("evaluation", path, read_evaluations(path))
    if path.is_dir() and runs_in(path):
        return runs_inspection(path)
    if path.suffix == ".jsonl":
        return records_inspection(path, limit)
    raise RunFolderError(
        f"inspect does not know {path}. It reads a run folder (with run.json), a checkpoint (with {MANIFEST}), samples (with "
        f"{IDENTITY}), a skill bank (with {BANK_FILE}), or a .jsonl "
        "file. A config: skillttrl configs FILE --full."
    )


def _run(path: Path) -> Inspection:
    found = read_run(path)
    config, summary, metrics = found.config, found.summary, metric_rows(path, found.notes)
    done = dict(sorted(Counter(row["phase"] for row in metrics).items()))
    checkpoints = sorted(entry.name for entry in (path / "checkpoints").glob("*-*") if not entry.name.startswith("."))
    facts = {
        "name": config.name,
        "seed": config.seed,
        "model": config.model.path,
        "environment": config.env.id,
        "reward": config.rl.reward,
        "algorithm": f"{config.rl.algorithm['type']}, loss {config.rl.loss['type']}" if config.reinforces else "none",
        "steps done": ", ".join(f"{phase} {count}" for phase, count in done.items()) or "none",
        "ended": "yes" if summary else still_running(path) or "no; continue it with --resume auto",
        "checkpoints": ", ".join(checkpoints) or "none",
    }
    facts |= _asked(path)
    if bank := run_bank(path):
        facts["skill bank"] = bank
    measured = read_evaluations(path, found.notes)
    columns, rows, main = evaluation_table(measured) if summary is None else summary_table(summary, full=True)
    notes = [*found.edited, *found.notes, *([] if summary is None else closing_lines(summary, full=True))]
    signs = signs_of(config, metrics, () if summary is None else summary.warnings)
    return Inspection("run", str(path), facts, columns, rows, notes, main_rows=main, unhealthy=signs)


def signs_of(config: SkillTTRLConfig, rows: Sequence[dict[str, Any]], warned: Iterable[str]) -> list[UnhealthyMetric]:
    """Metrics of the latest step of a run that are outside of their healthy ranges.

    Left out are agreement where votes are not rewarded, whose range is for votes, and what a trip-wire among the warnings says already.
    """
    known = {"majority_ratio"} if config.rl.reward != "majority" else set[str]()
    known |= {"tripwire/unreadable"} if any(text.startswith(UNREADABLE) for text in warned) else set()
    return [each for each in unhealthy(rows[-1]) if each.name not in known] if rows else []


def _asked(folder: Path) -> dict[str, str]:
    """The fact on requests to remote models and their cost; none if there were none."""
    if not (folder / USAGE).is_file():
        return {}
    lines = usage_lines(read_usage(folder / USAGE))
    return {"LLM calls": "; ".join(line.removeprefix(f"{ASKED}: ") for line in lines)} if lines else {}


def _checkpoint(path: Path) -> Inspection:
    verify(path)
    state = load_state(path)
    manifest = parse_json((path / MANIFEST).read_text(encoding="utf-8"))
    facts = {"phase": state["phase"], "step": state["step"], "whole": "yes, every file matches its SHA-256"}
    rows = [(name, f"{entry['bytes']:,}", entry["sha256"][:12]) for name, entry in sorted(manifest.items())]
    return Inspection("checkpoint", str(path), facts, ("file", "bytes", "sha256"), rows)


def _samples(path: Path) -> Inspection:
    """Samples that an evaluation or a vote keeps as it draws them."""
    found = read_identity(path)
    made_with, wanted = found["made_with"], found.get("lines")
    lines = read_jsonl(path / SAMPLES)
    facts = {
        "samples": f"{len(lines)} of {wanted or 'a number not known yet'} lines",
        "complete": "yes" if len(lines) == wanted else "no; the same command continues it",
        "model": made_with["model"],
        "data": ", ".join(each["name"] or "the policy's own problems" for each in made_with["data"]),
    }
    facts |= _asked(path)
    rows = [
        (name, draw["rollouts_per_task"], draw["temperature"], draw["max_new_tokens"])
        for name, draw in made_with["draws"].items()
    ]
    notes = [f"vote on them: skillttrl vote {path} --strategies all"]
    if (path / EVALUATION).is_file():
        notes.append(f"metrics: skillttrl inspect {path / EVALUATION}")
    columns = ("way of sampling", "samples of each", "temperature", "longest")
    return Inspection("samples", str(path), facts, columns, rows, notes)


COLUMNS = "strategy phase step task_id episode answer majority_ratio reward correct tie adv. text".split()
"""Columns of rollouts and fields of votes worth one, in this order."""


def records_inspection(path: Path, limit: int) -> Inspection:
    """Line by line: a file of trajectories can be larger than memory. Files of figures are small, and shown whole."""
    first, notes = first_keys(path), list[str]()
    if {"label", "accuracy", "results"} <= first:
        return evaluation_inspection("records", path, read_evaluations(path))
    if {"phase", "step"} <= first and not first & {"task", "task_id"}:
        records = read_jsonl(path, notes)
        return Inspection("records", str(path), {"lines": len(records)}, *step_rows(records), notes)
    shown, outcomes = list[dict[str, Any]](), dict[str, list[EpisodeResult]]()
    count = 0
    for count, (where, line) in enumerate(whole_lines(path, notes), 1):
        row = parsed(where, line, dict[str, Any])
        if {"task", "steps", "stop_reason"} <= row.keys():
            found, played = read_rollout(where, line)
            outcomes.setdefault(found["phase"], []).append(episode_result(played))
            row = dict(zip(ROLLOUT_COLUMNS, rollout_row(found, played), strict=True))
        shown += [row] * (count <= limit)
    if not count:
        raise DataError(f"{path} holds no complete line.")
    present = {name for row in shown for name in row}
    known = [name for name in COLUMNS if any(row.get(name) is not None for row in shown)]
    columns = known if len(known) > 1 else sorted(present)[:8]
    said = ({name: content(each) if isinstance(each, str) else each for name, each in row.items()} for row in shown)
    rows = [[row.get(name) if name == "episode" else short(row.get(name)) for name in columns] for row in said]
    facts: dict[str, Any] = {"lines": count}
    if identity_file(path).is_file():  # the settings of `skillttrl collect`
        made = read_identity(path)["made_with"]
        whole = count == made["episodes"]
        facts |= {"complete": "yes" if whole else f"no, of {made['episodes']}; the same command continues it"}
        facts |= {name: made[name] for name in ("env", "agent", "split", "seed", "rollouts_per_task")}
    for phase, each in outcomes.items():  # evaluations before and after training have no common success
        facts |= {f"{name} {phase}" if len(outcomes) > 1 else name: text for name, text in _success(each).items()}
    notes.insert(0, f"showing {len(shown)} of {count}; one to read: --row 1")
    return Inspection("records", str(path), facts, columns, rows, notes)


def _success(outcomes: Sequence[EpisodeResult]) -> dict[str, str]:
    """Summarize the success of the episodes, in all and by type; empty unless the environment judged all of them."""
    overall = count_success(outcomes)
    if overall.success is None:
        return {}
    sources = sorted({outcome.source for outcome in outcomes} - {""})
    facts = {"source": ", ".join(sources)} if sources else {}
    for kind, each in {"success": overall, **count_by_type(outcomes)}.items():
        text = f"{with_interval(each.success, each.interval)} in {each.episodes:,} episodes"
        text += "" if each.score is None else f", score {each.score:.3f}"
        text += "" if each.steps is None else f", {each.steps:.1f} steps"
        text += f", {each.failed:,} failed" if each.failed else ""
        facts[kind or "other"] = text + (f", {each.exploits:,} with an attempted exploit" if each.exploits else "")
    return facts


OPTIMIZE_COLUMNS = ("step", "action", "success", "edits", "candidate", "current", "best")


def evaluation_inspection(kind: str, path: Path, found: Sequence[Evaluation]) -> Inspection:
    """The metrics of evaluations."""
    measured = {each.label: f"{each.problems} problems of {each.source or each.split}" for each in found}
    columns, rows, main = evaluation_table(found)
    return Inspection(kind, str(path), measured, columns, rows, main_rows=main or None)


def step_rows(records: Sequence[dict[str, Any]]) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
    """A table of metrics by step: a row for each metric of each phase, with its first, last, mean, least and largest value."""
    values: dict[tuple[str, str], list[float]] = {}
    for record in records:
        for name, value in record.items():
            if name not in ("phase", "step") and isinstance(value, int | float):
                values.setdefault((name, str(record.get("phase"))), []).append(float(value))
    rows = [
        (*key, len(each), *(f"{value:.4g}" for value in (each[0], each[-1], fmean(each), min(each), max(each))))
        for key, each in values.items()
    ]
    return ("metric", "phase", "steps", "first", "last", "mean", "least", "most"), rows


def optimize_inspection(path: Path, *, limit: int) -> Inspection:
    """The newest steps of an optimization, of `skillttrl optimize` or of `SkillOptTrainer`, and its result.

    Raises:
        RunFolderError: a file of it cannot be read.
    """
    rows = read_history(path)
    ended = still_running(path) or "no; the same command or call continues it"
    ended = "yes" if (path / "summary.json").is_file() else ended
    facts: dict[str, Any] = {"steps done": len(rows), "ended": ended, "document": str(path / "best_skill.md")}
    notes = [f"Of {len(rows)} steps the newest {limit}; --rows shows more."] if len(rows) > limit else []
    if (path / "config.yaml").is_file():
        config, summary = load_config(path / "config.yaml", trust=True), read_summary(path)
        assert config.optimize is not None
        facts = {"name": config.name, "seed": config.seed, "environment": config.env.id, **facts}
        facts |= {"engine": config.optimize.engine, "optimizer": config.optimize.optimizer}
        if summary is not None:
            facts["policy"] = summary.policy
            for name, score in (("first", summary.test_first), ("best", summary.test_best)):
                if score is not None:
                    notes.append(f"Test, {name} document: {with_interval(score.hard, (score.low, score.high))}.")
            notes += summary_lines(summary)
        elif (path / USAGE).is_file():
            notes += usage_lines(read_usage(path / USAGE))
    notes.append(f"A step's edits and candidate: {path}/steps/step_N")
    cells = []
    for row in rows[-limit:]:
        edits = row.get("apply_report") or {}
        applied = f"{edits.get('applied', 0)} of {edits.get('total', 0)}" if edits else None
        scores = (row.get(name) for name in ("candidate_gate_score", "current_score", "best_score"))
        action = str(row.get("action")).replace("_", " ")
        cells.append((row.get("step"), action, short(row.get("rollout_hard")), applied, *map(short, scores)))
    return Inspection("optimization", str(path), facts, OPTIMIZE_COLUMNS, cells, notes)


def runs_inspection(path: Path) -> Inspection:
    """The runs in a folder and one level below it."""
    rows, notes = [], list[str]()
    for run in runs_in(path):
        name = str(run.relative_to(path))
        try:
            rows.append((name, *listed(run, notes)))
        except SkillTTRLError as error:  # one damaged run hides no other
            rows.append((name, None, None, "damaged", None, None))
            notes.append(f"{run}: {error}")
    notes.append(f"Compare two: skillttrl inspect {path}/A {path}/B")
    columns = ("run", "seed", "phases", "ended", "before", "after")
    return Inspection("runs", str(path), {"runs": len(rows)}, columns, rows, notes)


def listed(path: Path, notes: list[str]) -> tuple[Any, ...]:
    """Seed, phases, if it has ended, and success before and after: of an optimization, with its first and its best document.
    Lines of evaluations that cannot be read are left out and noted.

    Raises:
        SkillTTRLError: its config or its results are damaged.
    """
    if is_optimization(path):
        config, found = load_config(path / "config.yaml", trust=True), read_summary(path)
        tests = (None, None) if found is None else (found.test_first, found.test_best)
        scores = (None if test is None else short(test.hard) for test in tests)
        return config.seed, "optimize", "no" if found is None else "yes", *scores
    run = read_run(path)
    measured = {str(line.get("label")): line.get("accuracy") for line in read_jsonl(path / "evaluations.jsonl", notes)}
    ended = "no" if run.summary is None else "yes"
    return run.config.seed, "+".join(run.config.phases), ended, *(short(measured.get(w)) for w in ("before", "after"))


def seeds_inspection(found: Seeds) -> Inspection:
    """Runs under several seeds: mean, standard deviation and interval over seeds of each metric."""
    going = next(filter(None, (still_running(Path(found.path, f"seed-{seed}")) for seed in found.seeds)), "")
    facts = {
        "name": found.name,
        "seeds": ", ".join(map(str, found.seeds)),
        "ended": ", ".join(map(str, found.ended)) or f"none; {going or 'continue with --resume auto'}",
        "wall time": f"{found.seconds:.0f} s",
    }

    def shown(each: OverSeeds | None, sign: str = "") -> str | None:
        if each is None:
            return None
        spread = "" if each.spread is None else f" ± {each.spread:.3f}"
        bounds = "" if each.interval is None else f" [{each.interval[0]:{sign}.3f}, {each.interval[1]:{sign}.3f}]"
        return f"{each.mean:{sign}.3f}{spread}{bounds}"

    rows = []
    for label in dict.fromkeys((*found.before, *found.after)):
        change = found.change.get(label)
        judged = None if change is None or change.interval is None else verdict(change.interval)
        rows.append((label, shown(found.before.get(label)), shown(found.after.get(label)), shown(change, "+"), judged))
    main = [row for row in rows if is_headline(row[0])]
    notes = ["Mean ± standard deviation over seeds, and Student's 95% interval of the mean.", *found.in_words()]
    if missing := len(found.seeds) - len(found.ended):
        notes.append(f"{missing} of {len(found.seeds)} seeds have not ended and are excluded.")
    columns, rows = ("metric", "before", "after", "change", "verdict"), [*main, *(r for r in rows if r not in main)]
    return Inspection("seeds", found.path, facts, columns, rows, notes, main_rows=len(main) or None)

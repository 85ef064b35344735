"""Views of `skillttrl inspect` for results: evaluations, metrics by step, optimizations, folders of runs, runs under several seeds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from skill_ttrl.config import load_config
from skill_ttrl.errors import RunFolderError, SkillTTRLError
from skill_ttrl.llm.openai.ledger import USAGE, read_usage, usage_lines
from skill_ttrl.runs.reader import read_run
from skill_ttrl.stages.evaluation.results import Evaluation
from skill_ttrl.stages.optimizing.run_folder import is_optimization
from skill_ttrl.stages.optimizing.summary import read_summary, summary_lines
from skill_ttrl.stages.reports.compare import runs_in
from skill_ttrl.stages.reports.inspection import Inspection, short, with_interval
from skill_ttrl.stages.reports.seeds import OverSeeds, Seeds
from skill_ttrl.stages.reports.summary_text import evaluation_table
from skill_ttrl.statistics import verdict
from skill_ttrl.storage.jsonl import parse_json, read_jsonl

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
    try:
        history = path / "history.json"
        rows = parse_json(history.read_text(encoding="utf-8")) if history.is_file() else []
    except (OSError, ValueError) as error:
        raise RunFolderError(f"Cannot read {history}: {error}.") from None
    ended = "yes" if (path / "summary.json").is_file() else "no; the same command or call continues it"
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
    rows, notes = [], []
    for run in runs_in(path):
        name = str(run.relative_to(path))
        try:
            rows.append((name, *_listed(run)))
        except SkillTTRLError as error:  # one damaged run hides no other
            rows.append((name, None, None, "damaged", None, None))
            notes.append(f"{run}: {error}")
    notes.append(f"Compare two: skillttrl inspect {path}/A {path}/B")
    columns = ("run", "seed", "phases", "ended", "before", "after")
    return Inspection("runs", str(path), {"runs": len(rows)}, columns, rows, notes)


def _listed(path: Path) -> tuple[Any, ...]:
    """Seed, phases, if it has ended, and success before and after: of an optimization, with its first and its best document."""
    if is_optimization(path):
        config, found = load_config(path / "config.yaml", trust=True), read_summary(path)
        tests = (None, None) if found is None else (found.test_first, found.test_best)
        scores = (None if test is None else short(test.hard) for test in tests)
        return config.seed, "optimize", "no" if found is None else "yes", *scores
    run = read_run(path)
    measured = {str(line.get("label")): line.get("accuracy") for line in read_jsonl(path / "evaluations.jsonl")}
    ended = "no" if run.summary is None else "yes"
    return run.config.seed, "+".join(run.config.phases), ended, *(short(measured.get(w)) for w in ("before", "after"))


def seeds_inspection(found: Seeds) -> Inspection:
    """Runs under several seeds: mean, standard deviation and interval over seeds of each metric."""
    facts = {
        "name": found.name,
        "seeds": ", ".join(map(str, found.seeds)),
        "ended": ", ".join(map(str, found.ended)) or "none; continue with --resume auto",
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
    main = [row for row in rows if "," not in row[0] and row[0].startswith(("avg@", "maj@", "greedy", "score"))]
    notes = [f"Mean ± standard deviation over seeds, and Student's {found.confidence:.0%} interval of the mean."]
    if missing := len(found.seeds) - len(found.ended):
        notes.append(f"{missing} of {len(found.seeds)} seeds have not ended and are excluded.")
    columns, rows = ("metric", "before", "after", "change", "verdict"), [*main, *(r for r in rows if r not in main)]
    return Inspection("seeds", found.path, facts, columns, rows, notes, main_rows=len(main) or None)

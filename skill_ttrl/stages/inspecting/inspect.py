"""`skillttrl inspect`: what a path holds, whatever it is. It reads and never writes."""

from __future__ import annotations

from pathlib import Path

from skill_ttrl.errors import RunFolderError
from skill_ttrl.llm.openai.ledger import ASKED, USAGE, read_usage, usage_lines
from skill_ttrl.metrics import unhealthy
from skill_ttrl.runs.checkpoint import MANIFEST, load_state, verify
from skill_ttrl.runs.episode_logs import IDENTITY, SAMPLES, SampleFolder, read_identity
from skill_ttrl.runs.folder import RunFolder
from skill_ttrl.runs.reader import read_run
from skill_ttrl.skills.files import holds_records
from skill_ttrl.skills.folder import BANK_FILE, is_bank
from skill_ttrl.stages.evaluation.results import EVALUATION
from skill_ttrl.stages.inspecting.inspect_bank import inspect_bank, inspect_skill_file, run_bank
from skill_ttrl.stages.inspecting.inspect_records import records_inspection
from skill_ttrl.stages.inspecting.inspect_results import (
    evaluation_inspection,
    optimize_inspection,
    runs_inspection,
    seeds_inspection,
)
from skill_ttrl.stages.optimizing.run_folder import is_optimization
from skill_ttrl.stages.reports.compare import runs_in
from skill_ttrl.stages.reports.inspection import Inspection
from skill_ttrl.stages.reports.seeds import is_seeds, read_seeds
from skill_ttrl.stages.reports.summarize import read_evaluations
from skill_ttrl.stages.reports.summary_text import Table, closing_lines, summary_table
from skill_ttrl.storage.jsonl import parse_json, read_jsonl

MAIN_FACTS = ("model", "environment", "algorithm", "steps done", "ended", "skill bank")
"""Facts of a run that matter most."""


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
    if holds_records(path):
        return inspect_skill_file(path, limit=limit)
    if path.is_dir() and runs_in(path):
        return runs_inspection(path)
    if path.suffix == ".jsonl":
        return records_inspection(path, limit)
    raise RunFolderError(
        f"inspect does not know {path}. It reads a run folder (with run.json), a checkpoint (with {MANIFEST}), samples (with "
        f"{IDENTITY}), a skill bank (with {BANK_FILE}), skills in a format of `skills import`, or a .jsonl "
        "file. A config: skillttrl configs FILE --full."
    )


def _run(path: Path) -> Inspection:
    found = read_run(path)
    config, summary, metrics = found.config, found.summary, found.metrics
    done = {str(phase): int(count) for phase, count in metrics.groupby("phase").size().items()} if len(metrics) else {}
    checkpoints = sorted(entry.name for entry in (path / "checkpoints").glob("*-*") if not entry.name.startswith("."))
    files = sorted(f"{entry.name} ({entry.stat().st_size:,} bytes)" for entry in path.iterdir() if entry.is_file())
    facts = {
        "name": config.name,
        "seed": config.seed,
        "model": config.model.path,
        "environment": config.env.id,
        "reward": config.rl.reward,
        "algorithm": f"{config.rl.algorithm['type']}, loss {config.rl.loss['type']}"
        if "rl" in config.phases
        else "none",
        "phases": ", ".join(config.phases),
        "steps done": ", ".join(f"{phase} {count}" for phase, count in done.items()) or "none",
        "ended": "yes" if summary else "no; continue it with --resume auto",
        "checkpoints": ", ".join(checkpoints) or "none",
        "files": ", ".join(name for name in files if not name.startswith(".")),
    }
    if asked := _asked(path):
        facts["LLM calls"] = asked
    if bank := run_bank(path):
        facts["skill bank"] = bank
    latest = {} if metrics.empty else {str(name): value for name, value in metrics.iloc[-1].dropna().items()}
    table = Table(("metric", "before", "after"), [], 0) if summary is None else summary_table(summary, full=True)
    lines = [] if summary is None else closing_lines(summary, full=True)
    return Inspection(
        "run",
        str(path),
        facts,
        table.columns,
        table.rows,
        [*found.notes, *lines],
        main_facts=MAIN_FACTS,
        main_rows=table.main,
        unhealthy=unhealthy(latest) if latest else [],
    )


def _asked(folder: Path) -> str:
    """Summarize the requests to remote models and their cost; empty if there were none."""
    if not (folder / USAGE).is_file():
        return ""
    lines = usage_lines(read_usage(folder / USAGE))
    return "; ".join(line.removeprefix(f"{ASKED}: ") for line in lines)


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
    if asked := _asked(path):
        facts["LLM calls"] = asked
    rows = [
        (name, draw["rollouts_per_task"], draw["temperature"], draw["max_new_tokens"])
        for name, draw in made_with["draws"].items()
    ]
    notes = [f"vote on them: skillttrl vote {path} --strategies all"]
    if (path / EVALUATION).is_file():
        notes.append(f"metrics: skillttrl inspect {path / EVALUATION}")
    columns = ("way of sampling", "samples of each", "temperature", "longest")
    return Inspection("samples", str(path), facts, columns, rows, notes)

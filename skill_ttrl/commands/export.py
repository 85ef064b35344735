"""`skillttrl export --format`: the rollouts of a run, or of a file, for other programs to read.

`parquet` is one row a rollout. `inspect` is a log of Inspect AI for each step, as if the step were an evaluation: a sample for each task
and an epoch for each attempt at it.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from itertools import groupby, islice
from pathlib import Path
from statistics import fmean
from typing import Any

from skill_ttrl.commands.reports.page_rollouts import spread
from skill_ttrl.errors import DataError, RunFolderError
from skill_ttrl.runs.episode_logs import EVAL_TRAJECTORIES, SUFFIX, TRAJECTORIES, Place
from skill_ttrl.runs.reader import read_rollout, read_run
from skill_ttrl.runs.trackers import conversation
from skill_ttrl.sanitize import escape_terminal
from skill_ttrl.storage.files import unfinished, wrap_os_errors
from skill_ttrl.storage.jsonl import parse_json, parsed, whole_lines
from skill_ttrl.types import Trajectory, split_thought

LOGS = 10
"""Most logs."""
SAMPLES = 2048
"""Most rollouts in a log."""
_BATCH = 500
_LONGEST_ID = 200  # characters: Inspect names a file in the log's archive after it


def export_rollouts(source: Path, output: Path, form: str) -> tuple[int, list[str]]:
    """Write the rollouts of a run's training, or of a file of them, whole or not at all; their number, and notes on what was left out.

    Inspect logs also hold the rollouts that the run stored of its evaluations.

    Args:
        source: a run, or a `.jsonl` file of trajectories, such as `skillttrl collect` writes.
        output: what to make: a file (`parquet`) or a folder (`inspect`).
        form: "parquet" or "inspect".

    Raises:
        DataError: a line is no rollout, there is none, or one does not fit into the format.
        RunFolderError: `source` has no trajectories, `output` exists, or it cannot be written.
    """
    if output.exists():
        raise RunFolderError(f"{output} exists already. Choose another --output.")
    paths, name, model = [source], source.stem, "unknown"
    if source.is_dir():
        config = read_run(source).config
        paths = [source / each for each in (TRAJECTORIES, *([EVAL_TRAJECTORIES] if form == "inspect" else []))]
        name, model = config.name, config.model.path
    paths = [path for path in paths if path.suffix == SUFFIX and path.is_file()]
    if not paths:
        found = f"has no {TRAJECTORIES}" if source.is_dir() else f"is no run and no file that ends in {SUFFIX}"
        raise RunFolderError(f"{source} {found}. Name a run that stores rollouts, or a file of trajectories.")
    notes: list[str] = []
    with wrap_os_errors("write", output):
        output.parent.mkdir(parents=True, exist_ok=True)
        with unfinished(output.parent) as folder:
            building = folder / output.name
            if form == "parquet":
                count = _write_table(paths[0], building, notes)
            else:
                building.mkdir()
                count = _write_logs(paths, building, name, model, notes)
            if not count:
                raise DataError(f"{paths[0]} holds no complete line.")
            os.replace(building, output)
    return count, list(dict.fromkeys(notes))


def _write_table(path: Path, output: Path, notes: list[str]) -> int:
    import pyarrow
    import pyarrow.parquet

    text, number, count = pyarrow.string(), pyarrow.float64(), 0
    kinds = {
        text: "id phase task task_type prompt text answer stop_reason error",
        pyarrow.int64(): "step sample turns prompt_tokens sampled_tokens bank_version",
        number: "reward original_score",
        pyarrow.bool_(): "success",
        pyarrow.list_(number): "advantages",
        pyarrow.list_(text): "skills_in_prompt retrieved",
    }
    schema = pyarrow.schema([(name, kind) for kind, names in kinds.items() for name in names.split()])
    rows = (
        {**facts, "prompt": played.steps[0].observation if played.steps else None, "text": played.text}
        for facts, played in (read_rollout(*line) for line in whole_lines(path, notes))
    )
    with pyarrow.parquet.ParquetWriter(output, schema) as writer:
        while batch := list(islice(rows, _BATCH)):
            try:
                writer.write_table(pyarrow.Table.from_pylist(batch, schema))
            except (OverflowError, pyarrow.ArrowInvalid) as error:
                raise DataError(f"{path}: a row after {count:,} does not fit into a table: {error}.") from None
            count += len(batch)
    return count


def _write_logs(paths: Sequence[Path], folder: Path, name: str, model: str, notes: list[str]) -> int:
    """Write the logs of at most `LOGS` steps of each file, evenly spread, the first and the last among them."""
    from inspect_ai.log import EvalLog, write_eval_log

    counts = [Counter(parsed(*line, Place) for line in whole_lines(path, notes)) for path in paths]
    lines = sum(counts, Counter())
    wanted = {place for each in counts for place in spread([*each], LOGS)}
    found = ((parsed(*line, Place), line) for path in paths for line in whole_lines(path, notes))
    chosen = groupby((each for each in found if each[0] in wanted), lambda each: each[0])
    created = datetime.fromtimestamp(paths[0].stat().st_mtime, UTC)
    number = written = 0
    for number, (place, group) in enumerate(chosen, 1):
        # Episodes often stand in the order of their types: too many are thinned out, not cut.
        few = islice(group, 0, None, -(-lines[place] // SAMPLES))
        samples = _samples((read_rollout(*line) for _, line in few), model)
        written += len(samples)
        scores = [
            {"name": key, "scorer": key, "metrics": {"mean": {"name": "mean", "value": fmean(values)}}}
            for key in ("reward", "success")
            if (values := [each["scores"][key]["value"] for each in samples if key in each["scores"]])
        ]
        results = {"total_samples": len(samples), "completed_samples": len(samples), "scores": scores}
        task = name if place.step is None else f"{name} {place.phase} step {place.step}"
        spec = {"created": created, "task": task, "task_id": f"{name}-{number}", "model": model}
        spec |= {"dataset": {"name": name}, "config": {"epochs": max(each["epoch"] for each in samples)}}
        parts = {"stats": {"started_at": created, "completed_at": created}, "results": results, "samples": samples}
        log = EvalLog.model_validate({"status": "success", "eval": spec, **parts})
        write_eval_log(log, str(folder / f"{number:03}-step-{place.step or 0}.eval"))
    if written < (every := lines.total()):
        left = f"{every - written:,} of {every:,} rollouts are left out; --format parquet has all of the training"
        notes.append(f"{number} of {len(lines)} steps, evenly spread, with at most {SAMPLES:,} rollouts each: {left}.")
    return written


def _samples(rollouts: Iterable[tuple[dict[str, Any], Trajectory]], model: str) -> list[dict[str, Any]]:
    """Inspect's samples of rollouts: attempts at a task are epochs of one sample."""
    epochs, samples = Counter[str](), []
    for facts, played in rollouts:
        name, said = escape_terminal(played.task.id)[:_LONGEST_ID], conversation(played)
        epochs[name] += 1
        success = played.success if facts["original_score"] is None else facts["original_score"]
        scores = {"reward": played.reward, "success": None if success is None else float(success)}
        given = {key: {"value": value, "answer": played.answer} for key, value in scores.items() if value is not None}
        sample = {"id": name, "epoch": epochs[name], "input": said[0]["content"] if said else "", "metadata": facts}
        sample |= {"target": played.task.ground_truth or "", "messages": [_message(each, model) for each in said]}
        sample |= {"scores": given, "output": {"model": model, "completion": said[-1]["content"] if said else ""}}
        sample["error"] = played.error and {"message": played.error, "traceback": "", "traceback_ansi": ""}
        samples.append(sample)
    return samples


def _message(said: dict[str, Any], model: str) -> dict[str, Any]:
    """A message of `conversation` in Inspect's form: thoughts apart, arguments as values."""
    if said["role"] != "assistant":
        return said
    thought, text = split_thought(said["content"])
    content = [*([{"type": "reasoning", "reasoning": thought}] if thought else []), {"type": "text", "text": text}]
    calls = [
        {"id": call["id"], "function": call["function"]["name"], "arguments": _arguments(call["function"]["arguments"])}
        for call in said.get("tool_calls", ())
    ]
    return {"role": "assistant", "model": model, "content": content, "tool_calls": calls or None}


def _arguments(written: str) -> dict[str, Any]:
    """The arguments of a call; as they were written where they are no JSON object."""
    try:
        found = parse_json(written)
    except ValueError:
        found = None
    return found if isinstance(found, dict) else {"unreadable": written}

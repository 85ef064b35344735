"""`skillttrl evaluate`: measure a run, a checkpoint or a plain model, on its own problems or on any file."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from skill_ttrl.answers import persist_cache
from skill_ttrl.errors import ConfigError
from skill_ttrl.llm.openai.ledger import USAGE, track_usage, usage_lines
from skill_ttrl.progress import Progress, SilentProgress
from skill_ttrl.rollout.samples import TaskSamples
from skill_ttrl.runs.folder import VERDICTS
from skill_ttrl.stages.evaluation.measure import evaluate_samples, evaluation_draws
from skill_ttrl.stages.evaluation.results import Evaluation
from skill_ttrl.stages.targets.draw import DrawnSamples, draw_samples, open_samples
from skill_ttrl.stages.targets.resolve import EvalDataset, EvalTarget, resolve_target
from skill_ttrl.types import to_json

EVALUATIONS = "evaluation.json"


def run(
    path: str | Path, overrides: Sequence[str] = (), *, use_bank: bool = True, progress: Progress | None = None
) -> Evaluation:
    """Evaluate the policy of a run or checkpoint on one set of problems.

    Args:
        path: run folder (its newest checkpoint) or checkpoint folder.
        overrides: changes to the run's config, e.g. `eval.samples=64` or `data.eval={path: mine.jsonl}`.
        use_bank: False measures without the run's skill bank.
        progress: told of what was left out.

    Raises:
        ConfigError: the run was trained on some of the problems and not on others, which makes two evaluations.
        SkillTTRLError: there is no such policy, or the problems cannot be read.
    """
    found = run_all(path, overrides, use_bank=use_bank, progress=progress)
    if len(found) > 1:
        parts = " and ".join(f"{each.problems} {exposure(each.transductive)}" for each in found)
        raise ConfigError(
            f"The problems fall into {parts} ones, which are counted apart: use run_all, which gives both."
        )
    return found[0]


def run_all(
    source: str | Path,
    overrides: Sequence[str] = (),
    *,
    data: Sequence[str] = (),
    config: str | None = None,
    output: str | Path | None = None,
    chunk: int | None = None,
    use_bank: bool = True,
    progress: Progress | None = None,
) -> tuple[Evaluation, ...]:
    """Evaluate a run, a checkpoint or a model on each of `data`.

    Problems that the run was trained on and others are counted apart: a file with both gives two evaluations, the
    transductive one first.

    Args:
        source: run folder (its newest checkpoint), checkpoint, model folder, or a model on the hub.
        overrides: changes to the config, e.g. `eval.samples=64`; `data.eval.limit=100` holds for each of `data`.
        data: files or data sets (`hf:owner/name`); empty: the run's or recipe's own problems.
        config: a plain model's recipe or config file.
        output: folder in which samples are kept as they are drawn; an interrupted evaluation goes on from them.
        chunk: problems drawn together, each chunk from a seed of its own; 0: all. None: as many as the backend takes at once
            where there is an `output`, else all.
        use_bank: False measures without the skill bank.
        progress: told of what is drawn and of what was left out.

    Raises:
        RunFolderError: `output` belongs to another model, other data or settings.
        SkillTTRLError: there is no such policy, or problems cannot be read.
        Interrupted: a signal came.
    """
    subject = resolve_target(source, overrides, config=config, data=data, use_bank=use_bank)
    return measure_subject(
        subject, subject.problems(data), output=output, chunk=chunk, use_bank=use_bank, progress=progress
    )


def measure_subject(
    subject: EvalTarget,
    problems: Sequence[EvalDataset],
    *,
    output: str | Path | None = None,
    chunk: int | None = None,
    use_bank: bool = True,
    progress: Progress | None = None,
) -> tuple[Evaluation, ...]:
    """Evaluate what was found on these problems; the rest is as for `run_all`."""
    settings = subject.config
    draws = evaluation_draws(settings.eval, max_new_tokens=settings.rollout.max_new_tokens, seed=settings.seed)
    progress = progress or SilentProgress()
    folder = None
    with ExitStack() as stack:
        if output is not None:
            opened = open_samples(output, subject, problems, draws, chunk=chunk, use_bank=use_bank)
            folder = stack.enter_context(opened)
            stack.enter_context(persist_cache(folder.path / VERDICTS))
        ledger = stack.enter_context(track_usage(folder.path / USAGE if folder else None, settings.endpoints))
        stack.enter_context(ledger.phase("evaluate"))
        samples = draw_samples(
            subject, problems, draws, folder=folder, chunk=chunk, use_bank=use_bank, progress=progress, controls=True
        )
        found = tuple(each for asked in problems for each in _evaluations(subject, asked.name, samples))
        if folder is not None:
            folder.write_text(EVALUATIONS, f"[{', '.join(to_json(each) for each in found)}]\n")
    for line in usage_lines(ledger.report()):
        progress.notice(line)
    if samples.known is None:
        progress.notice(f"Whether these problems were trained on is not said: {samples.why_unknown}.")
    return found


def exposure(transductive: bool | None) -> str:
    """The word for whether a policy was trained on the problems that it is measured on."""
    return {True: "transductive", False: "held-out", None: "of unknown exposure"}[transductive]


def _evaluations(subject: EvalTarget, source: str, samples: DrawnSamples) -> list[Evaluation]:
    rows = [row for row in samples.rows if row.source == source]
    seen = samples.known
    parts: list[tuple[bool | None, list[TaskSamples]]] = [(None, rows)]
    if seen is not None:
        parts = [(side, [row for row in rows if seen[source, row.task.id] is side]) for side in (True, False)]
    return [
        evaluate_samples(
            part,
            label=subject.name,
            config=subject.config.eval,
            source=source,
            transductive=side,
            controls=samples.controls.of(part),
        )
        for side, part in parts
        if part
    ]

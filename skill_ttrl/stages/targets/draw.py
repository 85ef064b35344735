"""Drawing samples of a subject, each problem exactly once and in a fixed order, in chunks that survive a kill.

With a folder to keep them in, samples are drawn chunk by chunk, each from a seed of its own, and appended as whole chunks:
stopped at any point and started again, a drawing ends with the same bytes as one that was never stopped. Without one
everything is drawn in one go, as a run's own evaluations do.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from skill_ttrl.answers import persist_cache
from skill_ttrl.config import SkillTTRLConfig
from skill_ttrl.envs import resolve_env
from skill_ttrl.errors import RunFolderError
from skill_ttrl.llm.openai.ledger import SAME, USAGE, current_ledger, track_usage, usage_lines
from skill_ttrl.progress import Progress
from skill_ttrl.rollout.rollout import all_unanswered, refuse_failure
from skill_ttrl.rollout.samples import SamplingPass, TaskSamples, drawn
from skill_ttrl.runs.episode_logs import SampleFolder
from skill_ttrl.runs.folder import EQUIVALENCE_CACHE
from skill_ttrl.stages.evaluation.measure import Controls, applies, correctness
from skill_ttrl.stages.inputs.leak import FirstWords
from skill_ttrl.stages.inputs.tasks import source_tasks
from skill_ttrl.stages.targets.resolve import EvalDataset, EvalTarget, decisive
from skill_ttrl.stages.targets.sampler import (
    ABORT_AFTER_FAILURES,
    Chunk,
    PolicySetup,
    SampleChunks,
    open_sampler,
    sample_chunks,
    split_into_chunks,
)
from skill_ttrl.types import Group, Task, first_problem, from_json, to_json

CONTROLS = "controls.json"
"""The file with the episodes of scripted agents on the problems of a folder."""


@dataclass(frozen=True, slots=True)
class DrawnSamples:
    """Samples of a subject."""

    rows: tuple[TaskSamples, ...]
    known: Mapping[tuple[str, str], bool] | None
    """For (source, task id) whether the run was trained on this very problem; None where that is not known."""
    why_unknown: str = ""
    controls: Controls = field(default_factory=Controls)
    """Scripted agents on the same problems, where they were asked for."""
    folder: SampleFolder | None = None
    """Stores the samples; None: nothing does."""


@contextmanager
def draw_samples(
    subject: EvalTarget,
    problems: Sequence[EvalDataset],
    draws: Sequence[SamplingPass],
    *,
    phase: str,
    output: str | Path | None,
    chunk: int | None,
    use_bank: bool,
    progress: Progress,
    controls: bool = False,
) -> Iterator[DrawnSamples]:
    """Sample every problem under every way of sampling, apart from samples that the folder holds already. The folder stays locked,
    and keeps what SymPy decides of the answers, while this is entered.

    Args:
        subject: policy to sample.
        problems: data sets to sample it on.
        draws: ways of sampling.
        phase: what requests to remote models are counted under.
        output: folder that stores the samples; None: they are not stored.
        chunk: problems drawn together; 0: all. None: as many as the backend takes at once, or all without a folder.
        use_bank: False samples without the skill bank.
        progress: reports what is drawn, what is left out and what it cost.
        controls: True: scripted agents play the problems too (`eval.controls`); the folder stores their episodes.

    Raises:
        RunFolderError: the folder belongs to another model, other data or other settings, which are named.
        SkillTTRLError: a problem cannot be read, or the subject cannot be loaded.
        Interrupted: a signal came; samples drawn so far are stored where there is a folder.
        BudgetError: the budget is spent; as above.
    """
    config, folder = subject.config, None
    if subject.note:
        progress.notice(subject.note)
    with ExitStack() as stack:
        if output is not None:
            made_with = _made_with(subject, problems, draws, chunk, use_bank)
            folder = stack.enter_context(SampleFolder(output, made_with))
            stack.enter_context(persist_cache(folder.path / EQUIVALENCE_CACHE))
        ledger = stack.enter_context(track_usage(folder.path / USAGE if folder else None, config.endpoints))
        stack.enter_context(ledger.phase(phase))
        env_id = resolve_env(config.env.id)
        tasks = {each.name: source_tasks(config, env_id, each.source, each.split, each.limit) for each in problems}
        known, why = _known(subject, tasks)
        played = _kept_controls(folder, config, tasks) if controls else Controls()
        if folder is not None and folder.complete and played is not None:
            rows = _read(folder)
            progress.notice(f"All samples are in {folder.path} already.")
        else:
            size = chunk if chunk is not None or folder is not None else 0
            most = plan_samples(tasks, draws, size, config.rollout.max_batch_size)
            if len(most) == 1 and config.scale.address is not None:
                progress.notice(
                    "All problems form one batch, which one worker samples. To divide them: --batch-size N."
                )
            setup = PolicySetup(subject, tasks, use_bank)
            with open_sampler(setup, config.scale, progress, chunks=len(most)) as sampler:
                plan = plan_samples(sampler.fitting, draws, size, config.rollout.max_batch_size)
                rows = run_sampling_plan(plan, sampler.sample, folder, progress, _facts(known))
                if played is None:
                    played = sampler.controls()
                    if folder is not None:
                        folder.write_text(CONTROLS, f"{to_json(played)}\n")
        yield DrawnSamples(tuple(rows), known, why, played, folder)
    for line in usage_lines(ledger.report()):
        progress.notice(line)


def _kept_controls(
    folder: SampleFolder | None, config: SkillTTRLConfig, tasks: Mapping[str, Sequence[Task]]
) -> Controls | None:
    """The controls of these problems where nothing is to be played for them; None: they are to be played."""
    if not any(applies(config.eval, own) for own in tasks.values()):
        return Controls()
    file = None if folder is None else folder.path / CONTROLS
    if file is None or not file.is_file():
        return None
    try:
        found = from_json(Controls, file.read_bytes())
    except ValidationError as error:
        raise RunFolderError(
            f"The controls in {file} cannot be read: {first_problem(error)}. Remove the file."
        ) from None
    return found if list(found.asked) == config.eval.controls else None


def plan_samples(
    problems: Mapping[str, Sequence[Task]], draws: Sequence[SamplingPass], size: int | None, rows: int
) -> list[Chunk]:
    """All that is to be drawn, in order: source by source, way by way, so many problems at a time.

    Args:
        problems: tasks by source.
        draws: ways of sampling.
        size: problems of a chunk; 0: all of a source; None: as many as give `rows` samples.
        rows: samples that the backend decodes at once.
    """
    return [
        chunk
        for source, tasks in problems.items()
        for draw in draws
        for chunk in split_into_chunks(
            tasks,
            draw,
            max(1, rows // draw.rollouts_per_task) if size is None else size or max(1, len(tasks)),
            source=source,
        )
    ]


def run_sampling_plan(
    plan: Sequence[Chunk], sample: SampleChunks, folder: SampleFolder | None, progress: Progress, facts: Any = None
) -> list[TaskSamples]:
    """Draw what the folder does not hold yet; all samples in the order of the plan. `facts` are noted in the folder.

    While nobody answers nothing is kept: a server that never answers leaves no samples.
    """
    expected = [_name_of(chunk.source, chunk.draw.name, task) for chunk in plan for task in chunk.tasks]
    rows = [] if folder is None else _read(folder, expected)
    if folder is not None:
        folder.note(lines=len(expected), facts=facts)
    if rows:
        progress.notice(f"Continuing after {len(rows)} of {len(expected)} lines of samples.")
    progress.start("sample", len(expected), "draw", len(rows))
    waiting: list[TaskSamples] = []
    unanswered: list[Group] = []

    def take(chunk: Chunk, there: int, groups: list[Group]) -> None:
        waiting.extend(_graded(drawn(group, source=chunk.source, draw=chunk.draw.name)) for group in groups[there:])
        if not rows and all_unanswered(groups):
            unanswered.extend(groups)
            if chunk is plan[-1] or sum(len(group.trajectories) for group in unanswered) >= ABORT_AFTER_FAILURES:
                refuse_failure(unanswered)
            return
        if folder is not None:
            folder.append(to_json(row) for row in waiting)
            current_ledger().settle()
        rows.extend(waiting)
        waiting.clear()
        progress.advance("sample", len(rows), {})

    sample_chunks(
        plan,
        len(rows),
        lambda left: sample([chunk for chunk, _ in left]),
        take,
        lambda _: _leaving(folder, len(rows), len(expected)),
    )
    progress.finish("sample")
    return rows


def _graded(row: TaskSamples) -> TaskSamples:
    """The row with `is_correct` of each sample, for those who read the file; figures are made from answers."""
    samples = zip(row.samples, correctness(row), strict=True)
    return replace(row, samples=tuple(replace(sample, is_correct=right) for sample, right in samples))


def _made_with(
    subject: EvalTarget,
    problems: Sequence[EvalDataset],
    draws: Sequence[SamplingPass],
    chunk: int | None,
    use_bank: bool,
) -> dict[str, Any]:
    """All that the samples depend on."""
    return {
        "model": subject.fingerprint(),
        "config": decisive(subject.config),
        "data": [
            {"name": each.name, **(each.source.model_dump(mode="json") if each.source is not None else {})}
            | ({} if each.limit is None else {"tasks": each.limit})
            for each in problems
        ],
        "draws": {
            draw.name: {"rollouts_per_task": draw.rollouts_per_task, "seed": draw.seed, **asdict(draw.sampling)}
            for draw in draws
        },
        "chunk": "as many as the backend takes at once" if chunk is None else chunk or "all",
        "skill_bank": use_bank and subject.config.skills is not None,
    }


def _known(subject: EvalTarget, tasks: Mapping[str, Sequence[Task]]) -> tuple[dict[tuple[str, str], bool] | None, str]:
    seen, why = subject.trained_on()
    if seen is None:
        return None, why
    with closing(FirstWords(subject.config)) as first:
        return {(name, task.id): seen.holds(task, first) for name, own in tasks.items() for task in own}, ""


def _facts(known: Mapping[tuple[str, str], bool] | None) -> dict[str, Any]:
    """Which problems were trained on, for those who read the samples later."""
    return {"trained_on": None if known is None else [list(problem) for problem, seen in known.items() if seen]}


def _read(folder: SampleFolder, expected: Sequence[str] | None = None) -> list[TaskSamples]:
    return list(folder.read(TaskSamples, expected, lambda row: _name_of(row.source, row.draw, row.task)))


def _name_of(source: str, draw: str, task: Task) -> str:
    return f"{task.id!r}{f' of {source}' if source else ''} ({draw})"


def _leaving(folder: SampleFolder | None, done: int, total: int) -> str:
    if folder is None:
        return "Stopped; nothing is saved. With --output DIR samples are saved as they are drawn."
    return f"Stopped; {done} of {total} lines of samples are saved in {folder.path}. {SAME}"

"""The sampler of `collect`, `evaluate` and `vote`: a policy or a scripted agent, loaded here or once in each worker, samples chunks.

A chunk has its own seed, so it does not matter who samples it. The lines of a plan have a fixed order, so the number of lines that a log
holds says where to continue: stopped at any point and started again, a plan ends with the same bytes as one that was never stopped.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

from pydantic import ValidationError

from skill_ttrl.agents.scripted import ScriptedAgent, make_scripted_agent
from skill_ttrl.answers import persist_cache
from skill_ttrl.commands.resolve import EvalDataset, EvalTarget
from skill_ttrl.config import AgentConfig, EvalConfig, ScaleConfig
from skill_ttrl.envs import check_text_env, make_env, resolve_env
from skill_ttrl.errors import EnvError, RunFolderError
from skill_ttrl.llm.backend import wait_for
from skill_ttrl.llm.openai.ledger import (
    SAME,
    USAGE,
    annotate_budget_error,
    current_ledger,
    track_usage,
    usage_lines,
    when_spent,
)
from skill_ttrl.progress import NoticeCollector, Progress
from skill_ttrl.rollout.episode import EnvPool, Exploration, ScriptedPolicy, TextEnvironment
from skill_ttrl.rollout.outcome import SamplingPass, TaskSamples, drawn
from skill_ttrl.rollout.rollout import RolloutSettings, all_unanswered, refuse_failure, rollout
from skill_ttrl.runs.episode_logs import SampleFolder
from skill_ttrl.runs.folder import EQUIVALENCE_CACHE
from skill_ttrl.scale.cluster import open_pool
from skill_ttrl.signals import StopSignal
from skill_ttrl.train.build import build_for_eval, make_envs
from skill_ttrl.train.measure import Controls, applies, correctness, join, play_controls
from skill_ttrl.train.rollout_workers import Sampled
from skill_ttrl.train.run import OnRolloutEnd, ignore
from skill_ttrl.train.tasks import ConfigTasks, first_words
from skill_ttrl.types import Group, Task, derive_seed, first_problem, from_json, to_json
from skill_ttrl.workers import Pool, ProcessCrew

ABORT_AFTER_FAILURES = 100
"""So many rollouts at the start that all fail end a collection or a drawing: the environment, the agent or the model is broken."""
MOST_STEPS = 1000
"""Longest episode of a scripted agent, where neither the environment nor a config sets a bound."""
SampleChunks = Callable[[Sequence["Chunk"]], Generator[list[Group]]]
"""Chunks → the groups of each, in order; here one chunk after another as they are asked for, or on several workers."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tasks that are sampled together."""

    tasks: tuple[Task, ...]
    draw: SamplingPass
    seed: int
    lines: int
    """Lines of the log that it fills."""
    source: str = ""


def split_into_chunks(
    tasks: Sequence[Task],
    draw: SamplingPass,
    size: int,
    *,
    lines_per_task: int = 1,
    lines: int | None = None,
    source: str = "",
) -> Iterator[Chunk]:
    """Chunks of `size` tasks, in order.

    The first has the seed of `draw`, so that what fits into one chunk is sampled as it would be in one go.

    Args:
        tasks: in the order of the log.
        draw: how each is sampled.
        size: tasks of a chunk.
        lines_per_task: lines of the log that a task fills.
        lines: all lines, where the last task fills fewer.
        source: where the tasks are from.
    """
    left = len(tasks) * lines_per_task if lines is None else lines
    for number, start in enumerate(range(0, len(tasks), size)):
        part = tuple(tasks[start : start + size])
        seed = draw.seed if number == 0 else derive_seed(draw.seed, "chunk", number)
        count = min(left, len(part) * lines_per_task)
        yield Chunk(part, draw, seed, count, source)
        left -= count


def sample_chunks(
    plan: Sequence[Chunk],
    done: int,
    sample: Callable[[Sequence[tuple[Chunk, int]]], Generator[list[Group]]],
    take: Callable[[Chunk, int, list[Group]], None],
    leaving: Callable[[int], str],
) -> None:
    """Sample every chunk that is not whole; one of which a part is there is sampled again, and the rest of it taken.

    Args:
        plan: all chunks, in order.
        done: lines that the log holds.
        sample: samples chunks, each with the number of its lines that are there; yields their groups in order.
        take: takes the groups of a chunk.
        leaving: what to say when it ends within a chunk, of which so many lines are missing.

    Raises:
        Interrupted: a signal came; what was taken stays.
        BudgetError: what may be spent is spent; as above.
    """
    left: list[tuple[Chunk, int]] = []
    for chunk in plan:
        there, done = min(done, chunk.lines), max(0, done - chunk.lines)
        if there < chunk.lines:
            left.append((chunk, there))
    with StopSignal() as stop, closing(sample(left)) as sampled:
        for chunk, there in left:
            message = leaving(chunk.lines - there)
            with stop.interruptible(message), annotate_budget_error(when_spent(message)):
                groups = next(sampled)
            take(chunk, there, groups)


Problems = Mapping[str, Sequence[Task]]
"""Tasks by source."""


@contextmanager
def open_sampler(
    setup: PolicySetup | ScriptedSetup, scale: ScaleConfig, progress: Progress, *, chunks: int, jobs: int = 1
) -> Iterator[LocalSampler | WorkerSampler]:
    """Load what samples where `scale.address` says; it is closed at the end.

    Args:
        setup: loads a policy, or a scripted agent.
        scale: where it samples.
        progress: reports what was left out, and what workers print.
        chunks: number of chunks that will be sampled: more workers than that do not start.
        jobs: processes of this machine; 1: this one.

    Raises:
        ConfigError: such a policy is not sampled by workers.
        WorkerError: the cluster is not there, or its nodes are not ready.
        SkillTTRLError: the policy cannot be loaded.
    """
    with ExitStack() as stack:
        if scale.address is not None:
            setup = setup.on_workers()
            pool = stack.enter_context(open_pool(setup, setup.check, scale, most=chunks, progress=progress))
        elif jobs > 1:
            notice = partial(progress.notice, warning=True)
            pool = stack.enter_context(closing(Pool(ProcessCrew(setup, max(1, min(jobs, chunks))), notice)))
        else:
            yield stack.enter_context(setup.open(progress))
            return
        facts: _Facts = pool.facts()
        for text, warning in facts.notices:
            progress.notice(text, warning=warning)
        yield WorkerSampler(pool, facts.fitting)


@dataclass(frozen=True)
class LocalSampler:
    """Samples in this process."""

    sample_chunk: Callable[[Chunk, OnRolloutEnd], list[Group]]
    fitting: Problems = field(default_factory=dict)
    """The problems whose prompts fit."""
    controls: Callable[[], Controls] = Controls
    """Have the scripted agents of `eval.controls` play the problems."""

    def sample(
        self, chunks: Sequence[Chunk], listeners: Sequence[OnRolloutEnd] | None = None
    ) -> Generator[list[Group]]:
        """Yield the groups of each chunk, in order, when they are asked for; `listeners` are called with each rollout that has ended."""
        for chunk, tell in zip(chunks, listeners or [ignore] * len(chunks), strict=True):
            yield self.sample_chunk(chunk, tell)


@dataclass(frozen=True)
class WorkerSampler:
    """Samples on workers: of a cluster, or processes of this machine."""

    pool: Pool
    fitting: Problems = field(default_factory=dict)

    def sample(
        self, chunks: Sequence[Chunk], listeners: Sequence[OnRolloutEnd] | None = None
    ) -> Generator[list[Group]]:
        """Yield the groups of each chunk, in order; rollouts are reported chunk by chunk."""
        tells = listeners or [ignore] * len(chunks)
        for sampled, tell in zip(self.pool.map(chunks), tells, strict=True):
            yield sampled.take(tell)

    def controls(self) -> Controls:
        """Have one worker play the controls."""
        found: Any
        (found,) = self.pool.map([None])
        return cast(Controls, found)


@dataclass(frozen=True)
class _Facts:
    """Facts that a worker gives of the policy that it has loaded."""

    fitting: Problems = field(default_factory=dict)
    notices: Sequence[tuple[str, bool]] = ()


@dataclass(frozen=True)
class ScriptedSetup:
    """Makes environment and agent of a scripted agent's rollouts; can be sent to another process."""

    env: str
    kwargs: Mapping[str, Any]
    agent: str
    prompts: AgentConfig | None = None
    """How a policy's prompts list the actions, for `first` and `constant:TEXT`, and how many turns it has; None: as the environment has it."""
    explore: Exploration = field(default_factory=Exploration)
    timeout_s: float | None = None
    tried: Sequence[Task] = ()
    """Tasks of which each worker must be able to play one."""

    def on_workers(self) -> ScriptedSetup:
        """The same for a worker."""
        return self

    @contextmanager
    def open(self, progress: Progress) -> Iterator[LocalSampler]:
        """Environment and agent in this process."""
        with closing(EnvPool(self._make_env)) as envs:
            yield LocalSampler(self._sampling(envs))

    def __call__(self) -> tuple[Callable[[Any], Sampled], _Facts]:
        """Environment and agent in a worker. Checked again: its node may have joined after the others were asked."""
        self.check()
        sample = self._sampling(EnvPool(self._make_env))
        return lambda chunk: Sampled.of(sample(chunk, ignore)), _Facts()

    def check(self) -> None:
        """Check that environment and agent can be made here, and that a `tried` task can be played (`scale.cluster.Check`).

        Raises:
            EnvError: they cannot, or its data are not there.
        """
        if self.tried:
            self._make_agent()
            with closing(EnvPool(self._make_env)) as envs:
                env = envs.acquire()
                for task in self.tried[:-1]:
                    with suppress(EnvError):  # a task that fails is data
                        return check_text_env(env, task)
                check_text_env(env, self.tried[-1])

    def _make_agent(self) -> ScriptedAgent:
        return make_scripted_agent(self.agent, resolve_env(self.env), self.prompts)

    def _make_env(self) -> TextEnvironment:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # said already, where the tasks were listed
            return make_env(self.env, **self.kwargs)

    def _sampling(self, envs: EnvPool) -> Callable[[Chunk, OnRolloutEnd], list[Group]]:
        policy = ScriptedPolicy(self._make_agent, self.explore)
        turns = MOST_STEPS if self.prompts is None else self.prompts.max_turns

        def sample(chunk: Chunk, tell: OnRolloutEnd) -> list[Group]:
            how = RolloutSettings(chunk.draw.sampling, chunk.draw.seed, turns, rollout_timeout_s=self.timeout_s)
            count = chunk.draw.rollouts_per_task
            return wait_for(rollout(chunk.tasks, count, envs=envs, agent=policy, settings=how, on_episode=tell))

        return sample


@dataclass(frozen=True)
class PolicySetup:
    """Loads a policy; can be sent to another process."""

    target: EvalTarget
    problems: Problems
    use_bank: bool
    needs: tuple[Path, ...] = ()
    """Local paths that it is loaded from."""

    def on_workers(self) -> PolicySetup:
        """The same for a worker: as many threads as CPUs are set aside for it, where `runtime.threads` is null."""
        target, config = self.target, self.target.config
        bank = config.skills.bank if self.use_bank and config.skills is not None else None
        named = (Path(each) for each in (target.weights, target.run, config.model.path, bank) if each is not None)
        needs = tuple(path.absolute() for path in named if path.exists())
        return replace(self, target=replace(target, config=config.for_worker()), needs=needs)

    @contextmanager
    def open(self, progress: Progress) -> Iterator[LocalSampler]:
        """Load the policy in this process."""
        target = self.target
        with ExitStack() as stack:
            bank = target.bank() if self.use_bank else None
            if bank is not None:
                stack.callback(bank.close)
            worker, fitting = build_for_eval(target.config, self.problems, progress, weights=target.weights, bank=bank)
            stack.callback(worker.close)

            def sample(chunk: Chunk, tell: OnRolloutEnd) -> list[Group]:
                draw = chunk.draw
                how = (draw.rollouts_per_task, draw.sampling, chunk.seed)
                return worker.generate_rollouts(chunk.tasks, *how, on_rollout_end=tell)

            def controls() -> Controls:
                rows = (
                    play_controls(target.config, own, worker.envs, worker.agent, source=name)
                    for name, own in fitting.items()
                )
                return join(rows)

            yield LocalSampler(sample, fitting, controls)

    def __call__(self) -> tuple[Callable[[Chunk | None], Any], _Facts]:
        """Load the policy in a worker, for as long as its process lives."""
        notices = NoticeCollector()
        opened: AbstractContextManager[LocalSampler] = self.open(notices)
        sampler = opened.__enter__()

        def work(chunk: Chunk | None, _open: object = opened) -> Any:  # what is opened closes where nobody holds it
            return sampler.controls() if chunk is None else Sampled.of(sampler.sample_chunk(chunk, ignore))

        return work, _Facts(sampler.fitting, notices.notices)

    def check(self) -> None:
        """Check that a node has the policy files and can make the environment (`scale.cluster.Check`).

        Raises:
            RunFolderError: a folder that this policy is read from is not there.
            EnvError: the environment or its data are not there.
        """
        config = self.target.config
        for path in self.needs:
            if not path.exists():
                raise RunFolderError(
                    f"{path} does not exist. Workers read the policy and its bank from the same path: use a folder that all nodes share."
                )
        make_envs(config.env, config.agent, [task for tasks in self.problems.values() for task in tasks]).close()


Sampler = LocalSampler | WorkerSampler


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
    subject.check(use_bank=use_bank)
    if subject.note:
        progress.notice(subject.note)
    with ExitStack() as stack:
        if output is not None:
            made_with = _made_with(subject, problems, draws, chunk, use_bank)
            folder = stack.enter_context(SampleFolder(output, made_with))
            stack.enter_context(persist_cache(folder.path / EQUIVALENCE_CACHE))
        ledger = stack.enter_context(track_usage(folder.path / USAGE if folder else None, config.endpoints))
        stack.enter_context(ledger.phase(phase))
        tasks = {each.name: ConfigTasks(config).read(each.source, each.split, each.limit) for each in problems}
        known, why = _known(subject, tasks)
        played = _kept_controls(folder, config.eval, tasks) if controls else Controls()
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
                facts = {"trained_on": known and [list(problem) for problem, seen in known.items() if seen]}
                rows = run_sampling_plan(plan, sampler.sample, folder, progress, facts)
                if played is None:
                    played = sampler.controls()
                    if folder is not None:
                        folder.write_text(CONTROLS, f"{to_json(played)}\n")
        yield DrawnSamples(tuple(rows), known, why, played, folder)
    for line in usage_lines(ledger.report()):
        progress.notice(line)


def _kept_controls(
    folder: SampleFolder | None, asked: EvalConfig, tasks: Mapping[str, Sequence[Task]]
) -> Controls | None:
    """The controls of these problems where nothing is to be played for them; None: they are to be played."""
    if not any(applies(asked, own) for own in tasks.values()):
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
    return found if list(found.asked) == asked.controls else None


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
        for group in groups[there:]:
            row = drawn(group, source=chunk.source, draw=chunk.draw.name)
            # `is_correct` is for those who read the file; figures are made from answers.
            graded = zip(row.samples, correctness(row), strict=True)
            waiting.append(replace(row, samples=tuple(replace(each, is_correct=right) for each, right in graded)))
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

    def leaving(_: int) -> str:
        if folder is None:
            return "Stopped; nothing is saved. With --output DIR samples are saved as they are drawn."
        return f"Stopped; {len(rows)} of {len(expected)} lines of samples are saved in {folder.path}. {SAME}"

    sample_chunks(plan, len(rows), lambda left: sample([chunk for chunk, _ in left]), take, leaving)
    progress.finish("sample")
    return rows


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
        "config": subject.decisive(),
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
    with first_words(subject.config.env, subject.config.seed) as first:
        return {(name, task.id): seen.holds(task, first) for name, own in tasks.items() for task in own}, ""


def _read(folder: SampleFolder, expected: Sequence[str] | None = None) -> list[TaskSamples]:
    return list(folder.read(TaskSamples, expected, lambda row: _name_of(row.source, row.draw, row.task)))


def _name_of(source: str, draw: str, task: Task) -> str:
    return f"{task.id!r}{f' of {source}' if source else ''} ({draw})"

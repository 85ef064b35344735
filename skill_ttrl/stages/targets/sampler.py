"""A policy that samples chunks: loaded here, or once in each worker of a Ray cluster. A chunk has its own seed, so both sample the same.

The lines of a plan have a fixed order, so the number of lines that a log holds says where to continue: stopped at any point and
started again, a plan ends with the same bytes as one that was never stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from skill_ttrl.errors import ConfigError, RunFolderError
from skill_ttrl.llm.backend import Sampling, counting
from skill_ttrl.llm.openai.ledger import annotate_budget_error, when_spent
from skill_ttrl.progress import NoticeCollector, Progress
from skill_ttrl.rollout.samples import SamplingPass
from skill_ttrl.scale.cluster import open_pool
from skill_ttrl.signals import StopSignal
from skill_ttrl.stages.evaluation.measure import Controls, join, play_controls
from skill_ttrl.stages.setup.build import build_for_eval, make_envs
from skill_ttrl.stages.setup.checks import check_shared_policy
from skill_ttrl.stages.setup.rollout_workers import Sampled, worker_config
from skill_ttrl.stages.targets.resolve import EvalTarget
from skill_ttrl.stages.training.components import OnRolloutEnd, RolloutWorker, ignore
from skill_ttrl.stages.training.paraphrase import make_paraphraser, sample_both_variants, unstated
from skill_ttrl.stages.training.run_bank import NoBank
from skill_ttrl.types import Group, Task, derive_seed
from skill_ttrl.workers import Pool

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
    target: EvalTarget,
    problems: Problems,
    progress: Progress,
    *,
    use_bank: bool,
    chunks: int,
    both_wordings: bool = False,
) -> Iterator[LocalSampler | RemoteSampler]:
    """Load a policy where `scale.address` says; it is closed at the end.

    Args:
        target: the policy.
        problems: what it is to sample.
        progress: reports what was left out, and what workers print.
        use_bank: False leaves its skill bank out.
        chunks: number of chunks that will be sampled: more workers than that do not start.
        both_wordings: half of the samples answer a paraphrase of the question.

    Raises:
        ConfigError: such a policy is not sampled by workers.
        WorkerError: the cluster is not there, or its nodes are not ready.
        SkillTTRLError: the policy cannot be loaded.
    """
    setup = PolicySetup(target, problems, use_bank, both_wordings)
    config = target.config
    if config.scale.address is None:
        with setup.open(progress) as here, _completions_shown(here, progress):
            yield here
        return
    check_shared_policy(config)
    setup = setup.on_workers()
    with open_pool(setup, setup.check, config.scale, most=chunks, progress=progress) as pool:
        facts: _Facts = pool.facts()
        for text, warning in facts.notices:
            progress.notice(text, warning=warning)
        yield RemoteSampler(pool, facts.fitting, facts.tokenizer)


def _completions_shown(sampler: LocalSampler, progress: Progress) -> AbstractContextManager[None]:
    """Show how many completions of a batch have ended, where rollouts have one turn and end together."""
    if sampler.worker.config.agent.max_turns > 1:
        return nullcontext()
    return counting(
        sampler.worker.backend, lambda ended: progress.enter("sample", f"{ended} completions of this batch")
    )


@dataclass(frozen=True)
class LocalSampler:
    """A policy that is loaded in this process, with its agent, its bank and environments."""

    worker: RolloutWorker
    fitting: Problems
    """The problems whose prompts fit."""
    paraphrase: Callable[[Sequence[str]], list[str]] | None

    @property
    def tokenizer(self) -> Any:
        """The policy's; None where it is not known."""
        return getattr(self.worker.backend, "tokenizer", None)

    def sample(
        self, chunks: Sequence[Chunk], listeners: Sequence[OnRolloutEnd] | None = None
    ) -> Generator[list[Group]]:
        """Yield the groups of each chunk, in order, when they are asked for; `listeners` are called with each rollout that has ended."""
        for chunk, tell in zip(chunks, listeners or [ignore] * len(chunks), strict=True):
            yield self.sample_chunk(chunk, tell)

    def sample_chunk(self, chunk: Chunk, tell: OnRolloutEnd = ignore) -> list[Group]:
        """The groups of one chunk."""
        draw, paraphrase = chunk.draw, self.paraphrase

        def roll_out(tasks: Sequence[Task], rollouts: int, sampling: Sampling) -> list[Group]:
            return self.worker.generate_rollouts(tasks, rollouts, sampling, chunk.seed, on_rollout_end=tell)

        if paraphrase is None:
            return roll_out(chunk.tasks, draw.rollouts_per_task, draw.sampling)
        half = partial(roll_out, rollouts=draw.rollouts_per_task // 2, sampling=draw.sampling)
        return sample_both_variants(half, paraphrase, chunk.tasks)

    def controls(self) -> Controls:
        """Have the scripted agents of `eval.controls` play the problems."""
        worker = self.worker
        return join(
            play_controls(worker.config, own, worker.envs, worker.agent, source=name)
            for name, own in self.fitting.items()
        )


@dataclass(frozen=True)
class RemoteSampler:
    """A policy that the workers of a cluster have loaded."""

    pool: Pool
    fitting: Problems
    tokenizer: Any

    def sample(
        self, chunks: Sequence[Chunk], listeners: Sequence[OnRolloutEnd] | None = None
    ) -> Generator[list[Group]]:
        """As `LocalSampler.sample`; rollouts are reported chunk by chunk, as soon as any worker has finished one."""

        def on_done(number: int, sampled: Sampled) -> None:
            tell = ignore if listeners is None else listeners[number]
            for group in sampled.groups:
                for trajectory in group.trajectories:
                    tell(trajectory)

        for sampled in self.pool.map(chunks, on_done):
            yield sampled.take()

    def controls(self) -> Controls:
        """As `LocalSampler.controls`."""
        found: Controls
        (found,) = self.pool.map([None])
        return found


@dataclass(frozen=True)
class _Facts:
    """Facts that a worker gives of the policy that it has loaded."""

    fitting: Problems
    tokenizer: Any
    notices: list[tuple[str, bool]]


@dataclass(frozen=True)
class PolicySetup:
    """Loads a policy; can be sent to another process."""

    target: EvalTarget
    problems: Problems
    use_bank: bool
    both_wordings: bool
    needs: tuple[Path, ...] = ()
    """Local paths that it is loaded from."""

    def on_workers(self) -> PolicySetup:
        """The same for a worker: as many threads as CPUs are set aside for it, where `runtime.threads` is null."""
        target, config = self.target, self.target.config
        bank = config.skills.bank if self.use_bank and config.skills is not None else None
        run = None if target.trained is None else target.trained.run
        named = (Path(each) for each in (target.weights, run, config.model.path, bank) if each is not None)
        needs = tuple(path.absolute() for path in named if path.exists())
        return replace(self, target=replace(target, config=worker_config(config)), needs=needs)

    @contextmanager
    def open(self, progress: Progress) -> Iterator[LocalSampler]:
        """Load the policy in this process.

        Raises:
            ConfigError: paraphrases are wanted and a task does not state its question, or there is no such paraphrase.
        """
        target = self.target
        with ExitStack() as stack:
            bank = target.bank() if self.use_bank else NoBank()
            stack.callback(bank.close)
            worker, fitting = build_for_eval(target.config, self.problems, progress, weights=target.weights, bank=bank)
            stack.callback(worker.close)
            if self.both_wordings and (silent := unstated([task for own in fitting.values() for task in own])):
                raise ConfigError(
                    f"Paraphrases need the text of the question, which {len(silent)} tasks do not have, first {silent[0]!r}."
                )
            yield LocalSampler(worker, fitting, make_paraphraser(worker) if self.both_wordings else None)

    def __call__(self) -> tuple[Callable[[Chunk | None], Any], _Facts]:
        """Load the policy in a worker, for as long as its process lives: `workers.Setup`."""
        notices = NoticeCollector()
        opened: AbstractContextManager[LocalSampler] = self.open(notices)
        sampler = opened.__enter__()

        def work(chunk: Chunk | None, _open: object = opened) -> Any:  # what is opened closes where nobody holds it
            return sampler.controls() if chunk is None else Sampled.of(sampler.sample_chunk(chunk))

        return work, _Facts(sampler.fitting, sampler.tokenizer, notices.notices)

    def check(self) -> None:
        """See that a node has what the policy and its environment are loaded from: `scale.cluster.Check`.

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
        make_envs(config, [task for tasks in self.problems.values() for task in tasks]).close()


Sampler = LocalSampler | RemoteSampler
"""A policy that samples chunks."""

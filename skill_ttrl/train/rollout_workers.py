"""Workers of a Ray cluster that sample the rollouts of a run that trains, each with the policy, its agent and environments of its own.

A batch has its own seed (`rollout.prompts_per_batch`) and is sampled with the weights and the bank that it names, so it does not matter who
samples it, or how often it was begun.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skill_ttrl.answers.equivalence import EquivalenceResult, judged, take_over
from skill_ttrl.config import SkillTTRLConfig
from skill_ttrl.errors import ModelError
from skill_ttrl.llm.hand_over import refuse_abandoned
from skill_ttrl.progress import Progress
from skill_ttrl.rollout.episode import EnvPool
from skill_ttrl.scale.cluster import fetch, open_pool, share
from skill_ttrl.skills.changes import Snapshot
from skill_ttrl.skills.log import BankSettings
from skill_ttrl.skills.retrieval import BankView, Retriever, make_retriever
from skill_ttrl.train.build import PolicyLoader, build_policy, make_envs
from skill_ttrl.train.run import Batch, Meter, OnRolloutEnd, RolloutWorker, TrainingComponents
from skill_ttrl.types import Group, Task
from skill_ttrl.workers import Pool

if TYPE_CHECKING:
    from skill_ttrl.rl.parallel.driver import Driver


@dataclass(frozen=True)
class Sampled:
    """Groups that a worker has sampled, and what it found out of their answers."""

    groups: list[Group]
    verdicts: Mapping[str, EquivalenceResult]
    """Results of answers that SymPy had to judge; whoever counts the votes need not ask again."""

    @classmethod
    def of(cls, groups: list[Group]) -> Sampled:
        """Judge the answers of these groups here."""
        return cls(groups, judged(answer for group in groups for answer in group.answers))

    def take(self, on_rollout_end: OnRolloutEnd) -> list[Group]:
        """The groups, after each of their rollouts is reported; the verdicts are known in this process from here on."""
        take_over(self.verdicts)
        for group in self.groups:
            for trajectory in group.trajectories:
                on_rollout_end(trajectory)
        return self.groups


@dataclass(frozen=True)
class _Order:
    """A batch as it is sent to a worker, with handles (`scale.cluster.share`) of what many batches are sampled with."""

    batch: Batch
    weights: Any
    """Version of the policy, and the parameters that learn (`pack_weights`)."""
    bank: Any
    """`Snapshot`, or None."""


@contextmanager
def on_cluster(components: TrainingComponents, meter: Meter, progress: Progress) -> Iterator[TrainingComponents]:
    """The components, with workers of a Ray cluster that sample in their place where `scale.address` asks for them; they end with the block.

    Raises:
        WorkerError: there is no cluster, or its nodes are not ready.
        SkillTTRLError: a worker cannot make the policy or the environment.
    """
    config = components.config
    if config.scale.address is None or not config.rolls_out:
        yield components
        return
    setup = RolloutSetup(config.for_worker(), _describe(components), (components.train_tasks[0], meter.eval_tasks[0]))
    sampled = [config.rl.prompts_per_step * (config.rl.max_staleness + 1), len(meter.eval_tasks)]
    sampled += [len(components.gate.tasks)] if components.gate is not None else []
    sampled += [config.dagger.episodes] if "dagger" in config.phases else []
    most = -(-max(sampled) // (config.rollout.prompts_per_batch or 1))
    with open_pool(setup, setup.check, config.scale, most=most, progress=progress) as pool:
        pool.facts()
        yield replace(components, worker=replace(components.worker, others=RayWorkers(pool, components.driver)))


class RayWorkers:
    """Workers that generate the rollouts of a run, with the weights that they were last given.

    Args:
        pool: the workers (`RolloutSetup`).
        driver: the ranks that learn.
    """

    def __init__(self, pool: Pool, driver: Driver) -> None:
        self._pool, self._driver = pool, driver
        self._weights: Any = None
        self._bank: tuple[Snapshot, Any] | None = None

    def update_weights(self, policy_version: int) -> None:
        """Give them the learner's present weights. A batch that a worker has is sampled with those that were present when it came."""
        from skill_ttrl.llm.models.weights import each_trained_weight, pack_weights
        from skill_ttrl.rl.parallel.driver import Replica

        self._weights = share((policy_version, pack_weights(self._driver.run(Replica.on_model, each_trained_weight))))

    def generate_rollouts(
        self, batches: Sequence[Batch], bank: BankView | None, on_rollout_end: OnRolloutEnd
    ) -> list[Group]:
        """Roll out batches at the same time; one group a task, in order. All see the same frozen `bank`, or none.

        Rollouts are reported batch by batch.

        Raises:
            WorkerError: a batch's workers die, more often than is retried.
            AbandonedError: the run has left these rollouts.
        """
        snapshot = self._shared(bank)

        def order(batch: Batch) -> _Order:
            assert self._weights is not None  # a phase hands them over before it samples
            return _Order(batch, self._weights, snapshot)

        found = self._pool.map(batches, refuse_abandoned, order)
        return [group for sampled in found for group in sampled.take(on_rollout_end)]

    def _shared(self, bank: BankView | None) -> Any:
        if bank is None:
            return None
        last = self._bank
        if last is None or last[0] is not bank.snapshot:
            last = self._bank = bank.snapshot, share(bank.snapshot)
        return last[1]


@dataclass(frozen=True)
class RolloutSetup:
    """Makes in a worker what rolls out batches: `workers.Setup`."""

    config: SkillTTRLConfig
    policy: Mapping[str, bytes]
    """Files of the policy by name, without the weights that come with each order."""
    tasks: Sequence[Task]
    """One of each kind: to see that the environment can play it."""

    def __call__(self) -> tuple[Any, None]:
        """Load the policy, for as long as the worker's process lives. Checked again: its node may have joined after the others were asked."""
        self.check()
        return _Rolling(self._load(), self._envs()), None

    def check(self) -> None:
        """Check that a node can make the environment and has the base model of adapters (`scale.cluster.Check`).

        Raises:
            EnvError: the environment or its data are not there.
            ModelError: the base model of adapters is not there.
        """
        self._envs().close()
        base = Path(self.config.model.path)
        if self.config.model.lora is not None and base.is_absolute() and not base.exists():
            raise ModelError(
                f"{base} does not exist. Workers read the adapters' base model there: use a folder that all nodes share."
            )

    def _load(self) -> RolloutWorker:
        with tempfile.TemporaryDirectory(prefix="skillttrl-policy-") as folder:
            for name, content in self.policy.items():
                Path(folder, name).write_bytes(content)
            where, empty = Path(folder), self.config.model.lora is None
            loader = PolicyLoader(self.config, where)
            envs = self._envs()
            made = build_policy(self.config, weights=where, load=lambda: loader.load(empty=empty), tools=envs.schemas)
            _ = made.context.loaded  # while the folder is there
        return RolloutWorker(self.config, made.backend, made.agent, envs)

    def _envs(self) -> EnvPool:
        return make_envs(self.config.env, self.config.agent, self.tasks)


class _Rolling:
    """Rolls out one order after another, in a worker."""

    def __init__(self, worker: RolloutWorker, envs: EnvPool) -> None:
        self._skills, self._worker = worker.config.skills, worker
        # An environment keeps what it was reset with: one that saw a true answer is not trained in.
        self._measuring = replace(worker, envs=envs)
        self._weights: Any = None
        self._bank: tuple[Any, Snapshot] | None = None

    def __call__(self, order: _Order) -> Sampled:
        """Sample a batch with the weights and the bank that its order names."""
        self._take(order.weights)
        batch, bank = order.batch, None if order.bank is None else BankView(self._snapshot(order.bank), self._retriever)
        answered = any(task.ground_truth is not None for task in batch.tasks)
        worker = self._measuring if answered else self._worker
        return Sampled.of(worker.with_bank(bank).sample_batch(batch))

    @cached_property
    def _retriever(self) -> Retriever:
        """Searches any version of the bank. How vectors are kept changes no list, so here they are in memory."""
        assert self._skills is not None  # there is no bank without
        return make_retriever(BankSettings.from_config(self._skills).changed(index="memory"))

    def _snapshot(self, handle: Any) -> Snapshot:
        if self._bank is None or self._bank[0] != handle:
            self._bank = handle, fetch(handle)
        return self._bank[1]

    def _take(self, weights: Any) -> None:
        from skill_ttrl.llm.models.weights import take_weights

        if self._weights is None or weights != self._weights:
            version, packed = fetch(weights)
            backend: Any = self._worker.backend
            take_weights(backend.model, packed)
            backend.update_weights(version)
            self._weights = weights


def _describe(components: TrainingComponents) -> dict[str, bytes]:
    """The policy's files without weights, but for adapters: a model is not made with theirs left out."""
    from skill_ttrl.llm.models.load import save_model
    from skill_ttrl.llm.models.weights import has_adapters, trained_weights
    from skill_ttrl.rl.parallel.driver import Replica

    policy = components.policy
    adapters = components.driver.run(Replica.on_model, trained_weights) if has_adapters(policy.model) else {}
    with tempfile.TemporaryDirectory(prefix="skillttrl-policy-") as folder:
        save_model(policy.model, policy.tokenizer, Path(folder), weights=adapters)
        return {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir())}

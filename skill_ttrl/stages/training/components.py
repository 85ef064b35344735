"""The parts that act in a run: what generates rollouts, what learns, and the tasks to train on. No true answer is among them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from skill_ttrl.agents.agent import Agent, AgentInput
from skill_ttrl.agents.scripted import ScriptedAgent
from skill_ttrl.config import SkillTTRLConfig
from skill_ttrl.errors import ConfigError, DocumentError
from skill_ttrl.llm.backend import Backend, Sampling, wait_for
from skill_ttrl.llm.backends import backend_facts
from skill_ttrl.rollout.env_pool import EnvPool
from skill_ttrl.rollout.rollout import RolloutSettings, Schedule, rollout
from skill_ttrl.skills.changes import normalize_skill
from skill_ttrl.skills.document import skills_of
from skill_ttrl.skills.folder import BankSettings
from skill_ttrl.skills.retrieval import BankView, make_retriever
from skill_ttrl.skills.snapshot import Snapshot
from skill_ttrl.stages.training.run_bank import NoBank, RunBank
from skill_ttrl.types import Group, Task, Trajectory, derive_seed

if TYPE_CHECKING:
    from accelerate import Accelerator

    from skill_ttrl.rl.parallel.driver import Driver
    from skill_ttrl.rl.policy import Policy
    from skill_ttrl.stages.setup.rollout_workers import RayWorkers

OnRolloutEnd = Callable[[Trajectory], None]


def ignore(trajectory: Trajectory) -> None:
    """The `OnRolloutEnd` that does nothing."""


RolloutFn = Callable[..., list[Group]]
"""`f(tasks, bank, seed, on_rollout_end)` rolls out each task several times with the policy as it is now; one group a task, in order. Every
rollout sees the same frozen `bank`, or none; `on_rollout_end` is called with each as it ends."""


@dataclass(frozen=True)
class Batch:
    """Tasks whose rollouts are sampled together."""

    tasks: Sequence[Task]
    n: int
    """Rollouts of each."""
    settings: RolloutSettings


@dataclass(frozen=True)
class RolloutWorker:
    """Generates rollouts: the policy's sampler, its agent and the environments."""

    config: SkillTTRLConfig
    backend: Backend
    agent: Agent
    envs: EnvPool
    others: RayWorkers | None = None
    """Sample in its place, where there are any."""

    @property
    def sampling(self) -> Sampling:
        """Sampling parameters of the training."""
        return Sampling.of(self.config.rollout)

    def with_bank(self, bank: BankView | None) -> RolloutWorker:
        """The same with an agent that sees this frozen version of the bank, or none."""
        return replace(self, agent=self.agent.with_bank(bank))

    def with_document(self, document: str) -> RolloutWorker:
        """The same with another skill document at the head of its prompts, or as its bank (`agent.document_as`); empty: without one.

        Raises:
            DocumentError: it leaves a prompt no room for the task; says how long it may be.
        """
        if self.config.agent.document_as == "bank":
            return self.with_bank(self._as_bank(document))
        agent = self.agent.with_document(document)
        check_document(agent, self.backend, self.config.data.max_prompt_tokens)
        return replace(self, agent=agent, others=None)  # they do not know the document

    def _as_bank(self, document: str) -> BankView:
        """The skills of a document, searched as those of the present bank."""
        if self.config.skills is None:
            raise ConfigError(
                "agent.document_as=bank needs a skills section, which says how the bank is searched and shown."
            )
        snapshot = Snapshot.of(0, map(normalize_skill, skills_of(document)))
        if self.agent.bank is not None:
            return BankView(snapshot, self.agent.bank.retriever)
        settings = BankSettings.from_config(self.config.skills).in_memory()
        return BankView(snapshot, make_retriever(settings))

    def generate_rollouts(
        self,
        tasks: Sequence[Task],
        n: int,
        sampling: Sampling,
        seed: int,
        *,
        on_rollout_end: OnRolloutEnd = ignore,
        adviser: Callable[[], ScriptedAgent] | None = None,
    ) -> list[Group]:
        """Roll out each task `n` times with the policy as it is now; one group a task, in order. See `RolloutFn`.

        `adviser` makes scripted agents that watch (`RolloutSettings.adviser`).
        """
        settings = RolloutSettings(
            sampling,
            seed,
            max_turns=self.config.agent.max_turns,
            max_prompt_tokens=self.config.data.max_prompt_tokens,
            constrain=self.config.agent.structured_actions,
            adviser=adviser,
            schedule=schedule_of(self.config),
            rollout_timeout_s=self.config.rollout.rollout_timeout_s,
        )
        batches = batches_of(tasks, n, settings, self.config.rollout.prompts_per_batch)
        if self.others is not None:
            return self.others.generate_rollouts(batches, self.agent.bank, on_rollout_end)
        return [group for batch in batches for group in self.sample_batch(batch, on_rollout_end)]

    def sample_batch(self, batch: Batch, on_rollout_end: OnRolloutEnd = ignore) -> list[Group]:
        """Roll out one batch in this process."""
        parts: dict[str, Any] = {"envs": self.envs, "agent": self.agent, "backend": self.backend}
        return wait_for(rollout(batch.tasks, batch.n, **parts, settings=batch.settings, on_episode=on_rollout_end))

    def update_weights(self, policy_version: int) -> None:
        """Have whatever samples take over the learner's present weights under this version number; see `Backend.update_weights`."""
        self.backend.update_weights(policy_version)
        if self.others is not None:
            self.others.update_weights(policy_version)

    def rollout_fn(self, n: int) -> RolloutFn:
        """`generate_rollouts` with `n` training samples a task."""

        def roll_out(
            tasks: Sequence[Task], bank: BankView | None, seed: int, on_rollout_end: OnRolloutEnd = ignore
        ) -> list[Group]:
            return self.with_bank(bank).generate_rollouts(tasks, n, self.sampling, seed, on_rollout_end=on_rollout_end)

        return roll_out

    def close(self) -> None:
        """Close the environments and stop what the sampler has started."""
        self.envs.close()
        self.backend.close()


@dataclass(frozen=True)
class GateTasks:
    """Tasks that changes of the bank are tested on; none of them is trained on."""

    tasks: Sequence[Task]
    envs: EnvPool
    """Environments of their own: the tasks may carry true answers, and an environment keeps what it was reset with."""


@dataclass(frozen=True)
class TrainingComponents:
    """The parts of a run that trains, made from its config by `stages.setup.build`."""

    worker: RolloutWorker
    driver: Driver
    """The ranks that learn, this process alone or several; its replica is this rank's."""
    train_tasks: Sequence[Task]
    """Without true answers."""
    bank: RunBank | NoBank
    gate: GateTasks | None = None
    """Tasks that changes of the bank are tested on (`skills.gate`); None: changes are not tested."""

    @property
    def config(self) -> SkillTTRLConfig:
        """The run's config."""
        return self.worker.config

    @property
    def policy(self) -> Policy:
        """The policy that learns, this rank's part of it; the sampler may live elsewhere."""
        return self.driver.replica.policy

    @property
    def accelerator(self) -> Accelerator:
        """Where this rank computes, and how precisely."""
        return self.driver.replica.accelerator

    @property
    def backend(self) -> Backend:
        """The policy's sampler."""
        return self.worker.backend

    def close(self) -> None:
        """Close the environments and the sampler."""
        self.worker.close()
        if self.gate is not None:
            self.gate.envs.close()


def batches_of(tasks: Sequence[Task], n: int, settings: RolloutSettings, size: int | None) -> list[Batch]:
    """Divide tasks into batches of `size` (`rollout.prompts_per_batch`), each with a seed of its own; None: one of them all."""
    if size is None:
        return [Batch(tasks, n, settings)]
    return [
        Batch(tasks[start : start + size], n, replace(settings, seed=derive_seed(settings.seed, "batch", start)))
        for start in range(0, len(tasks), size)
    ]


def check_document(agent: Agent, backend: Backend, max_prompt_tokens: int) -> None:
    """Check that an agent's document leaves its prompts room for a task.

    Raises:
        DocumentError: it does not; says how long it may be.
    """
    if not agent.formatter.document.text.strip():
        return
    # Prompts that show next to nothing of a task.
    unbounded = agent if agent.window is None else replace(agent, window=replace(agent.window, max_tokens=None))
    whole, bare = (
        backend.count(each.prompt(AgentInput("?", task="?")).messages)
        for each in (unbounded, unbounded.with_document(""))
    )
    if whole > max_prompt_tokens:
        raise DocumentError(
            f"The skill document has {whole - bare} tokens, and only {max(0, max_prompt_tokens - bare)} fit: data.max_prompt_tokens "
            f"is {max_prompt_tokens}, and the shortest prompt takes {bare}. Shorten the document, or raise data.max_prompt_tokens."
        )


def schedule_of(config: SkillTTRLConfig) -> Schedule:
    """The order in which rollouts advance; `rollout.mode: auto` goes by the backend and the number of turns."""
    if config.rollout.mode != "auto":
        return config.rollout.mode
    return "sync" if backend_facts(config).blocking or config.agent.max_turns == 1 else "async"

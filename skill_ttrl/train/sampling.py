"""The rollouts of a training step: sample → vote → reward, again with further tasks where `rl.dynamic_sampling` asks for it."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from skill_ttrl.config import RLConfig, SkillTTRLConfig
from skill_ttrl.progress import Progress
from skill_ttrl.rl.learner import GpuMemoryMonitor
from skill_ttrl.rollout.rollout import refuse_failure
from skill_ttrl.skills.retrieval import BankView
from skill_ttrl.train.run import OnRolloutEnd, Run, ignore
from skill_ttrl.train.state import RLState, Rollouts, RolloutsAhead
from skill_ttrl.types import Group, Task, VoteResult, derive_seed, equal_rewards
from skill_ttrl.voting.rewards import OVERLONG, RewardSet

if TYPE_CHECKING:
    from accelerate import Accelerator

TOO_FEW = "Dynamic sampling found too few groups with different rewards"
"""Begins the warning of it, which a run gives once."""


def shown(rl: RLConfig) -> str:
    """The phase as progress shows it: its algorithm."""
    return str(rl.algorithm["type"])


@dataclass
class StepSamples:
    """The rollouts of one step, all rewarded. All of them vote and are recorded, whether they are trained on or not."""

    task_batches: int
    """Batches of tasks that the run has drawn, those of this step included."""
    bank: BankView | None = None
    """The bank as the rollouts of all rounds see it, unless they have run ahead."""
    groups: list[Group] = field(default_factory=list)
    votes: list[VoteResult] = field(default_factory=list)
    greedy: list[Group] = field(default_factory=list)
    """A greedy rollout of each task, where the algorithm requires them (ReMax)."""
    baselines: dict[str, float] | None = None
    """Reward of these, by task id."""
    chosen: list[tuple[Group, VoteResult]] = field(default_factory=list)
    """Those that are trained on, with their vote."""
    metrics: dict[str, float] = field(default_factory=dict)


def sample_step(run: Run, state: RLState, rewards: RewardSet, clock: StepTimer, step: int) -> StepSamples:
    """Sample a step's rollouts; with `rl.dynamic_sampling` until `rl.prompts_per_step` groups have rewards that differ (DAPO).

    Each round's tasks and samples follow from the seed, the step and the number of the round, so that a resumed run does the same.

    Raises:
        EndpointError, EnvError: all rollouts of a round failed.
    """
    config, tasks = run.config, run.components.train_tasks
    count, most = config.rl.prompts_per_step, config.rl.dynamic_sampling
    found, rounds = StepSamples(state.task_batches, run.components.bank.view() if state.ahead is None else None), 0
    differing: list[tuple[Group, VoteResult]] = []
    while rounds < max(1, most) and len(differing) < count:
        seen = {group.task.id for group in found.groups}
        drawn, found.task_batches = unseen_tasks(tasks, count, found.task_batches, config.seed, seen)
        if not drawn:
            break
        place = (step, rounds) if rounds else (step,)
        if state.ahead is not None:  # these tasks have been rolled out, or are being so
            with clock("wait"):
                sampled = state.ahead.take(step)
            clock.add("sample", sampled.seconds)
        else:
            with clock("sample"):
                on_rollout_end = run.count_rollouts(shown(config.rl), "sample")
                sampled = roll_out(run, state, drawn, found.bank, place, on_rollout_end)
        groups, greedy = sampled.groups, sampled.greedy
        if refuse_failure(groups):
            env = groups[0].task.env_id
            run.warn(f"Some rollouts failed in {env}: metric failed_rollouts; trajectories.jsonl has each error.")
        with clock("vote"):
            votes = state.votes.compute_votes(groups)
        with clock("reward"):
            seed = derive_seed(config.seed, "reward", *place)
            baselines = state.greedy.rewards(greedy, groups, votes, rewards, seed)
            found.groups += [rewards(group, vote, seed) for group, vote in zip(groups, votes, strict=True)]
        found.votes += votes
        found.greedy += greedy
        found.baselines = baselines if baselines is None else (found.baselines or {}) | baselines
        # All vote, a seeded subset is trained on. It is drawn group after group, so that of earlier rounds stays.
        found.chosen = select_training_samples(found.groups, found.votes, config, step)
        differing = [pair for pair in found.chosen if rewards_differ(pair[0], config.rl.invalid_action_penalty_coef)]
        rounds += 1
    if not most:
        return found
    found.chosen = differing[:count]
    found.metrics = {
        "dynamic_sampling/rounds": float(rounds),
        "dynamic_sampling/groups": float(len(found.groups)),
        "dynamic_sampling/dropped": float(len(found.groups) - len(differing)),
        "dynamic_sampling/surplus": float(len(differing) - len(found.chosen)),
    }
    if len(differing) < count:
        text = (
            f"{TOO_FEW}: {len(found.chosen)} of the {count} of rl.prompts_per_step in step {step}, after {rounds} round"
            f"{'s' * (rounds > 1)} of at most {most} (rl.dynamic_sampling) and {len(found.groups)} of {len(tasks)} tasks."
        )
        run.warn(f"{text} The step trains on those; see dynamic_sampling/… in metrics.jsonl.", once=TOO_FEW)
    return found


def roll_out(
    run: Run,
    state: RLState,
    tasks: Sequence[Task],
    bank: BankView | None,
    place: Sequence[int],
    on_rollout_end: OnRolloutEnd = ignore,
) -> Rollouts:
    """Roll out these tasks by the weights that the sampler has; the samples follow from the run's seed and `place`, step and round."""
    began, seed_for = time.perf_counter(), partial(derive_seed, run.config.seed)
    groups = state.votes.rollout(tasks, bank, seed_for("rollout", *place), on_rollout_end)
    greedy = state.greedy.rollout(tasks, bank, seed_for("greedy", *place))  # for ReMax alone
    return Rollouts(groups, greedy, time.perf_counter() - began)


@contextmanager
def rolling_ahead(run: Run, state: RLState) -> Iterator[Callable[[int], None]]:
    """While entered, rollouts run ahead of the learner by up to `rl.max_staleness` steps; gives what hands its weights to the sampler.

    Rollouts of a step see the bank as it is when they start. Those in flight where the run ends early are dropped: a resumed run samples them
    again.
    """
    rl, parts = run.config.rl, run.components
    if not rl.max_staleness:
        yield parts.worker.update_weights
        return

    def prepare(step: int) -> Callable[[], Rollouts]:
        batch = state.task_batches + step - state.step
        tasks = step_tasks(parts.train_tasks, rl.prompts_per_step, batch, run.config.seed)
        return partial(roll_out, run, state, tasks, parts.bank.view(), (step,))

    with RolloutsAhead(rl, parts.worker.update_weights, prepare) as state.ahead:
        yield state.ahead.hand_over


def unseen_tasks(
    tasks: Sequence[Task], count: int, batch: int, seed: int, seen: Collection[str]
) -> tuple[list[Task], int]:
    """The tasks of the next batch that has any that this step has not sampled, and the number of the batch after it.

    No tasks, and the same number, where the step has sampled all that two epochs have.
    """
    for later in range(batch, batch + 2 * (len(tasks) // count) + 1):
        found = [task for task in step_tasks(tasks, count, later, seed) if task.id not in seen]
        if found:
            return found, later + 1
    return [], batch


def rewards_differ(group: Group, invalid_action_penalty_coef: float) -> bool:
    """True if a group's rollouts, or their steps where invalid actions are penalised, do not all earn the same.

    The length penalty (`rl.overlong_penalty`) does not count: DAPO filters by what an answer earned.
    """
    earned, names = [], set()
    for each in group.trajectories:
        parts = {name: value for name, value in sorted(each.rewards.items()) if name != OVERLONG}
        names.add(tuple(parts))
        reward = 0.0 if parts else each.reward or 0.0
        penalties = {invalid_action_penalty_coef * (step.action_status == "invalid") for step in each.steps} or {0.0}
        earned += [(reward - penalty, *parts.values()) for penalty in penalties]
    return len(names) > 1 or not all(map(equal_rewards, zip(*earned, strict=True)))


# A training step: its tasks, the samples of it that are trained on, and the wall time of its parts.


def step_tasks(tasks: Sequence[Task], count: int, step: int, seed: int) -> list[Task]:
    """The tasks of one step, all different: each epoch is one order drawn from the run's seed, cut into whole steps.

    What does not fill a last step is left to the next epochs' orders.
    """
    epoch, place = divmod(step, len(tasks) // count)
    order = np.random.default_rng(derive_seed(seed, "tasks", epoch)).permutation(len(tasks))
    return [tasks[position] for position in order[place * count : (place + 1) * count]]


def select_training_samples(
    groups: Sequence[Group], votes: Sequence[VoteResult], config: SkillTTRLConfig, step: int
) -> list[tuple[Group, VoteResult]]:
    """Select the rollouts to train on: `n_samples_per_prompt` a group, sampled with a fixed seed (TTRL).

    All rollouts vote; only these contribute to the loss. Excludes failed rollouts, and a rollout left alone because the rest of
    its group failed.
    """
    rng = np.random.default_rng(derive_seed(config.seed, "subset", step))
    chosen = []
    for group, vote in zip(groups, votes, strict=True):
        whole = [place for place, each in enumerate(group.trajectories) if each.error is None]
        keep = config.rollout.n_samples_per_prompt
        drawn = whole if len(whole) <= keep else sorted(rng.choice(whole, keep, replace=False).tolist())
        if len(drawn) == 1 < min(len(group.trajectories), keep):
            drawn = []
        chosen.append((group.select(drawn), vote.select(drawn)))
    return chosen


class StepTimer:
    """Wall time of the parts of one step, and on a GPU the memory that it took."""

    def __init__(self, progress: Progress, phase: str, accelerator: Accelerator) -> None:
        self._progress, self._phase = progress, phase
        self._memory = GpuMemoryMonitor(accelerator.device)
        self._began, self._cpu_began = time.perf_counter(), time.process_time()
        self._seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, part: str) -> Iterator[None]:
        """Time a part, and show it as what the phase is at. Parts of one name add up."""
        self._memory.sample()
        self._progress.enter(self._phase, part)
        began = time.perf_counter()
        yield
        self._seconds[f"{part}_seconds"] = self._seconds.get(f"{part}_seconds", 0.0) + time.perf_counter() - began

    def add(self, part: str, seconds: float) -> None:
        """Count a part that another thread did, wall time of its own; it does not add up with the others to the whole step."""
        self._seconds[f"{part}_seconds"] = seconds

    def stop(self) -> dict[str, float]:
        """Seconds of each part, `seconds` of the whole step, of all cores together `cpu_seconds`, and GPU memory."""
        self._memory.sample()
        whole = {"seconds": time.perf_counter() - self._began, "cpu_seconds": time.process_time() - self._cpu_began}
        return {**self._seconds, **whole, **self._memory.metrics()}

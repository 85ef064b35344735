"""RL training without labels: sample many, vote, reward agreement, update by policy gradient.

`reinforce` is the one visible loop. True answers stand in `run.meter` alone, but for the control `rl.reward=label`; what flows from
the votes into the weights is in `sample_step` and in the lines of `update`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from skill_ttrl.config import RLConfig
from skill_ttrl.errors import SkillBankError, SkillTTRLError, TrainingError, WorkerError
from skill_ttrl.rl.parallel.driver import Replica
from skill_ttrl.rl.policy import Policy
from skill_ttrl.rollout.rollout import refuse_failure
from skill_ttrl.skills.evolution import Evolver
from skill_ttrl.skills.retrieval import BankView
from skill_ttrl.train.bank_changes import BankText, decide_changes, edit_text, evolve, warn_if_never
from skill_ttrl.train.metrics import (
    COLLAPSE,
    TRIPWIRE_RULE,
    collapse_signs,
    episode_metrics,
    group_metrics,
    late_signs,
    overlong_metrics,
    several_types,
    staleness_metrics,
    step_rates,
    step_vote_metrics,
    tripwire_metrics,
    tripwire_signs,
)
from skill_ttrl.train.results import NO_SKILLS
from skill_ttrl.train.run import OnRolloutEnd, Run, ignore, stopped_by, warn_of_undecided_answers
from skill_ttrl.train.run_bank import skill_metrics
from skill_ttrl.train.state import (
    RL,
    RLState,
    Rollouts,
    RolloutsAhead,
    StepTimer,
    checkpoint_on_error,
    record_step,
    remaining_steps,
    save,
    save_if_due,
    skipped_too_often,
    step_tasks,
    watch_updates,
)
from skill_ttrl.types import Group, Task, VoteResult, derive_seed, equal_rewards
from skill_ttrl.voting.rewards import OVERLONG, RewardSet
from skill_ttrl.voting.strategies import SEQUENTIAL

TOO_FEW = "Dynamic sampling found too few groups with different rewards"
"""Begins the warning of it, which a run gives once."""


def shown(rl: RLConfig) -> str:
    """The phase as progress shows it: its algorithm."""
    return str(rl.algorithm["type"])


def reinforce(run: Run, rewards: RewardSet, evolution: Evolver | None = None, text: BankText | None = None) -> None:
    """Sample → vote → reward → advantages, update → skills → record → sync, until `rl.steps` or a stop rule; a resumed run continues."""
    config, parts = run.config, run.components
    backend, bank, temperature = parts.backend, parts.bank, parts.worker.sampling.temperature
    parts.worker.update_weights(run.resumed.steps_done(RL))  # a cold start or a checkpoint may have changed the weights
    run.evaluate("before")
    state = RLState.restore(run, evolution, text)
    prepare_first_step(run, state)

    with rolling_ahead(run, state) as hand_over:  # by `rl.max_staleness` steps; 0: sampling and learning take turns
        for step in remaining_steps(run, state):
            clock = StepTimer(run.progress, shown(config.rl), parts.accelerator)
            # Sample → vote → reward; with further tasks too where `rl.dynamic_sampling` asks for groups whose rewards differ.
            with checkpoint_on_error(run, state, TrainingError, SkillBankError, WorkerError):
                found = sample_step(run, state, rewards, clock, step)
            groups, votes, chosen = found.groups, found.votes, found.chosen
            skills = {skill.id: skill.text for skill in bank.skills} if bank else {}  # before the step changes the bank
            if state.gate is not None:  # it rolls out with the policy as it is, so before the sampler rests
                with clock("skills"):
                    found.metrics |= change_bank(run, state, text, groups, step)
            with clock("update"):
                backend.sleep()  # gives its memory to the learner, until its weights are updated
                # Rewards become advantages within each group, and the weights follow (`rl.learner`).
                rollouts, cast = [group for group, _ in chosen], [vote for _, vote in chosen]
                how: dict[str, Any] = {"step": step, "seed": config.seed, "temperature": temperature}
                metrics = state.rule(state.learner, rollouts, cast, **how)
            if bank and state.gate is None:
                with clock("skills"):
                    metrics |= change_bank(run, state, text, groups, step)
            with clock("record"):
                metrics |= found.metrics
                metrics |= step_metrics(run, state, groups, votes, chosen, skills)
                saves, update = config.run.save_trajectories, state.rule.record
                record_step(run, RL, step, groups, votes, metrics, trajectories=saves, update=update if saves else None)
                run.progress.advance(shown(config.rl), step + 1, metrics)
                warn_of_votes(run, step, groups)
            state.step, state.task_batches = step + 1, found.task_batches
            # The step counts even where its weights cannot be handed to the sampler: it is saved, and a resumed run hands them over.
            with clock("sync"), checkpoint_on_error(run, state, SkillTTRLError):
                hand_over(state.step)
            times = clock.stop()
            place = (parts.accelerator.device, parts.driver.ranks.size)
            run.log.time(RL, step, times | step_rates(groups, metrics, times, *place))
            evaluate_and_save(run, state)  # where due; leaves here on a signal

    give_back(run, state)
    conclude(run)
    run.evaluate("after")
    if bank:
        run.evaluate(NO_SKILLS, use_bank=False)


# The rollouts of a step: sample → vote → reward, repeated with further tasks under `rl.dynamic_sampling`.


@dataclass
class StepSamples:
    """The rollouts of one step, all rewarded. All of them vote and are recorded, whether they are trained on or not."""

    task_batches: int
    """Batches of tasks that the run has drawn, those of this step included."""
    bank: BankView | None = None
    """The bank as the rollouts of all rounds see it, unless they have run ahead."""
    groups: list[Group] = field(default_factory=list)
    votes: list[VoteResult] = field(default_factory=list)
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
    found, rounds = StepSamples(state.task_batches, run.components.bank_view() if state.ahead is None else None), 0
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
        groups = sampled.groups
        if refuse_failure(groups):
            env = groups[0].task.env_id
            run.warn(f"Some rollouts failed in {env}: metric failed_rollouts; trajectories.jsonl has each error.")
        with clock("vote"):
            votes = state.votes.compute_votes(groups)
        with clock("reward"):
            seed = derive_seed(config.seed, "reward", *place)
            found.groups += [rewards(group, vote, seed) for group, vote in zip(groups, votes, strict=True)]
        found.votes += votes
        # All vote, a seeded subset is trained on. It is drawn group after group, so that of earlier rounds stays.
        found.chosen = select_training_samples(
            found.groups, found.votes, config.rollout.n_samples_per_prompt, derive_seed(config.seed, "subset", step)
        )
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
    began = time.perf_counter()
    groups = state.votes.rollout(tasks, bank, derive_seed(run.config.seed, "rollout", *place), on_rollout_end)
    return Rollouts(groups, time.perf_counter() - began)


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
        return partial(roll_out, run, state, tasks, parts.bank_view(), (step,))

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


def select_training_samples(
    groups: Sequence[Group], votes: Sequence[VoteResult], keep: int, seed: int
) -> list[tuple[Group, VoteResult]]:
    """Select the rollouts to train on: `keep` of each group, drawn with this seed (TTRL).

    All rollouts vote; only these contribute to the loss. Excludes failed rollouts, and a rollout left alone because the rest of
    its group failed.
    """
    rng = np.random.default_rng(seed)
    chosen = []
    for group, vote in zip(groups, votes, strict=True):
        whole = [place for place, each in enumerate(group.trajectories) if each.error is None]
        drawn = whole if len(whole) <= keep else sorted(rng.choice(whole, keep, replace=False).tolist())
        if len(drawn) == 1 < min(len(group.trajectories), keep):
            drawn = []
        chosen.append((group.select(drawn), vote.select(drawn)))
    return chosen


# The rest of a step.


def change_bank(
    run: Run, state: RLState, text: BankText | None, groups: Sequence[Group], step: int
) -> dict[str, float]:
    """Let a step change the bank, and return the metrics of it.

    Each change is an update of the bank, a line in its log: winners are merged, stale skills evicted, failures evolved, texts edited. With a gate
    they are collected, and applied once it accepts them.
    """
    bank = run.components.bank
    if not bank:
        return {}
    metrics = skill_metrics(groups)
    metrics |= bank.learn(groups, step, run.warn, evolves=state.evolution is not None)
    metrics |= evolve(run, state.evolution, groups, step, metrics)
    metrics |= edit_text(run, text, groups, step)
    return metrics | decide_changes(run, state.gate, state.evolution, step)


def step_metrics(
    run: Run,
    state: RLState,
    groups: Sequence[Group],
    votes: Sequence[VoteResult],
    chosen: Sequence[tuple[Group, VoteResult]],
    skills: Mapping[str, str],
) -> dict[str, float]:
    """Metrics of a step's rollouts and votes; the history of votes learns of them. `skills` holds the texts by id as the prompts had them."""
    config, parts = run.config, run.components
    history = state.votes.history.record({g.task.id: v for g, v in zip(groups, votes, strict=True)})
    metrics = group_metrics(groups) | step_vote_metrics(groups, votes, config.rl, history)
    by_type, tools = several_types(parts.train_tasks), bool(parts.worker.agent.offered)
    metrics |= episode_metrics(groups, config, by_type=by_type, tools=tools)
    answers = any(row.get("winners") for row in (metrics, *run.log.rows(RL)))
    metrics |= tripwire_metrics(groups, skills, answers=answers)
    metrics |= overlong_metrics(groups)
    if state.votes.chosen[0] == SEQUENTIAL:
        drawn = sum(len(group.trajectories) for group in groups)
        metrics["votes_saved"] = 1.0 - drawn / (len(groups) * config.rollout.n_votes_per_prompt)
    if config.rl.max_staleness:
        metrics |= staleness_metrics(groups, state.step)
    sizes = config.rollout
    metrics |= run.meter.label_metrics(groups, votes, sizes.n_votes_per_prompt)
    return metrics | run.meter.trained_metrics(chosen, sizes.n_samples_per_prompt)


def prepare_first_step(run: Run, state: RLState) -> None:
    """Estimate base votes where the strategy needs them, and make up for an evaluation that was interrupted."""
    rl, steps, every = run.config.rl, run.config.rl.steps, run.config.rl.eval_steps
    tasks_of = partial(step_tasks, run.components.train_tasks, rl.prompts_per_step, seed=run.config.seed)
    rounds = max(1, rl.dynamic_sampling)
    state.votes.ask_base(run, map(tasks_of, range(steps * rounds)), state.step)
    run.warn.place = (RL, state.step)
    warn_if_never(run)
    run.progress.start(shown(run.config.rl), steps, "step", state.step)
    if 0 < state.step < steps and every and state.step % every == 0:
        # Resumed exactly at a validation step without its evaluation: it was interrupted, or the last step before rl.steps was raised.
        run.evaluate(f"step {state.step}")


def evaluate_and_save(run: Run, state: RLState) -> None:
    """Evaluate and save where the config says so, and leave where a signal came or the run cannot continue.

    Raises:
        TrainingError: too many updates in a row were skipped (loss or gradient not finite).
        BudgetError, EndpointError, Interrupted: the run is saved.
    """
    config = run.config.rl
    stopped = stopped_by(run.log.rows(RL), config, state.step, state.step)
    if stopped is not None:
        run.progress.notice(stopped)
    last = state.step == config.steps or stopped is not None
    failed = watch_updates(run, state, state.step - 1)
    if config.eval_steps and state.step % config.eval_steps == 0 and not last and failed is None:
        with checkpoint_on_error(run, state):
            run.evaluate(f"step {state.step}")
    save_if_due(run, state, due=last or state.step % config.save_steps == 0, failed=failed)
    if not last and run.ledger.bounded:
        with checkpoint_on_error(run, state):
            run.ledger.check()


def give_back(run: Run, state: RLState) -> None:
    """Return to the weights of before RL, and save them, where the rule `collapse` ended it; again where a resumed run was killed before."""
    if run.config.rl.stops_collapse and stopped_by(run.log.rows(RL), run.config.rl, state.step) is not None:
        run.components.driver.run(Replica.on_policy, Policy.return_to_reference)
        run.components.worker.update_weights(state.step)
        save(run, state)


def conclude(run: Run) -> None:
    """Warn of trends in the metrics.

    Raises:
        TrainingError: no update of the run, or too many in a row, were finite.
    """
    if (failed := skipped_too_often(run, RL, ended=True)) is not None:
        raise failed
    _warn_of(run, late_signs(run.log.rows(RL), answers=run.config.rl.reward != "env"), tripwire=False)
    run.progress.finish(shown(run.config.rl))


def warn_of_votes(run: Run, step: int, groups: Sequence[Group]) -> None:
    """Warn of undecided answers, of weak votes where they are rewarded, and of signs that training cannot work or is paid for the wrong thing."""
    warn_of_undecided_answers(run.warn, f"step {step}", groups)
    rl, rows = run.config.rl, run.log.rows(RL)
    given = {} if rl.stop_rule is None else {rl.stop[0]: rl.stop[1]}
    if rl.voted:
        _warn_of(run, collapse_signs(rows, **given.get(COLLAPSE, {})))
    _warn_of(run, tripwire_signs(rows, answers=rl.reward != "env", **given.get(TRIPWIRE_RULE, {})))


def _warn_of(run: Run, signs: Mapping[str, str], *, tripwire: bool = True) -> None:
    for start, rest in signs.items():
        run.warn(start + rest, once=start, tripwire=tripwire)

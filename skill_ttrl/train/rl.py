"""RL training without labels: sample many, vote, reward agreement, update by policy gradient.

`reinforce` is the one visible loop. True answers stand in `run.meter` alone, but for the control `rl.reward=label`; what flows from
the votes into the weights is in `sample_step` (`train.sampling`) and in the lines of `update`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from skill_ttrl.errors import SkillBankError, SkillTTRLError, TrainingError, WorkerError
from skill_ttrl.rl.parallel.driver import Replica
from skill_ttrl.rl.policy import Policy
from skill_ttrl.skills.evolution import Evolver
from skill_ttrl.train.bank_changes import decide_changes, evolve, warn_if_never
from skill_ttrl.train.bank_text import BankText, edit_text
from skill_ttrl.train.metrics import (
    EARLY,
    collapse_signs,
    early_signs,
    episode_metrics,
    group_metrics,
    late_signs,
    overlong_metrics,
    several_types,
    staleness_metrics,
    step_rates,
    step_vote_metrics,
)
from skill_ttrl.train.results import NO_SKILLS
from skill_ttrl.train.run import Run, stopped_by, warn_of_undecided_answers
from skill_ttrl.train.run_bank import skill_metrics
from skill_ttrl.train.sampling import StepTimer, rolling_ahead, sample_step, shown, step_tasks
from skill_ttrl.train.state import (
    RL,
    RLState,
    checkpoint_on_error,
    record_step,
    remaining_steps,
    save,
    save_if_due,
    skipped_too_often,
    watch_updates,
)
from skill_ttrl.types import Group, VoteResult
from skill_ttrl.voting.rewards import RewardSet
from skill_ttrl.voting.strategies import SEQUENTIAL


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
            if state.gate is not None:  # it rolls out with the policy as it is, so before the sampler rests
                with clock("skills"):
                    found.metrics |= change_bank(run, state, text, groups, step)
            with clock("update"):
                backend.sleep()  # gives its memory to the learner, until its weights are updated
                # Rewards become advantages within each group, and the weights follow (`rl.learner`).
                rollouts, cast = [group for group, _ in chosen], [vote for _, vote in chosen]
                how: dict[str, Any] = {"greedy": found.baselines, "step": step, "seed": config.seed}
                metrics = state.rule(state.learner, rollouts, cast, temperature=temperature, **how)
            if bank and state.gate is None:
                with clock("skills"):
                    metrics |= change_bank(run, state, text, groups, step)
            with clock("record"):
                metrics |= found.metrics | state.greedy.metrics(found.greedy, found.baselines)
                metrics |= step_metrics(run, state, groups, votes, chosen)
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
            run.log.time(RL, step, times | step_rates([*groups, *found.greedy], metrics, times, *place))
            evaluate_and_save(run, state)  # where due; leaves here on a signal

    give_back(run, state)
    conclude(run)
    run.evaluate("after")
    if bank:
        run.evaluate(NO_SKILLS, use_bank=False)


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
) -> dict[str, float]:
    """Metrics of a step's rollouts and votes; the history of votes learns of them."""
    config = run.config
    history = state.votes.history.record({g.task.id: v for g, v in zip(groups, votes, strict=True)})
    metrics = group_metrics(groups) | step_vote_metrics(groups, votes, config.rl, history)
    metrics |= episode_metrics(groups, config, by_type=several_types(run.components.train_tasks))
    metrics |= overlong_metrics(groups)
    if config.vote.strategy == SEQUENTIAL:
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
    stopped = stopped_by(run.log.rows(RL), config, state.step)
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
    _warn_of(run, late_signs(run.log.rows(RL), answers=run.config.rl.reward != "env"))
    run.progress.finish(shown(run.config.rl))


def warn_of_votes(run: Run, step: int, groups: Sequence[Group]) -> None:
    """Warn of undecided answers, of weak votes where they are rewarded, and after `EARLY` steps of signs that training cannot work."""
    warn_of_undecided_answers(run.warn, f"step {step}", groups)
    if run.config.rl.voted:
        rl = run.config.rl
        _warn_of(run, collapse_signs(run.log.rows(RL), **rl.stop_options if rl.stops_collapse else {}))
    if step + 1 == EARLY:
        _warn_of(run, early_signs(run.log.rows(RL), answers=run.config.rl.reward != "env"))


def _warn_of(run: Run, signs: Mapping[str, str]) -> None:
    for prefix, text in signs.items():
        run.warn(text, once=prefix)

"""RL training without labels: sample many, vote, reward agreement, update by policy gradient.

`reinforce` is the one visible loop. True answers stand in `run.meter` alone; what flows from the votes into the weights is in the
lines between `sample` and `update`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from skill_ttrl.errors import SkillTTRLError
from skill_ttrl.rl.algorithms import build_algorithm, make_batch
from skill_ttrl.rollout.rollout import refuse_failure
from skill_ttrl.skills.evolution import Evolver
from skill_ttrl.stages.evaluation.results import BANK_OFF
from skill_ttrl.stages.training.evolve import evolve, warn_if_never
from skill_ttrl.stages.training.metrics import (
    episode_metrics,
    group_metrics,
    sampling_rates,
    several_types,
    step_vote_metrics,
)
from skill_ttrl.stages.training.run import Run, warn_of_undecided_answers
from skill_ttrl.stages.training.run_bank import skill_metrics
from skill_ttrl.stages.training.signs import EARLY, early_signs, late_signs
from skill_ttrl.stages.training.state import RL, RLState, checkpoint_on_error, record_step, save_if_due
from skill_ttrl.stages.training.step import VOTED, StepTimer, select_training_samples, step_tasks
from skill_ttrl.stages.training.stopping import remaining_steps, skipped_too_often, stopped_by, watch_updates
from skill_ttrl.types import Group, Task, derive_seed
from skill_ttrl.voting.rewards import Reward

SHOWN = "GRPO"
"""The phase as progress shows it."""


def reinforce(run: Run, reward: Reward, evolution: Evolver | None = None) -> None:
    """Rollout → vote | env → advantages → update → skills → sync, `rl.steps` times; a resumed run continues."""
    config, parts = run.config, run.components
    backend, bank = parts.backend, parts.bank
    backend.sync(run.resumed.steps_done(RL))  # a cold start or a checkpoint may have changed the weights
    run.evaluate("before")
    algorithm = build_algorithm(config.rl)
    state = RLState.restore(run, algorithm, evolution)
    tasks_of = partial(step_tasks, parts.train_tasks, config.rl.prompts_per_step, seed=config.seed)
    begin(run, state, tasks_of)

    for step in remaining_steps(run, state):
        clock, seed = StepTimer(run.progress, SHOWN, parts.accelerator), partial(derive_seed, config.seed)
        with clock("sample"), checkpoint_on_error(run, state):
            counted = run.count_rollouts(SHOWN, "sample")
            groups = state.votes.rollout(tasks_of(step), bank.view(), seed("rollout", step), counted)
        warn_of_failures(run, groups)
        with clock("vote"):
            votes = state.votes.compute_votes(groups, step)
        with clock("reward"):
            rewards = [reward(group, vote, seed("reward", step)) for group, vote in zip(groups, votes, strict=True)]
            groups = [group.with_rewards(list(row)) for group, row in zip(groups, rewards, strict=True)]
        with clock("update"):
            backend.rest()
            chosen = select_training_samples(groups, votes, config, step)  # all vote, a seeded subset is trained on
            batch = make_batch(chosen, algorithm, votes_rewarded=config.rl.reward == VOTED)
            metrics = state.learner.update(
                batch, step=step, seed=config.seed, temperature=parts.worker.sampling.temperature
            )
        if bank:
            with clock("skills"):  # merge winners, evolve failures: one update of the bank each
                metrics |= skill_metrics(groups) | bank.learn(groups, step, run.warn, evolves=evolution is not None)
                metrics |= evolve(run, state.evolution, groups, step, metrics)
        with clock("record"):
            visits = state.votes.history.record({g.task.id: v for g, v in zip(groups, votes, strict=True)})
            metrics |= group_metrics(groups) | step_vote_metrics(groups, votes, config, visits)
            metrics |= episode_metrics(groups, config, by_type=several_types(parts.train_tasks))
            metrics |= run.meter.label_metrics(groups, votes) | run.meter.trained_metrics(chosen, config)
            record_step(run, RL, step, groups, votes, metrics, trajectories=config.run.save_trajectories)
            run.progress.advance(SHOWN, step + 1, metrics)
            warn_of_votes(run, state, step, groups)
            state.step = step + 1
        with clock("sync"), checkpoint_on_error(run, state, SkillTTRLError):
            backend.sync(state.step)
        times = clock.stop()
        run.log.time(RL, step, times | sampling_rates(groups, times["sample_seconds"]))
        evaluate_and_save(run, state, metrics)  # where due; leaves here on a signal

    conclude(run)
    run.evaluate("after")
    if bank:
        run.evaluate(BANK_OFF, use_bank=False)


def begin(run: Run, state: RLState, tasks_of: Callable[[int], Sequence[Task]]) -> None:
    """What comes before the first step: base votes where the strategy needs them, and an evaluation that was broken off."""
    steps, every = run.config.rl.steps, run.config.rl.validate_every
    state.votes.estimate_base_ratio(run, map(tasks_of, range(steps)))
    warn_if_never(run)
    run.progress.start(SHOWN, steps, "step", state.step)
    if 0 < state.step < steps and every and state.step % every == 0:
        # It was the last step of a run that is now lengthened, or its evaluation was broken off.
        run.evaluate(f"step {state.step}")


def evaluate_and_save(run: Run, state: RLState, metrics: Mapping[str, float]) -> None:
    """Evaluate and save where the config says so, and leave where a signal came or the run cannot continue.

    Raises:
        TrainingError: see `stopping.watch_updates`.
        BudgetError, EndpointError, Interrupted: the run is saved.
    """
    config = run.config.rl
    stopped = stopped_by(run.log.rows(RL), config, state.step)
    if stopped is not None:
        run.progress.notice(stopped)
    last = state.step == config.steps or stopped is not None
    failed = watch_updates(run, RL, state.step - 1, metrics)
    if config.validate_every and state.step % config.validate_every == 0 and not last and failed is None:
        with checkpoint_on_error(run, state):
            run.evaluate(f"step {state.step}")
    save_if_due(run, state, due=last or state.step % config.checkpoint_every == 0, failed=failed)
    if not last:
        with checkpoint_on_error(run, state):
            run.ledger.check()


def conclude(run: Run) -> None:
    """The end of the steps: warn of what their course says.

    Raises:
        TrainingError: see `stopping.skipped_too_often`.
    """
    if (failed := skipped_too_often(run, RL, ended=True)) is not None:
        raise failed
    _warn_of(run, late_signs(run.log.rows(RL)))
    run.progress.finish(SHOWN)


def warn_of_failures(run: Run, groups: Sequence[Group]) -> None:
    """Warn once of rollouts that failed.

    Raises:
        EndpointError, EnvError: all failed (`refuse_failure`).
    """
    if refuse_failure(groups):
        run.warn(
            f"Some tries fail in {groups[0].task.env_id}: the figure is failed_rollouts, each error is in trajectories.jsonl."
        )


def warn_of_votes(run: Run, state: RLState, step: int, groups: Sequence[Group]) -> None:
    """Warn of answers that were given up, of weak votes where they are rewarded, and early of what cannot work."""
    warn_of_undecided_answers(run.warn, f"step {step}", groups)
    if run.config.rl.reward == VOTED:
        for warning in state.votes.history.warnings():
            run.warn(warning)
    if step + 1 == EARLY:
        _warn_of(run, early_signs(run.log.rows(RL)))


def _warn_of(run: Run, signs: Mapping[str, str]) -> None:
    for start, text in signs.items():
        run.warn(text, once=start)

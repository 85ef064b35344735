"""Reinforcement without labels: sample many, vote, reward agreement, follow with GRPO.

`reinforce` is the one visible loop. Labels are measured beside it (`label_metrics`); what flows from the votes into the
weights is in the lines between `sample` and `update`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

import numpy as np

from skill_ttrl.answers import grade_answer
from skill_ttrl.config import SkillTTRLConfig
from skill_ttrl.errors import BudgetError, ConfigError, EndpointError, EnvError, SkillTTRLError
from skill_ttrl.intervals import vote_entropy
from skill_ttrl.llm.backends import backend_facts
from skill_ttrl.llm.openai.ledger import current_ledger
from skill_ttrl.llm.reward_model import RewardModel
from skill_ttrl.rl.algorithms import build_algorithm, make_batch
from skill_ttrl.rl.correction import choose_correction
from skill_ttrl.rl.device import GpuMemoryMonitor
from skill_ttrl.rl.learner import Learner, LocalLearner
from skill_ttrl.rollout.rollout import refuse_failure
from skill_ttrl.rollout.scripted import failure
from skill_ttrl.runs.checkpoint import load_tensors
from skill_ttrl.runs.records import trajectory_lines, vote_line
from skill_ttrl.signals import FAILURES, Interrupted
from skill_ttrl.stages.setup.pin import FOLDER_DIGEST
from skill_ttrl.stages.training.context import Run, TrainingComponents
from skill_ttrl.stages.training.episode_metrics import episode_figures, several_types
from skill_ttrl.stages.training.evolve import evolve, warn_if_never
from skill_ttrl.stages.training.run_bank import skill_figures
from skill_ttrl.stages.training.signs import EARLY, early_signs, late_signs
from skill_ttrl.stages.training.stopping import rl_rows, skipped_too_often, stopped_by, watch_updates
from skill_ttrl.stages.training.votes import VoteManager
from skill_ttrl.types import Group, Task, VoteResult, derive_seed
from skill_ttrl.voting import given_up, label_metrics, trained_metrics, vote_metrics
from skill_ttrl.voting.rewards import MODEL_REWARD, Reward, build_reward

PHASE = "GRPO"
VOTED = "majority"
"""The reward that the votes decide, as `vote.strategy` says."""
PLAIN = "majority"
"""The strategy that does no more than reward its winner's class."""
GIVEN_UP = "Answers that could not be read"
"""Begins the warning of them, which a run gives once."""
BANK_OFF = "after, bank off"
"""Label of the evaluation that says what the skills are worth: the trained policy without them."""


def reinforce(run: Run, reward: Reward) -> None:
    """Train for `rl.steps` steps, from where a resumed run stopped."""
    bench, config = run.bench, run.config
    bench.backend.sync(run.steps_done("rl"))  # a cold start or a checkpoint may have changed the weights
    run.evaluate("before")
    if config.rl.kl_coef > 0 and "sft" in config.phases:
        bench.policy.refresh_reference()  # the cold start's policy: without its adapters it would be the bare base
    algorithm = build_algorithm(config.rl)
    learner = LocalLearner(
        bench.policy,
        config.rl,
        bench.accelerator,
        total_steps=config.rl.steps,
        algorithm=algorithm,
        max_response_tokens=config.rollout.max_new_tokens,
        correction=choose_correction(config.rl, sampler_is_learner=backend_facts(config).is_learner),
    )
    done = run.steps_done("rl")
    if done and run.resumed is not None:
        learner.load_state_dict(load_tensors(run.resumed.path)["learner"])
    poll = VoteManager(bench, run.resumed_state if done else {})
    tasks_of = partial(step_tasks, bench.train_tasks, config.rl.prompts_per_step, seed=config.seed)
    poll.estimate_base_ratio(run, map(tasks_of, range(config.rl.steps)))
    warn_if_never(run)
    run.progress.start(PHASE, config.rl.steps, "step", done)
    if 0 < done < config.rl.steps and config.rl.validate_every and done % config.rl.validate_every == 0:
        # It was the last step of a run that is now lengthened, or its evaluation was broken off.
        run.evaluate(f"step {done}")

    for step in range(done, config.rl.steps):
        if stopped_by(run.folder.path, config.rl, step) is not None:  # a resumed run may have been stopped already
            break
        clock = StepTimer(run)
        tasks = tasks_of(step)
        clock.enter("sample")
        with checkpoint_on_error(run, step, learner, poll), run.counting(PHASE, "sample"):
            groups = poll.play(tasks, derive_seed(config.seed, "rollout", step))
        if refuse_failure(groups):
            run.warn(
                f"Some tries fail in {tasks[0].env_id}: the figure is failed_rollouts, each error is in trajectories.jsonl."
            )
        clock.enter("vote")
        votes = poll.hold(groups, step)
        clock.enter("reward")
        seed = derive_seed(config.seed, "reward", step)
        groups = [g.with_rewards(list(reward(g, v, seed))) for g, v in zip(groups, votes, strict=True)]
        clock.enter("update")
        bench.backend.rest()
        kept = trained_on(groups, votes, config, step)
        batch = make_batch(kept, algorithm, votes_rewarded=config.rl.reward == VOTED)
        figures = learner.update(batch, step=step, seed=config.seed, temperature=bench.sampling.temperature)
        if bench.bank is not None and bench.bank.config.use:
            clock.enter("skills")
            figures |= skill_figures(groups) | bench.bank.learn(groups, step, run.warn)
            figures |= evolve(run, groups, step, figures)
        clock.enter("sync")
        refused = followed(bench, step + 1)

        clock.enter("record")
        visits = poll.history.record({g.task.id: v for g, v in zip(groups, votes, strict=True)})
        figures |= group_figures(groups) | label_figures(groups, votes, bench.references)
        figures |= episode_figures(groups, config, by_type=several_types(bench.train_tasks))
        figures |= trained_figures(kept, bench.references, config)
        figures |= vote_figures(groups, votes, config, visits)
        record(run, step, groups, votes, figures, clock)
        warn_of_given_up(run, f"step {step}", groups)
        if config.rl.reward == VOTED:  # where votes are not rewarded they can be as weak as they like
            for warning in poll.history.warnings():
                run.warn(warning)
        if step + 1 == EARLY:
            warn_of(run, early_signs(rl_rows(run.folder.path)))
        evaluate_and_save(run, step + 1, learner, poll, refused or watch_updates(run, "rl", step, figures))
    conclude(run)
    run.evaluate("after")
    if bench.bank is not None and bench.bank.config.use:
        run.evaluate(BANK_OFF, bank_off=True)


def conclude(run: Run) -> None:
    """The end of the steps: what their course says.

    Raises:
        TrainingError: see `stopping.skipped_too_often`.
    """
    if (failed := skipped_too_often(run, "rl", ended=True)) is not None:
        raise failed
    warn_of(run, late_signs(rl_rows(run.folder.path)))
    run.progress.finish(PHASE)


def warn_of(run: Run, signs: Mapping[str, str]) -> None:
    """Warn of each sign once in a run."""
    for start, text in signs.items():
        run.warn(text, once=start)


def step_tasks(tasks: Sequence[Task], count: int, step: int, seed: int) -> list[Task]:
    """The tasks of one step, all different: each epoch is one order drawn from the run's seed, cut into whole steps.

    What does not fill a last step is left to the next epochs' orders.
    """
    epoch, place = divmod(step, len(tasks) // count)
    order = np.random.default_rng(derive_seed(seed, "tasks", epoch)).permutation(len(tasks))
    return [tasks[position] for position in order[place * count : (place + 1) * count]]


def trained_on(
    groups: Sequence[Group], votes: Sequence[VoteResult], config: SkillTTRLConfig, step: int
) -> list[tuple[Group, VoteResult]]:
    """`n_samples_per_prompt` of each group's tries, drawn with a seed: all vote, these are learned from (TTRL).

    A try that failed in its environment says nothing of the policy and is left out; so is one that is left alone by such
    failures, which has nothing to be compared with. Where two wordings were asked, half are of each. Where votes are
    rewarded, a prompt that its vote skips is left out as a whole.
    """
    rng = np.random.default_rng(derive_seed(config.seed, "subset", step))
    chosen = []
    for group, vote in zip(groups, votes, strict=True):
        drawn: list[int] = []
        views = sorted({trajectory.view for trajectory in group.trajectories})
        for view in views:
            keep = (config.rollout.n_samples_per_prompt - len(drawn)) // (len(views) - views.index(view))
            tries = enumerate(group.trajectories)
            whole = [place for place, each in tries if each.error is None and each.view == view]
            drawn += whole if len(whole) <= keep else sorted(rng.choice(whole, keep, replace=False).tolist())
        if len(drawn) == 1 < min(len(group.trajectories), config.rollout.n_samples_per_prompt):
            drawn = []
        if not (vote.skipped and config.rl.reward == VOTED):
            chosen.append((group.select(drawn), vote.select(drawn)))
    return chosen


def make_reward(bench: TrainingComponents) -> Reward:
    """The reward of the config. Only the `label` control is handed the true answers."""
    name = bench.config.rl.reward
    if name == "env":
        refuse_ungraded(bench, "rl.reward=env", "Use rl.reward=majority, or rl.reward=label as a control.")
    elif bench.config.evolve is not None:
        refuse_ungraded(bench, "There is an evolve section", "Leave it out: no success is known that it could go by.")
    if name.startswith(MODEL_REWARD):
        pinned = bench.config.rl.reward_revision or ""
        commit = None if pinned.startswith(FOLDER_DIGEST) else pinned or None
        scorer = RewardModel(name.removeprefix(MODEL_REWARD), revision=commit, device=str(bench.policy.device))
        return build_reward(name, {}, scorer)
    if name != "label":
        return build_reward(name, {})
    missing = [task.id for task in bench.train_tasks if task.id not in bench.references]
    if missing:
        raise ConfigError(
            f"rl.reward=label needs a true answer for every training task; {len(missing)} of {len(bench.train_tasks)} "
            f"have none, first {missing[0]!r}. Use rl.reward=majority, or leave those tasks out."
        )
    return build_reward(name, bench.references)


def refuse_ungraded(bench: TrainingComponents, asked: str, instead: str) -> None:
    """Raise `ConfigError` where the environment says that it cannot grade a task without its true answer."""
    task = bench.train_tasks[0]
    env = bench.envs.take(1)[0]
    try:
        env.reset(seed=task.seed, options=dict(task.options))
        graded = env.step("")[4].get("graded")
    except FAILURES as raised:
        raise EnvError(f"{task.env_id} failed at task {task.id!r}: {failure(raised)}") from raised
    if graded is False:
        raise ConfigError(
            f"{asked}, but {task.env_id} cannot grade without true answers, which training tasks do not carry. {instead}"
        )


def group_figures(groups: Sequence[Group]) -> dict[str, float]:
    """What a step's samples look like, without labels."""
    tries = [trajectory for group in groups for trajectory in group.trajectories]
    completions = [step.completion for trajectory in tries for step in trajectory.steps if step.completion is not None]
    rewards = [[trajectory.reward or 0.0 for trajectory in group.trajectories] for group in groups]
    return {
        "reward": float(np.mean([value for group in rewards for value in group])),
        "uniform_groups": float(np.mean([len(set(group)) == 1 for group in rewards])),
        "response_tokens": float(np.mean([done.sampled for done in completions])) if completions else 0.0,
        "cut_off": float(np.mean([done.finish_reason == "length" for done in completions])) if completions else 0.0,
        "failed_rollouts": float(np.mean([trajectory.error is not None for trajectory in tries])),
    }


def vote_figures(
    groups: Sequence[Group], votes: Sequence[VoteResult], config: SkillTTRLConfig, visits: Mapping[str, float]
) -> dict[str, float]:
    """What the votes look like, without labels; `visits` is what their history says of them.

    Nothing where the environment's own return is rewarded and no try has an answer: episodes are played, not answered.
    """
    if config.rl.reward == "env" and all(answer is None for group in groups for answer in group.answers):
        return {}
    return {
        **visits,
        **vote_metrics(votes, shaping=config.vote.strategy != PLAIN),
        **answer_figures(groups, votes),
    }


def answer_figures(groups: Sequence[Group], votes: Sequence[VoteResult]) -> dict[str, float]:
    """What a step's answers look like, without labels."""
    return {
        "answer_entropy": float(np.mean([vote_entropy([n for _, n in v.classes] + [1] * v.abstained) for v in votes])),
        "answers_given_up": float(given_up(answer for group in groups for answer in group.answers).count),
    }


def warn_of_given_up(run: Run, where: str, groups: Sequence[Group]) -> None:
    """Say once in a run that many answers of a step were given up: votes for them are split although they may be equal."""
    found = given_up(answer for group in groups for answer in group.answers)
    if found.many and not any(text.startswith(GIVEN_UP) for text in run.warnings):
        run.warn(f"{GIVEN_UP} ({where}): {found} The figure is answers_given_up; see docs/answers.md.")


def label_figures(
    groups: Sequence[Group], votes: Sequence[VoteResult], references: Mapping[str, str]
) -> dict[str, float]:
    """How right the votes were; empty where a task has no true answer. Nothing of it is fed back."""
    if not all(group.task.id in references for group in groups):
        return {}
    truths = [references[group.task.id] for group in groups]
    return label_metrics(votes, truths, [group.answers for group in groups])


def trained_figures(
    kept: Sequence[tuple[Group, VoteResult]], references: Mapping[str, str], config: SkillTTRLConfig
) -> dict[str, float]:
    """The same of the samples that were learned from (TTRL: `post_`)."""
    if not all(group.task.id in references for group, _ in kept):
        return {}
    truths = [references[group.task.id] for group, _ in kept]
    answers = [group.answers for group, _ in kept]
    return trained_metrics([vote for _, vote in kept], truths, answers, config.rollout.n_samples_per_prompt)


def record(
    run: Run,
    step: int,
    groups: Sequence[Group],
    votes: Sequence[VoteResult],
    figures: dict[str, float],
    clock: StepTimer,
) -> None:
    """Write the step down and show it."""
    if run.config.run.save_trajectories:
        run.folder.append_jsonl(
            "trajectories.jsonl", [line for group in groups for line in trajectory_lines("rl", step, group)]
        )
    truths = [run.bench.references.get(group.task.id) for group in groups]
    right = [
        None if truth is None else grade_answer(v.answer, truth)["score"] == 1.0
        for v, truth in zip(votes, truths, strict=True)
    ]
    run.folder.append_jsonl(
        "votes.jsonl",
        [vote_line("rl", step, g.task.id, v, correct=c) for g, v, c in zip(groups, votes, right, strict=True)],
    )
    run.log.log("rl", step, figures)
    times = clock.stop()
    run.log.time("rl", step, times | sampling_rates(groups, times["sample_seconds"]))
    run.progress.advance(PHASE, step + 1, figures)


def sampling_rates(groups: Sequence[Group], seconds: float) -> dict[str, float]:
    """Tries and sampled tokens a second; tokens that a bank inserted are not counted."""
    tries = [trajectory for group in groups for trajectory in group.trajectories]
    tokens = sum(step.completion.sampled for each in tries for step in each.steps if step.completion is not None)
    return {"rollouts_per_second": len(tries) / max(seconds, 1e-9), "tokens_per_second": tokens / max(seconds, 1e-9)}


def followed(bench: TrainingComponents, version: int) -> SkillTTRLError | None:
    """Hand the new weights to the sampler; where it does not take them, why: the step is to be put down and saved first."""
    try:
        bench.backend.sync(version)
    except SkillTTRLError as error:
        return error
    return None


def evaluate_and_save(
    run: Run, finished: int, learner: Learner, poll: VoteManager, refused: SkillTTRLError | None
) -> None:
    """Validate and save where the config says so, and leave where a signal asked for it or the run cannot go on, as where the sampler
    `refused` the weights: then an evaluation that is due is left out, and the run is saved whatever the config says.

    Raises:
        SkillTTRLError: that refusal.
    """
    config = run.config.rl
    stopped = stopped_by(run.folder.path, config, finished)
    if stopped is not None:
        run.progress.notice(stopped)
    last = finished == config.steps or stopped is not None
    if config.validate_every and finished % config.validate_every == 0 and not last and refused is None:
        with checkpoint_on_error(run, finished, learner, poll):
            run.evaluate(f"step {finished}")
    if last or finished % config.checkpoint_every == 0 or run.stop.signum is not None or refused is not None:
        run.checkpoint("rl", finished, state=poll.state_dict(), tensors={"learner": learner.state_dict()})
        run.stop_if_requested("rl", finished)
    if refused is not None:
        raise refused
    if not last:
        with checkpoint_on_error(run, finished, learner, poll):
            current_ledger().check()


@contextmanager
def checkpoint_on_error(run: Run, done: int, learner: Learner, poll: VoteManager) -> Iterator[None]:
    """For what comes between the steps and for the sampling of the next: where the budget ends, a server answers no more, or a
    signal ends an evaluation, the run is saved as it stood after `done` steps before it leaves.

    Raises:
        BudgetError, EndpointError, Interrupted: as they came.
    """
    try:
        yield
    except (BudgetError, EndpointError, Interrupted):
        if done and not (run.folder.checkpoints / f"rl-{done:06d}").is_dir():
            run.checkpoint("rl", done, state=poll.state_dict(), tensors={"learner": learner.state_dict()})
        if done:
            run.stop_if_requested("rl", done)  # then this is why nothing was waited for
        raise


class StepTimer:
    """Wall time of the parts of one step, and on a GPU what it took of the memory."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._gauge = GpuMemoryMonitor(run.bench.accelerator.device)
        self._part: str | None = None
        self._since = time.perf_counter()
        self._began = self._since
        self._seconds: dict[str, float] = {}

    def enter(self, part: str) -> None:
        """The part before ends, this one begins."""
        self._gauge.look()
        now = time.perf_counter()
        if self._part is not None:
            self._seconds[f"{self._part}_seconds"] = now - self._since
        self._part, self._since = part, now
        self._run.progress.enter(PHASE, part)

    def stop(self) -> dict[str, float]:
        """Seconds of each part, and `seconds` of the whole step; see also `Gauge.figures`."""
        self._gauge.look()
        now = time.perf_counter()
        self._seconds[f"{self._part}_seconds"] = now - self._since
        return {**self._seconds, "seconds": now - self._began, **self._gauge.figures()}

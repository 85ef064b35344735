"""Votes in training: the rollouts that vote, and what a step's votes are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from skill_ttrl.errors import RunFolderError
from skill_ttrl.llm.backend import Sampling
from skill_ttrl.signals import RESUME
from skill_ttrl.skills.retrieval import BankView
from skill_ttrl.stages.training.metrics import completions_of
from skill_ttrl.stages.training.run import OnRolloutEnd, RolloutFn, RolloutWorker, Run, TrainingComponents, ignore
from skill_ttrl.types import Group, Task, VoteResult, derive_seed
from skill_ttrl.voting import VoteHistory, ballot_of, batch_majority_vote, batch_vote, requires
from skill_ttrl.voting.rewards import RewardSet, late_vote
from skill_ttrl.voting.strategies import SEQUENTIAL, SequentialTest
from skill_ttrl.voting.tally import mean

BASE = "votes of the base"


class VoteManager:
    """The votes of a run.

    Args:
        components: what generates the rollouts.
        state: result of `state_dict` to resume from; empty for a new run.
    """

    rollout: RolloutFn
    """Rolls out each task `n_votes_per_prompt` times, or until it is decided."""

    def __init__(self, components: TrainingComponents, state: Mapping[str, Any]) -> None:
        config, worker = components.config, components.worker
        self.config = config
        self.history = VoteHistory.from_state(state["votes"]) if "votes" in state else VoteHistory()
        self._requires = requires(config.vote.strategy, config.vote.options)
        rollout_fn = worker.rollout_fn
        self._plain = rollout_fn(config.rollout.n_votes_per_prompt)
        self.rollout = self._plain
        if config.vote.strategy == SEQUENTIAL:
            test = SequentialTest(**config.vote.options)
            self.rollout = in_rounds(rollout_fn, config.rollout.n_votes_per_prompt, test)

    def compute_votes(self, groups: Sequence[Group]) -> list[VoteResult]:
        """Compute one vote per group. Does not update `history`; the caller does when it logs the step."""
        ballots = [ballot_of(group, self.history.base_answers.get(group.task.id)) for group in groups]
        return batch_vote(self.config.vote.strategy, ballots, self.config.vote.options)

    def ask_base(self, run: Run, steps: Iterable[Sequence[Task]], done: int) -> None:
        """Sample each task's answers from the policy before training, once, where the strategy needs them.

        A run resumed after `done` steps has them in its state.

        Raises:
            RunFolderError: it does not; the policy is another one by now.
        """
        if "base_answers" not in self._requires:
            return
        given = self.history.base_answers
        tasks = list({task.id: task for step in steps for task in step if task.id not in given}.values())
        if not tasks:
            return
        if done:
            raise RunFolderError(
                f"{run.folder.path} was begun by an earlier version and lacks the answers before training, which vote.strategy="
                f"{self.config.vote.strategy} needs. Start again in another --output."
            )
        size, bank = self.config.rl.prompts_per_step, run.components.bank.view()
        run.progress.start(BASE, len(tasks), "prompt")
        leaving = f"Interrupted during the {BASE}, which will start over. {RESUME}"
        for start in range(0, len(tasks), size):
            seed = derive_seed(self.config.seed, "base-votes", start)
            with run.stop.interruptible(leaving):
                groups = self._plain(tasks[start : start + size], bank, seed)
            given |= {group.task.id: list(group.answers) for group in groups}
            run.progress.advance(BASE, len(given), {})
        run.progress.finish(BASE)

    def state_dict(self) -> dict[str, Any]:
        """JSON-able state for a checkpoint."""
        return {"votes": self.history.state_dict()}


def in_rounds(rollout_fn: Callable[[int], RolloutFn], most: int, test: SequentialTest) -> RolloutFn:
    """Roll out each task, at most `most` times, until `test` says that its majority is decided.

    Each round has a seed of its own; a task's environment has the same in all of them.
    """

    def roll_out(
        tasks: Sequence[Task], bank: BankView | None, seed: int, on_rollout_end: OnRolloutEnd = ignore
    ) -> list[Group]:
        groups = [Group(task, ()) for task in tasks]
        places, drawn = list(range(len(tasks))), 0
        for look in test.looks(most):
            undecided_tasks = [_seeded(tasks[place], seed) for place in places]
            found = rollout_fn(look - drawn)(undecided_tasks, bank, derive_seed(seed, "round", drawn), on_rollout_end)
            for place, group in zip(places, found, strict=True):
                groups[place] = replace(groups[place], trajectories=groups[place].trajectories + group.trajectories)
            drawn = look
            votes = batch_majority_vote(groups[place].answers for place in places)
            counts = [[count for _, count in vote.classes] for vote in votes]
            undecided = (not test.decided(row, most - drawn) for row in counts)
            places = [place for place, needed in zip(places, undecided, strict=True) if needed]
            if not places:
                break
        return groups

    return roll_out


def _seeded(task: Task, seed: int) -> Task:
    """The task with a seed for its environment, which is its own where it has one."""
    return task if task.seed is not None else replace(task, seed=derive_seed(seed, "env", task.id))


# Greedy rollouts: the baseline of algorithms that require one (ReMax). They are rewarded and never trained on.


@dataclass(frozen=True)
class GreedyBaseline:
    """Rolls out each task once at temperature 0, where that is required."""

    worker: RolloutWorker
    required: bool

    def rollout(self, tasks: Sequence[Task], bank: BankView | None, seed: int) -> list[Group]:
        """One group of one a task; none where they are not required."""
        if not self.required:
            return []
        greedily = Sampling.of(self.worker.config.rollout, 0.0)
        return self.worker.with_bank(bank).generate_rollouts(tasks, 1, greedily, seed)

    def rewards(
        self,
        greedy: Sequence[Group],
        groups: Sequence[Group],
        votes: Sequence[VoteResult],
        rewards: RewardSet,
        seed: int,
    ) -> dict[str, float] | None:
        """Reward each greedy rollout, by task id, as the samples are rewarded; a failed one has no reward. None: not required.

        Where votes are rewarded the greedy answer does not take part: it is rewarded as the samples that gave the same answer,
        else with 0.
        """
        if not self.required:
            return None
        found = {}
        for once, group, vote in zip(greedy, groups, votes, strict=True):
            (only,) = once.trajectories
            if only.error is None:
                (rewarded,) = rewards(once, late_vote(vote, group.answers, only.answer), seed).trajectories
                found[group.task.id] = rewarded.reward or 0.0
        return found

    def metrics(self, greedy: Sequence[Group], rewards: Mapping[str, float] | None) -> dict[str, float]:
        """`greedy_reward`: mean reward of the greedy rollouts; `greedy_tokens`: tokens sampled for them in this step.

        `failed_greedy_rollouts`: their share; such a task is not trained on in this step. Empty where they are not required.
        """
        if rewards is None:
            return {}
        return {
            "greedy_reward": mean(list(rewards.values())),
            "greedy_tokens": float(sum(done.num_sampled_tokens for done in completions_of(greedy))),
            "failed_greedy_rollouts": 1.0 - len(rewards) / max(1, len(greedy)),
        }

"""Measuring against true answers. The meter alone holds them: nothing that acts or learns has a handle to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from skill_ttrl.answers import correct, grade_answer
from skill_ttrl.config import SkillTTRLConfig
from skill_ttrl.rollout.env_pool import EnvPool
from skill_ttrl.rollout.samples import TaskSamples
from skill_ttrl.skills.retrieval import BankView
from skill_ttrl.stages.evaluation.measure import control_results, measure, play_controls
from skill_ttrl.stages.evaluation.results import Evaluation
from skill_ttrl.stages.inputs.leak import Seen, demonstration_leaks
from skill_ttrl.stages.inputs.tasks import set_names
from skill_ttrl.stages.training.components import OnRolloutEnd, RolloutWorker
from skill_ttrl.types import Group, Task, VoteResult
from skill_ttrl.voting import apply_original_gt, apply_ttrl_gt, label_metrics, trained_metrics

Chosen = Sequence[tuple[Group, VoteResult]]
"""The samples of each prompt that are trained on, and their vote."""


@dataclass(frozen=True)
class Meter:
    """Holds the true answers and the tasks to be measured on. Nothing of it is fed back."""

    references: Mapping[str, str]
    """True answers of the training tasks, by id."""
    eval_tasks: Sequence[Task]
    """With their true answers, where there are any."""
    envs: EnvPool
    """Where true answers are known, environments of its own: one keeps what it was reset with."""
    transductive: bool
    """True if evaluation runs on the training tasks themselves."""
    evaluations: dict[str, Evaluation] = field(default_factory=dict)
    """By label, oldest first."""

    def label_metrics(
        self, groups: Sequence[Group], votes: Sequence[VoteResult], config: SkillTTRLConfig
    ) -> dict[str, float]:
        """How right the votes were; empty where a task has no true answer."""
        truths = self._truths(groups)
        if truths is None:
            return {}
        return label_metrics(votes, truths, [group.answers for group in groups], config.rollout.n_votes_per_prompt)

    def trained_metrics(self, chosen: Chosen, config: SkillTTRLConfig) -> dict[str, float]:
        """`label_metrics` of the samples that were trained on (TTRL: `post_`)."""
        truths = self._truths([group for group, _ in chosen])
        if truths is None:
            return {}
        answers = [group.answers for group, _ in chosen]
        return trained_metrics([vote for _, vote in chosen], truths, answers, config.rollout.n_samples_per_prompt)

    def labelled(self, groups: Sequence[Group], votes: Sequence[VoteResult]) -> list[Group]:
        """The groups with the true answer and the voted one as labels, the voted one in force (TTRL: `apply_ttrl_gt`)."""
        known = [
            replace(g, task=replace(g.task, ground_truth=self.references.get(g.task.id), labels=None)) for g in groups
        ]
        return apply_ttrl_gt(known, votes)

    def original_scores(self, labelled: Sequence[Group]) -> list[list[float | None]]:
        """Score each rollout of these groups against the true answer (TTRL: `apply_original_gt`, then the reward again).

        None where the true answer is not known.
        """
        originals = apply_original_gt(labelled)
        right = iter(correct([(answer, group.task.ground_truth) for group in originals for answer in group.answers]))
        rows = [[float(next(right)) for _ in group.trajectories] for group in originals]
        return [
            [None if group.task.ground_truth is None else score for score in row]
            for group, row in zip(originals, rows, strict=True)
        ]

    def correctness(self, groups: Sequence[Group], votes: Sequence[VoteResult]) -> list[bool | None]:
        """For each vote whether its winner is the true answer; None where that is not known."""
        truths = [self.references.get(group.task.id) for group in groups]
        return [
            None if truth is None else grade_answer(vote.answer, truth)["score"] == 1.0
            for vote, truth in zip(votes, truths, strict=True)
        ]

    def evaluate(
        self,
        worker: RolloutWorker,
        label: str,
        bank: BankView | None,
        on_rollout_end: OnRolloutEnd,
        on_samples: Callable[[Sequence[TaskSamples]], None] | None = None,
    ) -> Evaluation:
        """Measure the policy as it is now on the evaluation tasks, with this bank or without; `on_samples` is given all samples."""
        config, worker = worker.config, replace(worker, envs=self.envs).with_bank(bank)
        found = measure(
            partial(worker.generate_rollouts, self.eval_tasks, on_rollout_end=on_rollout_end),
            label=label,
            config=config.eval,
            rollout=config.rollout,
            seed=config.seed,
            on_samples=on_samples,
        )
        played = play_controls(config, self.eval_tasks, self.envs, worker.agent)
        controls = control_results(played, found.results)
        found = replace(found, source=set_names(config)[1], transductive=self.transductive)
        return replace(found, controls=controls, no_controls=played.why_none)

    def demonstration_leaks(self, config: SkillTTRLConfig, seen: Seen, what: str) -> list[str]:
        """Lines on evaluation tasks among demonstrations; see `leak.demonstration_leaks`."""
        return demonstration_leaks(config, self.eval_tasks, seen, what, transductive=self.transductive)

    def close(self) -> None:
        """Close its environments."""
        self.envs.close()

    def _truths(self, groups: Sequence[Group]) -> list[str] | None:
        if not all(group.task.id in self.references for group in groups):
            return None
        return [self.references[group.task.id] for group in groups]

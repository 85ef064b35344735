"""`SkillTTRLTrainer`: a thin face over the stages, for those who hold their data in Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from skill_ttrl.answers import extract
from skill_ttrl.config import SkillTTRLConfig
from skill_ttrl.envs import resolve_env
from skill_ttrl.envs.math.tasks import tasks_from_records
from skill_ttrl.runs.progress import Progress
from skill_ttrl.runs.report import Summary
from skill_ttrl.stages.train import Resume, run
from skill_ttrl.voting import batch_majority_vote

Records = Sequence[Mapping[str, Any]]


class SkillTTRLTrainer:
    """Trains by votes.

    Args:
        config: what to do; its `data` section is used where no data are given to `train`.
        output: run folder of `train`.
        progress: told where a run is.
    """

    def __init__(
        self, config: SkillTTRLConfig, output: str | Path = "runs/trainer", *, progress: Progress | None = None
    ) -> None:
        self.config = config
        self.output = Path(output)
        self.progress = progress

    def train(
        self, train_data: Records | None = None, val_data: Records | None = None, *, resume: Resume | None = None
    ) -> Summary:
        """Run the config's phases.

        Args:
            train_data: problems, each with `prompt` and, where known, `answer` (measured, never rewarded) and `id`.
            val_data: held-out problems of the same form.
            resume: see `stages.train.run`.
        """
        env_id = resolve_env(self.config.env.id)
        return run(
            self.config,
            self.output,
            resume=resume,
            progress=self.progress,
            train_tasks=None if train_data is None else tasks_from_records(train_data, env_id, split="train"),
            eval_tasks=None if val_data is None else tasks_from_records(val_data, env_id, split="validation"),
        )

    def train_offline(self, problems: Sequence[str], all_responses: Sequence[Sequence[str]]) -> dict[str, Any]:
        """One step on responses that are there already: extract, vote, reward, advantages. Needs no model.

        Args:
            problems: one text each.
            all_responses: the responses to each problem, in the same order.

        Returns:
            `rewards` and `advantages` (a list for each problem), `majority_answers`, `agreement_ratios`, and the means
            `mean_reward` and `mean_agreement`.

        Raises:
            ValueError: the two differ in length, or a problem has no response.
        """
        if len(problems) != len(all_responses) or not all(all_responses):
            raise ValueError(
                f"Each of the {len(problems)} problems needs at least one response, found {len(all_responses)} lists "
                f"of lengths {[len(responses) for responses in all_responses]}."
            )
        from skill_ttrl.rl.advantages import ADVANTAGES

        votes = batch_majority_vote([extract(text) for text in responses] for responses in all_responses)
        rewards = [[float(match) for match in vote.matches] for vote in votes]
        owners = [place for place, group in enumerate(rewards) for _ in group]
        estimate = ADVANTAGES.get(self.config.rl.advantage)
        flat = estimate(
            [value for group in rewards for value in group], owners, self.config.rl.advantage_epsilon
        ).tolist()
        advantages = [
            [value for value, owner in zip(flat, owners, strict=True) if owner == place] for place in range(len(votes))
        ]
        return {
            "rewards": rewards,
            "advantages": advantages,
            "majority_answers": [vote.answer for vote in votes],
            "agreement_ratios": [vote.agreement for vote in votes],
            "mean_reward": fmean(value for group in rewards for value in group) if rewards else 0.0,
            "mean_agreement": fmean(vote.agreement for vote in votes) if votes else 0.0,
        }

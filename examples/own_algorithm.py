"""An algorithm of one's own: only the first tokens of each response are rewarded, and GRPO's loss is followed.

Run it: python examples/own_algorithm.py. A config names it: rl.algorithm: {type: own_algorithm:FirstTokens, first: 2}.
"""

from __future__ import annotations

from skill_ttrl.rl.algorithms import GRPO, GRPOOptions, TrainingSamples, build_algorithm, make_batch
from skill_ttrl.rl.batch import Advantages
from skill_ttrl.types import Completion, Group, Step, Task, Trajectory, VoteResult


class Options(GRPOOptions):
    first: int = 8


class FirstTokens(GRPO):
    options_type = Options

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self.first = options.first

    def advantages(self, samples: TrainingSamples) -> Advantages:
        """An advantage for each token; one for each step or one for each trajectory would do too."""

        def row(step: Step, reward: float) -> list[float]:
            return [
                reward * (at < self.first) for at in range(len(step.completion.token_ids if step.completion else ()))
            ]

        pairs = zip(samples.trajectories, samples.rewards, strict=True)
        return [[row(step, reward) for step in trajectory.steps] for trajectory, reward in pairs]


if __name__ == "__main__":
    step = Step("", "", 0.0, True, False, (1, 2), Completion("", (3, 4, 5), (-1.0,) * 3, "stop"))
    group = Group(Task("t", "e"), (Trajectory(Task("t", "e"), (step,), None, "terminated", reward=1.0),))
    algorithm = build_algorithm({"type": "own_algorithm:FirstTokens", "first": 2, "clip_ratio": 0.1})
    print(make_batch([(group, VoteResult(None, 0.0, (False,)))], algorithm, votes_rewarded=False).advantages_F.tolist())

"""An algorithm of one's own: only the first tokens of each response are rewarded.

Run it: python examples/own_algorithm.py. A config names it: rl.algorithm: {type: own_algorithm:FirstTokens, first: 2}.
"""

from __future__ import annotations

from skill_ttrl.config import Section
from skill_ttrl.rl.algorithms import TrainingSamples, build_algorithm
from skill_ttrl.rl.pack import Advantages, pack, with_advantages
from skill_ttrl.types import Completion, Group, Step, Task, Trajectory


class Options(Section):
    first: int = 8


class FirstTokens:
    options_type = Options

    def __init__(self, options: Options) -> None:
        self.first = options.first

    def advantages(self, samples: TrainingSamples) -> Advantages:
        """An advantage for each token; one for each step or one for each trajectory would do too."""

        def row(step: Step, reward: float) -> list[float]:
            tokens = step.completion.token_ids if step.completion else ()
            return [reward * (at < self.first) for at in range(len(tokens))]

        return [[row(step, each.reward or 0.0) for step in each.steps] for each in samples.trajectories]


if __name__ == "__main__":
    step = Step("", "", 0.0, True, False, (1, 2), Completion("", (3, 4, 5), (-1.0,) * 3, "stop"))
    group = Group(Task("t", "e"), (Trajectory(Task("t", "e"), (step,), None, "terminated", reward=1.0),))
    algorithm = build_algorithm({"type": "own_algorithm:FirstTokens", "first": 2})
    batch = with_advantages(pack([group]), [group], algorithm.advantages(TrainingSamples([group])))
    print(batch.advantages_F.tolist())

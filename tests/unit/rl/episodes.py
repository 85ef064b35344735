"""Episodes by hand for the tests of GiGPO and GraphGPO."""

from __future__ import annotations

import random
from collections.abc import Sequence

from skill_ttrl.types import Completion, Group, Step, Task, Trajectory


def episode(
    path: Sequence[str],
    reward: float,
    *,
    rewards: Sequence[float] = (),
    invalid: Sequence[int] = (),
    seen: Sequence[str] = (),
) -> Trajectory:
    """An episode along a path of states (T + 1); `seen` are the observations before its steps where they are not the states."""
    count = len(path) - 1
    shown, earned = seen or path, rewards or [0.0] * (count - 1) + [reward]
    done = Completion("go", (7,), (-0.5,), "stop")
    steps = tuple(
        Step(
            shown[at],
            "go",
            earned[at],
            False,
            False,
            (1, 2),
            done,
            {"state": path[at + 1]},
            action_status="invalid" if at in invalid else "valid",
        )
        for at in range(count)
    )
    return Trajectory(Task("t", "env"), steps, None, "terminated", reward, start_state=path[0])


def random_groups(seed: int, groups: int = 3, size: int = 5, states: int = 6, longest: int = 7) -> list[Group]:
    """Random walks over few states, so that many steps start from the same one; some of them succeed."""
    draw = random.Random(seed)
    found = []
    for _ in range(groups):
        walks = []
        for _ in range(size):
            path = ["start", *(f"s{draw.randrange(states)}" for _ in range(draw.randint(1, longest)))]
            invalid = [at for at in range(len(path) - 1) if draw.random() < 0.2]
            walks.append(episode(path, draw.choice([0.0, 0.0, 1.0]), invalid=invalid))
        found.append(Group(walks[0].task, tuple(walks)))
    return found

"""When failures are looked into, and which: success by type of task, and a sample that no interruption changes."""

from __future__ import annotations

import json
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from skill_ttrl.config import EvolveConfig
from skill_ttrl.skills.evolution import FailureSelection, SuccessTracker
from skill_ttrl.types import Completion, Group, Step, Task, Trajectory


def episode(
    task: str, *, won: bool = False, kind: str = "clean", split: str = "train", error: str | None = None
) -> Trajectory:
    done = Completion("<action>go</action>", (1, 2), (-0.5, -0.5), "stop")
    step = Step("a room", "go", float(won), won, False, (7,) * 99, done, {"won": won}, ("go", "take"), "valid")
    return Trajectory(
        Task(task, "env", split=split, task_type=kind), (step,), None, "max_turns", error=error, final_obs="a hall"
    )


def group(*tries: Trajectory) -> Group:
    return Group(tries[0].task, tries)


def played(kind: str, won: int, lost: int) -> list[Group]:
    wins = [group(episode(f"{kind}-w{number}", won=True, kind=kind)) for number in range(won)]
    return wins + [group(episode(f"{kind}-l{number}", kind=kind)) for number in range(lost)]


def tracker(state: object = None, **settings: object) -> SuccessTracker:
    few = {"min_episodes": 4, "max_failures_below_threshold": 3, "max_failures_above_threshold": 1}
    config = EvolveConfig.model_validate({**few, **settings})
    return SuccessTracker(config, splits=["train"], seed=5, state=state)  # type: ignore[arg-type]


def kinds(selection: FailureSelection) -> list[str]:
    return [case.task_type for case in selection.failures]


def test_a_type_below_the_threshold_is_looked_into_deeply_and_the_others_less() -> None:
    watch = tracker(threshold=0.4)
    watch.add([*played("clean", 3, 5), *played("heat", 0, 6), *played("look", 3, 3), *played("cool", 4, 0)], 0)
    judged = watch.judge()
    assert judged.success == {"heat": 0.0, "clean": 0.375, "look": 0.5, "cool": 1.0}
    assert list(judged.success) == ["heat", "clean", "look", "cool"], "the worst comes first"
    assert judged.below == ("heat", "clean")
    assert kinds(judged) == ["heat", "clean", "look", "heat", "clean", "heat", "clean"], "by turns, the worst first"


def test_a_type_with_too_few_episodes_goes_on_being_counted_until_it_has_enough() -> None:
    watch = tracker()
    watch.add([*played("rare", 0, 2), *played("clean", 0, 4)], 0)
    assert watch.judge().below == ("clean",)
    watch.add(played("rare", 1, 1), 1)
    judged = watch.judge()
    assert judged.success == {"rare": 0.25} and len(judged.failures) == 3
    assert watch.judge() == FailureSelection(), "what was judged begins anew"


@given(st.lists(st.booleans(), min_size=1, max_size=12))
def test_stopped_anywhere_and_gone_on_with_the_sample_is_the_same(stops: Sequence[bool]) -> None:
    whole, broken = tracker(), tracker()
    for step, stop in enumerate(stops):
        for watch in (whole, broken):
            watch.add([*played("clean", 1, 3), *played("heat", 0, step)], step)
        if stop:
            broken = tracker(json.loads(json.dumps(broken.state_dict())))
    assert broken.state_dict() == whole.state_dict()
    assert broken.judge() == whole.judge()

"""When failures are looked into, and which: success by type of task, and a sample that no interruption changes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skill_ttrl.config import EvolveConfig, SkillsConfig, load_config
from skill_ttrl.errors import CheckpointError, ConfigError
from skill_ttrl.skills.bank.bank import SkillBank
from skill_ttrl.stages.training.evolve import FailureSelection, SuccessTracker, make_evolver
from skill_ttrl.stages.training.run_bank import RunBank
from skill_ttrl.types import Completion, Group, Step, Task, Trajectory


def episode(
    task: str, *, won: bool = False, kind: str = "clean", split: str = "train", error: str | None = None
) -> Trajectory:
    done = Completion("<action>go</action>", (1, 2), (-0.5, -0.5), "stop")
    step = Step("a room", "go", float(won), won, False, (7,) * 99, done, {"won": won}, ("go", "take"), "valid")
    return Trajectory(
        Task(task, "env", split=split, task_type=kind),
        (step,),
        None,
        "max_turns",
        error=error,
        last_observation="a hall",
    )


def group(*tries: Trajectory) -> Group:
    return Group(tries[0].task, tries)


def played(kind: str, won: int, lost: int) -> list[Group]:
    wins = [group(episode(f"{kind}-w{number}", won=True, kind=kind)) for number in range(won)]
    return wins + [group(episode(f"{kind}-l{number}", kind=kind)) for number in range(lost)]


def lookout(state: object = None, **settings: object) -> SuccessTracker:
    config = EvolveConfig(**{"min_episodes": 4, "deep": 3, "shallow": 1, **settings})  # type: ignore[arg-type]
    return SuccessTracker(config, splits=["train"], seed=5, state=state)  # type: ignore[arg-type]


def kinds(judgement: FailureSelection) -> list[str]:
    return [case.task_type for case in judgement.failures]


def test_a_type_below_the_threshold_is_looked_into_deeply_and_the_others_less() -> None:
    watch = lookout(threshold=0.4)
    watch.see([*played("clean", 3, 5), *played("heat", 0, 6), *played("look", 3, 3), *played("cool", 4, 0)], 0)
    judged = watch.judge()
    assert judged.success == {"heat": 0.0, "clean": 0.375, "look": 0.5, "cool": 1.0}
    assert list(judged.success) == ["heat", "clean", "look", "cool"], "the worst comes first"
    assert judged.below == ("heat", "clean")
    assert kinds(judged) == ["heat", "clean", "look", "heat", "clean", "heat", "clean"], "by turns, the worst first"


def test_where_no_type_is_below_the_threshold_nothing_is_looked_into() -> None:
    watch = lookout(threshold=0.4)
    watch.see(played("clean", 2, 3), 0)
    judged = watch.judge()
    assert judged.below == () and judged.failures == () and judged.success == {"clean": 0.4}


def test_a_type_with_too_few_episodes_goes_on_being_counted_until_it_has_enough() -> None:
    watch = lookout()
    watch.see([*played("rare", 0, 2), *played("clean", 0, 4)], 0)
    assert watch.judge().below == ("clean",)
    watch.see(played("rare", 1, 1), 1)
    judged = watch.judge()
    assert judged.success == {"rare": 0.25} and len(judged.failures) == 3
    assert watch.judge() == FailureSelection(), "what was judged begins anew"


def test_episodes_that_failed_in_their_environment_say_nothing() -> None:
    watch = lookout()
    watch.see([group(episode("a", error="broken")), group(episode("b"))], 0)
    assert watch.counts == {"clean": [1, 0]}


def test_types_go_by_the_name_that_the_bank_has_for_them() -> None:
    watch = SuccessTracker(EvolveConfig(min_episodes=1), splits=["train"], type_names={"pick_clean": "clean"})
    watch.see([group(episode("a", kind="pick_clean"))], 0)
    assert kinds(watch.judge()) == ["clean"]


def test_a_sample_holds_no_tokens_and_stays_small() -> None:
    watch = lookout()
    for step in range(50):
        watch.see(played("clean", 0, 20), step)
    (kept,) = watch.kept.values()
    assert len(kept) == 3
    (only,) = kept[0][1].steps
    assert only.completion is None and only.prompt_ids == () and only.admissible == ()
    assert len(json.dumps(watch.state_dict())) < 3000


@given(st.lists(st.booleans(), min_size=1, max_size=12))
def test_stopped_anywhere_and_gone_on_with_the_sample_is_the_same(stops: Sequence[bool]) -> None:
    whole, broken = lookout(), lookout()
    for step, stop in enumerate(stops):
        for watch in (whole, broken):
            watch.see([*played("clean", 1, 3), *played("heat", 0, step)], step)
        if stop:
            broken = lookout(json.loads(json.dumps(broken.state_dict())))
    assert broken.state_dict() == whole.state_dict()
    assert broken.judge() == whole.judge()


def test_the_sample_is_drawn_anew_with_another_seed() -> None:
    found = set()
    for seed in range(5):
        watch = SuccessTracker(EvolveConfig(min_episodes=1, deep=3), splits=["train"], seed=seed)
        watch.see(played("clean", 0, 40), 0)
        found.add(tuple(case.task_id for case in watch.judge().failures))
    assert len(found) == 5


def bench(tasks: Sequence[Task]) -> Any:
    bank = RunBank(SkillsConfig(), SkillBank(index="memory"))
    config = load_config({"skills": {}, "evolve": {}})
    return SimpleNamespace(config=config, bank=bank, transductive=False, train_tasks=tasks)


@pytest.mark.parametrize("damaged", [[], {"counts": 3}, {"failures": {"clean": [[1, {"won": "?"}]]}}, {"retired": 3}])
def test_a_damaged_checkpoint_is_said(damaged: object) -> None:
    with pytest.raises(CheckpointError, match="damaged"):
        make_evolver(bench([Task("train/1", "env")]), {"evolve": damaged})


def test_a_run_learns_from_the_very_tasks_that_it_trains_on() -> None:
    evolver = make_evolver(bench([Task("a/1", "env", split="mine")]), {})
    assert evolver is not None
    evolver.lookout.see([group(episode("a/1", split="mine"))], 0)
    for foreign in (episode("a/2", split="mine"), episode("a/1", split="train")):
        with pytest.raises(ConfigError):
            evolver.lookout.see([group(foreign)], 1)


@pytest.mark.parametrize("shallow", [0, 1])
def test_a_perfect_type_or_none_asked_for_gives_no_failures(shallow: int) -> None:
    watch = lookout(shallow=shallow)
    watch.see([*played("clean", 0, 4), *played("look", 4, 0), *played("cool", 3, 1)], 0)
    assert kinds(watch.judge()) == ["clean", "cool", "clean", "clean"] if shallow else ["clean"] * 3

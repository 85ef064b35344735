"""Skills by counting: what is found is true of the episodes, and nothing is known of the environment."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence

from skill_ttrl.config import DistillConfig
from skill_ttrl.skills.teachers import make_teacher
from skill_ttrl.skills.types import Case, Draft, TeacherResult
from skill_ttrl.types import ActionStatus, Step

THINGS, SPOTS, GOALS = (
    ("mug", "plate", "egg", "knife", "cup"),
    ("shelf", "table", "drawer"),
    ("cupboard", "box", "bin", "bed"),
)


def case(task: str, actions: Sequence[str], won: bool, kind: str = "clean", number: int = 0, **more: object) -> Case:
    """An episode in which each action is answered by its own words."""
    listed: tuple[str, ...] = more.pop("listed", ())  # type: ignore[assignment]
    verdict: ActionStatus | None = more.pop("verdict", None)  # type: ignore[assignment]
    seen = ["begin", *(f"you did {action}" for action in actions)]
    steps = [
        Step(
            seen[place],
            action,
            0.0,
            False,
            False,
            admissible_actions=(*listed, action) if listed else (),
            action_status=verdict,
        )
        for place, action in enumerate(actions)
    ]
    return Case(f"{kind}-{number}", task, kind, won, tuple(steps), seen[-1])


def kitchen(kind: str = "clean", verb: str = "wash", tool: str = "tap", won: int = 10, lost: int = 10) -> list[Case]:
    """Things that must be fetched, washed and put somewhere; losers fetch others, and go in circles."""
    found = []
    for number in range(won):
        thing, spot, goal = THINGS[number % 5], SPOTS[number % 3], GOALS[number % 4]
        actions = [f"walk to {spot} {number}", f"grab {thing} 1 off {spot} {number}", f"walk to {tool} 1"]
        actions += [f"{verb} {thing} 1 using {tool} 1", f"walk to {goal} 1", f"drop {thing} 1 into {goal} 1"]
        found.append(case(f"bring a {kind} {thing} to the {goal}.", actions, True, kind, number))
    for number in range(lost):
        thing, goal = THINGS[number % 5], GOALS[number % 4]
        actions = ["walk to shelf 1", "grab pillow 1 off shelf 1", "dance", *["walk to table 2"] * 17]
        found.append(case(f"bring a {kind} {thing} to the {goal}.", actions, False, kind, 100 + number))
    return found


def learnt(cases: Sequence[Case], **settings: int) -> TeacherResult:
    return make_teacher().distill(cases, DistillConfig.model_validate(settings))


def of(lesson: TeacherResult, tier: str) -> list[Draft]:
    return [draft for draft in lesson.drafts if draft.tier == tier]


def test_the_order_of_the_steps_is_told_with_what_is_done_in_between() -> None:
    (order,) = [draft for draft in learnt(kitchen()).drafts if "order" in draft.title]
    assert order.text == (
        "Do these in this order: `grab X off ...`, then `walk to tap`, then `wash X using tap`, then `walk to Y`, then "
        "`drop X into Y`. X and Y: as the task names them, in its order."
    )
    assert order.when_to_apply == "The task reads like: bring a clean X to the Y"
    assert (order.tier, order.task_type) == ("task", "clean")
    assert set(order.evidence) == {f"clean-{number}" for number in range(10)}


def test_what_losers_do_again_and_again_is_a_mistake() -> None:
    mistakes = {draft.title: draft.text for draft in of(learnt(kitchen()), "mistake")}
    assert "In failed tries 8 of 10 steps repeated" in mistakes["repeat an action that has shown nothing new"]


def test_ending_early_is_found_in_a_shop() -> None:
    colours, sizes = ("red", "blue", "green", "black"), ("small", "large")
    cases = []
    for number in range(24):
        colour, size, code = colours[number % 4], sizes[number % 2], f"b0{number:04d}x"
        task = f"find a shirt in {colour} and of the size {size}"
        listed = ["pick[red]", "pick[blue]", "pick[green]", "pick[black]", "pick[small]", "pick[large]", "pick[pay]"]
        won = number % 2 == 0
        named = [f"pick[{colour}]", f"pick[{size}]"] if won else []
        asked = [f"ask[{task}]", f"pick[{code}]", *named, "pick[pay]"]
        cases.append(case(task, asked, won, "shirts", number, listed=tuple(listed)))
    lesson = learnt(cases)
    told = {draft.title: draft.text for draft in lesson.drafts}
    assert told["Steps in the order that won"].startswith(
        "Do these in this order: `ask[words of the task]`, then `pick[words of the task]`, then `pick[pay]`."
    )
    assert "12 of 12 failed ones ended without" in told["end with `pick[pay]` too early"]
    assert not any("b0" in text for text in told.values())


def test_nothing_is_known_of_the_environment_other_words_lead_to_the_same_skills() -> None:
    def renamed(word: re.Match[str]) -> str:
        return word[0] if word[0] in ("a", "to", "the") else f"q{word[0][::-1]}q"

    def other(text: str) -> str:
        return re.sub(r"[a-z]+", renamed, text)

    cases = kitchen()
    foreign = [
        case(other(each.task), [other(step.action) for step in each.steps], each.won, number=place)
        for place, each in enumerate(cases)
    ]

    def forms(lesson: TeacherResult, reads: Callable[[str], str]) -> set[str]:
        quoted = (form for draft in lesson.drafts for form in re.findall("`(.*?)`", draft.title + draft.text))
        return {re.sub(r"\b[a-z]+\b", lambda word: reads(word[0]), form) for form in quoted}

    assert len(found := forms(learnt(foreign), str)) >= 5 and forms(learnt(cases), other) == found


def test_what_holds_for_most_types_is_said_once() -> None:
    cases = [*kitchen(), *kitchen("hot", "warm", "stove"), *kitchen("cold", "chill", "icebox")]
    lesson = learnt(cases)
    general = {draft.title: draft.text for draft in of(lesson, "general")}
    assert "30 of 30 won tries did `grab X off ...`" in general["Most wins have `grab X off ...`"]
    assert {draft.task_type for draft in of(lesson, "task")} == {"clean", "hot", "cold"}
    repeated = [draft for draft in of(lesson, "mistake") if "repeat" in draft.title]
    assert [(draft.task_type, len(draft.evidence)) for draft in repeated] == [("", 30)]
    chains = {draft.task_type: draft.text for draft in of(lesson, "task")}
    assert "`warm X using stove`" in chains["hot"] and "`wash X using tap`" in chains["clean"]


def test_the_order_of_the_episodes_changes_nothing() -> None:
    cases = [*kitchen(), *kitchen("hot", "warm", "stove")]
    wanted = learnt(cases)
    for seed in range(3):
        shuffled = random.Random(seed).sample(cases, len(cases))
        assert learnt(shuffled) == wanted


def test_the_numbers_of_skills_are_bounded_the_strongest_stay() -> None:
    cases = [*kitchen(), *kitchen("hot", "warm", "stove")]
    every = learnt(cases)
    few = learnt(cases, max_general=1, max_specific=1, max_mistakes=1)
    assert len(of(few, "general")) == 1 and len(of(few, "mistake")) == 1 and len(of(few, "task")) == 2
    assert set(few.drafts) < set(every.drafts) and of(few, "mistake") == of(every, "mistake")[:1]
    assert learnt(cases, max_general=0, max_specific=0, max_mistakes=0).drafts == ()

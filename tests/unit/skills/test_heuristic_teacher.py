"""Skills by counting and by analogy: what is found is true of the episodes, and nothing is known of the environment."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from skill_ttrl.config import DistillConfig, EvolveConfig
from skill_ttrl.skills.changes import Snapshot
from skill_ttrl.skills.evolution import Evolver, SuccessTracker
from skill_ttrl.skills.heuristic_teacher import evolved_by_counting
from skill_ttrl.skills.teachers import make_teacher
from skill_ttrl.skills.types import Case, Draft, TeacherResult
from skill_ttrl.types import ActionStatus, Group, Skill, Step, Task, Trajectory

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


CONFIG = EvolveConfig(max_new_skills=9)
Turn = tuple[str, str]
"""What was seen, what was done."""


def failed_case(
    *turns: Turn, end: str = "the end", task: str = "put a clean mug in the cabinet", kind: str = "clean", name: str = "t",
    verdict: ActionStatus = "valid", ended: bool = False,
) -> Case:  # fmt: skip
    steps = [Step(seen, done, 0.0, False, False, action_status=verdict) for seen, done in turns]
    steps[-1] = replace(steps[-1], terminated=ended)
    return Case(name, task, kind, False, tuple(steps), end)


def walk(*places: str) -> list[Turn]:
    return [
        (f"You are at {before}.", f"go to {after}") for before, after in zip(("start", *places), places, strict=False)
    ]


def drafted(cases: Sequence[Case], *skills: Skill, config: EvolveConfig = CONFIG) -> list[str]:
    found = make_teacher("heuristic").evolve(cases, skills, config)
    assert found == make_teacher("heuristic").evolve(cases, skills, config) and not found.requests
    return [draft.title for draft in found.drafts]


STUCK = failed_case(*[("A page.", "click[next]")] * 4, end="A page.", task="")
CIRCLES = failed_case(*walk(*"ABCABCABCABC"), end="You are at C.", task="")
REFUSED = failed_case(
    *[("Nothing happens.", f"take {thing}") for thing in ("cup", "pan", "pot")], end="Nothing happens.", task=""
)
MALFORMED = failed_case(*[(f"room {place}", f"I think {place}") for place in "abc"], verdict="invalid", task="")
PASSING = failed_case(
    ("a hall", "go to shelf 1"), ("On the shelf 1 is a mug 2.", "go to desk 1"), end="On the desk 1 is a pen 1."
)
FINE = failed_case(*walk(*"ABCDEF"), end="You are at F.")


@pytest.mark.parametrize(
    ("faulty", "title"),
    [
        (STUCK, "Repeat an action that changed nothing"),
        (CIRCLES, "Go back to what was already looked at"),
        (REFUSED, "Try one action after another where all get the same answer"),
        (MALFORMED, "Write an action that cannot be read or is not possible"),
        (PASSING, "Pass by what the task names"),
    ],
)
def test_a_fault_that_most_failures_share_is_drafted_as_a_mistake(faulty: Case, title: str) -> None:
    cases = [replace(faulty, task_id="t1"), replace(faulty, task_id="t2"), replace(FINE, task_id="t3")]
    assert drafted(cases) == [title]
    (draft,) = evolved_by_counting(cases, [], CONFIG).drafts
    assert (draft.tier, draft.task_type, draft.evidence) == ("mistake", "", ("t1", "t2"))
    assert draft.text and draft.when_to_apply and not any(sign.isdigit() for sign in draft.text)


def test_a_skill_that_names_what_failures_never_came_to_gets_a_better_text() -> None:
    """The kind of action is known because failures of another type did it, or because the skill quotes it."""
    skill = Skill("c1", "Clean it", "Take it, clean it with the sink, put it away.", "always", task_type="clean")
    other = [failed_case(("a sink", "clean mug 1 with sink 1"), kind="other", name="o", task="")] * 2
    (draft,) = evolved_by_counting([FINE, FINE, *other], [skill], CONFIG).drafts
    assert draft.base == "c1" and draft.text.startswith(skill.text) and "any `clean`" in draft.text
    assert (draft.title, draft.when_to_apply, draft.task_type) == (skill.title, "always", "clean")
    again = replace(skill, text=draft.text)
    assert drafted([FINE, FINE, *other], again) == [], "it is said once"
    assert drafted([FINE, FINE], skill) == [], "nobody knows that it is an action"
    quoting = replace(skill, text="Take it, then `clean {it} with {sink}`.")
    assert drafted([FINE, FINE], quoting) == ["Clean it"]
    warning = replace(skill, text="Do not clean it.")
    assert drafted([FINE, FINE, *other], warning) == []
    assert drafted([FINE, FINE, *other], replace(skill, task_type="heat")) == []


STEPS = "Do these in this order: `take X from ...`, then `go to sinkbasin`, then `clean X with sinkbasin`, then `move X to Y`. X and Y: as the task names them, in its order."
CLEAN = Skill("cle_1", "Steps in the order that won", STEPS, "The task reads like: put a clean X in Y", "task", "clean")
PLACES = ("go to brush 1", "go to sinkbasin 1")
ROOMS = [("mug", "desk"), ("pan", "shelf"), ("cup", "bed"), ("pot", "sofa")]


def failed_try(thing: str, place: str, *offers: str, kind: str = "shine") -> Case:
    """An attempt that takes what the task names and places it, at once."""
    offered = tuple(offer.replace("X", f"{thing} 1") for offer in (f"take X from {thing}box 1", *PLACES, *offers))
    steps = (
        Step("A box.", f"take {thing} 1 from {thing}box 1", 0.0, False, False, admissible_actions=offered),
        Step("You have it.", f"move {thing} 1 to {place} 2", 0.0, False, False, admissible_actions=(f"move {thing} 1 to {place} 2",)),
    )  # fmt: skip
    return Case(f"{kind}/{thing}", f"put a {kind}y {thing} in {place}.", kind, False, steps)


def guessed(cases: Sequence[Case], *skills: Skill) -> tuple[Draft, ...]:
    found = make_teacher("analogy").evolve(cases, skills, EvolveConfig())
    assert found == make_teacher("analogy").evolve([*cases], [*skills], EvolveConfig()) and not found.requests
    return found.drafts


def test_an_offered_action_takes_the_place_of_a_step_of_its_shape_and_its_words_that_of_all_steps() -> None:
    cases = [failed_try(*room, "polish X with brush 3", "examine X") for room in ROOMS]
    first, *_ = guessed(cases, CLEAN)
    assert first.text == STEPS.replace("sinkbasin", "brush").replace("clean", "polish")
    assert first.when_to_apply == "The task reads like: put a shiney X in Y"
    assert (first.tier, first.task_type, first.base) == ("task", "shine", "")
    assert first.evidence == tuple(f"shine/{thing}" for thing, _ in ROOMS)
    assert not any("examine" in draft.text for draft in guessed(cases, CLEAN)), "no skill has a step of that shape"


def test_every_step_of_a_guess_was_offered() -> None:
    cases = [failed_try(*room, "polish X with brush 3", "hang X on hook 1") for room in ROOMS]
    texts = [draft.text for draft in guessed(cases, CLEAN)]
    assert any("polish" in text for text in texts)
    assert not any("hang" in text for text in texts), "there is no `go to hook`"


def test_nothing_is_guessed_without_a_model_an_offer_or_a_need() -> None:
    cases = [failed_try(*room, "polish X with brush 3") for room in ROOMS]
    own = Skill("shi_1", "Shine", "Shine it.", "", "task", "shine")
    general = Skill("gen_1", "Steps", STEPS, "", "general")
    assert guessed(cases) == guessed(cases, general) == (), "no skill of another type"
    assert guessed(cases, CLEAN, own) == (), "the type has a skill"
    assert guessed([], CLEAN) == ()
    unlisted = [
        Case(each.task_id, each.task, each.task_type, False, tuple(Step("", step.action, 0.0, False, False) for step in each.steps))
        for each in cases
    ]  # fmt: skip
    assert guessed(unlisted, CLEAN) == (), "nothing was offered"


def test_a_run_tests_one_guess_after_another() -> None:
    """A guess that the gate rejected does not come back: the next look admits the next one."""
    cases = [failed_try(*room, "polish X with brush 3", "clean X with sinkbasin 1") for room in ROOMS]
    groups = [
        Group(task, (Trajectory(task, each.steps, answer=None, reward=0.0, stop_reason="truncated", goal=each.task),))
        for each in cases
        for task in [Task(each.task_id, "Env-v0", split="train", task_type=each.task_type)]
    ]
    config = EvolveConfig(min_episodes=1, max_new_skills=1, teacher="analogy")
    evolver = Evolver(config, make_teacher("analogy"), SuccessTracker(config, splits=["train"], with_listed=True))
    bank = Snapshot.of(0, [CLEAN])
    seen = []
    for step in range(3):
        evolver.tracker.add(groups, step)
        found, _ = evolver.evolve(evolver.tracker.judge(), bank, step=step, capacity=9)
        seen += [change.after.text for change in found.changes if change.after is not None]
        evolver.reject(found.changes)
    assert ["polish" in text for text in seen] == [True, False]

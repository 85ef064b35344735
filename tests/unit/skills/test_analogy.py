"""Skills for a type of task that nobody has won, from skills of other types and from the actions that failures were offered."""

from __future__ import annotations

from collections.abc import Sequence

from skill_ttrl.config import EvolveConfig
from skill_ttrl.skills.changes import Snapshot
from skill_ttrl.skills.evolution import Evolver, SuccessTracker
from skill_ttrl.skills.teachers import make_teacher
from skill_ttrl.skills.types import Case, Draft
from skill_ttrl.types import Group, Skill, Step, Task, Trajectory

STEPS = "Do these in this order: `take X from ...`, then `go to sinkbasin`, then `clean X with sinkbasin`, then `move X to Y`. X and Y: as the task names them, in its order."
CLEAN = Skill("cle_1", "Steps in the order that won", STEPS, "The task reads like: put a clean X in Y", "task", "clean")
PLACES = ("go to brush 1", "go to sinkbasin 1")
ROOMS = [("mug", "desk"), ("pan", "shelf"), ("cup", "bed"), ("pot", "sofa")]


def failed(thing: str, place: str, *offers: str, kind: str = "shine") -> Case:
    """An attempt that takes what the task names and places it, at once."""
    offered = tuple(offer.replace("X", f"{thing} 1") for offer in (f"take X from {thing}box 1", *PLACES, *offers))
    steps = (
        Step("A box.", f"take {thing} 1 from {thing}box 1", 0.0, False, False, admissible_actions=offered),
        Step("You have it.", f"move {thing} 1 to {place} 2", 0.0, False, False, admissible_actions=(f"move {thing} 1 to {place} 2",)),
    )  # fmt: skip
    return Case(f"{kind}/{thing}", f"put a {kind}y {thing} in {place}.", kind, False, steps)


def drafted(cases: Sequence[Case], *skills: Skill) -> tuple[Draft, ...]:
    found = make_teacher("analogy").evolve(cases, skills, EvolveConfig())
    assert found == make_teacher("analogy").evolve([*cases], [*skills], EvolveConfig()) and not found.requests
    return found.drafts


def test_an_offered_action_takes_the_place_of_a_step_of_its_shape_and_its_words_that_of_all_steps() -> None:
    cases = [failed(*room, "polish X with brush 3", "examine X") for room in ROOMS]
    first, *_ = drafted(cases, CLEAN)
    assert first.text == STEPS.replace("sinkbasin", "brush").replace("clean", "polish")
    assert first.when_to_apply == "The task reads like: put a shiney X in Y"
    assert (first.tier, first.task_type, first.base) == ("task", "shine", "")
    assert first.evidence == tuple(f"shine/{thing}" for thing, _ in ROOMS)
    assert not any("examine" in draft.text for draft in drafted(cases, CLEAN)), "no skill has a step of that shape"


def test_every_step_of_a_guess_was_offered() -> None:
    cases = [failed(*room, "polish X with brush 3", "hang X on hook 1") for room in ROOMS]
    texts = [draft.text for draft in drafted(cases, CLEAN)]
    assert any("polish" in text for text in texts)
    assert not any("hang" in text for text in texts), "there is no `go to hook`"


def test_nothing_is_guessed_without_a_model_an_offer_or_a_need() -> None:
    cases = [failed(*room, "polish X with brush 3") for room in ROOMS]
    own = Skill("shi_1", "Shine", "Shine it.", "", "task", "shine")
    general = Skill("gen_1", "Steps", STEPS, "", "general")
    assert drafted(cases) == drafted(cases, general) == (), "no skill of another type"
    assert drafted(cases, CLEAN, own) == (), "the type has a skill"
    assert drafted([], CLEAN) == ()
    unlisted = [
        Case(each.task_id, each.task, each.task_type, False, tuple(Step("", step.action, 0.0, False, False) for step in each.steps))
        for each in cases
    ]  # fmt: skip
    assert drafted(unlisted, CLEAN) == (), "nothing was offered"


def test_a_run_tests_one_guess_after_another() -> None:
    """A guess that the gate rejected does not come back: the next look admits the next one."""
    cases = [failed(*room, "polish X with brush 3", "clean X with sinkbasin 1") for room in ROOMS]
    groups = [
        Group(task, (Trajectory(task, case.steps, answer=None, reward=0.0, stop_reason="truncated", goal=case.task),))
        for case in cases
        for task in [Task(case.task_id, "Env-v0", split="train", task_type=case.task_type)]
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

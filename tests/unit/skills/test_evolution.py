"""Evolution: when failures are looked into and which, the faults that users found in SkillRL's, and a run's checkpoint of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skill_ttrl.config import DistillConfig, EvolveConfig, SkillsConfig, load_config
from skill_ttrl.errors import CheckpointError, ConfigError
from skill_ttrl.skills.admit import AdmissionRules, admit
from skill_ttrl.skills.bank import SkillBank
from skill_ttrl.skills.changes import Snapshot
from skill_ttrl.skills.evolution import Evolver, FailureSelection, SuccessTracker, evolved
from skill_ttrl.skills.retrieval import BankView, Query
from skill_ttrl.skills.types import Case, Draft, TeacherResult
from skill_ttrl.train.bank_changes import make_evolver
from skill_ttrl.train.run_bank import RunBank
from skill_ttrl.types import Completion, Group, Skill, SkillStats, Step, Task, Trajectory


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


ROUNDS = 40


def failure(task: Task) -> Group:
    step = Step("a room", "wait", 0.0, False, True, info={"won": False})
    return Group(task, (Trajectory(task, (step,), None, "max_turns"),))


class Prolific:
    """A teacher that always has more to say than it may."""

    said = 0

    def distill(self, cases: Sequence[Case], config: DistillConfig) -> TeacherResult:
        raise AssertionError("nobody asks it to distill")

    def evolve(self, failures: Sequence[Case], skills: Sequence[Skill], config: EvolveConfig) -> TeacherResult:
        self.said += 5
        texts = [f"Put the clean mug away carefully, way {number}." for number in range(self.said, self.said + 5)]
        return TeacherResult(tuple(Draft(text, text, tier="general", evidence=("t",)) for text in texts))


def judged() -> FailureSelection:
    return FailureSelection({"clean": 0.0}, ("clean",), (Case("t", "put a clean mug away", "clean", False, ()),))


def statics() -> list[Skill]:
    return [
        Skill(f"gen_{number:03d}", "Mug", f"Clean the mug and put it away {number}.", tier="general", source="import")
        for number in range(12)
    ]


@pytest.mark.parametrize(
    "task",
    [
        Task("test/3", "env", split="test", task_type="clean"),
        Task("train/3", "env", split="valid_seen"),
        Task("another", "env", split="train"),
    ],
    ids=["of the evaluation's split", "an id of training in another split", "not one of the training tasks"],
)
def test_evaluation_failures_never_feed_the_bank(task: Task) -> None:
    """SkillRL: failures of its validation are what its training bank evolves from."""
    watch = SuccessTracker(EvolveConfig(min_episodes=1), splits=["train"], tasks=["train/3"])
    watch.add([failure(Task("train/3", "env"))], 0)
    before = watch.state_dict()
    with pytest.raises(ConfigError, match="training tasks only"):
        watch.add([failure(Task("train/3", "env")), failure(task)], 1)
    assert watch.state_dict() == before, "a refused step leaves no trace"


@pytest.mark.parametrize("mode", ["keyword", "embedding", "hybrid", "template"])
def test_evolved_skills_do_not_push_out_all_others(mode: str) -> None:
    """SkillRL: evolved skills stand first, so that two rounds of three leave none of the others a place, and nothing ends it.

    Here a teacher brings new general skills in each of 40 rounds, none of which helps: the others keep places in the prompt, and
    all of them their place in the bank.
    """
    evolver = Evolver(EvolveConfig(max_new_skills=3), Prolific(), SuccessTracker(EvolveConfig(), splits=["train"]))
    query = Query("Clean the mug and put it away.", "clean")
    with SkillBank(max_skills=42, index="memory", retrieval_mode=mode) as bank:
        bank.import_skills(statics())
        for step in range(ROUNDS):
            found, _ = evolver.evolve(judged(), bank.snapshot(), step=step, capacity=bank.settings.max_skills)
            bank.apply(found.changes, reason="evolve", round=step)
            shown = prompt_of(bank, query)
            bank.record_usages([(skill.id, skill.source == "import" and step % 2 == 0) for skill in shown], step)
        sources = [skill.source for skill in prompt_of(bank, query)]
        assert sources.count("import") >= 3, sources
        assert sum(skill.source == "import" for skill in bank) == 12
        assert sum(skill.source == "evolve" for skill in bank) == 30, "their number is bounded"


def prompt_of(bank: SkillBank, query: Query) -> tuple[Skill, ...]:
    return BankView(bank.snapshot(), bank.retriever).select_for_prompts([query], 6)[0]


def test_ids_do_not_stick_and_are_never_given_twice() -> None:
    """SkillRL: numbers are read from another bank than they are given in, so the same `dyn_` ids come again and again."""
    with SkillBank(index="memory") as bank, SkillBank(index="memory") as other:
        for round_ in range(6):
            drafts = [Draft("T", f"Advice {round_}-{number}.", evidence=("t",)) for number in range(3)]
            rules = AdmissionRules("evolve", max_drafts=3)
            bank.apply(evolved(drafts, bank.snapshot(), replace(rules, room=9), step=round_).changes)
            other.apply(evolved(drafts, other.snapshot(), rules).changes)
        given = [change.after.id for update in bank.history() for change in update.changes if change.after is not None]
        assert len(given) == len(set(given)) == 18, "also not those of skills that went"
        assert set(bank.snapshot().skills) <= set(other.snapshot().skills), (
            "the same text has the same id in every bank"
        )
        taken = next(iter(bank))
        moved = Snapshot.of(1, [Skill(taken.id, "T", "Edited since.", stats=SkillStats(3, 1))])
        (change,) = admit([Draft("T", taken.text)], moved, AdmissionRules("evolve")).changes
        assert change.after is not None and change.after.id == f"{taken.id}-2"


def lost(name: str, split: str) -> Group:
    task = Task(name, "env", split=split)
    step = Step("a room", "go", 0.0, False, False, info={"won": False})
    return Group(task, (Trajectory(task, (step,), None, "max_turns"),))


def bench(tasks: Sequence[Task]) -> Any:
    bank = RunBank(SkillsConfig(), SkillBank(index="memory"))
    config = load_config({"skills": {}, "evolve": {}})
    return SimpleNamespace(config=config, bank=bank, train_tasks=tasks)


@pytest.mark.parametrize("damaged", [[], {"counts": 3}, {"failures": {"clean": [[1, {"won": "?"}]]}}, {"retired": 3}])
def test_a_damaged_checkpoint_is_said(damaged: object) -> None:
    with pytest.raises(CheckpointError, match="damaged"):
        make_evolver(bench([Task("train/1", "env")]), {"evolve": damaged})


def test_a_run_learns_from_the_very_tasks_that_it_trains_on() -> None:
    evolver = make_evolver(bench([Task("a/1", "env", split="mine")]), {})
    assert evolver is not None
    evolver.tracker.add([lost("a/1", "mine")], 0)
    for foreign in (lost("a/2", "mine"), lost("a/1", "train")):
        with pytest.raises(ConfigError):
            evolver.tracker.add([foreign], 1)

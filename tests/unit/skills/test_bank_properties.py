"""Whatever is done to a bank, its log tells it: every version is a replay, and a difference leads from one to the other."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from skill_ttrl.errors import SkillBankError
from skill_ttrl.skills.bank import SkillBank
from skill_ttrl.skills.changes import Snapshot, difference, validate_changes
from skill_ttrl.skills.log import replay
from skill_ttrl.types import Skill, Tier

IDS = st.sampled_from([f"s{number}" for number in range(8)])
TEXTS = st.text(st.characters(codec=None), max_size=20).map(lambda text: text + ".")
TIERS: st.SearchStrategy[Tier] = st.sampled_from(("general", "task", "mistake"))
SKILLS = st.builds(Skill, IDS, TEXTS, TEXTS, tier=TIERS)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), SKILLS),
        st.tuples(st.just("replace"), IDS, SKILLS),
        st.tuples(st.just("edit"), IDS, TEXTS),
        st.tuples(st.just("remove"), IDS),
        st.tuples(st.just("use"), IDS, st.booleans(), st.integers(0, 20)),
        st.tuples(st.just("stale"), st.integers(0, 20)),
        st.tuples(st.just("rollback"), st.integers(0, 10)),
        st.tuples(st.just("rewind"), st.integers(0, 10)),
        st.tuples(
            st.just("import"), st.lists(SKILLS, max_size=5), st.sampled_from(["refuse", "skip", "replace", "rename"])
        ),
    ),
    max_size=15,
)


def do(bank: SkillBank, step: tuple) -> None:  # type: ignore[type-arg]
    match step:
        case "add", skill:
            bank.add(skill)
        case "replace", name, skill:
            bank.replace(name, skill)
        case "edit", name, text:
            bank.edit(name, text=text)
        case "remove", name:
            bank.remove(name)
        case "use", name, success, round:
            bank.record_usage(name, success, round)
        case "stale", round:
            bank.evict_stale(round)
        case "rollback", version:
            bank.rollback(version)
        case "rewind", version:
            bank.rewind(version)
        case "import", skills, way:
            bank.import_skills(skills, on_duplicate=way)


@given(STEPS)
def test_every_version_is_a_replay_of_the_log(steps: list[tuple]) -> None:  # type: ignore[type-arg]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bank"
        seen = [Snapshot()]
        with SkillBank(path, max_skills=4, stale_after_steps=5) as bank:
            for step in steps:
                before = bank.snapshot()
                try:
                    do(bank, step)
                except SkillBankError:
                    assert bank.snapshot() is before
                    continue
                seen = [*seen[: bank.version], bank.snapshot()]
            updates = bank.history()
        with SkillBank.open(path, read_only=True) as again:
            assert again.snapshot() == bank.snapshot() and again.history() == updates and len(updates) == again.version
            state = Snapshot()
            for update in updates:
                state = replay(state, [update])
                assert again.at(update.version) == state == seen[update.version]
                assert len(state) <= 4


@given(st.lists(SKILLS, max_size=8), st.lists(SKILLS, max_size=8))
def test_a_difference_leads_from_one_to_the_other(first: list[Skill], second: list[Skill]) -> None:
    a, b = Snapshot.of(1, first), Snapshot.of(2, second)
    assert a.changed(2, difference(a, b)) == b and difference(b, b) == ()
    bank = SkillBank.from_snapshot(a, max_skills=100)
    bank.apply(difference(bank.snapshot(), b), reason="difference")
    tidied = validate_changes(Snapshot(), difference(Snapshot(), b))
    assert [replace(skill, flags=()) for skill in bank] == [
        replace(change.after, flags=()) for change in tidied if change.after
    ]


@given(STEPS, st.integers(0, 15))
def test_a_rollback_is_that_version_again_statistics_included(steps: list[tuple], back: int) -> None:  # type: ignore[type-arg]
    bank = SkillBank(max_skills=4, stale_after_steps=5)
    for step in steps:
        try:
            do(bank, step)
        except SkillBankError:
            continue
    back = min(back, bank.version)
    expected, before = bank.at(back), bank.history()
    bank.rollback(back)
    assert bank.snapshot().skills == expected.skills and bank.history()[:-1] == before
    bank.rollback(bank.version - 1)
    assert bank.snapshot().skills == bank.at(len(before)).skills

"""What becomes of drafts: ids that stay, texts that are said once, and room that only evolved skills make."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skill_ttrl.skills import evolution
from skill_ttrl.skills.admit import AdmissionRules, Admitted, fingerprint
from skill_ttrl.skills.bank import SkillBank
from skill_ttrl.skills.changes import Snapshot
from skill_ttrl.skills.evolution import least_useful_first
from skill_ttrl.skills.types import Draft
from skill_ttrl.types import Skill, SkillStats

STATIC = Skill("gen_001", "Search", "Search every place once.", "always", "general", source="import", evidence=("t0",))


def bank(*skills: Skill) -> Snapshot:
    return Snapshot.of(7, skills)


def dynamic(name: str, uses: int = 0, successes: int = 0, made: int = 0) -> Skill:
    stats = SkillStats(uses, successes, made)
    return Skill(name, name, f"advice {name}", task_type="clean", source="evolve", stats=stats)


def evolved(drafts: Sequence[Draft], snapshot: Snapshot, *, most: int, step: int = 0, **rules: Any) -> Admitted:
    return evolution.evolved(drafts, snapshot, AdmissionRules("evolve", max_drafts=most, **rules), step=step)


def applied(snapshot: Snapshot, found: Admitted) -> Snapshot:
    """As a real bank applies it."""
    with SkillBank.from_snapshot(snapshot, index="memory") as real:
        real.apply(found.changes, reason="evolve")
        return real.snapshot()


def test_a_better_text_keeps_the_skill_s_id_record_tier_and_source_and_is_one_version_on() -> None:
    old = replace(STATIC, stats=SkillStats(9, 4), parents=("older",), version=3)
    draft = Draft(
        "Search well", "Search closed places too.", base=old.id, tier="mistake", task_type="heat", evidence=("t5",)
    )
    new = applied(bank(old), evolved([draft], bank(old), most=1)).skills[old.id]
    assert (new.version, new.parents, new.stats, new.source) == (4, ("older",), SkillStats(9, 4), "import")
    assert (new.tier, new.task_type, new.text, new.evidence) == (
        "general",
        "",
        "Search closed places too.",
        ("t0", "t5"),
    )


@pytest.mark.parametrize(
    ("draft", "why"),
    [
        (Draft("T", "search EVERY place once"), "'gen_001' says that already"),
        (Draft("T", "  "), "the text is empty"),
        (Draft("T", "x" * 10_001), "the most is 10000"),
        (Draft("T", "Better.", base="gone"), "not in the bank"),
        (Draft("T", "Old news."), "evicted or rejected before"),
    ],
)
def test_a_draft_that_cannot_be_used_is_left_out_with_its_reason(draft: Draft, why: str) -> None:
    good = Draft("G", "Good advice.")
    found = evolved([draft, good], bank(STATIC), most=3, retired=[fingerprint(Draft("", "Old news."))])
    assert found.count("add") == 1 and [why in problem for _, problem in found.refused] == [True]


def test_over_their_bound_the_evolved_skills_go_that_are_least_surely_useful() -> None:
    """3 of 3 says less than 60 of 80; a skill that was never shown says nothing; new ones are spared."""
    known = [dynamic("lucky", 3, 3), dynamic("proven", 80, 60), dynamic("unused", made=4), dynamic("poor", 50, 2)]
    assert [skill.id for skill in sorted(known, key=least_useful_first)] == ["unused", "poor", "lucky", "proven"]
    now = bank(STATIC, *known)
    found = evolved([Draft("N", "New advice.")], now, most=3, room=3)
    after = applied(now, found)
    assert {skill.id for skill in after} >= {STATIC.id, "proven", "lucky"} and len(after) == 4
    assert found.count("evict") == 2 and {change.kind for change in found.changes} == {"add", "evict"}


words = st.text(alphabet="abcd ", max_size=6)


@given(
    st.lists(st.builds(Draft, title=words, text=words, base=st.sampled_from(["", "", "a", "b", "none"])), max_size=8),
    st.integers(0, 4),
    st.one_of(st.none(), st.integers(0, 4)),
    st.integers(0, 5),
)
def test_whatever_is_drafted_a_bank_can_apply_it_and_stays_within_bounds(
    drafts: list[Draft], most: int, room: int | None, before: int
) -> None:
    now = bank(*[dynamic(name, number, 0, number) for number, name in enumerate("abcde"[:before])], STATIC)
    found = evolved(drafts, now, most=most, room=room)
    after = applied(now, found) if found.changes else now
    mine = sum(skill.source == "evolve" for skill in after)
    assert found.count("add") + found.count("replace") <= most and STATIC.id in after
    assert room is None or mine <= max(room, 0) or not found.changes
    ids = [(change.after or change.before).id for change in found.changes if change.kind != "evict"]  # type: ignore[union-attr]
    assert len(ids) == len(set(ids))

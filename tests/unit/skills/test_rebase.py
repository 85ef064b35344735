"""Changes that were made from an older version, fitted to the newest one."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from skill_ttrl.skills.changes import as_successor, rebase, validate_changes, with_usage
from skill_ttrl.skills.snapshot import Snapshot
from skill_ttrl.types import Change, Skill

OLD, OTHER = Skill("a", "A", "first"), Skill("b", "B", "other")
BEFORE = Snapshot.of(1, [OLD, OTHER])


def test_what_does_not_fit_is_left_out_with_its_reason() -> None:
    now = BEFORE.changed(
        2,
        [
            Change("evict", OTHER, None),
            Change("replace", OLD, as_successor(OLD, replace(OLD, text="theirs"))),
            Change("add", None, Skill("c", "C", "the same")),
            Change("add", None, Skill("d", "D", "their d")),
        ],
    )
    mine = as_successor(OLD, replace(OLD, text="mine"))
    fitting, dropped = rebase(
        now,
        [
            Change("use", OTHER, with_usage(OTHER, 1, 1, 1)),
            Change("replace", OLD, mine),
            Change("use", mine, with_usage(mine, 1, 1, 1)),  # builds on what was left out
            Change("add", None, Skill("c", "C", "the same")),
            Change("add", None, Skill("d", "D", "my d")),
            Change("add", None, Skill("e", "E", "fits")),
        ],
    )
    assert [change.after and change.after.id for change in fitting] == ["e"]
    assert [each.partition(":")[0] for each in dropped] == ["use 'b'", "replace 'a'", "use 'a'", "add 'c'", "add 'd'"]


IDS = st.sampled_from("abcd")
SKILLS = st.builds(Skill, IDS, st.just("t"), st.sampled_from(["x", "y", "z"]))
WISHES = st.lists(
    st.one_of(
        st.tuples(st.just("add"), SKILLS),
        st.tuples(st.just("replace"), IDS, SKILLS),
        st.tuples(st.just("edit"), IDS, st.sampled_from(["x", "y", "z"])),
        st.tuples(st.just("use"), IDS, st.integers(1, 3)),
        st.tuples(st.just("evict"), IDS),
    ),
    max_size=6,
)


def changes_of(snapshot: Snapshot, wishes: list[tuple]) -> tuple[Change, ...]:  # type: ignore[type-arg]
    """Those of the wishes that are valid changes of this version, one after another."""
    made: tuple[Change, ...] = ()
    for wish in wishes:
        now = snapshot.changed(snapshot.version, made)
        old = None if wish[0] == "add" else now.get(wish[1])
        match wish:
            case "add", skill if skill.id not in now:
                made += (Change("add", None, skill),)
            case "replace", name, skill if old is not None and (skill.id == name or skill.id not in now):
                made += (Change("replace", old, as_successor(old, skill)),)
            case "edit", _, text if old is not None:
                made += (Change("edit", old, replace(old, text=text)),)
            case "use", _, count if old is not None:
                made += (Change("use", old, with_usage(old, count, 1, count)),)
            case "evict", _ if old is not None:
                made += (Change("evict", old, None),)
    return made


@given(st.lists(SKILLS, max_size=4), WISHES, WISHES)
def test_rebased_changes_are_valid_and_the_rest_is_accounted_for(start, theirs, mine) -> None:  # type: ignore[no-untyped-def]
    base = Snapshot.of(1, start)
    now = base.changed(2, changes_of(base, theirs))
    proposed = changes_of(base, mine)
    fitting, dropped = rebase(now, proposed)
    validate_changes(now, fitting)  # raises where one does not fit
    assert len(fitting) + len(dropped) == len(proposed)
    assert rebase(base, proposed) == rebase(base, rebase(base, proposed)[0])
    assert rebase(base, proposed)[0] == proposed

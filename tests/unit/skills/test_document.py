"""A document and a bank say the same: both ways, and an edit of one part is a change of one skill."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from skill_ttrl.skills.bank import SkillBank
from skill_ttrl.skills.changes import Snapshot, normalize_skill
from skill_ttrl.skills.document import document_changes, document_of, skills_of
from skill_ttrl.types import Skill

DOCUMENT = """# House rules

Read the question twice.

## Dates

Write them as YYYY-MM-DD.

```markdown
## no heading
```

### Exceptions

- None.

## Lists

- Sort them.
- Part them by semicolons.

  Never by commas.
- Empty ones are NONE.

## Dates

\\## Another section of this name

<!-- SLOW_UPDATE_START -->
Keep answers short.

## Not a section
<!-- SLOW_UPDATE_END -->

<!-- APPENDIX_START -->
<!-- APPENDIX_END -->
"""


def snapshot(document: str) -> Snapshot:
    bank = SkillBank()
    changes, origin = document_changes(bank.snapshot(), document)
    bank.apply(changes, origin=origin)
    return bank.snapshot()


def test_sections_and_regions_are_skills() -> None:
    found = {skill.id: (skill.title, skill.text) for skill in skills_of(DOCUMENT)}
    assert list(found) == [
        *("document.preamble", "dates", "lists", "dates-2"),
        *("document.slow_update", "document.appendix"),
    ]
    assert found["document.preamble"] == ("House rules", "# House rules\n\nRead the question twice.")
    assert found["dates"][1].startswith("Write them") and found["dates"][1].endswith("### Exceptions\n\n- None.")
    assert found["dates-2"] == ("Dates", "## Another section of this name")
    assert found["document.slow_update"] == ("SLOW_UPDATE", "Keep answers short.\n\n## Not a section")
    assert found["document.appendix"] == ("APPENDIX", "APPENDIX")
    assert {skill.tier for skill in skills_of(DOCUMENT)} == {"general"}


LINES = st.lists(st.sampled_from(["Look.", "- go", "  on", "", "### x", "\\## y", "a <!-- b -->", "1. z"]), max_size=5)
FENCED = st.sampled_from(["", "\n\n```\n## in a fence\n```", "\n- ```\n  ## x\n  ```"])


@st.composite
def documents(draw: st.DrawFn) -> str:
    """Documents in normal form: one empty line between parts, items of a list without any."""
    blocks = draw(st.lists(st.just("# Head\n\nText."), max_size=1))
    for place in range(draw(st.integers(0, 4))):
        heading = f"## {draw(st.sampled_from(['One', 'Zwei & drei', 'One', '数']))} {draw(st.sampled_from(['', place]))}".strip()
        body = ("\n".join(draw(LINES)) + draw(FENCED)).strip("\n")
        items = "\n".join(
            f"- {item}" for item in draw(st.lists(st.sampled_from(["a", "b\n  c", "d\n\n  e"]), min_size=1))
        )
        blocks.append(f"{heading}\n\n{draw(st.sampled_from([body or 'x', items]))}")
    names = draw(st.lists(st.sampled_from(["SLOW_UPDATE", "APPENDIX"]), unique=True))
    blocks += [f"<!-- {name}_START -->\n## r\n<!-- {name}_END -->" for name in sorted(names, reverse=True)]
    return "\n\n".join(blocks) + "\n" if blocks else ""


@given(document=documents())
def test_a_document_in_normal_form_comes_back_as_it_was(document: str) -> None:
    assert document_of(snapshot(document)) == document


TEXTS = st.one_of(
    st.text(min_size=1, max_size=12),
    st.text("`#- \n\r<>!~\\x\u2028", min_size=1, max_size=12),
    st.sampled_from(
        ["<!-- APPENDIX_START -->", "<!-- A_END -->", '<!-- skill: {"id": "x"} -->', "- a\n- b", "```", "## h"]
    ),
)
SKILLS = st.builds(
    Skill,
    st.one_of(
        st.sampled_from(["document.preamble", "document.slow_update", "document.appendix", "x", "x-2", "x.0123abcd"]),
        st.from_regex(r"[a-z_]{1,4}", fullmatch=True),
    ),
    st.one_of(TEXTS, st.just("x")),
    TEXTS.map(lambda text: text if text.strip() else text + "."),
    st.one_of(st.just(""), TEXTS),
    st.sampled_from(("general", "task", "mistake")),
    st.one_of(st.just(""), TEXTS),
)


@given(skills=st.lists(SKILLS, max_size=5))
def test_any_bank_comes_back_from_its_document(skills: list[Skill]) -> None:
    bank = Snapshot.of(1, map(normalize_skill, skills))
    document = document_of(bank)
    found = Snapshot.of(1, [normalize_skill(each) for each in skills_of(document, source="")])
    assert dict(found.skills) == dict(bank.skills)
    assert document_changes(bank, document)[0] == ()


@given(st.text("`#- \n<>!~\\xAST_RE", max_size=60))
def test_any_text_is_a_document(text: str) -> None:
    assert document_of(snapshot(text)) is not None


def test_an_edit_of_one_part_replaces_one_skill() -> None:
    bank = SkillBank()
    changes, origin = document_changes(bank.snapshot(), DOCUMENT)
    bank.apply(changes, origin=origin, reason="optimize")
    for skill in bank.snapshot():
        bank.record_usage(skill.id, success=True, round=2)
    before = bank.snapshot()
    edited = DOCUMENT.replace("Sort them.", "Sort them by name.").replace("# House rules", "# Rules of the house")
    changes, origin = document_changes(before, edited)
    assert sorted(change.kind for change in changes) == ["replace", "replace"]
    done = bank.apply(changes, origin=origin, reason="optimize")
    now = bank.snapshot()
    assert document_of(now) == edited and len(done.changes) == 2
    for change in done.changes:
        assert change.after is not None and change.after.version == 2 and change.after.stats.uses == 1
        assert change.after.source == "optimize"
    untouched = {skill.id for skill in before} - {change.before.id for change in done.changes if change.before}
    assert all(now.get(name) == before.get(name) for name in untouched) and len(untouched) == len(before) - 2
    bank.rollback(before.version)
    assert document_of(bank.snapshot()) == DOCUMENT


def test_marks_that_are_mangled_are_text() -> None:
    whole = '## A\n<!-- skill: {"id": "a1", "tier": "mistake"} -->\n\nx\n'
    assert (skills_of(whole)[0].id, skills_of(whole)[0].tier) == ("a1", "mistake")
    for broken in ('{"id": "a b"}', '{"tier": "x"}', '{"uses": 3}', '{"id": 3}', '{"id": "a1"'):
        found = skills_of(whole.replace('{"id": "a1", "tier": "mistake"}', broken))[0]
        assert found.id == "a" and found.text.startswith("<!-- skill: ")

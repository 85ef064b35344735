"""The parser of what a model asks of the bank: every form that is accepted, every error, and any text whatever."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skill_ttrl.skills.ops import MAX_ERRORS, MAX_OPERATIONS, MAX_QUERY, OutputParser, ParsedOutput, last_open_query
from skill_ttrl.types import Evolution, SkillOps, content, from_json, to_json

PIECES = (
    *("<skill_ops>", "</skill_ops>", "<SKILL_OPS >", "<skill_ops/>", "<skill_ops", "</skill_ops"),
    *("<generate>", "</generate>", '<generate title="T">', "<generate title='a b' >", "<generate/>", "<generate"),
    *('<retrieve query="q">', "</retrieve>", "<retrieve query='q r'/>", '<retrieve query="', '<retrieve query="">'),
    *("<retrieve>", "<retrieve query=q>", "<Retrieve Query='x < 3'>", "</retrieve >", '<retrieve a="1" query="z">'),
    *('<evolve base="#12">', "</evolve>", "<evolve base='Skill #7'>", "<evolve>", '<evolve base="">', "<evolve base=3>"),
    *("<answer>", "</answer>", "<solution>", "</solution>", "<think>", "</think>", "\\boxed{", "{", "}", "answer is 4"),
    *"\"'<>/= \n\t\x00a#éſ\ud800", "12", "x < y", "😀", "＜answer＞",
)  # fmt: skip
TEXTS = st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=5)), max_size=30).map("".join)
parse = OutputParser().parse


def ops(inside: str) -> SkillOps:
    return parse(f"<skill_ops>{inside}</skill_ops>").skill_ops


def test_the_example_of_the_documentation() -> None:
    found = parse(
        """
        <skill_ops>
          <generate>Check modular patterns in powers.</generate>
          <retrieve query="number theory">Skill #12: Fermat's theorem</retrieve>
          <evolve base="#12">Add Euler's theorem for composites.</evolve>
        </skill_ops>
        <solution>2^10 mod 7 = 2</solution>
        <answer>2</answer>
        """
    )
    assert found.answer == "2" and found.solution == "2^10 mod 7 = 2"
    assert found.skill_ops == SkillOps(
        generate=("Check modular patterns in powers.",),
        retrieve=("number theory",),
        evolve=(Evolution("12", "Add Euler's theorem for composites."),),
        titles=("",),
    )
    assert found.skill_ops.has_generate and found.skill_ops.has_retrieve and found.skill_ops.has_evolve
    assert found.skill_ops.retrieve_query == "number theory" and found.skill_ops.evolve_base_id == "12"


@pytest.mark.parametrize(
    ("written", "query"),
    [
        ('<retrieve query="a b"></retrieve>', "a b"),
        ("<retrieve query='a \"b\"'>what the model made up</retrieve>", 'a "b"'),
        ('<retrieve query="a"/>', "a"),
        ('<RETRIEVE  Query = "a\n b" />', "a b"),
        ('<retrieve kind="x" query="a">a < b, <b>bold</b></retrieve >', "a"),
        ('<retrieve query="x < 3 > y">.</retrieve>', "x < 3 > y"),
    ],
)
def test_spellings_of_a_retrieval(written: str, query: str) -> None:
    assert ops(written) == SkillOps(retrieve=(query,))
    assert last_open_query("<skill_ops>" + written) == query


@pytest.mark.parametrize("base", ["#12", "12", "Skill #12", "skill 12", " # 12 ", "SKILL#12"])
def test_spellings_of_a_base(base: str) -> None:
    assert ops(f'<evolve base="{base}">t</evolve>').evolve == (Evolution("12", "t"),)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("<skill_ops><generate> </generate></skill_ops>", "<generate> has no text"),
        ("<skill_ops><generate/></skill_ops>", "<generate> has no text"),
        ("<skill_ops><retrieve>q</retrieve></skill_ops>", "<retrieve> has no query"),
        ('<skill_ops><retrieve query=" "></retrieve></skill_ops>', "<retrieve> has an empty query"),
        (f'<skill_ops><retrieve query="{"q" * (MAX_QUERY + 1)}"/></skill_ops>', "the most is 1000"),
        ("<skill_ops><retrieve query=q></retrieve></skill_ops>", "<retrieve> is not a complete tag"),
        ('<skill_ops><retrieve query="q></retrieve></skill_ops>', "<retrieve> is not a complete tag"),
        ('<skill_ops><evolve base="# ">t</evolve></skill_ops>', "<evolve> names no skill"),
        ("<skill_ops><evolve>t</evolve></skill_ops>", "<evolve> names no skill"),
        ('<skill_ops><evolve base="1"></evolve></skill_ops>', "<evolve> has no text"),
        ("<skill_ops><generate>a</skill_ops>", "<generate> is not closed before the next tag"),
        ("<skill_ops><generate>a</retrieve></skill_ops>", "<generate> is not closed before the next tag"),
        ("<skill_ops><generate>a", "<generate> is never closed"),
        ("<skill_ops>", "<skill_ops> is never closed"),
        ("<skill_ops><skill_ops></skill_ops>", "<skill_ops> is inside another"),
        ("</skill_ops>", "</skill_ops> closes nothing"),
        ("<skill_ops></evolve></skill_ops>", "</evolve> closes nothing"),
        ("<generate>a</generate>", "<generate> is outside of <skill_ops>"),
    ],
)
def test_what_cannot_be_read_is_an_error_and_no_operation(text: str, reason: str) -> None:
    found = parse(text).skill_ops
    assert not found and any(reason in error for error in found.errors), found
    assert last_open_query(text) is None


def test_unknown_tags_and_our_own_inside_a_skill_are_its_text() -> None:
    text = "use <b>x</b> if a < b, then <answer>7</answer> \\boxed{8}"
    found = parse(f"<skill_ops><generate>{text}</generate></skill_ops>")
    assert found.skill_ops.generate == (text,) and found.answer is None and not found.skill_ops.errors


def test_operations_and_errors_are_limited() -> None:
    many = ops("<generate>a</generate>" * (MAX_OPERATIONS + 50))
    assert len(many.generate) == MAX_OPERATIONS
    assert len(many.errors) == MAX_ERRORS + 1 and many.errors[-1] == "and 30 more errors"


def checked(text: str) -> ParsedOutput:
    """Parse and hold what must be true of any text."""
    found = parse(text)
    asked = found.skill_ops
    assert found.text == content(text)
    assert len(asked.titles) == len(asked.generate) and len(asked.errors) <= MAX_ERRORS + 1
    assert all(part and part == part.strip() for part in (*asked.generate, *asked.retrieve))
    assert all(each.base and each.base == each.base.strip() and each.text for each in asked.evolve)
    assert found.answer is None or found.answer.strip() == found.answer != ""
    if asked and "skill_ops" not in text.lower():
        raise AssertionError("an operation without a block")
    if asked.retrieve:
        assert asked.retrieve == pauses(text), text
    return found


def pauses(text: str) -> tuple[str, ...]:
    """The queries that generation meets that pauses where a tag has just closed a retrieval.

    At each pause `last_open_query` and `parse` say the same of what was written so far.
    """
    asked: tuple[str, ...] = ()
    for end in (place + 1 for place, character in enumerate(text) if character == ">"):
        so_far = parse(text[:end]).skill_ops.retrieve
        waiting = last_open_query(text[:end])
        assert waiting in (None, *so_far[-1:])
        if so_far != asked:
            assert waiting is not None and so_far == (*asked, waiting)
        asked = so_far
    return asked


@given(TEXTS)
def test_any_text_gives_a_result_and_each_query_was_open_once(text: str) -> None:
    checked(text)
    asked = parse(text.encode("utf-8", "replace").decode()).skill_ops
    assert from_json(SkillOps, to_json(asked)) == asked


PLAIN = st.text(st.characters(blacklist_characters="<>\"'", blacklist_categories=["Cs"]), min_size=1).map(
    lambda text: " ".join(text.split()) or "x"
)


@given(st.lists(PLAIN, max_size=4), st.lists(PLAIN, max_size=4), st.lists(st.tuples(PLAIN, PLAIN), max_size=4))
def test_what_is_written_well_is_read_back(
    generate: list[str], retrieve: list[str], evolve: list[tuple[str, str]]
) -> None:
    evolve = [(f"i{base}", text) for base, text in evolve]  # an id that is not itself "#" or "skill "
    inside = [f"<generate>{text}</generate>" for text in generate]
    inside += [f'<retrieve query="{query}"></retrieve>' for query in retrieve]
    inside += [f'<evolve base="#{base}">{text}</evolve>' for base, text in evolve]
    found = ops("\n".join(inside))
    assert found.generate == tuple(generate) and found.retrieve == tuple(retrieve) and not found.errors
    assert found.evolve == tuple(Evolution(base, text) for base, text in evolve)


UNITS = (
    *("<skill_ops>", "</skill_ops>", "<skill_ops", "<skill_ops><generate>", "<generate>a</generate>", "<answer>"),
    *(
        "</answer>",
        "\\boxed{",
        "<retrieve ",
        '<retrieve query="',
        "\"<retrieve '\"'",
        "<retrieve a='\"",
        " a=''",
        " ",
        "<",
    ),
)


@pytest.mark.parametrize("before", ["", '<skill_ops><retrieve query="'])
@pytest.mark.parametrize("unit", UNITS)
def test_a_tenth_of_a_megabyte_takes_a_fraction_of_a_second(unit: str, before: str) -> None:
    text = before + unit * (100_000 // len(unit))
    began = time.process_time()
    parse(text)
    last_open_query(text)
    assert time.process_time() - began < 0.6  # both together; time that grows with the square would be minutes

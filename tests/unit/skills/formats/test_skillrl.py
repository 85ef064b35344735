"""SkillRL's files are read without loss and written back equal, also after the bank has changed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from skill_ttrl.errors import SkillBankError
from skill_ttrl.skills.bank.bank import SkillBank
from skill_ttrl.skills.formats.files import FORMATS, dump_skills, read_file, write_skills
from skill_ttrl.skills.formats.records import SPELLINGS
from skill_ttrl.types import Change, Skill, from_json, to_json

TEXTS = st.text(max_size=12)
ANYTHING: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
WORDS = st.text("ab<#\n é\ud83d\ude00\x00", min_size=1, max_size=8).filter(lambda text: text.strip())
MAYBE = st.none() | TEXTS
ORDINARY = st.fixed_dictionaries(
    {"principle": WORDS},
    optional={
        "skill_id": st.from_regex(r"[a-z_]{1,5}", fullmatch=True) | st.integers(0, 99),
        "title": MAYBE,
        "when_to_apply": MAYBE,
        "example": ANYTHING,
        "content": WORDS,
        "tier": st.sampled_from(("general", "task", "mistake")),
        "task_type": TEXTS,
        "version": st.integers(1, 9),
        "evidence": st.lists(TEXTS, max_size=2),
        "stats": st.fixed_dictionaries({"uses": st.integers(0, 9)}),
    },
)
MISTAKE = st.fixed_dictionaries(
    {"how_to_avoid": WORDS},
    optional={
        "mistake_id": st.from_regex(r"[a-z_]{1,5}", fullmatch=True),
        "description": MAYBE,
        "why_it_happens": MAYBE,
        "title": MAYBE,
        "severity": ANYTHING,
    },
)
UNKNOWN = st.dictionaries(TEXTS.filter(lambda key: key not in {*sum(SPELLINGS.values(), ())}), ANYTHING, max_size=2)
LISTS: Any = st.lists(st.tuples(ORDINARY, UNKNOWN).map(lambda parts: {**parts[0], **parts[1]}), max_size=3)
FILES = st.fixed_dictionaries(
    {},
    optional={
        "metadata": ANYTHING,
        "general_skills": LISTS,
        "more": ANYTHING,
        "task_specific_skills": st.dictionaries(TEXTS, LISTS, max_size=3),
        "common_mistakes": st.lists(MISTAKE, max_size=3),
    },
)


def shuffled(content: Any, order: Any) -> Any:
    """The same with the keys of every object in another order."""
    if isinstance(content, list):
        return [shuffled(item, order) for item in content]
    if isinstance(content, dict):
        keys = list(content)
        order.shuffle(keys)
        return {key: shuffled(content[key], order) for key in keys}
    return content


def kept(path: Path, folder: Path | None = None) -> str:
    """The file after a way through a bank: its log, replayed, and back."""
    found = read_file(path, "skillrl")
    with SkillBank(folder, max_skills=1000) as bank:
        bank.import_skills(found.skills, origin=found.origin)
        if folder is None:
            return dump_skills(bank.snapshot(), "skillrl")
    with SkillBank.open(folder, read_only=True) as bank:
        return dump_skills(bank.snapshot(), "skillrl")


@settings(max_examples=40)
@given(
    content=FILES,
    order=st.randoms(use_true_random=False),
    indent=st.sampled_from((None, 2, 4, "\t")),
    ascii_only=st.booleans(),
)
def test_any_file_is_written_back_byte_for_byte(
    content: dict[str, Any], order: Any, indent: Any, ascii_only: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    content = shuffled(content, order)
    path = tmp_path_factory.getbasetemp() / "any-skillrl.json"
    text = json.dumps(content, indent=indent, ensure_ascii=ascii_only)
    try:
        path.write_bytes(text.encode())
        ids = [skill.id for skill in read_file(path, "skillrl").skills]
    except (UnicodeEncodeError, SkillBankError):
        assume(False)
    assume(len(set(ids)) == len(ids))
    assert kept(path) == text


@pytest.mark.parametrize("name", ["alfworld", "webshop"])
def test_published_banks_are_written_back_byte_for_byte(skillrl_banks: Path, name: str, tmp_path: Path) -> None:
    path = skillrl_banks / f"{name}_skills.json"
    assert kept(path, tmp_path / "bank") == path.read_text(encoding="utf-8")
    counts = [sum(skill.tier == tier for skill in read_file(path).skills) for tier in ("general", "task", "mistake")]
    assert counts == {"alfworld": [12, 32, 11], "webshop": [15, 39, 12]}[name]


def published(tmp_path: Path) -> Path:
    """A file with all that a published one has, and more."""
    content = {
        "metadata": {"source": "somewhere", "total_memories_analyzed": 7},
        "task_specific_skills": {
            "heat": [
                {"skill_id": "hea_002", "title": "B", "principle": "b", "when_to_apply": "w", "example": {"n": 1.50}},
                {"skill_id": "hea_001", "title": "A", "principle": "a", "when_to_apply": "v"},
            ],
            "cool": [],
        },
        "general_skills": [{"title": "G", "skill_id": 7, "principle": "g"}],
        "common_mistakes": [
            {"mistake_id": "err", "description": "d", "why_it_happens": "y", "how_to_avoid": "h", "seen": 3}
        ],
        "ours": None,
    }
    path = tmp_path / "bank.json"
    path.write_text(json.dumps(content, indent=4), encoding="utf-8")
    return path


def test_after_a_change_only_that_change_differs(tmp_path: Path) -> None:
    path = published(tmp_path)
    before = json.loads(path.read_text())
    found = read_file(path)
    with SkillBank(tmp_path / "bank") as bank:
        bank.import_skills(found.skills, origin=found.origin)
        bank.record_usages([("hea_001", True), ("7", False)], 3)
        assert dump_skills(bank.snapshot(), "skillrl") == path.read_text()  # statistics have no place there
        bank.edit("err", title="D", when_to_apply="Y")
        bank.edit("hea_002", text="better")
        bank.edit("7", title="H")
        bank.remove("hea_001")
        bank.add(Skill("new", "N", "n", task_type="clean"))
    with SkillBank.open(tmp_path / "bank", read_only=True) as bank:
        after = json.loads(dump_skills(bank.snapshot(), "skillrl"))
        assert list(after) == list(before)
        assert dump_skills(bank.at(1), "skillrl") == path.read_text()
    mistake = before["common_mistakes"][0] | {"description": "D", "why_it_happens": "Y"}
    assert after["common_mistakes"] == [mistake] and list(after["common_mistakes"][0]) == list(mistake)
    assert after["general_skills"] == [{"title": "H", "skill_id": 7, "principle": "g"}]
    assert after["task_specific_skills"] == {
        "heat": [before["task_specific_skills"]["heat"][0] | {"principle": "better"}],
        "cool": [],
        "clean": [{"skill_id": "new", "title": "N", "principle": "n", "when_to_apply": ""}],
    }
    assert (after["metadata"], after["ours"]) == (before["metadata"], None)


def test_a_skill_moves_to_the_section_that_tells_its_tier(tmp_path: Path) -> None:
    found = read_file(published(tmp_path))
    bank = SkillBank()
    bank.import_skills(found.skills, origin=found.origin)
    bank.edit("hea_002", tier="mistake")
    bank.edit("7", tier="task", task_type="cool")
    after = json.loads(dump_skills(bank.snapshot(), "skillrl"))
    moved = after["common_mistakes"][1]
    assert moved["mistake_id"] == "hea_002" and moved["how_to_avoid"] == "b" and moved["example"] == {"n": 1.5}
    assert after["general_skills"] == [] and after["task_specific_skills"]["cool"][0]["skill_id"] == "7"


def test_rollback_brings_back_what_the_file_held_besides(tmp_path: Path) -> None:
    path = published(tmp_path)
    found = read_file(path)
    with SkillBank(tmp_path / "bank") as bank:
        bank.import_skills(found.skills, origin=found.origin)
        (tmp_path / "other.json").write_text('[{"id": "o", "text": "o"}]')
        bank.load(tmp_path / "other.json")
        assert bank.snapshot().origin == "" and "somewhere" not in dump_skills(bank.snapshot(), "skillrl")
        bank.rollback(1)
        assert dump_skills(bank.snapshot(), "skillrl") == path.read_text()
        origins = [update.origin for update in bank.history()]
        assert origins == [found.origin, "", found.origin]


def test_only_a_bank_without_skills_takes_over_the_rest_of_a_file(tmp_path: Path) -> None:
    found = read_file(published(tmp_path))
    bank = SkillBank()
    bank.add(Skill("mine", "M", "m"))
    bank.import_skills(found.skills, origin=found.origin)
    assert bank.snapshot().origin == ""
    assert json.loads(dump_skills(bank.snapshot(), "skillrl"))["metadata"]["source"] == "skill-ttrl"


@pytest.mark.parametrize("form", ["json", "jsonl", "markdown", "agentskills"])
def test_other_formats_keep_fields_that_mean_nothing_to_us(form: Any, tmp_path: Path) -> None:
    path = published(tmp_path)
    found = read_file(path)
    bank = SkillBank()
    bank.import_skills(found.skills, origin=found.origin)
    write_skills(tmp_path / "other", bank.snapshot(), form)
    again = read_file(tmp_path / "other", form)
    assert {skill.id: skill for skill in again.skills} == dict(bank.snapshot().skills)
    if form == "json":  # the one that also keeps what stood beside the skills
        back = SkillBank()
        back.import_skills(again.skills, origin=again.origin)
        assert dump_skills(back.snapshot(), "skillrl") == path.read_text()


def test_an_empty_bank_gives_a_valid_file(tmp_path: Path) -> None:
    empty = SkillBank().snapshot()
    assert json.loads(dump_skills(empty, "skillrl"))["general_skills"] == []
    for form in ("json", "jsonl", "skillrl", "skillrl-memory", "markdown", "agentskills"):
        write_skills(tmp_path / form, empty, form)
        assert read_file(tmp_path / form, form).skills == []


def test_a_field_that_means_nothing_to_us_goes_through_updates(tmp_path: Path) -> None:
    bank = SkillBank()
    added = bank.add_from_dict({"id": "a", "text": "t", "example": [1, {"b": None}]})
    assert json.loads(added.extra) == {"fields": {"example": [1, {"b": None}]}}
    update = bank.plan([Change("remove", added, None)], reason="r")
    assert from_json(type(update), to_json(update)) == update
    assert bank.edit("a", title="T").extra == added.extra
    assert bank.edit("a", extra="").extra == ""
    for wrong in ("{", "[1]", "7"):
        with pytest.raises(SkillBankError, match="'extra' is an object of JSON"):
            bank.edit("a", extra=wrong)
    assert hash(added)  # skills go into sets


def test_a_damaged_origin_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text('{"schema": 1, "skills": [], "origin": {"format": "skillrl"}}')
    with pytest.raises(SkillBankError, match="'origin' is damaged"):
        read_file(path)
    path.write_text(
        '{"schema": 1, "skills": [], "origin": {"format": "skillrl", "content": {"general_skills": 5}, "layout": {}}}'
    )
    bank = SkillBank()
    bank.load(path)
    with pytest.raises(SkillBankError, match="origin: 'general_skills' is a list"):
        dump_skills(bank.snapshot(), "skillrl")


@pytest.mark.parametrize("form", ["skillrl", "skillrl-memory"])
@pytest.mark.parametrize("content", [[None], ["ab"], [{"a": 1, "b": 2}], {"a": 1}])
def test_an_origin_of_another_kind_is_named_and_the_other_formats_are_written(
    form: str, content: object, tmp_path: Path
) -> None:
    path = tmp_path / "x.json"
    skills = [{"id": "a", "text": "Look."}]
    origin = {"format": form, "content": content, "layout": {}}
    path.write_text(json.dumps({"schema": 1, "skills": skills, "origin": origin}))
    bank = SkillBank()
    bank.load(path)
    for other in FORMATS:
        if other == form and not (form == "skillrl" and isinstance(content, dict)):
            with pytest.raises(SkillBankError, match="origin is damaged: "):
                dump_skills(bank.snapshot(), other)
        elif other != "agentskills":
            assert "Look." in dump_skills(bank.snapshot(), other)


def test_a_bank_from_before_these_fields_opens(tmp_path: Path) -> None:
    with SkillBank(tmp_path / "bank") as bank:
        bank.import_skills(read_file(published(tmp_path)).skills)
        bank.record_usages([("err", True)])
        now = bank.snapshot()
    log = tmp_path / "bank" / "log.jsonl"
    updates = [json.loads(line) for line in log.read_text().splitlines()]
    for update in updates:
        assert update.pop("origin") is None
        for change in update["changes"]:
            for skill in filter(None, (change["before"], change["after"])):
                skill.pop("extra")
    log.write_text("".join(f"{json.dumps(update)}\n" for update in updates))
    with SkillBank.open(tmp_path / "bank", read_only=True) as bank:
        assert bank.snapshot().skills == {key: replace(skill, extra="") for key, skill in now.skills.items()}
        assert json.loads(dump_skills(bank.snapshot(), "skillrl"))["general_skills"][0]["principle"] == "g"

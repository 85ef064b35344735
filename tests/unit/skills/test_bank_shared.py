"""A shared bank in one process: whatever two writers do in whatever order, the log is whole and both read the same."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import skill_ttrl.skills.log as log
from skill_ttrl.errors import SkillBankError
from skill_ttrl.skills.bank import SkillBank
from skill_ttrl.skills.folder import LOG_FILE
from skill_ttrl.storage.files import acquire_lock, release_lock
from skill_ttrl.types import Change, Skill


def shared(path: Path, writer: str = "", **more: Any) -> SkillBank:
    return SkillBank(path, shared=True, writer=writer, **more)


def skill(name: str, text: str = "text") -> Skill:
    return Skill(name, name, text)


def test_uses_that_both_count_add_up_and_a_skill_that_both_write_is_there_once(tmp_path: Path) -> None:
    with shared(tmp_path / "b", "a:1") as a, shared(tmp_path / "b", "b:2") as b:
        a.add(skill("x"), round=0)
        b.refresh()
        a.record_usages([("x", True), ("x", False)], 1)
        b.record_usages([("x", True)], 1)  # from the version before
        assert b.get("x").stats.uses == 3 and b.get("x").stats.successes == 2  # type: ignore[union-attr]
        a.add(skill("y"), round=2)
        b.add(skill("y"), round=2)
        assert b.history()[-1].changes == () and b.history()[-1].dropped == ("add 'y': it is in the bank already",)
        assert a.refresh().skills == b.snapshot().skills


def test_by_hand_what_does_not_fit_is_refused_and_the_error_says_what_to_do(tmp_path: Path) -> None:
    with shared(tmp_path / "b") as a, shared(tmp_path / "b") as b:
        a.add(skill("x"))
        b.refresh()
        a.edit("x", text="theirs")
        with pytest.raises(SkillBankError, match=r"it has changed since the change was created\. Create it again"):
            b.edit("x", text="mine")
        a.remove("x")
        with pytest.raises(SkillBankError, match="not in the bank"):
            b.edit("x", text="mine")
        a.add(skill("y"))
        with pytest.raises(SkillBankError, match="There is a skill 'y' in the bank already"):
            b.add(skill("y"))
        planned = b.plan([Change("add", None, skill("z"))])
        a.add(skill("w"))
        with pytest.raises(SkillBankError, match=r"for version 5, but the bank's next is 6\. Create it again"):
            b.apply(planned)
        assert b.version == 5 and len(b.history()) == 5


def test_an_update_of_a_run_is_made_once_per_step_and_reason_also_after_a_rename(tmp_path: Path) -> None:
    with shared(tmp_path / "b", "run:id-1") as bank:
        first = bank.apply([Change("add", None, skill("x"))], reason="merge", round=4)
        bank.apply([Change("add", None, skill("y"))], reason="evolve", round=4)
    with shared(tmp_path / "b", "renamed:id-1") as again, shared(tmp_path / "b", "run:id-2") as other:
        assert again.apply([Change("add", None, skill("z"))], reason="merge", round=4) == first
        assert again.version == 2 and "z" not in again
        other.apply([Change("add", None, skill("z"))], reason="merge", round=4)
        assert other.version == 3 and "z" in other
    with shared(tmp_path / "b", "run:id-1") as bank:  # updates by hand have no identity
        assert len({bank.apply([], reason="by hand").version for _ in range(2)}) == 2


def test_who_holds_the_lock_too_long_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "LOCK_SECONDS", 0.05)
    with shared(tmp_path / "b") as bank:
        held = acquire_lock(tmp_path / "b")
        with pytest.raises(SkillBankError, match=r"already open in this process.*0\.05 s"):
            bank.add(skill("x"))
        release_lock(tmp_path / "b", held)
        bank.add(skill("x"))
        assert bank.version == 1


def test_a_log_that_somebody_cuts_or_damages_is_noticed(tmp_path: Path) -> None:
    file = tmp_path / "b" / LOG_FILE
    with shared(tmp_path / "b") as bank:
        bank.add(skill("x"))
        bank.add(skill("y"))
        whole = file.read_bytes()
        file.write_bytes(whole.partition(b"\n")[0] + b"\n")
        with pytest.raises(SkillBankError, match=r"version 2\) read before: another program truncated or replaced it"):
            bank.refresh()
        file.write_bytes(whole + whole.partition(b"\n")[0] + b"\n")
        with pytest.raises(SkillBankError, match=r"line 3 is damaged: its checksum is wrong"):
            bank.add(skill("z"))
        assert bank.version == 2
        file.unlink()
        with pytest.raises(SkillBankError, match="Cannot read"):
            bank.refresh()


def test_a_bank_once_shared_stays_so_and_its_capacity_too(tmp_path: Path) -> None:
    SkillBank(tmp_path / "b", max_skills=7).close()
    with shared(tmp_path / "b", max_skills=7, top_k=2):  # one of its own becomes a shared one
        with pytest.raises(SkillBankError, match=r"holds at most 7 skills, and here max_skills is 9.*max_skills=7"):
            shared(tmp_path / "b", max_skills=9)
        with pytest.raises(SkillBankError, match=r"is shared.*skills\.shared=true"):
            SkillBank(tmp_path / "b", max_skills=7)
        with SkillBank.open(tmp_path / "b") as by_hand:  # the folder says how
            assert by_hand.settings.shared
            by_hand.add(skill("x"))
            with pytest.raises(SkillBankError, match=r"is shared: updates .* not deleted.* rollback"):
                by_hand.rewind(0)
            by_hand.rollback(0)
            assert by_hand.version == 2 and not len(by_hand)


NAMES = st.sampled_from("abcdef")
MOVES = st.lists(
    st.tuples(
        st.integers(0, 1),
        st.sampled_from(["add", "edit", "replace", "use", "remove", "refresh", "reopen"]),
        NAMES,
        st.text(st.sampled_from("xyz"), min_size=1, max_size=2),
    ),
    max_size=25,
)


@given(MOVES)
def test_any_interleaving_of_two_writers_gives_one_history(moves: list[tuple[int, str, str, str]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "b"
        banks = [shared(path, f"w:{number}", max_skills=4) for number in range(2)]
        acknowledged = []
        for step, (who, what, name, text) in enumerate(moves):
            bank = banks[who]
            if what == "refresh":
                bank.refresh()
            elif what == "reopen":
                bank.close()
                banks[who] = shared(path, f"w:{who}", max_skills=4)
            else:
                try:
                    _do(bank, what, name, text, step)
                except SkillBankError:  # this writer knows of no such skill
                    continue
                acknowledged.append((f"w:{who}", step, bank.version))
        first, second = (bank.refresh() for bank in banks)
        assert first == second == banks[0].at(banks[0].version) and len(first) <= 4
        updates = banks[0].history()
        assert [(each.writer, each.step, each.version) for each in updates] == acknowledged
        assert [each.version for each in updates] == list(range(1, len(updates) + 1))
        for bank in banks:
            bank.close()


def _do(bank: SkillBank, what: str, name: str, text: str, step: int) -> None:
    match what:
        case "add":
            bank.add(skill(name, text), round=step)
        case "edit":
            bank.edit(name, text=text, round=step)
        case "replace":
            bank.replace(name, skill(name, text), round=step)
        case "use":
            bank.record_usages([(name, True)], step)
        case "remove":
            bank.remove(name, round=step)

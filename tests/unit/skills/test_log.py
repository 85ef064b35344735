"""The bank's folder: what is on the disk is what was acknowledged, and whatever else is found is said."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from skill_ttrl.errors import SkillBankError
from skill_ttrl.skills.bank import SkillBank
from skill_ttrl.skills.changes import Snapshot
from skill_ttrl.types import Skill


def fill(path: Path, count: int) -> Snapshot:
    """`count` updates more: a skill is added, used, edited, and so on."""
    with SkillBank(path, max_skills=5) as bank:
        for _ in range(count):
            number = bank.version
            if number % 3 == 0:
                bank.add(Skill(f"s{number:03d}", "title", "line\u2028one\r\nline two"), round=number)
            elif number % 3 == 1:
                bank.record_usage(f"s{number - 1:03d}", number % 2 == 0, number)
            else:
                bank.edit(f"s{number - 2:03d}", text=f"text {number}")
        return bank.snapshot()


def content(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "bank"


@pytest.mark.parametrize("tail", ["cut", "text", "zeros"])
def test_a_torn_last_line_was_never_acknowledged(path: Path, tail: str) -> None:
    expected = fill(path, 7)
    log = path / "log.jsonl"
    whole = log.read_bytes()
    more = fill(path, 1)
    last = log.read_bytes()[len(whole) :]
    torn = {"cut": last[:-1], "text": last[: len(last) // 2], "zeros": b"\0" * 40}[tail]
    log.write_bytes(whole + torn)
    before = content(path)
    with SkillBank(path, read_only=True) as bank:
        assert bank.snapshot() == expected and len(bank.history()) == 7
        assert "the last line is torn" in bank.notices[0]
    with SkillBank.open(path) as bank:
        assert bank.snapshot() == expected
    assert content(path).items() >= {**before, ".lock": content(path)[".lock"]}.items()  # nothing yet was cut
    assert fill(path, 1) == more and log.read_bytes() == whole + last
    assert (path / "log.torn").read_bytes() == torn
    with SkillBank(path, read_only=True) as bank:
        assert not bank.notices and bank.snapshot() == more


def damage_gap(log: list[bytes]) -> None:
    del log[3]


def damage_twice(log: list[bytes]) -> None:
    log.append(log[-1])


@pytest.mark.parametrize(("damage", "line"), [(damage_gap, 4), (damage_twice, 10)])
def test_other_damage_is_an_error_that_changes_nothing(
    path: Path, damage: Callable[[list[bytes]], None], line: int
) -> None:
    fill(path, 9)
    log = path / "log.jsonl"
    lines = log.read_bytes().splitlines(keepends=True)
    damage(lines)
    log.write_bytes(b"".join(lines))
    before = content(path)
    for read_only in (True, False):
        with pytest.raises(SkillBankError, match=f"line {line} is damaged") as caught:
            SkillBank(path, read_only=read_only)
        assert "log.jsonl" in str(caught.value) and f"head -n {line - 1}" in str(caught.value)
    assert {**content(path), ".lock": b""} == {**before, ".lock": b""}


def test_no_flipped_bit_in_the_log_goes_unnoticed(path: Path) -> None:
    fill(path, 4)
    log = path / "log.jsonl"
    whole = log.read_bytes()
    for place in range(0, len(whole), 7):  # 7 and 8 share no factor: every bit has its turn
        spoiled = bytearray(whole)
        spoiled[place] ^= 1 << (place % 8)
        log.write_bytes(spoiled)
        with pytest.raises(SkillBankError, match=r"log\.jsonl, line \d is damaged: .* head -n \d"):
            SkillBank(path, read_only=True)
    for place in (place for place, byte in enumerate(whole) if byte == 0x0A):
        log.write_bytes(whole[:place] + b"\x0b" + whole[place + 1 :])
        with pytest.raises(SkillBankError, match="is damaged"):  # the last one too: that line was whole
            SkillBank(path, read_only=True)


def test_one_writer_many_readers(path: Path) -> None:
    with SkillBank(path) as bank:
        bank.add(Skill("a", "t", "x"))
        with pytest.raises(SkillBankError, match="already open in this process"):
            SkillBank(path)
        code = "import sys; from skill_ttrl.skills.bank import SkillBank; SkillBank(sys.argv[1])"
        done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=False)
        assert f"Another process ({os.getpid()}) is writing" in done.stderr and "skillttrl inspect" in done.stderr
        with SkillBank(path, read_only=True) as reader:
            bank.add(Skill("b", "t", "x"))
            assert len(reader) == 1 and len(reader.history()) == 1
            with pytest.raises(SkillBankError, match="opened for reading only"):
                reader.add(Skill("c", "t", "x"))
            with pytest.raises(SkillBankError, match="opened for reading only"):
                reader.rewind(0)
    with pytest.raises(SkillBankError, match="is closed"):
        bank.add(Skill("c", "t", "x"))
    assert bank.at(1).skills.keys() == {"a"} and len(SkillBank(path, read_only=True)) == 2


def test_another_schema(path: Path) -> None:
    fill(path, 2)
    (path / "bank.json").write_text('{"schema": 2, "settings": {}}')
    before = content(path)
    for read_only in (True, False):
        with pytest.raises(SkillBankError, match="written under schema 2"):
            SkillBank(path, read_only=read_only)
    assert content(path) == before
    for wrong in ("", "[]", '{"settings": 1, "schema": 1}', "\udcff"):
        (path / "bank.json").write_bytes(wrong.encode("utf-8", "surrogateescape"))
        with pytest.raises(SkillBankError, match="is damaged"):
            SkillBank(path)


def test_a_path_that_is_no_bank(tmp_path: Path) -> None:
    with pytest.raises(SkillBankError, match="found nothing"):
        SkillBank(tmp_path / "none", read_only=True)
    with pytest.raises(SkillBankError, match="a folder without bank"):
        SkillBank(tmp_path, read_only=True)
    file = tmp_path / "file.json"
    file.write_text("{}")
    for read_only in (True, False):
        with pytest.raises(SkillBankError, match="file"):
            SkillBank(file, read_only=read_only)
    with pytest.raises(SkillBankError, match=r"holds other things \('file.json'\)"):
        SkillBank(tmp_path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["file.json"]
    with pytest.raises(SkillBankError, match="Cannot open"):
        SkillBank(file / "bank")


FULL_DISK = """
import resource, signal, sys
from pathlib import Path
from skill_ttrl.errors import SkillBankError
from skill_ttrl.skills.bank import SkillBank
from skill_ttrl.types import Skill

path = Path(sys.argv[1])
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))  # a write that fails half way, as on a full disk
with SkillBank(path) as bank:
    bank.add(Skill("a", "t", "x"))
    whole, before = (path / "log.jsonl").read_bytes(), bank.snapshot()
    try:
        bank.add(Skill("b", "t", "x" * 5000))
    except SkillBankError as error:
        print(error)
    assert (path / "log.jsonl").read_bytes() == whole and bank.snapshot() is before
    bank.add(Skill("c", "t", "x"))
    assert bank.version == 2
"""


def test_a_failed_write_changes_nothing(path: Path) -> None:
    """In a process of its own: the limit holds for every file that a process writes, the test's own log among them."""
    done = subprocess.run([sys.executable, "-c", FULL_DISK, str(path)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "log.jsonl: File too large. Nothing was changed" in done.stdout and "Cannot write" in done.stdout
    with SkillBank(path, read_only=True) as again:
        assert set(again.snapshot().skills) == {"a", "c"} and not again.notices


def test_a_start_that_was_killed_is_begun_again(path: Path) -> None:
    path.mkdir()
    for name in (".lock", "log.jsonl", ".bank.json.tmp-123"):
        (path / name).write_bytes(b"")
    with SkillBank(path) as bank:
        bank.add(Skill("a", "t", "x"))
    (path / "log.jsonl").unlink()
    with pytest.raises(SkillBankError, match=r"Cannot open .*No such file"):
        SkillBank(path)

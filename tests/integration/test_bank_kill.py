"""Many `kill -9` in the middle of updates: no acknowledged update is lost, none is torn."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from skill_ttrl.skills.bank.bank import SkillBank
from skill_ttrl.skills.folder import LOG_FILE
from skill_ttrl.types import BankUpdate, from_json

# For each line on stdin it starts a process that opens the bank and changes it without end, telling each version once the
# change is acknowledged. Forking from here saves a hundred starts of the interpreter; each child is a writer of its own.
# Every second child has a slow disk: its lines are written piece by piece, so that kills fall between the pieces.
WRITER = """
import os, sys, time
import skill_ttrl.skills.bank.log
from skill_ttrl.skills.bank.bank import SkillBank
from skill_ttrl.types import Skill, to_json
to_json(Skill("warm", "up", "the imports"))
def write_slowly(descriptor, data):
    for start in range(0, len(data), 256):
        os.write(descriptor, data[start : start + 256])
        time.sleep(0.002)
for count, line in enumerate(sys.stdin):
    child = os.fork()
    if child == 0:
        if count % 2:
            skill_ttrl.skills.bank.log.write_all = write_slowly
        bank = SkillBank(sys.argv[1], max_skills=6)
        os.write(1, f"open {bank.version} {os.getpid()}\\n".encode())
        while True:
            number = bank.version + 1
            text = f"{number} " * (5_000 if number % 8 == 0 else 300)
            if number % 3 == 0 and len(bank):
                bank.replace(next(iter(bank)).id, Skill(f"s{number}", "t", text), reason=f"update {number}")
            elif number % 3 == 1 and len(bank):
                bank.record_usages([(next(iter(bank)).id, True)], number, reason=f"update {number}")
            else:
                bank.add(Skill(f"s{number}", "t", text), reason=f"update {number}", round=number)
            os.write(1, f"done {number} 0\\n".encode())
    os.waitpid(child, 0)
    os.write(1, b"dead 0 0\\n")
"""


@pytest.mark.parametrize("kills", [12, pytest.param(100, marks=pytest.mark.slow)])
def test_kills_lose_nothing(kills: int, tmp_path: Path) -> None:
    path, choose = tmp_path / "bank", random.Random(7)
    log = path / LOG_FILE
    torn = acknowledged = 0
    command = [sys.executable, "-c", WRITER, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdin and writer.stdout
        for _ in range(kills):
            writer.stdin.write("go\n")
            writer.stdin.flush()
            word, version, process = writer.stdout.readline().split()
            assert word == "open" and int(version) in (
                acknowledged,
                acknowledged + 1,
            )  # the last one may have been written
            acknowledged = int(version)
            for _ in range(choose.randrange(4)):
                acknowledged = int(writer.stdout.readline().split()[1])
            time.sleep(choose.random() * 0.006)
            os.kill(int(process), signal.SIGKILL)
            while (line := writer.stdout.readline().split())[0] != "dead":
                acknowledged = int(line[1])
            data = log.read_bytes() if log.exists() else b""
            whole, _, rest = data.rpartition(b"\n")
            torn += bool(rest)
            assert whole.count(b"\n") + bool(whole) in (acknowledged, acknowledged + 1)
        writer.stdin.close()
    assert acknowledged > kills, "the writers were killed before they wrote"
    assert torn >= kills // 10, f"only {torn} kills fell into the middle of a line: the test does not test it"

    updates = [from_json(BankUpdate, line) for line in log.read_bytes().split(b"\n")[:-1]]
    assert [update.version for update in updates] == list(range(1, len(updates) + 1))
    assert all(update.reason == f"update {update.version}" for update in updates)
    with SkillBank(path, read_only=True) as bank:
        assert bank.version == len(updates) >= acknowledged
        with SkillBank(max_skills=6) as replayed:
            for update in updates:
                assert replayed.apply(update) == update
        assert bank.snapshot() == replayed.snapshot()
    assert json.loads((path / "bank.json").read_bytes())["settings"]["max_skills"] == 6

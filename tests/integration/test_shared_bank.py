"""One skill bank, several processes: writers that are killed at random, and runs that share it through one Chroma server."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from skill_ttrl.config import load_config
from skill_ttrl.data.operators import bank_family
from skill_ttrl.skills.bank import SkillBank
from skill_ttrl.skills.folder import LOG_FILE
from skill_ttrl.skills.retrieval import Query
from skill_ttrl.stages.setup.open_bank import read_run_bank
from skill_ttrl.storage.files import LOCK_FILE
from skill_ttrl.storage.jsonl import read_jsonl
from skill_ttrl.types import BankUpdate, from_json
from tests.preloaded import run_code

# For each line `NAME STEP` on stdin it starts a process that changes the shared bank without end, one update a step, and says each step
# once it is acknowledged; for `dead PID` it says when that one has ended. Forking from here saves the starts of the interpreter; each
# child is a writer of its own. All but one have a slow disk: its lines are written piece by piece, so that kills fall between them.
WRITERS = """
import os, sys, time
import skill_ttrl.skills.log
from skill_ttrl.skills.bank import SkillBank
from skill_ttrl.types import Skill, to_json
to_json(Skill("warm", "up", "the imports"))
def write_slowly(descriptor, data):
    for start in range(0, len(data), 256):
        os.write(descriptor, data[start : start + 256])
        time.sleep(0.002)
def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())
def write(name, step):
    if name != "a":
        skill_ttrl.skills.log.write_all = write_slowly
    bank = SkillBank(sys.argv[1], max_skills=6, shared=True, writer=f"run:{name}")
    say("open", name, os.getpid())
    while True:
        ids, why = [skill.id for skill in bank.refresh()], {"reason": f"{name} {step}", "round": step}
        if step % 3 == 1 and ids:
            bank.record_usages([(ids[0], True)], step, reason=why["reason"])
        elif step % 3 == 2 and ids:
            bank.replace(ids[0], Skill(f"{name}{step}", "t", f"{step} " * 300), **why)
        else:
            bank.add(Skill(f"{name}{step}", "t", f"{step} " * 400), **why)
        say("done", name, step)
        step += 1
for line in sys.stdin:
    name, number = line.split()
    if name == "dead":
        os.waitpid(int(number), 0)
        say("dead", number, 0)
    elif os.fork() == 0:
        write(name, int(number))
"""


class Writers:
    """Processes that write one bank, killed and started again."""

    def __init__(self, path: Path, names: str) -> None:
        self.parent = subprocess.Popen(
            [sys.executable, "-c", WRITERS, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.acknowledged = dict.fromkeys(names, -1)
        """The last step of each."""
        self.children: dict[str, int] = {}
        for name in names:
            self.start(name)

    def start(self, name: str) -> None:
        """Let one begin; like a run that resumes, it repeats the step before its last acknowledged one."""
        self._ask(name, max(0, self.acknowledged[name] - 1), until="open")

    def kill(self, name: str) -> None:
        child = self.children.pop(name)
        os.kill(child, signal.SIGKILL)
        self._ask("dead", child, until="dead")

    def holder(self, path: Path) -> str | None:
        """The writer that last took the lock."""
        text = (path / LOCK_FILE).read_text()
        return next((name for name, child in self.children.items() if str(child) == text), None)

    def _ask(self, word: str, number: int, until: str) -> None:
        assert self.parent.stdin and self.parent.stdout
        self.parent.stdin.write(f"{word} {number}\n")
        self.parent.stdin.flush()
        said = ""
        while said != until:
            said, name, value = self.parent.stdout.readline().split()
            if said == "done":
                self.acknowledged[name] = max(self.acknowledged[name], int(value))  # a resumed one repeats steps
            elif said == "open":
                self.children[name] = int(value)


# Two runs at the same time, each the real command in a process of its own; for each seed of `kills` one of them is killed and resumed.
RUNS = """
import json, os, random, signal, sys, time
import skill_ttrl.cli.display.views, skill_ttrl.stages.train, transformers.models.qwen2.modeling_qwen2
from skill_ttrl.cli.main import main
from skill_ttrl.envs import env_tasks
env_tasks("math", {}, count=1)
config, folder, settings, kills = sys.argv[1], sys.argv[2], json.loads(sys.argv[3]), int(sys.argv[4])
def start(name):
    child = os.fork()
    if child:
        return child
    output = f"{folder}/{name}"
    with open(output + ".log", "a") as log:
        os.dup2(log.fileno(), 1), os.dup2(log.fileno(), 2)
    seed = {"a": 0, "b": 1}[name]
    words = [word for setting in [*settings, f"seed={seed}"] for word in ("--set", setting)]
    sys.argv = ["skillttrl", "train", config, "-o", output, "--resume", "auto", *words]
    code = 1
    try:
        main()
        code = 0
    except SystemExit as leaving:
        code = leaving.code or 0
    finally:
        sys.stdout.flush()
        os._exit(code)
def lines(name):
    try:
        return open(f"{folder}/{name}/votes.jsonl", "rb").read().count(b"\\n")
    except FileNotFoundError:
        return 0
children, rng = {name: start(name) for name in "ab"}, random.Random(5)
for number in range(kills):
    name = "ab"[number % 2]
    before = lines(name)
    while lines(name) < before + 3 and not os.waitpid(children[name], os.WNOHANG)[0]:
        time.sleep(0.002)
    time.sleep(rng.uniform(0, 0.05))
    os.kill(children[name], signal.SIGKILL)
    os.waitpid(children[name], 0)
    children[name] = start(name)
print(json.dumps([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children.values()]))
"""
MERGER = """
import hashlib
from skill_ttrl.skills.mergers import Draft, Merged
class OfWinners:
    def __init__(self, *, similarity, threshold):
        pass
    def merge(self, outputs, *, retrieved=(), snapshot=None):
        digest = hashlib.sha256("".join(each.text for each in outputs).encode()).hexdigest()[:8]
        return Merged((Draft(f"hint {digest}", digest, tuple(range(len(outputs)))),))
"""
"""The tiny policy writes no skill, so one is made from each step's winners."""
SETTINGS = ["phases=[rl]", "rl.steps=4", "skills.shared=true", "rl.reward=random", "skills.dedup_threshold=null"]
SETTINGS += ["skills.merger=of_winners:OfWinners"]


def shared_runs(config: Path, folder: Path, *more: str, kills: int = 0) -> list[list[dict[str, Any]]]:
    """Run `a` and `b` on the bank in `folder`, which begins with the rules of the operators; their trajectories."""
    with SkillBank(folder / "bank", shared=True) as bank:
        bank.import_skills(bank_family("operators"))
    (folder / "of_winners.py").write_text(MERGER)
    settings = json.dumps([*SETTINGS, f"skills.bank={folder / 'bank'}", *more])
    done = run_code(RUNS, config, folder, settings, kills, cwd=folder, timeout=240)
    logs = "".join((folder / f"{name}.log").read_text() for name in "ab")
    assert done.returncode == 0 and json.loads(done.stdout) == [0, 0], done.stderr + logs
    assert not any((folder / name / "bank").exists() for name in "ab")
    return [list(read_jsonl(folder / name / "trajectories.jsonl")) for name in "ab"]


def check_updates(path: Path) -> list[BankUpdate]:
    """Both runs' updates and skills are there, at most one update a step and reason, versions without gaps."""
    with SkillBank.open(path, read_only=True) as bank:
        updates, now = bank.history(), bank.snapshot()
    assert [update.version for update in updates] == list(range(1, len(updates) + 1))
    made = Counter((update.writer, update.step, update.reason) for update in updates if update.writer)
    assert set(made.values()) == {1}
    for run in "ab":
        own = [update for update in updates if update.writer.startswith(f"{run}:")]
        added = [
            change.after.id for update in own for change in update.changes if change.kind == "add" and change.after
        ]
        assert [update.step for update in own] == [0, 1, 2, 3] and added and set(added) <= set(now.skills)
    return updates


def check_shown(run: Path, rows: list[dict[str, Any]]) -> set[int]:
    """Every prompt showed the skill with the best exact score of the version that its rollout saw; these versions."""
    skills, banks = load_config(run / "config.yaml", trust=True).skills, dict[int, Any]()
    for row in rows:
        version, question = row["bank_version"], row["task"]["options"]["question"]
        if version not in banks:
            banks[version] = read_run_bank(skills, run, version).view()  # vectors in memory
        (best,) = banks[version].select_for_prompts([Query(question, row["task"]["task_type"])], 1)
        assert row["skills_in_prompt"] == [skill.id for skill in best]
    assert len(rows) == 4 * 3 * 4
    return set(banks)


@pytest.mark.slow
def test_two_runs_killed_at_random_go_on_with_the_newest_version(tiny_skills_yaml: Path, tmp_path: Path) -> None:
    rows = shared_runs(tiny_skills_yaml, tmp_path, "skills.index=memory", "rl.save_steps=2", kills=6)
    updates = check_updates(tmp_path / "bank")
    for name, found in zip("ab", rows, strict=True):
        check_shown(tmp_path / name, found)
    assert len(updates) == 9


@pytest.mark.slow
@pytest.mark.parametrize("kills", [4, pytest.param(100, marks=pytest.mark.slow)])
def test_writers_killed_at_random_lose_no_update_and_repeat_none(kills: int, tmp_path: Path) -> None:
    path, choose, torn = tmp_path / "bank", random.Random(3), 0
    writers = Writers(path, "abcd")
    for number in range(kills):
        time.sleep(choose.uniform(0.01, 0.08))
        holder = (
            writers.holder(path) if number % 2 else None
        )  # every second kill hits the one that writes, if it is quick enough
        name = holder or choose.choice("abcd")
        writers.kill(name)
        torn += (path / "log.torn").exists()
        (path / "log.torn").unlink(missing_ok=True)
        writers.start(name)
    for name in "abcd":
        writers.kill(name)
    writers.parent.communicate(timeout=30)

    with SkillBank.open(path) as bank:  # cuts what the last kill left
        bank.apply([], reason="end")
        updates = bank.history()[:-1]
        assert bank.at(len(updates)).version == len(updates)
    lines = (path / LOG_FILE).read_bytes()
    assert lines.endswith(b"\n") and [from_json(BankUpdate, line) for line in lines.splitlines()][:-1] == updates
    assert [update.version for update in updates] == list(range(1, len(updates) + 1))
    for name, last in writers.acknowledged.items():
        steps = [update.step for update in updates if update.writer == f"run:{name}"]
        # Each acknowledged step is there once, in order; one more may have been written and not acknowledged.
        assert steps == list(range(len(steps))) and len(steps) - 1 in (last, last + 1)
        assert last >= 1
    assert all(update.reason == f"{update.writer[-1]} {update.step}" for update in updates)
    assert torn or kills < 100, f"{torn} kills fell into the middle of a line: the test does not test it"

"""A run on a shared bank as its user meets it: resumed, started wrongly, and what others find in the bank."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from skill_ttrl.config import SkillTTRLConfig, load_config
from skill_ttrl.data.operators import bank_family
from skill_ttrl.errors import ConfigError, SkillBankError
from skill_ttrl.progress import SilentProgress
from skill_ttrl.runs.checkpoint import load_state
from skill_ttrl.skills.bank import SkillBank
from skill_ttrl.skills.folder import LOG_FILE
from skill_ttrl.stages import train
from skill_ttrl.stages.doctor.diagnose import diagnose
from skill_ttrl.stages.reports.inspect import inspect
from skill_ttrl.stages.targets.resolve import find_trained
from skill_ttrl.types import Skill
from tests.integration.test_chroma_server import free_port, start, stop

RL = ["phases=[rl]", "rl.reward=random", "skills.shared=true", "skills.index=memory"]


def config(file: Path, bank: Path, *more: str) -> SkillTTRLConfig:
    return load_config(file, [*RL, f"skills.bank={bank}", *more])


@pytest.fixture
def bank(tmp_path: Path) -> Path:
    with SkillBank(tmp_path / "bank", shared=True) as made:
        made.import_skills(bank_family("operators"))
    return tmp_path / "bank"


def updates(bank: Path) -> list[tuple[str, int | None, str]]:
    with SkillBank.open(bank, read_only=True) as opened:
        return [(update.writer.partition(":")[0], update.step, update.reason) for update in opened.history()]


@pytest.mark.slow
def test_a_resumed_run_takes_the_newest_version_and_repeats_no_update(
    tiny_skills_yaml: Path, bank: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    assert train.run(config(tiny_skills_yaml, bank), run).bank_version == 3
    assert not (run / "bank").exists()
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [(row["bank_version"], row["skills_conflicts"]) for row in rows] == [(2, 0), (3, 0)]
    shutil.rmtree(run / "checkpoints" / "rl-000002")
    (run / "summary.json").unlink()
    with SkillBank.open(bank) as by_hand:
        by_hand.add(Skill("mine", "Mine", "of another writer"))
    run = run.rename(tmp_path / "renamed")
    assert train.run(config(tiny_skills_yaml, bank), run, resume="auto").bank_version == 4
    assert updates(bank) == [("", None, "import"), ("run", 0, "merge"), ("run", 1, "merge"), ("", None, "add")]
    lines = (run / "trajectories.jsonl").read_text().splitlines()
    assert [
        {json.loads(line)["bank_version"] for line in lines if json.loads(line)["step"] == step} for step in (0, 1)
    ] == [{1}, {4}]
    # The trained policy is asked with the version that it saw.
    state = load_state(run / "checkpoints" / "rl-000002")["state"]
    view = find_trained(run).bank().view()
    assert state["bank_version"] == 4 and view is not None and "mine" in view.snapshot
    assert f"shared, at {bank}" in str(inspect(run).facts["skill bank"])


def test_a_run_that_begins_makes_the_bank_and_one_that_fails_leaves_nothing_in_its_folder(
    tiny_skills_yaml: Path, tmp_path: Path
) -> None:
    found = train.run(config(tiny_skills_yaml, tmp_path / "new", "rl.steps=0"), tmp_path / "run")
    assert found.bank_version == 0 and SkillBank.open(tmp_path / "new", read_only=True).settings.shared
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").write_text("mine")
    with pytest.raises(SkillBankError, match=r"holds other things \('file'\)"):
        train.run(config(tiny_skills_yaml, tmp_path / "other"), tmp_path / "failed")
    with pytest.raises(SkillBankError, match=r"holds at most 200 skills, and here max_skills is 90"):
        train.run(config(tiny_skills_yaml, tmp_path / "new", "skills.max_skills=90"), tmp_path / "failed")
    assert not (tmp_path / "failed").exists()


def test_a_bank_that_is_gone_or_an_older_copy_is_refused(tiny_skills_yaml: Path, bank: Path, tmp_path: Path) -> None:
    train.run(config(tiny_skills_yaml, bank, "rl.steps=1", "rl.lr_scheduler=constant"), tmp_path / "run")
    lengthened = config(tiny_skills_yaml, bank, "rl.steps=2", "rl.lr_scheduler=constant")
    log = (bank / LOG_FILE).read_bytes()
    (bank / LOG_FILE).write_bytes(log.partition(b"\n")[0] + b"\n")
    with pytest.raises(SkillBankError, match="is at version 1, but the run has seen version 2"):
        train.run(lengthened, tmp_path / "run", resume="auto")
    shutil.rmtree(bank)
    with pytest.raises(SkillBankError, match=r"is missing.*needs its version 2"):
        train.run(lengthened, tmp_path / "run", resume="auto")


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        (["skills.bank=null"], "needs skills.bank to name the folder"),
        (["skills.index=chroma"], r"needs skills.chroma_server .* or skills.index=memory"),
        (["skills.stale_after_steps=3"], "stale_after_steps counts the steps of one run"),
    ],
)
def test_settings_that_only_one_run_can_have(settings: list[str], why: str, tiny_skills_yaml: Path, bank: Path) -> None:
    with pytest.raises(ConfigError, match=why):
        config(tiny_skills_yaml, bank, *settings)


@pytest.mark.slow
def test_doctor_and_a_start_say_that_no_chroma_server_answers(
    tiny_skills_yaml: Path, bank: Path, tmp_path: Path
) -> None:
    with socket.socket() as taken:  # in use, by something that is no Chroma
        taken.bind(("127.0.0.1", 0))
        server = f"127.0.0.1:{taken.getsockname()[1]}"
        asked = config(tiny_skills_yaml, bank, "skills.index=chroma", f"skills.chroma_server={server}")
        (check,) = [check for check in diagnose(asked).checks if check.name == "chroma server"]
        assert check.status == "fail" and server in check.found and "chroma run" in check.advice
        with pytest.raises(SkillBankError, match=rf"The Chroma server {server} does not serve.*chroma run"):
            train.run(asked, tmp_path / "run")
    assert not (tmp_path / "run").exists()


class StopsTheServer(SilentProgress):
    """After the first step somebody adds a skill, whose vector is needed, and the server is gone."""

    def __init__(self, server: subprocess.Popen[bytes], bank: Path) -> None:
        self.server, self.bank = server, bank

    def advance(self, phase: str, done: int, metrics: Mapping[str, float]) -> None:
        with SkillBank.open(self.bank) as by_hand:
            by_hand.add(Skill("new", "New", "needs a vector"))
        stop(self.server)


@pytest.mark.slow
def test_a_server_that_dies_costs_no_finished_step(tiny_skills_yaml: Path, bank: Path, tmp_path: Path) -> None:
    server = start(tmp_path / "served", port := free_port())
    address = f"127.0.0.1:{port}"
    asked = config(tiny_skills_yaml, bank, "skills.index=chroma", "rl.save_steps=9", f"skills.chroma_server={address}")
    with pytest.raises(SkillBankError, match=address):
        train.run(asked, tmp_path / "run", progress=StopsTheServer(server, bank))
    assert [entry.name for entry in (tmp_path / "run" / "checkpoints").iterdir()] == ["rl-000001"]

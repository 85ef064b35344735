"""A run with a skill bank as its user meets it: started wrongly, gone on with, asked, and what is on the record."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from rich.console import Console

from skill_ttrl.cli.display import inspection_view, reply_view
from skill_ttrl.commands import evaluate, train
from skill_ttrl.commands.play import Reply
from skill_ttrl.commands.reports.inspect import inspect
from skill_ttrl.config import load_config
from skill_ttrl.errors import ConfigError, DataError, SkillBankError
from skill_ttrl.progress import SilentProgress
from skill_ttrl.skills.bank import SkillBank
from skill_ttrl.storage.jsonl import read_jsonl
from skill_ttrl.voting import majority_vote


class Heard(SilentProgress):
    """Keeps what is said."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def notice(self, text: str, *, warning: bool = False) -> None:
        self.texts.append(text)


@pytest.fixture(scope="module")
def trained(tiny_skills_yaml: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One run that all tests here look at and none changes."""
    folder = tmp_path_factory.mktemp("runs") / "trained"
    train.run(load_config(tiny_skills_yaml), folder)
    return folder


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ("data.max_prompt_tokens=2", DataError),
        ("skills.max_skills=3", SkillBankError),
        ("skills.merger=none", ConfigError),
        ("data.train.split=series-train", ConfigError),
    ],
)
def test_a_start_that_fails_leaves_nothing_and_can_be_mended(
    wrong: str, error: type[Exception], tiny_skills_yaml: Path, tmp_path: Path
) -> None:
    with pytest.raises(error):
        train.run(load_config(tiny_skills_yaml, ["phases=[rl]", wrong]), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    mended = load_config(tiny_skills_yaml, ["phases=[rl]", "rl.steps=0"])
    assert train.run(mended, tmp_path / "run").bank_skills == 80  # in the same process: no lock was left behind


@pytest.mark.parametrize("prompt_top_k", [0, 1])
def test_the_limit_of_a_prompt_is_that_of_the_task_without_its_skills(
    prompt_top_k: int, tiny_skills_yaml: Path, tmp_path: Path
) -> None:
    """The tasks pass `data.max_prompt_tokens` as they are, so their tries must pass it with what the bank adds."""
    (tmp_path / "skills.md").write_text("There is advice.\n$skills\n$question")
    (tmp_path / "skills_empty.md").write_text("$question")
    settings = ["phases=[rl]", "rl.steps=1", f"agent.prompts={tmp_path}", "model.builtin.max_positions=256"]
    settings += ["data.max_prompt_tokens=17", f"skills.prompt_top_k={prompt_top_k}", "skills.prompt_max_tokens=60"]
    train.run(load_config(tiny_skills_yaml, settings), tmp_path / "run")
    records = read_jsonl(tmp_path / "run" / "trajectories.jsonl")
    assert records and all(record["error"] is None for record in records)
    assert all(len(record["skills_in_prompt"]) == prompt_top_k for record in records)
    assert all(len(record["steps"][0]["prompt_ids"]) > 17 for record in records)


@pytest.mark.parametrize("lost", ["", "bank.json"])
def test_a_run_whose_bank_is_gone_says_so_and_makes_no_other(
    lost: str, trained: Path, tiny_skills_yaml: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(trained, folder)
    gone = folder / "bank" / lost
    shutil.rmtree(gone) if gone.is_dir() else gone.unlink()
    left = sorted(path.name for path in folder.rglob("*"))
    with pytest.raises(SkillBankError, match=r"is missing.*needs its version 3"):
        train.run(load_config(tiny_skills_yaml), folder, resume="auto")
    assert sorted(path.name for path in folder.rglob("*")) == left


def test_changes_by_hand_are_copied_before_a_run_goes_back_and_it_is_said(
    trained: Path, tiny_skills_yaml: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(trained, folder)
    with SkillBank.open(folder / "bank") as bank:
        mine = bank.add_from_dict({"id": "mine", "text": "Check it twice."}, reason="add by hand")
    said = Heard()
    train.run(load_config(tiny_skills_yaml), folder, resume="auto", progress=said)
    (warning,) = [text for text in said.texts if "other than the run changed" in text]
    assert "version 4 (add by hand)" in warning and f"is at {folder / 'bank-version-4'}" in warning
    with SkillBank.open(folder / "bank-version-4", read_only=True) as kept, SkillBank.open(folder / "bank") as own:
        assert kept.get("mine") == mine and own.get("mine") is None and own.version == 3
        assert all(update.writer == "run" for update in own.history())
    again = Heard()
    train.run(load_config(tiny_skills_yaml), folder, resume="auto", progress=again)
    assert not [
        text for text in again.texts if "other than the run changed" in text
    ]  # what the run itself did needs no copy


def test_what_a_model_wrote_cannot_act_on_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = {
        "phase": "rl",
        "task_id": "\x1b[31mred",
        "answer": "\x1b]0;title\x07",
        "text": "<think>seen</think>\u202eback\x9b2J",
    }
    (tmp_path / "votes.jsonl").write_text(json.dumps(line) + "\n")
    found = inspect(tmp_path / "votes.jsonl")
    Console().print(inspection_view(found))
    reply = Reply("q", ("\x1b[2Jhidden", "<think>\nseen</think>b"), ("\x1b[1m", None), majority_vote(["\x1b[1m", None]))
    Console().print(reply_view(reply))
    shown = capsys.readouterr().out
    texts = ("red", "hidden", "sample 2 of 2", "[thought: 4 characters] back", "thought: 4 characters (--json")
    assert all(text in shown for text in texts) and "seen" not in shown and not set(shown) & set("\x1b\x07\x9b\u202e")


def test_another_bank_can_be_measured_with(trained: Path) -> None:
    quick = ["eval.greedy=false"]
    own = evaluate.run(trained, quick)
    other = evaluate.run(trained, [*quick, "skills.bank=synthetic:operators-shuffled"])
    assert own.problems == other.problems and other.skill_use
    with pytest.raises(SkillBankError, match="there is nothing at nowhere"):
        evaluate.run(trained, [*quick, "skills.bank=nowhere"])


def test_a_bank_that_is_off_is_not_changed(tiny_skills_yaml: Path, tmp_path: Path) -> None:
    train.run(load_config(tiny_skills_yaml, ["skills.enabled=false", "sft.steps=1"]), tmp_path / "off")
    with SkillBank.open(tmp_path / "off" / "bank", read_only=True) as bank:
        assert [update.reason for update in bank.history()] == ["import synthetic:operators"]

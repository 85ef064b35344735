"""A run with a skill bank as its user meets it: started wrongly, gone on with, asked, and what is on the record."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from skill_ttrl.agents.agent import Agent, PromptSkills
from skill_ttrl.cli.display.tables import inspection_view, reply_view
from skill_ttrl.config import load_config
from skill_ttrl.errors import ConfigError, DataError, SkillBankError
from skill_ttrl.progress import SilentProgress
from skill_ttrl.runs.summary import read_summary
from skill_ttrl.skills.bank.bank import SkillBank
from skill_ttrl.stages import evaluate, merge, train
from skill_ttrl.stages.inspecting.inspect import inspect
from skill_ttrl.stages.targets.play import Reply, ask
from skill_ttrl.stages.targets.trained import find_trained
from skill_ttrl.stages.training.metrics import group_metrics
from skill_ttrl.stages.training.run_bank import skill_metrics
from skill_ttrl.storage.jsonl import read_jsonl
from skill_ttrl.types import Completion, Group, SkillOps, Step, Task, Trajectory
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


def test_the_run_s_end_says_how_many_rollouts_were_given_each_skill(
    trained: Path,
) -> None:
    summary = read_summary(trained)
    counts = [count for count, _ in summary.skill_exposure.values()]
    assert sum(counts) > 0 and max(counts) <= summary.skill_rollouts and summary.skills_never_given
    notes = inspect(trained).notes
    assert any(text.startswith("Skills shown in") for text in notes)


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ("data.max_prompt_tokens=2", DataError),
        ("skills.max_skills=3", SkillBankError),
        ("skills.embedder=none", ConfigError),
        ("skills.merger=none", ConfigError),
        ("data.train.split=series-train", ConfigError),
        ("rl.prompts_per_step=7", ConfigError),
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


def test_the_templates_around_skills_count_against_the_models_positions(tiny_skills_yaml: Path, tmp_path: Path) -> None:
    (tmp_path / "retrieved.md").write_text("word " * 60 + "$skills\n")
    fits = ["phases=[rl]", "rl.steps=0", "model.builtin.max_positions=108"]
    assert train.run(load_config(tiny_skills_yaml, fits), tmp_path / "fits").problems == 4
    with pytest.raises(ConfigError, match=r"the templates around skills \(\d+\)"):
        train.run(load_config(tiny_skills_yaml, [*fits, f"agent.prompts={tmp_path}"]), tmp_path / "run")


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


def test_the_samples_of_a_run_are_in_its_bank_already(trained: Path, tmp_path: Path) -> None:
    shutil.copytree(trained, tmp_path / "run")
    records = read_jsonl(tmp_path / "run" / "metrics.jsonl")
    assert all(row["skills_rejected"] >= 0 for row in records if row["phase"] == "rl")
    found = merge.run(tmp_path / "run", tmp_path / "run" / "bank")
    assert not found.updates and "groups of samples are in this bank already" in found.notes[0]


@pytest.mark.parametrize(("overrides", "looks"), [((), True), (("skills.enabled=false",), False)])
def test_asking_looks_at_the_bank_as_the_run_did(
    overrides: tuple[str, ...], looks: bool, trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = []
    choose = Agent.select_skills

    def watched(self: Agent, *asked: Any) -> list[PromptSkills]:
        shown.append(choose(self, *asked))
        return shown[-1]

    monkeypatch.setattr(Agent, "select_skills", watched)
    ask(find_trained(trained, overrides), "Compute bako 4.")
    ((chosen,),) = shown
    assert bool(chosen.skills) is looks


def test_inserted_tokens_are_counted_apart() -> None:
    """Of six tokens the model wrote four."""
    done = Completion("", (1,) * 6, (0.0,) * 6, "stop", completion_mask=(True, True, False, False, True, True))
    step = Step("", "", 0.0, True, False, completion=done)
    task = Task("t", "env")
    tried = Trajectory(task, (step,), None, "terminated", reward=0.0, ops=SkillOps())
    silent = Trajectory(task, (), None, "error", reward=0.0, error="broken", ops=SkillOps())
    group = Group(task, (tried, silent))
    assert group_metrics([group])["completions/mean_length"] == 4
    assert skill_metrics([group])["retrieved_tokens"] == 1  # two over two tries


def test_what_a_model_wrote_cannot_act_on_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = {"phase": "rl", "task_id": "\x1b[31mred", "answer": "\x1b]0;title\x07", "text": "\u202eback\x9b2J"}
    (tmp_path / "votes.jsonl").write_text(json.dumps(line) + "\n")
    found = inspect(tmp_path / "votes.jsonl")
    Console().print(inspection_view(found))
    reply = Reply("q", ("\x1b[2Jhidden", "b"), ("\x1b[1m", None), majority_vote(["\x1b[1m", None]))
    Console().print(reply_view(reply))
    shown = capsys.readouterr().out
    assert "red" in shown and "hidden" in shown and not set(shown) & set("\x1b\x07\x9b\u202e")


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


@pytest.mark.parametrize("changed", ["agent.max_turns=1", "skills.max_retrievals=0", "skills.retrieval=hybrid"])
def test_notes_that_nobody_could_find_are_refused(changed: str) -> None:
    with pytest.raises(ConfigError, match="episode_notes needs"):
        load_config("quickstart_notes", [changed])

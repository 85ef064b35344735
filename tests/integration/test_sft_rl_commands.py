"""`skillttrl collect`, `distill`, `sft`, `rl` and `inspect` one after another, as the documentation calls them, and their refusals."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path

import pytest

from skill_ttrl.commands.launch import Launch
from skill_ttrl.config import load_config
from skill_ttrl.skills.bank import SkillBank
from skill_ttrl.storage.jsonl import read_jsonl
from tests.integration.test_cli_commands import refused, skillttrl
from tests.integration.test_skillrl_run import ALFWORLD

COLLECT = ("collect", "--env", "alfworld", "--env-data", "generated", "--limit", 18, "--set", "env.kwargs.max_steps=16")
SMALL = ("--set", "rl.steps=1", "--set", "sft.steps=1")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A working directory with a recipe, in which the commands were called one after another."""
    folder = tmp_path_factory.mktemp("work")
    (folder / "recipe.yaml").write_text(ALFWORLD)
    with chdir(folder):
        yield folder


@pytest.fixture(scope="module")
def episodes(place: Path) -> Path:
    done = skillttrl(*COLLECT, "--epsilon", 0.25, "-o", "runs/a/trajectories.jsonl")
    assert done.code == 0 and "18 episodes" in done.out, done
    return Path("runs/a/trajectories.jsonl")


@pytest.fixture(scope="module")
def bank(episodes: Path) -> Path:
    done = skillttrl("distill", "--trajectories", episodes, "-o", "runs/a/bank")
    assert done.code == 0 and "new skills" in done.out, done
    return Path("runs/a/bank")


@pytest.fixture(scope="module")
def imitated(bank: Path) -> Path:
    done = skillttrl("sft", "recipe.yaml", "--bank", bank, "--examples", 50, *SMALL)
    assert done.code == 0 and "Results: runs/a/sft." in " ".join(done.out.split()), done
    return Path("runs/a/sft")


@pytest.fixture(scope="module")
def reinforced(imitated: Path, bank: Path) -> Path:
    planned = skillttrl("rl", "--bank", bank, *SMALL, "--dry-run", "--json")
    assert planned.code == 0 and planned.json["phases"][0]["phase"] == "rl" and not planned.json["obstacles"], planned
    done = skillttrl("rl", "--bank", bank, *SMALL)
    assert done.code == 0 and "Results: runs/a/rl." in " ".join(done.out.split()), done
    return Path("runs/a/rl")


def test_the_cold_start_stands_beside_the_bank_and_shows_its_skills(imitated: Path, bank: Path) -> None:
    config = load_config(imitated / "config.yaml")
    assert config.phases == ["sft"] and config.skills is not None and config.skills.bank == "runs/a/bank"
    assert config.demonstrations.trajectories == "runs/a/trajectories.jsonl" and config.demonstrations.examples == 50
    shown = read_jsonl(imitated / "demonstrations.jsonl")
    with SkillBank.open(bank, read_only=True) as began, SkillBank.open(imitated / "bank", read_only=True) as now:
        known = {skill.id for skill in began}
        assert {skill.id for skill in now} == known
    assert len(shown) == 50 and {name for chat in shown for name in chat["skills"]} <= known
    assert any(chat["skills"] for chat in shown) and not all(chat["skills"] for chat in shown)


def test_reinforcement_goes_on_from_the_cold_start_beside_the_bank(reinforced: Path, imitated: Path) -> None:
    config = load_config(reinforced / "config.yaml")
    assert config.phases == ["rl"] and config.model.path == str((imitated / "checkpoints" / "sft-000001").resolve())
    assert config.skills is not None and config.skills.bank == "runs/a/bank" and config.evolve is not None
    assert config.agent.actions == "numbered", "the recipe is that of the cold start"
    with SkillBank.open(reinforced / "bank", read_only=True) as bank:
        assert "evolve" in {skill.source for skill in bank}, "in the run's own bank; the one it began with is as it was"
    with SkillBank.open(Path("runs/a/bank"), read_only=True) as bank:
        assert {skill.source for skill in bank} == {"distill"}


def test_reinforcement_from_a_run_begins_with_that_run_s_bank_unless_another_is_named(
    imitated: Path, bank: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    which = "runs/a/sft/checkpoints/sft-000001"
    began: list[str | None] = []

    def would_run(found: Launch, **_: object) -> None:
        skills = found.load().skills
        began.append(None if skills is None else skills.bank)

    monkeypatch.setattr("skill_ttrl.cli.train.run_or_check", would_run)
    done = skillttrl("rl", "recipe.yaml", "--policy", which)
    own = str(Path("runs/a/sft/bank"))
    assert began == [began[0]] and Path(began[0] or "").resolve() == Path(own).resolve(), done
    assert "of the run in --policy" in " ".join(done.err.split())
    skillttrl("rl", "recipe.yaml", "--policy", which, "--bank", bank)
    skillttrl("rl", "recipe.yaml", "--policy", which, "--set", "skills.bank=synthetic:operators")
    assert began[1:] == ["runs/a/bank", "synthetic:operators"]
    done = skillttrl("rl", "recipe.yaml", "--policy", which, "--set", "skills=null", "--set", "evolve=null")
    assert began[3] is None and "Skill bank:" not in done.err


def test_a_quickstart_s_data_and_what_can_be_imitated_are_those_of_the_episodes(
    bank: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The recipe imitates advice, which is nowhere in episodes that were collected without --epsilon."""
    monkeypatch.setattr("skill_ttrl.commands.launch.quickstart_of", lambda episodes: "recipe.yaml")
    assert skillttrl(*COLLECT, "-o", tmp_path / "trajectories.jsonl").code == 0
    shutil.copytree(bank, tmp_path / "bank")
    done = skillttrl("sft", "--bank", tmp_path / "bank", *SMALL)
    assert done.code == 0 and "collected without --epsilon" in " ".join(done.err.split()), done
    config = load_config(tmp_path / "sft" / "config.yaml")
    assert config.demonstrations.label == "success" and config.env.kwargs["data"] == "generated"
    done = skillttrl("sft", "--bank", tmp_path / "bank", *SMALL, "--set", "demonstrations.label=expert")
    refused(done, 3, "--epsilon")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["sft"], 2, "Name a config"),
        (["rl", "--policy", "nowhere"], 2, "nowhere"),
        (["sft", "--bank", "runs/a/bank", "--set", "sft.steps=-1"], 2, "quickstart_skills_alfworld"),
        (["sft", "recipe.yaml", "--bank", "runs/empty/bank"], 2, "runs/empty/trajectories.jsonl"),
        (["rl", "--bank", "runs/empty/bank"], 2, "runs/empty/sft"),
        (["sft", "--trajectories", "nowhere.jsonl"], 3, "nowhere.jsonl"),
    ],
)  # fmt: skip
def test_mistakes_are_said_and_leave_nothing(words: list[str], code: int, said: str, bank: Path) -> None:
    Path("runs/empty").mkdir(exist_ok=True)
    before = sorted(map(str, Path("runs").rglob("*")))
    done = skillttrl(*words)
    refused(done, code)
    assert said in " ".join(done.err.split()), done.err
    assert sorted(map(str, Path("runs").rglob("*"))) == before


@pytest.mark.slow
def test_a_run_s_own_bank_brings_what_the_run_collected(episodes: Path, tmp_path: Path) -> None:
    settings = ("--set", "sft.steps=1", "--set", "rl.steps=1")
    assert skillttrl("train", "recipe.yaml", "-o", "runs/whole", *settings).code == 0
    before = sorted(os.listdir("runs/whole"))
    done = skillttrl("sft", "recipe.yaml", "--bank", "runs/whole/bank", *settings, "--json")
    assert done.code == 0 and sorted(os.listdir("runs/whole")) == before, "nothing is put into the run"
    config = load_config("runs/tiny-alfworld/config.yaml")
    assert config.demonstrations.trajectories == "runs/whole/collected.jsonl"
    assert skillttrl("rl", "--bank", "runs/whole", *settings, "-o", tmp_path / "rl").code == 0
    assert "rl-000001" in load_config(tmp_path / "rl" / "config.yaml").model.path

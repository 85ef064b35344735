"""SkillRL on generated ALFWorld games: the whole loop in one run, killed and resumed, and its phases by the commands sft and rl."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import chdir
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from skill_ttrl.commands import train
from skill_ttrl.commands.launch import Launch
from skill_ttrl.config import SkillTTRLConfig, load_config
from skill_ttrl.errors import RunFolderError, SkillTTRLError
from skill_ttrl.llm.chat import encode_chat
from skill_ttrl.rollout.episode import ADVICE
from skill_ttrl.skills.bank import SkillBank
from skill_ttrl.storage.jsonl import read_jsonl
from skill_ttrl.train.build import build_policy
from skill_ttrl.train.encode import demonstrate
from skill_ttrl.train.open_run import read_run_bank
from skill_ttrl.types import Trajectory, from_json
from tests.integration.test_cli_commands import refused, skillttrl
from tests.integration.test_skill_commands import Heard
from tests.preloaded import run_code

pytest.importorskip("alfworld", reason="the generated games need the floor plans of alfworld")

ALFWORLD = """\
name: tiny-alfworld
phases: [collect, distill, sft, rl]
env:
  id: alfworld
  kwargs: {data: generated, max_steps: 12}
  train_tasks: 12
  eval_split: valid_unseen
  eval_tasks: 2
agent:
  template: episode
  prompts: tiny
  context_mode: window
  history_length: 2
  max_observation_tokens: 1
  actions: numbered
  action_order: words
  hidden_verbs: [close, examine, help, inventory, look, slice]
  action_parser: action
  max_turns: 4
data: {max_prompt_tokens: 900}
model:
  path: builtin
  builtin: {hidden_size: 16, layers: 1, heads: 2, max_positions: 1200, merges: 50, numbers: 40}
collect: {agent: expert, episodes: 24, rollouts_per_task: 2, epsilon: 0.2}
demonstrations: {examples: 60, label: expert}
skills:
  embedder: hash
  index: memory
  prompt_top_k: 2
  prompt_max_tokens: 200
  max_retrievals: 0
  update: none
evolve: {every: 1, threshold: 0.9, min_episodes: 1}
sft: {steps: 2, batch_size: 4, micro_batch_size: 4, save_steps: 1}
rollout: {n_votes_per_prompt: 2, n_samples_per_prompt: 2, max_new_tokens: 2}
rl:
  reward: env
  steps: 2
  prompts_per_step: 2
  lr_scheduler: constant
  mini_batch_size: null
  micro_batch_size: 8
  kl_coef: 0.0
  invalid_action_penalty_coef: 0.1
  save_steps: 1
eval: {samples: 1, temperature: 0.4, greedy: false}
runtime: {device: cpu, threads: 1}
"""

WEBSHOP = {
    "name": "tiny-webshop",
    "env": {"id": "webshop", "kwargs": {"data": "generated", "max_steps": 6}, "train_tasks": 8, "eval_tasks": 2},
    "agent.hidden_verbs": [],
    "collect": {"agent": "careful", "episodes": 8, "epsilon": 0.1},
    "sft.steps": 1,
    "rl.steps": 1,
}

PROMISED = (
    "collected.jsonl collected.jsonl.json demonstrations.jsonl coverage.json metrics.jsonl evaluations.jsonl evolve.jsonl "
    "trajectories.jsonl bank/log.jsonl checkpoints/sft-000002/model.safetensors checkpoints/rl-000002/model.safetensors "
    "checkpoints/rl-000002/trainer.pt"
).split()
"""What two runs of one seed share, byte by byte."""


def webshop() -> SkillTTRLConfig:
    return load_config_text([f"{key}={json.dumps(value)}" for key, value in WEBSHOP.items()])


def load_config_text(overrides: list[str] | None = None) -> SkillTTRLConfig:
    return load_config(yaml.safe_load(ALFWORLD), overrides or [])


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One run that nothing disturbed."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    train.run(load_config_text(), folder, source=ALFWORLD)
    return folder


def rows(run: Path, name: str) -> list[dict[str, Any]]:
    return read_jsonl(run / name)


def summary_of(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "summary.json").read_text())
    return found


def test_every_phase_leaves_its_files(whole: Path) -> None:
    assert {entry.name for entry in whole.iterdir()} >= {name.split("/")[0] for name in PROMISED}
    assert len(rows(whole, "collected.jsonl")) == 24
    with SkillBank.open(whole / "bank", read_only=True) as bank:
        reasons = [update.reason for update in bank.history()]
        sources = {skill.source for skill in bank}
    assert reasons[0] == "distill" and "evolve" in reasons and sources == {"distill", "evolve"}
    looks = rows(whole, "evolve.jsonl")
    assert [look["step"] for look in looks] == [0, 1] and sum(look["added"] for look in looks) > 0
    assert {entry.name for entry in (whole / "checkpoints").iterdir()} >= {"sft-000002", "rl-000002"}


def test_coverage_is_of_the_episodes_that_are_imitated(whole: Path) -> None:
    found = json.loads((whole / "coverage.json").read_text())
    assert found["examples"] == 60 and found["episodes"] <= 24 and 0 < found["won"] <= found["episodes"]
    assert sum(found["by_type"].values()) == 60 and found["not_possible"] == 0
    assert 0 < found["no_skill_fraction"] < 1
    assert sum(found["skills_shown"].values()) > 0


def test_demonstrations_are_chats_that_other_trainers_read(whole: Path) -> None:
    found = rows(whole, "demonstrations.jsonl")
    assert len(found) == 60
    for chat in found:
        roles = [message["role"] for message in chat["messages"]]
        assert roles[-1] == "assistant" and "user" in roles and set(roles) <= {"system", "user", "assistant"}
        answer = chat["messages"][-1]["content"]
        assert re.fullmatch(r"<action>\[\d+\]</action>", answer), "actions are numbered"
    assert {chat["task"] for chat in found} <= {each["task"]["id"] for each in rows(whole, "collected.jsonl")}


def test_a_demonstration_s_prompt_is_what_the_policy_is_asked_in_the_same_scene(whole: Path) -> None:
    """The policy's own episodes, made into demonstrations with the skills that it was shown, have the tokens of its prompts."""
    config = load_config(whole / "config.yaml")
    parts = build_policy(config, weights=whole / "checkpoints" / "rl-000002")
    asked = config.demonstrations.model_copy(
        update={"no_skill_fraction": 0.0, "random_skill_fraction": 0.0, "examples": None}
    )
    compared = with_skills = 0
    for row in rows(whole, "trajectories.jsonl"):
        played = from_json(Trajectory, json.dumps({key: row[key] for key in row.keys() - {"phase", "step", "sample"}}))
        steps = [replace(step, info={**step.info, ADVICE: step.admissible_actions[0]}) for step in played.steps]
        bank = read_run_bank(config.skills, whole, played.bank_version)
        assert bank is not None and parts.agent.skills is not None
        shown = demonstrate([replace(played, steps=tuple(steps))], parts.agent.with_bank(bank.view()), asked, 0)[0]
        bank.close()
        assert [each.skills for each in shown] == [played.skills_in_prompt] * len(steps)
        for step, each in zip(steps, shown, strict=True):
            assert tuple(encode_chat(parts.context.loaded.tokenizer, each.messages)) == step.prompt_ids
            compared, with_skills = compared + 1, with_skills + bool(each.skills)
    parts.backend.close()
    assert compared > 20 and with_skills > 10


@pytest.mark.slow
def test_a_run_that_failed_after_collecting_goes_on_with_the_mended_config(tmp_path: Path) -> None:
    """What was played is not played again; other episodes than those asked for are not taken."""
    heard = Heard()
    with pytest.raises(SkillTTRLError, match=r"1\d* positions|has .* positions"):
        train.run(load_config_text(["model.builtin.max_positions=1103"]), tmp_path / "run")
    played = (tmp_path / "run" / "collected.jsonl").read_bytes()
    assert not (tmp_path / "run" / "bank").exists()
    with pytest.raises(RunFolderError, match="already holds a run"):
        train.run(load_config_text(["rl.steps=1"]), tmp_path / "run")
    with pytest.raises(RunFolderError, match="explore"):
        train.run(load_config_text(["collect.epsilon=0.4"]), tmp_path / "run", resume="auto")
    train.run(load_config_text(["rl.steps=1"]), tmp_path / "run", resume="auto", progress=heard)
    assert (tmp_path / "run" / "collected.jsonl").read_bytes() == played
    assert any("the new config is used" in text for text in heard.texts)
    assert any("All 24 episodes" in text for text in heard.texts)
    assert any("skills from 24 episodes" in text for text in heard.texts)
    assert load_config(tmp_path / "run" / "config.yaml").rl.steps == 1
    with pytest.raises(RunFolderError, match=r"belongs to another config: rl.grad_clip 1.0 there, 2.0 here"):
        train.run(load_config_text(["rl.steps=1", "rl.grad_clip=2"]), tmp_path / "run", resume="auto")


KEPT = """metrics.jsonl evaluations.jsonl evolve.jsonl trajectories.jsonl collected.jsonl collected.jsonl.json demonstrations.jsonl
coverage.json bank/log.jsonl checkpoints/rl-000003/model.safetensors checkpoints/rl-000003/trainer.pt""".split()

SETTINGS = ["rl.steps=3", "rl.save_steps=2", "sft.steps=4", "sft.save_steps=2", "evolve.every=1"]

HARNESS = '''
import json, os, signal, sys
import skill_ttrl.cli.display, skill_ttrl.commands.train, transformers.models.qwen2.modeling_qwen2, accelerate, peft
import skill_ttrl.rollout.rollout as rollout, skill_ttrl.commands.distill as distill, skill_ttrl.train.imitate as imitate
import skill_ttrl.train.rules as rules, skill_ttrl.train.encode as encode, skill_ttrl.commands.train as gather
import skill_ttrl.runs.checkpoint as checkpoint
from skill_ttrl.cli.main import main
from skill_ttrl.runs.folder import RunFolder
from skill_ttrl.rl.learner import LocalLearner
from skill_ttrl.rl.sft_learner import SFTLearner
from skill_ttrl.skills.bank import SkillBank
from skill_ttrl.skills.evolution import Evolver
from skill_ttrl.commands.collect import EpisodeWriter
from skill_ttrl.envs import env_tasks

for split in ("train", "valid_unseen"):
    env_tasks("alfworld", {"data": "generated", "max_steps": 12}, split, 12)  # listed once, not by every child
config, folder, settings, stops = sys.argv[1], sys.argv[2], json.loads(sys.argv[3]), json.loads(sys.argv[4])
PLACES = {
    "collect": (rollout, "_play_scripted"),
    "kept": (EpisodeWriter, "add"),
    "between": (rules, "make_teacher"),
    "distill": (gather, "distill_into"),
    "distilled": (SkillBank, "apply"),
    "demonstrate": (encode, "coverage"),
    "sft": (SFTLearner, "step"),
    "rl": (LocalLearner, "update"),
    "evolve": (Evolver, "evolve"),
    "evolved": (SkillBank, "apply"),
    "evaluate": (RunFolder, "write_text"),
    "save": (checkpoint, "_seal"),
}


def signalled(place, nth, name, after):
    """The child signals itself when it comes to a place for the nth time, before or after what is done there."""
    owner, attribute = PLACES[place]
    whole, came = getattr(owner, attribute), [0]

    def replaced(*words, **named):
        came[0] += 1
        if came[0] == nth and not after:
            os.kill(os.getpid(), getattr(signal, name))
        found = whole(*words, **named)
        if came[0] == nth and after:
            os.kill(os.getpid(), getattr(signal, name))
        return found

    setattr(owner, attribute, replaced)


def attempt(stop):
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    code = 1
    with open(folder + ".log", "a") as log:
        os.dup2(log.fileno(), 1), os.dup2(log.fileno(), 2)
    try:
        if stop is not None:
            signalled(*stop)
        more = [word for setting in settings for word in ("--set", setting)]
        sys.argv = ["skillttrl", "train", config, "-o", folder, "--resume", "auto", *more]
        main()
        code = 0
    except SystemExit as leaving:
        code = leaving.code or 0
    finally:
        sys.stdout.flush()
        os._exit(code)


print(json.dumps([attempt(stop) for stop in [*stops, None]]))
'''


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("config") / "tiny.yaml"
    path.write_text(ALFWORLD)
    return path


@pytest.fixture(scope="module")
def whole_mixed(recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "never-stopped"
    assert attempts(recipe, folder) == [0], log_of(folder)
    return folder


def attempts(recipe: Path, folder: Path, *stops: Sequence[Any], settings: Sequence[str] = SETTINGS) -> Any:
    """Exit codes of the attempts, each stopped at (place, nth time, signal, whether after it), and of a last one that is not."""
    done = run_code(HARNESS, recipe, folder, json.dumps(settings), json.dumps(stops), timeout=240)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def log_of(folder: Path) -> str:
    return " ".join(folder.with_name(f"{folder.name}.log").read_text().split())


def assert_same(stopped: Path, whole_mixed: Path) -> None:
    for name in KEPT:
        assert (stopped / name).read_bytes() == (whole_mixed / name).read_bytes(), name
    summaries = [json.loads((run / "summary.json").read_text()) for run in (stopped, whole_mixed)]
    assert {**summaries[0], "seconds": 0} == {**summaries[1], "seconds": 0}
    assert sorted(entry.name for entry in stopped.iterdir()) == sorted(entry.name for entry in whole_mixed.iterdir())


def killed(place: str, nth: int = 1, *, after: bool = False) -> tuple[str, int, str, bool]:
    return place, nth, "SIGKILL", after


@pytest.mark.slow
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(
    ("place", "nth"),
    [
        ("collect", 1),
        ("collect", 13),
        ("collect", 24),
        ("between", 1),
        ("distill", 1),
        ("distilled", 1),
        ("demonstrate", 1),
        ("sft", 1),
        ("sft", 3),
        ("save", 1),
        ("rl", 1),
        ("rl", 2),
        ("evolve", 1),
        ("evolve", 2),
        ("evolved", 3),
        ("save", 3),
    ],
)
def test_killed_anywhere_it_ends_as_if_nothing_had_been(
    place: str, nth: int, after: bool, recipe: Path, whole_mixed: Path, tmp_path: Path
) -> None:
    assert attempts(recipe, tmp_path / "run", killed(place, nth, after=after)) == [-9, 0]
    assert_same(tmp_path / "run", whole_mixed)


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
    assert done.code == 0 and "Results: runs/a/sft;" in " ".join(done.out.split()), done
    return Path("runs/a/sft")


@pytest.fixture(scope="module")
def reinforced(imitated: Path, bank: Path) -> Path:
    planned = skillttrl("rl", "--bank", bank, *SMALL, "--dry-run", "--json")
    assert planned.code == 0 and planned.json["phases"][0]["phase"] == "rl" and not planned.json["obstacles"], planned
    done = skillttrl("rl", "--bank", bank, *SMALL)
    assert done.code == 0 and "Results: runs/a/rl;" in " ".join(done.out.split()), done
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

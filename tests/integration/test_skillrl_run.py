"""SkillRL's pipeline in one run: collect, distill, cold start and reinforcement with skills that evolve, on generated tasks."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from skill_ttrl.commands import train
from skill_ttrl.config import SkillTTRLConfig, load_config
from skill_ttrl.errors import RunFolderError, SkillTTRLError
from skill_ttrl.llm.chat import encode_chat
from skill_ttrl.rollout.episode import ADVICE
from skill_ttrl.skills.bank import SkillBank
from skill_ttrl.storage.jsonl import read_jsonl
from skill_ttrl.train.encode import demonstrate
from skill_ttrl.train.open_run import read_run_bank
from skill_ttrl.train.policy import build_policy
from skill_ttrl.types import Trajectory, from_json
from tests.integration.test_skill_run import Heard

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

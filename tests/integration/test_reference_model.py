"""The reference of the KL term is the model that the reinforcement starts with: the cold start's, however it came here."""

from __future__ import annotations

from pathlib import Path

import pytest

from skill_ttrl.commands.play import export
from skill_ttrl.commands.resolve import find_trained
from skill_ttrl.commands.train import run
from skill_ttrl.config import ModelConfig, load_config
from skill_ttrl.errors import ModelError
from skill_ttrl.llm.models.load import load_model
from skill_ttrl.runs.reader import read_run

KL = [
    "rl.kl_coef=0.5", "rl.reward=random", "rl.learning_rate=1e-2", "rl.steps=2", "rl.warmup_steps=0",
    "eval.greedy=false", "eval.samples=1", "eval.extra_temperatures=[]",
]  # fmt: skip
LORA = ["model.lora={r: 2, alpha: 16}"]
EXACTLY = 1e-6
"""Nats a token."""


@pytest.fixture(scope="module")
def cold(tiny_yaml: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a cold start alone, of all weights."""
    folder = tmp_path_factory.mktemp("cold") / "run"
    run(load_config(tiny_yaml, ["phases=[sft]"]), folder)
    return folder


@pytest.fixture(scope="module")
def base(cold: Path) -> Path:
    """Its model, to put adapters on."""
    return export(find_trained(cold), cold.parent / "base")


def kl_of(config: Path, folder: Path, *overrides: str) -> list[float]:
    """KL (nats a token) from the reference before each update of a run."""
    run(load_config(config, [*KL, *overrides]), folder)
    metrics = read_run(folder).metrics
    found: list[float] = metrics[metrics["phase"] == "rl"]["kl"].tolist()
    return found


def test_after_a_cold_start_of_the_same_run(tiny_yaml: Path, tmp_path: Path) -> None:
    first, second = kl_of(tiny_yaml, tmp_path / "run")
    assert first == pytest.approx(0, abs=EXACTLY) and second > 1e-3


@pytest.mark.slow
def test_new_adapters_on_a_cold_start_of_adapters_are_held_to_it_and_not_to_the_bare_base(
    tiny_yaml: Path, base: Path, tmp_path: Path
) -> None:
    settings = [f"model.path={base}", *LORA, "phases=[sft]", "sft.optimizer=adamw", "sft.learning_rate=0.05"]
    run(load_config(tiny_yaml, [*settings, "model.builtin={}"]), tmp_path / "cold")
    adapted = find_trained(tmp_path / "cold")
    with pytest.raises(ModelError, match="--merge-lora"):  # bare adapters would learn on, held to the base under them
        run(load_config(tiny_yaml, ["phases=[rl]", f"model.path={adapted.weights}", *LORA]), tmp_path / "refused")
    merged = export(adapted, tmp_path / "merged", merged=True)
    first, second = kl_of(tiny_yaml, tmp_path / "run", "phases=[rl]", f"model.path={merged}", *LORA)
    assert first == pytest.approx(0, abs=EXACTLY) and second > 1e-3
    assert scores(merged) != pytest.approx(scores(base), abs=1e-2)


def scores(model: Path) -> list[float]:
    """Log-probs of a few tokens."""
    import torch

    loaded = load_model(ModelConfig(path=str(model)), device="cpu")
    with torch.no_grad():
        logits = loaded.model(input_ids=torch.arange(3, 9)[None]).logits
    found: list[float] = torch.log_softmax(logits, -1)[0, -1].tolist()
    return found

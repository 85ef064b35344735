"""Whole runs whose sampler is a vLLM engine in this process: full weights, adapters, resumed, measured, and engines that fail."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from skill_ttrl.commands import evaluate, train
from skill_ttrl.commands.play import ask
from skill_ttrl.commands.resolve import find_trained
from skill_ttrl.config import SkillTTRLConfig, load_config
from skill_ttrl.errors import ModelError, WeightSyncError
from skill_ttrl.llm.backend import BackendContext, Generation, Request, Sampling, wait_for
from skill_ttrl.llm.backends import make_backend
from skill_ttrl.llm.models.builtin import build_tokenizer
from skill_ttrl.llm.models.load import LoadedModel, load_model, save_model
from skill_ttrl.llm.vllm.checks import compare, learner_logprobs
from skill_ttrl.llm.vllm.engine import DUMP, score
from skill_ttrl.storage.jsonl import read_jsonl
from skill_ttrl.types import Message

pytest.importorskip("vllm")
pytestmark = pytest.mark.vllm

STEPS = 3
SETTINGS = [
    "rollout.backend=vllm",
    "model.builtin={hidden_size: 128, heads: 4, layers: 2, max_positions: 128}",
    "sft.steps=30", "sft.data.limit=512", f"rl.steps={STEPS}", "rl.prompts_per_step=8", "rl.save_steps=1",
    "rollout.n_votes_per_prompt=8", "rollout.n_samples_per_prompt=8", "data.train.limit=32", "data.eval.limit=16",
    "eval.samples=4", "runtime.threads=1",
]  # fmt: skip


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cold start and a few steps of reinforcement."""
    folder = tmp_path_factory.mktemp("runs") / "weights"
    train.run(load_config("quickstart", SETTINGS), folder)
    return folder


def lora_config(trained: Path, updates: str, *more: str) -> SkillTTRLConfig:
    """Reinforcement of adapters on the cold-started model."""
    cold = trained / "checkpoints" / "sft-000030"
    assert cold.is_dir()
    return load_config(
        "quickstart",
        [*SETTINGS, "phases=[rl]", f"model.path={cold}", "model.lora={r: 4}", f"vllm.weight_sync={updates}", *more],
    )


def look_at(folder: Path) -> None:
    """Every step sampled from the weights of the step before, and the learner found the sampler's log-probs to be its own."""
    steps = [row for row in read_jsonl(folder / "metrics.jsonl") if row["phase"] == "rl"]
    assert [row["step"] for row in steps] == list(range(STEPS))
    assert all(
        0 < row["sampling/logp_difference/mean"] < 1e-4 and row["sampling/logp_difference/max"] < 1e-3 for row in steps
    )
    assert all(row["grad_norm"] > 0 for row in steps)
    versions: dict[int, set[int]] = {}
    for line in read_jsonl(folder / "trajectories.jsonl"):
        completions = [step["completion"] for step in line["steps"]]
        versions.setdefault(line["step"], set()).update(done["policy_version"] for done in completions)
    assert versions == {step: {step} for step in range(STEPS)}


def test_a_run_follows_all_weights(trained: Path) -> None:
    look_at(trained)


@pytest.mark.parametrize("updates", ["lora", "full"])
def test_a_run_follows_adapters(updates: str, trained: Path, tmp_path: Path) -> None:
    config = lora_config(trained, updates, "vllm.enable_sleep_mode=true", "rl.learning_rate=1e-2")
    train.run(config, tmp_path / "run")
    look_at(tmp_path / "run")
    reply = ask(find_trained(tmp_path / "run"), "12+34", samples=2, temperature=1.0)  # from the adapters' folder
    assert len(reply.texts) == 2


def test_a_trained_policy_is_measured_without_a_learner(trained: Path) -> None:
    measured = evaluate.run(trained, ["eval.samples=8", "eval.top_p=0.9"])
    same = evaluate.run(trained, ["eval.samples=8", "eval.top_p=0.9", "rollout.backend=hf"])
    assert measured.problems == 16 and measured.greedy == same.greedy


SHAPE = {
    "hidden_size": 256, "intermediate_size": 384, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 256, "initializer_range": 0.1, "bos_token_id": None,
}  # fmt: skip


@pytest.mark.parametrize(
    ("family", "tied", "settings"),
    [("llama", False, []), ("llama", False, ["model.lora={r: 3}", "vllm.weight_sync=lora"]), ("qwen3", True, [])],
)
def test_other_models_are_followed_too(family: str, tied: bool, settings: list[str], tmp_path: Path) -> None:
    tokenizer: Any = build_tokenizer(["Compute 12+34."] * 20)
    shape: Any = AutoConfig.for_model(
        family,
        **SHAPE,
        vocab_size=len(tokenizer),
        tie_word_embeddings=tied,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    make: Any = AutoModelForCausalLM
    save_model(make.from_config(shape), tokenizer, tmp_path / "model")
    limits = ["data.max_prompt_tokens=100", "rollout.max_new_tokens=40", "rollout.backend=vllm"]
    config = load_config({}, [*limits, f"model.path={tmp_path / 'model'}", *settings])
    loaded = load_model(config.model, device="cpu")
    backend: Any = make_backend(BackendContext(config, lambda: loaded, trains=True))
    try:
        for version in range(3):
            backend.update_weights(version)
            assert backend.last_logprob_diff.largest < 1e-3  # else `sync` would have raised, but by the mean alone
            wait_for(backend.generate([Request(token_ids=(5, 6, 7), n=2)], Sampling(max_new_tokens=20), seed=0))
            move(loaded, "lora_" if settings else "")
            assert compare(*scores(backend, loaded)).mean > 1e-2
    finally:
        backend.close()


def scores(backend: Any, loaded: LoadedModel) -> tuple[list[list[float]], list[list[float]]]:
    """What learner and engine give the same tokens now."""
    sequences = [tuple(range(20, 60))]
    return learner_logprobs(loaded.model, sequences), score(backend.engine(), sequences, backend._lora)


@pytest.fixture
def adapted(trained: Path) -> Iterator[tuple[Any, LoadedModel]]:
    config = lora_config(trained, "lora", "vllm.enable_sleep_mode=true")
    loaded = load_model(config.model, device="cpu")
    backend = make_backend(BackendContext(config, lambda: loaded, trains=True))
    yield backend, loaded
    backend.close()


def move(loaded: LoadedModel, kind: str = "lora_") -> None:
    """A step of the learner."""
    with torch.no_grad():
        for name, parameter in loaded.model.named_parameters():
            if kind in name:
                parameter.add_(
                    (0.3 if kind else 0.05)
                    * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(len(name)))
                )


def test_adapters_that_were_not_swapped_end_the_run(
    adapted: tuple[Any, LoadedModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    backend, loaded = adapted
    for version in (1, 2):
        move(loaded)
        backend.update_weights(version)
        assert backend.last_logprob_diff.mean < 1e-4
        backend.sleep()
        with pytest.raises(RuntimeError, match="asleep"):
            wait_for(backend.generate([Request(token_ids=(5,))], Sampling(), seed=0))
    backend.update_weights(2)
    assert wait_for(backend.generate([Request(token_ids=(5,))], Sampling(max_new_tokens=4), seed=0))
    assert len(backend.engine().call(lambda llm: llm.llm_engine.list_loras())) == 1  # the old ones are gone
    assert len(list(Path(backend._folder.name).iterdir())) == 1  # from the disk as well
    move(loaded)
    monkeypatch.setattr(type(backend), "_swap_adapters", lambda *_: None)
    with pytest.raises(WeightSyncError, match=r"vllm\.weight_sync=lora"):
        backend.update_weights(3)
    assert backend.policy_version == 2


def test_an_engine_that_breaks_tells_everybody_who_waits(
    adapted: tuple[Any, LoadedModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    backend, _ = adapted

    def broken() -> Any:
        raise ValueError("the kernel is gone")

    monkeypatch.setattr(backend.engine()._llm.llm_engine, "step", broken)

    async def ask_twice() -> list[Any]:
        asked = [
            backend.generate([Request((Message("user", "1+2"),), n=2)], Sampling(max_new_tokens=8), seed=seed)
            for seed in (1, 2)
        ]
        return await asyncio.gather(*asked, return_exceptions=True)

    failed: list[list[Generation] | ModelError] = asyncio.run(ask_twice())
    assert all(isinstance(each, ModelError) and "the kernel is gone" in str(each) for each in failed)
    assert not logging.getLogger(DUMP).isEnabledFor(logging.ERROR), "vLLM would write every prompt of the step"
    with pytest.raises(ModelError, match="failed before"):
        wait_for(backend.generate([Request(token_ids=(5,))], Sampling(), seed=0))

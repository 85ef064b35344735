"""Two real vLLM servers under one queue: weights change while they sample, and one of them is killed."""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from skill_ttrl.config import SkillTTRLConfig
from skill_ttrl.llm.backend import BackendContext, Generation, Request, Sampling, wait_for
from skill_ttrl.llm.hand_over import HandOver
from skill_ttrl.llm.models.builtin import build_model, build_tokenizer
from skill_ttrl.llm.models.load import LoadedModel, save_model
from skill_ttrl.llm.vllm.servers import VLLMServerBackend
from skill_ttrl.types import Message
from tests.integration.test_vllm_server import CLOSE, QUESTIONS, SHAPE, largest_difference, move
from tests.vllm_server import VLLMServer

pytestmark = pytest.mark.vllm
pytest.importorskip("vllm")

CALLERS, CALLS, SAMPLES = 4, 6, 2
VERSIONS = 3


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    tokenizer = build_tokenizer(QUESTIONS)
    save_model(build_model(SHAPE, tokenizer, seed=0), tokenizer, path)
    return path


@pytest.fixture(scope="module")
def servers(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[VLLMServer, VLLMServer]]:
    logs = tmp_path_factory.mktemp("logs")
    keys = ("vllm.max_model_len=512", "vllm.max_num_seqs=64", f"vllm.weight_transfer_dir={model.parent / 'weights'}")
    words = [word for key in keys for word in ("--set", key)]
    first, second = (VLLMServer(model, *words, log=logs / name) for name in ("first", "second"))
    with first, second:
        yield first, second


def test_weights_change_under_load_and_a_server_dies_and_nothing_is_lost(
    model: Path, servers: tuple[VLLMServer, VLLMServer]
) -> None:
    addresses = [each.address for each in servers]
    config = SkillTTRLConfig.model_validate({"model": {"path": str(model)}})
    how = {"mode": "server", "servers": addresses, "weight_transfer_dir": str(model.parent / "weights")}
    config = config.model_copy(update={"vllm": config.vllm.model_validate({**how, "start_timeout": 240})})
    tokenizer, notices = build_tokenizer(QUESTIONS), list[str]()
    learner = LoadedModel(build_model(SHAPE, tokenizer, seed=0), tokenizer)
    backend = HandOver(VLLMServerBackend(BackendContext(config, lambda: learner, trains=True, notice=notices.append)))
    backend.update_weights(0)
    versions = [copy.deepcopy(learner.model)]
    requests = [Request((Message("user", question),), n=SAMPLES) for question in QUESTIONS]
    first_done = threading.Semaphore(0)

    def call(number: int) -> list[list[Generation]]:
        found = []
        for turn in range(CALLS):
            seed = number * CALLS + turn
            found.append(wait_for(backend.generate(requests, Sampling(max_new_tokens=64), seed=seed)))
            first_done.release()
        return found

    with ThreadPoolExecutor(CALLERS) as pool:
        callers = [pool.submit(call, number) for number in range(CALLERS)]
        for version in range(1, VERSIONS + 1):
            first_done.acquire()  # under load: calls have ended, and others are on their way
            move(learner.model, 0.03 + version / 1000)  # the scale seeds the noise, too
            versions.append(copy.deepcopy(learner.model))
            backend.update_weights(version)
            if version == 2:
                servers[0].kill_and_start_again()
        calls = [each for caller in callers for each in caller.result()]

    assert len(calls) == CALLERS * CALLS and all(len(each) == len(QUESTIONS) for each in calls)
    seen = set()
    for generations in calls:
        (version,) = {done.policy_version for each in generations for done in each.completions}
        seen.add(version)
        assert all(len(each.completions) == SAMPLES for each in generations)
        assert largest_difference(LoadedModel(versions[version], tokenizer), generations) < CLOSE
    assert len(seen) > 1, "calls before and after an update"
    assert any("sent again" in text or "given the weights" in text for text in notices)

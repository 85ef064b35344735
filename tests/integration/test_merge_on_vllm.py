"""A merger, an extractor and a teacher that ask a real engine: it takes their schemas, and what it writes under them can be read.

The model has random weights, so nothing that it says makes sense: only its form is looked at.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from skill_ttrl.config import BuiltinConfig, DistillConfig, EndpointConfig, EndpointsConfig
from skill_ttrl.llm.models.builtin import build_model, build_tokenizer
from skill_ttrl.llm.models.load import save_model
from skill_ttrl.llm.openai.ledger import track_usage
from skill_ttrl.llm.server_key import key_headers
from skill_ttrl.skills.mergers import make_merger
from skill_ttrl.skills.ops import OutputParser
from skill_ttrl.skills.querying import LLMEndpoints
from skill_ttrl.skills.snapshot import Snapshot
from skill_ttrl.skills.teachers import make_teacher
from skill_ttrl.skills.types import Case
from skill_ttrl.types import Skill, Step
from tests.vllm_server import VLLMServer

pytestmark = pytest.mark.vllm
pytest.importorskip("vllm")

POSITIONS = 8192
ASKED = 16


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EndpointConfig]:
    folder = tmp_path_factory.mktemp("served")
    shape = BuiltinConfig(hidden_size=64, layers=1, heads=2, max_positions=POSITIONS)
    tokenizer = build_tokenizer(["Compute 12+34."])
    save_model(build_model(shape, tokenizer, seed=0), tokenizer, folder / "model")
    words = ["--set", f"vllm.max_model_len={POSITIONS}", "--set", "vllm.max_num_seqs=16"]
    with VLLMServer(folder / "model", *words, log=folder / "log") as server:
        url = f"{server.address}/v1"
        (model,) = httpx.get(f"{url}/models", headers=key_headers(url), trust_env=False).json()["data"]
        yield EndpointConfig(model=model["id"], base_url=url, max_tokens=300, max_retries=0)


def test_the_schemas_are_taken_and_what_fits_them_is_read(served: EndpointConfig, tmp_path: Path) -> None:
    models = LLMEndpoints(EndpointsConfig(roles={"merger": served, "teacher": served}), "skip")
    outputs = [OutputParser().parse("<skill_ops><generate>Tens first.</generate></skill_ops>")]
    bank = Snapshot.of(1, [Skill("sk-old", "Old", "Units first.")])
    with track_usage(tmp_path / "usage.jsonl", EndpointsConfig()):
        merges = [make_merger("openai", models=models).merge(outputs, snapshot=bank) for _ in range(ASKED)]
    assert sum(each.asked.failed for each in merges) < ASKED
    outcomes = {json.loads(line)["outcome"] for line in (tmp_path / "usage.jsonl").read_text().splitlines()}
    assert outcomes <= {"ok", "length"}  # none was refused, none was no JSON


def test_the_schema_of_a_teacher_s_skills_is_taken_and_what_fits_it_is_read(
    served: EndpointConfig, tmp_path: Path
) -> None:
    teacher = make_teacher("openai", models=LLMEndpoints(EndpointsConfig(roles={"teacher": served}), "skip"))
    step = Step("a room", "look", 0.0, False, False)
    cases = [Case(f"t{place}", "look", f"kind{place // 2}", place % 2 == 0, (step,)) for place in range(2 * ASKED)]
    with track_usage(tmp_path / "usage.jsonl", EndpointsConfig()):
        lesson = teacher.distill(cases, DistillConfig())
    assert lesson.requests == ASKED + 2 and lesson.failed < lesson.requests
    outcomes = {json.loads(line)["outcome"] for line in (tmp_path / "usage.jsonl").read_text().splitlines()}
    assert outcomes <= {"ok", "length"}

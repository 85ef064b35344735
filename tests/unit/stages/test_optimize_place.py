"""Where the policy of `skillttrl optimize` reads a document: at the head of its prompts, or as its skill bank."""

from __future__ import annotations

from typing import Any

import pytest

from skill_ttrl.agents.agent import AgentInput
from skill_ttrl.config import SkillTTRLConfig
from skill_ttrl.envs import make_env
from skill_ttrl.rollout.env_pool import EnvPool
from skill_ttrl.stages.optimize import place_of, prepare
from skill_ttrl.stages.setup.policy import make_agent
from skill_ttrl.stages.training.run import RolloutWorker
from tests.scripted_backend import ScriptedBackend

DOCUMENT = "## Dates\n\nYear first.\n\n## Lists\n\n- Sort them.\n- No commas.\n"


def placed(**optimize: Any) -> RolloutWorker:
    sections = {"agent": {"template": "plain"}, "skills": {"embedder": "hash"}, "optimize": optimize}
    config = SkillTTRLConfig.model_validate(sections)
    backend = ScriptedBackend(["x"])
    worker = RolloutWorker(config, backend, make_agent(config, backend), EnvPool(lambda: make_env("qa")))
    return place_of(config)(worker, DOCUMENT)


@pytest.mark.parametrize(
    ("granularity", "titles"), [("section", ["Dates", "Lists"]), ("skill_ttrl.data.operators:read_rules", [])]
)
def test_its_parts_are_the_skills_of_a_bank(granularity: str, titles: list[str]) -> None:
    bank = placed(place="bank", granularity=granularity).agent.bank
    assert bank is not None and [skill.title for skill in bank.snapshot] == titles


def test_or_it_stands_in_the_prompt() -> None:
    worker = placed()
    assert worker.agent.prompt(AgentInput("1+1?")).messages[0].content == DOCUMENT and worker.agent.bank is None


def test_a_program_is_optimized_for_by_its_config() -> None:
    config = {
        "env": {"id": "qa", "train_tasks": 16},
        "rollout": {"backend": "command"},
        "command": {"argv": "my-agent"},
    }
    found = prepare(config, overrides=["optimize.selection.split=val", "optimize.optimizer=induce"])
    assert found.target.name == "my-agent" and len(found.tasks["train"]) == 16

"""Episodes as one growing sequence of tokens (`agent.context_mode: episode`): nothing that was sampled is tokenised again."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from skill_ttrl.agents.agent import Agent, AgentInput, PromptFormatter
from skill_ttrl.agents.observations import Form
from skill_ttrl.config import SkillsConfig
from skill_ttrl.envs import TextEnv
from skill_ttrl.llm.backend import Sampling
from skill_ttrl.llm.chat import encode_chat, encode_next, missing_end, turn_end
from skill_ttrl.llm.hf import HFBackend
from skill_ttrl.rollout.rollout import Schedule
from skill_ttrl.skills.changes import Snapshot
from skill_ttrl.skills.log import BankSettings
from skill_ttrl.skills.retrieval import BankView, make_retriever
from skill_ttrl.types import Message, Skill, Task, Trajectory
from tests import rollouts
from tests.scripted_backend import ScriptedBackend


class Counting(TextEnv):
    """Says which step it is, four times."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self._step = 0
        return f"Begin {(options or {})['name']}.", {"admissible_commands": ["a", "b"]}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self._step += 1
        return f"Step {self._step}.", 0.0, self._step == 4, False, {"admissible_commands": ["a"] * self._step}


def shouted(scene: AgentInput) -> str:
    """A form of observations of one's own."""
    return f"{len(scene.steps)}{len(scene.admissible_actions)} {scene.observation.upper()}"


def play(
    backend: Any, agent: Agent, *, tries: int = 2, names: str = "one two", longest: int = 200, **settings: Any
) -> list[Trajectory]:
    how = {"sampling": Sampling(max_new_tokens=longest), "seed": 7, "max_turns": 9, **settings}
    tasks = [Task(name, "Counting-v0", {"name": name}) for name in names.split()]
    return [
        found for group in rollouts.play(Counting, tasks, tries, backend, agent, **how) for found in group.trajectories
    ]


@pytest.mark.parametrize("schedule", ["sync", "async"])
def test_a_prompt_is_all_that_came_before_it_and_what_is_new(tiny_model: tuple[Any, Any], schedule: Schedule) -> None:
    model, tokenizer = tiny_model
    agent = Agent(PromptFormatter("plain"), "episode", form=Form(shouted))
    found = play(HFBackend(model, tokenizer), agent, longest=6, schedule=schedule)
    cut_off = 0
    for trajectory in found:
        steps, name = trajectory.steps, trajectory.task.id
        assert len(steps) == 4
        assert steps[0].prompt_ids == encode_chat(tokenizer, [Message("user", f"02 BEGIN {name.upper()}.")])
        for number, (before, step) in enumerate(itertools.pairwise(steps), start=1):
            assert before.completion is not None and step.observation == f"Step {number}."
            end = missing_end(tokenizer, before.completion)
            cut_off += len(end)
            seen = encode_next(tokenizer, Message("user", f"{number}{number} STEP {number}."))
            assert step.prompt_ids == (*before.prompt_ids, *before.completion.token_ids, *end, *seen)
            assert step.prompt_ids.count(turn_end(tokenizer)) >= 2 * number + 1
    assert cut_off > 0


def test_what_was_inserted_stays_and_skills_are_said_once() -> None:
    ask = '<skill_ops><retrieve query="bako"></retrieve>'
    skills = SkillsConfig.model_validate(
        {"embedder": "hash", "prompt_top_k": 1, "retrieval_top_k": 1, "min_score": -1.0}
    )
    retriever = make_retriever(BankSettings(retrieval="embedding", min_score=-1.0, index="memory"))
    bank = BankView(Snapshot.of(1, [Skill("bako", "bako", "bako plus 9")]), retriever)
    agent = Agent(PromptFormatter("plain", prompts="tiny"), "episode", skills=skills, bank=bank)
    backend = ScriptedBackend([ask, "</skill_ops>go", "stay", "stay", "stay"])
    (found,) = play(backend, agent, tries=1, names="one", max_turns=3)
    ids = found.steps[-1].prompt_ids
    shown, told = b"<skill>bako plus 9</skill>\nBegin one.", f"{ask}<skill>bako plus 9</skill></skill_ops>go"
    assert bytes(ids) == shown + told.encode() + b"\0\nStep 1.\nstay\0\nStep 2.\n"
    assert len(shown) - len(b"Begin one.") == 27  # skills have a budget of their own
    most = len(b"Begin one.stay\0\nStep 1.\n")
    (cut,) = play(ScriptedBackend(["stay"]), agent, tries=1, names="one", max_prompt_tokens=most)
    assert (len(cut.steps), cut.stop_reason) == (2, "truncated")

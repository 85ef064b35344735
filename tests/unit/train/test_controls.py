"""Scripted controls: what a success is worth beside agents that read nothing, on the same tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from skill_ttrl.agents.action_parser import ActionList, parse_numbered_action
from skill_ttrl.agents.agent import Agent, PromptFormatter
from skill_ttrl.agents.scripted import make_scripted_agent
from skill_ttrl.agents.turn_prompt import TurnPromptBuilder
from skill_ttrl.commands.collect import run_as_configured
from skill_ttrl.config import AgentConfig, SkillsConfig, SkillTTRLConfig
from skill_ttrl.envs import TextEnv, make_env
from skill_ttrl.errors import ConfigError, EnvError
from skill_ttrl.llm.backend import Sampling, wait_for
from skill_ttrl.prompts.templates import Templates
from skill_ttrl.rollout.episode import EnvPool
from skill_ttrl.rollout.rollout import RolloutSettings, rollout, run_scripted_episode
from skill_ttrl.skills.changes import Snapshot
from skill_ttrl.skills.log import BankSettings
from skill_ttrl.skills.retrieval import BankView, make_retriever
from skill_ttrl.train.measure import control_results, play_controls
from skill_ttrl.train.results import ProblemResult
from skill_ttrl.types import Skill, Task
from tests.doors import DOORS
from tests.scripted_backend import ScriptedBackend

NUMBERED = AgentConfig(
    context_mode="window", action_parser="action", actions="numbered", action_order="words", hidden_verbs=["look"]
)
LISTING = ActionList.of(NUMBERED)
ROOM = ["look", "go to bed 1", "go to shelf 1", "go to desk 1", "take mug 1", "drop mug 1"]
TASK = Task("room", "Room-v0", task_type="normalize_skill")
STEPS = Skill("s", "Shelf", "first the shelf", task_type="normalize_skill")


class Room(TextEnv):
    """Lists what can be done, and ends after some steps."""

    def __init__(self, listed: Sequence[str] = ROOM, task: str = "put a mug on a desk") -> None:
        super().__init__()
        self._info = {"admissible_commands": list(listed), "task": task} if listed else {}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        self._steps = 0
        return "A room.", self._info

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        return "A room.", float(action == "take mug 1"), False, self._steps == 6, self._info


def actions(name: str, agent: AgentConfig | None = None, env: TextEnv | None = None) -> list[str]:
    played = run_scripted_episode(env or Room(), TASK, make_scripted_agent(name, "Room-v0", agent), seed=0)
    assert played.error is None, played.error
    return [step.action for step in played.steps]


def test_first_takes_the_first_action_as_the_environment_lists_it_or_as_a_prompt_does() -> None:
    assert set(actions("first")) == {"look"}
    ordered = actions("first", NUMBERED)
    assert ordered[0] == "go to desk 1" and "look" not in ordered
    assert actions("first", None, Room(["search[<your query>]"]))[0] == "search[put a mug on a desk]"


def test_constant_writes_the_same_text_which_is_read_as_the_config_reads_a_model_s() -> None:
    assert set(actions("constant:go to desk 1")) == {"go to desk 1"}
    assert actions("constant:<think>so</think><action>[1]</action>", NUMBERED) == actions("first", NUMBERED)
    assert set(actions("constant:<answer>7</answer>", None, Room([]))) == {"<answer>7</answer>"}, "no list is needed"
    with pytest.raises(ConfigError, match="constant:TEXT"):
        make_scripted_agent("constant", "Room-v0")
    with pytest.raises(ConfigError, match=r"[Dd]id you mean 'first'"):
        make_scripted_agent("frist", "Room-v0")


@pytest.mark.parametrize("bank", [None, (STEPS,)])
def test_first_is_what_a_policy_gets_that_always_answers_1_with_its_bank_too(bank: tuple[Skill, ...] | None) -> None:
    window = TurnPromptBuilder(Templates(), "episode", numbered=True)
    formatter = PromptFormatter("plain")
    if bank is None:
        agent = Agent(formatter, "window", window=window, project=parse_numbered_action, listing=LISTING)
    else:
        settings = SkillsConfig.model_validate({"embedder": "hash", "prompt_top_k": 2, "max_retrievals": 0})
        access = BankView(Snapshot.of(1, bank), make_retriever(BankSettings(retrieval="embedding", index="memory")))
        agent = Agent(formatter, "window", window, settings, access, parse_numbered_action, LISTING)
    backend = ScriptedBackend(["<think>so</think><action>[1]</action>"] * 6)
    pool = EnvPool(lambda: Room(task="normalize_skill up"))
    (group,) = wait_for(
        rollout(
            [TASK], 1, envs=pool, agent=agent, backend=backend, settings=RolloutSettings(Sampling(), 0, max_turns=6)
        )
    )
    six = NUMBERED.model_copy(update={"max_turns": 6})
    config = SkillTTRLConfig(agent=six, env={"id": "math"}, eval={"controls": ["first"]})  # type: ignore[arg-type]
    found = play_controls(config, [TASK], pool, agent)
    (sample,) = found.rows[0].samples
    assert sample.text == "\n".join(step.action for step in group.trajectories[0].steps)
    assert ("shelf" in sample.text.split("\n")[0]) is (bank is not None), "the skill names the shelf"


def controls(env: TextEnv, tasks: Sequence[Task] = (TASK,), **settings: Any) -> Any:
    config = SkillTTRLConfig(env={"id": "math"}, eval=settings)  # type: ignore[arg-type]
    return play_controls(config, tasks, EnvPool(lambda: env), Agent(PromptFormatter("plain")))


def test_controls_have_success_and_interval_on_the_same_tasks() -> None:
    env = make_env(DOORS)
    tasks = env.unwrapped.tasks("test")  # type: ignore[attr-defined]  # of our own
    config = SkillTTRLConfig(env={"id": DOORS}, agent={"max_turns": 2})  # type: ignore[arg-type]
    played = play_controls(config, tasks, EnvPool(lambda: env), Agent(PromptFormatter("plain")))
    found = control_results(played)
    assert list(found) == ["random", "first"] and found["first"].policy is None
    for right, judged in ((1, "unclear"), (0, "unclear")):  # three of six doors more are p = .25
        measured = [ProblemResult(task.id, right, 1, None, 0.0, None, None) for task in tasks]
        assert control_results(played, measured)["first"].policy == judged
    many = [ProblemResult(task.id, 8, 8, None, 0.0, None, None) for task in tasks]
    lost = replace(
        played, rows=tuple(replace(row, samples=(replace(row.samples[0], is_correct=False),)) for row in played.rows)
    )
    assert control_results(lost, many)["first"].policy == "better", "six of six"
    assert (found["first"].accuracy, found["first"].problems, found["first"].score) == (0.5, 6, None)
    low, high = found["first"].interval
    assert 0.1 < low < 0.5 < high < 0.9


def test_nothing_is_played_where_it_would_say_nothing_or_cost_much() -> None:
    assert controls(Room([])).why_none == "no listed actions: no control"
    costly = Room()
    costly.expensive = True
    assert "expensive" in controls(costly).why_none and not controls(costly).rows
    assert controls(Room(), controls=[]).rows == () and controls(Room(), controls=[]).why_none == ""
    graded = controls(Room([]), [Task("sum", "Room-v0", ground_truth="4")])
    assert (graded.rows, graded.why_none) == ((), ""), "answers are graded: nothing is to be listed"
    assert [row.draw for row in controls(Room()).rows] == ["random", "first"]


def test_a_player_measured_by_a_recipe_has_its_tasks_turns_and_lists() -> None:
    content = {
        "env": {"id": DOORS, "eval_split": "test", "eval_tasks": 4},
        "agent": {"context_mode": "window", "template": "episode", "hidden_verbs": ["left"], "max_turns": 2},
    }
    config = SkillTTRLConfig.model_validate(content)
    found = run_as_configured(config, agent="first")
    assert (found.overall.episodes, found.overall.success) == (4, 0.5), "only right doors: left ones are not listed"
    assert found.overall.steps == 1.5
    with pytest.raises(EnvError, match="no tasks in the split"):
        run_as_configured(config, agent="first", split="nowhere")

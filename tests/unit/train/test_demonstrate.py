"""Demonstrations from collected episodes: what is imitated, with which skills, and what is reported of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from skill_ttrl.agents.agent import Agent, PromptFormatter
from skill_ttrl.agents.turn_prompt import TurnPromptBuilder
from skill_ttrl.config import DemonstrationsConfig, SkillsConfig
from skill_ttrl.errors import DataError
from skill_ttrl.prompts.templates import Templates
from skill_ttrl.skills.changes import Snapshot
from skill_ttrl.skills.log import BankSettings
from skill_ttrl.skills.retrieval import BankView, make_retriever
from skill_ttrl.train.encode import chosen_steps, coverage, demonstrate
from skill_ttrl.types import Skill, Step, Task, Trajectory

LISTED = ("go to shelf 1", "look", "take mug 1 from shelf 1")
SKILLS = [Skill("s1", "Take it", "take the thing where it lies"), Skill("s2", "Places", "go and look around")]


def step(action: str, advice: str | None = None, *, won: bool = False) -> Step:
    info = {"won": won} | ({} if advice is None else {"expert_action": advice})
    return Step("You see a shelf.", action, float(won), won, False, info=info, admissible_actions=LISTED)


def episode(name: str, *steps: Step) -> Trajectory:
    task = Task(name, "SkillTTRL/ALFWorld-v0", task_type="pick")
    return Trajectory(task, steps, None, "terminated", goal="put a mug on the shelf")


WON = episode("won", step("go to shelf 1"), step("take mug 1 from shelf 1", won=True))
LOST = episode("lost", step("look"), step("look"))


def window() -> TurnPromptBuilder:
    return TurnPromptBuilder(Templates("tiny"), "episode")


def skilled() -> Agent:
    access = BankView(Snapshot.of(1, SKILLS), make_retriever(BankSettings(index="memory")))
    return Agent(PromptFormatter("plain"), "window", window(), SkillsConfig(embedder="hash"), access)


def test_only_won_episodes_are_imitated() -> None:
    found, left_out = chosen_steps([WON, LOST], DemonstrationsConfig())
    assert [action for _, _, action in found] == ["go to shelf 1", "take mug 1 from shelf 1"]
    assert left_out == (0, 0)


def test_a_step_that_its_player_did_not_want_is_not_imitated() -> None:
    strayed = episode(
        "s", step("look", advice="go to shelf 1"), step("go to shelf 1", advice="go to shelf 1", won=True)
    )
    found, _ = chosen_steps([strayed], DemonstrationsConfig())
    assert [place for _, place, _ in found] == [1]


def test_advice_is_imitated_in_lost_episodes_too() -> None:
    strayed = episode("s", step("look", advice="go to shelf 1"), step("look", advice="take mug 1 from shelf 1"))
    found, _ = chosen_steps([strayed], DemonstrationsConfig(label="expert"))
    assert [action for _, _, action in found] == ["go to shelf 1", "take mug 1 from shelf 1"]


def test_what_was_not_possible_is_left_out_and_counted() -> None:
    odd = episode("odd", step("fly away"), step("look", won=True))
    found, left_out = chosen_steps([odd], DemonstrationsConfig())
    assert ([action for _, _, action in found], left_out) == (["look"], (1, 0))


@pytest.mark.parametrize(("label", "said"), [("success", "0 of 1 episodes succeeded"), ("expert", "--epsilon")])
def test_nothing_to_imitate_is_an_error_that_says_why(label: str, said: str) -> None:
    with pytest.raises(DataError, match=said):
        chosen_steps([LOST], DemonstrationsConfig.model_validate({"label": label}))


def test_fewer_examples_are_spread_over_the_episodes() -> None:
    many = [replace(WON, task=replace(WON.task, id=f"w{n}")) for n in range(10)]
    found, _ = chosen_steps(many, DemonstrationsConfig(examples=5))
    assert [trajectory.task.id for trajectory, _, _ in found] == ["w0", "w2", "w4", "w6", "w8"]


def test_prompts_are_those_of_the_agent_with_its_skills_from_the_first_step() -> None:
    shown = demonstrate([WON], skilled(), DemonstrationsConfig(no_skill_fraction=0, random_skill_fraction=0), 0)[0]
    first, second = (each.messages[-1].content for each in shown)
    assert "<skill>take the thing where it lies</skill>" in first
    assert "put a mug on the shelf" in first
    assert "Done:" not in first
    assert "Done:\ngo to shelf 1" in second
    assert shown[1].response(tagged=True) == "<action>take mug 1 from shelf 1</action>"


def test_skills_are_left_out_of_a_share_of_the_episodes() -> None:
    many = [replace(WON, task=replace(WON.task, id=f"w{n}")) for n in range(200)]
    shown = demonstrate(many, skilled(), DemonstrationsConfig(no_skill_fraction=0.3, random_skill_fraction=0), 0)[0]
    bare = {each.task_id for each in shown if not each.skills}
    assert 40 <= len(bare) <= 80
    assert all(not each.skills for each in shown if each.task_id in bare)
    again = demonstrate(many, skilled(), DemonstrationsConfig(no_skill_fraction=0.3, random_skill_fraction=0), 0)[0]
    assert shown == again


def test_an_agent_without_skills_makes_demonstrations_too() -> None:
    agent = Agent(PromptFormatter("plain"), "window", window=window())
    assert all(not each.skills for each in demonstrate([WON], agent, DemonstrationsConfig(), 0)[0])


def test_coverage_says_what_is_shown_and_what_never_is() -> None:
    shown = demonstrate([WON], skilled(), DemonstrationsConfig(no_skill_fraction=0, random_skill_fraction=0), 0)[0]
    found = coverage(shown, [WON], [*SKILLS, Skill("s3", "Other", "x", task_type="other")], (0, 0))
    assert (found.examples, found.episodes, found.won) == (2, 1, 1)
    assert found.skills_shown == {"s1": 2, "s2": 2, "s3": 0}

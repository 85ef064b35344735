"""Games under other rules: the words and the tool of a treatment change, everything else stays, and the expert plays them."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skill_ttrl.agents.agent import Agent, PromptFormatter, task_skills
from skill_ttrl.config import DistillConfig, SkillsConfig
from skill_ttrl.envs import make_env
from skill_ttrl.envs.alfworld.engine import FastEngine, Frame
from skill_ttrl.envs.alfworld.env import TRUE_RULES, Rule, advice, draw_rule, move, shared_parts, vary
from skill_ttrl.envs.alfworld.expert import ALFWorldExpert
from skill_ttrl.envs.alfworld.games import forget
from skill_ttrl.envs.alfworld.world import World
from skill_ttrl.rollout.rollout import run_scripted_episode
from skill_ttrl.skills.heuristic_teacher import distilled
from skill_ttrl.skills.types import Case
from skill_ttrl.types import Step, Task
from tests.alfworld_kitchen import DONE, GOALS, kitchen, play, problem, write_game
from tests.alfworld_kitchen import PLACE as TO_PLACE

HOT = DONE.format(able="heatable", done="isHot", thing="Mug", target="Cabinet")
TAKE = ("go to countertop 2", "take mug 1 from countertop 2")
PLACE = ("go to cabinet 1", "open cabinet 1", "move mug 1 to cabinet 1")
TYPE = "pick_heat_then_place_in_recep"


def varied(rule: str, task: str = "put a hot mug in cabinet.") -> FastEngine:
    """The kitchen whose mug is to be hot, under another rule."""
    return vary(replace(kitchen(HOT).world, task=task), Rule.parse(rule))


def test_the_true_rule_changes_nothing() -> None:
    walk = (*TAKE, "heat mug 1 with microwave 1", "examine mug 1", *PLACE)
    same = varied("hot heat microwave")
    plain = FastEngine(same.world)
    assert same.reset() == plain.reset()
    for command in walk:
        one, other = same.step(command), plain.step(command)
        assert one == other
    assert one.won


def test_task_commands_and_answers_have_the_new_words_and_only_the_new_tool_does_it() -> None:
    engine = varied("gilded bless sinkbasin")
    assert engine.reset().feedback.endswith("put a gilded mug in cabinet.")
    frame = play(engine, *TAKE)
    assert not any(command.startswith(("heat", "bless")) for command in frame.commands)
    frame = engine.step("go to sinkbasin 1")
    assert "bless mug 1 with sinkbasin 1" in frame.commands
    assert engine.step("bless mug 1 with sinkbasin 1").feedback == "You bless the mug 1 using the sinkbasin 1."
    assert engine.step("examine mug 1").feedback == "This is a gilded mug 1."
    assert last(engine, *PLACE).won


@given(st.sampled_from(sorted(TRUE_RULES)), st.integers(0, 2**63))
def test_a_drawn_rule_is_never_a_true_one_nor_near_one(kind: str, seed: int) -> None:
    rooms = ["cabinet", "fridge", "microwave", "sinkbasin"]
    rule = draw_rule(kind, rooms, seed)
    assert rule == draw_rule(kind, rooms[::-1], seed) == Rule.parse(str(rule))
    assert rule.tool != TRUE_RULES[kind].tool
    assert all(shared_parts(rule, true) < 2 for true in TRUE_RULES.values())


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    forget()
    task = "put a hot mug in cabinet."
    for split in ("train", "valid_seen"):
        write_game(tmp_path, split, f"{TYPE}-Mug-None-Cabinet-1/trial_A", None, task=task, pddl_problem=problem(HOT))
    return str(tmp_path)


def test_an_environment_of_varied_rules_has_tasks_that_the_expert_wins(data: str) -> None:
    env = make_env("alfworld", data=data, rules="varied", variants=6)
    tasks = env.unwrapped.tasks("train")  # type: ignore[attr-defined]
    assert len({task.id for task in tasks}) == len({str(task.options["rule"]) for task in tasks}) == 6
    seen = env.unwrapped.tasks("valid_seen")  # type: ignore[attr-defined]
    assert [task.options for task in seen] == [{"task": f"valid_seen/{TYPE}-Mug-None-Cabinet-1/trial_A"}]
    for task in tasks:
        played = run_scripted_episode(env, task, ALFWorldExpert(), seed=0)
        assert played.error is None
        assert played.is_success
        state, verb, _ = task.options["rule"].split()
        assert state in played.goal or verb in played.goal
    env.reset(options={"task": tasks[0].options["task"]})
    assert (
        "hot mug" in env.reset(options={"task": tasks[0].options["task"]})[0]
    )  # the rule of one episode is not the next one's


def test_a_task_brings_a_skill_in_place_of_the_banks() -> None:
    given = advice(TRUE_RULES["heat"])
    own, bare, plain = Task("t", "env", {"skill": given}), Task("t", "env", {"skill": {}}), Task("t", "env", {})
    agent = Agent(PromptFormatter("plain", prompts="entities"), skills=SkillsConfig())
    shown = agent.select_skills([own, bare, plain], ["put a hot mug in cabinet"] * 3)
    assert [len(each.skills) for each in shown] == [1, 0, 0]
    assert shown[0].skills[0].text == given["text"]
    assert task_skills(bare) == ()
    assert task_skills(plain) is None


def test_advice_has_the_words_that_counting_writes() -> None:
    cases = [
        won("mug", "table", "cabinet"),
        won("apple", "stove", "fridge"),
        won("egg", "sink", "shelf"),
        won("cup", "cart", "drawer"),
    ]
    other = [
        replace(case, task=case.task.replace("put a hot", "heat some").replace(" in ", " and put it in "))
        for case in cases
    ]
    forms = [advice(TRUE_RULES["heat"], seed) for seed in range(30)]
    for episodes in (cases, other, [*cases, *other], [*cases, other[0]]):
        draft = next(each for each in distilled(episodes, DistillConfig()).drafts if each.tier == "task")
        assert draft.text in {form["text"] for form in forms}
        assert draft.when_to_apply in {form["when_to_apply"] for form in forms}
        assert draft.when_to_apply.count("X") == (2 if len(episodes) == 8 else 1), "one of five is chance"


def won(thing: str, source: str, place: str) -> Case:
    """An episode in which a thing was heated."""
    done = (
        f"go to {source} 1|take {thing} 1 from {source} 1|go to microwave 1|heat {thing} 1 with microwave 1|"
        f"go to {place} 1|move {thing} 1 to {place} 1"
    )
    steps = tuple(Step(f"seen {number}", action, 0.0, False, False) for number, action in enumerate(done.split("|")))
    return Case(f"{thing}-{place}", f"put a hot {thing} in {place}.", TYPE, True, steps)


def last(engine: FastEngine, *commands: str) -> Frame:
    """The frame after further commands."""
    frames = [engine.step(command) for command in commands]
    return frames[-1]


@cache
def world(goal: str) -> World:
    return kitchen(goal).world


@given(st.sampled_from(GOALS), st.integers(0, 2**63))
def test_only_what_the_task_needs_moves_and_into_what_takes_it(goal: str, seed: int) -> None:
    real = world(goal)
    moved = move(real, seed)
    assert moved == move(real, seed)
    kind = f"{real.goal.object_type}type"
    wanted = {thing for things in real.contents.values() for thing in things if kind in real.kinds[thing]}
    for place in real.in_sight:
        before, after = set(real.contents.get(place, ())), list(moved.contents.get(place, ()))
        assert after == sorted(after)
        assert before - wanted == set(after) - wanted
        assert all(real.takes(place, thing) for thing in set(after) & wanted)
        if real.goal.kind in ("place", "two") and f"{real.goal.target_type}type" in real.kinds[place]:
            assert not set(after) & wanted
    where = {thing: [place for place, own in moved.contents.items() if thing in own] for thing in wanted}
    assert all(len(places) == 1 for places in where.values())
    at = {receptacle: place for place, own in real.receptacles_at.items() for receptacle in own}
    assert {pair for pair in moved.lying if pair[0] in wanted} == {(thing, at[p]) for thing, [p] in where.items()}
    assert {pair for pair in moved.lying if pair[0] not in wanted} == {p for p in real.lying if p[0] not in wanted}


def test_a_moved_thing_is_found_where_it_lies_now() -> None:
    real = world(TO_PLACE.format("Egg", "CounterTop"))  # the egg of the kitchen lies in two receptacles
    seed = next(n for n in range(99) if "egg_bar_1" in move(real, n).contents.get("cabinet_bar_1", ()))
    engine = FastEngine(move(real, seed))
    frame = play(engine, "go to countertop 2")
    assert "egg 1" not in frame.feedback
    walk = ("go to cabinet 1", "open cabinet 1", "take egg 1 from cabinet 1", "go to countertop 2")
    assert not play(engine, *walk).won
    assert play(engine, *walk, "move egg 1 to countertop 2").won


@pytest.fixture
def apples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    forget()
    for split in ("train", "valid_seen"):
        name = "pick_and_place_simple-Apple-None-Fridge-1/trial_A"
        write_game(tmp_path, split, name, None, task="put an apple in fridge.", pddl_problem=problem())
    return str(tmp_path)


def test_training_games_have_versions_that_the_expert_wins_and_validation_games_none(apples: str) -> None:
    env = make_env("alfworld", data=apples, moved=3)
    tasks = env.unwrapped.tasks("train")  # type: ignore[attr-defined]
    game = "train/pick_and_place_simple-Apple-None-Fridge-1/trial_A"
    assert [(task.id, task.options) for task in tasks] == [
        (game, {"task": game}),
        *((f"{game}~{number}", {"task": game, "moved": number}) for number in range(3)),
    ]
    seen = env.unwrapped.tasks("valid_seen")  # type: ignore[attr-defined]
    assert [task.options for task in seen] == [{"task": game.replace("train", "valid_seen")}]
    for task in tasks:
        played = run_scripted_episode(env, task, ALFWorldExpert(), seed=0)
        assert (played.error, played.is_success) == (None, True)
    starts = {env.reset(seed=seed)[1].get("moved") for seed in range(40)}
    assert starts == {None, 0, 1, 2}
    assert {task.options.get("moved") for task in make_env("alfworld", data=apples).unwrapped.tasks()} == {None}  # type: ignore[attr-defined]

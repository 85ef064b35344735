"""Versions of games in which what the task needs lies elsewhere: only these things move, and the game can be won."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skill_ttrl.envs import make_env
from skill_ttrl.envs.alfworld.engine import FastEngine
from skill_ttrl.envs.alfworld.env import move
from skill_ttrl.envs.alfworld.expert import ALFWorldExpert
from skill_ttrl.envs.alfworld.games import forget
from skill_ttrl.envs.alfworld.world import World
from skill_ttrl.rollout.rollout import run_scripted_episode
from tests.alfworld_kitchen import GOALS, PLACE, kitchen, play, problem, write_game


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
    real = world(PLACE.format("Egg", "CounterTop"))  # the egg of the kitchen lies in two receptacles
    seed = next(n for n in range(99) if "egg_bar_1" in move(real, n).contents.get("cabinet_bar_1", ()))
    engine = FastEngine(move(real, seed))
    frame = play(engine, "go to countertop 2")
    assert "egg 1" not in frame.feedback
    walk = ("go to cabinet 1", "open cabinet 1", "take egg 1 from cabinet 1", "go to countertop 2")
    assert not play(engine, *walk).won
    assert play(engine, *walk, "move egg 1 to countertop 2").won


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    forget()
    for split in ("train", "valid_seen"):
        name = "pick_and_place_simple-Apple-None-Fridge-1/trial_A"
        write_game(tmp_path, split, name, None, task="put an apple in fridge.", pddl_problem=problem())
    return str(tmp_path)


def test_training_games_have_versions_that_the_expert_wins_and_validation_games_none(data: str) -> None:
    env = make_env("alfworld", data=data, moved=3)
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
    assert {task.options.get("moved") for task in make_env("alfworld", data=data).unwrapped.tasks()} == {None}  # type: ignore[attr-defined]

"""Lost WebShop goals fall into the class that their texts show, and the rule over the form reads that form alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from skill_ttrl.agents.scripted.scripted_agent import make_scripted_agent
from skill_ttrl.envs.webshop.env import WEBSHOP_ENV_ID, WebShopEnv
from skill_ttrl.envs.webshop.goal import Goal, price_of
from skill_ttrl.envs.webshop.solve import own_purchase
from skill_ttrl.rollout.scripted import run_scripted_episode
from skill_ttrl.types import Task, Trajectory


@pytest.fixture(autouse=True, scope="module")
def shared() -> Iterator[None]:
    """The benchmarks are importable."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parents[3] / "benchmarks"))
        yield


@pytest.fixture(scope="module")
def env(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebShopEnv]:
    """The generated shop, made once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield WebShopEnv(data="generated", split="dev", split_by="product")


class Script:
    """Does one action after the other."""

    def __init__(self, *actions: str) -> None:
        self.actions = actions

    def start(self, observation: str, info: Any, seed: int) -> None:
        """See `ScriptedAgent.start`."""
        self.left = list(self.actions)

    def act(self, observation: str, info: Any) -> str:
        """See `ScriptedAgent.act`."""
        return self.left.pop(0) if self.left else "look"


def play(env: WebShopEnv, task: Task, *actions: str) -> Trajectory:
    return run_scripted_episode(env, task, Script(*actions), seed=0)


def goal_with_options(env: WebShopEnv) -> tuple[Task, Goal, tuple[str, ...]]:
    """A goal that names options, and the way to its own product on the first page of results."""
    assert env.shop is not None
    for task in env.tasks():
        goal = env.goals[env.goals.find(task.id)]
        found = own_purchase(env.shop, goal)
        if found is not None and goal.options and found.actions[1] == f"click[{goal.asin.lower()}]":
            return task, goal, found.actions
    raise AssertionError("no goal of the split has options")


def test_a_lost_goal_has_the_class_of_what_was_done(env: WebShopEnv) -> None:
    failures = import_module("webshop_failures")
    assert env.shop is not None
    task, goal, way = goal_with_options(env)

    def name_of(*actions: str) -> str | None:
        loss = failures.classify(env.shop, goal, play(env, task, *actions))
        return None if loss is None else loss.name

    search, own = way[0], way[1]
    assert name_of(*way) is None
    assert name_of(search, own, "click[buy now]") == "option missed"
    assert name_of(search, own) == "nothing bought"
    listed = play(env, task, search).steps[1].admissible_actions
    prices = {
        each: price_of(env.shop.store[number])
        for each in listed
        if each != own and (number := env.shop.store.number_of(each[6:-1].upper())) is not None
    }
    other = next(each for each, price in prices.items() if price <= goal.price_upper)
    assert name_of(search, other, "click[buy now]") == "listed"
    assert name_of(search, own, "click[< prev]", other, "click[buy now]") == "opened"
    failed = replace(play(env, task, search), error="Boom")
    assert failures.classify(env.shop, goal, failed).name == "failed"


def test_over_the_price_comes_before_the_wrong_product(env: WebShopEnv) -> None:
    failures = import_module("webshop_failures")
    assert env.shop is not None
    for task in env.tasks():
        goal = env.goals[env.goals.find(task.id)]
        dear = [product for product in env.shop.store if price_of(product) > goal.price_upper]
        query = f"search[{dear[0].title}]" if dear else ""
        if dear and f"click[{dear[0].asin.lower()}]" in play(env, task, query).steps[1].admissible_actions:
            episode = play(env, task, query, f"click[{dear[0].asin.lower()}]", "click[buy now]")
            loss = failures.classify(env.shop, goal, episode)
            assert loss.name == "over the price"
            assert goal.instruction in failures.story(env.shop, loss)
            assert "| over the price | 1 |" in failures.table([loss], 2)
            return
    raise AssertionError("every product is below every ceiling")


def test_the_rule_over_the_form_shops_far_better_than_one_that_does_not_read(env: WebShopEnv) -> None:
    rule = make_scripted_agent("webshop_form_rule:FormRule", WEBSHOP_ENV_ID)
    played = [run_scripted_episode(env, task, rule, seed=0) for task in env.tasks()[::20]]
    assert [episode.error for episode in played if episode.error] == []
    assert fmean(bool(episode.won) for episode in played) > 0.7


def test_the_rule_reads_the_wish_as_the_form_writes_it() -> None:
    module = import_module("webshop_form_rule")
    wish = module.read_wish(
        "<task> word 1 word 2 word 3 word 4 comma word 5 word 6 word 7 with word 8 is word 9 word 10 comma and word 11 is word 12 ceiling"
    )
    assert wish.kind == ("word 7",)
    assert wish.attributes == ("word 1", "word 2", "word 3", "word 4", "word 5", "word 6")
    assert wish.options == (("word 9", "word 10"), ("word 12",))

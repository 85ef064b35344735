"""`SkillTTRL/WebShop-v0`: the text contract, episodes, seeds, vectors, pickling, and what a user gets wrong."""

from __future__ import annotations

import copy
import json
import pickle
import time
import warnings
from collections.abc import Iterator
from typing import Any

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env
from hypothesis import given
from hypothesis import strategies as st

from skill_ttrl.envs import check_text_env, env_tasks, list_envs, make_env, resolve_env
from skill_ttrl.envs.webshop.catalogue.catalogue import forget
from skill_ttrl.envs.webshop.env import WEBSHOP_ENV_ID, WebShopEnv
from skill_ttrl.errors import EnvError
from tests.webshop_files import LAMPS, LAMPS_ABOUT, write_catalogue

LAMP = "B0LAMP0001-0"
"""The goal of the oak desk lamp in red and s | m."""
BUY = ["search[oak desk lamp]", "click[b0lamp0001]", "click[red]", "click[s | m]", "click[buy now]"]
Step = tuple[str, float, bool, bool, dict[str, Any]]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Four products, seven goals; all of them in the split train."""
    root = tmp_path_factory.mktemp("webshop")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(root / "cache"))
        for name in ("TEST_GOALS", "DEV_GOALS"):
            patch.setattr(f"skill_ttrl.envs.webshop.goals.{name}", 2)
        forget()
        yield str(write_catalogue(root / "data", LAMPS, LAMPS_ABOUT))
    forget()


@pytest.fixture
def env(data: str) -> WebShopEnv:
    return WebShopEnv(data)


def play(env: WebShopEnv, actions: list[str], **options: Any) -> list[Step]:
    env.reset(options={"task": LAMP, **options})
    return [env.step(action) for action in actions]


def test_gymnasium_has_nothing_to_say(data: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(gymnasium.make(WEBSHOP_ENV_ID, data=data).unwrapped)


@pytest.mark.parametrize("mode", ["text", "text_rich", "url"])
def test_it_keeps_the_text_contract_and_has_its_names(data: str, mode: str) -> None:
    assert resolve_env("webshop") == WEBSHOP_ENV_ID
    assert next(info.description for info in list_envs() if info.short_name == "webshop").startswith(
        "Shopping of WebShop"
    )
    env = make_env("webshop", data=data, observation_mode=mode)
    for split in ("train", "dev", "test"):
        for task in env_tasks("webshop", {"data": data}, split):
            check_text_env(env, task)


def test_the_first_page_states_the_task_and_info_names_the_goal_by_its_number_alone(env: WebShopEnv) -> None:
    observation, info = env.reset(options={"task": LAMP})
    goal = env.goals[info["goal"]]
    assert goal.id == LAMP
    assert observation == f"WebShop [SEP] Instruction: [SEP] {goal.instruction} [SEP] Search"
    assert info == {
        "task": goal.instruction,
        "task_type": "garden",
        "goal": env.goals.find(LAMP),
        "source": "official, 4 products, synthetic goals by goal, nouns by rule",
        "admissible_commands": ["search[<your query>]"],
        "available_actions": {"has_search_bar": True, "clickables": ["search"]},
        "won": False,
        "score": 0.0,
        "exploits": 0,
        "state": info["state"],
    }
    assert env.reset(options={"goal": info["goal"]}) == (observation, info)


def test_the_answer_stands_in_no_page_before_it_was_found_and_never_in_info(env: WebShopEnv) -> None:
    for number in range(len(env.goals)):
        asin = env.goals[number].asin
        seen: list[Any] = [
            env.reset(options={"goal": number}),
            env.step("search[nothing of all this]"),
            env.step("look"),
        ]
        assert asin not in json.dumps(seen)
        info = env.step("click[back to search]")[4]
        assert set(info) == set(seen[0][1])


def test_a_purchase_terminates_and_earns_once(data: str) -> None:
    steps = play(WebShopEnv(data, reward=10), [*BUY, "click[buy now]", "search[lamp]"])
    assert [step[1:4] for step in steps] == [(0.0, False, False)] * 4 + [(10.0, True, False)] + [(0.0, True, False)] * 2
    bought = steps[4][4]
    assert (bought["won"], bought["score"], bought["r_type"], bought["r_att"]) == (True, 1.0, 1.0, 1.0)
    assert (bought["r_option"], bought["r_price"]) == (1.0, True)
    assert {"title_score", "query_match", "category_match", "w_att", "w_option", "w_price"} < set(bought)
    assert bought["admissible_commands"] == []
    assert steps[5][0] == steps[4][0] and "Your score (min 0.0, max 1.0) [SEP] 1.0" in steps[4][0]


@given(
    st.lists(
        st.one_of(
            st.text(max_size=30),
            st.text(max_size=12).map("click[{}]".format),
            st.text(max_size=12).map("search[{}]".format),
            st.sampled_from(BUY),
        ),
        max_size=12,
    )
)
def test_any_text_is_an_action(data: str, actions: list[str]) -> None:
    env = WebShopEnv(data, observation_mode="text_rich", show_attributes=True)
    env.reset(options={"task": LAMP})
    for action in actions:
        observation, reward, _, _, info = env.step(action)
        assert isinstance(observation, str) and 0 <= reward <= 1
        json.dumps(info)


@pytest.mark.parametrize("unit", ["[", "]", "click[", "a]", "search[<r> ", "\n", "字", "x "])
def test_a_long_hostile_action_takes_no_more_time_than_its_length(env: WebShopEnv, unit: str) -> None:
    env.reset(options={"task": LAMP})
    begin = time.process_time()
    env.step(unit * 50_000)
    env.step(f"search[{unit * 50_000}]")
    env.step(f"click[{unit * 50_000}]")
    assert time.process_time() - begin < 3


def test_query_codes_are_words_like_others_and_counted(data: str) -> None:
    tries = ["search[<r>]", "search[<a> soft]", "search[<c> garden]", "search[<q> sofa]", "search[<R> x]"]
    none = ["search[<r]", "search[lamp <r>]", "search[ <r>]", "<r>", "click[<r>]", "search[<b>]"]
    env = WebShopEnv(data)
    steps = play(env, [*tries, *none])
    assert [step[4]["exploits"] for step in steps] == [1, 2, 3, 4, 5] + [5] * 6
    assert env.reset()[1]["exploits"] == 0
    shown = [
        {name for name in step[4]["available_actions"]["clickables"] if name.startswith("b0")} for step in steps[:4]
    ]
    # "a" and "r" are in no product, "soft" neither, which only the attribute says.
    assert shown == [set(), set(), set(), {"b0sofa0003"}]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"split": "tset"}, r"no split 'tset'\. Did you mean 'test'"),
        ({"split_by": "asin"}, "by goal or by product, found 'asin'"),
        ({"goals": "human"}, r"There is no items_human_ins\.json"),
        ({"observation_mode": "txt"}, r"no observation mode 'txt'\. Did you mean 'text'"),
        ({"max_steps": 0}, "max_steps must be a whole number of at least 1, found 0"),
        ({"reward": float("nan")}, "reward must be a finite number, found nan"),
        ({"partial": 2}, "partial must be True, False or a share from 0 to 1, found 2"),
        ({"data": "/nowhere"}, "There is no folder or file /nowhere"),
        ({"data": "ftp://shop"}, r"found the address 'ftp://shop'\. .*--env-data http://127"),
        ({"max_step": 5}, "has no argument 'max_step'. Did you mean 'max_steps'"),
    ],
)
def test_wrong_arguments_are_named(data: str, arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(EnvError, match=said):
        make_env("webshop", **{"data": data, **arguments})


@pytest.mark.parametrize("mode", ["text", "text_rich", "url"])
@pytest.mark.parametrize("steps", [None, 0, 2, 4, 5])
def test_an_environment_pickles_and_copies_at_any_moment(data: str, steps: int | None, mode: str) -> None:
    env = WebShopEnv(data, observation_mode=mode)
    if steps is not None:
        env.reset(seed=1, options={"task": LAMP})
        for action in BUY[:steps]:
            env.step(action)
    written = pickle.dumps(env)
    assert len(written) < 9_000
    rest = BUY[steps:] if steps is not None else []
    for other in (pickle.loads(written), copy.deepcopy(env)):
        twin = pickle.loads(written)
        if steps is None:
            assert twin.reset(seed=1) == other.reset(seed=1)
        played = [[each.step(action) for action in [*rest, "click[< prev]"]] for each in (twin, other)]
        assert played[0] == played[1] and (not rest or played[0][-2][4]["won"])
        assert [other.reset() for _ in range(5)] == [twin.reset() for _ in range(5)]  # the generator goes on as well
        assert other.shop is env.shop


def test_it_runs_with_no_data_at_all(data: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WEBSHOP_DATA", raising=False)
    env = WebShopEnv()
    assert env.source == "generated, 1,000 products, synthetic goals by goal, nouns by rule"
    _, info = env.reset(seed=0, options={"walkthrough": True})
    assert [env.step(action)[2] for action in info["walkthrough"]][-1]

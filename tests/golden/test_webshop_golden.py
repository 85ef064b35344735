"""WebShop against episodes that were written by hand from the official source, every branch of the reward and every page.

`webshop_episodes/` holds a shop of twenty products in the official files, what every page of it shows (`pages.yaml`, `rich.yaml`),
what goals say (`goals.yaml`) and the episodes. Their rules are those of princeton-nlp/WebShop: web_agent_site/envs/
web_agent_text_env.py (ways and texts), engine/engine.py (products), engine/goal.py (goals, reward) and templates/.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from skill_ttrl.envs.webshop.env import WebShopEnv
from skill_ttrl.envs.webshop.shop import ShopVisit
from tests.webshop_html import page_html

FOLDER = Path(__file__).parent / "webshop_episodes"
SEPARATOR = " [SEP] "
UNSEEN = {"style", "script", "head", "title", "meta", "[document]"}
"""Elements whose strings the official conversion leaves out."""
GOALS_OF = {
    "synthetic": {
        **{"B0LAMP0001": 6, "B0LAMP0003": 1, "B0HOUSE005": 1, "B0HOUSE010": 1, "B0HOUSE012": 1, "B0NONOUN01": 1},
        **{"B0TOWEL001": 1, "B0MUG00001": 1, "B0RUG00001": 16, "B0KIT00001": 20, "B0SHIRT001": 8},
        **{"B0VASE0001": 1, "B0VASE0003": 1},
    },
    "human": {"B0MUG00001": 6, "B0RUG00001": 5, "B0CLOCK003": 1, "B0LAMP0002": 1},
}
"""Product → its goals: combinations of its options, or instructions that name an attribute."""


def read(name: str) -> Any:
    return yaml.load((FOLDER / name).read_text(encoding="utf-8"), getattr(yaml, "CSafeLoader", yaml.SafeLoader))


PAGES: dict[str, dict[str, Any]] = read("pages.yaml")
RICH: dict[str, str] = read("rich.yaml")
GOALS: dict[str, dict[str, dict[str, Any]]] = read("goals.yaml")
EPISODES: list[dict[str, Any]] = [
    episode for name in ("reward", "options", "walks", "modes") for episode in read(f"{name}.yaml")
]


def mode_of(episode: dict[str, Any]) -> str:
    return str(episode.get("env", {}).get("observation_mode", "text"))


@pytest.fixture(autouse=True, scope="module")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


def make(**arguments: Any) -> WebShopEnv:
    settings = {"data": FOLDER, "split": "test", "goals": "synthetic", **arguments}
    return WebShopEnv(**{name: value for name, value in settings.items() if value is not None})


def checked_instruction(told: str, goal: str, kind: str) -> str:
    """What the goal was to say, with one of the ceilings that can be drawn for it."""
    expected = GOALS[kind][goal]
    if "ceilings" not in expected:
        assert told == expected["text"]
        return told
    before, after = expected["text"].split("{ceiling}")
    assert told.startswith(before) and told.endswith(after), told
    assert told[len(before) : len(told) - len(after)] in expected["ceilings"], told
    return told


def page(see: Any, mode: str) -> dict[str, Any]:
    """The page that an episode names: {"text": template, and perhaps "clickables" and "bar"}."""
    if mode == "url":
        return {"text": see}
    if mode == "text_rich":
        return {"text": RICH[see]}
    if isinstance(see, dict):
        asin, title, price = see["one"]
        head = "Instruction: [SEP] {instruction} [SEP] Back to Search [SEP] Page 1 (Total results: 1) [SEP] Next >"
        return {
            "text": SEPARATOR.join((head, asin, title, price)),
            "clickables": ["back to search", "next >", asin.lower()],
        }
    return PAGES[see]


def filled(template: str, words: dict[str, str]) -> str:
    for name, text in words.items():
        template = template.replace("{" + name + "}", text)
    return template


@functools.cache
def texts_of(html: str) -> str:
    """The official conversion of a page to `text`."""
    from bs4 import BeautifulSoup, Comment

    strings = BeautifulSoup(html, "html.parser").find_all(string=True)
    seen = [
        string
        for string in strings
        if string.parent is not None and string.parent.name not in UNSEEN and not isinstance(string, Comment)
    ]
    return SEPARATOR.join(string.strip() for string in seen if string != "\n")


def as_page(env: WebShopEnv) -> str:
    """The page where an episode stands, as the official site writes it."""
    visit = env._visit
    assert isinstance(visit, ShopVisit) and visit._goal is not None
    return page_html(visit.shop, visit._goal, visit._session, visit.state)


def play(episode: dict[str, Any], as_html: bool = False) -> None:
    """Play an episode and compare everything that the environment says."""
    arguments = dict(episode.get("env", {}))
    mode = mode_of(episode)
    env = make(**{**arguments, "observation_mode": "text"} if as_html else arguments)
    observation, info = env.reset(options={"task": episode["goal"]})
    observation = as_page(env) if as_html else observation
    words = {"instruction": checked_instruction(info["task"], episode["goal"], arguments.get("goals", "synthetic"))}
    if mode == "url":
        start = re.fullmatch(r"http://127\.0\.0\.1:3000/([^/]+)", observation)
        assert start is not None, observation
        words["session"] = start[1]
    elif mode == "text_rich":
        assert observation == filled(RICH["search"], words)
    else:
        compare(PAGES["search"], observation, info, words, as_html)

    bought = episode.get("bought")
    if bought is not None:
        matched, of, r_type = bought["score"]
        score = matched / of * r_type
        words |= {"asin": bought["asin"], "options": bought.get("options", ""), "score": str(score)}
    assert info["exploits"] == 0
    steps = [next(iter(step.items())) for step in episode["steps"]]
    for number, (action, see) in enumerate(steps, start=1):
        observation, reward, terminated, truncated, info = env.step(action)
        observation = as_page(env) if as_html else observation
        compare(page(see, mode), observation, info, words, as_html, f"step {number}, {action}")
        last = number == len(steps)
        assert terminated == (last and bought is not None), action
        assert truncated == (last and episode.get("truncated", False)), action
        if not terminated:
            assert (reward, info["score"], info["won"]) == (0.0, 0.0, False), action
    assert info["exploits"] == episode.get("exploits", 0)
    if bought is not None:
        assert info["score"] == score
        assert reward == bought.get("reward", score)
        assert info["won"] == (score == 1.0)
        parts_are(bought, info)
    env.close()


def compare(
    expected: dict[str, Any],
    observation: str,
    info: dict[str, Any],
    words: dict[str, str],
    as_html: bool,
    where: str = "",
) -> None:
    shown = texts_of(observation) if as_html else observation
    assert shown == filled(expected["text"], words), where
    if "clickables" in expected:
        actions = info["available_actions"]
        assert actions["clickables"] == expected["clickables"], where
        assert actions["has_search_bar"] == expected.get("bar", False), where
        searches = ["search[<your query>]"] if actions["has_search_bar"] else []
        clicks = [f"click[{name}]" for name in expected["clickables"] if name != "search"]
        assert info["admissible_commands"] == [*searches, *clicks], where


def parts_are(bought: dict[str, Any], info: dict[str, Any]) -> None:
    """The parts of the reward that an episode names; null is a part that there is not."""
    for name in ("r_att", "r_option", "title_score"):
        if name in bought:
            given = info.get(name)
            assert given == (None if bought[name] is None else bought[name][0] / bought[name][1]), name
    for name in ("r_price", "query_match", "category_match"):
        if name in bought:
            assert info[name] == bought[name], name
    assert info["r_type"] == bought["score"][2]


@pytest.mark.parametrize("episode", EPISODES, ids=lambda episode: str(episode["name"]))
def test_an_episode_goes_as_it_would_on_the_official_simulator(episode: dict[str, Any]) -> None:
    play(episode)


@pytest.mark.parametrize(
    "episode", [each for each in EPISODES if mode_of(each) == "text"], ids=lambda episode: str(episode["name"])
)
def test_pages_as_html_hold_the_same_strings(episode: dict[str, Any]) -> None:
    play(episode, as_html=True)


@pytest.mark.parametrize("kind", ["synthetic", "human"])
def test_the_shop_has_the_goals_that_its_files_make(kind: str) -> None:
    ids = [task.id for task in make(goals=kind).tasks()]
    assert Counter(name.rpartition("-")[0] for name in ids) == GOALS_OF[kind]
    if kind == "synthetic":
        assert set(ids) == {f"{asin}-{k}" for asin, count in GOALS_OF[kind].items() for k in range(count)}
    else:
        # The third instruction for the mug names no attribute.
        assert {name for name in ids if "MUG" in name} == {f"B0MUG00001-h{k}" for k in (0, 1, 3, 4, 5, 6)}
    assert set(GOALS[kind]) <= set(ids)


def test_at_least_sixty_episodes_cover_every_branch() -> None:
    assert len(EPISODES) >= 60
    assert len({episode["name"] for episode in EPISODES}) == len(EPISODES)
    covered = Counter(branch for episode in EPISODES for branch in episode["covers"])
    branches: list[str] = [name for names in read("branches.yaml").values() for name in names]
    assert len(set(branches)) == len(branches)
    assert set(covered) == set(branches)


def test_every_page_and_goal_that_was_written_down_is_visited() -> None:
    seen: dict[str, set[str]] = {"text": {"search"}, "text_rich": {"search"}}
    for episode in EPISODES:
        if mode_of(episode) in seen:
            seen[mode_of(episode)] |= {
                see for step in episode["steps"] for see in step.values() if isinstance(see, str)
            }
    assert seen == {"text": set(PAGES), "text_rich": set(RICH)}
    goals = {"synthetic": set[str](), "human": set[str]()}
    for episode in EPISODES:
        goals[episode.get("env", {}).get("goals", "synthetic")].add(episode["goal"])
    assert goals == {kind: set(of_kind) for kind, of_kind in GOALS.items()}

"""The form of WebShop for small policies: what it writes of pages, and what is written of actions, in both directions."""

from __future__ import annotations

import pytest

from skill_ttrl.agents.agent import AgentInput
from skill_ttrl.agents.observations import VOCABULARY, WEBSHOP, WORDS
from skill_ttrl.agents.observations import webshop as observe
from skill_ttrl.agents.observations import webshop_actions as actions
from skill_ttrl.agents.scripted import make_scripted_agent
from skill_ttrl.envs.webshop.env import WEBSHOP_ENV_ID, WebShopEnv
from skill_ttrl.envs.webshop.expert import SEARCH_SLOT, read_instruction
from skill_ttrl.llm.models.builtin import build_entity_tokenizer
from skill_ttrl.rollout.rollout import run_scripted_episode
from skill_ttrl.types import Step

pytestmark = pytest.mark.usefixtures("one_cache")  # each catalogue is read once

TASK = "Find me slim fit men's shirts, long sleeve with color: navy blue, and size: x-large, and price lower than 40.00 dollars"
HOME = "WebShop [SEP] Instruction: [SEP] … [SEP] Search"
RESULTS = (
    "Instruction: [SEP] … [SEP] Back to Search [SEP] Page 1 (Total results: 3) [SEP] Next > [SEP] B01 [SEP] Men's Shirt, Slim-Fit (Navy) [SEP] $35.00 "
    "[SEP] B02 [SEP] Pants [SEP] $12.50 to $61.00 [SEP] B03 [SEP] Long Sleeves [SEP] $40.01"
)
ITEM = (
    "Instruction: [SEP] … [SEP] Back to Search [SEP] < Prev [SEP] color [SEP] navy blue [SEP] navy [SEP] red [SEP] dark green [SEP] size [SEP] x-large [SEP] "
    "Men's Shirt, Slim-Fit (Navy) [SEP] Price: $35.00 [SEP] Rating: N.A. [SEP] Description [SEP] Features [SEP] Reviews [SEP] Buy Now"
)
TEXT = "Instruction: [SEP] … [SEP] Back to Search [SEP] < Prev [SEP] A shirt of cotton, with sleeves."
ON_RESULTS = tuple(f"click[{name}]" for name in ("back to search", "< prev", "next >", "b01", "b02", "b03"))
ON_ITEM = tuple(
    f"click[{name}]"
    for name in (
        "back to search",
        "< prev",
        "description",
        "features",
        "reviews",
        "buy now",
        "navy blue",
        "navy",
        "red",
        "dark green",
        "x-large",
    )
)
ON_TEXT = ("click[back to search]", "click[< prev]")
PAGES = {HOME: (SEARCH_SLOT,), RESULTS: ON_RESULTS, ITEM: ON_ITEM, TEXT: ON_TEXT}


def walk(*way: str) -> AgentInput:
    """The scene after pages and actions in turn, the last of them a page."""
    steps = [
        Step(page, action, 0.0, False, False, admissible_actions=PAGES[page])
        for page, action in zip(way[::2], way[1::2], strict=False)
    ]
    return AgentInput(way[-1], tuple(steps), TASK, PAGES[way[-1]])


SEARCHED = (HOME, "search[shirts]", RESULTS)
OPENED = (*SEARCHED, "click[b01]", ITEM)


def test_the_first_page_is_the_instruction_as_pointers() -> None:
    # slim fit men's shirts , long sleeve with color : navy blue , and size : x-large , and — a ceiling
    assert observe(walk(HOME)) == (
        "<task> word 1 word 2 word 3 word 4 comma word 5 word 6 with word 7 is word 8 word 9 comma and word 10 is word 11 ceiling"
    )
    read = read_instruction(TASK)
    assert (read.words[:4], read.words[10], read.below) == (("slim", "fit", "men's", "shirts"), "x-large", 40.0)


@pytest.mark.parametrize(
    ("way", "said"),
    [
        ((*SEARCHED, "click[next >]", RESULTS, "click[< prev]", RESULTS), "again"),
        ((*OPENED, "click[< prev]", RESULTS), "again result 1"),
        ((*OPENED, "click[features]", TEXT, "click[< prev]", ITEM), "item again"),
        ((*OPENED, "click[< prev]", RESULTS, "click[b01]", ITEM), "item again"),
        ((*OPENED, "click[red]", ITEM), "ok"),
        ((*OPENED, "click[rouge]", ITEM), "fail"),
        ((*SEARCHED, "buy", RESULTS), "fail"),
        ((*OPENED, "click[back to search]", HOME), "home"),
        ((*OPENED, "click[back to search]", HOME, "search[shirts]", RESULTS), "again result 1"),
    ],
)
def test_a_page_that_was_shown_is_short(way: tuple[str, ...], said: str) -> None:
    assert observe(walk(*way)) == said


def test_actions_are_written_in_the_words_of_the_pages() -> None:
    home, results, item = (actions(walk(*way)) for way in ((HOME,), SEARCHED, OPENED))
    assert home.choices == (f"search {WORDS}",)
    assert home.read("search word 4 word 8") == "search[shirts navy]"
    assert home.write("search[men's shirts]") == "search word 3 word 4"
    assert results.actions["result 3"] == "click[b03]" and results.actions["next"] == "click[next >]"
    assert [item.read(said) for said in ("word 8 word 9", "word 11", "previous", "buy", "word 1")] == [
        *("click[navy blue]", "click[x-large]", "click[< prev]", "click[buy now]", None)
    ]
    # Values without a word of the instruction read alike: the first of them is meant.
    assert item.read("other") == "click[red]" and item.write("click[dark green]") == "other"


def test_what_brief_does_is_written_and_read_back_in_few_known_tokens() -> None:
    env = WebShopEnv(data="generated", split="dev")
    tokenizer = build_entity_tokenizer(VOCABULARY)
    player, lengths = make_scripted_agent("brief", WEBSHOP_ENV_ID), []
    for number, task in enumerate(env.tasks("dev")[::40]):
        episode = run_scripted_episode(env, task, player, seed=number)
        assert episode.error is None
        tokens: list[int] = []
        for place, step in enumerate(episode.steps):
            scene = AgentInput(step.observation, episode.steps[:place], episode.goal, step.admissible_actions)
            assert WEBSHOP.actions is not None
            written = WEBSHOP.actions(scene).write(step.action)
            assert written is not None and WEBSHOP.actions(scene).read(written) == step.action
            tokens += tokenizer(f"{WEBSHOP.observe(scene)} {written}")["input_ids"]
        assert tokenizer.unk_token_id not in tokens
        lengths.append(len(tokens))
    assert len(tokenizer) < 200 and max(lengths) < 500

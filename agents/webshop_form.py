"""A form of WebShop for small policies (`agent.observations: webshop`): pages as pointers to the instruction's words, and actions in words.

    <task> word 1 word 2 with word 3 is word 4 ceiling
    search word 2 word 4                                    → search[lamps white]
    results word 2 price 3 result 1 word 4 word 2 over result 2
    result 1                                                → click[b09qqp3356]
    item option word 3 is word 4 comma other comma
    word 4                                                  → click[white]

A page that was seen before is short: `again`. All of it follows from the scene alone: an earlier query, the page of results, what was opened and what
was shown are read off the steps. Pages are read in the observation modes `text` and `text_rich`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING

from skill_ttrl.agents.observations import OBSERVATIONS, WORDS, Form, FormActions, Slot
from skill_ttrl.envs.webshop.expert import (
    BACK,
    BUTTONS,
    BUY,
    CEILING,
    NEXT,
    POINTERS,
    PREVIOUS,
    SEARCH_SLOT,
    STRUCTURE,
    Instruction,
    Offer,
    click,
    pointer_names,
    read_clicks,
    read_instruction,
    read_offers,
    read_options,
    read_text,
)

if TYPE_CHECKING:
    from skill_ttrl.agents.agent import AgentInput

RESULTS = 50
"""Results that have a name of their own; the site finds no more."""
RESULTS_A_PAGE = 10
DEAREST = 6
"""`price 6` is 50 dollars and more below the ceiling, `price 1` less than 10."""
_NAMES = {BACK: "back", NEXT: "next", PREVIOUS: "previous", BUY: "buy"}
"""Buttons whose name is not one word of letters."""
_SEARCH = "search["
_AGAIN, _CHOSEN, _FAILED = "again", "ok", "fail"


@dataclass(frozen=True, slots=True)
class _Page:
    """One page, as far as it does not depend on the way to it."""

    kind: str
    """`home`, where a search begins; `results`; `item`; or `text`, about a product."""
    buttons: Mapping[str, str]
    """Name → action."""
    offers: tuple[Offer, ...] = ()


@dataclass(slots=True)
class _Visit:
    """The way to a page: what has been searched for, opened and shown."""

    query: str = ""
    number: int = 1
    """Of the page of results."""
    at: str | None = None
    """The product that was opened, as it is clicked."""
    titles: dict[str, str] = field(default_factory=dict)
    """Of the products of the last page of results."""
    numbers: set[int] = field(default_factory=set)
    """Pages of results that were shown."""
    opened: set[str] = field(default_factory=set)
    shown: str | None = None
    """The product whose page was shown last."""
    clicked: list[str] = field(default_factory=list)
    """Clicks on the page of the product that is open, in order: of the values of an option the last one is chosen."""


def observe(scene: AgentInput) -> str:
    """The page of a scene; the first one is the instruction."""
    instruction = read_instruction(scene.task)
    if not scene.steps:
        return f"<task> {instruction.written}".rstrip()
    page, visit, news = _walk(scene)
    if news in (_CHOSEN, _FAILED):
        return news
    if page.kind == "results":
        return _results(page, visit, instruction, news == _AGAIN)
    if page.kind == "item":
        return "item again" if news == _AGAIN else _item(_options(scene, visit), instruction)
    return " ".join([page.kind, *(instruction.find(read_text(scene.observation)) if page.kind == "text" else ())])


def actions(scene: AgentInput) -> FormActions:
    """Return what a policy may write: buttons, results and option values by name, and a search for words of the instruction."""
    page, visit, _ = _walk(scene)
    instruction = read_instruction(scene.task)
    written, alike = dict(page.buttons), dict[str, str]()
    if page.kind == "results":
        written |= {_result(visit, place): click(offer.asin) for place, offer in enumerate(page.offers)}
    elif page.kind == "item":
        for values in _options(scene, visit).values():
            chosen = next((each for each in reversed(visit.clicked) if each in values), None)
            for value in values:
                if (
                    value == chosen
                ):  # a click on it changes nothing, and small policies repeat it until the steps run out
                    continue
                said, action = instruction.value(value), click(value)
                if written.setdefault(said, action) != action:
                    alike[action] = said
    if SEARCH_SLOT not in scene.admissible_actions:
        return FormActions(written, alike=alike)
    words = dict(zip(pointer_names(len(instruction.words)), instruction.words, strict=True))
    return FormActions(written, Slot(f"search {WORDS}", f"{_SEARCH}{WORDS}]", words))


def _walk(scene: AgentInput) -> tuple[_Page, _Visit, str]:
    """The page of a scene, the way to it, and what is new: a whole page (empty), `again`, `ok` or `fail`."""
    visit, news, last = _Visit(), "", None
    steps = scene.steps
    page = (
        _read(steps[0].observation, steps[0].admissible_actions)
        if steps
        else _read(scene.observation, scene.admissible_actions)
    )
    for place, step in enumerate(steps):
        last, here = step.action, page
        then = steps[place + 1] if place + 1 < len(steps) else scene
        page = _read(then.observation, then.admissible_actions)
        if last not in step.admissible_actions and not last.startswith(_SEARCH):
            news = _FAILED
        else:
            news = _enter(visit, page, last, from_results=here.kind == "results")
    return page, visit, news


def _enter(visit: _Visit, page: _Page, last: str, *, from_results: bool) -> str:
    """Take note of a page that an action led to; what is new of it."""
    if last.startswith(_SEARCH):
        if last != visit.query:
            visit.numbers.clear()
        visit.query, visit.number = last, 1
    if page.kind == "results":
        if last == click(NEXT):
            visit.number += 1
        elif last == click(PREVIOUS) and from_results:
            visit.number -= 1
        visit.at, visit.titles = None, {offer.asin: offer.title for offer in page.offers}
        known = visit.number in visit.numbers
        visit.numbers.add(visit.number)
        return _AGAIN if known else ""
    if page.kind != "item":
        return ""
    clicked = last[len("click[") : -1]
    if from_results and clicked in visit.titles:
        visit.at = clicked
        visit.opened.add(clicked)
        visit.clicked.clear()
    elif visit.at is not None and clicked not in BUTTONS:
        visit.clicked.append(clicked)
        return _CHOSEN
    known = visit.at is not None and visit.at == visit.shown
    visit.shown = visit.at
    return _AGAIN if known else ""


@lru_cache(maxsize=4096)
def _read(observation: str, admissible: tuple[str, ...]) -> _Page:
    clicks = read_clicks(admissible)
    buttons = {_NAMES.get(name, name): click(name) for name in clicks if name in BUTTONS}
    if NEXT in clicks:
        return _Page("results", buttons, tuple(read_offers(observation, clicks)))
    return _Page("item" if BUY in clicks else "text" if clicks else "home", buttons)


def _options(scene: AgentInput, visit: _Visit) -> Mapping[str, list[str]]:
    return _values(scene.observation, scene.admissible_actions, visit.titles.get(visit.at or "", ""))


@lru_cache(maxsize=4096)
def _values(observation: str, admissible: tuple[str, ...], title: str) -> Mapping[str, list[str]]:
    return read_options(observation, read_clicks(admissible), title)


def _result(visit: _Visit, place: int) -> str:
    """Name of a result by its place on the page, from 0."""
    return f"result {min(RESULTS_A_PAGE * (visit.number - 1) + place + 1, RESULTS)}"


def _results(page: _Page, visit: _Visit, instruction: Instruction, again: bool) -> str:
    named = [(_result(visit, place), offer) for place, offer in enumerate(page.offers)]
    if again:
        return " ".join(["again", *(name for name, offer in named if offer.asin in visit.opened)])
    said = ["results"]
    for name, offer in named:
        said += [*instruction.find(offer.title)[:16], _price(offer.low, instruction.below)]
        said += ["to", _price(offer.high, instruction.below)] if offer.high > offer.low else []
        said.append(name)
    return " ".join(said if named else ["results", "nothing"])


def _item(options: Mapping[str, list[str]], instruction: Instruction) -> str:
    said = ["item"]
    for name, values in options.items():
        said += ["option", *instruction.find(name), "is"]
        written = [instruction.value(value) for value in values]
        first = written.index("other") if "other" in written else -1
        said += [f"{value} comma" for place, value in enumerate(written) if value != "other" or place == first]
    return " ".join(said)


def _price(dollars: float, below: float | None) -> str:
    """A price relative to the ceiling, in tens of dollars."""
    if below is None:
        return "unpriced"
    left = below - dollars
    return "over" if left < 0 else f"price {min(DEAREST, int(left // 10) + 1)}"


VOCABULARY = (
    "<task> home results item text again ok fail nothing option is comma other over unpriced to search",
    *{**STRUCTURE, "ceiling": CEILING}.values(),
    *(_NAMES.get(name, name) for name in sorted(BUTTONS)),
    f"word {POINTERS}",
    f"result {RESULTS}",
    f"price {DEAREST}",
)
WEBSHOP = Form(observe, actions, VOCABULARY)
OBSERVATIONS.register("webshop")(WEBSHOP)

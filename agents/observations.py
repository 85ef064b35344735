"""Forms in which prompts write an observation (`agent.observations`), and actions where they have one of those too.

Environments, episodes, experts and teachers go by what an environment says. A prompt may hold a form of it that is easier to
learn from: a pure function of the scene, the same for what is seen now and for what stands in the history. To add one, write a function
from a `AgentInput` to a text, or a `Form`, and name it as `module:attribute`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, TypeVar

from skill_ttrl.agents.action_parser import ParsedAction, Project
from skill_ttrl.envs.webshop.expert import (
    BACK,
    BUTTONS,
    BUY,
    CEILING,
    NEXT,
    POINTERS,
    PREVIOUS,
    RESULTS_A_PAGE,
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
from skill_ttrl.errors import ConfigError
from skill_ttrl.registry import Registry, naming
from skill_ttrl.sanitize import replace_surrogates

if TYPE_CHECKING:
    from skill_ttrl.agents.agent import AgentInput

Observe = Callable[["AgentInput"], str]
"""The text of `AgentInput.observation` in a prompt."""
T = TypeVar("T")
WORDS = "<words>"
"""The place of the policy's own words in a text that it writes."""


@dataclass(frozen=True, slots=True)
class Slot:
    """A possible action with a place for words of the policy's own."""

    written: str
    """As the policy writes it, with `WORDS` at the end: `search <words>`."""
    action: str
    """As the environment reads it, with `WORDS` in their place: `search[<words>]`."""
    words: Mapping[str, str]
    """Words allowed there: as the policy writes them → as the environment reads them."""


@dataclass(frozen=True, slots=True)
class FormActions:
    """The possible actions of one scene, as a policy writes them."""

    actions: Mapping[str, str] = field(default_factory=dict)
    """Text that the policy writes → the environment's action."""
    slot: Slot | None = None
    alike: Mapping[str, str] = field(default_factory=dict)
    """The environment's action → what is written, for actions that are written as another one is. That one is meant where it is read; where
    an episode has such an action, it is shown so: the policy cannot tell the two apart."""

    @property
    def choices(self) -> tuple[str, ...]:
        """Everything that can be written; the one with a slot has `WORDS` there. A slot without words cannot."""
        return (*self.actions, *((self.slot.written,) if self.slot is not None and self.slot.words else ()))

    @property
    def slot_words(self) -> tuple[str, ...]:
        """Words allowed in the slot, as the policy writes them; empty without a slot."""
        return () if self.slot is None else tuple(self.slot.words)

    def read(self, written: str) -> str | None:
        """The environment's action; None where what was written is none of these."""
        said = " ".join(written.split())
        if said in self.actions or self.slot is None:
            return self.actions.get(said)
        head = self.slot.written.removesuffix(WORDS)
        words = _split(said.removeprefix(head), self.slot.words) if said.startswith(head) else None
        return self.slot.action.replace(WORDS, " ".join(words)) if words else None

    def write(self, action: str) -> str | None:
        """An action of the environment as the policy writes it; None where it cannot.

        Of a slot's words those that the policy does not have are left out.
        """
        for written, known in self.actions.items():
            if known == action:
                return written
        if action in self.alike or self.slot is None:
            return self.alike.get(action)
        before, _, after = self.slot.action.partition(WORDS)
        if not (action.startswith(before) and action.endswith(after) and len(action) > len(before + after)):
            return None
        written_as = {word: name for name, word in reversed(list(self.slot.words.items()))}
        words = _longest(action[len(before) : len(action) - len(after)].split(), written_as)
        return self.slot.written.replace(WORDS, " ".join(words)) if words else None


@dataclass(frozen=True, slots=True)
class Form:
    """A form of observations, with one of actions or without."""

    observe: Observe
    actions: Callable[[AgentInput], FormActions] | None = None
    """None: actions are written as the environment lists them."""
    vocabulary: tuple[str, ...] = ()
    """Texts with all words of the form, for tokenizers that are made of a run's texts (`model.builtin.vocabulary: entities`)."""


def read_form(written: str, actions: FormActions, project: Project, *, constrained: bool = False) -> ParsedAction:
    """The environment's action that was written in a form. What is none is `invalid`, and played as it is: the environment answers it.

    Args:
        written: the model's own words.
        actions: what it may write now.
        project: finds the action in them, as for actions that are listed as the environment has them.
        constrained: it could write nothing but one of them, whatever `project` says of tags.
    """
    if constrained and (action := actions.read(written)) is not None:
        return ParsedAction(action, "valid")
    found = project(written, actions.choices)
    meant = None if found.action_status == "invalid" else actions.read(found.action)
    if meant is None:
        return ParsedAction(found.action, "invalid", found.parse_error or "it is none of the possible actions")
    return ParsedAction(meant, found.action_status or "valid", found.parse_error)


def _split(said: str, words: Mapping[str, str]) -> list[str] | None:
    """The slot's words in a text, as the environment reads them; None where there is another. A word may be several: `word 3`."""
    parts, most = said.split(), max((name.count(" ") + 1 for name in words), default=0)
    rest: list[list[str] | None] = [None] * len(parts) + [[]]
    for place in reversed(range(len(parts))):
        for end in range(min(place + most, len(parts)), place, -1):
            name, after = " ".join(parts[place:end]), rest[end]
            if after is not None and name in words:
                rest[place] = [words[name], *after]
                break
    return rest[0]


def _longest(parts: list[str], names: Mapping[str, str]) -> list[str]:
    """Names of the texts that are found one after the other, the longest first; words between them are left out."""
    found, place, most = [], 0, max((text.count(" ") + 1 for text in names), default=0)
    while place < len(parts):
        ends = range(min(place + most, len(parts)), place, -1)
        end = next((end for end in ends if " ".join(parts[place:end]) in names), None)
        if end is not None:
            found.append(names[" ".join(parts[place:end])])
        place = place + 1 if end is None else end
    return found


FULL = "full"
OBSERVATIONS: Registry[Observe | Form] = Registry("form of observations")

_ENTITY = re.compile(r"[a-z]+ \d+")
_WORD = re.compile(r"[a-z]+")
_SEEN = re.compile(r"you (?:see|are carrying:?) ([^\n]*)", re.IGNORECASE)
_TASK = re.compile(r"your task is to:?([^\n]*)", re.IGNORECASE)
_GO = "go to "
_FILLERS = frozenset({"a", "an", "the", "some", "it", "them", "and"})
"""Words of a task that say nothing."""


def find_observations(name: str) -> Form | None:
    """The form by name; None: as the environment has observations and actions.

    Raises:
        ConfigError: there is none of this name, or what has it is neither a function nor a `Form`.
    """
    if name == FULL:
        return None
    found = OBSERVATIONS.get(name)
    form = found if isinstance(found, Form) else Form(found)
    if any(isinstance(part, type) or not callable(part) for part in (form.observe, form.actions or form.observe)):
        raise ConfigError(
            f"agent.observations={name} must be a function of an AgentInput or a Form, found {found!r:.80}."
        )

    def checked(function: Callable[[AgentInput], T], kind: type[T]) -> Callable[[AgentInput], T]:
        """The same function; what it gives is looked at, and code of a user's own that fails is named."""

        def call(scene: AgentInput) -> T:
            with naming(f"The form of observations {name!r}") if ":" in name else nullcontext():
                result = function(scene)
            if not isinstance(result, kind):
                raise ConfigError(
                    f"agent.observations={name} returned {type(result).__name__} instead of {kind.__name__}."
                )
            return result

        return call

    observe, actions = checked(form.observe, str), form.actions
    return Form(
        lambda scene: replace_surrogates(observe(scene)),
        None if actions is None else checked(actions, FormActions),
        form.vocabulary,
    )


def full(scene: AgentInput) -> str:
    """As the environment says it."""
    return scene.observation


def alfworld(scene: AgentInput) -> str:
    """An observation of ALFWorld as the things that it names.

    The first is `<task> put keychain in armchair <room> armchair 1 drawer 2`: the task without articles, and the receptacles. A later one
    has the things that are seen or carried, or one word: `nothing` where there are none, `closed` of a receptacle, `fail` where nothing
    happened, `ok` for all else.
    """
    said = scene.observation
    if not scene.steps:
        asked = _TASK.search(said)
        words = _WORD.findall((asked[1] if asked else scene.task).lower())
        task = [word for word in words if word not in _FILLERS]
        return " ".join(["<task>", *task, "<room>", *_room(said)])
    if said.strip().startswith("Nothing happens"):
        return "fail"
    things = _things(said)
    if things:
        return " ".join(things)
    if "you see nothing" in said or "not carrying anything" in said:
        return "nothing"
    return "closed" if said.rstrip().endswith("is closed.") else "ok"


def alfworld_reach(scene: AgentInput) -> str:
    """As `alfworld`; where a receptacle was gone to, also the others within reach from there, each with `closed` or what can be taken from it.

    Several may stand at one spot, and the engine describes the one that was named alone; the others are in the possible actions.
    """
    seen = alfworld(scene)
    done = scene.steps[-1].action.strip() if scene.steps else ""
    if not done.startswith(_GO) or seen == "fail":
        return seen
    possible, named = frozenset(scene.admissible_actions), done.removeprefix(_GO).strip()
    words = [seen]
    for place in _room(scene.steps[0].observation):
        if place != named and f"examine {place}" in possible:
            end = f" from {place}"
            taken = (
                action.removesuffix(end)[5:]
                for action in possible
                if action.startswith("take ") and action.endswith(end)
            )
            words += [place, *(("closed",) if f"open {place}" in possible else sorted(taken))]
    return " ".join(words)


@lru_cache(maxsize=4096)  # it is asked for at every step
def _room(said: str) -> tuple[str, ...]:
    """The receptacles that the first observation of a game names."""
    asked = _TASK.search(said)
    return tuple(_things(said[: asked.start()] if asked else said))


def _things(said: str) -> list[str]:
    """Things that are seen or carried, in the order in which it is named."""
    return [thing for seen in _SEEN.findall(said) for thing in _ENTITY.findall(seen.lower())]


for _name, _function in ((FULL, full), ("alfworld", alfworld), ("alfworld_reach", alfworld_reach)):
    OBSERVATIONS.register(_name)(_function)


# The form `webshop` for small policies: pages as pointers to the instruction's words, and actions in words.
#
#     <task> word 1 word 2 with word 3 is word 4 ceiling
#     search word 2 word 4                                    → search[lamps white]
#     results word 2 price 3 result 1 word 4 word 2 over result 2
#     result 1                                                → click[b09qqp3356]
#     item option word 3 is word 4 comma other comma
#     word 4                                                  → click[white]
#
# A page that was seen before is short: `again`. All of it follows from the scene alone: an earlier query, the page of results, what was
# opened and what was shown are read off the steps.

RESULTS = 50
"""Results that have a name of their own; the site finds no more."""
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


def webshop(scene: AgentInput) -> str:
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


def webshop_actions(scene: AgentInput) -> FormActions:
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
                # A click on it changes nothing, and small policies repeat it until the steps run out.
                if value == chosen:
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
    visit, news = _Visit(), ""
    pages = [_read(step.observation, step.admissible_actions) for step in scene.steps]
    pages.append(_read(scene.observation, scene.admissible_actions))
    for step, here, page in zip(scene.steps, pages, pages[1:], strict=False):
        if step.action not in step.admissible_actions and not step.action.startswith(_SEARCH):
            news = _FAILED
        else:
            news = _enter(visit, page, step.action, from_results=here.kind == "results")
    return pages[-1], visit, news


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
WEBSHOP = Form(webshop, webshop_actions, VOCABULARY)
OBSERVATIONS.register("webshop")(WEBSHOP)

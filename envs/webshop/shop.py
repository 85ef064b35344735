"""The shop: what its pages show, where a shopper stands, and what an action changes.

Every page of the official simulator is a template whose text an agent sees in one of two forms
(`web_agent_site/envs/web_agent_text_env.py`, `convert_html_to_text`): `text` joins the texts with " [SEP] ", `text_rich` has a
line for each and marks what can be clicked. This module makes the texts directly, without HTML in between; tests pass HTML pages
through the official conversion to check that the texts are the same.

The rules are those of upstream's `SimServer.receive` and `WebAgentTextEnv.step` (`web_agent_site/envs/web_agent_text_env.py`),
those too that look odd: a search is honoured on every page, a click on what is not on the page changes nothing, pages of results
go on after the last one, and going back to the results forgets the chosen options.

Not followed: upstream finds out where it stands by looking for "search_results" and the like in the address, which holds the
query, so that a query with such a word leads it astray.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from typing import Any, Literal, NamedTuple

from skill_ttrl.envs.text_env import state_digest
from skill_ttrl.envs.webshop.catalogue.product import NO_RATING, Product
from skill_ttrl.envs.webshop.catalogue.search import RESULTS, Store, analyse
from skill_ttrl.envs.webshop.goals import Goal, price_of
from skill_ttrl.envs.webshop.reward import PurchaseReward, alike, purchase_reward

Kind = Literal["text", "button", "option", "product"]

SEARCH, BACK, NEXT, PREVIOUS, BUY = "Search", "Back to Search", "Next >", "< Prev", "Buy Now"
DESCRIPTION, FEATURES, REVIEWS, ATTRIBUTES = "Description", "Features", "Reviews", "Attributes"
SUB_PAGES = (DESCRIPTION, FEATURES, REVIEWS, ATTRIBUTES)
BUTTONS = (SEARCH, BACK, NEXT, PREVIOUS, BUY, *SUB_PAGES)
"""All that the pages have."""
RESULTS_A_PAGE = 10
SEARCH_SLOT = "search[<your query>]"
"""How a search stands among the admissible commands: the words are the agent's own."""
KEPT_TEXTS = 2048
"""Products of which a process keeps what pages show: some 4 MB."""
_BEFORE = {"button": "", "option": "  ", "product": "\n"}
"""Text in front of each kind of element to click, in `text_rich`."""
_WHITE = " \n\t\f\r"


class Text(NamedTuple):
    """One visible text of a page."""

    text: str
    kind: Kind = "text"
    option: str = ""
    """Name of the option that a text of the kind `option` is a value of."""


Page = tuple[Text, ...]


def search_page(instruction: str) -> Page:
    """Where an episode begins: a search bar."""
    return (Text("WebShop"), Text("Instruction: "), *_free(instruction), Text(SEARCH, "button"))


def results_page(instruction: str, products: Sequence[Product], number: int, total: int) -> Page:
    """One page of the results with its at most ten products, none past the last; its number is from 1 and has no bound."""
    texts = [*_head(instruction), Text(f"Page {number} (Total results: {total})")]
    if number > 1:
        texts.append(Text(PREVIOUS, "button"))
    texts.append(Text(NEXT, "button"))
    for product in products:
        texts += _row(product)
    return tuple(texts)


def item_page(instruction: str, product: Product, show_attributes: bool = False) -> Page:
    """A product, with its options and the way to buy it."""
    return (*_head(instruction), *_item(product, show_attributes))


def sub_page(instruction: str, product: Product, name: str) -> Page:
    """Description, features, reviews (the official files have none) or attributes of a product."""
    texts = [*_head(instruction), Text(PREVIOUS, "button")]
    if name == DESCRIPTION:
        texts += _free(product.description)
    elif name == FEATURES:
        texts += (text for bullet in product.bullets for text in _free(f" {bullet}"))
    elif name == ATTRIBUTES:
        texts += (text for attribute in product.attributes for text in _free(f" {attribute}"))
        texts += (*_free(product.category), *_free(product.query), *_free(product.product_category))
    return tuple(texts)


def sub_pages(show_attributes: bool) -> tuple[str, ...]:
    """Sub-pages of a product."""
    return SUB_PAGES if show_attributes else SUB_PAGES[:-1]


def done_page(asin: str, options: Mapping[str, str], reward: float) -> Page:
    """After a purchase. What upstream's simulator does not fill in stands there as it does there: "None", or nothing."""
    bought = ("asin", asin, "options", options_text(options), "attrs", "None", "category", "None", "query", "None")
    wanted = ("asin", "options", "attrs", "price upper", "instuction text", "category", "product category", "query")
    said = (
        *("Thank you for shopping with us!", "Your code: ", "None", " (Paste it in your MTurk interface.)"),
        *("Purchased", *bought, "product category", "None"),
        *("Target", *wanted, "Goal ", "None"),
        *("Reward", "Your score (min 0.0, max 1.0)", str(reward), "Reward Details ", "None"),
    )
    return tuple(Text(text) for text in said)


def options_text(options: Mapping[str, str]) -> str:
    """Chosen options as the page after a purchase has them: JSON, by Flask's filter `tojson`."""
    text = json.dumps(dict(options), sort_keys=True)
    for sign in "<>&'":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


def as_text(page: Page) -> str:
    """The observation `text`."""
    return " [SEP] ".join([text[0].strip() for text in page])


def as_rich_text(page: Page, url: str, seen: Collection[str]) -> str:
    """The observation `text_rich`.

    Args:
        page: what is shown.
        url: of the page: upstream takes an option for clicked whose value stands in it between quotes.
        seen: ASINs of the products opened so far.
    """
    clicked, lines = "", []
    for text, kind, _ in page:
        if kind == "text":
            lines.append(text)
            continue
        chosen = kind == "option" and f'"{text}"' in url
        mark = "clicked " if chosen or (kind == "product" and text in seen) else ""
        lines.append(f"{_BEFORE[kind]}[{mark}button] {text} [{mark}button_]")
        if chosen:
            clicked = f"You have clicked {text}.\n{clicked}"
    return clicked + "".join(f"{line}\n" for line in lines)


def observe(page: Page, session: str, state: State, mode: str) -> str:
    """The shopper's view of a page in one of the `MODES`."""
    if mode == "text":
        return as_text(page)
    url = page_url(session, state)
    return url if mode == "url" else as_rich_text(page, url, state.seen)


def clickables(page: Page) -> dict[str, Text]:
    """Return the possible arguments of `click[...]` on a page: lower-case text → the text that it clicks.

    They come in upstream's order: buttons, products, options. If two have the same text, the later one wins: an option with the value
    "description" hides that page, and of two options with the same value only the last can be chosen.
    """
    found: dict[Kind, dict[str, Text]] = {"button": {}, "product": {}, "option": {}}
    for text in page:
        name, kind, _ = text
        if kind != "text":
            found[kind][name if kind == "option" else name.lower()] = text
    return found["button"] | found["product"] | found["option"]


def admissible(clicks: Iterable[str], search_bar: bool) -> list[str]:
    """The actions that a page admits, as texts; the search only where there is a search bar."""
    commands = [f"click[{name}]" for name in clicks if name != "search"]
    return [SEARCH_SLOT, *commands] if search_bar else commands


def has_search_bar(page: Page) -> bool:
    """True if a page is the search page."""
    return page[-1] == (SEARCH, "button", "")


@lru_cache(maxsize=KEPT_TEXTS)
def _row(product: Product) -> Page:
    return (Text(product.asin, "product"), *_free(product.title), Text(product.price_tag))


@lru_cache(maxsize=KEPT_TEXTS)
def _item(product: Product, show_attributes: bool) -> Page:
    texts = [Text(PREVIOUS, "button")]
    for name, values in product.options.items():
        texts += _free(name)
        texts += (Text(text.text, "option", name) for value in values for text in _free(value))
    texts += (*_free(product.title), Text(f"Price: {product.price_tag}"), Text(f"Rating: {NO_RATING}"))
    return (*texts, *(Text(name, "button") for name in (*sub_pages(show_attributes), BUY)))


def _head(instruction: str) -> list[Text]:
    return [Text("Instruction:"), *_free(instruction), Text(BACK, "button")]


def _free(text: str) -> tuple[Text, ...]:
    """A text from the catalogue as the official parser leaves it (Beautiful Soup): nothing, white space with a line's end, and
    an empty text are not seen, other white space alone is one space.
    """
    if text.strip(_WHITE):
        return (Text(text),)
    return () if not text or "\n" in text else (Text(" "),)


QUERY_CODES = ("<r>", "<a>", "<c>", "<q>")
"""First words with which upstream's search gives random products, or those with an attribute, a category or a query: a way around
shopping. Here they are words like others, and counted."""
BASE_URL = "http://127.0.0.1:3000"
KEPT_SEARCHES = 1024
"""Of a shop: the pages of one search's results, and the way back to them, search once. About 2 MB."""
LONGEST_KEPT = 2_000
"""Characters."""

Place = Literal["search", "results", "item", "sub", "done"]


@dataclass(frozen=True, slots=True)
class State:
    """Where a shopper stands. Plain data: an episode is a goal and a state."""

    place: Place = "search"
    keywords: tuple[str, ...] = ()
    """Of the last search; upstream splits them at each space."""
    page: int = 1
    """Of the results, from 1."""
    asin: str = ""
    """The product looked at, or bought."""
    seen: frozenset[str] = frozenset()
    """ASINs of the products opened since the last visit to the search page."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Chosen of `asin`, in the order of the first choice of each."""
    sub: str = ""
    """Which page of the product, where `place` is "sub"."""
    bought: PurchaseReward | None = None


def parse_action(action: str) -> tuple[str, str] | None:
    r"""The name and argument of `name[argument]`, the argument in small letters; None: it has no such form.

    As upstream reads them, with the regular expression (.+)\[(.+)\]: the name is everything up to the last bracket that can
    open an argument, a line's end ends the match, and what follows the last closing bracket is not looked at. Without the
    expression, whose time grows with the square of the brackets.
    """
    line = action.partition("\n")[0]
    closes = line.rfind("]")
    opens = line.rfind("[", 1, closes - 1) if closes > 2 else -1
    return None if opens < 0 else (line[:opens], line[opens + 1 : closes].lower())


def is_coded(action: str) -> bool:
    """True if an action is a search with one of the `QUERY_CODES`."""
    parsed = parse_action(action)
    return parsed is not None and parsed[0] == "search" and parsed[1].split(" ")[0] in QUERY_CODES


class Shop:
    """One shop for every shopper of a process: it keeps nothing of an episode.

    Args:
        store: the products.
        show_attributes: products have a page with the attributes that the reward looks at.
    """

    def __init__(self, store: Store, *, show_attributes: bool = False) -> None:
        self.store, self.show_attributes = store, show_attributes
        self._kept_search = lru_cache(maxsize=KEPT_SEARCHES)(self._search)

    def step(self, goal: Goal, state: State, page: Page, action: str) -> State:
        """Return the state after an action; the same state if the action means nothing here.

        Args:
            goal: of the episode; only a purchase looks at it.
            state: where the shopper stands.
            page: what `page(goal, state)` shows there.
            action: any text.
        """
        new = follow(state, page, action)
        if new.place == "done" and new.bought is None:
            product = self.product(new.asin)
            return replace(new, bought=purchase_reward(product, goal, price_of(product), new.options))
        return new

    def page(self, goal: Goal, state: State) -> Page:
        """Return the page that is shown in a state."""
        if state.place == "search":
            return search_page(goal.instruction)
        if state.place == "results":
            products, total = self.results(state)
            return results_page(goal.instruction, products, state.page, total)
        if state.place == "done":
            return done_page(state.asin, state.options, state.bought.total if state.bought is not None else 0.0)
        product = self.product(state.asin)
        if state.place == "item":
            return item_page(goal.instruction, product, self.show_attributes)
        return sub_page(goal.instruction, product, state.sub)

    def results(self, state: State) -> tuple[list[Product], int]:
        """The products on a page of results, and how many the search found in all."""
        found = self.search(state.keywords)
        first = (state.page - 1) * RESULTS_A_PAGE
        return [self.store[number] for number in found[first : first + RESULTS_A_PAGE]], len(found)

    def product(self, asin: str) -> Product:
        """A product by its ASIN.

        Raises:
            KeyError: it is not in the catalogue.
        """
        number = self.store.number_of(asin)
        if number is None:
            raise KeyError(asin)
        return self.store[number]

    def search(self, keywords: tuple[str, ...]) -> tuple[int, ...]:
        """Numbers of the products found, best first, at most `RESULTS`.

        Args:
            keywords: what stands between the spaces of a query, in small letters; at least one text.
        """
        # A query that is a whole book is not kept.
        return (self._kept_search if sum(map(len, keywords)) <= LONGEST_KEPT else self._search)(keywords)

    def _search(self, keywords: tuple[str, ...]) -> tuple[int, ...]:
        return tuple(self.store.search_index.search(" ".join(keywords), RESULTS))


@lru_cache(maxsize=8)
def shared_shop(store: Store, show_attributes: bool) -> Shop:
    """The shop that all environments of a process with these settings share; see `Shop`."""
    # Their libraries are loaded by the first call. Called here and not by the first purchase, so that processes which are forked
    # from this one share them: 5 MB each.
    alike("", "")
    analyse("shop")
    return Shop(store, show_attributes=show_attributes)


def follow(state: State, page: Page, action: str) -> State:
    """Where an action leads, as `Shop.step`, without the reward of a purchase: it takes no catalogue to say."""
    parsed = parse_action(action)
    if parsed is None or state.place == "done":
        return state
    name, argument = parsed
    if name == "search":
        return _results(state, tuple(argument.split(" ")), 1)
    if name != "click" or argument == "search":
        return state
    clicked = clickables(page).get(argument)
    if clicked is None:
        return state
    if argument == BUY.lower() and state.asin:
        return replace(state, place="done")
    if argument == BACK.lower():
        return State()
    if argument == NEXT.lower() and state.place == "results":
        return _results(state, state.keywords, state.page + 1)
    if argument == PREVIOUS.lower() and state.place != "search":
        if state.place == "sub":
            return replace(state, place="item", sub="")
        return _results(state, state.keywords, state.page - (state.place == "results"))
    # An option named like a page leads to that page, as upstream: it looks at the name alone.
    # But nothing is bought or read of before a product is open, whatever an ASIN is like; upstream fails there.
    wanted = next((sub for sub in SUB_PAGES if sub.lower() == argument), None)
    if wanted is not None and state.asin:
        return replace(state, place="sub", sub=wanted)
    if clicked.kind == "product":
        return replace(state, place="item", asin=clicked.text, seen=state.seen | {clicked.text})
    if clicked.kind == "option":
        return replace(state, place="item", options={**state.options, clicked.option.lower(): argument})
    return replace(state, place="item", sub="")


def digest(state: State, mode: str) -> str:
    """Digest of a state as it bears on the rest of an episode (`state_digest`).

    Which products were opened shows in the observation mode `text_rich` alone, and so it is part of the state there alone.
    """
    seen = sorted(state.seen) if mode == "text_rich" else ()
    options = sorted(state.options.items())
    return state_digest(state.place, state.keywords, state.page, state.asin, options, state.sub, seen)


def page_url(session: str, state: State) -> str:
    """The address of a page as the official simulator writes it."""
    words = "+".join(state.keywords)
    if state.place == "search":
        return f"{BASE_URL}/{session}"
    if state.place == "results":
        return f"{BASE_URL}/search_results/{session}/{words}/{state.page}"
    if state.place == "done":
        return f"{BASE_URL}/done/{session}/{state.asin}/{dict(state.options)}"
    if state.place == "item":
        return f"{BASE_URL}/item_page/{session}/{state.asin}/{words}/{state.page}/{json.dumps(dict(state.options))}"
    return f"{BASE_URL}/item_sub_page/{session}/{state.asin}/{words}/{state.page}/{state.sub}/{dict(state.options)}"


def _results(state: State, keywords: tuple[str, ...], page: int) -> State:
    return State(place="results", keywords=keywords, page=page, seen=state.seen)


MODES = ("text", "text_rich", "url")
"""Observation modes, upstream's."""


@dataclass(frozen=True, slots=True)
class View:
    """State of a visit as a shopper sees it."""

    observation: str
    """In the visit's mode."""
    clickables: tuple[str, ...]
    """Arguments of `click[...]`, in lower case and upstream's order; includes "search", which cannot be clicked."""
    search_bar: bool
    state: str
    """Digest of where the shopper stands (`shop.digest`)."""
    score: float | None = None
    """Upstream's reward in [0, 1], once something is bought; None before."""
    parts: Mapping[str, Any] = field(default_factory=dict)
    """Of the reward, by upstream's names, as far as they are known."""


class ShopVisit:
    """A visit to a shop of this process; `live.LiveVisit` is one to a running server.

    Args:
        shop: shared by all visits.
        mode: one of `MODES`.
    """

    def __init__(self, shop: Shop, mode: str = "text") -> None:
        self.shop, self.mode = shop, mode
        self._goal: Goal | None = None
        self._session = ""
        self.state = State()
        """Where the shopper stands."""
        self._page: Page = ()

    def start(self, goal: Goal, session: str) -> tuple[str, View]:
        """Enter with a goal; the instruction, and what is seen. The session stands in addresses; upstream's is the goal's number."""
        self.resume(goal, session, State())
        return goal.instruction, self._view()

    def resume(self, goal: Goal, session: str, state: State) -> None:
        """Stand where a visit with this goal has come to."""
        self._goal, self._session, self.state = goal, session, state
        self._page = self.shop.page(goal, state)

    def act(self, action: str) -> View:
        """Execute an action and return the new view. Any text is an action; one without a meaning here changes nothing."""
        assert self._goal is not None
        state = self.shop.step(self._goal, self.state, self._page, action)
        if state is not self.state:
            self.state = state
            self._page = self.shop.page(self._goal, state)
        return self._view()

    def _view(self) -> View:
        bought = self.state.bought
        return View(
            observe(self._page, self._session, self.state, self.mode),
            tuple(clickables(self._page)),
            has_search_bar(self._page),
            digest(self.state, self.mode),
            None if bought is None else bought.total,
            {} if bought is None else asdict(bought),
        )

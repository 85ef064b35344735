"""Page contents: the visible texts in order, and what can be clicked.

Every page of the official simulator is a template whose text an agent sees in one of two forms
(`web_agent_site/envs/web_agent_text_env.py`, `convert_html_to_text`): `text` joins the texts with " [SEP] ", `text_rich` has a
line for each and marks what can be clicked. This module makes the texts directly, without HTML in between; tests pass our HTML pages
through the official conversion to check that the texts are the same.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Literal, NamedTuple

from skill_ttrl.envs.webshop.catalogue.product import NO_RATING, Product

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
        if kind == "button":
            lines.append(f"[button] {text} [button_]")
        elif kind == "option":
            if f'"{text}"' in url:
                lines.append(f"  [clicked button] {text} [clicked button_]")
                clicked = f"You have clicked {text}.\n{clicked}"
            else:
                lines.append(f"  [button] {text} [button_]")
        elif kind == "product":
            lines.append(f"\n[{'clicked ' * (text in seen)}button] {text} [{'clicked ' * (text in seen)}button_]")
        else:
            lines.append(text)
    return clicked + "".join(f"{line}\n" for line in lines)


def clickables(page: Page) -> dict[str, Text]:
    """Return the possible arguments of `click[...]` on a page: lower-case text → the text that it clicks.

    They come in upstream's order: buttons, products, options. If two have the same text, the later one wins: an option with the value
    "description" hides that page, and of two options with the same value only the last can be chosen.
    """
    buttons: dict[str, Text] = {}
    products: dict[str, Text] = {}
    options: dict[str, Text] = {}
    for text in page:
        name, kind, _ = text
        if kind == "text":
            continue
        if kind == "option":
            options[name] = text
        else:
            (buttons if kind == "button" else products)[name.lower()] = text
    return buttons | products | options


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

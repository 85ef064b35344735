"""Pages of a running shop, read: the same texts that `pages` makes, and what each thing that can be clicked asks the server for.

The page comes over a network and is looked at, never run. What is not a page of the official site as published (its templates
have changed since on some branches) is refused at once: an agent would see other observations than those it is compared on.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from bs4 import BeautifulSoup
from bs4.element import Comment, Tag

from skill_ttrl.envs.webshop.pages import BACK, BUTTONS, BUY, NEXT, PREVIOUS, Page, Text
from skill_ttrl.envs.webshop.shop import Place

_UNSEEN = frozenset(("style", "script", "head", "title", "meta", "[document]"))
_NUMBER = re.compile(r"[01](?:\.\d+)?|\d(?:\.\d+)?e-\d+")
_DETAILS = re.compile(r"\{\s*(?:'\w+'\s*:\s*[^\s,'{}\[\]()]+\s*,?\s*)*\}")
_DETAIL = re.compile(r"'(\w+)'\s*:\s*([^\s,'{}\[\]()]+)")
_SHARES = ("r_type", "r_att", "w_att", "r_option", "w_option", "w_price", "title_score")
_FACTS = {"True": True, "False": False}


class NotThePage(ValueError):
    """Raised for a page that is not of the official site; the message says how it differs."""


@dataclass(frozen=True, slots=True)
class Target:
    """Request that a click makes."""

    method: str
    """GET or POST."""
    to: str
    """As it stands in the page: mostly without a server."""


@dataclass(frozen=True, slots=True)
class LivePage:
    """One page of the official site."""

    place: Place
    texts: Page
    instruction: str
    """Empty on the page after a purchase, which has none."""
    targets: Mapping[tuple[str, str], Target] = field(default_factory=dict)
    """(kind, small-letter text) → what it asks for; the kinds are those of `pages.Text`."""
    score: float | None = None
    """After a purchase, in [0, 1]."""
    parts: Mapping[str, Any] = field(default_factory=dict)
    """Of the score, by upstream's names; empty where the page does not tell them."""
    bought: str = ""
    """After a purchase, the ASIN of what it is the score of, and `wanted`, the instruction; empty where the page does not say."""
    wanted: str = ""

    def target(self, argument: str) -> Target | None:
        """Return the request of `click[argument]`; None: it leads nowhere. Buttons come first, as upstream."""
        found = (self.targets.get((kind, argument)) for kind in ("button", "product", "option"))
        return next((target for target in found if target is not None), None)


def read_page(html: str) -> LivePage:
    """Read a page.

    Raises:
        NotThePage: it is none of the official site.
    """
    soup = BeautifulSoup(html, "html.parser")
    if soup.find(id="reward") is not None:
        bought, wanted = _said(soup, "asin"), _said(soup, "goal-instruction-text")
        return LivePage("done", (), "", score=read_score(soup), parts=read_parts(soup), bought=bought, wanted=wanted)
    instruction = _instruction(soup)
    radios = soup.select('input[type="radio"]')
    options = {str(radio.get("id")): str(radio.get("name") or "") for radio in radios}
    texts = tuple(_text(string, options) for string in soup.find_all(string=True) if _is_seen(string))
    buttons = {text.text for text in texts if text.kind == "button"}
    if unknown := buttons.difference(BUTTONS):
        raise NotThePage(f"it has a button {min(unknown)[:40]!r}, which no page of the official site as published has")
    return LivePage(_place(soup, buttons), texts, instruction, _targets(soup, radios))


def read_score(soup: BeautifulSoup) -> float:
    """The reward that the page after a purchase states.

    Raises:
        NotThePage: it states none, several, or one that is no number from 0 to 1.
    """
    found = soup.find_all(id="reward")
    said = found[0].find_all("pre") if len(found) == 1 and isinstance(found[0], Tag) else []
    if len(said) != 1:
        raise NotThePage(
            f"it has {len(found)} elements `reward` with {len(said)} scores, where one with one is expected"
        )
    text = said[0].get_text().strip()
    if not _NUMBER.fullmatch(text) or float(text) > 1.0:
        raise NotThePage(f"its score is a number from 0 to 1, found {text[:40]!r}")
    return float(text)


def read_parts(soup: BeautifulSoup) -> dict[str, Any]:
    """The parts of the reward, which the page has as Python prints a dict: names and plain values, and nothing is evaluated.

    Returns:
        Nothing where they are not there or are written in another way: the score does not depend on them.
    """
    found = soup.find(id="reward_info")
    text = found.get_text().strip() if found is not None else ""
    if not _DETAILS.fullmatch(text):
        return {}
    parts: dict[str, Any] = {"r_option": None, "w_option": None}
    for name, value in _DETAIL.findall(text):
        if name in _SHARES and _NUMBER.fullmatch(value):
            parts[name] = float(value)
        elif name in ("r_price", "query_match", "category_match") and value in _FACTS:
            parts[name] = _FACTS[value]
    return parts


def _said(soup: BeautifulSoup, name: str) -> str:
    """Read an element by which the page after a purchase describes what was bought or wanted; empty if it is missing or not filled in."""
    element = soup.find(id=name)
    said = element.find("pre") if isinstance(element, Tag) else None
    text = said.get_text() if isinstance(said, Tag) else ""
    return "" if text in ("None", "Undefined") else text


def _instruction(soup: BeautifulSoup) -> str:
    element = soup.find(id="instruction-text")
    heading = element.find("h4") if isinstance(element, Tag) else None
    if not isinstance(heading, Tag):
        raise NotThePage("it has no instruction")
    strings = [str(string) for string in heading.find_all(string=True)]
    if not strings or not strings[0].startswith("Instruction:"):
        raise NotThePage("its instruction does not begin with 'Instruction:'")
    first = strings[0].removeprefix("Instruction:")
    return "".join([first if first.strip() else "", *strings[1:]])


def _place(soup: BeautifulSoup, buttons: set[str]) -> Place:
    if soup.find(id="search_input") is not None:
        return "search"
    if BUY in buttons:
        return "item"
    if NEXT in buttons:
        return "results"
    if {BACK, PREVIOUS} <= buttons:
        return "sub"
    raise NotThePage(f"of the official buttons it has {', '.join(sorted(buttons)) or 'none'}")


def _is_seen(string: Any) -> bool:
    return string.parent.name not in _UNSEEN and not isinstance(string, Comment) and string != "\n"


def _text(string: Any, options: Mapping[str, str]) -> Text:
    parent = string.parent
    if parent.name == "button":
        return Text(str(string), "button")
    if parent.name == "label":
        return Text(str(string), "option", options.get(str(parent.get("for")), ""))
    if parent.get("class") == ["product-link"]:
        return Text(str(string), "product")
    return Text(str(string))


def _targets(soup: BeautifulSoup, radios: Iterable[Tag]) -> dict[tuple[str, str], Target]:
    found: dict[tuple[str, str], Target] = {}
    for button in soup.find_all("button"):
        form = button.find_parent("form")
        if form is not None and form.get("action"):
            found["button", button.get_text().lower()] = Target(
                str(form.get("method", "get")).upper(), str(form["action"])
            )
    for link in soup.find_all(class_="product-link"):
        if link.get("href"):
            found["product", link.get_text().lower()] = Target("GET", str(link["href"]))
    for radio in radios:
        if radio.get("data-url"):
            found["option", str(radio.get("value"))] = Target("GET", str(radio["data-url"]))
    return found

"""WebShop in the terminal: its pages laid out to be read, its purchases explained, and a shopper who need not type brackets.

What is laid out is the observation `text`, whatever shop it is from; other observations are shown as they are. Nothing here
reaches the environment but actions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from skill_ttrl.agents.scripted.webshop_reading import BUTTONS, SEARCH_SLOT
from skill_ttrl.cli.games.screen import Keyboard, Screen
from skill_ttrl.sanitize import escape_terminal

if TYPE_CHECKING:
    from skill_ttrl.stages.collecting.watch import Scene
    from skill_ttrl.types import Trajectory

BETWEEN = " [SEP] "
"""Stands between the texts of a page."""
INSTRUCTION, BACK, BUY, PAGE, THANKS = "Instruction:", "Back to Search", "Buy Now", "Page ", "Thank you"
NAMES = {"r_att": ("attributes", "w_att"), "r_option": ("options", "w_option"), "r_price": ("price", "w_price")}
"""Parts of the reward, and their shares in it, by upstream's names."""
MATCHES = {"query_match": "same search", "category_match": "same category"}
WIDEST = 110
"""Characters of a line of options."""


@dataclass(frozen=True, slots=True)
class ShopPage:
    """The texts of a page by what they are."""

    instruction: str
    heading: str = ""
    """Of the search page, and of a page of results: which one it is."""
    products: tuple[tuple[str, ...], ...] = ()
    """Of a page of results: ASIN, title and price of each, as far as they are there."""
    options: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Of a product: the values that each option can have."""
    texts: tuple[str, ...] = ()
    """Other texts of the page."""
    buttons: tuple[str, ...] = ()
    has_product: bool = False
    """True if the page is about one product, whose chosen options stay selected."""


def read_page(observation: str, clickables: Sequence[str]) -> ShopPage | None:
    """The parts of a page in the observation `text`; None for another text.

    Args:
        observation: of the environment.
        clickables: what can be clicked there, in small letters.
    """
    head, *rest = observation.split(BETWEEN)
    if head == "WebShop" and rest[:1] == [INSTRUCTION]:
        return ShopPage(" ".join(rest[1:-1]), "WebShop", buttons=tuple(rest[-1:]))
    if head.startswith(THANKS):
        return _read_thanks(head, rest)
    if head != INSTRUCTION or BACK not in rest:
        return None
    start = rest.index(BACK)
    instruction, body = " ".join(rest[:start]), rest[start + 1 :]
    known = {each.strip() for each in clickables}
    buttons = (BACK, *(text for text in body if _is_button(text, known)))
    body = [text for text in body if not _is_button(text, known)]
    if body[:1] and body[0].startswith(PAGE):
        return ShopPage(instruction, body[0], products=_listed(body[1:], known), buttons=buttons)
    options, texts = _options(body, known) if BUY in buttons else ({}, body)
    return ShopPage(instruction, options=options, texts=tuple(texts), buttons=buttons, has_product=True)


def _is_button(text: str, known: set[str]) -> bool:
    return text.lower() in known and text.lower() in BUTTONS and text != text.lower()


def _read_thanks(head: str, rest: Sequence[str]) -> ShopPage:
    """Read the page after a purchase: what was bought. Most other text on it is for upstream's study."""
    bought = [rest[rest.index(name) + 1] for name in ("asin", "options") if name in rest[:-1]]
    return ShopPage("", texts=(head, f"Bought: {', options '.join(bought)}"))


def _listed(body: Sequence[str], known: set[str]) -> tuple[tuple[str, ...], ...]:
    found: list[tuple[str, ...]] = []
    for text in body:
        if text.lower() in known:
            found.append((text,))
        elif found:
            found[-1] = (*found[-1], text)
    return tuple(found)


def _options(body: Sequence[str], known: set[str]) -> tuple[dict[str, tuple[str, ...]], list[str]]:
    options: dict[str, tuple[str, ...]] = {}
    texts: list[str] = []
    name = ""
    for place, text in enumerate(body):
        if text in known:
            options[name] = (*options.get(name, ()), text)
        elif body[place + 1 : place + 2] and body[place + 1] in known:
            name = text
        else:
            texts.append(text)
    return options, texts


class ShopScreen(Screen):
    """Shows every page of a shop as it comes, and at the end what the purchase was worth."""

    tells_task = False  # every page does

    def __init__(self, console: Console, keyboard: Keyboard | None, delay: float) -> None:
        super().__init__(console, keyboard, delay)
        self._page: ShopPage | None = None
        self._chosen: dict[str, str] = {}

    def show(self, scene: Scene) -> None:
        """See `Screen.show`."""
        before, self._page = self._page, read_page(scene.observation, _clickables(scene.info))
        if self._page is None:
            super().show(scene)
            return
        self._note_choice(before, scene.action)
        for line in self._lines(self._page, _numbers(scene.info)):
            self.say(line)

    def name_of_task(self, scene: Scene) -> str:
        """See `Screen.name_of_task`: by its number, because its id names the product that is looked for."""
        number = scene.info.get("goal")
        return f"goal {number}" if isinstance(number, int) else super().name_of_task(scene)

    def explain(self, played: Trajectory, info: Mapping[str, Any]) -> None:
        """The score and its parts, and which goal it was."""
        bought = bool(played.steps) and played.steps[-1].terminated
        for line in score_lines(info) if bought else ["Nothing was bought: score 0."]:
            self.say(Text(line))
        self.say(Text(escape_terminal(f"The same goal again: --split {played.task.split} --task {played.task.id}")))

    def _note_choice(self, before: ShopPage | None, action: str | None) -> None:
        from skill_ttrl.envs.webshop.shop import parse_action

        assert self._page is not None
        if not self._page.has_product:
            self._chosen = {}
        parsed = parse_action(action) if action is not None else None
        if before is None or parsed is None or parsed[0] != "click":
            return
        names = [name for name, values in before.options.items() if parsed[1] in values]
        if names:
            self._chosen[names[-1]] = parsed[1]  # of equal values the last is the one that is clicked

    def _lines(self, page: ShopPage, numbers: Mapping[str, int]) -> list[Text]:
        lines = [Text(escape_terminal(page.heading), "bold")] if page.heading else []
        for asin, *about in page.products:
            price = escape_terminal(f"  {' '.join(about[1:])}")
            lines.append(Text.assemble(_number(asin, numbers), (escape_terminal(asin), "bold"), price))
            lines += [line for title in about[:1] for line in self.indented(title)]
        if page.heading.startswith(PAGE) and not page.products:
            lines.append(Text("No products here: other words, or a page before this one."))
        lines += [Text(escape_terminal(text)) for text in page.texts]
        for name, values in page.options.items():
            lines += [Text(""), Text(escape_terminal(f"{name}:"), "bold")]
            lines += self._cells(values, numbers, chosen=self._chosen.get(name))
        if page.instruction:  # last, so that it is in view while one types
            lines += [Text(""), Text.assemble((f"{INSTRUCTION} ", "bold"), escape_terminal(page.instruction))]
        buttons = [text for text in page.buttons if text.lower() in numbers]
        return [*lines, *self._cells(buttons, numbers)]

    def _cells(self, values: Sequence[str], numbers: Mapping[str, int], chosen: str | None = None) -> list[Text]:
        """Clickable texts in columns, none broken, in lines of at most the screen's width where one is no longer."""
        rows: list[Text] = []
        for value in values:
            shown = (f"{escape_terminal(value)} (chosen)", "green") if value == chosen else escape_terminal(value)
            cell = Text.assemble(_number(value, numbers), shown)
            if rows and rows[-1].cell_len + 1 + cell.cell_len <= min(self.width, WIDEST):
                rows[-1] = Text.assemble(rows[-1], " ", cell)
            else:
                rows.append(cell)
        return rows


class Shopper(Keyboard):
    """The person at the keyboard of a shop: words without brackets are looked for, or name what is to be clicked."""

    greeting = "Type words to search for, or the number of what to click. Tab completes, ? lists what can be done, quit leaves."
    lists_at_start = False  # the pages show the numbers

    def understand(self, line: str, info: Mapping[str, Any]) -> str | None:
        """See `Keyboard.understand`."""
        from skill_ttrl.envs.webshop.shop import parse_action

        has_bar = bool(_available(info).get("has_search_bar"))
        word = line.strip()
        if word == escape_terminal(SEARCH_SLOT):
            self.tell("Type the words that are to be searched for.")
            return None
        if parse_action(line) is not None:
            return line
        if word.lower() in _clickables(info) and word.lower() != "search":
            return f"click[{word.lower()}]"
        if has_bar:
            return f"search[{word}]"
        self.tell("Nothing here is called so. A number clicks; search[words] searches from any page.")
        return None

    def completions(self) -> list[str]:
        """See `Keyboard.completions`; what can be clicked also without brackets."""
        whole = ["search[" if action == SEARCH_SLOT else shown for shown, action in self.listed.items()]
        return [*whole, *(shown[6:-1] for shown in whole if shown.startswith("click["))]


def score_lines(info: Mapping[str, Any]) -> list[str]:
    """Return lines that explain the score of a purchase, as far as `info` does: a running server may report the score alone."""
    known = "r_type" in info
    lines = [f"Score {_value(info.get('score'))} of 1" + " = kind × (attributes + options + price)" * known]
    if known:
        says = [f"{name}: {'yes' if info[key] else 'no'}" for key, name in MATCHES.items() if key in info]
        if isinstance(info.get("title_score"), float):
            says.append(f"nouns of the title shared: {info['title_score']:.2f}")
        lines.append(f"  kind {_value(info['r_type'])}" + (f" ({', '.join(says)})" if says else ""))
    for key, (name, weight) in NAMES.items():
        if info.get(key) is not None:
            share = f" × {info[weight]:.3f}" if isinstance(info.get(weight), float) else ""
            lines.append(f"  {name} {_value(info[key])}{share}")
    return lines


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "1.000" if value else "0.000"
    return f"{value:.3f}" if isinstance(value, int | float) else str(value)


def _available(info: Mapping[str, Any]) -> Mapping[str, Any]:
    found = info.get("available_actions")
    return found if isinstance(found, Mapping) else {}


def _clickables(info: Mapping[str, Any]) -> list[str]:
    return [str(each) for each in _available(info).get("clickables", ())]


def _numbers(info: Mapping[str, Any]) -> dict[str, int]:
    """The number of each command in the list, by what it clicks."""
    from skill_ttrl.rollout.info import admissible_actions

    commands = enumerate(admissible_actions(info), 1)
    return {action[6:-1].strip(): number for number, action in commands if action.startswith("click[")}


def _number(text: str, numbers: Mapping[str, int]) -> tuple[str, str]:
    number = numbers.get(text.lower(), numbers.get(text))
    return (f"{number:>3} " if number is not None else "    ", "cyan")

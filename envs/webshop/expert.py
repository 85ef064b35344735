"""An expert that shops in WebShop by the instruction and the pages alone, as an agent sees them.

It searches for the words of the instruction and opens the offers that are likeliest the product that was described, by their place,
title and price. One that has just the options that are wanted and whose title or features say all attributes is bought at once;
otherwise, in the last steps, the best that was seen.

What it knows of the site is what is published of it. A purchase is paid for attributes, options, price and kind. An instruction is
made of a product: it names a value for each of its options, and a price ceiling that is the larger of two of the next four multiples
of ten above its price, so that an offer 60 dollars below the ceiling is not that product. Of products it knows nothing: its few
weights are fitted to goals of the split `train` by product (`benchmarks/webshop_agents.py weights`).

The first part of this module parses instructions (`Wish`) and pages, in the observation modes `text` and `text_rich`. In every mode the
admissible commands list what can be clicked.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from skill_ttrl.errors import EnvError

SEARCH_SLOT = "search[<your query>]"
BACK, NEXT, PREVIOUS, BUY = "back to search", "next >", "< prev", "buy now"
FEATURES, DESCRIPTION = "features", "description"
BUTTONS = frozenset({BACK, NEXT, PREVIOUS, BUY, FEATURES, DESCRIPTION, "reviews", "attributes", "search"})
"""Clickable names that are neither products nor options."""

_PRICE = re.compile(
    r"(?:,|,? and|(?<! )) *+(?:the )?price (?:is )?(?:lower|less|under|below)(?: than)? \$?(\d[\d,]*(?:\.\d+)?) ?(?:dollars)?"
)
_NO_QUERY = re.compile(r"[\[\]<>\s]+")
_PAIRS = re.compile(r", and (?=[^:]{1,60}: )")
_MADE = re.compile(r"find me (?!(?:an?|the|some|any|my) )")
"""Made instructions begin so, and people's only by chance: they write articles."""
_ENDS = re.compile(r" (?:with|for|that|which) ")
_FREE_ENDS = re.compile(r",? (?:with|for|that|which|in) ")
"""Where the thing ends, in made instructions and in free text."""
_LINE = re.compile(r"\s*\[(?:clicked )?button\] (.*?) \[(?:clicked )?button_\]\s*", re.DOTALL)
_TAG = re.compile(r"\$(\d[\d,]*(?:\.\d+)?)")
_WORD = re.compile(r"[a-z0-9]+(?:[.'][a-z0-9]+)*")
_ASKING = re.compile(
    r"^\W*(?:find me|(?:i'?m|i am|we are|we're) (?:looking|searching|shopping|interested)(?: for| in)?(?: buying| getting| purchasing)?"
    r"|i(?:'d| would)? (?:need|want|like)(?: to)?(?: find| buy| get| purchase| order| have)?|looking for|please find(?: me)?|show me"
    r"|get me|can you (?:find|get)(?: me)?)\b"
)
STOP_WORDS = frozenset(
    "a an and are as at be but by for from if in into is it its me my no not of on or some such that the their then there these "
    "they this to was will with i im looking need want find would like please".split()
)


@dataclass(frozen=True, slots=True)
class Wish:
    """An instruction, understood."""

    text: str
    """In small letters, without the price."""
    made: bool
    """It was made of a product, and names all of its options; else it is free text."""
    thing: str
    """Wanted product and the attributes before it, without its options and the parts after words such as "with" and "for"."""
    kind: str
    """End of `thing`: the product itself, without the attributes before it as far as they can be recognised."""
    attributes: tuple[str, ...]
    """Wanted attributes: pairs of words before `kind`, and the parts after words such as "with" and "for". Free text has only the
    latter."""
    options: tuple[tuple[str, str], ...]
    """(name, value) of each option that is named as such."""
    below: float | None
    """US dollars that the price must not exceed; None: not said."""


@dataclass(frozen=True, slots=True)
class Offer:
    """A product as a page of results shows it."""

    asin: str
    """In small letters, as it is clicked."""
    title: str
    low: float
    """US dollars, with `high` the range of its price."""
    high: float


def read_task(info: Mapping[str, Any]) -> str:
    """The instruction of an episode.

    Raises:
        EnvError: there is no `info["task"]`.
    """
    task = info.get("task")
    if not isinstance(task, str):
        raise EnvError("This agent needs info['task'], the instruction, which the environment does not provide.")
    return task


def read_wish(instruction: str) -> Wish:
    """Parse an instruction: a made one ("Find me … with color: red, and price lower than 40.00 dollars") or free text."""
    text, below = read_ceiling(instruction)
    options: tuple[tuple[str, str], ...] = ()
    asked = text
    if (colon := text.find(": ")) > 0 and (start := text.rfind(" with ", 0, colon)) > 0:
        asked = text[:start]
        pairs = (pair.partition(": ") for pair in _PAIRS.split(text[start + 6 :]))
        options = tuple((name, value) for name, _, value in pairs)
    made = bool(_MADE.match(text))
    thing, *rest = (_ENDS if made else _FREE_ENDS).split(_ASKING.sub("", asked).strip())
    after = [part for each in rest for part in re.split(r", | and ", each.strip(" .,")) if part]
    kind, before = _split_thing(thing) if made else (thing, [])
    return Wish(text, made, thing, kind, (*before, *after), options, below)


def read_ceiling(instruction: str) -> tuple[str, float | None]:
    """An instruction in small letters without what it says of the price, and the price in US dollars; None: it names none."""
    text = instruction.lower().strip()  # spaces within stay: values have odd ones, and are clicked as they are
    below = None
    for found in _PRICE.finditer(text):
        below = float(found[1].replace(",", ""))
    return _PRICE.sub("", text).strip(" ."), below


def _split_thing(thing: str) -> tuple[str, list[str]]:
    """Split the thing of a made instruction: "light weight, easy carry desk lamps" → "desk lamps" and the two attributes before it.

    In made instructions each attribute has two words, with commas between attributes and none before the product. If there is none, the
    first two of three words are taken for one: "home office chairs" becomes "chairs". No word is lost: it stays as an attribute.
    """
    parts = thing.split(", ")
    attributes: list[str] = []
    while parts:
        first = parts[0].split(" ")
        pair = len(first) >= 2 and not any(
            word in STOP_WORDS or word == "&" or word.endswith("'s") for word in first[:2]
        )
        if not pair or (len(first) == 2 and len(parts) == 1):
            break
        attributes.append(" ".join(first[:2]))
        if len(first) > 2:
            parts[0] = " ".join(first[2:])
            break
        del parts[0]
    return ", ".join(parts), attributes


def search(text: str) -> str:
    """The action that searches for the words of a text; brackets would end it."""
    return f"search[{_NO_QUERY.sub(' ', text).strip() or 'a'}]"


def click(what: str) -> str:
    """The action that clicks something."""
    return f"click[{what}]"


def read_clicks(commands: object) -> list[str]:
    """Return the names that the admissible commands can click, in lower case and page order; empty if `commands` is no list."""
    listed = [text for text in commands if isinstance(text, str)] if isinstance(commands, list | tuple) else []
    return [text[6:-1] for text in listed if text.startswith("click[") and text.endswith("]")]


def page_texts(observation: str) -> list[str]:
    """The texts of a page in `text` or `text_rich`, without the marks of buttons."""
    if "[button]" in observation or "[clicked button]" in observation:
        return [found[1] if (found := _LINE.fullmatch(line)) else line.strip() for line in observation.split("\n")]
    return observation.split(" [SEP] ")


def read_offers(observation: str, clicks: Sequence[str]) -> list[Offer]:
    """The products of a page of results in their order; of one that is not shown in a known way title and price are not known."""
    products = [name for name in clicks if name not in BUTTONS]
    texts = page_texts(observation)
    places = {text.lower(): place for place, text in enumerate(texts)}
    offers = []
    for asin in products:
        title, prices = "", []
        for text in texts[places[asin] + 1 : places[asin] + 3] if asin in places else []:
            if text.startswith("$") and (prices := [float(price.replace(",", "")) for price in _TAG.findall(text)]):
                break
            title = text
        offers.append(Offer(asin, title, min(prices, default=0.0), max(prices, default=float("inf"))))
    return offers


def read_options(observation: str, clicks: Sequence[str], title: str = "") -> dict[str, list[str]]:
    """Option name → the values that can be clicked on a product's page.

    Values whose name the page does not show in a known way are all under the name "".
    """
    values = {name for name in clicks if name not in BUTTONS}
    options: dict[str, list[str]] = {}
    name = ""
    for text in page_texts(observation):
        if text in values:
            options.setdefault(name, []).append(text)
        elif text.lower() not in BUTTONS and not (options and text == title):
            name = text.lower()
    missing = values - {value for listed in options.values() for value in listed}
    if missing:
        options.setdefault("", []).extend(sorted(missing))
    return options


@lru_cache(maxsize=65_536)
def stem(word: str) -> str:
    """A word without the endings of plurals: enough to find "women's shoe" in "Womens Shoes"."""
    word = word.removesuffix("'s")
    if len(word) > 4 and word.endswith("ies"):
        return word[:-3] + "y"
    if len(word) > 4 and word.endswith(("ches", "shes", "sses", "xes")):
        return word[:-2]
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word


@lru_cache(maxsize=16_384)
def words(text: str) -> tuple[str, ...]:
    """The words of a text, in order, without those that say nothing and without endings."""
    return tuple(stem(word) for word in _WORD.findall(text.lower()) if word not in STOP_WORDS)


def read_text(observation: str) -> str:
    """Return the text of a page about a product, such as its features: everything after the button back to the product, else empty."""
    texts = page_texts(observation)
    places = [place for place, text in enumerate(texts) if text.lower() == PREVIOUS]
    return " ".join(texts[places[0] + 1 :]) if places else ""


def says(text_words: Sequence[str], phrase: str) -> bool:
    """True if the words of a phrase occur consecutively in a text, whose `words` are `text_words`; False for a phrase without words."""
    wanted = words(phrase)
    size = len(wanted)
    return size > 0 and any(tuple(text_words[at : at + size]) == wanted for at in range(len(text_words) - size + 1))


def share(wanted: Iterable[str], present: Mapping[str, object] | set[str]) -> float:
    """How many of some words are present, of 1; no words are all present."""
    listed = list(wanted)
    return sum(word in present for word in listed) / len(listed) if listed else 1.0


# Words of an instruction as pointers: `word 1` is its first word, and stands wherever a page has that word. What an instruction asks
# for differs from episode to episode, what to do with it does not. So a policy that reads and writes pointers needs no vocabulary of
# things: it learns to search for what stands after "find me", and to choose the value that has the words it was asked for.

POINTERS = 64
"""Different words of an instruction that have a pointer; the others are left out."""
CEILING = "ceiling"
"""Stands at the end of an instruction that names a price."""
STRUCTURE: Mapping[str, str] = {",": "comma", ":": "is", "with": "with", "for": "for", "and": "and"}
"""Signs and words of an instruction that are no pointers, as they are written."""
_MADE_ASKING = "find me "
_AROUND = '(["'
_BEHIND = ',:;.!?)"'
_BRACKETS = re.compile(r"[\[\]<>]")
_KEPT_TEXTS = 16_384


@dataclass(frozen=True, slots=True)
class Instruction:
    """An instruction as a policy reads it."""

    written: str
    """Its words as pointers, with the `STRUCTURE` between them."""
    words: tuple[str, ...]
    """The word of each pointer, from `word 1` on, as it is searched for."""
    pointers: Mapping[str, str]
    """Word without its ending (`stem`) → pointer."""
    below: float | None
    """US dollars that the price must not exceed; None: not said."""

    def find(self, text: str) -> list[str]:
        """Pointers of the words of a text, in its order, each once."""
        known = self.pointers
        return list(dict.fromkeys([known[word] for word in _stems(text) if word in known]))

    def value(self, text: str) -> str:
        """Value of an option as pointers; `other` at its end for all words that the instruction has not."""
        words = _words_and_signs(text)
        found = [self.pointers.get(stem(word)) for word in words if word not in ",:"]
        known = [pointer for pointer in found if pointer is not None]
        return " ".join(known if known and len(known) == len(found) else [*known, "other"])

    def query(self, text: str) -> str:
        """The words of a text that the instruction has, as it has them."""
        known = dict(zip(pointer_names(len(self.words)), self.words, strict=True))
        found = [self.pointers.get(stem(word)) for word in _words_and_signs(text)]
        return " ".join(known[pointer] for pointer in found if pointer is not None)


@lru_cache(maxsize=2048)
def read_instruction(task: str) -> Instruction:
    """An instruction, with a pointer for each different word."""
    text, below = read_ceiling(task)
    pointers, words, written = dict[str, str](), list[str](), list[str]()
    for word in _words_and_signs(text.removeprefix(_MADE_ASKING)):
        if word in STRUCTURE:
            written.append(STRUCTURE[word])
            continue
        root = stem(word)
        if root not in pointers:
            if len(words) == POINTERS:
                continue
            words.append(_BRACKETS.sub("", word) or "a")  # brackets would end the search
            pointers[root] = f"word {len(words)}"
        written.append(pointers[root])
    return Instruction(" ".join([*written, *([CEILING] if below is not None else [])]), tuple(words), pointers, below)


def pointer_names(count: int) -> list[str]:
    """Names of the first pointers."""
    return [f"word {number}" for number in range(1, count + 1)]


@lru_cache(maxsize=_KEPT_TEXTS)
def _words_and_signs(text: str) -> tuple[str, ...]:
    """Words between white space in small letters, without the signs around them; a comma and a colon are words too."""
    found = []
    for word in text.lower().split():
        bare = word.rstrip(_BEHIND)
        if bare.lstrip(_AROUND):
            found.append(bare.lstrip(_AROUND))
        found += [sign for sign in word[len(bare) :] if sign in ",:"]
    return tuple(found)


@lru_cache(maxsize=_KEPT_TEXTS)
def _stems(text: str) -> tuple[str, ...]:
    """Words of a text without their endings, each followed by its parts where signs divide it."""
    found = []
    for word in _words_and_signs(text):
        found.append(stem(word))
        if not word.isalnum():
            found += [stem(part) for part in _WORD.findall(word)]
    return tuple(found)


STEPS = 15
"""Steps of an episode, the purchase included."""
PAGES = 3
"""Pages of results that it looks at."""
STEP = 1.0
"""How much likelier an offer must be, as the logarithm of its odds, to be opened first if that costs a step more."""
RESULTS_A_PAGE = 10
AHEAD = -1.0
"""Log odds of the next page's best offer, relative to an offer that stands first there and has the best title so far."""
FITS, UNSEEN = 0.5, 0.1
"""Added to a product's worth if it has exactly the wanted options and a fitting price; subtracted if it was not opened."""
FOUND, MISSED, UNREAD = 0.95, 0.15, 0.5
"""Chances that a product has an attribute: whose words are in its title or features; are not; are not in the title, all that was
read. Of the attributes of products of `train` 96 of 100 are in title or features."""
ALIKE = 85
"""Per cent of a token set ratio, above which the published reward takes two options for the same."""
_SEXES = (("women", "men"), ("men", "women"))


class Signs(NamedTuple):
    """Features of an offer on a results page, as numbers; or the weight of each feature."""

    place: float
    """Logarithm of its place among all results, from 1."""
    price: float
    """Logarithm of how well its price goes with the ceiling (`in_window`), plus 0.01."""
    thing: float
    """Of the words of the wanted thing, the share in its title."""
    attributes: float
    """Of the words of the attributes, the share in its title; 0 without attributes."""
    other_sex: float
    """1: women's things are wanted and only men's are in the title, or the other way round; else 0."""


WEIGHTS = Signs(-1.6, 1.5, 2.0, 1.4, -3.4)
"""By which `odds` adds the signs up: those of a choice among the results that makes the described product likeliest."""


@dataclass(slots=True)
class Candidate:
    """An offer, and what has been seen of it so far."""

    offer: Offer
    page: int
    """Of the results, from 1."""
    odds: float
    """How likely it is the product that was described, as a logarithm; see `odds`."""
    alike: float
    """The part of `odds` that its title has in it."""
    priced: bool
    """Its price goes with the ceiling; see `in_window`."""
    said: set[str]
    """Words of its title, and of its features once they are read."""
    opened: bool = False
    read: bool = False
    """Its features are in `said`."""
    chosen: tuple[str, ...] = ()
    """Values to click before it is bought."""
    part: float = 0.5
    """Of the wanted options that these fulfil, in [0, 1]."""
    fits: bool = False
    """It has exactly the options that are wanted."""


def in_window(low: float, high: float, below: float | None) -> float:
    """How well a price goes with a ceiling that was drawn as published, in [0, 1]: 1 for 30 to 40 dollars below, 0 for 50.

    Args:
        low: US dollars; with `high` the range of the price, which itself is anywhere in it.
        high: not below `low`.
        below: the ceiling, the larger of two of the next four multiples of ten above the price; None: none, as for products of
            980 dollars and more.
    """
    if below is None:
        steps = [(980.0, math.inf, 1.0)]
    else:
        steps = [(below - 10 * nth, below - 10 * (nth - 1), (nth - 1) / 3) for nth in (4, 3, 2)]
    if high <= low:
        return next((weight for start, end, weight in steps if start <= low < end), 0.0)
    if math.isinf(high):
        return 1.0
    inside = ((min(high, end) - max(low, start), weight) for start, end, weight in steps)
    return sum(max(0.0, width) * weight for width, weight in inside) / (high - low)


def first_look(wish: Wish, offer: Offer, page: int, place: int) -> Candidate:
    """An offer as it stands at a place, from 0, of a page of results, from 1."""
    chances, alike = odds(signs(wish, offer, RESULTS_A_PAGE * (page - 1) + place))
    priced = in_window(offer.low, offer.high, wish.below) > 0
    return Candidate(offer, page, chances, alike, priced, set(words(offer.title)))


def promise(seen: Iterable[Candidate], pages: int) -> float:
    """The odds that the next page of results lets expect of its best offer, after so many pages of them."""
    return max(each.alike for each in seen) + WEIGHTS.place * math.log(RESULTS_A_PAGE * pages + 1) + AHEAD


def signs(wish: Wish, offer: Offer, rank: int) -> Signs:
    """Compute the features of an offer on a results page; `rank` is its place among all results, from 0."""
    said, thing = set(words(offer.title)), words(wish.thing)
    attributes = [word for attribute in wish.attributes for word in words(attribute)]
    return Signs(
        place=math.log(rank + 1),
        price=math.log(in_window(offer.low, offer.high, wish.below) + 0.01),
        thing=share(thing, said),
        attributes=share(attributes, said) if attributes else 0.0,
        other_sex=float(any(wanted in thing and other in said and wanted not in said for wanted, other in _SEXES)),
    )


def odds(seen: Signs) -> tuple[float, float]:
    """Logarithm of the odds that an offer is the product that was described, and the part of it that is the title's."""
    weighed = [weight * sign for weight, sign in zip(WEIGHTS, seen, strict=True)]
    return sum(weighed), sum(weighed[2:])


def choose(wish: Wish, options: Mapping[str, Sequence[str]]) -> tuple[tuple[str, ...], float, bool]:
    """Which values of a product to click.

    Returns:
        The values; which part of the wanted options they fulfil, in [0, 1]; and whether the product has exactly these options,
        which free text does not tell.
    """
    from rapidfuzz.fuzz import token_set_ratio  # here: who lists the environments needs none

    if not wish.options:
        return ((), 1.0, not options) if wish.made else _choose_said(wish, options)
    chosen: dict[str, str] = {}
    exact = 0
    for name, value in wish.options:
        if value in options.get(name, ()):
            chosen[name] = value
            exact += 1
            continue
        others = ((other, given) for other, listed in options.items() if other not in chosen for given in listed)
        # As the reward compares a value with a pair of name and value, but for its colours.
        pair = _plain(f"{name} {value}")
        rated = [
            (token_set_ratio(_plain(given), pair), other == name, -len(given), other, given) for other, given in others
        ]
        if rated and (best := max(rated))[0] > ALIKE:
            chosen[best[3]] = best[4]
    fits = exact == len(wish.options) == len(options)
    return tuple(chosen.values()), len(chosen) / len(wish.options), fits


def _plain(text: str) -> str:
    return re.sub(r"\W", " ", text).lower().strip()


def _choose_said(wish: Wish, options: Mapping[str, Sequence[str]]) -> tuple[tuple[str, ...], float, bool]:
    """Values that free text names, the longest of each option."""
    text = words(wish.text)
    said = [[value for value in listed if says(text, value)] for listed in options.values()]
    chosen = tuple(max(values, key=len) for values in said if values)
    # Free text need not name every option, so that nothing speaks against a product with more of them.
    return chosen, len(chosen) / len(options) if options else 1.0, True


def missing(wish: Wish, candidate: Candidate) -> int:
    """How many of the wanted attributes have a word that nothing read of a product says."""
    return sum(not candidate.said.issuperset(words(attribute)) for attribute in wish.attributes)


def worth(wish: Wish, candidate: Candidate, missed: int) -> float:
    """The reward that buying a product is expected to bring, by what has been seen of it, and a little more for better odds.

    `missed` of its wanted attributes are said nowhere; see `missing`.
    """
    found = FOUND * (len(wish.attributes) - missed) + (MISSED if candidate.read else UNREAD) * missed
    affordable = wish.below is None or candidate.offer.low <= wish.below
    of_kind = 0.4 + 0.6 * share(words(wish.kind)[-2:], candidate.said)
    fulfilled = found + len(wish.options) * candidate.part + affordable
    sure = FITS * (candidate.fits and candidate.priced) - UNSEEN * (not candidate.opened)
    return of_kind * fulfilled / (len(wish.attributes) + len(wish.options) + 1) + sure + 0.01 * candidate.odds


def query(wish: Wish) -> str:
    """The search for a wish: attributes, the kind of thing, and its options, which tell products best apart.

    A word that stands there twice counts twice in the site's search. Of the ways to repeat the three parts that were tried on goals
    of the split `train`, this one led to the most purchases with reward 1.
    """
    options = " ".join(f"{name} {value}" for name, value in wish.options)
    return search(" ".join((*wish.attributes, *[wish.kind] * 2, *[options] * 4)))


class WebShopExpert:
    """Shops by the observation (`text` or `text_rich`), `info["task"]` and `info["admissible_commands"]`, the same with every seed.

    Args:
        steps: of an episode; it buys in the last of them at the latest.
    """

    reads_features = True
    """It looks for wanted attributes that no title names on the page of features."""

    def __init__(self, steps: int = STEPS) -> None:
        self.steps = steps

    def start(self, observation: str, info: Mapping[str, Any], seed: int) -> None:
        """Read the task and what it asks for, and forget the previous episode.

        Raises:
            EnvError: there is no `info["task"]`.
        """
        self._task = read_task(info)
        self._wish = read_wish(self._task)
        self._left = self.steps
        self._seen: dict[str, Candidate] = {}
        self._page = self._last = 0
        self._at: Candidate | None = None
        self._decided = False
        self._plan: list[str] = []
        self._searched: str | None = None
        self._results = False
        self._done: str | None = None

    def act(self, observation: str, info: Mapping[str, Any]) -> str:
        """Choose the next action by the kind of page: search, browse results, judge an offer, or leave a page of details."""
        listed = info.get("admissible_commands", ())
        clicks = read_clicks(listed)
        self._possible = {*map(click, clicks), *listed}
        if self._done is not None:
            self._follow(self._done)
        self._results = NEXT in clicks
        if self._plan:
            action = self._plan.pop(0)
        elif BUY in clicks and self._at is not None:
            action = self._judge(self._at, read_options(observation, clicks, self._at.offer.title))
        elif NEXT in clicks:
            action = self._browse(observation, clicks)
        elif PREVIOUS in clicks and self._at is not None:
            if self._done == click(FEATURES):
                self._at.said |= set(words(read_text(observation)))
                self._at.read = True
            action = click(PREVIOUS)
        else:
            action = self._query(self._wish)
        self._left -= 1
        self._done = action
        return action

    def overruled(self, action: str) -> None:
        """Record the action that was executed instead of the chosen one, and drop the current plan.

        An action that is not possible on the page counts as none.
        """
        searched = action.startswith("search[") and SEARCH_SLOT in self._possible
        self._done = action if searched or action in self._possible else None
        self._plan.clear()
        self._decided = False

    def _query(self, wish: Wish) -> str:
        """The search that it begins with."""
        return query(wish)

    def _missing(self, candidate: Candidate) -> int:
        return missing(self._wish, candidate) if self.reads_features else 0

    def _follow(self, action: str) -> None:
        """Take note of where an action has led."""
        if action.startswith("search["):
            if action != self._searched:  # what was found before stands on no page of these results
                self._seen.clear()
                self._last = 0
            self._searched, self._page = action, 1
        elif self._results and action in (click(NEXT), click(PREVIOUS)):
            self._page += 1 if action == click(NEXT) else -1
        elif self._results:
            self._at = self._seen.get(action[6:-1])

    def _browse(self, observation: str, clicks: Sequence[str]) -> str:
        """On a page of results: opens an offer, or goes to another page."""
        if self._page > self._last:
            offers = read_offers(observation, clicks)
            for place, offer in enumerate(offers):
                self._seen.setdefault(offer.asin, first_look(self._wish, offer, self._page, place))
            self._last = self._page if offers else PAGES  # after an empty page there is none to look for
        if not self._seen:
            return search(self._wish.kind)
        best = self._best()
        # To look at something, all but a step of the way is to be gone there and back, and then the best must still be bought.
        looks = [
            (each.odds - STEP * abs(each.page - self._page), each)
            for each in self._seen.values()
            if not each.opened and each.priced and self._left >= 2 + 2 * abs(each.page - self._page) + self._cost(best)
        ]
        likeliest, look = max(looks, key=lambda look: look[0], default=(-math.inf, None))
        ahead = self._last + 1 - self._page
        reachable = self._last < PAGES and self._left >= 2 + 2 * ahead + self._cost(best)
        if reachable and promise(self._seen.values(), self._last) - STEP * ahead > likeliest:
            return click(NEXT)
        wanted = best if look is None else look
        if wanted.page != self._page:
            return click(NEXT if wanted.page > self._page else PREVIOUS)
        self._decided = look is None
        return click(wanted.offer.asin)

    def _best(self) -> Candidate:
        return max(self._seen.values(), key=lambda each: worth(self._wish, each, self._missing(each)))

    def _cost(self, candidate: Candidate) -> int:
        """Steps to buy a product from the page of results that is shown, or from which one came."""
        clicks = len(candidate.chosen) if candidate.opened else len(self._wish.options)
        return abs(candidate.page - self._page) + 1 + clicks + 1

    def _judge(self, at: Candidate, options: Mapping[str, Sequence[str]]) -> str:
        """On a product's page: buys it, reads on, or goes back."""
        at.chosen, at.part, at.fits = choose(self._wish, options)
        at.opened = True
        if not self._wish.made:  # what free text says of an option was taken for an attribute
            at.said |= {word for name, listed in options.items() if {*listed} & {*at.chosen} for word in words(name)}
            at.said |= {word for value in at.chosen for word in words(value)}
        best, promising, missed = self._best(), at.fits and at.priced, self._missing(at)
        back = 1 + self._cost(best)
        if not self._decided:
            if promising and missed and not at.read and self._left >= 2 + (len(at.chosen) + 1 if best is at else back):
                return click(FEATURES)
            if (missed or not promising) and self._left >= back + 2 * (best is at):
                return click(PREVIOUS)
        chosen = at.chosen[: max(0, self._left - 1)]
        self._plan = [*map(click, chosen), click(BUY)]
        return self._plan.pop(0)


class WebShopBrief(WebShopExpert):
    """Searches for the kind of thing and the wanted values, once each and in the instruction's own words, and does not read the pages of features.

    Its queries are a few words that the instruction names, where the expert's repeat its words by a weight that is not to be seen. It shops a
    little worse, and what it does is learnt far better.
    """

    reads_features = False

    def _query(self, wish: Wish) -> str:
        return search(read_instruction(self._task).query(" ".join((wish.kind, *(value for _, value in wish.options)))))


class WebShopRule:
    """Searches for the instruction as it is, opens the first product, and buys it without choosing options.

    On the official catalogue of 1.18 million products and its human test goals the paper reports a score of 45.6 and a success
    rate of 9.6 %.
    """

    def start(self, observation: str, info: Mapping[str, Any], seed: int) -> None:
        """Prepare the search for the instruction.

        Raises:
            EnvError: there is no `info["task"]`.
        """
        self._search = search(read_task(info))

    def act(self, observation: str, info: Mapping[str, Any]) -> str:
        """Buy on the page of a product, open the first product in a list of results, and search on any other page."""
        clicks = read_clicks(info.get("admissible_commands"))
        if BUY in clicks:
            return click(BUY)
        product = next((name for name in clicks if name not in BUTTONS), None)
        return self._search if product is None else click(product)


class WebShopCareful(WebShopRule):
    """A rule that reads the instruction and not the products: it searches for the instruction as it is, opens the first product,
    chooses every option that is wanted and listed, and buys.

    What it does can be seen in each of its steps, so that a small policy can learn it from few episodes.
    """

    def start(self, observation: str, info: Mapping[str, Any], seed: int) -> None:
        """Prepare the search, and read which options the instruction wants.

        Raises:
            EnvError: there is no `info["task"]`.
        """
        super().start(observation, info, seed)
        self._wanted = [click(value) for _, value in read_wish(read_task(info)).options]
        self._chosen: set[str] = set()
        self._last: list[str] = []

    def act(self, observation: str, info: Mapping[str, Any]) -> str:
        """Choose the next wanted option on the page of a product, and buy when none is left.

        From a page of details, it returns to the previous page. Elsewhere, it acts as `WebShopRule` does.
        """
        clicks = read_clicks(info.get("admissible_commands"))
        listed = set(map(click, clicks))
        if click(BUY) in listed:
            left = [each for each in self._wanted if each in listed and each not in self._chosen]
            self._chosen.update(left[:1])
            self._last = left[:1]
            return left[0] if left else click(BUY)
        self._chosen.clear()  # a page that is left forgets what was chosen on it
        return click(PREVIOUS) if click(PREVIOUS) in listed else super().act(observation, info)

    def overruled(self, action: str) -> None:
        """Mark the last option as not chosen, because another action replaced it, and mark that action as chosen."""
        self._chosen.difference_update(self._last)
        self._chosen.add(action)

"""Parsers for WebShop: the wish that an instruction states, the offers on a results page, the options of a product.

Pages are read in the observation modes `text` and `text_rich`. In every mode the admissible commands list what can be clicked.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

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
    r"|get me|can you (?:find|get)(?: me)?)\b",
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
_PART = re.compile(r"[a-z0-9]+(?:[.'][a-z0-9]+)*")
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
            found += [stem(part) for part in _PART.findall(word)]
    return tuple(found)

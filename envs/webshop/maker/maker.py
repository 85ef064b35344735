"""The generated catalogue: as many products as are asked for, in the official schema, with instructions for two in five.

Product `i` of a seed depends on these two numbers only, so a smaller catalogue is the beginning of a larger one, on every machine.
It is a shop in which choosing takes reading: the products of a kind share some of what they are, have and are meant for and differ
in the rest, in options and in price. Every such attribute is said somewhere in the product's own texts, and most of them only in
features that the search does not know: who buys the first result with the right options succeeds about as often as with the 1,000
official products (65 % against 60 % of 300 synthetic test goals).

Sentences are patterns with gaps, and the words that fill them, as `sentences.toml` has them. A search engine is to find in these texts what
it finds in real ones: few words that are everywhere, many that are rare, and with every thousand products some thousand words that were
never seen before (names, models, measures, coined materials).
"""

from __future__ import annotations

import functools
import random
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from string import capwords
from typing import Any, NamedTuple

SEED = 0
MAX_CHOICES = 60
"""Of one product: combinations of its options, each of which is a goal where it has an instruction."""

_INSTRUCTED = 0.42
_BASE36 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_ASINS = 36**9
_STEP = 74_161_932_245_551
"""Odd and no multiple of 3, so that counting in this step modulo `_ASINS` meets every number once."""
_TURN = 37
"""Prime to the number of kinds: neighbours in the catalogue are of different kinds."""
_SERIES = "Plus Classic Home Basics Studio Original Premium Natural Select Pro Junior Heritage".split()
_CENTS = (99, 99, 95, 0, 49, 89, 50, 97, 79, 98, 25, 90, 85, 36)


_TABLES: dict[str, Any] = tomllib.loads(Path(__file__).with_name("words.toml").read_text(encoding="utf-8"))
"""Kinds of products, what is said of them, and what there is to choose."""


class Kind(NamedTuple):
    """A kind of product: those of one kind compete for the same goals."""

    category: str
    path: str
    """The official `product_category`: parts separated by ›."""
    query: str
    nouns: tuple[str, ...]
    """Its names in titles; each has a word of `query` or its synonym."""
    attributes: tuple[str, ...]
    """Groups of the table `attributes`."""
    options: str
    """A row of the table `choices`."""
    prices: tuple[int, int]
    """US dollars, lowest and highest."""


class Attribute(NamedTuple):
    """Something that a product is, has or is meant for."""

    name: str
    """As `items_ins_v2.json` and the instruction have it: two or three words."""
    role: str
    """`is`, `with` or `for`: its place in an instruction."""
    phrase: str
    """As sentences say it."""


@functools.cache
def kinds() -> tuple[Kind, ...]:
    """All kinds; every one of them is as likely as another."""
    return tuple(
        Kind(category, path, query, _listed(nouns), tuple(groups.split()), options, (int(low), int(high)))
        for category, rows in _TABLES["kinds"].items()
        for path, query, nouns, groups, options, prices in (
            (cell.strip() for cell in row.split("|")) for row in rows.strip().splitlines()
        )
        for low, high in (prices.split(),)
    )


@functools.cache
def attributes(group: str) -> tuple[Attribute, ...]:
    """One group of the table `attributes`. A name that sentences say in other words has these after an equals sign."""
    found = []
    for role, row in zip(("is", "with", "for"), _TABLES["attributes"][group].strip().split("/"), strict=True):
        for entry in _listed(row):
            name, _, phrase = entry.partition(" = ")
            found.append(Attribute(name, role, phrase or name))
    return tuple(found)


@functools.cache
def values(row: str) -> tuple[str, ...]:
    """One row of the table `values`."""
    return _listed(_TABLES["values"][row])


def _listed(text: str) -> tuple[str, ...]:
    """Split a text at commas; lines may break anywhere, and empty entries are dropped."""
    return tuple(entry for each in text.split(",") if (entry := " ".join(each.split())))


def make_products(count: int, seed: int = SEED) -> Iterator[tuple[dict[str, Any], dict[str, Any] | None]]:
    """The first `count` products of a seed of 0 or above, one at a time.

    Yields:
        A product as `items_shuffle.json` has it, and what `items_ins_v2.json` has under its ASIN; None: nothing.
    """
    rng = random.Random()
    for number in range(count):
        rng.seed(f"webshop {seed} {number}")
        yield _product(asin(number, seed), _kind(number, rng.random), rng.random)


def asin(number: int, seed: int = SEED) -> str:
    """Ten characters: no two products of a seed have the same."""
    rest = ((number + 1) * _STEP + seed * 8_675_309) % _ASINS
    upper, last = divmod(rest, 46_656)
    first, middle = divmod(upper, 46_656)
    digits = _three_digits()
    return f"G{digits[last]}{digits[middle]}{digits[first]}"


@functools.cache
def _three_digits() -> tuple[str, ...]:
    return tuple(a + b + c for a in _BASE36 for b in _BASE36 for c in _BASE36)


def _kind(number: int, draw: Draw) -> Kind:
    """Every second product takes its kind in turn, so that even in a small shop none is without rivals; the others by chance."""
    known = kinds()
    return known[number // 2 * _TURN % len(known) if number % 2 else int(len(known) * draw() * draw())]


def _product(code: str, kind: Kind, draw: Draw) -> tuple[dict[str, Any], dict[str, Any] | None]:
    instructed = draw() < _INSTRUCTED
    chosen = _attributes(kind, instructed, draw)
    options = _options(kind, draw)
    own = {
        "brand": made_up(draw).capitalize(),
        "noun": choose(kind.nouns, draw),
        "main": choose(words("material", kind.category), draw),
    }
    told = [_told(attribute, kind.category, own, draw) for attribute in chosen]
    bullets = _bullets(told, kind, own, draw)
    fields = {
        "asin": code,
        "name": _title(chosen, kind, own, options, draw),
        "full_description": _description([] if bullets else told, kind, own, draw),
        "small_description": bullets[0] if len(bullets) == 1 and draw() < 0.5 else bullets,
        "product_category": kind.path if draw() > 0.015 else "",
        "category": kind.category,
        "query": kind.query,
        "average_rating": _rating(draw),
        "pricing": _pricing(kind, draw),
        "customization_options": {
            name: [{"value": value, "image": None} for value in offered] for name, offered in options.items()
        }
        or "",
        "images": [],
    }
    if not chosen and draw() < 0.2:
        return fields, None
    about: dict[str, Any] = {"attributes": [attribute.name for attribute in chosen]}
    if instructed:
        about.update(_instruction(chosen, kind, draw))
    return fields, about


def _attributes(kind: Kind, instructed: bool, draw: Draw) -> list[Attribute]:
    """Up to 8 things that can be true of a kind, those in front more often: rivals are to share some. No name twice."""
    known = list(_known(kind.attributes))
    wanted = 2 + int(7 * draw() * draw()) if instructed else int(7 * draw() * draw())
    return [known.pop(int(len(known) * draw() * draw())) for _ in range(min(wanted, len(known)))]


@functools.cache
def _known(groups: tuple[str, ...]) -> tuple[Attribute, ...]:
    return tuple({each.name: each for group in groups for each in attributes(group)}.values())


def _told(attribute: Attribute, category: str, own: dict[str, str], draw: Draw) -> tuple[str, str]:
    """The attribute and a sentence that says it."""
    own["phrase"] = attribute.phrase
    patterns = sentences(attribute.role, category)
    return attribute.phrase, fill(patterns[int(len(patterns) * draw())], own, draw)


def _bullets(told: list[tuple[str, str]], kind: Kind, own: dict[str, str], draw: Draw) -> list[str]:
    """Every attribute in one of them, unless there are none: then the description is to say it."""
    if draw() < 0.04:
        return []
    style = int(3 * draw())
    plain = sentences("plain", kind.category)
    extra = int(5 * draw())
    found = []
    for phrase, sentence in told:
        head = f"{phrase.upper()} - " if style == 0 else f"{phrase.capitalize()}: " if style == 1 else ""
        found.append(f"{head}{sentence}")
    for _ in range(extra or not told):
        found.insert(int((len(found) + 1) * draw() * draw()), fill(plain[int(len(plain) * draw())], own, draw))
    if draw() < 0.45:  # one more sentence each: some shops are talkative
        found = [f"{each}. {fill(plain[int(len(plain) * draw())], own, draw)}" for each in found]
    if len(found) > 1 and draw() < 0.03:
        return [". ".join(found)]
    return found


def _description(told: list[tuple[str, str]], kind: Kind, own: dict[str, str], draw: Draw) -> str:
    """From nothing to about 120 words."""
    count = int(13 * draw()) - 2
    if count <= 0 and not told:
        return ""
    story, plain = sentences("story", kind.category), sentences("plain", kind.category)
    found = [sentence for _, sentence in told]
    for _ in range(count):
        patterns = story if draw() < 0.6 else plain
        found.append(fill(patterns[int(len(patterns) * draw())], own, draw))
    return ". ".join(found) + "."


def _title(chosen: list[Attribute], kind: Kind, own: dict[str, str], options: dict[str, list[str]], draw: Draw) -> str:
    """Brand, some of what the product is, what it is, some of what it has and is for, and details; 5 to 25 words."""
    category = kind.category
    parts = [own["brand"]]
    if draw() < 0.35:
        parts.append(choose(_SERIES, draw) if draw() < 0.3 else made_up(draw).capitalize())
    shown = [each for each in chosen if draw() < 0.3][:4]
    parts += [capwords(each.name) for each in shown if each.role == "is"]
    looks = words("adjective", category)
    parts += dict.fromkeys(choose(looks, draw).capitalize() for _ in range(2 + int(2 * draw())))
    parts.append(capwords(own["main"]) if draw() < 0.7 else choose(looks, draw).capitalize())
    parts.append(capwords(own["noun"]))
    having = [capwords(each.phrase.removeprefix("a ").removeprefix("an ")) for each in shown if each.role == "with"]
    if draw() < 0.4:
        having.append(capwords(f"{choose(looks, draw)} {choose(words('part', category), draw)}"))
    if having:
        parts.append("with " + " and ".join(having))
    aims = [capwords(each.name) for each in shown if each.role == "for"]
    if aims or len(parts) < 5 or draw() < 0.6:
        parts.append("for " + (", ".join(aims) or capwords(choose(words("occasion", category), draw))))
    title = " ".join(parts)
    if draw() < 0.6:
        title += f", {fill(sentences('detail', category)[int(4 * draw())], own, draw)}"
    if options and draw() < 0.3:
        title += f" ({capwords(next(iter(options.values()))[0])})"
    return title


def _options(kind: Kind, draw: Draw) -> dict[str, list[str]]:
    """Half of the products have none, and no product more than `MAX_CHOICES` combinations."""
    offered = _TABLES["choices"][kind.options]
    dice = draw()
    wanted = 0 if dice < 0.5 else 1 if dice < 0.77 else 2 if dice < 0.985 else len(offered)
    if wanted == 1 and draw() < 0.4:
        offered = offered[1:]
    options: dict[str, list[str]] = {}
    room = MAX_CHOICES
    for place, row in enumerate(offered[:wanted]):
        pool = list(values(row))
        most = min(len(pool), 12, room // 2 ** (wanted - 1 - place))
        if most < 2:
            break
        count = 2 + int((most - 1) * (draw() if wanted > 1 else draw() * draw()))
        if row.startswith("size"):  # sizes follow one another
            start = int((len(pool) - count + 1) * draw())
            chosen = pool[start : start + count]
        else:
            chosen = [pool.pop(int(len(pool) * draw() * draw())) for _ in range(count)]
        options[row.partition(":")[0]] = chosen
        room //= count
    return options


def _rating(draw: Draw) -> float | int | str:
    if draw() < 0.35:
        return ""
    tenths = 50 - int(25 * draw() * draw())
    return tenths // 10 if tenths % 10 == 0 else tenths / 10


def _pricing(kind: Kind, draw: Draw) -> str:
    """Like $19.99, now and then a range like $19.99$27.5, rarely nothing."""
    dice = draw()
    if dice < 0.005:
        return ""
    low, high = kind.prices
    cents = 100 * int(low + (high - low) * draw() * draw()) + _CENTS[int(len(_CENTS) * draw() * draw())]
    if dice < 0.905:
        return f"${cents / 100}"
    more = cents + 100 + int(cents * draw())
    return f"${cents / 100}${more / 100}"


def _instruction(chosen: list[Attribute], kind: Kind, draw: Draw) -> dict[str, Any]:
    """Two to four of the attributes, now and then all of them, in the order in which they are said."""
    asked = chosen if draw() < 0.1 else chosen[: 2 + int(3 * draw() * draw())]
    named = {role: [each.name for each in asked if each.role == role] for role in ("is", "with", "for")}
    text = "Find me " + "".join(f"{name}, " for name in named["is"])[:-2] + (" " if named["is"] else "") + kind.query
    for role in ("with", "for"):
        if named[role]:
            text += f" {role} {', '.join(named[role])}"
    return {"instruction": text, "instruction_attributes": [*named["is"], *named["with"], *named["for"]]}


_SENTENCES: dict[str, Any] = tomllib.loads(Path(__file__).with_name("sentences.toml").read_text(encoding="utf-8"))
PATTERNS: dict[str, str] = _SENTENCES["patterns"]
CATEGORY_PATTERNS: dict[str, str] = _SENTENCES["category_patterns"]
WORDS: dict[str, str] = _SENTENCES["words"]
CATEGORY_WORDS: dict[str, dict[str, str]] = _SENTENCES["category_words"]

Draw = Callable[[], float]
"""Uniform in [0, 1): the product's own generator. Only sums and products of what it gives are used, and never `log` or `**`, whose
last digit differs from machine to machine."""
Gap = tuple[str, ...] | str | Callable[[Draw], str]
"""Filler of a gap: one of these words, the product's value of this name, or a function that makes up a word."""


class Sentence(NamedTuple):
    """A pattern, ready to be filled."""

    text: str
    """With a %s for every gap."""
    gaps: tuple[Gap, ...]


_GAP = re.compile(r"\{(\w+)\}")
# Two consonants in the middle and one at the end: no short word is the name of a real brand by chance.
_OPENING = tuple(start + vowel for start in "b d f g k l m n p r s t v z".split() for vowel in "a e i o u".split())
_MIDDLE = tuple(
    start + vowel for start in "br zd gr kv pl fn gl sk sm dv tr vr zl lth mb".split() for vowel in "a e i o u".split()
)
_ENDINGS = tuple("n r x l s nt th ck".split())
_BEGINNINGS = tuple(
    _OPENING[place % 70] + _MIDDLE[(place // 70 * 7 + place * 2 + 31) % 75] + _ENDINGS[place // 70 % 8]
    for place in range(8108)
)
_LATER = tuple(
    _OPENING[place % 70] + (_MIDDLE[place * 7 // 70 % 75] if place > 200 else "") + _ENDINGS[place % 8]
    for place in range(300)
)
_FIRST_HALVES, _SECOND_HALVES = (tuple(_SENTENCES["coined"][name].split()) for name in ("first", "second"))
_LETTERS = "ABCDEFGHJKLMNPQRSTUVWXYZ"
_RARE = 300_000
_SPREAD = 2048
"""Places of a pool in which the frequent words stand several times: one draw chooses."""


def choose(pool: Sequence[str], draw: Draw) -> str:
    """One of the words, those in front more often."""
    return pool[int(len(pool) * draw() * draw())]


def fill(sentence: Sentence, own: Mapping[str, str], draw: Draw) -> str:
    """The sentence with its gaps filled, and a capital at its beginning; `own` has what this product's parts are called."""
    text = sentence.text % tuple(
        [
            gap[int(_SPREAD * draw())] if type(gap) is tuple else own[gap] if type(gap) is str else gap(draw)  # type: ignore[operator]
            for gap in sentence.gaps
        ]
    )
    return text[0].upper() + text[1:]


@functools.cache
def sentences(name: str, category: str) -> tuple[Sentence, ...]:
    """The patterns of one set of `PATTERNS`, with the words of a category in their gaps."""
    lines = PATTERNS[name].strip().splitlines()
    if name == "plain":
        lines += CATEGORY_PATTERNS[category].strip().splitlines()
    return tuple(
        Sentence(_GAP.sub("%s", line.replace("%", "%%")), tuple(_gap(gap, category) for gap in _GAP.findall(line)))
        for line in lines
    )


@functools.cache
def words(name: str, category: str) -> tuple[str, ...]:
    """One list: of a category's own words where it has such a list, of all categories' otherwise."""
    text = CATEGORY_WORDS[category].get(name) or WORDS[name]
    return tuple(" ".join(word.split()) for word in text.split(","))


@functools.cache
def _gap(name: str, category: str) -> Gap:
    made: dict[str, Callable[[Draw], str]] = {
        "coined": lambda draw: choose(_FIRST_HALVES, draw) + choose(_SECOND_HALVES, draw),
        "small": lambda draw: str(2 + int(11 * draw() * draw())),
        **{"made": made_up, "code": _code, "measure": _measure},
    }
    if name in made:
        return made[name]
    return name if name in OWN else _spread(words(name, category))


def _spread(pool: tuple[str, ...]) -> tuple[str, ...]:
    """The word at `x` of the way through the pool stands there in proportion to 1 / (x + 0.2): a tail as texts have it."""
    # Whole numbers: no rounding.
    weights = [1_000_000 * len(pool) // (5 * place + len(pool)) for place in range(len(pool))]
    found: list[str] = []
    for place, word in enumerate(pool):
        found += [word] * (_SPREAD * sum(weights[: place + 1]) // sum(weights) - len(found))
    return tuple(found)


def made_up(draw: Draw) -> str:
    """A word that no dictionary has. A few are frequent, as brands are, and there is no end of rare ones."""
    number = int(_RARE * draw() * draw() * draw() * draw() * draw())
    beginning = _BEGINNINGS[number * 8 % 8100 + int(8 * draw())]  # eight words where the same number is drawn again
    if number < 1000:
        return beginning
    return beginning + _LATER[number // 1000]


def _code(draw: Draw) -> str:
    first, second = _LETTERS[int(24 * draw())], _LETTERS[int(24 * draw())]
    return f"{first}{second}{int(10 + 990 * draw() * draw())}{_LETTERS[int(24 * draw())] if draw() < 0.4 else ''}"


def _measure(draw: Draw) -> str:
    number = int(20 + 600 * draw() * draw())
    return str(number / 10) if draw() < 0.6 else str(number // 10)


OWN = ("brand", "noun", "phrase", "main")
"""Gaps that every product fills with its own: `phrase` is what an attribute is called in a sentence, `main` its main material."""

"""Which words of a product's title are nouns: what the reward's title overlap is counted on.

The official engine asks spaCy's `en_core_web_sm`, which is on no package index, and keeps what it tags NOUN or PROPN. A rule stands in
for it here, on every machine.

The rule splits a title as spaCy's English tokenizer does: at spaces; punctuation and a possessive 's at the ends of a word;
a unit after a number ("64GB"); hyphens and commas between letters; and : < > = / before a letter. Then a token is a noun unless
it is

- a number, or numbers joined by signs ("5x7", "3/4"); but digits with letters after them ("50ml", "1080P") are one;
- punctuation; but | and % are nouns, since the model nearly always says so;
- a function word or a numeral, however it is written;
- an adjective, participle or verb of `OFTEN_NO_NOUN`; or, with a small first letter, of `SMALL_NO_NOUN`, or with an ending of
  adjectives and adverbs (-able, -ful, -less, -ly, …). With a capital letter the model takes such words for part of a name.

How often the rule and the model disagree, and for how many pairs of products that changes a reward, is what
`benchmarks/webshop_nouns.py` counts.
"""

from __future__ import annotations

import re
import tomllib
from functools import lru_cache
from pathlib import Path

CACHED_TITLES = 4_096
_WORDS: dict[str, str] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
FUNCTION_WORDS, NUMBER_WORDS, OFTEN_NO_NOUN, SMALL_NO_NOUN = (
    frozenset(_WORDS[name].split()) for name in ("function_words", "number_words", "often_no_noun", "small_no_noun")
)


# The signs are those that spaCy's tokenizer for English splits off (its `punctuation.py`).
_QUOTES = "'\"”“`‘´’‚,„»«"
_SIGNS = re.escape("…,:;!?¿؟¡()[]{}<>_#*&।？！，、；：～·।、【】《》〈〉（）") + re.escape(_QUOTES)
_CURRENCY = r"\$|£|€|¥|฿|US\$|C\$|A\$|₽|﷼|₴|₠|₡|₢|₣|₤|₥|₦|₧|₨|₩|₪|₫|₭|₮|₯|₰|₱|₲|₳|₵|₶|₷|₸|₹|₺|₻|₼|₾|₿"
_UNITS = (
    "km|km²|km³|m|m²|m³|dm|dm²|dm³|cm|cm²|cm³|mm|mm²|mm³|ha|µm|nm|yd|in|ft|kg|g|mg|µg|t|lb|oz|m/s|km/h|mph|hPa|Pa|mbar|mb|"
    "MB|kb|KB|gb|GB|tb|TB|T|G|M|K|%"
)
_ICONS = "©®°\u2100-\u214f\u2190-\u2bff\U0001f000-\U0001faff"
_DASHES = "-|–|—|--|---|——|~"
_PREFIX = re.compile(rf"(?:\.\.+|''|[{_SIGNS}§%=—–]|\+(?![0-9])|{_CURRENCY}|[^\w\s\x00-\x7f])")
_SUFFIX = re.compile(
    rf"(?:\.\.+|''|['’][sS]|[{_SIGNS}—–]|[^\w\s\x00-\x7f]|(?<=[0-9])\+|(?<=[0-9])(?:{_CURRENCY}|{_UNITS})"
    rf"|(?<=[0-9a-zß-öø-ÿ%²+\-{re.escape(_QUOTES)}])\.|(?<=[A-Z][A-Z])\.)$"
)
_LETTER = r"[^\W\d_]"
_INFIX = re.compile(
    rf"\.\.+|…|[{_ICONS}]|(?<=[0-9])[+\-*^](?=[0-9-])|(?<=[a-z{re.escape(_QUOTES)}])\.(?=[A-Z{re.escape(_QUOTES)}])"
    rf"|(?<={_LETTER}),(?={_LETTER})|(?<=[^\W_])(?:{_DASHES})(?={_LETTER})|(?<=[^\W_])[:<>=/](?={_LETTER})"
)
_ABBREVIATION = re.compile(
    r"[a-z]\.|(?:[A-Z]\.)+[A-Z]\.|(?:vs|e\.g|i\.e|a\.m|p\.m|Dr|Mr|Mrs|St|Jr|Co|Inc|Ltd|Corp|Bros|Mt)\."
)
_ADJECTIVE_ENDINGS = ("able", "ible", "ful", "less", "ous", "ly", "ic", "ish")


def split_title(title: str) -> list[str]:
    """The tokens of a title, as spaCy's English tokenizer splits nearly every title of the official catalogue."""
    tokens: list[str] = []
    for chunk in title.split():
        tokens += _split_chunk(chunk)
    return tokens


def _split_chunk(chunk: str) -> list[str]:
    """A run without spaces: signs are taken off its two ends in turns, then it is split inside."""
    before: list[str] = []
    after: list[str] = []
    start, end = 0, len(chunk)
    while end - start > 1 and not (end - start <= 8 and _ABBREVIATION.fullmatch(chunk, start, end)):
        if sign := _PREFIX.match(chunk, start, end):
            before.append(sign[0])
            start = sign.end()
        # No sign at the end is longer than this; without a bound each step would go through the whole chunk.
        elif sign := _SUFFIX.search(chunk, max(start, end - 8), end):
            after.append(sign[0])
            end = sign.start()
        else:
            break
    inside: list[str] = []
    for sign in _INFIX.finditer(chunk, start, end):
        inside += [chunk[start : sign.start()], sign[0]]
        start = sign.end()
    inside.append(chunk[start:end])
    return [token for token in (*before, *inside, *reversed(after)) if token]


def is_noun(token: str) -> bool:
    """True if the rule takes a token of `split_title` for a noun. It looks at the token alone."""
    if token in ("|", "%"):
        return True
    letters = {character for character in token if character.isalpha()}
    if letters <= {"x", "X"} and (not letters or any(character.isdigit() for character in token)):
        return False
    small = token.lower()
    if (small in FUNCTION_WORDS and token != "US") or small in NUMBER_WORDS or small in OFTEN_NO_NOUN:
        return False
    if not token[0].islower():
        return True
    return small not in SMALL_NO_NOUN and not small.endswith(_ADJECTIVE_ENDINGS)


@lru_cache(maxsize=CACHED_TITLES)
def nouns_of(title: str) -> tuple[str, ...]:
    """The nouns of a title in small letters, in order, a repeated one repeatedly."""
    return tuple(token.lower() for token in split_title(title) if is_noun(token))

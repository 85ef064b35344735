"""From a text to the words that the search compares, by the rules of the official engine's analysis.

The official search runs Anserini's `DefaultEnglishAnalyzer` of Lucene 8: words by the boundaries of Unicode (UAX #29), a
possessive 's dropped, small letters, Lucene's 33 English stop words dropped, and the stemmer of Porter ("An algorithm for
suffix stripping", 1980) as his own program has it, which Lucene took over:

    women's size:M 3.5mm t-shirts, easy-care  →  women size:m 3.5mm t shirt easi care

A point or a colon between two letters, and a point or a comma between two digits, stand inside a word: "size:m" is one word, and
"size: m" two. Signs that Unicode counts among the emoji (❤ ★ ™) are words. So B08CV24121, whose text has "material:aluminium" alone,
is not found by "aluminium", and B08K7LDM7Q has a word "sofa.prompt:machin"; the official search has the same gaps.

Where this differs from Lucene (all of it rare in the official products):

- Letters, digits and marks are those of Python's Unicode, newer than Lucene's 9.0.
- The double quote of Hebrew abbreviations divides; underscores do not join Katakana; a # or * with a key cap is no word.
- Small letters are `str.lower`'s, as upstream's own are when it writes the documents: Lucene makes İ one letter, Python two.
- A word is cut after 255 characters; Lucene counts those beyond U+FFFF twice.
- Whether a y after a y is a vowel (byyed) is decided as the library does.
"""

from __future__ import annotations

import re
import threading
import unicodedata
from functools import lru_cache
from typing import Any

STOP_WORDS = frozenset(
    "a an and are as at be but by for if in into is it no not of on or such that the their then there these they this to was "
    "will with".split()
)
"""Lucene's `EnglishAnalyzer.ENGLISH_STOP_WORDS_SET`."""
LONGEST_WORD = 255
"""Characters; what is longer is cut into several words, as Lucene's tokenizer does."""
REMEMBERED_WORDS = 1 << 16

# The kinds of characters, each a letter of the text's "shape", on which the boundaries are regular expressions:
#   a letter  9 digit  _ joins both  : between letters  , between digits  . and ' between either
#   x mark or invisible, part of what it follows  v the mark that makes an emoji of a sign  z joins emoji
#   K Katakana  H Hiragana  h Han  s written without spaces (Thai, Lao, Khmer, Myanmar)  e emoji  m its skin  r half a flag
_JOINING = {":": ":··״‧︓﹕：", ".": ".‘’․﹒＇．", "'": "'", ",": ",;;։،؍٬߸⁄︐︔﹐﹔，；", "_": "\u202f", "9": "\u066b", "v": "\ufe0f", "z": "\u200d",
            "x": "\uff9e\uff9f", " ": "\u200b", "K": "\u30a0\u30fc\uff70\u309b\u309c"}  # fmt: skip
_RANGES = (
    ("s", (0x0E01, 0x0E3A), (0x0E40, 0x0E4E), (0x0E81, 0x0EBD), (0x0EC0, 0x0ECD), (0x0EDC, 0x0EDF), (0x1000, 0x103F),
     (0x1050, 0x108F), (0x109A, 0x109F), (0x1780, 0x17D3), (0x17D7, 0x17DD), (0xA9E0, 0xA9EF), (0xA9FA, 0xA9FE), (0xAA60, 0xAAC2)),
    ("h", (0x2E80, 0x2FD5), (0x3005, 0x3005), (0x3007, 0x3007), (0x3021, 0x3029), (0x3038, 0x303B), (0x3400, 0x9FFF),
     (0xF900, 0xFAFF), (0x20000, 0x3FFFD)),
    ("H", (0x3041, 0x3096), (0x309D, 0x309F), (0x1B001, 0x1B11F), (0x1F200, 0x1F200)),
    ("K", (0x3031, 0x3035), (0x30A1, 0x30FA), (0x30FC, 0x30FF), (0x31F0, 0x31FF), (0x32D0, 0x32FE), (0x3300, 0x3357),
     (0xFF66, 0xFF9D), (0x1B000, 0x1B000)),
    ("a", (0x24B6, 0x24E9), (0x1F130, 0x1F149), (0x1F150, 0x1F169), (0x1F170, 0x1F189)),
    ("m", (0x1F3FB, 0x1F3FF)),
    ("r", (0x1F1E6, 0x1F1FF)),
)  # fmt: skip
# Unicode 11's Extended_Pictographic, which Lucene's grammar takes for emoji: ©, ® and ™ are words too.
_EMOJI = (
    "00A9 00AE 203C 2049 2122 2139 2194-2199 21A9-21AA 231A-231B 2328 2388 23CF 23E9-23F3 23F8-23FA 24C2 25AA-25AB 25B6 "
    "25C0 25FB-25FE 2600-2605 2607-2612 2614-2685 2690-2705 2708-2712 2714 2716 271D 2721 2728 2733-2734 2744 2747 274C 274E "
    "2753-2755 2757 2763-2767 2795-2797 27A1 27B0 27BF 2934-2935 2B05-2B07 2B1B-2B1C 2B50 2B55 3030 303D 3297 3299 "
    "1F000-1F0FF 1F10D-1F10F 1F12F 1F16C-1F171 1F17E-1F17F 1F18E 1F191-1F19A 1F1AD-1F1E5 1F201-1F20F 1F21A 1F22F 1F232-1F23A "
    "1F23C-1F23F 1F249-1F3FA 1F400-1F53D 1F546-1F64F 1F680-1F6FF 1F774-1F77F 1F7D5-1F7FF 1F80C-1F80F 1F848-1F84F 1F85A-1F85F "
    "1F888-1F88F 1F8AE-1F8FF 1F90C-1F93A 1F93C-1F945 1F947-1FFFD"
)


class _Kinds(dict[int, str]):
    """The kind of each character, found when it is first met: what `str.translate` needs."""

    def __missing__(self, code: int) -> str:
        kind = self[code] = _kind(chr(code))
        return kind


def _kind(character: str) -> str:
    code = ord(character)
    for kind, others in _JOINING.items():
        if character in others:
            return kind
    if any(first <= code <= last for first, last in _emoji_ranges()):
        return "e"
    for kind, *ranges in _RANGES:
        if any(first <= code <= last for first, last in ranges):
            return kind
    category = unicodedata.category(character)
    if category[0] == "L" or category == "Nl":
        return "a"
    return {"Nd": "9", "Mn": "x", "Mc": "x", "Me": "x", "Cf": "x", "Pc": "_"}.get(category, " ")


@lru_cache(1)
def _emoji_ranges() -> tuple[tuple[int, int], ...]:
    parts = (part.split("-") for part in _EMOJI.split())
    return tuple((int(part[0], 16), int(part[-1], 16)) for part in parts)


_KINDS = _Kinds()
# Every character may carry marks (x, v, z), which count as part of it.
_WORD = re.compile(
    r"""
      (?: (?<![_xvz])_[_xvz]*+ )? (?=[a9]) (?: _[_xvz]*                         # joined by underscores,
        | a[axvz]* (?: [:.'][xvz]*a[axvz]* )*                                   # letters, with a point inside
        | 9[9xvz]* (?: [,.'][xvz]*9[9xvz]* )* )+                                # digits, with a point or comma inside
    | K[Kxvz]* | s[sxvz]* | [hH][xvz]* | rr
    | (?: (?<!z)z++ )? (?: e[xm]*v? | m ) (?: z+ (?: e[xm]*v? | m ) )*
    """,
    re.VERBOSE,
)
_POSSESSIVE = ("'s", "'S", "’s", "’S", "＇s", "＇S")
# Lucene has Porter's own program; the library has his paper, where three things differ: words of two letters are stemmed, "logi"
# and "bli" stay at the end of step 1 (here they become "log" and "ble"), and a doubled c, h, j, k, q, v, w or x before -ed and
# -ing stays doubled. What the program makes of such an ending no other step of the library touches before, so it is put in first.
_LATE = re.compile(r"(.*(?:[aeiou]|(?<=[^aeiou])y)[^aeiou].*(?:log|bl))(?:ies|ys?|is?|[yi](?:ed|ing)s?)")
_DOUBLED = re.compile(r"((?:.*[aeiou]|.+y).*([chjkqvwx]))\2(?:ed|ing)s?")


def split_words(text: str) -> list[str]:
    """The words of a text as they stand in it."""
    shape = text.translate(_KINDS)
    words = [text[match.start() : match.end()] for match in _WORD.finditer(shape)]
    if any(len(word) > LONGEST_WORD for word in words):
        words = [word[start : start + LONGEST_WORD] for word in words for start in range(0, len(word), LONGEST_WORD)]
    return words


@lru_cache(REMEMBERED_WORDS)
def normalise(word: str) -> str:
    """Return the form in which the search compares a word of `split_words`; empty for a stop word."""
    if word.endswith(_POSSESSIVE):
        word = word[:-2]
    word = word.lower()
    return "" if word in STOP_WORDS else stem(word)


def stem(word: str) -> str:
    """The stem of a word in small letters, as Lucene's `PorterStemmer` gives it."""
    if len(word) < 3:
        return word
    if late := _LATE.fullmatch(word):
        word = late[1] + "e" * late[1].endswith("bl")
    elif doubled := _DOUBLED.fullmatch(word):
        word = doubled[1]
    with _STEMMING:
        return str(_stemmer().stemWord(word))


def analyse(text: str) -> list[str]:
    """The words of a text that the search compares, in their order, as often as they stand there."""
    return [found for word in split_words(text) if (found := normalise(word))]


@lru_cache(1)
def _stemmer() -> Any:
    import Stemmer  # here: who lists the environments needs none

    return Stemmer.Stemmer("porter")


_STEMMING = threading.Lock()  # the library's stemmer serves one thread at a time

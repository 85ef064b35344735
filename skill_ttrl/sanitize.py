"""Skill texts are untrusted: a model wrote them. Here is what makes one suspicious, and how it is put into a prompt.

The bank stores a text as it is. `flags` names what looks hostile in it, for people to see; `escape` makes it safe to
show a model: whatever the text holds, it opens and closes none of our tags and spells no chat control token.

Both look at a *folded* copy in which each character is one that it can be mistaken for (full width, Cyrillic, other
angle brackets, case). It is as long as the text, so a match in it is a place in the text. All patterns look a bounded
distance ahead, so the work is linear.
"""

from __future__ import annotations

import json
import re
import unicodedata
from functools import cache

OUR_TAGS = (
    *("think", "answer", "action", "skill", "skills", "skill_ops", "generate", "retrieve", "evolve", "solution"),
    *("problem", "episode", "shown", "done", "rollout"),
)
"""Tags that mean something to this framework."""
CONTROL_TAGS = (
    *("s", "bos", "eos", "pad", "unk", "mask", "sys", "start_of_turn", "end_of_turn", "tool_call", "tool_response"),
    *("tools", "im_start", "im_end", "endoftext", "system", "user", "assistant", "human"),
)
"""Names that chat templates write as `<name>`."""
CONTROL_BRACKETS = ("inst", "sys", "tool_calls", "available_tools", "tool_results", "cls", "sep", "mask", "pad", "unk")
"""Names that chat templates write as `[NAME]`."""
LONG_TEXT = 2000
"""A text of more characters is flagged as long: a skill is a piece of advice."""

_LOOKALIKES = str.maketrans(
    {
        **dict.fromkeys("‹〈⟨❬❮❰˂ᐸ≺⧼«≪", "<"),
        **dict.fromkeys("›〉⟩❭❯❱˃ᐳ≻⧽»≫", ">"),
        **dict.fromkeys("⁄∕⧸╱", "/"),
        **dict.fromkeys("│┃ǀ∣❘⏐¦", "|"),
        **dict.fromkeys("‗ˍ", "_"),
        **dict(zip("авеікмнорѕтухԁԍһјӏԛԝѵ", "abeikmhopstyxdghjlqwv", strict=True)),
        **dict(zip("αειικνορτυχ", "aeiiknoptux", strict=True)),
        "ı": "i",
        "ɡ": "g",
        "ɑ": "a",
    }
)
_INVISIBLE = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u3164\uffa0")  # shown as nothing, though no format characters
_AHEAD = r"[\s/]{0,8}"
_GAP = r"[\s]{0,8}"

_NOT_PLAIN = re.compile(r"[^ -~\n]")
_HALF = re.compile(r"[\ud800-\udfff]")  # has no UTF-8 form, so no file can hold it


def _names(names: tuple[str, ...]) -> str:
    return "|".join(sorted(map(re.escape, names), key=len, reverse=True))


_OURS = re.compile(rf"<(?={_AHEAD}(?:{_names(OUR_TAGS)})(?![\w-]))")
_CONTROL = re.compile(
    rf"<(?={_AHEAD}(?:{_names(CONTROL_TAGS)}){_GAP}>)"
    rf"|<(?={_GAP}\|[^|<>&]{{1,64}}\|{_GAP}>)"
    rf"|\[(?={_AHEAD}(?:{_names(CONTROL_BRACKETS)}){_GAP}\])"
)
_BEGUN = {name[:length] for name in (*OUR_TAGS, *CONTROL_TAGS) for length in range(1, len(name) + 1)}
_UNFINISHED = re.compile(
    rf"<(?={_AHEAD}(?:{'|'.join(sorted(_BEGUN, key=len, reverse=True))})?{_GAP}\Z|{_GAP}\|[^|<>&]{{0,64}}\|?\Z)"
)
_ESCAPED = {"[": "&#91;"}

_W = r"[\W_]{1,8}"
_OLD = "previous|prior|earlier|above|preceding|foregoing|existing|initial|original|other"
_ORDERS = "instructions?|prompts?|rules?|directions?|guidelines?|messages?|context|commands?|constraints?"
_INJECTION = re.compile(
    rf"\b(?:ignore|disregard|forget|override|bypass){_W}(?:\w{{1,20}}{_W}){{0,4}}?(?:{_OLD}){_W}(?:\w{{1,20}}{_W}){{0,2}}?(?:{_ORDERS})\b"
    rf"|\b(?:ignore|disregard|forget){_W}(?:all|any|every|everything|your|these|those){_W}(?:\w{{1,20}}{_W}){{0,3}}?"
    rf"(?:{_ORDERS}|above|before|said|told)\b"
    rf"|\byou{_W}are{_W}now{_W}(?:an?|the|in|no|free|dan)\b"
    rf"|\b(?:reveal|print|repeat|show|output|leak){_W}(?:\w{{1,20}}{_W}){{0,3}}?(?:system{_W}prompt|hidden{_W}(?:prompt|instructions?))\b"
    rf"|\bnew{_W}(?:system{_W})?instructions?\s{{0,4}}:"
    rf"|\b(?:jailbreak|developer{_W}mode|do{_W}anything{_W}now)\b"
    r"|(?:^|\n)[ \t#*]{0,8}(?:system|assistant|user|human)[ \t*]{0,4}:"
)


def flags(text: str) -> tuple[str, ...]:
    """Names of what looks hostile in `text`, sorted; empty for ordinary text. It is a hint for people, not a gate.

    `control-characters`, `control-tokens` (`<|im_end|>`, `[INST]`), `injection` (phrases such as "ignore previous
    instructions", made-up speakers), `invisible` (zero width, text direction), `long`, `our-tags`.
    """
    seen = escape_terminal(text)
    folded = _fold(seen)
    found = {
        "control-characters": any(_is_control(character) for character in set(text)),
        "control-tokens": _CONTROL.search(folded) is not None,
        "injection": _INJECTION.search(folded) is not None,
        "invisible": any(_is_invisible(character) for character in set(text)),
        "long": len(text) > LONG_TEXT,
        "our-tags": _OURS.search(folded) is not None,
    }
    return tuple(name for name, is_so in found.items() if is_so)


def escape(text: str, *, brackets: bool = True) -> str:
    r"""`text` as it may stand in a prompt. Ordinary text and mathematics come back unchanged; `escape` of it again too.

    - The bracket that begins one of our tags or a chat control token, in any spelling, becomes `&lt;` (`&#91;` for `[`);
      at the very end also one that could become a tag with what follows.
    - Control characters become their visible pictures (U+2400 …), line breaks of all kinds `\n`, characters that show as
      nothing (zero width, text direction) are dropped, and halves of surrogate pairs become U+FFFD.

    Without `brackets` a `[` stays: WebShop's pages are full of `[SEP]`.
    """
    seen = escape_terminal(text)
    folded = _fold(seen)
    places = {match.start() for pattern in (_OURS, _CONTROL, _UNFINISHED) for match in pattern.finditer(folded)}
    parts, end = [], 0
    for place in sorted(places):
        if not brackets and folded[place] == "[":
            continue
        parts += [seen[end:place], _ESCAPED.get(folded[place], "&lt;")]
        end = place + 1
    return "".join([*parts, seen[end:]])


def escape_terminal(text: str) -> str:
    """The text without characters that act and do not show: fit for a terminal. See `escape` for what becomes of them."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(map(_shown, text.replace("\r\n", "\n")))


def escape_json(text: str) -> str:
    """JSON text with each character that does not print written as an escape: the same value, fit for a terminal."""
    return _NOT_PLAIN.sub(lambda found: found[0] if found[0].isprintable() else json.dumps(found[0])[1:-1], text)


def replace_surrogates(text: str) -> str:
    """The text with half characters (lone surrogates) replaced: no file can hold them."""
    return text if text.isascii() else _HALF.sub("\N{REPLACEMENT CHARACTER}", text)


def one_line(text: str, most: int | None = None) -> str:
    """The text on one line, fit for a terminal, with an ellipsis where it is longer than `most` characters."""
    line = " ".join(escape_terminal(text if most is None else text[: 4 * most]).split())
    return line if most is None or len(line) <= most else line[: most - 1] + "…"


def _fold(text: str) -> str:
    """The text with each character replaced by one that it can be mistaken for; as long as the text."""
    return text.lower() if text.isascii() else "".join(map(_folded, text))


@cache
def _folded(character: str) -> str:
    plain = unicodedata.normalize("NFKC", character).translate(_LOOKALIKES)
    plain = unicodedata.normalize("NFKD", plain.casefold())[:1].translate(_LOOKALIKES)
    return plain or character


@cache
def _shown(character: str) -> str:
    if character in "\n\t":
        return character
    if character in "\r\v\f\x85\u2028\u2029":
        return "\n"
    if _is_invisible(character):
        return ""
    code = ord(character)
    if code < 0x20:
        return chr(0x2400 + code)
    if code == 0x7F:
        return "\u2421"
    return "\ufffd" if _is_control(character) else character


@cache
def _is_control(character: str) -> bool:
    return unicodedata.category(character) in ("Cc", "Cs", "Co") and character not in "\n\t\r"


@cache
def _is_invisible(character: str) -> bool:
    """Format characters (zero width, text direction, tags), variation selectors and blank fillers."""
    return unicodedata.category(character) == "Cf" or character in _INVISIBLE or "\ufe00" <= character <= "\ufe0f"

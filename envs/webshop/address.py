"""The shop's addresses: where a shopper stands is written in them, as on the official site, and nowhere else.

    /SESSION                                                 the search page
    /search_results/SESSION/KEYWORDS/PAGE
    /item_page/SESSION/ASIN/KEYWORDS/PAGE/OPTIONS
    /item_sub_page/SESSION/ASIN/KEYWORDS/PAGE/SUB_PAGE/OPTIONS
    /done/SESSION/ASIN/OPTIONS

So the back button and a reload do what they say. The official site writes keywords and options as Python writes a list and a
dict; here the options are JSON and the keywords plain words. Both ways are read, as texts: nothing is evaluated.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote, unquote

from skill_ttrl.envs.webshop.pages import SUB_PAGES
from skill_ttrl.envs.webshop.shop import State

LONGEST_SESSION = 100

_STRING = re.compile(r""""(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'""")
_IN_STRING = re.compile(r"""\\x([0-9a-fA-F]{2})|\\(.)|(")""")
_PAGE = re.compile(r"[1-9][0-9]{0,6}")


class BadAddress(ValueError):
    """There is no page of this address; the message says why, for who asked."""

    def __init__(self, message: str, status: int = 404) -> None:
        super().__init__(message)
        self.status = status


def page_path(session: str, state: State) -> str:
    """The address of a page without its server; `read_path` gives both back, but for what a page does not show."""
    name = _part(session)
    words, options = _part(_keywords_text(state.keywords)), _part(_json(dict(state.options)))
    if state.place == "search":
        return f"/{name}"
    if state.place == "results":
        return f"/search_results/{name}/{words}/{state.page}"
    if state.place == "done":
        return f"/done/{name}/{_part(state.asin)}/{options}"
    if state.place == "item":
        return f"/item_page/{name}/{_part(state.asin)}/{words}/{state.page}/{options}"
    return f"/item_sub_page/{name}/{_part(state.asin)}/{words}/{state.page}/{state.sub}/{options}"


def read_path(path: str) -> tuple[str, State]:
    """Session and state that an address names; it knows no catalogue, so that the product may not be there.

    Args:
        path: as it came, percent signs and all, without the query.

    Raises:
        BadAddress: it is none of the shop's.
    """
    kind, *parts = [unquote(part) for part in path.removeprefix("/").split("/")]
    if not parts:
        return _session(kind), State()
    if kind == "search_results" and len(parts) == 3:
        return _session(parts[0]), State("results", _keywords(parts[1]), _page(parts[2]))
    if kind == "item_page" and len(parts) == 5:
        session, asin, words, page, options = parts
        return _session(session), State("item", _keywords(words), _page(page), asin, options=_options(options))
    if kind == "item_sub_page" and len(parts) == 6:
        session, asin, words, page, sub, options = parts
        if sub not in SUB_PAGES:
            raise BadAddress(f"A product has the pages {', '.join(SUB_PAGES)}, and none named {sub[:40]!r}.")
        return _session(session), State("sub", _keywords(words), _page(page), asin, options=_options(options), sub=sub)
    if kind == "done" and len(parts) == 3:
        return _session(parts[0]), State("done", asin=parts[1], options=_options(parts[2]))
    raise BadAddress("The shop has no such address.")


def read_keywords(words: str) -> tuple[str, ...]:
    """Split the text of a search box into keywords as upstream does: lower case, split at each space."""
    return tuple(words.lower().split(" "))


def _keywords_text(keywords: Sequence[str]) -> str:
    plain = " ".join(keywords)
    # A browser takes "." and ".." for folders and drops an empty part; "[" is how a list begins.
    return _json(list(keywords)) if plain in ("", ".", "..") or plain.startswith("[") else plain


def _keywords(text: str) -> tuple[str, ...]:
    if not text.startswith("["):
        return tuple(text.split(" "))
    found = _read(text)
    if not isinstance(found, list) or not found or not all(isinstance(word, str) for word in found):
        raise BadAddress(f"The keywords of a search are words, found {text[:60]!r}.", 400)
    return tuple(found)


def _options(text: str) -> dict[str, str]:
    found = _read(text)
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise BadAddress(
            f'The options of a product are a JSON object like {{"color": "red"}}, found {text[:60]!r}.', 400
        )
    return found


def _page(text: str) -> int:
    if not _PAGE.fullmatch(text):
        raise BadAddress(f"Pages of results are numbered from 1, found {text[:20]!r}.", 400)
    return int(text)


def _session(text: str) -> str:
    if not 0 < len(text) <= LONGEST_SESSION or not text.isprintable():
        raise BadAddress(f"The name of a visit has 1 to {LONGEST_SESSION} characters.", 400)
    return text


def _read(text: str) -> Any:
    """JSON, or a list or dict of texts as Python writes it: its strings are rewritten as JSON's."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        pass
    try:
        return json.loads(_STRING.sub(_json_string, text))
    except (ValueError, RecursionError):
        return None


def _json_string(match: re.Match[str]) -> str:
    def rewritten(found: re.Match[str]) -> str:
        if found[1]:
            return f"\\u00{found[1]}"
        if found[3]:
            return '\\"'
        return "'" if found[2] == "'" else found[0]

    return f'"{_IN_STRING.sub(rewritten, match[0][1:-1])}"'


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _part(text: str) -> str:
    return quote(text, safe="", errors="replace")

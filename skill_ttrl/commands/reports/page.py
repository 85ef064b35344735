"""Renders the data of a report into one HTML file that needs no network and runs no text of a run."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from skill_ttrl.sanitize import escape_terminal, replace_surrogates

TEMPLATES = Path(__file__).parent / "templates"
SCRIPTS = ("uPlot.iife.min.js", "report.js")
STYLES = ("uPlot.min.css", "report.css")
LONGEST = 100_000
"""Characters of a text in the page's head, which has no button for the rest; the other texts are shown in full on request."""
ESCAPES = {ord(each): f"\\u{ord(each):04x}" for each in "<>&\u2028\u2029"}


def render(page: Mapping[str, Any]) -> str:
    """Return the page as HTML: the verdict as text, everything else as data for the page's own script.

    The page's policy lets a browser run two scripts, which it knows by their hashes, and load nothing. Texts of a run are escaped.
    """
    scripts, styles = [_file(name) for name in SCRIPTS], [_file(name) for name in STYLES]
    hashes = (b64encode(sha256(text.encode()).digest()).decode() for text in scripts)
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined, finalize=_printable
    )
    policy, data = Markup(" ".join(f"'sha256-{each}'" for each in hashes)), Markup(_json(page).translate(ESCAPES))
    template, notice = environment.from_string(_file("report.html.j2")), _file("uPlot.LICENSE")
    return template.render(page=page, policy=policy, scripts=scripts, styles=styles, notice=notice, data=data)


def _file(name: str) -> Markup:
    return Markup((TEMPLATES / name).read_text(encoding="utf-8"))


def _printable(value: Any) -> Any:
    """A value for the template: a text without characters that act and do not show, cut where it is very long."""
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    return escape_terminal(value if len(value) <= LONGEST else f"{value[:LONGEST]} … ({len(value):,} characters)")


def _json(value: Any) -> str:
    """JSON of plain data; numbers that JSON lacks are null, and half characters, which a file may spell, are replaced."""
    plain = json.loads(json.dumps(value, default=str), parse_constant=lambda _: None)
    return replace_surrogates(json.dumps(plain, ensure_ascii=False, separators=(",", ":")))

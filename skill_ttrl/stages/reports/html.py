"""Pages that open in any browser: one HTML file each, no script, nothing fetched; charts are plain SVG."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jinja2

_TEMPLATES = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
    autoescape=True,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
    undefined=jinja2.StrictUndefined,
)


def render_report(name: str, title: str, **facts: Any) -> str:
    """Fill in the template `name`. Every text, the title too, is escaped there."""
    return _TEMPLATES.get_template(f"{name}.html.j2").render(title=title, **facts)

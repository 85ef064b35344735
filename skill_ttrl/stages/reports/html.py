"""A page that opens in any browser: one HTML file, no script, nothing fetched."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

STYLE = (
    "body{font:15px system-ui,sans-serif;max-width:1160px;margin:2em auto;padding:0 1em;color:#222}"
    "table{border-collapse:collapse}td,th{padding:.25em .8em;border-bottom:1px solid #ddd;text-align:right}"
    "td:first-child,th:first-child{text-align:left}svg{margin:4px}text{font:11px system-ui,sans-serif;fill:#555}"
    ".warning{background:#fff3cd;padding:.6em 1em}"
)


def html_page(title: str, body: Sequence[str]) -> str:
    """A whole document.

    Args:
        title: Plain text; escaped here.
        body: Pieces of HTML.
    """
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{STYLE}</style></head><body><h1>{escape(title)}</h1>{''.join(body)}</body></html>\n"
    )


def html_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of plain texts; all are escaped here."""
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    cells = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{cells}</table>"

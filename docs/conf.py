"""Settings of Sphinx: one HTML site from the pages of this folder and the docstrings of `skill_ttrl` (`make docs`)."""

from __future__ import annotations

import inspect
import re
import runpy
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from sphinx.application import Sphinx
from sphinx.ext.napoleon import Config, GoogleDocstring

import skill_ttrl

project = "Skill-TTRL"
version = release = skill_ttrl.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_copybutton"]

# Each heading has the anchor that GitHub gives it: links of the pages lead to the same places here and there.
myst_heading_anchors = 4

# Single backticks are code in docstrings, as in Markdown.
default_role = "code"
autodoc_default_options = {"members": True, "member-order": "bysource"}
autodoc_typehints_format = "short"
maximum_signature_line_length = 88
toc_object_entries_show_parents = "hide"
# Types in signatures link to what the reference holds. Those of other libraries, and internal ones, are text.
nitpick_ignore_regex = [(r"py:.*", r".*")]

smartquotes = False  # they would turn the two dashes of an option into one long one

html_theme = "furo"
html_title = f"Skill-TTRL {version}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
copybutton_prompt_text = "$ "

DOCS = Path(__file__).parent
LINK = re.compile(r"\[([^\]]*)\]\((\.\./[^)#\s]+)(?:#[^)\s]+)?\)")
SOURCE = re.compile(r"\.\./skill_ttrl/(?:(metrics\.toml)|[\w./]+)(?=#)")
"""A link with an anchor to the code that a page is made from; the page exists on the site alone."""
OBJECT = re.compile(r"<(?:factory|function (?:[\w.]|<\w+>)+)>")


def link_files(app: Sphinx, page: str, source: list[str]) -> None:
    """Make links to the source of a generated page lead there, and links to other files downloads; a folder keeps its name alone."""

    def replaced(found: re.Match[str]) -> str:
        target = (DOCS / page).parent.joinpath(found[2]).resolve()
        if target.is_relative_to(DOCS):
            return found[0]
        return found[1] if target.is_dir() else f"[{found[1]}](path:{found[2]})"

    text = SOURCE.sub(lambda found: "metrics.md" if found[1] else "settings.md", source[0])
    source[0] = LINK.sub(replaced, text)


def google_style(app: Sphinx, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """Read docstrings in Google style, but for those of attributes: napoleon takes the words before a colon for a type."""
    if lines and lines[0] == "See the module.":
        lines[:] = (inspect.getdoc(inspect.getmodule(thing)) or "").splitlines()
    if what not in ("attribute", "data", "property"):
        config = Config(napoleon_use_rtype=False)
        lines[:] = GoogleDocstring(lines, config, app, what, name, thing, options).lines()


def shorter(app: Sphinx, what: str, name: str, thing: Any, options: Any, signature: str | None, gives: str) -> Any:
    """Leave out signatures of models, whose fields follow, and of protocols; a default that is no Python is written as `...`."""
    if isinstance(thing, type) and (issubclass(thing, BaseModel) or getattr(thing, "_is_protocol", False)):
        return "", None
    return (OBJECT.sub("...", signature), gives) if signature else None


def left_out(app: Sphinx, what: str, name: str, thing: Any, skip: bool, options: Any) -> bool | None:
    """Leave out pydantic's own attribute, and the type of an algorithm's or a loss's options: docs/settings.md has these."""
    return True if name == "model_config" or (name == "options_type" and isinstance(thing, type)) else None


def write_pages() -> None:
    """Write the pages that are made from the code: settings, commands and metrics. Git ignores them."""
    for name in ("settings", "cli", "metrics"):
        page = runpy.run_path(str(DOCS / f"generate_{name}.py"))[f"{name}_page"]()
        (DOCS / f"{name}.md").write_text(page, encoding="utf-8")


def setup(app: Sphinx) -> None:
    """Write the generated pages, and connect the functions above."""
    write_pages()
    app.connect("source-read", link_files)
    app.connect("autodoc-process-docstring", google_style)
    app.connect("autodoc-skip-member", left_out)
    app.connect("autodoc-process-signature", shorter)

"""Writes docs/settings.md from the types of the config and of algorithms and losses, for the site (`make docs`)."""

from __future__ import annotations

import json
import types
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from skill_ttrl.config import Section, SkillTTRLConfig
from skill_ttrl.config.data import DemonstrationSource, NamedSource
from skill_ttrl.registry import Registry
from skill_ttrl.rl.algorithms import ALGORITHMS
from skill_ttrl.rl.losses import LOSSES

SOURCES = ("data.train", "data.eval", "sft.data")
"""Settings that hold a source: its keys are listed once."""
OPENING = """\
# All settings

Syntax: see [configuration.md](configuration.md). Defaults apply to keys you do not set. `None` in a meaning is written `null` in a file.
`skillttrl configs NAME --full` prints every setting of a recipe.
"""


def settings_page() -> str:
    """The page's text."""
    parts = [OPENING, _table("", SkillTTRLConfig, "The run")]
    for name, field in SkillTTRLConfig.model_fields.items():
        section = _section(field)
        if section is not None:
            parts.append(_table(name, section, _sentence(section)))
    parts.append(
        _table(
            "SOURCE",
            DemonstrationSource,
            f"`SOURCE` stands for {', '.join(f'`{name}`' for name in SOURCES)}; only the last has `options`.",
        )
    )
    parts.append(_options("rl.algorithm", ALGORITHMS))
    parts.append(_options("rl.loss", LOSSES))
    return "\n".join(parts)


def _table(prefix: str, section: type[Section], title: str) -> str:
    rows = list(_rows(prefix, section))
    heading = f"## {prefix or 'top'}\n\n{title}\n" if prefix else "## Top level\n"
    return "\n".join([heading, "| key | default | may be | meaning |", "|---|---|---|---|", *rows, ""])


def _options(key: str, registry: Registry[Any]) -> str:
    """A row for each option; what several names have in common stands once."""
    owners: dict[tuple[str, str], list[str]] = {}
    for name in registry:
        for option, field in registry.get(name).options_type.model_fields.items():
            row = _row(option, field, _kind(field.annotation, field))
            owners.setdefault((option, row), []).append(f"`{name}`")
    rows = [f"| {', '.join(names)} {row}" for (_, row), names in sorted(owners.items(), key=lambda pair: pair[0][0])]
    without = [f"`{name}`" for name in registry if not registry.get(name).options_type.model_fields]
    text = f"`{key}: {{type: NAME, OPTION: VALUE}}`. What each `{key}` computes: [algorithms.md](algorithms.md)."
    if without:
        text += f" Without options: {', '.join(without)}."
    heading = f"## Options of {key}\n\n{text}\n"
    return "\n".join([heading, f"| {key} | option | default | may be | meaning |", "|---|---|---|---|---|", *rows, ""])


def _rows(prefix: str, section: type[Section]) -> list[str]:
    rows = []
    for name, field in section.model_fields.items():
        key = f"{prefix}.{name}" if prefix else name
        inner = _section(field)
        if inner is not None and not issubclass(inner, NamedSource):
            if not prefix:
                continue  # has a table of its own
            if field.default is None:
                rows.append(_row(key, field, "a section"))
            rows += _rows(key, inner)
        else:
            rows.append(_row(key, field, "a source" if inner else _kind(field.annotation, field)))
    return rows


def _row(key: str, field: FieldInfo, kind: str) -> str:
    default = "required" if field.is_required() else f"`{_shown(field.get_default(call_default_factory=True))}`"
    meaning = " ".join((field.description or "").split())
    cells = (f"`{key}`", default, kind, meaning)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _shown(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    return json.dumps(value) if isinstance(value, list | tuple | dict) else str(value)


def _kind(annotation: Any, field: FieldInfo) -> str:
    bounds = [
        f"{sign} {getattr(limit, name):g}"
        for limit in field.metadata
        for name, sign in (("ge", "≥"), ("gt", ">"), ("le", "≤"), ("lt", "<"))
        if hasattr(limit, name)
    ]
    return " ".join([_words(annotation), ", ".join(bounds)]).strip()


def _words(annotation: Any) -> str:
    """A type in a reader's words."""
    if get_origin(annotation) is Annotated:  # a bound on the entries of a list
        annotation = get_args(annotation)[0]
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        return " or ".join("`null`" if each is type(None) else _words(each) for each in inner)
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in inner)
    if origin in (list, tuple):
        return f"list of {_words(inner[0])}"
    if origin is dict:
        return "mapping"
    kinds = {int: "integer", float: "number", str: "text", bool: "`true`, `false`"}
    return kinds.get(annotation, "section")  # an entry of a list with fields of its own


def _section(field: FieldInfo) -> type[Section] | None:
    mapping = get_origin(field.annotation) is dict  # by names: one setting
    kinds = [] if mapping else [field.annotation, *get_args(field.annotation)]
    return next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Section)), None)


def _sentence(section: type[Section]) -> str:
    return " ".join((section.__doc__ or "").split())

"""The base of every section of a config."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Any, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from skill_ttrl.errors import did_you_mean

Beta = Annotated[float, Field(ge=0, lt=1)]
"""Decay rate of an optimizer's running mean."""


class Section(BaseModel):
    """Base of every section: unknown keys are errors, assignments are validated, docstrings are help texts."""

    model_config = ConfigDict(
        extra="forbid", validate_assignment=True, use_attribute_docstrings=True, allow_inf_nan=False
    )


MAX_SHOWN = 200
"""Characters of a wrong value that a message shows."""


def explain_problem(
    problem: Mapping[str, Any], root: type[BaseModel], *, shows_value: bool = True, recipe: str = "quickstart"
) -> list[str]:
    """Put one of pydantic's errors into sentences, without the name of the key that they are about.

    Args:
        problem: an entry of `ValidationError.errors()`.
        root: the section that was validated.
        shows_value: say what was found; not where it may be a secret.
        recipe: a shipped config, whose settings the message says how to list.
    """
    place, value, kind = problem["loc"], problem["input"], problem["type"]
    found = "" if not shows_value or isinstance(value, dict | BaseModel) else f" (found {_shortened(value)})"
    if kind == "extra_forbidden":
        section = section_at(root, place[:-1])
        absent = f" --set '{place[0]}={{}}'" if _is_optional(root, place[:1]) else ""
        known = section.model_fields if section else ()
        return [f"unknown key.{did_you_mean(str(place[-1])[:80], known, f'skillttrl configs {recipe} --full{absent}')}"]
    if kind == "list_type":
        return [f"must be a list in brackets, such as [a, b]{found}."]
    if kind == "literal_error" and isinstance(value, str):
        choices = re.findall(r"'([^']*)'", str(problem["ctx"]["expected"]))
        return [f"unknown value {value[:80]!r}.{did_you_mean(value[:80], choices)}"]
    if kind == "model_type" and (section := section_at(root, place)):
        optional = place and _is_optional(root, place)
        return [
            f"expected a section: write {_as_section(value, section) if optional else '{key: value}'}"
            f"{', or null for none' if optional else ''}{found}. Its keys: {', '.join(section.model_fields)}."
        ]
    if kind == "dict_type":
        return [f"expected a mapping: write {{name: value}}{found}."]
    words = str(problem["msg"]).removeprefix("Value error, ").replace("Input should be", "must be")
    return [f"{text}{found}." for text in words.split("\n")]


def section_at(root: type[BaseModel], place: Sequence[str | int]) -> type[BaseModel] | None:
    """The section that the keys lead to from `root`; None where they lead elsewhere."""
    section, named = root, False
    for part in place:
        if isinstance(part, int) or named:  # in a list of sections, or a mapping of them by name
            named = False
            continue
        field = section.model_fields.get(str(part))
        candidates = (field.annotation, *get_args(field.annotation)) if field else ()
        inner = [kind for kind in candidates if isinstance(kind, type) and issubclass(kind, BaseModel)]
        if not inner:
            return None
        section, named = inner[0], field is not None and get_origin(field.annotation) is dict
    return section


def _is_optional(root: type[BaseModel], place: Sequence[str | int]) -> bool:
    holder = section_at(root, place[:-1])
    field = holder.model_fields.get(str(place[-1])) if holder else None
    return field is not None and type(None) in get_args(field.annotation)


def _as_section(value: Any, section: type[BaseModel]) -> str:
    """The section that a bare value may have meant: its defaults for a yes, else the first key that takes the value."""
    keys = [] if isinstance(value, bool) or value is None else list(section.model_fields)
    for key in keys:
        with suppress(ValidationError):
            section.model_validate({key: value})
            return f"{{{key}: {_shortened(value) if not isinstance(value, str) else value[:80]}}}"
    needed = [name for name, field in section.model_fields.items() if field.is_required()]
    return "{" + ", ".join(f"{name}: …" for name in needed) + "}" if needed else "{} for its defaults"


def _shortened(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"

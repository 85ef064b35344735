"""The base of every section of a config."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from skill_ttrl.errors import did_you_mean

Beta = Annotated[float, Field(ge=0, lt=1)]
"""Decay rate of an optimiser's running mean."""


class Section(BaseModel):
    """Base of every section: unknown keys are errors, assignments are validated, docstrings are help texts."""

    model_config = ConfigDict(
        extra="forbid", validate_assignment=True, use_attribute_docstrings=True, allow_inf_nan=False
    )


def unknown_choice(problem: Mapping[str, Any]) -> str | None:
    """Explain a pydantic error about a text that is none of a setting's choices, with the closest one; None for other errors."""
    if problem["type"] != "literal_error" or not isinstance(problem["input"], str):
        return None
    choices = re.findall(r"'([^']*)'", str(problem["ctx"]["expected"]))
    return f"unknown value {problem['input'][:80]!r}.{did_you_mean(problem['input'][:80], choices)}"

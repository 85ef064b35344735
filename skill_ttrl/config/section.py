"""The base of every section of a config."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Beta = Annotated[float, Field(ge=0, lt=1)]
"""Decay rate of an optimiser's running mean."""


class Section(BaseModel):
    """Base of every section: unknown keys are errors, assignments are validated, docstrings are help texts."""

    model_config = ConfigDict(
        extra="forbid", validate_assignment=True, use_attribute_docstrings=True, allow_inf_nan=False
    )

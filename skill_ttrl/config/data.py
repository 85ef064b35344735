"""Sections of a config: the environment, its tasks, and where tasks and demonstrations come from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, model_validator

from skill_ttrl.config.section import Section

SourceKind = Literal["file", "hub", "family"]
FIELDS_OF_OTHER_KINDS: Mapping[SourceKind, tuple[str, ...]] = {
    "file": ("split", "revision", "options"),
    "hub": ("split", "revision", "options", "more"),
    "family": ("split", "revision", "more"),
}
"""Fields of a source that mean nothing, or something else, once it is of this kind."""


def source_kind(path: object) -> SourceKind:
    """The kind of source that a path names."""
    found: dict[str, SourceKind] = {"hf:": "hub", "synthetic:": "family"}
    return next((kind for start, kind in found.items() if str(path).startswith(start)), "file")


class SourceConfig(Section):
    """Where tasks or demonstrations come from."""

    path: str
    """A JSON, JSONL, CSV or Parquet file, `hf:owner/name` (a Hugging Face data set) or `synthetic:name` (generated problems). A list of files
    is read as one, in this order."""
    more: list[str] = Field(default_factory=list)
    """Further files: what a list in `path` has after its first."""
    split: str | None = None
    """Part of a data set or family to take; files have none."""
    revision: str | None = None
    """Commit of a Hugging Face data set; recorded when it is resolved."""
    prompt_field: str = "prompt"
    """Column with the problem (falls back to `question` and `problem` only where this one is left at its default)."""
    answer_field: str = "answer"
    """Column with the true answer (falls back to `solution` only where this one is left at its default); may be absent, then nothing is
    measured against labels."""
    limit: int | None = Field(default=None, ge=1)
    """Take this many, the first in file order or in a family's fixed order."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Further arguments of a family, e.g. `noise`."""

    @model_validator(mode="before")
    @classmethod
    def _several(cls, given: Any) -> Any:
        """Read a list of files as the first and the others."""
        path = given.get("path") if isinstance(given, dict) else None
        if not isinstance(path, list):
            return given
        if not path or given.get("more"):
            raise ValueError("path is a list of at least one file; `more` is for what such a list has after its first")
        return {**given, "path": path[0], "more": path[1:]}

    @model_validator(mode="after")
    def _files(self) -> SourceConfig:
        """Refuse several sources of which one is no file."""
        if self.more and any(each.startswith(("hf:", "synthetic:")) for each in (self.path, *self.more)):
            raise ValueError("several files can be read as one; a data set of a hub and a family stand alone")
        return self


class EnvConfig(Section):
    """The environment that plays the tasks."""

    id: str = "math"
    """Short name (`math`), Gymnasium id (`SkillTTRL/Math-v0`) or `module:EnvId-v0` of your own."""
    kwargs: dict[str, Any] = Field(default_factory=dict)
    """Handed to `gymnasium.make`."""
    train_split: str = "train"
    """Split of the environment's own tasks that is trained on, where there is no `data.train`."""
    eval_split: str = "test"
    """Split of the environment's own tasks that is measured on, where there is neither `data.eval` nor `data.train`. ALFWorld:
    `valid_seen` or `valid_unseen`."""
    train_tasks: int | None = Field(default=None, ge=1)
    """So many of the environment's own training tasks, spread evenly over their order, so that every type is among them; None:
    all."""
    eval_tasks: int | None = Field(default=None, ge=1)
    """So many of those that are measured on, spread in the same way; None: all."""


class DataConfig(Section):
    """Tasks to train on and to measure on. An environment that brings its own tasks needs neither."""

    train: SourceConfig | None = None
    eval: SourceConfig | None = None
    """Held-out tasks; without them evaluation runs on the training tasks and the report says `transductive`."""
    max_prompt_tokens: int = Field(default=1024, ge=1)
    """Longest prompt in tokens (TTRL: 512 for AIME, 1024 for AMC)."""
    overlong: Literal["filter", "truncate", "refuse"] = "filter"
    """Treatment of a longer prompt: `filter` leaves it out and counts it, `truncate` cuts it at the left, `refuse` stops the run."""
    leak: Literal["refuse", "report"] = "refuse"
    """Action if held-out tasks would be learned from: the command stops, or continues and reports it in its summary."""

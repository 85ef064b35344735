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
    """A JSON, JSONL or Parquet file, `hf:owner/name` (a Hugging Face data set) or `synthetic:name` (generated problems). A list of
    files is read as one, in this order."""
    more: list[str] = Field(default_factory=list)
    """Further files: those after the first in a list given as `path`."""
    split: str | None = None
    """Split of a data set or family; files have none."""
    revision: str | None = None
    """Commit of a Hugging Face data set; recorded when it is resolved."""
    prompt_field: str = "prompt"
    """Column with the problem. If left at its default, `question` and `problem` are tried too."""
    answer_field: str = "answer"
    """Column with the true answer. If left at its default, `solution` is tried too. Without such a column nothing is measured against
    labels."""
    limit: int | None = Field(default=None, ge=1)
    """Use only this many, the first in file order or in a family's fixed order."""
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
            raise ValueError("path must list at least one file; `more` holds the files after the first")
        return {**given, "path": path[0], "more": path[1:]}

    @model_validator(mode="after")
    def _files(self) -> SourceConfig:
        """Refuse several sources of which one is no file."""
        if self.more and any(each.startswith(("hf:", "synthetic:")) for each in (self.path, *self.more)):
            raise ValueError("only files can be listed together; a hub data set or a family must be the only entry")
        return self


class EnvConfig(Section):
    """The environment that plays the tasks."""

    id: str = "math"
    """Short name (`math`), Gymnasium id (`SkillTTRL/Math-v0`) or `module:EnvId-v0` of your own."""
    kwargs: dict[str, Any] = Field(default_factory=dict)
    """Arguments for `gymnasium.make`."""
    train_split: str = "train"
    """Split of the environment's own tasks to train on, if there is no `data.train`."""
    eval_split: str = "test"
    """Split of the environment's own tasks to evaluate on, if there is neither `data.eval` nor `data.train`. ALFWorld: `valid_seen` or
    `valid_unseen`."""
    train_tasks: int | None = Field(default=None, ge=1)
    """Number of the environment's own training tasks to use, spread evenly over their order so that every type is included; None: all."""
    eval_tasks: int | None = Field(default=None, ge=1)
    """Number of the environment's own evaluation tasks to use, spread in the same way; None: all."""


class DataConfig(Section):
    """Tasks to train on and to measure on. An environment that brings its own tasks needs neither."""

    train: SourceConfig | None = None
    eval: SourceConfig | None = None
    """Held-out tasks. Without them the run evaluates on its training tasks, and the report says `transductive`."""
    max_prompt_tokens: int = Field(default=1024, ge=1)
    """Longest prompt in tokens (TTRL: 512 for AIME, 1024 for AMC)."""
    overlong: Literal["filter", "truncate", "refuse"] = "filter"
    """Treatment of a longer prompt: `filter` drops and counts it, `truncate` cuts it on the left, `refuse` stops the run."""
    leak: Literal["refuse", "report"] = "refuse"
    """What to do if the run would learn from held-out tasks: `refuse` stops it, `report` continues and reports it in the summary."""

"""Sections of a config: the environment, its tasks, and where tasks and demonstrations come from."""

from __future__ import annotations

from typing import Any, overload

from pydantic import Field, field_validator, model_validator

from skill_ttrl.config.section import Section

Paths = str | list[str]
"""A file, several that are read as one, `hf:owner/name` or `synthetic:name`."""


class NamedSource(Section):
    """Where tasks or demonstrations come from. A path alone is written in its place."""

    path: Paths
    """A JSON, JSONL or Parquet file, `hf:owner/name` (a Hugging Face data set) or `synthetic:name` (generated problems). A list of
    files is read as one, in this order."""
    split: str | None = None
    """Split of a data set or family; files have none."""

    @model_validator(mode="before")
    @classmethod
    def _path_alone(cls, given: Any) -> Any:
        return {"path": given} if isinstance(given, str | list) else given

    @field_validator("path")
    @classmethod
    def _only_files_together(cls, path: Paths) -> Paths:
        Source.model_validate({"path": path})
        return path[0] if isinstance(path, list) and len(path) == 1 else path


class SourceConfig(NamedSource):
    """Where tasks or demonstrations come from, and how many are used. A path alone is written in its place."""

    limit: int | None = Field(default=None, ge=1)
    """Use only this many, the first in file order or in a family's fixed order."""


class DemonstrationSource(SourceConfig):
    """Where demonstrations come from. A path alone is written in its place."""

    options: dict[str, Any] = Field(default_factory=dict)
    """Further arguments of a family, e.g. `noise`."""


class Source(Section):
    """All that is needed to read tasks or demonstrations: a section that names them, with `data`'s columns and revisions."""

    path: str
    """As in `NamedSource`; of several files the first."""
    more: list[str] = Field(default_factory=list)
    """The other files: those after the first in a list given as `path`."""
    split: str | None = None
    revision: str | None = None
    """Commit of a Hugging Face data set, or digest of files; None: what is there."""
    prompt_field: str = "prompt"
    answer_field: str = "answer"
    limit: int | None = Field(default=None, ge=1)
    options: dict[str, Any] = Field(default_factory=dict)

    @property
    def name(self) -> str:
        """Its path or paths, in one text."""
        return ", ".join([self.path, *self.more])

    @model_validator(mode="before")
    @classmethod
    def _several(cls, given: Any) -> Any:
        """Read a list of files as the first and the others."""
        path = given.get("path") if isinstance(given, dict) else None
        if not isinstance(path, list):
            return given
        if not path:
            raise ValueError("path must list at least one file")
        return {**given, "path": path[0], "more": path[1:]}

    @model_validator(mode="after")
    def _files(self) -> Source:
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
    prompt_field: str = "prompt"
    """Column with the problem. If left at its default, `question` and `problem` are tried too."""
    answer_field: str = "answer"
    """Column with the true answer. If left at its default, `solution` is tried too. Without such a column nothing is measured against
    labels."""
    revisions: dict[str, str] = Field(default_factory=dict)
    """Version of each source by its path: the commit of a Hugging Face data set, of a reward model or a critic; recorded when a run starts, of
    files and a skill document too."""
    max_prompt_tokens: int = Field(default=1024, ge=1)
    """Longest prompt in tokens (TTRL: 512 for AIME, 1024 for AMC). Tasks with a longer one are left out and counted."""

    @overload
    def source(self, given: NamedSource | Paths) -> Source: ...

    @overload
    def source(self, given: None) -> None: ...

    def source(self, given: NamedSource | Paths | None) -> Source | None:
        """All that is needed to read what a setting names; None where it names nothing."""
        if given is None:
            return None
        stated = given.model_dump() if isinstance(given, NamedSource) else {"path": given}
        found = Source.model_validate({**stated, "prompt_field": self.prompt_field, "answer_field": self.answer_field})
        found.revision = self.revisions.get(found.name)
        return found

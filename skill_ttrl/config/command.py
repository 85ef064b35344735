"""Section of a config: a command-line program that answers in the place of a model."""

from __future__ import annotations

import re
import shlex
from typing import Any

from pydantic import Field, field_validator

from skill_ttrl.config.section import Section
from skill_ttrl.errors import ConfigError


def split_command(line: str) -> list[str]:
    """A program and its arguments, as a shell would split them.

    Raises:
        ConfigError: a quote is not closed.
    """
    try:
        return shlex.split(line)
    except ValueError as error:
        raise ConfigError(f"{line!r} cannot be split into a program and its arguments: {error}.") from None


class CommandConfig(Section):
    """A program that reads a prompt on stdin and writes its answer on stdout (`rollout.backend: command`)."""

    argv: list[str]
    """The program and its arguments, as a list or as one text that is split like a shell command; no shell runs it. A relative path among
    the arguments (`agent.py`) starts from the current folder."""
    timeout: float = Field(default=120, gt=0)
    """Seconds for one answer. After that the program and its children are killed, and the rollout fails."""
    max_concurrency: int = Field(default=4, ge=1)
    """Most programs that run at once."""
    env: list[str] = Field(default_factory=list)
    """Names of environment variables to pass to the program, in addition to the usual ones (PATH, HOME, language and time zone). Never
    values."""
    cwd: str | None = None
    """Working directory of the program; None: an empty temporary one."""
    max_output_bytes: int = Field(default=1 << 20, ge=1)
    """Longest answer. A program that writes more is killed, and the rollout fails."""

    @field_validator("argv", mode="before")
    @classmethod
    def _split(cls, given: Any) -> Any:
        return split_command(given) if isinstance(given, str) else given

    @field_validator("argv")
    @classmethod
    def _names_a_program(cls, argv: list[str]) -> list[str]:
        if not argv or not argv[0] or any("\0" in each for each in argv):
            raise ValueError("argv names a program and its arguments, e.g. [my-agent, --print]")
        return argv

    @field_validator("env")
    @classmethod
    def _are_names(cls, names: list[str]) -> list[str]:
        for name in names:
            if not re.fullmatch(r"[A-Za-z_]\w*", name):
                raise ValueError(f"env holds names of variables, not values; found {name[:20]!r}")
        return names

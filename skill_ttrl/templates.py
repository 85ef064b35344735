"""Texts that prompts are made of: Markdown files, each replaceable by one of the same name in a folder of the user's.

A set is a folder of `skill_ttrl/prompts` (`tiny`, short texts for the built-in policy) or one of the user's; what it does
not have is taken from the default files. In a template `$name` marks a place and `$$` a dollar sign; a line whose only
places are all empty is left out.
"""

from __future__ import annotations

import importlib.resources
from collections.abc import Mapping
from importlib.resources.abc import Traversable
from pathlib import Path
from string import Template

from skill_ttrl.errors import ConfigError, did_you_mean

PLACES: Mapping[str, frozenset[str]] = {
    "skill": frozenset({"id", "title", "text", "when_to_apply", "tier"}),
    "skills": frozenset({"skills", "question"}),
    "skills_cold": frozenset({"question"}),
    "retrieved": frozenset({"skills"}),
    "nothing_found": frozenset(),
    "agent_task": frozenset({"task", "state", "actions"}),
    "merge": frozenset({"most", "title_chars", "text_chars"}),
    "merge_request": frozenset({"skills", "proposals"}),
    "extract": frozenset({"title_chars", "text_chars"}),
    "extract_request": frozenset({"problem", "winners", "losers"}),
}
"""The templates that are used by name, and the places each may have; any other is one for questions."""
REQUIRED: Mapping[str, frozenset[str]] = {
    "skill": frozenset({"text"}),
    "skills": frozenset({"skills", "question"}),
    "skills_cold": frozenset({"question"}),
    "retrieved": frozenset({"skills"}),
    "agent_task": frozenset({"task"}),
    "merge": frozenset(),
    "merge_request": frozenset({"skills", "proposals"}),
    "extract": frozenset(),
    "extract_request": frozenset({"problem", "winners"}),
}
QUESTION = frozenset({"question"})


class Templates:
    """Templates by name.

    Args:
        prompts: name of a shipped set, or a folder of the user's; None: the default files.

    Raises:
        ConfigError: no such set or folder.
    """

    def __init__(self, prompts: str | None = None) -> None:
        shipped = importlib.resources.files("skill_ttrl").joinpath("prompts")
        self._folders: list[Traversable] = [shipped]
        if prompts is not None:
            own = Path(prompts) if "/" in prompts or Path(prompts).is_dir() else shipped.joinpath(prompts)
            if not own.is_dir():
                sets = [entry.name for entry in shipped.iterdir() if entry.is_dir()]
                raise ConfigError(
                    f"Unknown prompt set {prompts!r}.{did_you_mean(prompts, sets)} A folder is given by its path."
                )
            self._folders.insert(0, own)
        self._read: dict[str, Template] = {}

    def names(self) -> list[str]:
        """Names of all templates that can be used."""
        found = {entry.name for folder in self._folders for entry in folder.iterdir()}
        return sorted(name.removesuffix(".md") for name in found if name.endswith(".md"))

    def render(self, name: str, **values: str) -> str:
        """The template's text with `values` in their places. They are inserted as they are: a `$` in them means nothing."""
        template = self.get(name)
        lines = template.template.split("\n")
        kept = [line for line in lines if not _is_empty(line, values)]
        return Template("\n".join(kept)).substitute(values)

    def get(self, name: str) -> Template:
        """A template by name or by the path of a Markdown file; without its final newline.

        Raises:
            ConfigError: there is none, it cannot be read, or its places are not those it must have.
        """
        if name not in self._read:
            self._read[name] = self._load(name)
        return self._read[name]

    def _load(self, name: str) -> Template:
        if "/" in name or name.endswith(".md"):
            source: Traversable = Path(name)
        else:
            found = [folder.joinpath(f"{name}.md") for folder in self._folders]
            existing = [path for path in found if path.is_file()]
            if not existing:
                known = [known for known in self.names() if known not in PLACES]
                raise ConfigError(
                    f"Unknown prompt template {name!r}.{did_you_mean(name, known)} A file is given by its path."
                )
            source = existing[0]
        try:
            text = source.read_text(encoding="utf-8").removesuffix("\n")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"Cannot read the prompt template {source}: {error}.") from None
        template = Template(text)
        places = set(template.get_identifiers()) if template.is_valid() else {"an invalid $"}
        allowed, required = (
            PLACES.get(name, QUESTION),
            REQUIRED.get(name, QUESTION if name not in PLACES else frozenset()),
        )
        if not required <= places <= allowed:
            raise ConfigError(
                f"Prompt template {name!r} ({source}) must hold {_listed(required)} and may hold {_listed(allowed)}; "
                f"found {_listed(places)}. $$ writes a dollar sign."
            )
        return template


def _is_empty(line: str, values: Mapping[str, str]) -> bool:
    places = Template(line).get_identifiers()
    return bool(places) and all(values.get(place) == "" for place in places)


def _listed(names: frozenset[str] | set[str]) -> str:
    return ", ".join(f"${name}" for name in sorted(names)) or "no place"

"""Texts that prompts are made of: Markdown files, each replaceable by one of the same name in a folder of the user's.

A set is a folder of `skill_ttrl/prompts` (`tiny`, short texts for the built-in policy) or one of the user's; what it does
not have is taken from the default files. In a template `$name` marks a place and `$$` a dollar sign. A line whose only
places are all empty is left out, and so is a paragraph, with its heading and the blank line behind it.

A skill document is one Markdown text of rules and advice, the same in every prompt of an agent. It stands as it is: unlike a skill it
may name our tags ("write the answer between <answer> tags"), which mean nothing where a prompt has them, and control tokens that it
spells stay text when it is tokenised.
"""

from __future__ import annotations

import hashlib
import importlib.resources
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources.abc import Traversable
from pathlib import Path
from string import Template

from skill_ttrl.errors import ConfigError, DocumentError, did_you_mean
from skill_ttrl.types import Message

PARTS: Mapping[str, str] = {
    "skill": "text",
    "skills": "skills question",
    "skills_empty": "question",
    "retrieved": "skills",
    "agent_task": "task",
    "history": "turns",
    "thought_request": "shown done",
    "tools": "tools",
    "numbered": "number action",
    "turn": "action",
    "experience": "general task mistakes",
    "experience_skill": "text",
    "experience_mistake": "text",
    "merge_request": "skills proposals",
    "distill_task": "task_type",
    "distill_request": "episodes",
    "evolve_request": "skills episodes",
    "analyst_request": "document rollouts",
    "merge_patches_request": "patches",
    "merge_final_request": "patches",
    "ranking_request": "edits budget",
    "slow_update_request": "document comparison",
    **dict.fromkeys(
        "no_results thought refused skill_ops merge distill_general distill_mistake evolve analyst_error analyst_success "
        "merge_failure merge_success merge_final ranking slow_update".split(),
        "",
    ),
}
"""Templates that are used by name, and the places that each must have; any other is a template of questions. It may have the places
of the shipped text (`places_of`)."""
QUESTION = frozenset({"question"})
TURNS = ("alfworld", "episode", "webshop")
"""Shipped templates of a prompt that is made anew at each turn of an episode (`agent.context_mode: window`)."""
PLACES_OF_A_TURN = frozenset({"task", "experience", "history", "observation", "actions", "step", "skill_ops"})
"""Places of such a template."""
REQUIRED_IN_A_TURN = frozenset({"observation"})


class Templates:
    """Templates by name, of a shipped set or a folder of the user's (`prompts`); None: of the default files.

    Args:
        prompts: a set, or a folder of the user's.
        base: a shipped set that is searched behind it, before the default files.
        overrides: texts by name, in place of any file.

    Raises:
        ConfigError: no such set or folder, or a text for a name that is none.
    """

    def __init__(
        self, prompts: str | None = None, *, base: str | None = None, overrides: Mapping[str, str] | None = None
    ) -> None:
        shipped = importlib.resources.files("skill_ttrl").joinpath("prompts")
        self._folders: list[Traversable] = [shipped] if base is None else [shipped.joinpath(base), shipped]
        if prompts is not None:
            own = Path(prompts) if "/" in prompts or Path(prompts).is_dir() else shipped.joinpath(prompts)
            if not own.is_dir():
                sets = [entry.name for entry in shipped.iterdir() if entry.is_dir() and entry.name != "__pycache__"]
                raise ConfigError(
                    f"Unknown prompt set {prompts!r}.{did_you_mean(prompts, sets)} A folder is given by its path."
                )
            self._folders.insert(0, own)
        self._read: dict[str, Template] = {}
        known = [name for name in PARTS if base is None or shipped.joinpath(base, f"{name}.md").is_file()]
        for name, text in (overrides or {}).items():
            if name not in known:
                raise ConfigError(f"Unknown prompt {name!r}.{did_you_mean(name, known)}")
            self._read[name] = _template(name, text, "its override")

    def names(self) -> list[str]:
        """Names of all templates that can be used."""
        found = {entry.name for folder in self._folders for entry in folder.iterdir()}
        return sorted(name.removesuffix(".md") for name in found if name.endswith(".md"))

    def render(self, name: str, **values: str) -> str:
        """The template's text with `values` in their places. They are inserted as they are: a `$` in them means nothing."""
        empty = {place for place, value in values.items() if value == ""}

        def left(parts: list[str]) -> list[str]:  # a part without places always stays
            return [part for part in parts if _places(part) - empty or not _places(part)]

        paragraphs = left(self.get(name).template.split("\n\n"))
        text = "\n\n".join("\n".join(left(paragraph.split("\n"))) for paragraph in paragraphs)
        return Template(text).substitute(values)

    def get(self, name: str, *, of_a_turn: bool = False) -> Template:
        """A template by name or by the path of a Markdown file; without its final newline.

        With `of_a_turn` it is one of `agent.context_mode: window`, with places of its own.

        Raises:
            ConfigError: there is none, it cannot be read, or its places are not those it must have.
        """
        if name not in self._read:
            self._read[name] = self._load(name, of_a_turn)
        return self._read[name]

    def _load(self, name: str, of_a_turn: bool) -> Template:
        if "/" in name or name.endswith(".md"):
            source: Traversable = Path(name)
        else:
            found = [folder.joinpath(f"{name}.md") for folder in self._folders]
            existing = [path for path in found if path.is_file()]
            if not existing:
                known = [each for each in self.names() if each not in PARTS and (each in TURNS) <= of_a_turn]
                raise ConfigError(
                    f"Unknown prompt template {name!r}.{did_you_mean(name, known)} A file is given by its path."
                )
            source = existing[0]
        try:
            text = source.read_text(encoding="utf-8").removesuffix("\n")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"Cannot read the prompt template {source}: {error}.") from None
        return _template(name, text, str(source), of_a_turn)


@cache
def places_of(name: str) -> frozenset[str]:
    """The places that a template of `PARTS` may have: those of the shipped text, and a skill's tier."""
    shipped = importlib.resources.files("skill_ttrl").joinpath("prompts")
    found = (shipped.joinpath(folder, f"{name}.md") for folder in ("", "optimize"))
    text = next(path for path in found if path.is_file()).read_text(encoding="utf-8")
    return frozenset(Template(text).get_identifiers()) | ({"tier"} if name == "skill" else set())


def _template(name: str, text: str, source: str, of_a_turn: bool = False) -> Template:
    allowed, required = (PLACES_OF_A_TURN, REQUIRED_IN_A_TURN) if of_a_turn else (QUESTION, QUESTION)
    if name in PARTS and not of_a_turn:
        allowed, required = places_of(name), frozenset(PARTS[name].split())
    template = Template(text)
    places = set(template.get_identifiers()) if template.is_valid() else {"an invalid $"}
    if not required <= places <= allowed:
        raise ConfigError(
            f"The prompt template {source} must hold {_listed(required)} where its text goes, and nothing but {_listed(allowed)}; found "
            f"{_listed(places)}. $$ writes a dollar sign."
        )
    return template


@cache
def _places(text: str) -> frozenset[str]:
    return frozenset(Template(text).get_identifiers())


def _listed(names: frozenset[str] | set[str]) -> str:
    return ", ".join(f"${name}" for name in sorted(names)) or "no place"


MAX_BYTES = 1 << 20
"""Largest file that is read as a document."""


def with_document(messages: Sequence[Message], document: str) -> tuple[Message, ...]:
    """The conversation with the document behind its system message, or as one; an empty document changes nothing."""
    if not document.strip():
        return tuple(messages)
    first, *rest = messages
    if first.role != "system":
        return Message("system", document), *messages
    return Message("system", f"{first.content}\n\n{document}"), *rest


def read_document(path: str | Path | None) -> str:
    """The text of a document's file; empty without one.

    Raises:
        DocumentError: there is no such file, or it is too large or no UTF-8 text.
    """
    if path is None:
        return ""
    file = Path(path)
    try:
        if file.stat().st_size > MAX_BYTES:
            raise DocumentError(f"agent.document: {file} is larger than {MAX_BYTES:,} bytes, too large for a prompt.")
        text = file.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise DocumentError(f"agent.document: cannot read {file}: {error.strerror or error}.") from None
    except UnicodeDecodeError as error:
        raise DocumentError(
            f"agent.document: {file} is not UTF-8 text (byte {error.start}). Save it as UTF-8."
        ) from None
    return text.replace("\r\n", "\n")


def document_revision(path: str, pinned: str | None = None) -> str:
    """A digest of a document's text.

    Raises:
        DocumentError: it cannot be read, or is not the one that `pinned` is of.
    """
    found = f"sha256:{hashlib.sha256(read_document(path).encode()).hexdigest()}"
    if pinned not in (None, found):
        raise DocumentError(
            f"agent.document: {path} has changed: its digest is {found[:19]}…, and {str(pinned)[:19]}… was pinned. Restore the text, or "
            "remove it from data.revisions to continue with the new one."
        )
    return found

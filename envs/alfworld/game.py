"""A game file (`game.tw-pddl`) and what it holds; every fault of it is named with its path."""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from skill_ttrl.envs.alfworld.world import World, build_world, is_text, read_grammar, read_problem
from skill_ttrl.errors import EnvError

GAME_FILE = "game.tw-pddl"
JSON_FOLDER = "json_2.1.1"
"""Folder of the official release that holds one for each split; generated games are laid out alike."""
SPLITS = ("train", "valid_seen", "valid_unseen")
GENERATED_FILE = "generated.json"
"""File next to `JSON_FOLDER` if this package generated the games: it records which games, and with which seed."""
OFFICIAL, GENERATED = "alfworld-official", "alfworld-generated"
"""Where games come from; every result names it."""
TASK_TYPES = (
    "pick_and_place_simple",
    "look_at_obj_in_light",
    "pick_clean_then_place_in_recep",
    "pick_heat_then_place_in_recep",
    "pick_cool_then_place_in_recep",
    "pick_two_obj_and_place",
)
"""In ALFWorld's own order (its numbers 1 to 6)."""
KEPT_WORLDS = 512
"""Games that are held in memory, the least recently used leave; about 0.2 MB each."""
DOMAINS = ("6ac36c7c5a294baf", "4de9bfc0fd89adc3")
"""Hashes of `alfred.pddl` without comments and white space, in the released games and in the package alfworld: what the engine
simulates. The second does not name `SinkType` as a place to clean at; no receptacle is of that type.
"""
_FIELDS: Mapping[str, type | tuple[type, ...]] = {
    "pddl_domain": str,
    "grammar": str,
    "pddl_problem": str,
    "walkthrough": (list, type(None)),
}
_COMMENT = re.compile(r";[^\n]*")
_SPACE = re.compile(r"\s+")


@dataclass(frozen=True, slots=True)
class Game:
    """One game of a collection."""

    id: str
    """`split/task folder/trial folder`: what `options={"task": id}` takes. Unique, and stable between machines."""
    path: Path
    """Of its `game.tw-pddl`."""
    source: str
    """`alfworld-official` or `alfworld-generated`."""
    task_type: str
    """One of `TASK_TYPES`."""

    @property
    def split(self) -> str:
        """`train`, `valid_seen` or `valid_unseen`."""
        return self.id.partition("/")[0]


@dataclass(frozen=True, slots=True)
class Loaded:
    """A game's content, ready to be played."""

    world: World
    walkthrough: tuple[str, ...]
    """Commands that win it. They know where hidden things are: to replay, not to learn from."""


def task_in_words(introduction: str) -> str:
    """Extract the task ("put a clean mug in cabinet.") from the first text of a game, which ends with it."""
    sentence = introduction.rpartition("\n\n")[2]
    return sentence.partition("Your task is to: ")[2] or sentence


def read_game_file(path: Path) -> dict[str, Any]:
    """The JSON of a game file.

    Raises:
        EnvError: there is none, it is cut off, or a field is missing; the message names the path.
    """
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise EnvError(f"There is no game {path}.") from None
    except (OSError, ValueError, RecursionError) as error:  # ValueError: no UTF-8, or no JSON
        raise EnvError(
            f"The game {path} cannot be read: {error}. It may be truncated; copy or unpack it again."
        ) from None
    if not isinstance(content, dict):
        raise EnvError(f"The game {path} is not a JSON object.")
    for name, kind in _FIELDS.items():
        value = content.get(name)
        if not isinstance(value, kind):
            raise EnvError(f"The game {path} has no {name!r}.")
        if isinstance(value, str) and not is_text(value):
            raise EnvError(f"The game {path} is not Unicode text in {name!r}.")
    return content


def read_content(path: Path, content: Mapping[str, Any]) -> Loaded:
    """A game from what `read_game_file` gives; messages name the path of the file.

    Raises:
        EnvError: it is of another domain or grammar, or a part is cut off.
    """
    try:
        found = domain_hash(content["pddl_domain"])
        if found not in DOMAINS:
            raise EnvError(f"its domain is not ALFWorld's alfred.pddl ({found}, not {' or '.join(DOMAINS)})")
        texts, task = read_grammar(content["grammar"])
        world = build_world(read_problem(content["pddl_problem"]), texts, task)
    except EnvError as error:
        raise EnvError(f"The game {path} cannot be played: {error}.") from None
    return Loaded(world, walkthrough_of(content))


def walkthrough_of(content: Mapping[str, Any]) -> tuple[str, ...]:
    """The commands that win a game, from the JSON of its file; none where it has none."""
    return tuple(str(command) for command in content["walkthrough"] or ())


def load_game(path: Path) -> Loaded:
    """Read a game; one that was read before and has not changed since is taken from memory.

    Raises:
        EnvError: it cannot be read, or is of another domain or grammar; the message names the path.
    """
    try:
        stat = path.stat()
    except OSError:
        raise EnvError(f"There is no game {path}.") from None
    return _load(path, stat.st_mtime_ns, stat.st_size)


@functools.lru_cache(maxsize=KEPT_WORLDS)
def _load(path: Path, changed: int, size: int) -> Loaded:
    return read_content(path, read_game_file(path))


@functools.lru_cache(maxsize=8)
def domain_hash(text: str) -> str:
    """A hash of a PDDL domain that comments, case and white space do not change."""
    bare = _SPACE.sub(" ", _COMMENT.sub("", text)).strip().lower()
    return hashlib.blake2b(bare.encode(), digest_size=8).hexdigest()

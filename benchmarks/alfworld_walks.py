"""Fixed walks through a game and one short hash per frame: how two engines are held against each other.

A walk chooses its commands from the game's name, its own name and the admissible commands that it is shown, so an engine
that shows anything else goes another way from there on and cannot meet the recorded hashes again.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from skill_ttrl.envs.alfworld.engine import MAX_STEPS, Frame

DIGEST_BYTES = 6
WALKS = ("walkthrough", "random-1", "random-2", "random-3", "nonsense")
"""The recorded walks of a game: its solution; uniformly over the admissible commands; twice uniformly over the verbs first,
which changes more of the world; and commands that mostly mean nothing."""

_NONSENSE = (
    "", "   ", "dance", "go to", "go to nowhere 1", "take", "look around", "inventory please", "Look", "HELP", "help me",
    "open", "{o.name}", "#look.feedback#", "take {o} from {r}", "go to agent1", "examine agent1", "use", "0", "😀",
    "go to fridge 1; open fridge 1", "go to fridge 1\nopen fridge 1", "look\x00", "x" * 2000,
)  # fmt: skip


class Engine(Protocol):
    """One game being played: ours, or the official one."""

    def reset(self) -> Frame:
        """The game from its start."""
        ...

    def step(self, command: str) -> Frame:
        """One command."""
        ...


def walk(engine: Engine, game: str, name: str, walkthrough: Sequence[str]) -> Iterator[tuple[str, Frame]]:
    """Every (command, frame) of one walk, the start with an empty command first.

    Args:
        engine: of the game; it is reset.
        game: the game's name, part of the walk's seed.
        name: one of `WALKS`.
        walkthrough: the game's solution.
    """
    frame = engine.reset()
    yield "", frame
    if name == "walkthrough":
        for command in walkthrough:
            yield command, engine.step(command)
        return
    choose = _CHOICES[name]
    rng = random.Random(f"{game} {name}")
    seen: list[str] = []
    for _ in range(MAX_STEPS):
        seen.extend(command for command in frame.commands if command not in seen)
        command = choose(rng, frame.commands, seen)
        frame = engine.step(command)
        yield command, frame


def digest(frame: Frame) -> str:
    """Twelve hexadecimal digits for the feedback, the admissible commands in their order, and `won`."""
    text = json.dumps([frame.feedback, frame.commands, frame.won])
    return hashlib.blake2b(text.encode(), digest_size=DIGEST_BYTES).hexdigest()


def _uniform(rng: random.Random, commands: Sequence[str], seen: Sequence[str]) -> str:
    return rng.choice(commands)


def _by_verb(rng: random.Random, commands: Sequence[str], seen: Sequence[str]) -> str:
    verb = rng.choice(sorted({command.partition(" ")[0] for command in commands}))
    return rng.choice([command for command in commands if command.partition(" ")[0] == verb])


def _nonsense(rng: random.Random, commands: Sequence[str], seen: Sequence[str]) -> str:
    known = _by_verb(rng, commands, seen)
    kind = rng.randrange(12)
    if kind < 4:
        return known
    if kind == 4:
        return rng.choice(_NONSENSE)
    if kind == 5:
        return rng.choice(seen)  # was admissible somewhere, perhaps no longer
    return _MANGLED[kind - 6](known)


def _other_number(command: str) -> str:
    head, _, number = command.rpartition(" ")
    return f"{head} {int(number) + 1}" if number.isdecimal() else f"{command} 1"


_MANGLED: tuple[Callable[[str], str], ...] = (
    str.upper,
    str.title,
    lambda command: f"  {command}\t\n",  # white space around a command means nothing
    lambda command: command.replace(" ", "  ", 1),
    _other_number,
    lambda command: command.replace("move ", "put ").replace(" to ", " in/on "),  # the grammar before December 2024
)

_CHOICES: dict[str, Callable[[random.Random, Sequence[str], Sequence[str]], str]] = {
    "random-1": _uniform,
    "random-2": _by_verb,
    "random-3": _by_verb,
    "nonsense": _nonsense,
}

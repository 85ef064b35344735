"""Output of an engine: one frame after `reset` and after every step."""

from __future__ import annotations

from typing import NamedTuple, Protocol

MAX_STEPS = 50
"""An episode's steps in ALFWorld's own configuration (`max_nb_steps_per_episode`)."""


class Frame(NamedTuple):
    """Engine output that a player sees."""

    feedback: str
    """The engine's answer to the last command; at the start the introduction with the task."""
    commands: tuple[str, ...]
    """Every command that does something now, sorted; the engine knows no other."""
    won: bool
    """True if the goal holds now. It may cease to hold: the engine continues."""


class Engine(Protocol):
    """One game being played. Both engines give the same frames for the same commands."""

    def reset(self) -> Frame:
        """The game from its start."""
        ...

    def step(self, command: str) -> Frame:
        """Any text is a command; surrounding white space is dropped, and one that is not admissible changes nothing."""
        ...

    def state(self) -> str:
        """Digest of the exact state (`state_digest`): where the agent stands, and which facts have changed since the start."""
        ...

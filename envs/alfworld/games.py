"""Collections of games: where they are, which there are in a split, in a fixed order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from skill_ttrl.envs.alfworld.game import Game

SPLITS = ("train", "valid_seen", "valid_unseen")


class GameList:
    """The games of one split, sorted by id, with what was left out."""

    def __len__(self) -> int:
        raise NotImplementedError

    def __getitem__(self, number: int) -> Game:
        raise NotImplementedError

    def __iter__(self) -> Iterator[Game]:
        raise NotImplementedError

    def of(self, split: str) -> GameList:
        """The games of another split of the same data, under the same choice of task types."""
        raise NotImplementedError

    def find(self, name: object) -> Game:
        """The game with this id, of any split of the same data."""
        raise NotImplementedError


def open_games(
    data: str | Path | None, split: str, *, task_types: Sequence[str] | None = None, strict: bool = False
) -> GameList:
    """The games of a split."""
    raise NotImplementedError

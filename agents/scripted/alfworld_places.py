"""Where things are in ALFWorld's rooms, as anyone knows who has seen some: mugs by the coffee machine, pillows on the bed.

Counted once over the 3,553 games of the split `train`, never over a validation game, by
`python benchmarks/alfworld_expert.py places`, which prints `alfworld_places.txt`.
"""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

OPENABLE = frozenset({"cabinet", "drawer", "fridge", "microwave", "safe"})
"""Kinds of receptacle that are closed at first, but for a few: it takes a second step to look into them."""
RARE = 0.005
"""Chance of what the table does not name: half a per cent, below which nothing is written there."""

TABLE = Path(__file__).with_suffix(".txt").read_text(encoding="utf-8")
"""Thing: receptacles, each with how many in a hundred of its kind hold such a thing, in rooms that have one."""


def read_table(text: str) -> dict[str, dict[str, float]]:
    """Thing → receptacle → chance in [0, 1]."""
    rows = (line.split(": ") for line in text.splitlines())
    return {
        thing: {place: int(share) / 100 for place, share in map(str.split, places.split(", "))}
        for thing, places in rows
    }


_ROWS = read_table(TABLE)
_ANY = {place: fmean(row.get(place, 0.0) for row in _ROWS.values()) for place in set().union(*_ROWS.values())}
"""Receptacle → chance of a thing of which nothing is known: the mean over all that are known."""


def chance(thing: str, place: str) -> float:
    """How likely one receptacle of a kind holds a thing of a kind.

    Args:
        thing: its kind, such as "mug". Any other text is a thing of which nothing is known.
        place: the receptacle's kind, such as "coffeemachine".

    Returns:
        In (0, 1], at least `RARE`.
    """
    return max(_ROWS.get(thing, _ANY).get(place, RARE), RARE)

"""Hand-written scenes of household tasks: what a player reads, what it can do, and what one who knows the game does.

`tests/data/alfworld_scenes.json` has them by what they show: (what is read, the commands beside `ALWAYS` with ";" between them, what
the expert does then).
"""

from __future__ import annotations

import json
from pathlib import Path

ALWAYS = ("help", "inventory", "look")
SCRIPTS: dict[str, list[tuple[str, str, str]]] = {
    name: [(seen, listed, done) for seen, listed, done in scenes]
    for name, scenes in json.loads((Path(__file__).parent / "data" / "alfworld_scenes.json").read_text("utf-8")).items()
}
PLACE, TWO = SCRIPTS["place"], SCRIPTS["two"]


def commands(listed: str) -> list[str]:
    """All commands of a scene, sorted as an engine lists them."""
    return sorted([*ALWAYS, *listed.split("; ")])

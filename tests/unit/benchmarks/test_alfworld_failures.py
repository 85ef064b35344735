"""Lost games fall into the class that their texts show."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

START = (
    "-= Welcome to TextWorld, ALFRED! =-\n\nYou are in the middle of a room. Looking quickly around you, you see a desk 1, a drawer 1, a "
    "shelf 1, and a safe 1.\n\nYour task is to: {}"
)
FAIL = "Nothing happens."
DESK = "You arrive at desk 1. On the desk 1, you see a desklamp 1, and a pen 1."
SHELF = "You arrive at shelf 1. On the shelf 1, you see a mug 2, and a book 1."
SAFE = "You arrive at safe 1. The safe 1 is closed."


@pytest.fixture
def failures(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "benchmarks"))
    return import_module("alfworld_failures")


def game(goal: str, *turns: tuple[str, str], won: bool = False) -> dict[str, Any]:
    seen = [START.format(goal), *(said for _, said in turns)]
    steps = [
        {"observation": before, "action": command, "info": {"won": False}}
        for (command, _), before in zip(turns, seen, strict=False)
    ]
    steps[-1]["info"] = {"won": won}
    return {
        "task": {"id": "t", "task_type": "type"},
        "goal": goal,
        "steps": steps,
        "final_obs": seen[-1],
        "error": None,
    }


MUG, LIGHT = "put a mug in safe.", "look at book under the desklamp."
GAMES = [
    ("absent receptacle", "never in view", game(MUG, ("go to desk 1", DESK), *[("go to fridge 1", FAIL)] * 5)),
    (
        "wrong object",
        "in view before",
        game(MUG, ("go to shelf 1", SHELF), ("take book 1 from shelf 1", "You pick up the book 1.")),
    ),
    (
        "loop",
        "never in view",
        game(MUG, ("go to desk 1", DESK), *[("go to drawer 1", FAIL), ("go to desk 1", DESK)] * 5),
    ),
    ("never found", "never in view", game(MUG, ("go to desk 1", DESK), ("go to safe 1", SAFE))),
    ("forgot", "in view before", game(MUG, ("go to shelf 1", SHELF), ("go to desk 1", DESK))),
    (
        "step limit",
        "in hand",
        game(
            MUG, ("go to shelf 1", SHELF), ("take mug 2 from shelf 1", "You pick up the mug 2."), ("go to safe 1", SAFE)
        ),
    ),
    (
        "forgot",
        "in view before",
        game(
            LIGHT,
            ("go to desk 1", DESK),
            ("go to shelf 1", SHELF),
            ("take book 1 from shelf 1", "You pick up the book 1."),
        ),
    ),
]


@pytest.mark.parametrize(("name", "missing", "trajectory"), GAMES)
def test_a_lost_game_has_the_class_that_its_texts_show(
    name: str, missing: str, trajectory: dict[str, Any], failures: Any
) -> None:
    found = failures.classify(trajectory)
    assert (found.name, found.missing) == (name, missing)
    assert found.goal in failures.story(found)


def test_only_lost_games_are_counted(failures: Any) -> None:
    every = [trajectory for *_, trajectory in GAMES]
    found = list(failures.losses([*every, game(MUG, ("go to safe 1", SAFE), won=True)]))
    assert len(found) == len(GAMES)
    lines = failures.table(found, {"type": len(GAMES) + 1}).splitlines()
    assert lines[-1].startswith("| all | 7 | 7 of 8 |")
    assert [line.split(" | ")[0].strip("| ") for line in lines[2:-1]] == [
        name for name in failures.CLASSES if name != "failed"
    ]


def test_what_was_moved_away_is_no_longer_where_it_was(failures: Any) -> None:
    play = failures.Play({"desk 1", "shelf 1"})
    assert play.take("go to shelf 1", SHELF) and play.seen == {"mug 2": "shelf 1", "book 1": "shelf 1"}
    assert not play.take("go to shelf 1", FAIL) and play.useless == 1
    assert play.take("take mug 2 from shelf 1", "You pick up the mug 2.") and "mug 2" not in play.seen
    play.take("go to desk 1", DESK)
    assert play.take("move mug 2 to desk 1", "You move the mug 2.") and play.seen["mug 2"] == "desk 1"
    assert not play.take(
        "go to desk 1", "You arrive at desk 1. On the desk 1, you see a desklamp 1, a mug 2, and a pen 1."
    )

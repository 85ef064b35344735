"""Hand-written scenes of household tasks: what a player reads, what it can do, and what one who knows the game does."""

from __future__ import annotations

from collections.abc import Sequence

ALWAYS = ("help", "inventory", "look")
Scene = tuple[str, str, str]
"""What is read, which commands there are beside `ALWAYS` (";" between them), and what the expert does then."""

PLACE: Sequence[Scene] = [
    (
        "You are in the middle of a room. Looking quickly around you, you see a bed 1, a drawer 1, and a shelf 1.\n\n"
        "Your task is to: put some book on shelf.",
        "go to bed 1; go to drawer 1; go to shelf 1",
        "go to bed 1",
    ),
    (
        "You arrive at bed 1. On the bed 1, you see a pillow 1.",
        "examine bed 1; go to drawer 1; go to shelf 1; take pillow 1 from bed 1",
        "go to drawer 1",
    ),
    ("The drawer 1 is closed.", "examine drawer 1; go to bed 1; go to shelf 1; open drawer 1", "open drawer 1"),
    (
        "You open the drawer 1. The drawer 1 is open. In it, you see a book 2.",
        "close drawer 1; examine drawer 1; go to bed 1; go to shelf 1; take book 2 from drawer 1",
        "take book 2 from drawer 1",
    ),
    (
        "You pick up the book 2 from the drawer 1.",
        "close drawer 1; examine book 2; examine drawer 1; go to bed 1; go to shelf 1; move book 2 to drawer 1",
        "go to shelf 1",
    ),
    (
        "You arrive at shelf 1. On the shelf 1, you see nothing.",
        "examine book 2; examine shelf 1; go to bed 1; go to drawer 1; move book 2 to shelf 1",
        "move book 2 to shelf 1",
    ),
]
HEAT: Sequence[Scene] = [
    (
        "Your task is to: put a hot mug in cabinet.",
        "go to cabinet 1; go to coffeemachine 1; go to microwave 1",
        "go to coffeemachine 1",
    ),
    (
        "On the coffeemachine 1, you see a cup 1, and a mug 3.",
        "examine coffeemachine 1; go to cabinet 1; go to microwave 1; take cup 1 from coffeemachine 1; "
        "take mug 3 from coffeemachine 1",
        "take mug 3 from coffeemachine 1",
    ),
    (
        "You pick up the mug 3.",
        "examine coffeemachine 1; examine mug 3; go to cabinet 1; go to microwave 1; move mug 3 to coffeemachine 1",
        "go to microwave 1",
    ),
    (
        "The microwave 1 is closed.",
        "examine microwave 1; examine mug 3; go to cabinet 1; go to coffeemachine 1; heat mug 3 with microwave 1; "
        "open microwave 1",
        "heat mug 3 with microwave 1",
    ),
    (
        "You heat the mug 3 using the microwave 1.",
        "examine microwave 1; examine mug 3; go to cabinet 1; go to coffeemachine 1; heat mug 3 with microwave 1; "
        "open microwave 1",
        "go to cabinet 1",
    ),
    (
        "The cabinet 1 is closed.",
        "examine cabinet 1; examine mug 3; go to coffeemachine 1; go to microwave 1; open cabinet 1",
        "open cabinet 1",
    ),
    (
        "The cabinet 1 is open.",
        "close cabinet 1; examine cabinet 1; examine mug 3; go to coffeemachine 1; go to microwave 1; move mug 3 to cabinet 1",
        "move mug 3 to cabinet 1",
    ),
]
CLEAN: Sequence[Scene] = [
    ("Your task is to: clean some cloth and put it in toilet.", "go to sinkbasin 1; go to toilet 1", "go to toilet 1"),
    (
        "a cloth that lies where it belongs, but is not clean",
        "examine toilet 1; go to sinkbasin 1; take cloth 1 from toilet 1",
        "take cloth 1 from toilet 1",
    ),
    ("", "examine cloth 1; examine toilet 1; go to sinkbasin 1; move cloth 1 to toilet 1", "go to sinkbasin 1"),
    (
        "",
        "clean cloth 1 with sinkbasin 1; examine cloth 1; examine sinkbasin 1; go to toilet 1; move cloth 1 to sinkbasin 1",
        "clean cloth 1 with sinkbasin 1",
    ),
    (
        "",
        "clean cloth 1 with sinkbasin 1; examine cloth 1; examine sinkbasin 1; go to toilet 1; move cloth 1 to sinkbasin 1",
        "go to toilet 1",
    ),
    ("", "examine cloth 1; examine toilet 1; go to sinkbasin 1; move cloth 1 to toilet 1", "move cloth 1 to toilet 1"),
]
COOL: Sequence[Scene] = [
    (
        "Your task is to: cool some pan and put it in stoveburner.",
        "go to fridge 1; go to stoveburner 1",
        "go to stoveburner 1",
    ),
    ("", "examine stoveburner 1; go to fridge 1; take pan 1 from stoveburner 1", "take pan 1 from stoveburner 1"),
    ("", "examine pan 1; examine stoveburner 1; go to fridge 1; move pan 1 to stoveburner 1", "go to fridge 1"),
    (
        "",
        "cool pan 1 with fridge 1; examine fridge 1; examine pan 1; go to stoveburner 1; open fridge 1",
        "cool pan 1 with fridge 1",
    ),
    (
        "",
        "cool pan 1 with fridge 1; examine fridge 1; examine pan 1; go to stoveburner 1; open fridge 1",
        "go to stoveburner 1",
    ),
    (
        "",
        "examine pan 1; examine stoveburner 1; go to fridge 1; move pan 1 to stoveburner 1",
        "move pan 1 to stoveburner 1",
    ),
]
TWO: Sequence[Scene] = [
    (
        "Your task is to: find two pen and put them in drawer.",
        "go to desk 1; go to drawer 1; go to drawer 2; go to shelf 1",
        "go to desk 1",
    ),
    (
        "both are here, and one fits the hand",
        "examine desk 1; go to drawer 1; go to drawer 2; go to shelf 1; take pen 1 from desk 1; take pen 2 from desk 1",
        "take pen 1 from desk 1",
    ),
    (
        "",
        "examine desk 1; examine pen 1; go to drawer 1; go to drawer 2; go to shelf 1; move pen 1 to desk 1",
        "go to drawer 1",
    ),
    (
        "",
        "examine drawer 1; examine pen 1; go to desk 1; go to drawer 2; go to shelf 1; open drawer 1",
        "open drawer 1",
    ),
    (
        "",
        "close drawer 1; examine drawer 1; examine pen 1; go to desk 1; go to drawer 2; go to shelf 1; move pen 1 to drawer 1",
        "move pen 1 to drawer 1",
    ),
    (
        "the one that is brought stays, the other was seen on the desk",
        "close drawer 1; examine drawer 1; go to desk 1; go to drawer 2; go to shelf 1; take pen 1 from drawer 1",
        "go to desk 1",
    ),
    (
        "",
        "examine desk 1; go to drawer 1; go to drawer 2; go to shelf 1; take pen 2 from desk 1",
        "take pen 2 from desk 1",
    ),
    (
        "into the same drawer",
        "examine desk 1; examine pen 2; go to drawer 1; go to drawer 2; go to shelf 1; move pen 2 to desk 1",
        "go to drawer 1",
    ),
    (
        "",
        "close drawer 1; examine drawer 1; examine pen 2; go to desk 1; go to drawer 2; go to shelf 1; move pen 2 to drawer 1",
        "move pen 2 to drawer 1",
    ),
]
LIGHT: Sequence[Scene] = [
    (
        "Your task is to: look at cellphone under the desklamp.",
        "go to bed 1; go to shelf 1; go to sidetable 1",
        "go to bed 1",
    ),
    ("", "examine bed 1; go to shelf 1; go to sidetable 1; take cellphone 1 from bed 1", "take cellphone 1 from bed 1"),
    (
        "the lamp is yet to be found, where lamps are",
        "examine bed 1; examine cellphone 1; go to shelf 1; go to sidetable 1; move cellphone 1 to bed 1",
        "go to sidetable 1",
    ),
    (
        "another lamp",
        "examine cellphone 1; examine sidetable 1; go to bed 1; go to shelf 1; move cellphone 1 to sidetable 1; use floorlamp 1",
        "go to shelf 1",
    ),
    (
        "",
        "examine cellphone 1; examine shelf 1; go to bed 1; go to sidetable 1; move cellphone 1 to shelf 1; use desklamp 1",
        "use desklamp 1",
    ),
]
LAMP_FIRST: Sequence[Scene] = [
    ("Your task is to: examine the pen with the desklamp.", "go to desk 1; go to dresser 1", "go to desk 1"),
    ("", "examine desk 1; go to dresser 1; use desklamp 1", "go to dresser 1"),
    ("", "examine dresser 1; go to desk 1; take pen 2 from dresser 1", "take pen 2 from dresser 1"),
    ("", "examine dresser 1; examine pen 2; go to desk 1; move pen 2 to dresser 1", "go to desk 1"),
    ("", "examine desk 1; examine pen 2; go to dresser 1; move pen 2 to desk 1; use desklamp 1", "use desklamp 1"),
]
REFUSED: Sequence[Scene] = [
    (
        "Your task is to: put a pot in shelf.",
        "go to bed 1; go to shelf 1; go to shelf 2; go to stoveburner 1",
        "go to stoveburner 1",
    ),
    (
        "",
        "examine stoveburner 1; go to bed 1; go to shelf 1; go to shelf 2; take pot 1 from stoveburner 1",
        "take pot 1 from stoveburner 1",
    ),
    (
        "",
        "examine pot 1; examine stoveburner 1; go to bed 1; go to shelf 1; go to shelf 2; move pot 1 to stoveburner 1",
        "go to shelf 1",
    ),
    (
        "it does not fit",
        "examine pot 1; examine shelf 1; go to bed 1; go to shelf 2; go to stoveburner 1",
        "go to shelf 2",
    ),
    (
        "",
        "examine pot 1; examine shelf 2; go to bed 1; go to shelf 1; go to stoveburner 1; move pot 1 to shelf 2",
        "move pot 1 to shelf 2",
    ),
]
TOGETHER: Sequence[Scene] = [
    (
        "Your task is to: put two pen in drawer.",
        "go to desk 1; go to drawer 1; go to drawer 2; go to shelf 1",
        "go to desk 1",
    ),
    (
        "",
        "examine desk 1; go to drawer 1; go to drawer 2; go to shelf 1; take pen 1 from desk 1",
        "take pen 1 from desk 1",
    ),
    (
        "",
        "examine desk 1; examine pen 1; go to drawer 1; go to drawer 2; go to shelf 1; move pen 1 to desk 1",
        "go to drawer 1",
    ),
    (
        "",
        "close drawer 1; examine drawer 1; examine pen 1; go to desk 1; go to drawer 2; go to shelf 1; move pen 1 to drawer 1",
        "move pen 1 to drawer 1",
    ),
    (
        "",
        "close drawer 1; examine drawer 1; go to desk 1; go to drawer 2; go to shelf 1; take pen 1 from drawer 1",
        "go to shelf 1",
    ),
    (
        "another drawer stands open beside the second pen, but the first is not in it",
        "close drawer 2; examine drawer 2; examine shelf 1; go to desk 1; go to drawer 1; take pen 2 from shelf 1",
        "take pen 2 from shelf 1",
    ),
    (
        "",
        "close drawer 2; examine drawer 2; examine pen 2; examine shelf 1; go to desk 1; go to drawer 1; "
        "move pen 2 to drawer 2; move pen 2 to shelf 1",
        "go to drawer 1",
    ),
]
NOT_THERE_YET: Sequence[Scene] = [
    (
        "pens lie on desks; were it there, nothing would be asked. Your task is to: put a pen in desk.",
        "go to desk 1; go to shelf 1",
        "go to shelf 1",
    )
]
DOORS_COST: Sequence[Scene] = [
    (
        "likelier in the fridge, but that is two steps. Your task is to: put a apple in garbagecan.",
        "go to fridge 1; go to sidetable 1",
        "go to sidetable 1",
    )
]
ONE_SPOT: Sequence[Scene] = [
    (
        "Your task is to: put a apple in countertop.",
        "go to countertop 1; go to fridge 1; go to microwave 1",
        "go to fridge 1",
    ),
    (
        "The fridge 1 is closed; the microwave 1 stands at the same spot, open, with an apple in it.",
        "close microwave 1; examine fridge 1; examine microwave 1; go to countertop 1; open fridge 1; "
        "take apple 1 from microwave 1",
        "take apple 1 from microwave 1",
    ),
]
SCRIPTS = {
    "place": PLACE,
    "heat": HEAT,
    "clean": CLEAN,
    "cool": COOL,
    "two": TWO,
    "light": LIGHT,
    "the lamp is seen first": LAMP_FIRST,
    "a receptacle takes no such thing": REFUSED,
    "two go to one receptacle": TOGETHER,
    "a thing is not where it is to go": NOT_THERE_YET,
    "a door is a second step": DOORS_COST,
    "two receptacles at one spot": ONE_SPOT,
}


def commands(listed: str) -> list[str]:
    """All commands of a scene, sorted as an engine lists them."""
    return sorted([*ALWAYS, *listed.split("; ")])

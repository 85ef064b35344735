"""Where things are in ALFWorld's rooms, as anyone knows who has seen some: mugs by the coffee machine, pillows on the bed.

Counted once over the 3,553 games of the split `train`, never over a validation game, by
`python benchmarks/alfworld_expert.py places`, which prints the table below.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean

OPENABLE = frozenset({"cabinet", "drawer", "fridge", "microwave", "safe"})
"""Kinds of receptacle that are closed at first, but for a few: it takes a second step to look into them."""
RARE = 0.005
"""Chance of what the table does not name: half a per cent, below which nothing is written there."""

TABLE = """\
alarmclock: diningtable 75, desk 56, countertop 52, dresser 46, sidetable 36, shelf 11
apple: fridge 41, diningtable 34, sidetable 31, microwave 24, garbagecan 23, countertop 20, sinkbasin 17
book: bed 59, coffeetable 50, desk 40, countertop 33, diningtable 33, sofa 24, dresser 23, armchair 13, sidetable 8, tvstand 8, cabinet 3, drawer 3, shelf 1
bowl: desk 78, coffeetable 43, diningtable 33, fridge 33, dresser 32, tvstand 29, countertop 16, shelf 9, sidetable 7, sinkbasin 6, cabinet 5, microwave 5
box: diningtable 59, desk 56, coffeetable 31, sofa 25, dresser 10, ottoman 10, tvstand 9, cabinet 6, sidetable 6, shelf 5, armchair 3
bread: diningtable 50, countertop 33, fridge 17, sidetable 9, garbagecan 1
butterknife: diningtable 51, countertop 39, sidetable 27, sinkbasin 10, drawer 3
candle: sidetable 63, countertop 46, toilet 45, coffeetable 39, cart 35, tvstand 33, diningtable 30, dresser 27, shelf 23, cabinet 13, drawer 9
cd: diningtable 64, dresser 41, desk 40, sidetable 27, garbagecan 15, armchair 11, drawer 9, cabinet 8, safe 7, shelf 4
cellphone: bed 41, desk 40, diningtable 40, coffeetable 36, dresser 35, ottoman 35, tvstand 30, countertop 27, sofa 25, safe 23, sidetable 19, armchair 17, drawer 5, shelf 5
cloth: bathtubbasin 64, dresser 35, cart 33, countertop 27, cabinet 20, shelf 15, drawer 10, sinkbasin 6, toilet 6, sidetable 5
creditcard: desk 39, dresser 36, diningtable 34, tvstand 32, sofa 31, countertop 28, coffeetable 27, sidetable 22, armchair 19, ottoman 19, shelf 10, drawer 9
cup: fridge 35, diningtable 33, sidetable 28, countertop 17, sinkbasin 17, microwave 14, shelf 6, cabinet 3
desklamp: sidetable 42, desk 40, dresser 36, coffeetable 16, shelf 4
dishsponge: bathtubbasin 40, cart 30, diningtable 29, countertop 21, sinkbasin 15, toilet 15, sidetable 13, garbagecan 10, shelf 10, drawer 7, cabinet 4
egg: fridge 40, diningtable 27, sidetable 27, garbagecan 23, sinkbasin 22, microwave 21, countertop 19
fork: diningtable 47, countertop 32, sidetable 25, sinkbasin 16, drawer 7
glassbottle: diningtable 37, countertop 18, sinkbasin 17, fridge 15, garbagecan 14, shelf 8, cabinet 4
handtowel: handtowelholder 79, countertop 5
kettle: diningtable 23, stoveburner 17, countertop 16, cabinet 3, sinkbasin 3, shelf 1
keychain: desk 40, safe 38, dresser 36, coffeetable 31, diningtable 30, tvstand 29, sidetable 23, ottoman 20, sofa 16, armchair 12, drawer 8, shelf 8, countertop 6, cabinet 2
knife: diningtable 48, countertop 34, sidetable 14, sinkbasin 8, drawer 6
ladle: diningtable 51, countertop 30, cabinet 4, drawer 4, sinkbasin 4
laptop: bed 70, countertop 48, diningtable 40, desk 36, coffeetable 31, sofa 31, dresser 17, tvstand 17, ottoman 14, armchair 5, sidetable 4
lettuce: diningtable 50, fridge 35, countertop 27, sidetable 24, sinkbasin 9, garbagecan 2
mug: desk 63, coffeemachine 39, dresser 37, diningtable 29, fridge 26, sidetable 26, countertop 25, microwave 15, sinkbasin 13, shelf 7, cabinet 3
newspaper: diningtable 44, dresser 40, coffeetable 28, sofa 28, ottoman 25, sidetable 14, armchair 12, tvstand 12, shelf 11, drawer 1
pan: countertop 25, stoveburner 22, diningtable 10, fridge 7, cabinet 1
papertowelroll: diningtable 41, toilet 31, cart 26, sidetable 23, countertop 22, garbagecan 15, shelf 11
pen: desk 58, diningtable 57, coffeetable 50, dresser 47, countertop 29, sidetable 28, tvstand 24, shelf 10, drawer 7, garbagecan 5
pencil: desk 49, diningtable 49, coffeetable 42, dresser 37, sidetable 34, countertop 25, tvstand 16, garbagecan 11, shelf 11, drawer 6
peppershaker: diningtable 36, sidetable 36, countertop 24, shelf 10, cabinet 5, drawer 5
pillow: bed 92, sofa 70, armchair 14, ottoman 2
plate: diningtable 37, coffeetable 27, countertop 21, tvstand 18, fridge 15, dresser 10, sidetable 9, shelf 6, cabinet 5, sinkbasin 4, microwave 1
pot: stoveburner 33, countertop 11, diningtable 10, fridge 7, shelf 1, sinkbasin 1
potato: fridge 41, diningtable 35, countertop 22, sidetable 21, sinkbasin 20, microwave 19, garbagecan 12
remotecontrol: countertop 52, desk 52, coffeetable 39, dresser 35, tvstand 34, diningtable 32, sofa 26, ottoman 19, sidetable 16, armchair 11, drawer 4, shelf 3
saltshaker: diningtable 38, sidetable 36, countertop 24, shelf 9, cabinet 4, drawer 4
soapbar: sidetable 47, countertop 34, bathtubbasin 31, cart 28, toilet 28, sinkbasin 19, shelf 15, garbagecan 13, cabinet 12, drawer 8
soapbottle: diningtable 44, dresser 42, toilet 38, countertop 27, sidetable 25, cart 24, garbagecan 18, shelf 15, cabinet 5, drawer 1
spatula: diningtable 48, countertop 32, sinkbasin 16, sidetable 10, drawer 7
spoon: diningtable 44, sidetable 30, countertop 28, sinkbasin 20, drawer 9
spraybottle: sidetable 62, cart 54, toilet 43, countertop 40, dresser 34, diningtable 33, shelf 21, garbagecan 20, cabinet 8
statue: coffeetable 45, desk 44, diningtable 44, dresser 37, tvstand 37, countertop 28, sidetable 23, shelf 19
teddybear: bed 78
tissuebox: coffeetable 57, countertop 54, desk 54, diningtable 39, cart 37, tvstand 29, shelf 22, sidetable 21, dresser 17, cabinet 10, drawer 6, toilet 5, garbagecan 1
toiletpaper: toilet 42, sidetable 38, countertop 37, dresser 36, cart 34, toiletpaperhanger 23, shelf 19, garbagecan 18, cabinet 11, drawer 8
tomato: fridge 51, diningtable 41, sidetable 26, countertop 23, garbagecan 18, sinkbasin 12
towel: towelholder 87, countertop 3
vase: dresser 62, coffeetable 45, desk 40, diningtable 38, tvstand 31, countertop 27, sidetable 25, shelf 22, cabinet 6
watch: tvstand 45, desk 44, diningtable 42, dresser 39, coffeetable 37, sidetable 22, drawer 9, shelf 5
wateringcan: coffeetable 55, shelf 21, sidetable 14
winebottle: diningtable 48, countertop 32, garbagecan 16, shelf 6, cabinet 4, fridge 3, sidetable 2
"""
"""Thing: receptacles, each with how many in a hundred of its kind hold such a thing, in rooms that have one."""


def read_table(text: str) -> dict[str, dict[str, float]]:
    """Thing → receptacle → chance in [0, 1]."""
    rows = (line.split(": ") for line in text.splitlines())
    return {
        thing: {place: int(share) / 100 for place, share in map(str.split, places.split(", "))}
        for thing, places in rows
    }


def mean_row(rows: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Receptacle → chance of a thing of which nothing is known: the mean over all that are known."""
    places = {place for row in rows.values() for place in row}
    return {place: fmean(row.get(place, 0.0) for row in rows.values()) for place in places}


_ROWS = read_table(TABLE)
_ANY = mean_row(_ROWS)


def chance(thing: str, place: str) -> float:
    """How likely one receptacle of a kind holds a thing of a kind.

    Args:
        thing: its kind, such as "mug". Any other text is a thing of which nothing is known.
        place: the receptacle's kind, such as "coffeemachine".

    Returns:
        In (0, 1], at least `RARE`.
    """
    return max(_ROWS.get(thing, _ANY).get(place, RARE), RARE)

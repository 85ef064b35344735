"""Games whose things lie elsewhere: versions in which what the task needs has to be searched for long.

In the official games things lie where such things usually lie, so that who imitates a good player hardly ever sees a search that
goes on. In a version of a game the things of the kind that the task asks for are put into receptacles of the same room that take
them, each as likely as any other. Room, task and all other things stay as they are.
"""

from __future__ import annotations

import random
from dataclasses import replace

from skill_ttrl.envs.alfworld.world import World
from skill_ttrl.errors import EnvError

_NEEDED = {"two": 2}
"""Kind of goal → how many things it needs; one where it is not named."""
_BEFORE = ("place", "two")
"""Kinds of goals that would be reached, in part or whole, were the thing to begin where it belongs."""


def move(world: World, seed: int) -> World:
    """The same game with what its task needs in other receptacles.

    All things of the kind go into one drawn receptacle, or into two where two of them are needed, drawn alone: had each a
    receptacle of its own, several would soon be met, and the search would end early. What lies in no receptacle, and what no other
    takes, stays.

    Args:
        world: the game.
        seed: the same one gives the same version.

    Raises:
        EnvError: no receptacle of the room takes a thing of this kind.
    """
    goal, drawn = world.goal, random.Random(seed)
    wanted = f"{goal.object_type}type"
    placed = sorted({thing for things in world.contents.values() for thing in things})
    things = [thing for thing in placed if wanted in world.kinds[thing] and thing in world.able["pickupable"]]
    avoided = f"{goal.target_type}type" if goal.kind in _BEFORE else ""
    places = [
        place
        for place in world.in_sight
        if avoided not in world.kinds[place] and all(world.takes(place, thing) for thing in things)
    ]
    if not things or not places:
        raise EnvError(f"No receptacle of the room can hold the {goal.object_type} of the task, so it cannot be moved.")
    chosen = [drawn.choice(places) for _ in range(_NEEDED.get(goal.kind, 1))]
    drawn.shuffle(things)
    to = {thing: chosen[number % len(chosen)] for number, thing in enumerate(things)}
    return _placed(world, to)


def _placed(world: World, to: dict[str, str]) -> World:
    """The game with things in other receptacles, and in these alone."""
    location = {receptacle: place for place, own in world.receptacles_at.items() for receptacle in own}
    contents = {place: [thing for thing in own if thing not in to] for place, own in world.contents.items()}
    for thing, place in to.items():
        contents[place] = sorted([*contents.get(place, ()), thing])
    lying = {(thing, place) for thing, place in world.lying if thing not in to}
    lying |= {(thing, location[place]) for thing, place in to.items()}
    return replace(world, contents=contents, lying=frozenset(lying))

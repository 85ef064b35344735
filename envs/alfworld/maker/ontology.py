"""Household ontology of the package alfworld: kinds of objects, which receptacle takes which, goals and floor plans.

It is read from the files of the installed distribution and never through `import alfworld`, which creates a folder in the user's home
and sets `$ALFWORLD_DATA`. The files need none of the package's dependencies: `pip install --no-deps alfworld==0.4.2` installs them in
a second and without a C++ compiler.
"""

from __future__ import annotations

import functools
import importlib.metadata
import json
import runpy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from skill_ttrl.envs.alfworld.game import DOMAINS, TASK_TYPES, domain_hash
from skill_ttrl.errors import EnvError

PACKAGE = "alfworld"
INSTALL = (
    "Games are made from files of the package alfworld. Install them with: pip install --no-deps alfworld==0.4.2 (in a second, "
    "without a compiler), or the whole package with: pip install 'skill-ttrl[alfworld]'. The official games need neither: "
    "set ALFWORLD_DATA to the folder that holds json_2.1.1/."
)


@dataclass(frozen=True, slots=True)
class Ontology:
    """Kinds are written as in the package: "Apple", "CounterTop"."""

    version: str
    """Of the package."""
    domain: str
    """PDDL of the actions."""
    grammar: str
    """Texts, with UNKNOWN GOAL where the task is named."""
    goals: Mapping[str, str]
    """Task type → PDDL of its goal, with the slots `{obj}`, `{recep}`, `{toggle}`."""
    sentences: Mapping[str, Sequence[str]]
    """Task type → the task in words, two ways, with the same slots."""
    rooms: Mapping[str, frozenset[str]]
    """Task type → rooms that it is played in: "Kitchen", "LivingRoom", "Bedroom", "Bathroom"."""
    objects: Sequence[str]
    """Every kind of object, those that hold others too."""
    receptacles: Sequence[str]
    """Every kind of receptacle that stays where it is."""
    movable: frozenset[str]
    """Objects that hold others."""
    fits: Mapping[str, frozenset[str]]
    """Receptacle → kinds of object that it takes."""
    portable: frozenset[str]
    """Kinds of object that some receptacle takes."""
    able: Mapping[str, frozenset[str]]
    """`Heatable`, `Coolable`, `Cleanable`, `Sliceable`, `Toggleable` → kinds of object."""
    openable: frozenset[str]
    """Kinds of receptacle with a door or a lid."""
    scenes: Mapping[int, str]
    """Number of each floor plan → its room."""
    test_scenes: frozenset[int]
    """Floor plans that are kept for what is to be unseen."""


@dataclass(frozen=True, slots=True)
class FloorPlan:
    """One of the 120 rooms."""

    scene: int
    kinds: frozenset[str]
    """Kinds of things that are in it."""
    receptacles: Mapping[str, str]
    """PDDL id of each receptacle that can be reached, sorted → its kind."""


@functools.cache
def read_ontology() -> Ontology:
    """Read the ontology from the installed package, once per process; takes about 10 ms.

    Raises:
        EnvError: the package is not installed, or is a release in which these files differ.
    """
    folder, version = _folder()
    try:
        # Code of the package, which importing would run as well.
        constants, goals = (runpy.run_path(f"{folder}/gen/{name}") for name in ("constants.py", "goal_library.py"))
        domain, grammar = (
            (folder / "data" / name).read_text(encoding="utf-8") for name in ("alfred.pddl", "alfred.twl2")
        )
        fixed = constants["RECEPTACLES"] - constants["MOVABLE_RECEPTACLES_SET"]
        library = {task: goals["gdict"][task] for task in TASK_TYPES}
        ontology = Ontology(
            version=version,
            domain=domain,
            grammar=grammar,
            goals={task: entry["pddl"].replace("#", "-") for task, entry in library.items()},
            sentences={task: tuple(entry["templates"]) for task, entry in library.items()},
            rooms={task: frozenset(constants["GOALS_VALID"][task]) for task in TASK_TYPES},
            objects=sorted(set(constants["OBJECTS"]) - fixed),
            receptacles=sorted(fixed),
            movable=frozenset(constants["MOVABLE_RECEPTACLES_SET"]),
            fits={kind: frozenset(own) for kind, own in sorted(constants["VAL_RECEPTACLE_OBJECTS"].items())},
            portable=frozenset().union(*constants["VAL_RECEPTACLE_OBJECTS"].values()) & set(constants["OBJECTS"]),
            able={name: frozenset(own) for name, own in sorted(constants["VAL_ACTION_OBJECTS"].items())},
            openable=frozenset(constants["OPENABLE_CLASS_LIST"]),
            scenes={n: room for room, numbers in sorted(constants["SCENE_TYPE"].items()) for n in numbers},
            test_scenes=frozenset(constants["TEST_SCENE_NUMBERS"]),
        )
    except (OSError, KeyError, AttributeError, TypeError) as error:
        raise EnvError(
            f"The files of {PACKAGE} {version} in {folder} are not the expected ones "
            f"({type(error).__name__}: {error}). {INSTALL}"
        ) from error
    if domain_hash(domain) not in DOMAINS:
        raise EnvError(
            f"{folder / 'data' / 'alfred.pddl'} of {PACKAGE} {version} is not the expected domain. {INSTALL}"
        )
    return ontology


@functools.cache
def read_floor_plan(scene: int) -> FloorPlan:
    """One room; about 0.2 ms.

    Raises:
        EnvError: there is none of this number, or its files cannot be read.
    """
    folder, version = _folder()
    try:
        kinds, poses = (
            json.loads((folder / "gen" / "layouts" / f"FloorPlan{scene}-{part}.json").read_text(encoding="utf-8"))
            for part in ("objects", "openable")
        )
    except (OSError, ValueError) as error:
        raise EnvError(f"{PACKAGE} {version} in {folder} has no floor plan {scene}: {error}. {INSTALL}") from error
    return FloorPlan(scene, frozenset(kinds), {_mangled(name): _kind(name) for name in sorted(poses, key=_mangled)})


def standing(ontology: Ontology, plan: FloorPlan) -> frozenset[str]:
    """Kinds of receptacle that a room has: those that the floor plan places, and of those that it only names the ones without
    a door. Where the others would be nobody knows.
    """
    named = plan.kinds & set(ontology.receptacles)
    return frozenset(plan.receptacles.values()) | (named - ontology.openable)


def _folder() -> tuple[Path, str]:
    """Where the package's files are, and its version."""
    try:
        distribution = importlib.metadata.distribution(PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        raise EnvError(f"The package {PACKAGE} is not installed. {INSTALL}") from None
    return Path(str(distribution.locate_file(PACKAGE))), distribution.version


def _mangled(name: str) -> str:
    """`Cabinet|+00.68|+00.50|-02.20` as it stands in PDDL, and as ALFWorld reads it back."""
    for sign, word in (("|", "_bar_"), ("-", "_minus_"), ("+", "_plus_"), (".", "_dot_")):
        name = name.replace(sign, word)
    return name


def _kind(name: str) -> str:
    """`Sink|-01.90|+00.97|-01.50|SinkBasin` is a SinkBasin; others begin with their kind."""
    parts = name.split("|")
    return parts[-1] if parts[-1].endswith("Basin") else parts[0]

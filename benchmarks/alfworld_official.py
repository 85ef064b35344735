"""The official engine of ALFWorld (TextWorld with fast-downward), as it comes from its package: slow, and the reference for ours.

Nothing of it is changed. Only the translation of a problem, which the package does twice when a game is loaded and twice
more at every reset, is kept: it depends on the problem alone. It writes on `sys.argv` and `sys.stdout`, and its parser keeps where it
is for all games together, so several are played in turn by one process, each on a library of its own: threads wait for each other.
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from skill_ttrl.envs.alfworld.engine import Frame
from skill_ttrl.envs.text_env import state_digest
from skill_ttrl.errors import EnvError

_ONE_AT_A_TIME = threading.RLock()
KEPT_TRANSLATIONS = 64
"""Translated problems that are held, two per game, 0.3 to 1.8 MB each."""
_CHANGING = frozenset(
    "atlocation inreceptacle not_inreceptacle objectatlocation holds opened isclean ishot iscool istoggled issliced".split()
)
_idle: list[Any] = []
"""Environments of the package whose engines are gone; the next engine plays on one of them, as the package's own batches do.
Each holds a copy of fast-downward (34 MB of disk), which cannot be given back: a process that has unloaded one crashes at its end.
"""


class OfficialEngine:
    """One game file, played by the packages alfworld and textworld.

    Args:
        path: of a `game.tw-pddl`.

    Raises:
        EnvError: the packages are missing, or they cannot read this game.
    """

    def __init__(self, path: Path) -> None:
        self._env = _environment()
        self._facts: frozenset[tuple[str, ...]] = frozenset()
        weakref.finalize(self, _idle.append, self._env).atexit = False
        with _kept_translations():
            try:
                self._env.load(str(path))
            except Exception as error:
                raise EnvError(f"The official engine cannot load {path}: {type(error).__name__}: {error}") from error

    def reset(self) -> Frame:
        """The game from its start."""
        with _kept_translations():
            state = self._env.reset()
            self._facts = self._facts_at_start = _changing_facts(state)
            return _frame(state)

    def step(self, command: str) -> Frame:
        """One command, some 30 to 120 ms (benchmarks/alfworld_speed.py)."""
        with _ONE_AT_A_TIME:  # the parser of the game's grammar is one for all
            state, _, _ = self._env.step(command)
            self._facts = _changing_facts(state)
            return _frame(state)

    def state(self) -> str:
        """Digest of the state; as `FastEngine.state`."""
        (here,) = (fact[1] for fact in self._facts if fact[0] == "atlocation")
        changed = sorted(fact for fact in self._facts ^ self._facts_at_start if fact[0] != "atlocation")
        return state_digest(here, changed)


def _frame(state: Any) -> Frame:
    return Frame(state.feedback, tuple(state["admissible_commands"]), bool(state["won"]))


def _changing_facts(state: Any) -> frozenset[tuple[str, ...]]:
    """Facts that bear on what follows, without the agent, who is always the same.

    The engine also notes what was examined and most of what has ceased to hold; no precondition and no text asks for these.
    """
    found = ((fact.name, *(each.name for each in fact.arguments if each.type != "agent")) for fact in state["_facts"])
    return frozenset(fact for fact in found if fact[0] in _CHANGING)


def load_packages() -> tuple[Any, Any, Any]:
    """The modules textworld, textworld.envs and alfworld.agents.environment.alfred_tw_env; seconds in a process's first call.

    Raises:
        EnvError: one of them is missing; the message says what to install, and what works without.
    """
    return _package("textworld"), _package("textworld.envs"), _package("alfworld.agents.environment.alfred_tw_env")


def _environment() -> Any:
    try:
        return _idle.pop()
    except IndexError:
        textworld, pddl, alfred = load_packages()
        infos = textworld.EnvInfos(won=True, admissible_commands=True)
        return alfred.AlfredDemangler(pddl.PddlEnv(infos), shuffle=False)


def _package(name: str) -> Any:
    before = os.environ.get("ALFWORLD_DATA")
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise EnvError(
            f"The official engine needs the packages alfworld and textworld ({error}). Install them with: "
            "pip install -e '.[alfworld]' (it builds fast-downward, which takes a C++ compiler)."
        ) from None
    finally:  # importing alfworld sets it, and then it would look as if the user had chosen a folder
        if before is None:
            os.environ.pop("ALFWORLD_DATA", None)
        else:
            os.environ["ALFWORLD_DATA"] = before


@contextmanager
def _kept_translations() -> Iterator[None]:
    """Calls of `fast_downward.pddl2sas` inside are answered from memory where they were made before."""
    downward = _package("fast_downward")
    with _ONE_AT_A_TIME:
        original, arguments, output = downward.pddl2sas, sys.argv, sys.stdout
        downward.pddl2sas = _translate(original)
        try:
            yield
        finally:
            downward.pddl2sas, sys.argv, sys.stdout = original, arguments, output


@functools.cache
def _translate(original: Callable[..., tuple[Any, str]]) -> Callable[..., tuple[Any, str]]:
    return functools.lru_cache(maxsize=KEPT_TRANSLATIONS)(original)

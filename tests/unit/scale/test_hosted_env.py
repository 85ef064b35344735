"""An episode whose host dies is played again elsewhere, to the same state; what is not the same again is an error."""

from __future__ import annotations

import pickle
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest

from skill_ttrl.errors import EnvError
from skill_ttrl.scale.crew import Host, HostedEnv, HostLostError, make_host
from tests.doors import Doors


class Frail:
    """Hosts of this process, each of which dies at its so many-th call."""

    def __init__(self, make: Callable[[], Any], lives: list[int]) -> None:
        self.make, self.lives = make, lives
        self.hosts: dict[str, Host] = {}
        self.held: Counter[str] = Counter()
        self.done: list[str] = []
        self.calls: Counter[str] = Counter()
        self.suspects: list[str] = []

    def acquire(self) -> str:
        name = f"Worker {len(self.hosts) + 1}"
        self.hosts[name], _ = make_host(self.make)
        self.held[name] += 1
        return name

    def crowded(self, host: str) -> bool:
        return False

    def call(self, host: str, name: str, method: str, *args: Any, **kwargs: Any) -> Any:
        self.calls[host] += 1
        if self.calls[host] == self.lives[min(len(self.hosts), len(self.lives)) - 1]:
            raise HostLostError("its node has died", True)
        self.done.append(method)
        return self.hosts[host]((name, method, args, kwargs))

    def release(self, host: str, name: str) -> None:
        self.held[host] -= 1

    def alone(self, name: str) -> Any:
        self.suspects.append(name)
        return nullcontext()

    def leave(self, name: str) -> None:
        pass


def hosted(frail: Frail) -> HostedEnv:
    return HostedEnv(frail)  # type: ignore[arg-type]


def episode(env: Any, *actions: str) -> list[Any]:
    return [env.reset(seed=1, options={"door": 4}), *(env.step(action) for action in actions)]


ACTIONS = ("right", "wait", "left")


@pytest.mark.parametrize("at", range(1, 6))
def test_an_episode_is_the_same_wherever_its_host_dies(at: int) -> None:
    frail = Frail(Doors, [at, 99])
    env = hosted(frail)
    assert episode(env, *ACTIONS) == episode(Doors(), *ACTIONS)
    assert len(frail.hosts) == (1 if at > 4 else 2)
    env.close()
    assert frail.held[f"Worker {len(frail.hosts)}"] == 0
    assert episode(env, "left") == episode(Doors(), "left")


def test_an_episode_that_always_loses_its_host_is_given_up_and_the_next_one_begins_anew() -> None:
    frail = Frail(Doors, [2, 2, 2, 2, 99])
    env = hosted(frail)
    with pytest.raises(EnvError, match=r"ended 4 times in one episode, the last time because its node has died"):
        episode(env, "left")
    assert episode(env, "left") == episode(Doors(), "left")


def test_what_the_environment_raises_is_raised_and_is_no_death() -> None:
    env = hosted(frail := Frail(partial(Doors, broken=[4]), [99]))
    with pytest.raises(RuntimeError, match="door 4 is stuck"):
        env.reset(options={"door": 4})
    assert env.reset(options={"door": 5})[0].startswith("Door 5") and len(frail.hosts) == 1
    with pytest.raises(EnvError, match="before reset"):
        hosted(frail).step("left")


def test_an_environment_that_is_not_the_same_again_cannot_go_on() -> None:
    class Fickle(Doors):
        made = 0

        def __init__(self) -> None:
            super().__init__()
            Fickle.made += 1

        def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
            return f"Closed, for the {Fickle.made}th time.", 0.0, False, False, {}

    env = hosted(Frail(Fickle, [3, 99]))
    env.reset()
    env.step("left")
    with pytest.raises(EnvError, match=r"differs after 'left'"):
        env.step("left")


def test_only_its_own_calls_count_against_an_environment_and_after_one_it_goes_on_alone() -> None:
    class Crowded(Frail):
        def call(self, host: str, name: str, method: str, *args: Any, **kwargs: Any) -> Any:
            if method == "step" and len(self.hosts) < 6:
                raise HostLostError("another one ended it", False)
            return super().call(host, name, method, *args, **kwargs)

    env = hosted(crowded := Crowded(Doors, [99]))
    assert episode(env, "left") == episode(Doors(), "left")
    assert len(crowded.hosts) == 6 and not crowded.suspects
    env = hosted(frail := Frail(Doors, [2, 99]))
    episode(env, "left")
    assert len(frail.suspects) == 1


def test_of_an_info_that_cannot_be_pickled_what_can_be_stored_is_handed_on() -> None:
    class Locked(Doors):
        def _info(self) -> dict[str, Any]:
            return {**super()._info(), "lock": threading.Lock()}

    found = hosted(Frail(Locked, [99])).reset(options={"door": 4})
    assert found == Doors().reset(options={"door": 4}) and pickle.dumps(found)

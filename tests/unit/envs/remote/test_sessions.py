"""Sessions: numbers of requests, answers that were lost, time-outs, bounds, environments that fail or hang."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import gymnasium
import pytest

from skill_ttrl.envs.remote.server import Refused, Sessions


class Counter(gymnasium.Env[str, str]):
    """Counts what it is asked for; the action "hang" waits for `gate`, "fail" raises."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.gate = threading.Event()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        return self._note(("reset", seed)), {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        if action == "hang":
            self.gate.wait(30)
        if action == "fail":
            raise RuntimeError("the door is stuck")
        return self._note(action), 0.0, False, False, {}

    def close(self) -> None:
        self._note("close")

    def _note(self, call: Any) -> str:
        self.calls.append(call)
        return f"{call} is call {len(self.calls)}"


@pytest.fixture
def sessions() -> Iterator[Sessions]:
    made = Sessions(timeout=60.0, most=3)
    yield made
    made.close()


def opened(sessions: Sessions, host: Counter, seed: int = 0) -> str:
    """Id of a new session whose environment is reset."""
    session = uuid.uuid4().hex
    assert sessions.ask(session, 0, "reset", lambda: host, seed=seed)[0] == 200
    return session


def until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_the_same_request_again_gets_the_stored_answer(sessions: Sessions) -> None:
    host = Counter()
    session = opened(sessions, host, 7)
    first = sessions.ask(session, 1, "step", action="look")
    assert sessions.ask(session, 1, "step", action="look") == first
    assert host.calls == [("reset", 7), "look"]
    assert sessions.ask(session, 2, "step", action="look") != first  # the same action, but another request
    assert sessions.ask(session, 3, "reset", seed=8)[0] == 200
    assert host.calls == [("reset", 7), "look", "look", ("reset", 8)]


@pytest.mark.parametrize(("number", "action"), [(0, "look"), (1, "other"), (3, "look"), (99, "look")])
def test_any_other_number_is_refused_with_the_expected_one(sessions: Sessions, number: int, action: str) -> None:
    host = Counter()
    session = opened(sessions, host)
    sessions.ask(session, 1, "step", action="look")
    with pytest.raises(Refused, match="where 2 was expected") as refused:
        sessions.ask(session, number, "step", action=action)
    assert refused.value.answer[0] == 409 and host.calls == [("reset", 0), "look"]


def test_a_request_that_is_repeated_while_it_runs_waits_for_the_same_answer(sessions: Sessions) -> None:
    host = Counter()
    session = opened(sessions, host)
    with ThreadPoolExecutor(3) as asking:
        running, again = (asking.submit(sessions.ask, session, 1, "step", action="hang") for _ in range(2))
        time.sleep(0.1)
        assert not running.done() and not again.done()
        host.gate.set()
        assert running.result(30) == again.result(30) and host.calls == [("reset", 0), "hang"]


def test_opening_again_finds_the_session(sessions: Sessions) -> None:
    host = Counter()
    start = sessions.ask("abc", 0, "reset", lambda: host, seed=1)
    again = sessions.ask("abc", 0, "reset", Counter, seed=1)
    assert start == again and host.calls == [("reset", 1)]
    with pytest.raises(Refused, match="another request"):
        sessions.ask("abc", 0, "reset", Counter, seed=2)


def test_an_environment_that_fails_closes_its_session(sessions: Sessions) -> None:
    host = Counter()
    session = opened(sessions, host)
    status, text = sessions.ask(session, 1, "step", action="fail")
    assert status == 422 and "the door is stuck" in text
    until(lambda: "close" in host.calls)
    with pytest.raises(Refused, match="no such session") as refused:
        sessions.ask(session, 1, "step", action="fail")
    assert refused.value.answer[0] == 410 and len(sessions) == 0


def test_an_idle_session_ends_and_a_used_one_does_not() -> None:
    sessions = Sessions(timeout=0.6, most=3)
    hosts = [Counter(), Counter()]
    idle, used = (opened(sessions, host) for host in hosts)
    number = 0
    while "close" not in hosts[0].calls:
        number += 1
        assert number < 1000 and sessions.ask(used, number, "step", action="look")[0] == 200
        time.sleep(0.02)
    with pytest.raises(Refused, match=r"--session-timeout") as refused:
        sessions.ask(idle, 1, "step", action="look")
    assert refused.value.answer[0] == 410
    sessions.close()


def test_no_more_sessions_than_allowed_and_one_that_hangs_counts(sessions: Sessions) -> None:
    hosts = [Counter() for _ in range(3)]
    made = [opened(sessions, host) for host in hosts]
    hanging = threading.Thread(target=sessions.ask, args=(made[0], 1, "step"), kwargs={"action": "hang"}, daemon=True)
    hanging.start()
    until(lambda: made[0] in sessions._open and sessions._open[made[0]]._number == 1)
    assert sessions.end(made[0]) and not sessions.end(made[0])
    with pytest.raises(Refused, match="All 3 sessions are in use") as refused:
        opened(sessions, Counter())
    assert refused.value.answer[0] == 503
    hosts[0].gate.set()
    until(lambda: "close" in hosts[0].calls and not sessions._ending)
    opened(sessions, Counter())

"""An environment in a host of a Ray cluster, and what becomes of its episode when the host dies."""

from __future__ import annotations

import uuid
from contextlib import nullcontext
from typing import Any

import gymnasium

from skill_ttrl.errors import EnvError
from skill_ttrl.scale.crew import HostLostError, Hosts


class HostedEnv(gymnasium.Env[str, str]):
    """Environment that lives in a host.

    Where the host dies, the episode is played again in another one: the same reset, the same actions. An environment that then shows something
    else cannot go on.

    Args:
        hosts: where it may live.
        retries: times that an episode is played again after its own call ended a host.
        expensive: as the environment itself says (`TextEnv.expensive`).
    """

    elsewhere = True
    """It computes in another process, so that others may be called meanwhile; see `rollout.rollout`."""

    def __init__(self, hosts: Hosts, retries: int, expensive: bool = False) -> None:
        self._hosts, self._retries, self.expensive = hosts, retries, expensive
        self._name, self._host = uuid.uuid4().hex, ""
        self._start: dict[str, Any] = {}
        self._past: list[tuple[str | None, str]] = []
        """Actions of the episode, None for the reset, each with what was seen after it."""
        self._deaths = 0
        self._abandoned = False

    def place(self) -> None:
        """Have it made, in the host with the least to do, before the time of an episode counts."""
        if self._host and self._hosts.crowded(self._host):
            self.close()
        if not self._host:
            self._past, self._deaths = [], 0
            self._call("")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Begin an episode."""
        super().reset(seed=seed)
        self._start, self._past, self._deaths = {"seed": seed, "options": options}, [], 0
        found: tuple[str, dict[str, Any]] = self._call("reset", **self._start)
        self._past = [(None, found[0])]
        return found

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Take one step.

        Raises:
            EnvError: there was no `reset` before; its calls end their hosts again and again; or it shows something else when it is played again.
        """
        if not self._past:
            raise EnvError("step was called before reset.")
        found: tuple[str, float, bool, bool, dict[str, Any]] = self._call("step", action)
        self._past.append((action, found[0]))
        return found

    def abandon(self) -> None:
        """Leave it alone where it hangs: a thread of its host."""
        self._abandoned = True
        self._hosts.leave(self._name)

    def close(self) -> None:
        """Give the host's room back; `reset` begins anew."""
        host, self._host = self._host, ""
        if host:
            self._hosts.release(host, self._name)

    def _call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        while True:
            # One whose call may have ended a host goes on where no other such call is, so that no other one is charged with its deaths.
            with self._hosts.alone(self._name) if self._deaths else nullcontext():
                try:
                    if not self._host:
                        self._host = self._hosts.acquire()
                        self._play_again()
                    return self._hosts.call(self._host, self._name, method, *args, **kwargs)
                except HostLostError as lost:
                    self._host = ""
                    if self._abandoned:
                        raise
                    self._deaths += lost.during_call
                    if self._deaths > self._retries:
                        raise EnvError(
                            f"The worker of this environment has ended {self._deaths} times in one episode, the last time because {lost}. It "
                            "may take too much memory, or end the process; to go on trying: scale.max_retries."
                        ) from None

    def _play_again(self) -> None:
        """Bring the environment to where its episode was."""
        for action, seen in self._past:
            if action is None:
                found = self._hosts.call(self._host, self._name, "reset", **self._start)
            else:
                found = self._hosts.call(self._host, self._name, "step", action)
            if found[0] != seen:
                raise EnvError(
                    f"Its worker ended, and played again the environment shows something else after {action or 'reset'!r:.60}: an episode of "
                    "an environment that is not the same for the same seed and actions cannot go on."
                )

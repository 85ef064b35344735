"""Environments of a server: each is called from one thread of its own, in this process or in one of several workers."""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import queue
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from multiprocessing.managers import BaseManager
from typing import Any, Protocol

import gymnasium

from skill_ttrl.envs.contract import close_env
from skill_ttrl.envs.lookup import make_env
from skill_ttrl.errors import EnvError
from skill_ttrl.signals import FAILURES

Answer = tuple[int, str]
"""HTTP status and JSON text."""


class Host(Protocol):
    """Calls of an environment. Each returns an answer and raises nothing of the environment's."""

    def reset(self, seed: int | None, options: dict[str, Any] | None) -> Answer:
        """See `gymnasium.Env.reset`."""

    def step(self, action: str) -> Answer:
        """See `gymnasium.Env.step`."""

    def close(self) -> None:
        """See `gymnasium.Env.close`."""


class LocalHost:
    """Environment of this process; it is made at the first reset, in the thread that calls it.

    Args:
        name: see `resolve_env`.
        kwargs: arguments of the environment.
    """

    def __init__(self, name: str, kwargs: Mapping[str, Any]) -> None:
        self._name, self._kwargs = name, dict(kwargs)
        self._env: gymnasium.Env[Any, Any] | None = None

    def reset(self, seed: int | None, options: dict[str, Any] | None) -> Answer:
        """Make the environment if there is none yet, and reset it."""
        return _answer(lambda: self._reset(seed, options), ("observation", "info"))

    def step(self, action: str) -> Answer:
        """Take a step."""
        assert self._env is not None
        return _answer(lambda: self._env.step(action), ("observation", "reward", "terminated", "truncated", "info"))  # type: ignore[union-attr]

    def close(self) -> None:
        """Close the environment; what it raises becomes a warning."""
        if self._env is not None:
            close_env(self._env)

    def _reset(self, seed: int | None, options: dict[str, Any] | None) -> Any:
        if self._env is None:
            self._env = make_env(self._name, **self._kwargs)
        return self._env.reset(seed=seed, options=options)


def error_answer(status: int, error: BaseException | str, kind: str = "", **more: Any) -> Answer:
    """The answer that states an error; errors of foreign code are named with their type."""
    kind = kind or type(error).__name__
    return status, json.dumps({"error": {"type": kind, "message": str(error)}, **more})


def _answer(call: Callable[[], Any], names: tuple[str, ...]) -> Answer:
    try:
        found = call()
        if not isinstance(found, tuple) or len(found) != len(names):
            raise EnvError(f"The environment must return ({', '.join(names)}), found {type(found).__name__}.")
        return 200, json.dumps(dict(zip(names, found, strict=True)), default=_plain)
    except FAILURES as error:
        return error_answer(422, error)


def _plain(value: Any) -> Any:
    """Convert a number of NumPy for JSON."""
    if hasattr(value, "item"):
        return value.item()
    raise EnvError(f"The environment returned what JSON cannot write: {type(value).__name__}.")


class _WorkerManager(BaseManager):
    """Process that hosts environments; each of the threads that call it has a thread there."""


_WorkerManager.register("host", LocalHost, exposed=("reset", "step", "close"))


class EnvWorkers:
    """Makes hosts, in turn in each of several processes.

    Args:
        count: processes; 1: this one.
    """

    def __init__(self, count: int) -> None:
        self._lock = threading.Lock()
        self._turns = itertools.count()
        self._workers = [self._start() for _ in range(count)] if count > 1 else []

    def host(self, name: str, kwargs: Mapping[str, Any]) -> Host:
        """Return a host for a new environment. A worker that has died is replaced.

        Raises:
            OSError, EOFError: the new worker has died too.
        """
        if not self._workers:
            return LocalHost(name, kwargs)
        at = next(self._turns) % len(self._workers)
        worker = self._workers[at]
        try:
            return worker.host(name, dict(kwargs))  # type: ignore[attr-defined, no-any-return]
        except (OSError, EOFError):
            with self._lock:
                if self._workers[at] is worker:
                    self._workers[at] = self._start()
            return self._workers[at].host(name, dict(kwargs))  # type: ignore[attr-defined, no-any-return]

    def close(self) -> None:
        """End the processes."""
        for worker in self._workers:
            worker.shutdown()
        self._workers = []

    @staticmethod
    def _start() -> _WorkerManager:
        worker = _WorkerManager(ctx=multiprocessing.get_context("spawn"))
        worker.start(initializer=_begin_worker)
        return worker


def _begin_worker() -> None:
    """Prepare a worker: it ends when the process that started it does, however that ends."""
    sys.stdout = sys.stderr  # what an environment prints is no result of the command
    parent = multiprocessing.parent_process()

    def wait() -> None:
        if parent is not None:
            parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


class Lane:
    """One thread that runs jobs in order. No executor: those are waited for at the end, which with a job that hangs takes for ever."""

    def __init__(self, ended: Callable[[], None]) -> None:
        self._jobs: queue.SimpleQueue[tuple[Future[Answer], Callable[[], Answer]] | None] = queue.SimpleQueue()
        self._ended = ended
        threading.Thread(target=self._run, name="environment", daemon=True).start()

    def submit(self, job: Callable[[], Answer]) -> Future[Answer]:
        """Run a job after those before it."""
        answer: Future[Answer] = Future()
        self._jobs.put((answer, job))
        return answer

    def end(self) -> None:
        """End the thread after the jobs before."""
        self._jobs.put(None)

    def _run(self) -> None:
        try:
            while (entry := self._jobs.get()) is not None:
                answer, job = entry
                try:
                    answer.set_result(job())
                except (EOFError, OSError) as error:
                    message = (
                        f"The process of the environment has ended ({type(error).__name__}); reset begins in another."
                    )
                    answer.set_result(error_answer(422, message, "EnvError"))
                except BaseException as error:  # a mistake of ours: the client gets an answer all the same
                    traceback.print_exc(file=sys.stderr)
                    answer.set_result(error_answer(500, error))
        finally:
            self._ended()

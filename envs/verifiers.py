"""`verifiers:NAME`: a taskset of the package verifiers, with its tasks, its environment and its rewards.

An environment of verifiers is a coroutine that requests turns from agents. Here it runs in an event loop in a thread of its own; its one
agent is a `_Seat`, whose turns are the steps of an episode. Tasks that need verifiers' own harness (tools, containers, rewritten requests)
are refused.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Coroutine, Mapping
from concurrent.futures import TimeoutError as LateError
from contextlib import asynccontextmanager
from typing import Any, ClassVar

import gymnasium

from skill_ttrl.envs.text_env import TextEnv, check_action, check_choice, check_whole, foreign_text, reset_options
from skill_ttrl.errors import EnvError, MissingDependencyError, SkillTTRLError
from skill_ttrl.signals import FAILURES
from skill_ttrl.types import Task

ENV_ID = "SkillTTRL/Verifiers-v0"
MAX_PROMPT = 100_000
"""Longest prompt of a task in characters."""
_PARTS = {"train": range(8), "validation": (8,), "test": (9,)}
"""Splits, and the last digits of the positions of their tasks."""


class VerifiersEnv(TextEnv):
    """Tasksets of the package verifiers, scored by it.

    The policy is the one agent of the taskset's environment. The reward, at the end, is the sum of the trace's weighted rewards; `won` is a
    sum of at least 1. `info` has the metrics. Of ten tasks in a row eight are for training, one each for validation and test.

    Args:
        name: a taskset that comes with verifiers, or an installed package that exports one.
        taskset: fields of the taskset's config, except `task`, whose values name code to import.
        size: tasks that are taken of the taskset, at most.
        answer_timeout: seconds that the taskset's own code may take between two turns.

    Raises:
        MissingDependencyError: verifiers is not installed.
        EnvError: there is no such taskset, it does not take the config, or it needs verifiers' own harness.
    """

    config_defaults: ClassVar[Mapping[str, Any]] = {
        "agent.template": "plain",
        "agent.max_turns": 10,
        "data.max_prompt_tokens": 4096,
        "rl.reward": "env",
    }
    splits = tuple(_PARTS)

    def __init__(
        self, name: str, taskset: Mapping[str, Any] | None = None, size: int = 500, answer_timeout: float = 600.0
    ) -> None:
        super().__init__()
        try:
            import verifiers.v1 as vf
        except ImportError:
            raise MissingDependencyError.for_extra("env.id: verifiers:NAME", "verifiers") from None
        given = dict(taskset or {})
        if given.keys() & {"id", "task"}:
            raise EnvError("env.kwargs.taskset has neither id (env.id names it) nor task (its values import code).")
        try:
            self._env = vf.load_environment(vf.resolve_env_config({"taskset": {**given, "id": name}}))
            seats = list(vars(vf.Agents(self._env.config, lambda seat, spec: (seat, spec)))["_agents"])
            self._tasks = list(self._env.taskset.take(size))
        except FAILURES as error:
            raise EnvError(f"Cannot load verifiers:{name}: {type(error).__name__}: {error!s:.500}") from None
        if len(seats) != 1:
            raise EnvError(f"verifiers:{name} has the agents {', '.join(seats)}; one policy plays one agent.")
        self._name, self._timeout = name, answer_timeout
        self._loop: asyncio.AbstractEventLoop | None = None
        self._episode: _Episode | None = None

    def tasks(self, split: str | None = None) -> list[Task]:
        """The tasks of one split."""
        check_choice("split", split := split or "train", _PARTS)
        places = (place for place in range(len(self._tasks)) if place % 10 in _PARTS[split])
        return [Task(f"{self._name}/{place}", ENV_ID, {"index": place}, split=split) for place in places]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Begin a task: the one in `options`, or one for training drawn with `seed`; up to the agent's first turn."""
        super().reset(seed=seed)
        asked = reset_options(ENV_ID, options, ("index",))
        train = [task.options["index"] for task in self.tasks()] or range(len(self._tasks))
        index = asked.get("index", train[int(self.np_random.integers(len(train)))])
        index = check_whole("The option index", index, 0, len(self._tasks) - 1)
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            threading.Thread(target=self._loop.run_forever, daemon=True, name="verifiers").start()
        self._leave()
        self._episode = _Episode(self._env)
        found = self._wait(self._episode.begin(self._tasks[index]))
        if not isinstance(found, str):
            raise EnvError(f"The task {index} of verifiers:{self._name} ended before its agent's first turn.")
        return found, {"source": f"verifiers:{self._name}"}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Take the agent's turn; any text is accepted."""
        check_action(ENV_ID, action)
        if self._episode is None:
            raise gymnasium.error.ResetNeeded("Cannot call VerifiersEnv.step before VerifiersEnv.reset.")
        found = self._wait(self._episode.answer(action))
        if isinstance(found, str):
            return found, 0.0, False, False, {}
        self._episode = None
        reward, metrics = found
        return "", reward, True, False, {**metrics, "won": reward >= 1, "score": min(max(reward, 0.0), 1.0)}

    def close(self) -> None:
        """End the episode and the thread."""
        if self._loop is not None:
            self._leave()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._loop = None

    def _leave(self) -> None:
        episode, self._episode = self._episode, None
        if episode is not None:
            self._wait(episode.cancel())

    def _wait(self, work: Coroutine[Any, Any, Any]) -> Any:
        assert self._loop is not None
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(self._timeout)
        except SkillTTRLError:
            raise
        except FAILURES as error:
            self._episode = None
            late = isinstance(error, LateError) and not future.done()
            said = f"no answer in {self._timeout:g} s" if late else f"{type(error).__name__}: {error!s:.500}"
            raise EnvError(f"verifiers:{self._name} failed: {said}") from error


class _Episode:
    """One episode of an environment of verifiers, which pauses when its agent must answer."""

    def __init__(self, env: Any) -> None:
        self._env, self._traces = env, list[Any]()
        self._work: asyncio.Task[tuple[float, dict[str, float]]] | None = None

    async def begin(self, task: Any) -> Any:
        """The first text for the agent, or what `answer` returns at the end."""
        self._shown: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._work = asyncio.create_task(self._run(task))
        return await self._next()

    async def answer(self, text: str) -> Any:
        """Pass on the agent's text. Returns the next text for it, or the reward and the metrics."""
        reply, self._shown = self._reply, asyncio.get_running_loop().create_future()
        reply.set_result(text)
        return await self._next()

    async def ask(self, shown: str) -> str:
        """The agent's answer to a text."""
        self._reply: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._shown.set_result(shown)
        return await self._reply

    async def cancel(self) -> None:
        """Cancel the episode."""
        if self._work is not None:
            self._work.cancel()
            await asyncio.gather(self._work, return_exceptions=True)

    async def _next(self) -> Any:
        assert self._work is not None
        await asyncio.wait((self._work, self._shown), return_when=asyncio.FIRST_COMPLETED)
        return self._shown.result() if self._shown.done() else self._work.result()

    async def _run(self, task: Any) -> tuple[float, dict[str, float]]:
        import verifiers.v1 as vf

        agents = vf.Agents(self._env.config, lambda name, spec: _Seat(name, spec, self.ask, self._traces))
        await self._env.setup(agents)
        await self._env.run(task, agents)
        stated = vf.TraceTask(type=type(task).__name__, data=task.data, key=task.key, hash=task.hash)
        episode = vf.Episode(env=vf.EnvInfo(id=self._env.config.env_id), task=stated, traces=self._traces)
        await self._env.finalize(task, episode)
        metrics = {f"metric_{name}": value for trace in self._traces for name, value in trace.metrics.items()}
        return float(sum(trace.reward for trace in self._traces)), metrics


class _Seat:
    """The policy as an agent of verifiers (`verifiers.v1.Agent`)."""

    trainable = True

    def __init__(self, name: str, spec: Any, ask: Any, traces: list[Any]) -> None:
        self._name, self._spec, self._ask, self._traces = name, spec, ask, traces
        self._started = False

    async def run(self, task: Any, **_: Any) -> Any:
        """One turn on the task's prompt; its trace, scored."""
        async with self.interaction(task) as talk:
            await talk.turn()
        return talk.trace

    @asynccontextmanager
    async def interaction(self, task: Any, **_: Any) -> AsyncIterator[_Seat]:
        """A conversation on the task, whose trace is scored where it ends, as `verifiers.v1.rollout` does."""
        import verifiers.v1 as vf
        from verifiers.v1.runtimes import provision_runtime
        from verifiers.v1.session import hook_boundary
        from verifiers.v1.state import state_cls
        from verifiers.v1.utils.decorators import discover_decorated, invoke

        stops = task.hooks("stop")
        own = (task.NEEDS_CONTAINER, task.data.image, task.toolsets(task.config), discover_decorated(task, "intercept"))
        if any(own) or any(hook_boundary(stop, allow_trace=True) is not vf.Trace for stop in stops):
            raise EnvError("This task needs verifiers' own harness: it has tools, a container or hooks on requests.")
        stated = vf.TraceTask(type=type(task).__name__, data=task.data, key=task.key, hash=task.hash)
        agent = vf.AgentInfo(config=self._spec, name=self._name)
        self.trace = vf.Trace(task=stated, state=state_cls(type(task))(), agent=agent)
        self._task, self._stops = task, stops
        async with provision_runtime(vf.SubprocessConfig(), env=dict(task.runtime_env())) as runtime:
            objects = {"trace": self.trace, "runtime": runtime}
            await invoke(task.setup, objects)
            yield self
            self.trace.stop("user_closed")
            await invoke(task.finalize, objects)
            await task.score(self.trace, runtime)
        self.trace.ok = True
        self._traces.append(self.trace)

    async def turn(self, message: str | None = None) -> Any:
        """Send a user's turn, before the first one the task's own prompt; the policy's answer."""
        import verifiers.v1 as vf
        from verifiers.v1 import graph
        from verifiers.v1.session import call_hook
        from verifiers.v1.types import content_text

        new: list[Any] = []
        if not self._started:
            system, prompt = self._task.data.system_prompt, self._task.data.prompt
            new += [vf.SystemMessage(content=system)] if system else []
            new += [vf.UserMessage(content=prompt)] if isinstance(prompt, str) else prompt or []
        shown = [content_text(each.content)[:MAX_PROMPT] for each in new]
        if message is not None:
            new.append(vf.UserMessage(content=message))
            shown.append(foreign_text(message))
        self._started = True
        for stop in self._stops:
            if await call_hook(stop, {vf.Trace: self.trace}):
                self.trace.stop(stop.__name__)
        if self.trace.stop_condition is not None:
            return vf.Segment(messages=[], terminated=True)
        pending = graph.prepare_turn(self.trace, [*self.trace.messages, *new])
        reply = vf.AssistantMessage(content=await self._ask("\n\n".join(shown)))
        pending.commit(vf.Response(id="", created=0, model="policy", message=reply, finish_reason="stop"))
        return vf.Segment(messages=[reply])

"""One episode while it runs: its environment, what that answers, and how a completion or a scripted agent's action changes it.

An environment is foreign code: it may be slow, and it may hang. What hangs in a thread cannot be ended; it can be left alone, so that
the episode, the run and the process end without it.
"""

from __future__ import annotations

import asyncio
import contextvars
import queue
import random
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar, cast

import gymnasium

from skill_ttrl.agents.action_parser import ParsedAction
from skill_ttrl.agents.agent import AgentInput
from skill_ttrl.agents.scripted import ScriptedAgent, any_action
from skill_ttrl.envs.text_env import close_env
from skill_ttrl.envs.tools import ToolEnv
from skill_ttrl.errors import ConfigError, EnvError, WorkerError
from skill_ttrl.llm.chat import call_text
from skill_ttrl.sanitize import replace_surrogates
from skill_ttrl.signals import FAILURES
from skill_ttrl.skills.mergers import titles
from skill_ttrl.skills.ops import OutputParser
from skill_ttrl.types import Completion, Skill, SkillOps, Step, StopReason, Task, ToolCall, Trajectory, derive_seed
from skill_ttrl.voting.rewards import as_reward

PARSER = OutputParser()
Call = Callable[[Callable[[], Any], float | None], Awaitable[Any]]
"""Calls an environment: what to call, and how many seconds it is waited for (`EnvThreads.call`)."""


async def call_inline(work: Callable[[], Any], seconds: float | None) -> Any:
    """A `Call` that waits as long as it takes."""
    return work()


class Stopped(BaseException):
    """Raised by a scripted agent that leaves: the episode ends with the steps so far (`stop_reason` "max_turns").

    It is no `Exception`: a rollout takes those for outcomes of the environment. One with a cause is an error of whoever watches.
    """


@dataclass
class ActiveRollout:
    """One rollout while it runs."""

    task: Task
    env: TextEnvironment
    envs: EnvPool
    """Where the environment is from."""
    call: Call = call_inline
    seconds: float | None = None
    """How long it may take; None: any time."""
    elapsed_s: float = 0.0
    """Seconds that it has waited so far, for its environment and for the model; not those in which it was another's turn."""
    observation: str = ""
    steps: list[Step] = field(default_factory=list)
    stop_reason: StopReason | None = None
    error: str | None = None
    skills: tuple[Skill, ...] = ()
    """Skills in its prompts."""
    left_out: Mapping[str, int] = field(default_factory=dict)
    """Counts of the parts that did not fit into its present prompt; see `Step.truncated_parts`."""
    skills_had_no_room: Mapping[str, int] = field(default_factory=dict)
    """The same count for the skills found for it; it holds for all of its prompts."""
    skill_tokens: int = 0
    """Tokens that the skills and the text about the bank add to its prompts."""
    retrieved: list[Skill] = field(default_factory=list)
    """Skills it has retrieved, in order."""
    notes: tuple[Skill, ...] = ()
    """Skills it wrote itself, where it may find them again."""
    admissible: tuple[str, ...] = ()
    """Actions that the environment lists as possible now (`info["admissible_commands"]`)."""
    reset_info: Mapping[str, Any] = field(default_factory=dict)
    """The part of the `info` of the environment's `reset` that can be stored (`serializable_info`)."""
    by_program: bool = False
    """A program played it; its steps but the last are calls of the model."""
    scripted: ScriptedPlayer | None = None
    """Plays or watches it; what it would do stands in the `info` of every step (`ADVICE`)."""
    _info: Mapping[str, Any] = field(default_factory=dict, init=False, repr=False)
    """The environment's last."""
    _scene: AgentInput | None = field(default=None, init=False, repr=False)
    """The last one that was asked for."""

    async def start(self, seed: int) -> None:
        """Reset the environment, with `seed` where the task has none of its own."""
        seed = seed if self.task.seed is None else self.task.seed
        options = reset_options(self.task)
        if self.scripted is not None:
            options |= getattr(self.scripted.agent, "requires", {})
        with self._ending():
            seen, self._info = await self._called(partial(self.env.reset, seed=seed, options=options))
            self._scene, self.observation = None, text_of(seen)
            self.admissible, self.reset_info = admissible_actions(self._info), serializable_info(self._info)
            if self.scripted is not None:
                await self._called(partial(self.scripted.start, self.task, self.observation, self._info))

    @property
    def scene(self) -> AgentInput:
        """Input of its agent now; the same object until the next step."""
        last = self._scene
        if last is not None and len(last.steps) == len(self.steps) and last.skills is self.skills:
            return last
        asked = self.task.options.get("question")
        task = stated(self.reset_info, "task") or (asked if isinstance(asked, str) else "")
        self._scene = AgentInput(self.observation, tuple(self.steps), task, self.admissible, self.skills)
        return self._scene

    async def act(
        self,
        prompt_ids: tuple[int, ...],
        completion: Completion,
        max_turns: int,
        projection: ParsedAction,
    ) -> None:
        """Hand the model's action to the environment; where no answer came, the episode ends with the reason."""
        if completion.finish_reason == "error":
            self.stop_reason, self.error = "no_answer", completion.error or "The backend returned no answer."
            return
        await self._step(
            lambda: projection.action,
            max_turns,
            prompt_ids=prompt_ids,
            completion=completion,
            action_status=projection.action_status,
            parse_error=projection.parse_error,
            truncated_parts=self.left_out,
        )

    async def call_tools(
        self, prompt_ids: tuple[int, ...], completion: Completion, max_turns: int, calls: tuple[ToolCall, ...]
    ) -> None:
        """Hand the model's calls of tools to the environment; the step's action is their text."""
        await self._step(
            lambda: calls, max_turns, prompt_ids=prompt_ids, completion=completion, truncated_parts=self.left_out
        )

    async def act_program(self, answer: str, reward: float | None, max_turns: int) -> None:
        """Hand a program's answer to the environment. The steps so far are its calls; the last becomes the step of the answer.

        `reward` replaces the environment's; None keeps that.
        """
        calls, last = self.steps[:-1], self.steps[-1]
        self.steps = calls
        await self._step(lambda: answer, max_turns, prompt_ids=last.prompt_ids, completion=last.completion)
        if self.error is not None:
            self.steps = [*calls, last]
            return
        taken = replace(self.steps.pop(), observation=last.observation)
        if reward is not None:
            taken = replace(taken, reward=reward, info={**taken.info, "graded": True})
        self.steps.append(taken)

    async def act_scripted(self, max_turns: int) -> None:
        """Hand the scripted agent's action to the environment."""
        player = self.scripted
        assert player is not None
        await self._step(lambda: player.choose(self._info), max_turns)

    async def _step(self, choose: Callable[[], str | tuple[ToolCall, ...]], max_turns: int, **more: Any) -> None:
        def act() -> tuple[str | None, str | tuple[ToolCall, ...], Any]:
            advice = None if self.scripted is None else self.scripted.advise(self.observation, self._info)
            action = choose()
            if self.scripted is not None:
                self.scripted.follow(action if isinstance(action, str) else _written(action))
            if isinstance(action, str):
                return advice, action, self.env.step(action)
            env = self.env if isinstance(self.env, ToolEnv) else ToolEnv(self.env)  # whose only tools are the bank's
            return advice, action, env.step(action)

        with self._ending():
            advice, action, answer = await self._called(act)
            more["admissible_actions"] = self.admissible
            if not isinstance(action, str):
                more["calls"] = tuple(answer[-1].get("tool_calls", action))
                action = _written(action)
            seen, taken = make_step(self.observation, action, answer, self.reset_info, **more)
            if advice is not None:
                taken = replace(taken, info={**taken.info, ADVICE: advice})
            self._info = answer[-1]
            self.observation, self.admissible = seen, admissible_actions(self._info)
            self.steps.append(taken)
            if taken.terminated:
                self.stop_reason = "terminated"
            elif taken.truncated:
                self.stop_reason = "truncated"
            elif len(self.steps) >= max_turns:
                self.stop_reason = "max_turns"

    @contextmanager
    def _ending(self) -> Iterator[None]:
        """Calls of the environment and of the scripted agent; what they raise ends the rollout."""
        try:
            yield
        except EnvTimeoutError as late:
            self.mark_timeout(late.still_running)
        except Stopped as stopped:
            self._leave(stopped)
        except FAILURES as error:
            self.fail(error)

    def mark_context_overflow(self, found: int | None, limit: int) -> None:
        """There is no room for another turn; where there was none for the first, nothing was tried."""
        if self.steps:
            self.stop_reason = "truncated"
        else:
            long = "is too long" if found is None else f"has {found} tokens"
            self.stop_reason, self.error = "error", f"The prompt {long}, more than the {limit} allowed."

    @property
    def remaining_s(self) -> float | None:
        """Seconds that it has left; None: any time."""
        return None if self.seconds is None else self.seconds - self.elapsed_s

    def mark_timeout(self, still_running: bool = False) -> None:
        """Its time is over; `still_running`: its environment still has not answered."""
        if still_running:
            self.envs.discard(self.env)
        who = "the environment had not answered" if still_running else "it had not ended"
        self.stop_reason = "timeout"
        self.error = f"After {self.seconds:g} s (rollout.rollout_timeout_s) {who}; {len(self.steps)} steps were played."

    def finish(self, bank_version: int | None = None) -> Trajectory:
        """Build the trajectory. The answer is the environment's `info["answer"]` where there is one, else it is parsed from the text.

        `bank_version` is the version of the skill bank; None without a bank: the text is then not searched for operations.
        """
        answer = None
        if self.steps and not (self.by_program and self.error is not None):
            last = self.steps[-1]
            if "answer" in last.info:
                answer = last.info["answer"] if last.info["answer"] is None else str(last.info["answer"])
            elif self.by_program:
                answer = PARSER.parse(last.action).answer or last.action.strip() or None
            elif last.completion is not None:
                answer = PARSER.parse(last.model_text).answer
        assert self.stop_reason is not None
        return Trajectory(
            self.task,
            tuple(self.steps),
            answer,
            self.stop_reason,
            error=self.error,
            ops=None if bank_version is None else operations(self.steps),
            skills_in_prompt=tuple(skill.id for skill in self.skills),
            retrieved=tuple(skill.id for skill in self.retrieved),
            bank_version=bank_version,
            final_obs=self.observation if self.steps else "",
            source=stated(self.reset_info, "source"),
            goal=stated(self.reset_info, "task"),
            start_state="" if self.scripted is not None and self.scripted.plays else stated(self.reset_info, "state"),
        )

    async def _called(self, work: Callable[[], Any]) -> Any:
        began = time.monotonic()
        try:
            return await self.call(work, self.remaining_s)
        finally:
            self.elapsed_s += time.monotonic() - began

    def _leave(self, stopped: Stopped) -> None:
        if stopped.__cause__ is not None:
            raise stopped.__cause__
        self.stop_reason = "max_turns"

    def fail(self, error: BaseException) -> None:
        """End it as failed: its environment raised, or its chat template cannot write what was said."""
        if isinstance(error, WorkerError):  # there is nowhere to play, which is no episode's own failure
            raise error
        self.stop_reason, self.error = "error", failure(error)


def _written(calls: Sequence[ToolCall]) -> str:
    return "".join(map(call_text, calls))


def operations(steps: Sequence[Step]) -> SkillOps:
    """Parse the operations on the skill bank of a rollout, in the order of its turns, from model-written text only."""
    found = [PARSER.parse(step.model_text).skill_ops for step in steps]
    return SkillOps(
        generate=tuple(text for ops in found for text in ops.generate),
        retrieve=tuple(query for ops in found for query in ops.retrieve),
        evolve=tuple(evolution for ops in found for evolution in ops.evolve),
        errors=tuple(error for ops in found for error in ops.errors),
        titles=tuple(title for ops in found for title in titles(ops)),
    )


def make_step(
    observation: str, action: str, answer: tuple[Any, Any, Any, Any, Any], reset_info: Mapping[str, Any], **more: Any
) -> tuple[str, Step]:
    """The step that an environment's answer to an action makes, and the observation after it.

    `observation` was seen before; `answer` is what `step` returned: observation, reward, terminated, truncated, info. For
    `reset_info` see `serializable_info`; `more` are other fields of the step.

    Raises:
        EnvError: the observation is no text.
        ValueError: the reward is a text, not finite, or too large to learn from (`rewards.as_reward`).
    """
    seen, reward, terminated, truncated, info = answer
    seen, plain = text_of(seen), serializable_info(info, reset_info)
    try:
        reward = as_reward(reward)
    except ValueError as error:
        raise ValueError(f"the environment's reward is {error}") from None
    return seen, Step(observation, action, reward, bool(terminated), bool(truncated), info=plain, **more)


def reset_options(task: Task) -> dict[str, Any]:
    """The `options` of an environment's `reset`; the true answer is among them only where the task still carries it."""
    return {**task.options, **({} if task.ground_truth is None else {"ground_truth": task.ground_truth})}


def failure(raised: BaseException) -> str:
    """The exception of foreign code as an episode's `error`."""
    return replace_surrogates(f"{type(raised).__name__}: {raised}")


def text_of(value: Any, what: str = "The environment's observation") -> str:
    """A text of foreign code, fit for prompts and files: halves of characters (lone surrogates) become U+FFFD.

    Raises:
        EnvError: it is no text; `what` names it.
    """
    if not isinstance(value, str):
        raise EnvError(f"{what} must be a str, found {type(value).__name__}: {value!r:.80}.")
    return replace_surrogates(value)


def serializable_info(info: Mapping[str, Any], reset_info: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The part of an `info` that can be written down: texts, numbers, truth values and None.

    Args:
        info: as the environment gave it.
        reset_info: that of the episode's `reset`. Texts that it has too are left out: an environment says with every step which task
            is played and where its file lies, which need not be in every step that is kept, nor on another machine. `answer` is
            what votes, `state` where the episode stands: they stay whatever stood at the start.
    """
    known = {key: value for key, value in (reset_info or {}).items() if key not in ("answer", "state")}
    found = {
        replace_surrogates(str(key)): replace_surrogates(value) if isinstance(value, str) else value
        for key, value in info.items()
    }
    return {
        key: value
        for key, value in found.items()
        if value is None
        or isinstance(value, int | float | bool)
        or (isinstance(value, str) and known.get(key) != value)
    }


def stated(info: Mapping[str, Any], key: str) -> str:
    """A text in an `info`, such as `source`, where the task is from, or `task`, what is to be done; empty where there is none."""
    text = info.get(key)
    return text if isinstance(text, str) else ""


def admissible_actions(info: Mapping[str, Any]) -> tuple[str, ...]:
    """The actions that an `info` lists (`admissible_commands`)."""
    listed = info.get("admissible_commands")
    texts = tuple(map(str, listed)) if isinstance(listed, list | tuple) else ()
    return texts if "".join(texts).isascii() else tuple(map(replace_surrogates, texts))


MOVES = ("go to *",)
"""Actions that only move, as patterns: a text, or a beginning with `*` behind it."""


@dataclass(frozen=True, slots=True)
class Exploration:
    """Random actions that an agent's episodes have in place of its own."""

    chances: tuple[float, ...] = (0.0,)
    """Chance of a step, in [0, 1], that another action is taken: one for each attempt at a task in turn, from the first again after the last."""
    moves: float = 0.0
    """Share of these actions that only move (`moves_like`), where the environment lists such; the others are any of the admissible ones."""
    max_steps: int | None = None
    """Longest episode; None: the environment alone bounds it."""
    moves_like: tuple[str, ...] = MOVES
    """Patterns of the actions that only move: a text, or its beginning with `*` behind it."""
    never: tuple[str, ...] = ()
    """Patterns of actions that are never taken at random. Where no other is possible, the agent's own is taken."""

    @classmethod
    def of(cls, explore: float | Sequence[float] | Exploration) -> Exploration:
        """The exploration with this chance, or with these.

        Raises:
            ConfigError: a share is not between 0 and 1.
        """
        if not isinstance(explore, Exploration):
            explore = cls(tuple(explore) if isinstance(explore, Sequence) else (explore,))
        if wrong := [share for share in (*explore.chances, explore.moves) if not 0 <= share <= 1]:
            raise ConfigError(f"A probability is from 0 to 1, found {wrong[0]:g}.")
        return explore

    @property
    def advises(self) -> bool:
        """True where every step of every attempt says what the agent advised: an attempt explores."""
        return any(self.chances)

    @property
    def stated(self) -> float | list[float]:
        """The chances as a config has them: one number, or a list."""
        return list(self.chances) if len(self.chances) > 1 else self.chances[0]

    def draw(self, rng: random.Random, info: Mapping[str, Any], attempt: int) -> str | None:
        """The action to take in place of the agent's own; None: its own."""
        chance = self.chances[attempt % len(self.chances)]
        if not chance or rng.random() >= chance:
            return None
        if self.never:
            left = [action for action in admissible_actions(info) if not fits(action, self.never)]
            if not left:
                return None
            info = {**info, "admissible_commands": left}
        if self.moves and rng.random() < self.moves:
            moves = [action for action in admissible_actions(info) if fits(action, self.moves_like)]
            if moves:
                return rng.choice(moves)
        return any_action(rng, info)


def fits(action: str, patterns: Sequence[str]) -> bool:
    """True if an action is one of the texts, or begins as one that ends in `*`."""
    return any(action.startswith(each[:-1]) if each.endswith("*") else action == each for each in patterns)


ADVICE = "expert_action"
"""Key of a step's `info`: what a scripted agent would have done there."""


class ScriptedPlayer:
    """A scripted agent in one rollout: it plays, or watches a model play and says what it would do.

    Args:
        agent: learns of each action that was not its own (`ScriptedAgent`).
        seed: of the agent's choices and of the random actions.
        attempt: number of the rollout of its task: all begin alike, and the agent's choices differ.
        explore: it plays, and some of its actions are replaced; None: it watches.
    """

    def __init__(self, agent: ScriptedAgent, seed: int, attempt: int = 0, explore: Exploration | None = None) -> None:
        self.agent, self.plays = agent, explore is not None
        self._seed, self._attempt, self._explore = seed, attempt, explore
        self._said = ""

    def start(self, task: Task, observation: str, info: Mapping[str, Any]) -> None:
        """An episode begins."""
        own = [self._attempt] if self._attempt else []
        self._draws = random.Random(derive_seed(self._seed, "explore", task.id, self._attempt))
        self.agent.start(observation, info, derive_seed(self._seed, "player", task.id, *own))

    def advise(self, observation: str, info: Mapping[str, Any]) -> str | None:
        """The action that the agent would take here, for the step's `info`; None where that is a guess, or nobody asked for it."""
        self._said = text_of(self.agent.act(observation, info), "The agent's action")
        asked = self._explore is None or self._explore.advises
        return self._said if asked and not getattr(self.agent, "guesses", False) else None

    def choose(self, info: Mapping[str, Any]) -> str:
        """The action to take: the agent's, or a random one in its place."""
        drawn = None if self._explore is None else self._explore.draw(self._draws, info, self._attempt)
        return text_of(drawn or self._said, "The action")

    def follow(self, action: str) -> None:
        """Report an executed action to the agent, through `ScriptedAgent.overruled`, if the agent chose another one."""
        overruled = getattr(self.agent, "overruled", None)
        if action != self._said and callable(overruled):
            overruled(action)


class ScriptedPolicy:
    """A scripted agent in the place of a model and its agent, see `rollout`. It plays one episode after another.

    Args:
        make: makes the agent, anew after an episode that failed: the next one must not depend on what a failure left behind.
        explore: random actions in place of its own.
    """

    def __init__(self, make: Callable[[], ScriptedAgent], explore: Exploration = Exploration()) -> None:
        self._make, self._explore = make, explore
        self._agent: ScriptedAgent | None = None

    def player(self, seed: int, attempt: int) -> ScriptedPlayer:
        """The agent for one rollout; `attempt` is its number among those of its task."""
        self._agent = self._agent or self._make()
        return ScriptedPlayer(self._agent, seed, attempt, self._explore)

    def max_steps(self, limit: int) -> int:
        """Longest episode: `limit`, or less where exploration bounds it."""
        return min(limit, self._explore.max_steps or limit)

    def discard_agent(self) -> None:
        """Make the agent anew for the next episode."""
        self._agent = None


T = TypeVar("T")
TextEnvironment = gymnasium.Env[str, str]


class EnvTimeoutError(Exception):
    """An environment's answer did not come in time. `still_running`: it may still come, and the environment cannot be used."""

    def __init__(self, still_running: bool) -> None:
        super().__init__("an environment did not answer in time")
        self.still_running = still_running


class EnvPool:
    """Environments that are made once, as many as episodes run side by side, and used again for every episode."""

    def __init__(self, make: Callable[[], TextEnvironment]) -> None:
        self._make = make
        self._envs: list[TextEnvironment] = []
        self._lent = set[int]()
        self._lock = threading.Lock()

    def acquire(self) -> TextEnvironment:
        """An environment to look at, ready to be reset."""
        with self._lock:
            return self._first_free(1)[0]

    @property
    def schemas(self) -> tuple[str, ...]:
        """Schemas of the tools that the environments have (`ToolEnv.schemas`)."""
        return getattr(self.acquire(), "schemas", ())

    @contextmanager
    def lend(self, count: int) -> Iterator[list[TextEnvironment]]:
        """`count` environments, ready to be reset, that no other thread is lent meanwhile."""
        with self._lock:
            taken = self._first_free(count)
            self._lent |= set(map(id, taken))
        try:
            yield taken
        finally:
            with self._lock:
                self._lent -= set(map(id, taken))

    def discard(self, env: TextEnvironment) -> None:
        """Forget an environment that hangs: it is used no more, nor closed, and another is made when one is needed.

        `abandon` of the environment is called, where it has one.
        """
        with self._lock:
            self._envs = [each for each in self._envs if each is not env]
        both = {id(each): each for each in (env, env.unwrapped)}  # `ToolEnv` wraps one that may have it too
        for each in both.values():
            getattr(each, "abandon", lambda: None)()

    def replace(self, env: TextEnvironment) -> None:
        """Close an environment that failed, if it was not discarded; another is made when one is needed."""
        with self._lock:
            known = any(each is env for each in self._envs)
            self._envs = [each for each in self._envs if each is not env]
        if known:
            close_env(env)

    def _first_free(self, count: int) -> list[TextEnvironment]:
        free = [env for env in self._envs if id(env) not in self._lent]
        while len(free) < count:
            self._envs.append(self._make())  # one by one: those that were made are closed where the next one fails
            free.append(self._envs[-1])
        return free[:count]

    def close(self) -> None:
        """Close them all; see `envs.text_env.close_env`."""
        for env in self._envs:
            close_env(env)
        self._envs.clear()


@dataclass
class _Job:
    work: Callable[[], Any]
    answer: Future[Any]
    left_alone: bool = False
    """Nobody waits for it any more, and its thread has been counted out."""


class EnvThreads:
    """Threads that call environments for one event loop.

    They are no executor's: those are waited for when the process ends, which with one that hangs it would never do. At `most` so
    many calls run at the same time; those that hang do not count.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._lock = threading.Lock()  # between "it hangs" and "it has answered"
        self._threads = self._open = 0

    async def call(self, work: Callable[[], T], seconds: float | None = None) -> T:
        """Call `work` in one of the threads, and return or raise as it does. Wait for so many seconds; None: any time.

        Raises:
            EnvTimeoutError: it has not returned by then.
        """
        job = _Job(partial(contextvars.copy_context().run, work), Future())
        self._open += 1
        if self._open > self._threads < self._most:
            self._threads += 1
            threading.Thread(target=self._live, name="environment", daemon=True).start()
        self._jobs.put(job)
        try:
            async with asyncio.timeout(seconds) as clock:
                return cast(T, await asyncio.wrap_future(job.answer))
        except TimeoutError:
            if not clock.expired():  # it is the environment's own
                raise
            with self._lock:
                still_running = not job.answer.cancel() and not job.answer.done()
                job.left_alone = still_running
            self._threads -= still_running
            raise EnvTimeoutError(still_running) from None
        finally:
            self._open -= 1

    def close(self) -> None:
        """End the threads that do not hang."""
        for _ in range(self._threads):
            self._jobs.put(None)
        self._threads = 0

    def _live(self) -> None:
        while (job := self._jobs.get()) is not None:
            if not job.answer.set_running_or_notify_cancel():
                continue  # it was out of time before its turn came
            error, found = None, None
            try:
                found = job.work()
            except BaseException as raised:  # passed on to the caller, also a signal or an exit
                error = raised
            with self._lock:
                if error is None:
                    job.answer.set_result(found)
                else:
                    job.answer.set_exception(error)
                if job.left_alone:
                    return

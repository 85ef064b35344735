"""One rollout while it runs: its state, and how a completion changes it."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from skill_ttrl.agents.action_parser import ParsedAction
from skill_ttrl.agents.agent import AgentInput
from skill_ttrl.errors import WorkerError
from skill_ttrl.rollout.env_pool import EnvPool, EnvTimeoutError, TextEnvironment
from skill_ttrl.rollout.info import (
    admissible_actions,
    failure,
    make_step,
    reset_options,
    serializable_info,
    stated,
    text_of,
)
from skill_ttrl.rollout.scripted import ADVICE, ScriptedPlayer
from skill_ttrl.signals import FAILURES
from skill_ttrl.skills.mergers import titles
from skill_ttrl.skills.ops import OutputParser
from skill_ttrl.types import Completion, Skill, SkillOps, Step, StopReason, Task, Trajectory

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
        try:
            seen, self._info = await self._called(partial(self.env.reset, seed=seed, options=options))
            self._scene, self.observation = None, text_of(seen)
            self.admissible, self.reset_info = admissible_actions(self._info), serializable_info(self._info)
            if self.scripted is not None:
                await self._called(partial(self.scripted.start, self.task, self.observation, self._info))
        except EnvTimeoutError as late:
            self.mark_timeout(late.still_running)
        except Stopped as stopped:
            self._leave(stopped)
        except FAILURES as error:
            self._fail(error)

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

    async def act_scripted(self, max_turns: int) -> None:
        """Hand the scripted agent's action to the environment."""
        player = self.scripted
        assert player is not None
        await self._step(lambda: player.choose(self._info), max_turns)

    async def _step(self, choose: Callable[[], str], max_turns: int, **more: Any) -> None:
        def act() -> tuple[str | None, str, Any]:
            advice = None if self.scripted is None else self.scripted.advise(self.observation, self._info)
            action = choose()
            if self.scripted is not None:
                self.scripted.follow(action)
            return advice, action, self.env.step(action)

        try:
            advice, action, answer = await self._called(act)
            more["admissible_actions"] = self.admissible
            seen, taken = make_step(self.observation, action, answer, self.reset_info, **more)
            if advice is not None:
                taken = replace(taken, info={**taken.info, ADVICE: advice})
            self._info = answer[-1]
            possible = admissible_actions(self._info)
        except EnvTimeoutError as late:
            self.mark_timeout(late.still_running)
            return
        except Stopped as stopped:
            self._leave(stopped)
            return
        except FAILURES as error:
            self._fail(error)
            return
        self.steps.append(taken)
        self.observation, self.admissible = seen, possible
        if taken.terminated:
            self.stop_reason = "terminated"
        elif taken.truncated:
            self.stop_reason = "truncated"
        elif len(self.steps) >= max_turns:
            self.stop_reason = "max_turns"

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
        if self.steps:
            last = self.steps[-1]
            written = None if last.completion is None else PARSER.parse(last.model_text).answer
            answer = last.info.get("answer", written)
            answer = answer if answer is None else str(answer)
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

    def _fail(self, error: BaseException) -> None:
        if isinstance(error, WorkerError):  # there is nowhere to play, which is no episode's own failure
            raise error
        self.stop_reason, self.error = "error", failure(error)


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

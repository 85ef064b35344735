"""ALFWorld, WebShop, Math, or any other environment of ours as a taskset of the package verifiers, with its environment and its harness.

verifiers imports a taskset by a name without dots, `skill_ttrl_verifiers`, which is this module.
"""

from __future__ import annotations

import asyncio
import functools
import ssl
from collections.abc import Iterator
from typing import Any

import httpx
from pydantic import Field

from skill_ttrl.envs import env_tasks
from skill_ttrl.errors import MissingDependencyError
from skill_ttrl.integrations.game import TextGame
from skill_ttrl.rollout.episode import reset_options
from skill_ttrl.voting import compute_voting_rewards

try:
    import verifiers.v1 as vf
    from verifiers.v1.dialects.chat import message_to_wire
except ImportError:
    raise MissingDependencyError.for_extra("skill_ttrl.integrations.verifiers", "verifiers") from None

__all__ = ["GameEnv", "GameHarness", "GameTaskset", "load_environment"]

TASKSET = "skill-ttrl-verifiers"
_tls = functools.cache(ssl.create_default_context)  # reads the certificates once, not every turn


class GameData(vf.TaskData):  # type: ignore[misc]
    """A task: the arguments of the environment's `reset`."""

    options: dict[str, Any]
    seed: int | None


class GameTask(vf.Task[GameData]):  # type: ignore[misc]
    """A task of one of our environments, which rewards it."""


class GameConfig(vf.TasksetConfig):  # type: ignore[misc]
    """An environment, and its tasks."""

    env: str = "alfworld"
    """Any name of an environment (`skillttrl envs`)."""
    split: str = "train"
    num: int | None = None
    """So many tasks, spread over their types; None: all."""
    kwargs: dict[str, Any] = Field(default_factory=dict)
    """Arguments of the environment."""


class GameTaskset(vf.Taskset[GameTask, GameConfig]):  # type: ignore[misc]
    """The tasks of one split of an environment."""

    def load(self) -> Iterator[GameTask]:
        """The tasks, in the environment's order."""
        config = self.config
        for task in env_tasks(config.env, config.kwargs, config.split, config.num):
            yield GameTask(GameData(name=task.id, options=reset_options(task), seed=task.seed), config.task)


class GameHarness(vf.Harness[vf.HarnessConfig]):  # type: ignore[misc]
    """A plain chat in this process: no program, no sandbox."""

    APPENDS_SYSTEM_PROMPT = SUPPORTS_RESUME = True
    EXECUTES_CODE = NEEDS_CONTAINER = False

    async def launch(
        self, ctx: Any, trace: Any, runtime: Any, endpoint: str, secret: str, mcp_urls: Any, data: Any
    ) -> vf.ProgramResult:
        """One call of the model on the conversation."""
        system, messages = self.resolve_prompt(data)
        said = [*([vf.SystemMessage(content=system)] if system else []), *messages]
        request = {"model": ctx.model, "messages": [message_to_wire(each) for each in said]}
        async with httpx.AsyncClient(verify=_tls(), timeout=None, trust_env=False) as client:
            keys = {"Authorization": f"Bearer {secret}"}
            reply = await client.post(f"{endpoint}/chat/completions", json=request, headers=keys)
        return vf.ProgramResult(exit_code=int(reply.is_error), stdout="", stderr=reply.text if reply.is_error else "")


class GameEnvConfig(vf.EnvConfig):  # type: ignore[misc]
    """The agent, and the source of the reward."""

    agent: vf.AgentConfig = vf.AgentConfig(runtime=vf.SubprocessConfig())
    votes: int = Field(1, ge=1)
    """Rollouts of an episode. With more than one the reward is the majority vote over their answers (`info["answer"]`), without labels."""


class GameEnv(vf.Env[GameEnvConfig]):  # type: ignore[misc]
    """Plays a task in the environment, turn by turn, up to the environment's number of turns."""

    async def run(self, task: Any, agents: Any) -> None:
        """One rollout; or several, which vote."""
        if self.config.votes == 1:
            await self._play(task, agents.agent)
            return
        async with asyncio.TaskGroup() as group:
            plays = [group.create_task(self._play(task, agents.agent)) for _ in range(self.config.votes)]
        traces, answers = zip(*(play.result() for play in plays), strict=True)
        rewards, _, agreement = compute_voting_rewards(answers)
        for trace, reward in zip(traces, rewards, strict=True):
            trace.record_metrics({"env_reward": trace.rewards.pop("env").value, "majority_ratio": agreement})
            trace.record_reward("vote", reward)

    async def _play(self, task: Any, agent: Any) -> tuple[Any, str | None]:
        config, total, over = self.taskset.config, 0.0, False
        game = await asyncio.to_thread(TextGame, config.env, config.split, **config.kwargs)
        try:
            prompt = await asyncio.to_thread(game.reset, task.data.options, task.data.seed)
            async with agent.interaction(task) as talk:
                for _ in range(game.max_turns):
                    segment = await talk.turn(prompt)
                    if segment.terminated:
                        break
                    prompt, reward, over = await asyncio.to_thread(game.step, segment.last_reply)
                    total += reward
                    if over:
                        break
                talk.trace.record_reward("env", total)
                talk.trace.record_metric("won", float(game.info.get("won", total > 0)))
                if "score" in game.info:
                    talk.trace.record_metric("score", game.info["score"])
        finally:
            game.env.close()
        return talk.trace, game.info.get("answer")


def load_environment(env: str = "alfworld", split: str = "train", num: int | None = None, **kwargs: Any) -> vf.Env:
    """An environment of verifiers over tasks of one of ours.

    Args:
        env: any name of an environment: `alfworld`, `webshop`, `math`, …
        split: of its tasks.
        num: so many of them, spread over their types; None: all.
        kwargs: arguments of the environment, and `votes` (`GameEnvConfig`).
    """
    votes = kwargs.pop("votes", 1)
    taskset = {"id": TASKSET, "env": env, "split": split, "num": num, "kwargs": kwargs}
    return vf.load_environment(vf.resolve_env_config({"taskset": taskset, "votes": votes}))

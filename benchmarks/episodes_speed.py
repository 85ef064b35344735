"""What a step of an episode costs beside sampling: prompts a second, and how long episodes take in either schedule.

    python benchmarks/episodes_speed.py

The sampler is a stand-in that answers after 50 ms, however many ask; one environment in eight takes 200 ms a step, the others 5.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, get_args

from skill_ttrl.agents.agent import Agent, AgentInput, PromptFormatter
from skill_ttrl.agents.observations import Form, alfworld
from skill_ttrl.agents.scripted import make_scripted_agent
from skill_ttrl.agents.turn_prompt import TurnPromptBuilder
from skill_ttrl.config import BuiltinConfig
from skill_ttrl.envs import TextEnv, make_env
from skill_ttrl.envs.alfworld.env import ALFWORLD_ENV_ID, ALFWorldEnv
from skill_ttrl.llm.backend import Generation, Request, Sampling, wait_for
from skill_ttrl.llm.chat import encode_chat, encode_next, encode_plain
from skill_ttrl.llm.models.builtin import build_tokenizer
from skill_ttrl.prompts.templates import Templates
from skill_ttrl.rollout.episode import EnvPool, Exploration
from skill_ttrl.rollout.rollout import RolloutSettings, Schedule, rollout, run_scripted_episode
from skill_ttrl.types import Message, Skill, Step, Task

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.scripted_backend import ScriptedBackend  # the repository's own

TURNS = 12


class Waits(TextEnv):
    """An environment whose steps take `options["seconds"]`."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self.seconds = (options or {})["seconds"]
        return "It begins.", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        time.sleep(self.seconds)
        return "It goes on.", 0.0, False, False, {}


class Answers(ScriptedBackend):
    """Answers after 50 ms."""

    async def generate(self, requests: Sequence[Request], sampling: Sampling, *, seed: int) -> list[Generation]:
        await asyncio.sleep(0.05)
        return await super().generate(requests, sampling, seed=seed)


def schedules() -> None:
    """How long 64 episodes take, and when half of them have ended."""
    tasks = [Task(str(n), "Waits-v0", {"seconds": 0.2 if n % 8 == 0 else 0.005}) for n in range(64)]
    for schedule in get_args(Schedule):
        ended: list[float] = []
        began = time.perf_counter()
        work = rollout(
            tasks,
            1,
            envs=EnvPool(Waits),
            agent=Agent(PromptFormatter("plain"), "none"),
            backend=Answers(["go"]),
            on_episode=lambda trajectory, at=ended, since=began: at.append(time.perf_counter() - since),
            settings=RolloutSettings(Sampling(), 0, max_turns=TURNS, schedule=schedule),
        )
        wait_for(work)
        print(f"{schedule:9} all {max(ended):5.1f} s   half of them {sorted(ended)[len(ended) // 2]:5.1f} s")


def prompts() -> None:
    """Prompts a second of real scenes, with skills, where they fit and where they must be cut."""
    tokenizer = build_tokenizer(["You act in a household. take apple 1 from countertop 2"] * 20)

    def count(messages: Sequence[Message]) -> int:
        return len(encode_chat(tokenizer, messages))

    env, draws = make_env("alfworld"), random.Random(0)
    scenes = []
    for seed in range(8):
        seen, info = env.reset(seed=seed)
        steps: list[Step] = []
        for _ in range(TURNS):
            action = draws.choice(info["admissible_commands"])
            scenes.append((seen, tuple(steps), info["task"], tuple(info["admissible_commands"])))
            steps.append(Step(seen, action, 0.0, False, False))
            seen, _, _, _, info = env.step(action)
    skills = [Skill(f"s{n}", f"Rule {n}", "Look everywhere once before you go on.", "always") for n in range(6)]
    for most in (4096, 1024):
        window = TurnPromptBuilder(
            Templates(),
            "alfworld",
            max_tokens=most,
            count=count,
            count_text=lambda text: len(encode_plain(tokenizer, text)),
        )
        began = time.perf_counter()
        cut = sum(bool(window.prompt(*scene, skills).left_out) for scene in scenes)
        each = (time.perf_counter() - began) / len(scenes)
        print(f"max_prompt_tokens {most}: {each * 1000:5.2f} ms a prompt, {cut} of {len(scenes)} cut")


def memories() -> None:
    """CPU time of the prompt of a later turn, made anew and continued, with the expert's episodes of 60 generated games."""
    env, expert = ALFWorldEnv(data="generated"), make_scripted_agent("expert", ALFWORLD_ENV_ID)
    played = [run_scripted_episode(env, task, expert, seed=1, explore=Exploration((0.1,))) for task in env.tasks()[:60]]
    scenes = [
        (step, AgentInput(step.observation, each.steps[:place], each.goal, step.admissible_actions))
        for each in played
        for place, step in enumerate(each.steps)
    ]
    for vocabulary, form in (("bytes", None), ("entities", Form(alfworld))):
        agent = Agent(PromptFormatter("plain"), "episode", form=form)
        texts = {
            text for step, scene in scenes for text in (agent.next_message(scene).content, *step.admissible_actions)
        }
        tokenizer = build_tokenizer(sorted(texts), BuiltinConfig(vocabulary=vocabulary))
        later = [scene for _, scene in scenes if scene.steps]
        encode_next(tokenizer, Message("user", "once"))  # what is looked at once a tokenizer is no cost of a turn
        first, again = (_each(later, lambda agent, scene: agent.next_message(scene), agent, tokenizer) for _ in "ab")
        anew = _each(later, lambda agent, scene: agent.prompt(scene).messages, agent, tokenizer)
        print(f"{vocabulary:8}: anew {anew:4.0f} us a turn, continued {first:3.0f}, and {again:3.0f} once it is known")


def _each(
    scenes: Sequence[AgentInput], make: Callable[[Agent, AgentInput], Any], agent: Agent, tokenizer: Any
) -> float:
    """Microseconds of CPU that the tokens of a scene take."""
    began = time.process_time()
    for scene in scenes:
        made = make(agent, scene)
        encode_next(tokenizer, made) if isinstance(made, Message) else encode_chat(tokenizer, made)
    return (time.process_time() - began) / len(scenes) * 1e6


if __name__ == "__main__":
    schedules()
    prompts()
    memories()

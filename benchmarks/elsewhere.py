"""Games a second of our ALFWorld inside another library, and of the official ALFWorld (TextWorld) driven in the same way.

    python benchmarks/elsewhere.py verifiers               # needs the extras verifiers and alfworld, and pytest; 20 games, minutes
    pip install trl==1.16.0 && python benchmarks/elsewhere.py trl

Both engines play the same generated games with the same commands: those of our expert. There is no model: in verifiers a server in a
process of its own answers with the next command, in TRL a script stands for the sampler. Rounds alternate (ours, official, ours, ...),
after a game of each that is not counted; games are read from their files in the first round. "alone" is the environment without the
library.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import itertools
import json
import multiprocessing
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from importlib.metadata import version
from pathlib import Path
from typing import Any

import gymnasium
from alfworld_official import OfficialEngine

from skill_ttrl.agents.scripted import make_scripted_agent
from skill_ttrl.envs import SHORT_NAMES, env_tasks, make_env
from skill_ttrl.envs.alfworld.env import ALFWorldEnv
from skill_ttrl.envs.alfworld.games import Game
from skill_ttrl.rollout.rollout import run_scripted_episode
from skill_ttrl.types import Trajectory

sys.path.append(str(Path(__file__).parents[1]))  # for tests
SPLIT = "valid_unseen"
ENGINES = {"ours": SHORT_NAMES["alfworld"], "official": "Elsewhere/OfficialALFWorld-v0"}


class OfficialALFWorld(ALFWorldEnv):
    """Our environment with the official engine in place of ours."""

    def _make_engine(self, game: Game, rule: Any, version: Any) -> Any:
        return OfficialEngine(game.path)


gymnasium.register(ENGINES["official"], entry_point=OfficialALFWorld)

Play = Callable[[str, Sequence[Trajectory]], list[float]]
"""(environment, episodes of our player) → return of each, played once more in the library."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", choices=list(LIBRARIES))
    parser.add_argument("--games", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    env = make_env(ENGINES["ours"], split=SPLIT)
    expert = make_scripted_agent("expert", ENGINES["ours"])
    tasks = env_tasks(ENGINES["ours"], {}, SPLIT, options.games)
    played = [run_scripted_episode(env, task, expert, seed=0) for task in tasks]
    seconds: dict[tuple[str, str], list[float]] = {}
    with LIBRARIES[options.library](played) as inside:
        plays = {options.library: inside, "alone": alone}
        for number, (how, engine) in itertools.product(range(options.rounds + 1), itertools.product(plays, ENGINES)):
            games = played if number else played[:1]
            start = time.perf_counter()
            returns = plays[how](ENGINES[engine], games)
            if number:
                seconds.setdefault((how, engine), []).append(time.perf_counter() - start)
            assert returns == [game.env_return for game in games], f"{how}, {engine}: not the same rewards"
    steps = sum(len(game.steps) for game in played)
    print(f"{options.library} {version(options.library)}, textworld {version('textworld')}, {os.cpu_count()} cores, "
          f"load {os.getloadavg()[0]:.1f}, Python {platform.python_version()}. {len(played)} games of {SPLIT}, {steps} steps, "
          f"{sum(game.env_return for game in played):.0f} won; median of {options.rounds} rounds (least, most).\n")  # fmt: skip
    print("| | games/s, ours | games/s, official | ratio |\n|---|---|---|---|")
    for how in plays:
        rates = {engine: [len(played) / each for each in seconds[how, engine]] for engine in ENGINES}
        ratios = [ours / theirs for ours, theirs in zip(*rates.values(), strict=True)]
        cells = [
            f"{statistics.median(each):.2f} ({min(each):.2f}, {max(each):.2f})" for each in (*rates.values(), ratios)
        ]
        print(f"| {how} | {' | '.join(cells)} |")


def alone(env_id: str, games: Sequence[Trajectory]) -> list[float]:
    env = make_env(env_id, split=SPLIT)
    returns = []
    for game in games:
        env.reset(options=dict(game.task.options))
        returns.append(float(sum(env.step(step.action)[1] for step in game.steps)))
    return returns


@contextmanager
def in_verifiers(played: Sequence[Trajectory]) -> Iterator[Play]:
    """verifiers' own episodes, one after the other, on our taskset."""
    import verifiers.v1 as vf

    from skill_ttrl.integrations.verifiers import load_environment

    answers = {game.steps[0].observation: [f"<action>{step.action}</action>" for step in game.steps] for game in played}
    assert len(answers) == len(played)
    ready = multiprocessing.Queue()
    server = multiprocessing.Process(target=answer_chats, args=(answers, ready), daemon=True)
    server.start()
    client = vf.EvalClientConfig(base_url=f"http://127.0.0.1:{ready.get()}/v1", api_key_var="HOME")

    async def play(env: Any, names: set[str]) -> dict[str, float]:
        tasks = [task for task in env.taskset if task.data.name in names]
        async with env.serving():
            episodes = [await env.run_episode(task, vf.ModelContext(model="m", client=client)) for task in tasks]
        assert all(each.ok for each in episodes), [each.errors for each in episodes]
        return {each.task.data.name: each.traces[0].rewards["env"].score for each in episodes}

    @functools.cache
    def loaded(env_id: str) -> Any:
        return load_environment(env_id, SPLIT, len(played))

    def inside(env_id: str, games: Sequence[Trajectory]) -> list[float]:
        returns = asyncio.run(play(loaded(env_id), {game.task.id for game in games}))
        return [returns[game.task.id] for game in games]

    yield inside
    server.terminate()


def answer_chats(answers: Mapping[str, Sequence[str]], ready: Any) -> None:
    """A chat API that answers with the next command of the game whose first observation the conversation begins with."""
    from tests.unit.integrations.test_games import Scripted

    Scripted.answers = dict(answers)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Scripted)
    ready.put(server.server_port)
    server.serve_forever()


@contextmanager
def in_trl(played: Sequence[Trajectory]) -> Iterator[Play]:
    """TRL's own rollouts of a batch of games: its chat template, parser, tokens and tools; only the sampling is scripted."""
    from trl import GRPOConfig, GRPOTrainer

    from skill_ttrl.integrations.trl import ALFWorldTools, Environments, environment_reward
    from tests.unit.integrations.test_trl import tiny

    model, tokenizer = tiny()

    @functools.cache
    def loaded(env_id: str) -> Any:
        games = Environments(ALFWorldTools, env_id, "", SPLIT, len(played), {})
        config = GRPOConfig(tempfile.mkdtemp(), max_completion_length=100_000, num_generations=2, use_cpu=True, bf16=False,
                            per_device_train_batch_size=2, report_to="none", disable_tqdm=True)  # fmt: skip
        return GRPOTrainer(
            model, environment_reward, config, games.dataset(), processing_class=tokenizer, environment_factory=games
        )

    def inside(env_id: str, games: Sequence[Trajectory]) -> list[float]:
        trainer = loaded(env_id)
        batch = [*games, *games[: len(games) % 2]]  # TRL compares at least two
        turn = itertools.count()

        def say(*_: Any, **__: Any) -> tuple[list[list[int]], None]:
            number, said = next(turn), []
            for steps in (game.steps for game in batch if number <= len(game.steps)):
                call = {"name": "act", "arguments": {"command": steps[number].action}} if number < len(steps) else None
                said.append("Done." if call is None else f"<tool_call>\n{json.dumps(call)}\n</tool_call>")
            return [tokenizer(f"{text}<|im_end|>")["input_ids"] for text in said], None

        trainer._generate_single_turn = say
        prompt = [{"role": "user", "content": "Do the task.\n\n"}]
        trainer._generate_and_score_completions([{"prompt": prompt, "task": game.task.id} for game in batch])
        return [env.reward for env in trainer.environments[: len(games)]]

    yield inside


LIBRARIES = {"trl": in_trl, "verifiers": in_verifiers}


if __name__ == "__main__":
    main()

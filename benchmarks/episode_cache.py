"""Whole episodes with kept keys and values and without: CPU seconds, and where they go.

    python benchmarks/episode_cache.py                                    # generated rooms
    ALFWORLD_DATA=... python benchmarks/episode_cache.py --rounds 5       # the official ones
    python benchmarks/episode_cache.py --profile 30                       # the functions that take the most time

Both ways play the same episodes of ALFWorld in turn, in one process, with one thread: a Qwen2 of random weights and the size of the
published small policies (3 layers of 96), one token a word, commands held to those that are possible. The samples must be the same.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import re
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from skill_ttrl.agents.agent import Agent, PromptFormatter
from skill_ttrl.agents.observations import find_observations
from skill_ttrl.envs import make_env
from skill_ttrl.envs.alfworld.env import ALFWorldEnv
from skill_ttrl.llm.backend import Sampling, wait_for
from skill_ttrl.llm.hf import HFBackend
from skill_ttrl.rollout.episode import EnvPool
from skill_ttrl.rollout.rollout import RolloutSettings, rollout
from skill_ttrl.types import Group, Task

PIECES = r"<[a-z]+>|[a-z]+ \d+|go to|[a-z]+"
TEMPLATE = "{% for m in messages %}{{ m.content }}{{ '<obs>' if m.role == 'assistant' else '<act>' }}{% endfor %}"


def make_tokenizer(texts: Sequence[str]) -> Any:
    """One token a word, and one a thing with its number; the chat template only ever appends."""
    special = ["<pad>", "<unk>", "<act>", "<obs>"]
    words = sorted({piece for text in texts for piece in re.findall(PIECES, text)})
    bare = Tokenizer(
        models.WordLevel({word: place for place, word in enumerate([*special, *words])}, unk_token="<unk>")
    )
    bare.pre_tokenizer = pre_tokenizers.Split(Regex(PIECES), "removed", invert=True)
    bare.decoder = decoders.WordPiece(prefix="##", cleanup=False)
    tokenizer: Any = PreTrainedTokenizerFast(
        tokenizer_object=bare,
        pad_token="<pad>",
        unk_token="<unk>",
        eos_token="<obs>",
        additional_special_tokens=["<act>"],
    )
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def make_backend(texts: Sequence[str], seed: int) -> HFBackend:
    """A policy of random weights, far from flat so that episodes differ."""
    tokenizer = make_tokenizer(texts)
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=len(tokenizer), hidden_size=96, intermediate_size=192, num_hidden_layers=3, num_attention_heads=3,
        num_key_value_heads=3, max_position_embeddings=1024, tie_word_embeddings=True, initializer_range=0.05,
        rope_theta=10_000.0, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    model: Any = Qwen2ForCausalLM(config)
    return HFBackend(model.eval(), tokenizer)


class Clock:
    """CPU seconds of some calls."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.calls = 0

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, on this clock."""

        def timed(*args: Any, **kwargs: Any) -> Any:
            began = time.process_time()
            try:
                return function(*args, **kwargs)
            finally:
                self.seconds += time.process_time() - began
                self.calls += 1

        return timed


class Scene:
    """A policy, its environments, and clocks on both."""

    def __init__(self, data: str | None, episodes: int, group: int, turns: int) -> None:
        env: Any = make_env("alfworld", data=data).unwrapped
        tasks: list[Task] = env.tasks("train")
        self.tasks = tasks[: episodes // group]
        self.group, self.turns = group, turns
        self.backend = make_backend(_texts(env, self.tasks), seed=0)
        self.model, self.env = Clock(), Clock()
        self.backend.model.forward = self.model.around(self.backend.model.forward)
        self.pool = EnvPool(lambda: self._timed(ALFWorldEnv(data=data)))
        self.tokens = 0
        self.backend.model.register_forward_pre_hook(self._count, with_kwargs=True)

    def play(self, keep: bool, seed: int) -> tuple[list[Group], float, float, float]:
        """Play all episodes; what came of it, and CPU seconds in all, in the model and in the environments."""
        self.model.seconds = self.env.seconds = 0.0
        self.model.calls = self.tokens = 0
        settings = RolloutSettings(
            Sampling(max_new_tokens=16), seed, max_turns=self.turns, constrain=True, max_prompt_tokens=1000
        )
        agent = Agent(PromptFormatter("plain"), "episode", form=find_observations("alfworld"))
        with _not_keeping(self.backend) if not keep else nullcontext():
            began = time.process_time()
            work = rollout(self.tasks, self.group, envs=self.pool, agent=agent, backend=self.backend, settings=settings)
            groups = wait_for(work)
            return groups, time.process_time() - began, self.model.seconds, self.env.seconds

    def _timed(self, env: Any) -> Any:
        env.reset, env.step = self.env.around(env.reset), self.env.around(env.step)
        return env

    def _count(self, model: Any, args: Any, inputs: dict[str, Any]) -> None:
        self.tokens += inputs["input_ids"].numel()


@contextmanager
def _not_keeping(backend: Any) -> Any:
    backend.keeping = nullcontext
    try:
        yield
    finally:
        del backend.keeping


def _texts(env: Any, tasks: Sequence[Task]) -> list[str]:
    """Texts that a policy reads and writes in these games, from a few walks."""
    texts = ["ok"]
    for task in tasks:
        seen, info = env.reset(options={**task.options, "walkthrough": True})
        texts += [seen.lower(), info["task"].lower()]
        for command in info["walkthrough"]:
            texts += [seen.lower(), *info["admissible_commands"]]
            seen, _, _, _, info = env.step(command)
    return texts


def main() -> None:
    """Measure both ways side by side."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="folder with json_2.1.1/; $ALFWORLD_DATA, else generated rooms")
    parser.add_argument("--episodes", type=int, default=128)
    parser.add_argument("--group", type=int, default=8, help="episodes of one game")
    parser.add_argument("--turns", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--profile", type=int, default=0, help="print so many functions by their own time, with kept caches"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    scene = Scene(options.data, options.episodes, options.group, options.turns)
    scene.play(True, 0)  # the games are read
    if options.profile:
        with cProfile.Profile() as profile:
            scene.play(True, 1)
        pstats.Stats(profile).sort_stats("tottime").print_stats(options.profile)
        return
    rows: dict[bool, list[tuple[float, float, float]]] = {False: [], True: []}
    for number in range(1, options.rounds + 1):
        played = {}
        for keep in (False, True):
            played[keep], *seconds = scene.play(keep, number)
            rows[keep].append(tuple(seconds))
            if number == 1:
                print(f"{_name(keep):8} {scene.model.calls} forward passes, {scene.tokens} tokens read")
        _check(played[False], played[True])
    _print(rows, played[True])


def _name(keep: bool) -> str:
    return "kept" if keep else "not kept"


def _check(one: Sequence[Group], other: Sequence[Group]) -> None:
    """Say how many of the episodes differ: a draw may fall on the other side of a rounded number."""
    pairs = [
        (a, b) for x, y in zip(one, other, strict=True) for a, b in zip(x.trajectories, y.trajectories, strict=True)
    ]
    different = sum([s.action for s in a.steps] != [s.action for s in b.steps] for a, b in pairs)
    print(f"{different} of {len(pairs)} episodes differ")


def _print(rows: dict[bool, list[tuple[float, float, float]]], groups: Sequence[Group]) -> None:
    tries = [trajectory for group in groups for trajectory in group.trajectories]
    turns = sum(len(each.steps) for each in tries)
    longest = [len(each.steps[-1].prompt_ids) + len(each.steps[-1].completion.token_ids) for each in tries]  # type: ignore[union-attr]
    print(
        f"{len(tries)} episodes, {turns / len(tries):.1f} turns and {statistics.mean(longest):.0f} tokens each; median CPU seconds:"
    )
    print(f"{'':8} {'all':>7} {'model':>7} {'env':>7} {'rest':>7}")
    for keep, found in rows.items():
        cells = [statistics.median(column) for column in zip(*found, strict=True)]
        rest = statistics.median(row[0] - row[1] - row[2] for row in found)
        print(f"{_name(keep):8} " + " ".join(f"{cell:7.2f}" for cell in (*cells, rest)))
    ratios = [without[0] / kept[0] for without, kept in zip(rows[False], rows[True], strict=True)]
    print(f"not kept / kept: {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")


if __name__ == "__main__":
    main()

"""The cost of an update with an item an episode beside an item a step, and scores under limits beside scores over the whole vocabulary.

    python benchmarks/episodes_update.py

One thread; seconds are those of the processor. The ways are measured in turn, several times, in one run, and the median is printed; the
loss of all ways is the same (checked). Episodes are random tokens of fixed lengths, without a model that sampled them: what is measured
depends on lengths alone.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from skill_ttrl.config import RLConfig, RuntimeConfig
from skill_ttrl.rl.batch import RolloutBatch, pack, with_advantages
from skill_ttrl.rl.device import make_accelerator
from skill_ttrl.rl.learner import LocalLearner
from skill_ttrl.rl.policy import Packing, Policy
from skill_ttrl.types import Completion, Group, Step, Task, Trajectory

REPEATS = 5


@dataclass(frozen=True)
class Shape:
    """Lengths of episodes, in tokens, and the model that learns from them."""

    name: str
    first: int
    """Of the first prompt."""
    observation: int
    action: int
    turns: int
    vocabulary: int
    hidden: int
    layers: int
    groups: int
    tries: int = 8
    allowed: int = 20
    """Tokens that each was drawn from; every third is forced."""


SHAPES = (
    Shape("one token an entity", 20, 4, 3, 12, 588, 96, 3, groups=8),
    Shape("words in pieces", 200, 40, 12, 20, 2000, 64, 2, groups=2),
)


class Tokenizer:
    """All that the policy asks of a tokenizer."""

    pad_token_id = 0


def episodes(shape: Shape, *, limited: bool) -> list[Group]:
    """Groups of episodes whose tokens only grow; those of a group begin with the same prompt."""
    draw, groups = random.Random(0), []

    def ids(count: int) -> tuple[int, ...]:
        return tuple(draw.randrange(shape.vocabulary) for _ in range(count))

    def allowed(token: int, place: int) -> tuple[int, ...]:
        return (token,) if place % 3 == 2 else tuple(sorted({token, *ids(shape.allowed - 1)}))

    for number in range(shape.groups):
        task, first, tries = Task(str(number), "e"), ids(shape.first), []
        for _ in range(shape.tries):
            steps: list[Step] = []
            prompt = first
            for _ in range(shape.turns):
                tokens = ids(shape.action)
                sets = tuple(allowed(token, place) for place, token in enumerate(tokens)) if limited else None
                done = Completion("", tokens, (-3.0,) * len(tokens), "stop", allowed=sets)
                steps.append(Step("", "", 0.0, False, False, prompt, done))
                prompt = (*prompt, *tokens, *ids(shape.observation))
            tries.append(Trajectory(task, tuple(steps), None, "terminated"))
        groups.append(Group(task, tuple(tries)))
    return groups


def make_learner(shape: Shape, packing: Packing) -> LocalLearner:
    """A learner whose updates leave the weights where they are."""
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=shape.vocabulary,
            hidden_size=shape.hidden,
            intermediate_size=2 * shape.hidden,
            num_hidden_layers=shape.layers,
            num_attention_heads=shape.hidden // 32,
            num_key_value_heads=shape.hidden // 32,
            tie_word_embeddings=True,
        )
    )
    config = RLConfig(
        learning_rate=1e-12,
        kl_coef=0.0,
        mini_batch_size=None,
        micro_batch_size=8,
        prompts_per_step=shape.groups,
    )
    accelerator = make_accelerator(RuntimeConfig(device="cpu", precision="fp32"))
    return LocalLearner(Policy(model, Tokenizer(), "cpu", packing=packing), config, accelerator, total_steps=1000)


Case = tuple[str, LocalLearner, RolloutBatch]


def measure(
    cases: Sequence[Case], clock: Callable[[], float] = time.process_time
) -> list[tuple[float, dict[str, float]]]:
    """(median seconds of an update, its metrics) of each case, one after the other, `REPEATS` times over after a first."""
    seconds: list[list[float]] = [[] for _ in cases]
    metrics: list[dict[str, float]] = [{} for _ in cases]
    for repeat in range(REPEATS + 1):
        for at, (_, learner, batch) in enumerate(cases):
            began = clock()
            metrics[at] = learner.update(replace(batch), step=repeat, seed=0, temperature=1.0)
            if repeat:
                seconds[at].append(clock() - began)
    return [(median(spent), found) for spent, found in zip(seconds, metrics, strict=True)]


def updates(shape: Shape) -> dict[str, float]:
    """An item a step and an item an episode, in padded rows and as prefix trees; gives the tokens that each way computes."""
    groups, draw = episodes(shape, limited=False), random.Random(1)
    advantages = [draw.gauss(0, 1) for _ in range(shape.groups * shape.tries)]
    cases: list[Case] = []
    ways: tuple[tuple[str, Packing], ...] = (("padded", "off"), ("packed", "on"))
    for join in (False, True):
        batch = with_advantages(pack(groups, join=join), groups, advantages)
        for way, packing in ways:
            cases.append((f"an item {'an episode' if join else 'a step'}, {way}", make_learner(shape, packing), batch))
    longest = shape.first + shape.turns * shape.action + (shape.turns - 1) * shape.observation
    print(f"{shape.name}: {len(advantages)} episodes of {shape.turns} turns, {longest} tokens at the end")
    found = measure(cases)
    losses = [metrics["policy_loss"] for _, metrics in found]
    assert max(losses) - min(losses) < 1e-5, losses
    for (name, _, batch), (seconds, metrics) in zip(cases, found, strict=True):
        tokens, operations = metrics["computed_tokens"], metrics["operations"] / 1e9
        print(
            f"  {name:29} {len(batch):5} items {int(tokens):8} tokens computed {operations:8.1f} GFLOP {seconds:7.2f} CPU s "
            f"({found[0][0] / seconds:4.1f}x)"
        )
    return {name: metrics["computed_tokens"] for (name, _, _), (_, metrics) in zip(cases, found, strict=True)}


def heads() -> None:
    """The same update with and without limits on the tokens, at a small vocabulary and at a large one."""
    for shape in (SHAPES[0], replace(SHAPES[0], vocabulary=151_936, groups=2)):
        cases: list[Case] = []
        for limited in (False, True):
            groups = episodes(shape, limited=limited)
            batch = with_advantages(pack(groups, join=True), groups, [1.0] * (shape.groups * shape.tries))
            kind = f"of {shape.allowed}, every third forced" if limited else "of the whole vocabulary"
            cases.append((f"tokens {kind}", make_learner(shape, "on"), batch))
        print(f"vocabulary {shape.vocabulary}: {int(cases[0][2].trained_F.sum())} trained tokens")
        for (name, _, _), (seconds, _) in zip(cases, measure(cases), strict=True):
            print(f"  {name:33} {seconds:7.2f} CPU s an update")


def main() -> None:
    """Print both tables."""
    torch.set_num_threads(1)
    for shape in SHAPES:
        updates(shape)
    heads()


if __name__ == "__main__":
    main()

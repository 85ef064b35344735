"""Cold start: supervised learning on demonstrations, loss on completions only."""

from __future__ import annotations

import time

import numpy as np

from skill_ttrl.config import SFTConfig
from skill_ttrl.envs.math.tasks import load_demonstrations
from skill_ttrl.errors import ConfigError, DataError
from skill_ttrl.rl.sft import SFTLearner
from skill_ttrl.runs.checkpoint import load_tensors
from skill_ttrl.stages.context import Run, Workbench
from skill_ttrl.types import derive_seed

Encoded = tuple[tuple[int, ...], tuple[int, ...]]
"""Prompt and response tokens of one demonstration."""


def cold_start(run: Run, demonstrations: tuple[list[Encoded], list[Encoded]]) -> None:
    """Train on (clean, noisy) demonstrations for `sft.steps` steps; the first `clean_fraction` of them see no noise."""
    config = run.config.sft
    done = run.steps_done("sft")
    if done >= config.steps:
        return
    clean, noisy = demonstrations
    learner = SFTLearner(run.bench.policy, config, run.bench.accelerator)
    if done and run.resumed is not None:
        learner.load_state_dict(load_tensors(run.resumed.path)["learner"])
    run.progress.start("cold start", config.steps, "step", done)
    for step in range(done, config.steps):
        began = time.perf_counter()
        data = clean if step < config.clean_fraction * config.steps else noisy
        figures = learner.step(
            [data[i] for i in batch_indices(len(data), config, step, run.config.seed)], step, seed=run.config.seed
        )
        run.log.log("sft", step, figures)
        run.log.time("sft", step, {"seconds": time.perf_counter() - began})
        run.progress.advance("cold start", step + 1, figures)
        finished = step + 1
        if finished == config.steps or finished % config.checkpoint_every == 0 or run.stop.signum is not None:
            run.checkpoint("sft", finished, state={}, tensors={"learner": learner.state_dict()})
            run.leave_if_asked("sft", finished)
    run.progress.finish("cold start")


def batch_indices(count: int, config: SFTConfig, step: int, seed: int) -> list[int]:
    """Which demonstrations a step takes: each epoch is one shuffle of all of them, drawn from the run's seed."""
    indices: list[int] = []
    position = step * config.batch_size
    while len(indices) < config.batch_size:
        epoch, offset = divmod(position + len(indices), count)
        order = np.random.default_rng(derive_seed(seed, "sft", epoch)).permutation(count)
        indices += order[offset : offset + config.batch_size - len(indices)].tolist()
    return indices


def encode_demonstrations(bench: Workbench) -> tuple[list[Encoded], list[Encoded]]:
    """(clean, noisy) demonstrations as tokens; the two are the same where the source has no noise."""
    config = bench.config.sft
    if config.data is None:
        raise ConfigError(
            "The sft phase needs demonstrations: set sft.data.path (see `skillttrl configs show quickstart`)."
        )
    seed = derive_seed(bench.config.seed, "demonstrations")
    noisy = [_encode(bench, *pair) for pair in load_demonstrations(config.data, seed=seed)]
    if not noisy:
        raise DataError(f"{config.data.path} holds no demonstrations.")
    longest = max(len(prompt) + len(response) for prompt, response in noisy)
    positions = getattr(bench.policy.model.config, "max_position_embeddings", None)
    if positions is not None and longest > positions:
        raise DataError(
            f"The longest demonstration of {config.data.path} has {longest} tokens, but the model has {positions} "
            "positions. Shorten it, or take a model with more."
        )
    if not config.data.path.startswith("family:"):
        return noisy, noisy
    return [_encode(bench, *pair) for pair in load_demonstrations(config.data, seed=seed, noise=0.0)], noisy


def _encode(bench: Workbench, prompt: str, response: str) -> Encoded:
    tokenizer = bench.policy.tokenizer
    ids = tokenizer.encode(response, add_special_tokens=False)
    return bench.backend.encode(bench.agent.messages((), prompt)), (*ids, tokenizer.eos_token_id)

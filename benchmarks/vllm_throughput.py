"""Tokens a second through our agent loop beside those of the bare engine, on the same prompts.

    python benchmarks/vllm_throughput.py                 # needs vLLM in this environment; about 3 minutes on 2 cores
    python benchmarks/vllm_throughput.py --pairs 25 --tokens 128

The loop is what a training step does to sample: environments are reset, prompts rendered and encoded, completions decoded and
handed to the environments, trajectories made (`RolloutWorker.generate_rollouts`). Beside it stands `vllm.LLM.generate` of the very engine,
in its own thread, on the same token ids with the same `SamplingParams`. Both draw the same tokens, which is checked. They
take turns, each pair in another order, with an empty prefix cache each time, so that what else the machine does meets both.
Printed are the median of the pairs' ratios and its bootstrap interval. The model has random weights: what it writes does
not matter here.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import numpy as np

from skill_ttrl.agents.agent import AgentInput
from skill_ttrl.config import load_config
from skill_ttrl.llm.backend import Request
from skill_ttrl.llm.vllm.backend import VLLMBackend
from skill_ttrl.llm.vllm.engine import Work
from skill_ttrl.progress import SilentProgress
from skill_ttrl.train.build import build
from skill_ttrl.train.run import RolloutWorker, TrainingComponents
from skill_ttrl.types import Group, Task, derive_seed

MEDIAN, LOWER_END = 0.95, 0.90
"""What the median and the lower end of its interval are to reach."""


def main() -> None:
    """Take pairs and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--samples", type=int, default=8, help="of each prompt")
    parser.add_argument("--tokens", type=int, default=64, help="most of a completion")
    parser.add_argument("--hidden", type=int, default=256, help="width of the model, in 4 heads")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    parts, _ = build(load_config("quickstart", settings(options)), SilentProgress())
    try:
        ratios = take_pairs(parts, options)
    finally:
        parts.close()
    low, high = interval(ratios)
    median = statistics.median(ratios)
    print(f"median of {len(ratios)} ratios {median:.3f}, 95 % interval [{low:.3f}, {high:.3f}]")
    reached = median >= MEDIAN and low >= LOWER_END
    print(f"median >= {MEDIAN} and lower end >= {LOWER_END}: {'yes' if reached else 'no'}")


def settings(options: argparse.Namespace) -> list[str]:
    """The quickstart with vLLM, made wider and without a cold start."""
    return [
        "rollout.backend=vllm",
        "phases=[rl]",
        f"model.builtin={{hidden_size: {options.hidden}, layers: {options.layers}, heads: 4, max_positions: 512}}",
        f"rollout.max_new_tokens={options.tokens}",
        f"data.train.limit={options.prompts}",
        f"rl.prompts_per_step={options.prompts}",
        f"runtime.threads={options.threads}",
    ]


def take_pairs(parts: TrainingComponents, options: argparse.Namespace) -> list[float]:
    """Ratios of the two rates, ours over the engine's, one a pair; one pair before them is not counted."""
    worker, backend = parts.worker, parts.backend
    assert isinstance(backend, VLLMBackend)
    tasks = list(parts.train_tasks)[: options.prompts]
    ratios = []
    print("| pair | tokens | loop, tokens/s | engine, tokens/s | ratio |", "|---|---|---|---|---|", sep="\n")
    for pair in range(options.pairs + 1):
        seed = derive_seed(0, "pair", pair)
        work = bare_work(worker, backend, tasks, options.samples, seed)
        if pair % 2:
            groups, ours = through_loop(worker, backend, tasks, options.samples, seed)
            outputs, theirs = bare(backend, work)
        else:
            outputs, theirs = bare(backend, work)
            groups, ours = through_loop(worker, backend, tasks, options.samples, seed)
        tokens = same_tokens(groups, outputs)
        if pair:
            ratios.append(theirs / ours)
            print(f"| {pair} | {tokens} | {tokens / ours:,.0f} | {tokens / theirs:,.0f} | {theirs / ours:.3f} |")
    return ratios


def bare_work(worker: RolloutWorker, backend: VLLMBackend, tasks: list[Task], samples: int, seed: int) -> list[Work]:
    """What `through_loop` will ask the engine for."""
    agent = worker.agent
    prompts = [backend.encode(agent.prompt(AgentInput(str(task.options["question"]))).messages) for task in tasks]
    requests = [Request(token_ids=ids, n=samples) for ids in prompts]
    return backend.work(requests, worker.sampling, derive_seed(seed, "turn", 0))


def through_loop(
    worker: RolloutWorker, backend: VLLMBackend, tasks: list[Task], samples: int, seed: int
) -> tuple[list[Group], float]:
    """Groups, and seconds."""
    backend.engine().call(lambda llm: llm.reset_prefix_cache())
    began = time.perf_counter()
    groups = worker.generate_rollouts(tasks, samples, worker.sampling, seed)
    return groups, time.perf_counter() - began


def bare(backend: VLLMBackend, work: list[Work]) -> tuple[list[Any], float]:
    """Outputs of `LLM.generate`, and seconds."""
    backend.engine().call(lambda llm: llm.reset_prefix_cache())
    prompts = [{"prompt_token_ids": list(each.prompt_ids)} for each in work]
    params = [each.params for each in work]

    def generate(llm: Any) -> tuple[list[Any], float]:
        began = time.perf_counter()
        outputs = llm.generate(prompts, params, use_tqdm=False)
        return outputs, time.perf_counter() - began

    return backend.engine().call(generate)


def same_tokens(groups: list[Group], outputs: list[Any]) -> int:
    """How many tokens were sampled; both ways must have sampled as many, and nearly all the same."""
    ours = [
        step.completion.token_ids
        for group in groups
        for each in group.trajectories
        for step in each.steps
        if step.completion
    ]
    theirs = [tuple(sample.token_ids) for output in outputs for sample in output.outputs]
    same = sum(one == other for one, other in zip(ours, theirs, strict=True))
    counts = sum(map(len, ours)), sum(map(len, theirs))
    if same < 0.98 * len(ours):
        raise RuntimeError(f"Only {same} of {len(ours)} completions are the same: the two did not do the same work.")
    return counts[0]


def interval(ratios: list[float], draws: int = 10_000) -> tuple[float, float]:
    """The 95 % percentile bootstrap interval of the median."""
    drawn = np.random.default_rng(0).choice(ratios, (draws, len(ratios)))
    low, high = np.quantile(np.median(drawn, axis=1), (0.025, 0.975))
    return float(low), float(high)


if __name__ == "__main__":
    main()

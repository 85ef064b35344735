"""The learner's update: seconds, tokens a second and memory, against `trl.GRPOTrainer` and by length, batch and vocabulary.

    pip install trl==1.16.0
    python benchmarks/learner_speed.py versus --rounds 3
    python benchmarks/learner_speed.py sweep length --plot docs/learner-speed-length.svg

Every measurement is a process of its own: a Qwen2 with random weights takes the same random prompts, completions of random
lengths and advantages, and does one optimiser step a batch (GRPO's clipped loss, on-policy, no KL, AdamW, clip 1.0). The first step
is not counted. `ours` packs (`model.packing`), `padded` does not. `trl` is TRL's trainer whose generation returns the
stored completions; on a CPU its head scores prompts and padding too, so `trl_compact` lets it score completions alone, as it does on a
GPU. Kinds alternate, round after round; what is printed are medians, wall and CPU time, and the largest resident memory of
the process.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve()
KINDS = ("ours", "padded", "trl", "trl_compact")


@dataclass(frozen=True)
class Case:
    """A model and a batch. The default model has 102M parameters, 78M of them its embedding, which is its head too."""

    kind: str = "ours"
    hidden: int = 512
    intermediate: int = 1536
    layers: int = 8
    heads: int = 8
    key_value_heads: int = 2
    vocabulary: int = 151_936
    prompts: int = 1
    samples: int = 8
    prompt_tokens: int = 512
    shortest: int = 32
    longest: int = 256
    micro_batch: int = 8
    steps: int = 3
    threads: int = 1


SMALL = Case(
    hidden=256, intermediate=768, layers=4, heads=4, vocabulary=32_000, prompts=2, prompt_tokens=256, longest=128
)
"""Where the sweeps start: 13M parameters."""
SWEEPS: dict[str, tuple[str, list[Case]]] = {
    "length": (
        "tokens of the longest completion",
        [replace(SMALL, shortest=length // 4, longest=length) for length in (64, 128, 256, 512, 1024)],
    ),
    "prompt": (
        "tokens of the prompt",
        [replace(SMALL, prompt_tokens=length) for length in (32, 128, 512, 1024, 2048)],
    ),
    "batch": ("samples a prompt", [replace(SMALL, samples=count, micro_batch=count) for count in (1, 2, 4, 8, 16, 32)]),
    "vocabulary": (
        "tokens of the vocabulary",
        [replace(SMALL, vocabulary=size) for size in (1_000, 8_000, 32_000, 64_000, 151_936)],
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["versus", "sweep", "worker"])
    parser.add_argument("name", nargs="?", choices=list(SWEEPS), help="what to sweep")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kinds", nargs="+", default=None, choices=KINDS)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--steps", type=int, default=3, help="of each process, the first not counted")
    parser.add_argument("--plot", type=Path, help="write the sweep as an SVG file")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.what == "worker":
        print(json.dumps(measured_here(Case(**json.loads(options.case)))))
    elif options.what == "versus":
        versus(options.kinds or KINDS, options)
    else:
        sweep(options.name or "length", options.kinds or ["ours", "padded"], options)


def versus(kinds: Sequence[str], options: argparse.Namespace) -> None:
    """One batch by each kind in turn, and ratios to TRL within each round."""
    rounds = []
    for number in range(options.rounds):
        rounds.append({kind: measured(Case(kind=kind, threads=options.threads, steps=options.steps)) for kind in kinds})
        print(f"round {number + 1}: " + ", ".join(line(kind, row) for kind, row in rounds[-1].items()), flush=True)
    print("median: " + ", ".join(line(kind, median([row[kind] for row in rounds])) for kind in kinds))
    for kind, other in ((kind, other) for kind in kinds[:2] for other in kinds[2:]):
        speed = [row[other]["seconds"] / row[kind]["seconds"] for row in rounds]
        work = [row[other]["cpu_seconds"] / row[kind]["cpu_seconds"] for row in rounds]
        memory = [row[kind]["peak_bytes"] / row[other]["peak_bytes"] for row in rounds]
        print(
            f"{kind} against {other}: {spread(speed)} times as fast (wall), {spread(work)} (CPU time), "
            f"{spread(memory)} of the peak memory"
        )


def sweep(name: str, kinds: Sequence[str], options: argparse.Namespace) -> None:
    """Each case by each kind, round after round."""
    label, cases = SWEEPS[name]
    field = {"length": "longest", "prompt": "prompt_tokens", "batch": "samples", "vocabulary": "vocabulary"}[name]
    found: dict[tuple[str, int], list[dict[str, float]]] = {}
    for _ in range(options.rounds):
        for case in cases:
            for kind in kinds:
                row = measured(replace(case, kind=kind, threads=options.threads, steps=options.steps))
                found.setdefault((kind, getattr(case, field)), []).append(row)
    print(f"| {label} | kind | s/step | CPU s/step | tokens/s | peak GB |\n|---|---|---|---|---|---|")
    series: dict[str, list[tuple[float, dict[str, float]]]] = {kind: [] for kind in kinds}
    for (kind, value), rows in found.items():
        row = median(rows)
        series[kind].append((value, row))
        print(
            f"| {value} | {kind} | {row['seconds']:.2f} | {row['cpu_seconds']:.2f} | {row['tokens_per_second']:.0f} "
            f"| {row['peak_bytes'] / 1e9:.2f} |"
        )
    if options.plot is not None:
        from speed_plot import draw

        panels = [("CPU seconds a step", "cpu_seconds", 1.0), ("peak memory (GB)", "peak_bytes", 1e-9)]
        options.plot.write_text(draw(label, panels, series), encoding="utf-8")
        print(f"plot: {options.plot}")


def measured(case: Case) -> dict[str, float]:
    """Measure in a fresh process."""
    command = [sys.executable, str(HERE), "worker", "--case", json.dumps(asdict(case))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stderr[-3000:]}")
    row: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return row


def measured_here(case: Case) -> dict[str, float]:
    """Medians over the counted steps of one case, and the peak of this process."""
    import torch

    torch.set_num_threads(case.threads)
    times = (steps_trl if case.kind.startswith("trl") else steps_ours)(case)[1:]
    tokens = sum(len(prompt) + len(completion) for prompt, completion, _ in items(case))
    seconds = statistics.median(wall for wall, _ in times)
    return {
        "seconds": seconds,
        "cpu_seconds": statistics.median(cpu for _, cpu in times),
        "tokens_per_second": tokens / seconds,
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024),
    }


def items(case: Case) -> list[tuple[list[int], list[int], float]]:
    """(prompt, completion, advantage) of each sample."""
    import random

    draw = random.Random(1)
    found = []
    for _ in range(case.prompts):
        prompt = [draw.randrange(case.vocabulary) for _ in range(case.prompt_tokens)]
        for _ in range(case.samples):
            length = draw.randint(case.shortest, case.longest)
            found.append((prompt, [draw.randrange(case.vocabulary) for _ in range(length)], draw.gauss(0, 1)))
    return found


def build_model(case: Case) -> Any:
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    return Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=case.vocabulary,
            hidden_size=case.hidden,
            intermediate_size=case.intermediate,
            num_hidden_layers=case.layers,
            num_attention_heads=case.heads,
            num_key_value_heads=case.key_value_heads,
            tie_word_embeddings=True,
        )
    )


def timed(run: Callable[[], object]) -> tuple[float, float]:
    began, worked = time.perf_counter(), time.process_time()
    run()
    return time.perf_counter() - began, time.process_time() - worked


def steps_ours(case: Case) -> list[tuple[float, float]]:
    """(wall, CPU) seconds of each update."""
    from skill_ttrl.config import RLConfig, RuntimeConfig
    from skill_ttrl.rl.device import make_accelerator
    from skill_ttrl.rl.learner import LocalLearner
    from skill_ttrl.rl.pack import EncodedDemonstration, pack_demonstrations
    from skill_ttrl.rl.policy import Policy

    rows = items(case)
    batch = pack_demonstrations([EncodedDemonstration(prompt, completion) for prompt, completion, _ in rows])
    import torch

    advantages = torch.tensor([advantage for _, _, advantage in rows])[batch.item_F] * batch.trained_F
    prompts = torch.arange(len(rows)) // case.samples
    batch = replace(batch, advantages_F=advantages, prompt_index_N=prompts)
    policy = Policy(build_model(case), None, "cpu", packing="off" if case.kind == "padded" else "on")
    config = RLConfig(
        kl_coef=0.0,
        mini_batch_prompts=None,
        prompts_per_step=case.prompts,
        micro_batch_size=case.micro_batch,
        learning_rate=1e-6,
    )
    accelerator = make_accelerator(RuntimeConfig(device="cpu", precision="fp32", threads=case.threads))
    learner = LocalLearner(policy, config, accelerator, total_steps=case.steps)
    batch = learner.score(batch, temperature=1.0, own=True, reference=False)
    return [timed(partial(learner.update, batch, step=step, seed=0, temperature=1.0)) for step in range(case.steps)]


def steps_trl(case: Case) -> list[tuple[float, float]]:
    """The same for `trl.GRPOTrainer`, whose generation gives the stored completions."""
    import torch
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer
    from trl.trainer import utils

    from skill_ttrl.llm.models.builtin import build_tokenizer

    if case.kind == "trl_compact":  # only where completions are picked; its kernels stay those of torch
        utils._use_triton = lambda device: True
    rows = items(case)
    longest = max(len(completion) for _, completion, _ in rows)
    mask = torch.tensor([[1] * len(completion) + [0] * (longest - len(completion)) for _, completion, _ in rows])
    stored = {
        "prompt_ids": torch.tensor([prompt for prompt, _, _ in rows]),
        "prompt_mask": torch.ones(len(rows), case.prompt_tokens, dtype=torch.long),
        "completion_ids": torch.tensor([ids + [0] * (longest - len(ids)) for _, ids, _ in rows]),
        "completion_mask": mask,
        "advantages": torch.tensor([advantage for _, _, advantage in rows]),
    }

    class Stored(GRPOTrainer):  # type: ignore[misc]
        def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
            return {**stored, "num_items_in_batch": mask.sum()}

    marks: list[tuple[float, float]] = []
    times: list[tuple[float, float]] = []

    class Stamp(TrainerCallback):
        def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
            marks.append((time.perf_counter(), time.process_time()))

        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            times.append((time.perf_counter() - marks[-1][0], time.process_time() - marks[-1][1]))

    with tempfile.TemporaryDirectory() as folder:
        config = GRPOConfig(
            output_dir=folder,
            per_device_train_batch_size=case.micro_batch,
            gradient_accumulation_steps=len(rows) // case.micro_batch,
            num_generations=case.samples,
            max_completion_length=longest,
            max_steps=case.steps,
            learning_rate=1e-6,
            max_grad_norm=1.0,
            beta=0.0,
            temperature=1.0,
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            report_to="none",
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
        )
        Stored(
            model=build_model(case),
            processing_class=build_tokenizer(()),
            reward_funcs=lambda completions, **_: [0.0] * len(completions),
            args=config,
            train_dataset=Dataset.from_list([{"prompt": "x"}] * case.prompts),
            callbacks=[Stamp()],
        ).train()
    return times


def median(rows: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: statistics.median(row[name] for row in rows) for name in rows[0]}


def line(kind: str, row: dict[str, float]) -> str:
    return (
        f"{kind} {row['seconds']:.2f} s ({row['cpu_seconds']:.2f} CPU), {row['tokens_per_second']:.0f} tokens/s, "
        f"{row['peak_bytes'] / 1e9:.2f} GB"
    )


def spread(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


if __name__ == "__main__":
    main()

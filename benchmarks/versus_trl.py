"""One GRPO step, ours against TRL's, side by side on the same machine in one run.

    pip install trl==1.16.0
    python benchmarks/versus_trl.py --rounds 5 --threads 1                  # four optimizer steps a batch, as the recipe
    python benchmarks/versus_trl.py --rounds 5 --threads 1 --updates 1      # one

Both train the same 0.27M-parameter Qwen2 on the same addition problems with the same numbers: 32 prompts x 32 samples a
step, at most 16 new tokens, majority reward, `--updates` optimizer steps, no KL, AdamW at 3e-4, clip 1.0, micro-batches of 64 (`--set`
changes ours, `--trl-micro-batch` TRL's). Rounds alternate (ours, TRL, ours, ...); each round takes `--steps` steps and the first step of
each is not counted. What is compared is a whole step: sampling, reward and update, and with ours the records of a run; in seconds of the
clock and of the CPU. TRL samples with transformers' `generate`, its way without vLLM, and mixes the samples of all prompts.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch

from skill_ttrl.answers import extract
from skill_ttrl.config import SkillTTRLConfig, load_config
from skill_ttrl.progress import SilentProgress
from skill_ttrl.stages import train
from skill_ttrl.stages.setup.build import build
from skill_ttrl.voting import compute_voting_rewards

PROMPTS, SAMPLES = 32, 32


class Seconds(NamedTuple):
    """Of a step."""

    wall: float
    cpu: float


def main() -> None:
    """Alternate the two and print seconds a step and their ratio, round by round."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--updates", type=int, default=4, help="optimizer steps a batch of samples, on both sides")
    parser.add_argument("--trl-micro-batch", type=int, default=64)
    parser.add_argument("--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE", help="ours")
    options = parser.parse_args()
    if PROMPTS % options.updates or PROMPTS * SAMPLES % (options.updates * options.trl_micro_batch):
        parser.error(f"--updates must divide {PROMPTS}, and --trl-micro-batch the samples of an optimizer step")
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as scratch:
        cold = Path(scratch) / "cold"
        settings = ["phases=[sft]", f"runtime.threads={options.threads}", "eval.samples=1"]
        train.run(load_config("quickstart", settings), cold)
        model = str(cold / "checkpoints" / "sft-000500")
        rounds = []
        for number in range(options.rounds):
            ours = seconds_ours(model, Path(scratch) / f"ours-{number}", options)
            theirs = seconds_trl(model, Path(scratch) / f"trl-{number}", options)
            rounds.append((ours, theirs))
            print(
                f"round {number + 1}: ours {ours.wall:.3f} s/step ({ours.cpu:.3f} CPU), TRL {theirs.wall:.3f} s/step "
                f"({theirs.cpu:.3f} CPU), TRL/ours {theirs.wall / ours.wall:.2f} ({theirs.cpu / ours.cpu:.2f})",
                flush=True,
            )
        for name, place in (("wall", 0), ("CPU", 1)):
            parts = [[pair[side][place] for pair in rounds] for side in (0, 1)]
            ratios = [theirs / ours for ours, theirs in zip(*parts, strict=True)]
            mine, other, ratio = (spread(values) for values in (*parts, ratios))
            print(f"{name} time of a step, medians and ranges: ours {mine} s, TRL {other} s, TRL/ours {ratio}")


def spread(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


class Clock:
    """Times at which steps begin or end."""

    def __init__(self) -> None:
        self._marks: list[Seconds] = []

    def mark(self) -> None:
        self._marks.append(Seconds(time.perf_counter(), time.process_time()))

    def median(self) -> Seconds:
        """Of the steps between the marks, but for the first."""
        pairs = list(itertools.pairwise(self._marks))[1:]
        return Seconds(
            statistics.median(later.wall - earlier.wall for earlier, later in pairs),
            statistics.median(later.cpu - earlier.cpu for earlier, later in pairs),
        )


class StepClock(SilentProgress):
    """Marks each step of the phase of reinforcement learning as it begins."""

    def __init__(self) -> None:
        self.clock = Clock()

    def enter(self, phase: str, part: str) -> None:
        if part == "sample":
            self.clock.mark()


def our_config(model: str, options: argparse.Namespace) -> SkillTTRLConfig:
    """The quickstart's reinforcement phase, from a finished cold start, without evaluation."""
    settings = [
        "phases=[rl]",
        f"model.path={model}",
        f"rl.steps={options.steps + 1}",  # a step is timed by the next one's beginning
        "eval.samples=1",
        "eval.greedy=false",
    ]
    settings += ["eval.extra_temperatures=[]", f"runtime.threads={options.threads}", "rl.save_steps=1000"]
    settings += ["rl.mini_batch_by=samples", f"rl.mini_batch_size={PROMPTS // options.updates}", *options.overrides]
    return load_config("quickstart", settings)


def seconds_ours(model: str, output: Path, options: argparse.Namespace) -> Seconds:
    """Median of a step, everything in it: sampling, vote, reward, update and writing the records."""
    progress = StepClock()
    train.run(our_config(model, options), output, progress=progress)
    return progress.clock.median()


def seconds_trl(model: str, output: Path, options: argparse.Namespace) -> Seconds:
    """The same for `trl.GRPOTrainer`."""
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    parts, _ = build(our_config(model, options), SilentProgress())
    questions = [str(task.options["question"]) for task in parts.train_tasks]
    rows = Dataset.from_list([{"prompt": [{"role": "user", "content": question}]} for question in questions])
    clock = Clock()

    class Stamp(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step % options.updates == 0:
                clock.mark()

    def majority(completions: list[Any], **_: Any) -> list[float]:
        answers = [extract(str(turns[0]["content"])) for turns in completions]
        groups = [answers[start : start + SAMPLES] for start in range(0, len(answers), SAMPLES)]
        return [reward for group in groups for reward in compute_voting_rewards(group)[0]]

    config = GRPOConfig(
        output_dir=str(output),
        per_device_train_batch_size=options.trl_micro_batch,
        steps_per_generation=PROMPTS * SAMPLES // options.trl_micro_batch,
        gradient_accumulation_steps=PROMPTS * SAMPLES // options.trl_micro_batch // options.updates,
        num_generations=SAMPLES,
        max_completion_length=16,
        max_steps=(options.steps + 1) * options.updates,
        learning_rate=3e-4,
        adam_beta2=0.95,
        lr_scheduler_type="constant",
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
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32),
        processing_class=AutoTokenizer.from_pretrained(model),
        reward_funcs=majority,
        args=config,
        train_dataset=rows,
        callbacks=[Stamp()],
    )
    trainer.train()
    return clock.median()


if __name__ == "__main__":
    main()

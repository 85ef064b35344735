"""One GRPO step, ours against TRL's, side by side on the same machine in one run.

    pip install trl==1.16.0
    python benchmarks/versus_trl.py --rounds 5 --threads 1                  # four optimizer steps a batch, as the recipe
    python benchmarks/versus_trl.py --rounds 5 --threads 1 --updates 1      # one
    python benchmarks/versus_trl.py --recipe quickstart_pretrained --rounds 3 --steps 3 --threads 1 --trl-micro-batch 8

Both train the same model on the same problems with the numbers of the recipe: the 0.27M-parameter Qwen2 of `quickstart` (32 prompts x
32 samples a step, at most 16 new tokens) or SmolLM2-135M (8 x 16, at most 8, up to a line break); majority reward, `--updates` optimizer
steps, no KL, AdamW, clip 1.0, float32 (`--set` changes ours, `--trl-micro-batch` TRL's). Rounds alternate (ours, TRL, ours, ...), each in
a process of its own, whose peak memory is compared too; each takes `--steps` steps, the first of several is not counted. What is compared is
a whole step: sampling, reward and update, and with ours the records of a run; in seconds of the clock and of the CPU. TRL samples with
transformers' `generate`, its way without vLLM, and mixes the samples of all prompts.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import torch

from skill_ttrl.agents.agent import PromptFormatter
from skill_ttrl.answers import extract
from skill_ttrl.commands import train
from skill_ttrl.config import SkillTTRLConfig, load_config
from skill_ttrl.llm.models.gguf import model_folder
from skill_ttrl.progress import SilentProgress
from skill_ttrl.train.tasks import ConfigTasks
from skill_ttrl.voting import compute_voting_rewards


class Cost(NamedTuple):
    """Of a step in seconds, and of the whole process."""

    wall: float
    cpu: float
    peak_gb: float


def main() -> None:
    """Alternate the two and print what a step costs and the ratio, round by round."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="quickstart", choices=["quickstart", "quickstart_pretrained"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--updates", type=int, help="optimizer steps a batch of samples, on both sides; default: the recipe's"
    )
    parser.add_argument("--trl-micro-batch", type=int, default=64)
    parser.add_argument("--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE", help="ours")
    options = parser.parse_args()
    config = load_config(options.recipe)
    prompts = config.rl.prompts_per_step
    options.updates = options.updates or prompts // (config.rl.mini_batch_size or prompts)
    if prompts % options.updates or prompts * config.rollout.n_samples_per_prompt % (
        options.updates * options.trl_micro_batch
    ):
        parser.error(f"--updates must divide {prompts}, and --trl-micro-batch the samples of an optimizer step")
    with tempfile.TemporaryDirectory() as scratch:
        model = model_folder(config.model.path)
        if "sft" in config.phases:
            settings = ["phases=[sft]", f"runtime.threads={options.threads}", "eval.samples=1"]
            train.run(load_config(options.recipe, settings), Path(scratch) / "cold")
            model = str(Path(scratch) / "cold" / "checkpoints" / f"sft-{config.sft.steps:06}")
        rounds = []
        for number in range(options.rounds):
            pair = []
            for name, measure in (("ours", cost_ours), ("TRL", cost_trl)):
                cost = alone(measure, model, Path(scratch) / f"{name}-{number}", options)
                pair.append(cost)
                print(
                    f"round {number + 1}: {name} {cost.wall:.3f} s/step ({cost.cpu:.3f} CPU), {cost.peak_gb:.2f} GB",
                    flush=True,
                )
            rounds.append(pair)
        for place, name in enumerate(("wall s of a step", "CPU s of a step", "peak GB")):
            parts = [[pair[side][place] for pair in rounds] for side in (0, 1)]
            ratios = [theirs / ours for ours, theirs in zip(*parts, strict=True)]
            mine, other, ratio = (spread(values) for values in (*parts, ratios))
            print(f"{name}, medians and ranges: ours {mine}, TRL {other}, TRL/ours {ratio}")


def alone(measure: Callable[..., Cost], *arguments: Any) -> Cost:
    """What `measure` returns in a process of its own."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        return process.submit(measure, *arguments).result()


def spread(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


class Clock:
    """Times at which steps begin or end, wall and CPU."""

    def __init__(self) -> None:
        self._marks: list[tuple[float, float]] = []

    def mark(self) -> None:
        self._marks.append((time.perf_counter(), time.process_time()))

    def cost(self) -> Cost:
        """Median of the steps between the marks, but for the first where there are others."""
        steps = list(itertools.pairwise(self._marks))
        pairs = steps[1:] or steps
        wall, cpu = (statistics.median(later[at] - earlier[at] for earlier, later in pairs) for at in (0, 1))
        return Cost(wall, cpu, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6)


class StepClock(SilentProgress):
    """Marks each step of the phase of reinforcement learning as it begins."""

    def __init__(self) -> None:
        self.clock = Clock()

    def enter(self, phase: str, part: str) -> None:
        if part == "sample":
            self.clock.mark()


def our_config(model: str, options: argparse.Namespace) -> SkillTTRLConfig:
    """The recipe's reinforcement phase, without its evaluation."""
    settings = [
        "phases=[rl]",
        f"model.path={model}",
        f"rl.steps={options.steps + 1}",  # a step is timed by the next one's beginning
        "eval.samples=1",
        "eval.greedy=false",
    ]
    settings += ["eval.extra_temperatures=[]", f"runtime.threads={options.threads}", "rl.save_steps=1000"]
    share = load_config(options.recipe).rl.prompts_per_step // options.updates
    settings += [f"rl.mini_batch_size={share}", *options.overrides]
    return load_config(options.recipe, settings)


def cost_ours(model: str, output: Path, options: argparse.Namespace) -> Cost:
    """Of a step, everything in it: sampling, vote, reward, update and writing the records."""
    torch.set_num_threads(options.threads)
    progress = StepClock()
    train.run(our_config(model, options), output, progress=progress)
    return progress.clock.cost()


def cost_trl(model: str, output: Path, options: argparse.Namespace) -> Cost:
    """The same for `trl.GRPOTrainer`."""
    torch.set_num_threads(options.threads)
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    ours = our_config(model, options)
    tokenizer: Any = AutoTokenizer.from_pretrained(model)
    network: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    tasks = ConfigTasks(ours).training()
    formatter, last_number = PromptFormatter.from_config(ours.agent), bool(ours.env.kwargs.get("last_number"))
    texts = [formatter.format_prompt(str(task.options["question"])) for task in tasks]
    plain = ours.model.chat_template == "none"
    rows = Dataset.from_list([{"prompt": text if plain else [{"role": "user", "content": text}]} for text in texts])
    samples = ours.rollout.n_samples_per_prompt
    clock = Clock()
    if ours.rollout.stop:  # any token that has the text ends a completion: `generate` stops, and TRL masks what follows
        pieces = tokenizer.batch_decode([[token] for token in range(len(tokenizer))])
        ends = [token for token, piece in enumerate(pieces) if any(stop in piece for stop in ours.rollout.stop)]
        network.generation_config.eos_token_id = [tokenizer.eos_token_id, *ends]

    class Stamp(TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            clock.mark()

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step % options.updates == 0:
                clock.mark()

    def majority(completions: list[Any], **_: Any) -> list[float]:
        said = completions if plain else [turns[0]["content"] for turns in completions]
        answers = [extract(str(text), last_number=last_number) for text in said]
        groups = [answers[start : start + samples] for start in range(0, len(answers), samples)]
        return [reward for group in groups for reward in compute_voting_rewards(group)[0]]

    micro_batches = ours.rl.prompts_per_step * samples // options.trl_micro_batch
    config = GRPOConfig(
        output_dir=str(output),
        per_device_train_batch_size=options.trl_micro_batch,
        steps_per_generation=micro_batches,
        gradient_accumulation_steps=micro_batches // options.updates,
        num_generations=samples,
        max_completion_length=ours.rollout.max_new_tokens,
        max_steps=options.steps * options.updates,
        learning_rate=ours.rl.learning_rate,
        adam_beta2=ours.rl.betas[1],
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
        model=network,
        processing_class=tokenizer,
        reward_funcs=majority,
        args=config,
        train_dataset=rows,
        callbacks=[Stamp()],
    )
    trainer.train()
    return clock.cost()


if __name__ == "__main__":
    main()

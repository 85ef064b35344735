"""Reward after imitation on ALFWorld's official games, with controls: the tables of benchmarks/results/alfworld.md.

    python benchmarks/alfworld_rl.py --arms grpo --seeds 0 --demonstrations -o runs/alfworld-rl  # a cold start and an arm: 5 CPU minutes
    python benchmarks/alfworld_rl.py -o runs/alfworld-rl                                         # all arms and sizes, three seeds
    python benchmarks/alfworld_rl.py --tables-only --measure --svg curves.svg -o runs/alfworld-rl

A cold start imitates few episodes of the expert, and all arms of a seed begin with it. `imitation` imitates the same episodes for about as many more CPU
seconds as GRPO takes, `coin` is GRPO with a fair coin as reward. `--demonstrations` are cold starts of other sizes with as many updates: what a demonstration is worth.
Training episodes end after 30 turns, in which nearly all that are won at all are won; measured is on the 134 games of valid_unseen with 50 turns.
Finished parts are not repeated, killed runs go on. It needs the official games (`ALFWORLD_DATA`).
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean

from curve_plot import Curve, Panel, draw

from skill_ttrl.runs.folder import metric_rows
from skill_ttrl.statistics import mean_interval, paired_difference, repeats_interval
from skill_ttrl.storage.files import write_atomic
from skill_ttrl.storage.jsonl import read_jsonl
from skill_ttrl.train.results import Evaluation, ProblemResult
from skill_ttrl.types import from_json

RECIPE, COLD, UPDATES, LONGER = "alfworld_official", 1000, 400, 900
"""COLD: episodes that a cold start imitates for so many UPDATES; `imitation` makes LONGER."""
QUICK = ("env.eval_tasks=6", "eval.samples=1", "eval.greedy=false", "eval.extra_temperatures=[]", "eval.controls=[]")
"""Of a run's own evaluations, which nothing here reads."""
GAMES = "env.kwargs.moved=0"
"""The training games as they are."""
IMITATION = (
    GAMES,
    "phases=[collect,sft]",
    "collect.rollouts_per_task=1",
    "collect.epsilon=[0.1]",
    *QUICK,
    "runtime.threads=1",
)
REINFORCEMENT = (
    GAMES,
    "rl.reward=env",
    "rl.steps=40",
    "rl.prompts_per_step=16",
    "rollout.n_votes_per_prompt=8",
    "rollout.n_samples_per_prompt=8",
    "agent.max_turns=30",
    "rl.learning_rate=3e-4",
    "rl.betas=[0.9,0.95]",
    "rl.weight_decay=0",
    "rl.lr_scheduler=constant",
    "rl.warmup_steps=3",
    "rl.mini_batch_size=null",
    "rl.kl_coef=0",
    "rl.save_steps=20",
    "run.save_total_limit=null",
    "run.save_trajectories=false",
    *QUICK,
    "runtime.threads=1",
)
ARMS: dict[str, tuple[str, ...]] = {
    "grpo": (),
    "graphgpo": ("rl.algorithm=graphgpo",),
    "grpo-steps": ("rl.algorithm={type: grpo, level: step}",),
    "coin": ("rl.reward=random",),
}
"""Settings of an arm, by name, in addition to `REINFORCEMENT`."""
MEASURED = ("agent.max_turns=50", "env.eval_tasks=null", "eval.samples=4", "eval.greedy=true", "eval.controls=[]")
FIGURES: dict[str, Callable[[ProblemResult], float]] = {
    "T = 0.4": lambda result: (result.correct or 0) / result.samples,
    "greedy": lambda result: float(bool(result.greedy_correct)),
}
SMOOTH = 10
"""Steps whose training success is one point of the curve."""


def main() -> None:
    """Run what is missing, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arms", nargs="*", choices=[*ARMS, "imitation"], default=[*ARMS, "imitation"])
    parser.add_argument("--demonstrations", type=int, nargs="*", default=[250, 500, 2000, 3553])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--tables-only", action="store_true")
    parser.add_argument("--svg", type=Path, help="draw the curves of the arms that reinforce here")
    parser.add_argument(
        "--measure", action="store_true", help="for the curves, evaluate the checkpoints on the way too"
    )
    parser.add_argument("-o", "--output", type=Path, default=Path("runs/alfworld-rl"))
    options = parser.parse_args()
    if not options.tables_only:
        for seed in options.seeds:
            for count in (COLD, *options.demonstrations):
                imitate(options.output / f"cold-{count}-{seed}", count, seed, UPDATES)
            for arm in options.arms:
                reinforce(options.output, arm, seed)
    print(changes(options.output, options.arms, options.seeds))
    print(worth(options.output, sorted({COLD, *options.demonstrations}), options.seeds))
    if options.svg:
        arms = [arm for arm in options.arms if arm in ARMS]
        write_atomic(
            options.svg, draw(curves(options.output, arms, options.seeds, options.measure), "success").encode()
        )


def imitate(run: Path, count: int, seed: int, updates: int) -> None:
    """Imitate so many episodes of the expert, each of another game, and measure."""
    learn("train", run, seed, [*IMITATION, f"collect.episodes={count}", f"sft.steps={updates}"])


def reinforce(output: Path, arm: str, seed: int) -> None:
    """Go on from the cold start by reward, or imitate its episodes for longer, and measure."""
    if arm == "imitation":
        imitate(output / f"{arm}-{seed}", COLD, seed, LONGER)
        return
    cold = output / f"cold-{COLD}-{seed}"
    learn("rl", output / f"{arm}-{seed}", seed, [*REINFORCEMENT, *ARMS[arm]], "--policy", str(cold))


def learn(command: str, run: Path, seed: int, settings: Sequence[str], *more: str) -> None:
    """Train as a user would, unless the run is finished, and measure it."""
    if not (run / "summary.json").exists():
        skillttrl(command, RECIPE, "--seed", str(seed), *more, "-o", str(run), "--resume", "auto", settings=settings)
    if not result_of(run).exists():
        write_atomic(result_of(run), skillttrl("evaluate", str(run), "--json", settings=MEASURED))


def skillttrl(*words: str, settings: Sequence[str]) -> bytes:
    """Run one command; gives what it prints."""
    words = (*words, *(word for setting in settings for word in ("--set", setting)))
    print("$ skillttrl", " ".join(words), file=sys.stderr, flush=True)
    return subprocess.run(
        [sys.executable, "-m", "skill_ttrl.cli.main", *words], check=True, stdout=subprocess.PIPE
    ).stdout


def result_of(run: Path) -> Path:
    """File with the evaluation of a run, next to it."""
    return run.with_name(f"{run.name}.json")


def changes(output: Path, arms: Sequence[str], seeds: Sequence[int]) -> str:
    """Markdown: each arm and seed, and all seeds, before and after, with the change paired over games."""
    lines = ["| arm | figure | seed | before | after | change | CPU s |", "|---|---|---|---|---|---|---|"]
    for arm in arms:
        done = [seed for seed in seeds if result_of(output / f"{arm}-{seed}").exists()]
        for figure in FIGURES if done else ():
            pairs = [(values(output / f"cold-{COLD}-{s}", figure), values(output / f"{arm}-{s}", figure)) for s in done]
            for seed, (before, after) in zip(done, pairs, strict=True):
                lines.append(row(arm, figure, str(seed), before, after, f"{cpu_seconds(output / f'{arm}-{seed}'):.0f}"))
            if len(done) > 1:
                before, after = ([fmean(game) for game in zip(*each, strict=True)] for each in zip(*pairs, strict=True))
                over = repeats_interval([fmean(late) - fmean(early) for early, late in pairs])
                lines.append(row(arm, figure, "all", before, after, f"seeds {span(over)}" if over else ""))
    return "\n".join(lines)


def row(arm: str, figure: str, seed: str, before: Sequence[float], after: Sequence[float], last: str) -> str:
    """One line of the table of changes."""
    change, low, high = paired_difference(before, after)
    means = f"{fmean(before):.3f} | {fmean(after):.3f}"
    return f"| {arm} | {figure} | {seed} | {means} | {change:+.3f} {span((low, high), sign='+')} | {last} |"


def worth(output: Path, counts: Sequence[int], seeds: Sequence[int]) -> str:
    """Markdown: success of cold starts by the number of episodes that they imitate."""
    lines = ["| demonstrations | figure | seeds | mean |", "|---|---|---|---|"]
    for count in counts:
        runs = [run for seed in seeds if result_of(run := output / f"cold-{count}-{seed}").exists()]
        for figure in FIGURES if runs else ():
            found = [values(run, figure) for run in runs]
            games = [fmean(game) for game in zip(*found, strict=True)]
            each = " ".join(f"{fmean(one):.3f}" for one in found)
            lines.append(f"| {count} | {figure} | {each} | {fmean(games):.3f} {span(mean_interval(games))} |")
    return "\n".join(lines)


def curves(output: Path, arms: Sequence[str], seeds: Sequence[int], measure: bool) -> list[Panel]:
    """Success in training by step, and on valid_unseen before, after and at the measured checkpoints."""
    trained: dict[str, list[list[tuple[float, float]]]] = {}
    held_out: dict[str, list[list[tuple[float, float]]]] = {}
    for arm in arms:
        for seed in seeds:
            run = output / f"{arm}-{seed}"
            if not result_of(run).exists():
                continue
            won = [line["success"] for line in metric_rows(run)]
            points = [(at + SMOOTH / 2, fmean(won[at : at + SMOOTH])) for at in range(0, len(won), SMOOTH)]
            trained.setdefault(arm, []).append(points)
            held_out.setdefault(arm, []).append(
                [(0.0, mean_of(output / f"cold-{COLD}-{seed}")), *measured(run, measure)]
            )
    words = {"steps of 128 training episodes, T = 1": trained, "the same: valid_unseen, T = 0.4": held_out}
    return [Panel(label, [as_curve(name, runs) for name, runs in found.items()]) for label, found in words.items()]


def measured(run: Path, measure: bool) -> list[tuple[float, float]]:
    """Success on valid_unseen at the end of a run, and at each checkpoint that has been measured, or with `measure` was kept."""
    points = []
    for checkpoint in sorted((run / "checkpoints").glob("rl-*")):
        step = int(checkpoint.name.rpartition("-")[2])
        file = run.with_name(f"{run.name}-{step}.json")
        if step < len(metric_rows(run)):
            if measure and not file.exists():
                write_atomic(file, skillttrl("evaluate", str(checkpoint), "--json", settings=MEASURED))
            if file.exists():
                points.append((float(step), fmean(map(FIGURES["T = 0.4"], results(file)))))
        else:
            points.append((float(step), mean_of(run)))
    return points


def as_curve(name: str, runs: Sequence[Sequence[tuple[float, float]]]) -> Curve:
    """Thin each run, thick their mean."""
    mean = [(each[0][0], fmean(value for _, value in each)) for each in zip(*runs, strict=True)]
    return Curve(name, [list(run) for run in runs], mean)


def mean_of(run: Path) -> float:
    """Success of a run at T = 0.4."""
    return fmean(values(run, "T = 0.4"))


def values(run: Path, figure: str) -> list[float]:
    """Success of each game at the end of a run, in the order of the games."""
    return [FIGURES[figure](result) for result in results(result_of(run))]


def results(file: Path) -> list[ProblemResult]:
    """Results of an evaluation, in the order of the games."""
    return sorted(from_json(Evaluation, file.read_bytes()).results, key=lambda result: result.task)


def cpu_seconds(run: Path) -> float:
    """CPU seconds of a run's updates, sampling included."""
    rows: Sequence[Mapping[str, float]] = list(read_jsonl(run / "timings.jsonl"))
    return sum(each.get("cpu_seconds", 0.0) for each in rows)


def span(interval: tuple[float, float], sign: str = "") -> str:
    """An interval in brackets."""
    return f"[{interval[0]:{sign}.3f}, {interval[1]:{sign}.3f}]"


if __name__ == "__main__":
    main()

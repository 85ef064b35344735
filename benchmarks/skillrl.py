"""SkillRL's phases on a CPU, over seeds: the tables of docs/skillrl-results.md.

    python benchmarks/skillrl.py webshop                      # all runs of one quickstart, then its tables (half an hour a seed)
    python benchmarks/skillrl.py webshop --tables-only        # the tables again from finished runs

For each seed the whole quickstart, and from its cold start the same reinforcement without evolution. Finished runs are not
repeated, stopped ones go on. Everything is measured on the same held-out tasks; differences are paired over tasks.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from skill_ttrl.config import load_config
from skill_ttrl.runs.summary import read_summary
from skill_ttrl.statistics import paired_difference
from skill_ttrl.train.results import Evaluation, read_evaluations

SPLITS = {"alfworld": "valid_unseen", "webshop": "test"}
RECIPES = {"alfworld": "quickstart_skills_alfworld", "webshop": "quickstart_webshop"}
CONTROL = "without evolution"


def main() -> None:
    """Run what is missing and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("env", choices=sorted(SPLITS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--output", type=Path, default=Path("runs/benchmark-skillrl"))
    parser.add_argument(
        "--set", dest="settings", action="append", default=[], help="of every run, e.g. runtime.threads=1"
    )
    parser.add_argument("--no-control", action="store_true", help=f"leave out the runs {CONTROL}")
    parser.add_argument("--tables-only", action="store_true")
    options = parser.parse_args()
    recipe = RECIPES[options.env]
    if not options.tables_only:
        options.output.mkdir(parents=True, exist_ok=True)
        for seed in options.seeds:
            run_seed(recipe, seed, options.output, options.settings, control=not options.no_control)
        players(recipe, options.env, options.output)
    print(tables(recipe, options.env, options.seeds, options.output))


def run_seed(recipe: str, seed: int, output: Path, settings: Sequence[str], *, control: bool) -> None:
    """The whole quickstart, and from its cold start the reinforcement without evolution."""
    whole, apart = output / f"{recipe}-{seed}", output / f"{recipe}-{seed}-control"
    if not (whole / "summary.json").exists():
        skillttrl("train", recipe, "--seed", seed, "-o", whole, "--resume", "auto", settings=settings)
    if not control or (apart / "summary.json").exists():
        return
    bank = output / f"{recipe}-{seed}-bank"
    if not bank.exists():
        skillttrl("distill", "--trajectories", whole / "collected.jsonl", "-o", bank, "--config", recipe, settings=[])
    start = max((whole / "checkpoints").glob("sft-*"))
    words = ("rl", recipe, "--policy", start, "--bank", bank, "--seed", seed, "-o", apart, "--resume", "auto")
    skillttrl(*words, settings=[*settings, "evolve=null"])


def players(recipe: str, env: str, output: Path) -> None:
    """Players that need no model, on the tasks that the runs are measured on."""
    config = load_config(recipe)
    kwargs = [f"env.kwargs.{name}={value}" for name, value in config.env.kwargs.items()]
    for name in ("random", config.collect.agent):
        words = ["evaluate", name, "--env", env, "--split", SPLITS[env], "--json"]
        limit = ["--limit", config.env.eval_tasks] if config.env.eval_tasks else []
        (output / f"{recipe}-{name}.json").write_text(skillttrl(*words, *limit, settings=kwargs))


def skillttrl(*arguments: object, settings: Sequence[str]) -> str:
    """One command, as a user would give it; what it prints."""
    words = [str(word) for word in arguments] + [word for setting in settings for word in ("--set", setting)]
    print("$ skillttrl", " ".join(words), file=sys.stderr, flush=True)
    command = [sys.executable, "-m", "skill_ttrl.cli.main", *words]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def tables(recipe: str, env: str, seeds: Sequence[int], output: Path) -> str:
    """All tables as Markdown."""
    lines = [f"### {recipe}", "", *_player_lines(recipe, env, output), ""]
    lines += [
        "| seed | cold start | after GRPO and evolution | change | without evolution | evolution adds | bank off | score, before → after | wall time |"
    ]
    lines += ["|---|---|---|---|---|---|---|---|---|"]
    changes, added = [], []
    for seed in seeds:
        folder, control = output / f"{recipe}-{seed}", output / f"{recipe}-{seed}-control"
        if not (folder / "summary.json").exists():
            continue
        found = {each.label: each for each in read_evaluations(folder)}
        before, after, off = found["before"], found["after"], found["after_no_skills"]
        change = difference(before, after)
        changes.append(change[0])
        without, worth = "not run", "not run"
        if (control / "summary.json").exists():
            other = {each.label: each for each in read_evaluations(control)}["after"]
            evolved = difference(other, after)
            added.append(evolved[0])
            without, worth = _share(other), _signed(evolved)
        seconds = sum(value for name, value in read_summary(folder).seconds.items() if "." not in name)
        score = "-" if before.score is None or after.score is None else f"{before.score:.3f} → {after.score:.3f}"
        cells = (
            seed,
            _share(before),
            _share(after),
            _signed(change),
            without,
            worth,
            _share(off),
            score,
            f"{seconds / 60:.1f} min",
        )
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    if changes:
        lines += ["", f"Mean change over {len(changes)} seeds: {fmean(changes):+.3f}."]
    if added:
        lines[-1] += f" Mean of what evolution adds over {len(added)}: {fmean(added):+.3f}."
    return "\n".join([*lines, "", *_type_lines(recipe, seeds, output)])


def difference(one: Evaluation, other: Evaluation) -> tuple[float, float, float]:
    """Success of the other less that of the one, with its 95 % interval, paired over tasks."""
    assert [each.task for each in one.results] == [each.task for each in other.results]
    shares = [[(each.correct or 0) / each.samples for each in found.results] for found in (one, other)]
    mean, low, high = paired_difference(*shares)
    return mean, low, high


def _player_lines(recipe: str, env: str, output: Path) -> list[str]:
    found = []
    for path in sorted(output.glob(f"{recipe}-*.json")):
        overall = json.loads(path.read_text())["overall"]
        score = "" if overall.get("score") is None else f", score {overall['score']:.3f}"
        found.append(
            f"{path.stem.removeprefix(f'{recipe}-')}: {overall['success']:.3f} of {overall['episodes']} tasks{score}"
        )
    return [f"Players on the same tasks of `{SPLITS[env]}`: " + "; ".join(found) + "."] if found else []


def _type_lines(recipe: str, seeds: Sequence[int], output: Path) -> list[str]:
    """Success by type of task, before → after, mean over seeds."""
    runs = [
        read_summary(output / f"{recipe}-{seed}")
        for seed in seeds
        if (output / f"{recipe}-{seed}" / "summary.json").exists()
    ]
    kinds = sorted({kind for run in runs for kind in run.by_type_after})
    if not kinds:
        return []
    rows = ["| type of task | cold start | after |", "|---|---|---|"]
    for kind in kinds:
        before, after = (
            fmean(getattr(run, f"by_type_{when}").get(kind, 0.0) for run in runs) for when in ("before", "after")
        )
        rows.append(f"| {kind} | {before:.3f} | {after:.3f} |")
    return rows


def _share(found: Evaluation) -> str:
    bounds = found.accuracy_interval
    return f"{found.accuracy:.3f}" + (f" [{bounds[0]:.3f}, {bounds[1]:.3f}]" if bounds else "")


def _signed(change: tuple[float, float, float]) -> str:
    return f"{change[0]:+.3f} [{change[1]:+.3f}, {change[2]:+.3f}]"


if __name__ == "__main__":
    main()

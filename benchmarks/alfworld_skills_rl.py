"""GRPO on a type of task that the cold start never had, with a skill, without one, and with one that evolves: benchmarks/results/alfworld-skills.md.

    python benchmarks/alfworld_skills_rl.py --types clean --seeds 0 -o runs/alfworld-skills       # after alfworld_skills.py and its loop

All arms begin with the same cold start and are trained on the type's training games but those that are measured. `skill` shows the skill that the loop's
gate accepted, `none` the bank of the known types, and `evolve` begins with that bank and lets failures change it behind the gate.
Success is measured with the bank that the arm ends with, without any, and on the known types.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from alfworld_skills import GAMES, HELD_OUT, VALIDATION, difference, games_of, open_worker, play, recipe, skillttrl

from skill_ttrl.envs import make_env
from skill_ttrl.skills.bank import SkillBank
from skill_ttrl.skills.retrieval import BankView

REINFORCEMENT = {
    "reward": "env",
    "steps": 30,
    "prompts_per_step": 16,
    "learning_rate": 3e-4,
    "betas": [0.9, 0.95],
    "weight_decay": 0.0,
    "lr_scheduler": "constant",
    "warmup_steps": 3,
    "mini_batch_size": None,
    "kl_coef": 0.0,
}
EVOLUTION = {
    "evolve": {
        "every": 1,
        "teacher": "analogy",
        "max_new_skills": 1,
        "min_episodes": 8,
        "max_failures_below_threshold": 60,
        "threshold": 0.1,
    },
    "skills.gate": {"tasks": 40, "rollouts_per_task": 1, "temperature": 0.4},
}
ARMS = ("skill", "none", "evolve")


def main() -> None:
    """Run what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--types", nargs="+", choices=sorted(HELD_OUT), default=["clean"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=[*ARMS])
    parser.add_argument("-o", "--output", type=Path, default=Path("runs/alfworld-skills"))
    parser.add_argument("--tables-only", action="store_true")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for kind in options.types:
        for seed in options.seeds:
            for arm in options.arms:
                found = options.output / f"rl-{arm}-{kind}-{seed}.json"
                if not found.exists() and not options.tables_only:
                    run = reinforce(arm, kind, seed, options.output)
                    found.write_text(json.dumps(measure(arm, kind, seed, run, options.output), indent=1))
                if found.exists():
                    rows.append(json.loads(found.read_text()))
    print(table(rows))


def reinforce(arm: str, kind: str, seed: int, output: Path) -> Path:
    """The run of an arm."""
    run, config = output / f"rl-{arm}-{kind}-{seed}", output / f"rl-{arm}-{kind}-{seed}.yaml"
    settings = recipe(kind, seed, 1, output / f"data-{kind}")
    settings |= {"name": f"alfworld-skills-rl-{arm}", "phases": ["rl"], "rl": REINFORCEMENT}
    settings["env"]["kwargs"] = {"task_types": [HELD_OUT[kind]], "data": str(unmeasured(kind, output).resolve())}
    settings["rollout"] |= {"n_votes_per_prompt": 8, "n_samples_per_prompt": 8}
    del settings["demonstrations"], settings["sft"]
    if arm == "evolve":
        settings["evolve"] = EVOLUTION["evolve"]
        settings["skills"]["gate"] = EVOLUTION["skills.gate"]
    config.write_text(yaml.safe_dump(settings, sort_keys=False))
    bank = output / (f"bank-{kind}-{seed}" if arm == "skill" else f"data-{kind}/known-bank")
    model = output / f"run-{kind}-{seed}"
    skillttrl("rl", config, "--policy", model, "--bank", bank, "--seed", seed, "-o", run, "--resume", "auto")
    return run


def unmeasured(kind: str, output: Path) -> Path:
    """A folder with links to the official games: of training games those of the type that are not measured."""
    folder = output / f"games-{kind}"
    measured = {task.options["task"] for task in games_of(kind)[0]}
    games = make_env("alfworld").unwrapped.games
    for split in ("train", *VALIDATION):
        for game in games.of(split):
            place = folder / "json_2.1.1" / game.id
            used = split != "train" or (game.task_type == HELD_OUT[kind] and game.id not in measured)
            if used and not place.exists():
                place.parent.mkdir(parents=True, exist_ok=True)
                place.symlink_to(game.path.parent.resolve())
    return folder


def measure(arm: str, kind: str, seed: int, run: Path, output: Path) -> dict[str, Any]:
    """Success before and after: with the bank of the arm's end, without a bank, and on known types with it."""
    games, validation, known = games_of(kind)
    summary = json.loads((run / "summary.json").read_text())
    spent = [json.loads(line) for line in (run / "timings.jsonl").read_text().splitlines()]
    row: dict[str, Any] = {
        "arm": arm,
        "kind": kind,
        "seed": seed,
        "cpu_s": sum(each.get("cpu_seconds", 0.0) for each in spent),
    }
    row["success_of_steps"] = [
        each.get("success") for each in map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    ]
    row["bank_version"] = summary["bank_version"]
    bank = SkillBank.open(run / "bank", read_only=True)
    row["skills"] = [skill.text for skill in bank.snapshot() if skill.task_type == HELD_OUT[kind]]
    views = {"bank": BankView(bank.snapshot(), bank.retriever), "no bank": None}
    sets = {f"{GAMES} train": games, f"{len(validation)} validation": validation, "known types": known}
    for when, policy in (("before", output / f"run-{kind}-{seed}"), ("after", run)):
        worker = open_worker(policy, [*games, *validation, *known])
        for name, view in views.items():
            for where, tasks in sets.items():
                if (
                    view is None and where == f"{GAMES} train"
                ):  # lost games are long, and the validation games say it too
                    continue
                row[f"{when}, {name}, {where}"] = play(worker.with_bank(view), tasks, kind)
        worker.close()
    return row


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Each arm and seed before and after, paired over games."""
    lines = [
        "| held out | arm | seed | games | in the prompt | before | after | change | CPU s |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        for key in row:
            if key.startswith("after, "):
                _, name, where = key.split(", ")
                before, after = row[f"before, {name}, {where}"], row[key]
                change, low, high = difference(before, after)
                cells = [
                    row["kind"],
                    row["arm"],
                    row["seed"],
                    where,
                    name,
                    f"{before['success']:.3f}",
                    f"{after['success']:.3f}",
                ]
                lines.append(
                    f"| {' | '.join(map(str, cells))} | {change:+.3f} [{low:+.3f}, {high:+.3f}] | {row['cpu_s']:.0f} |"
                )
    return "\n".join(lines)


if __name__ == "__main__":
    main()

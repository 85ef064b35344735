"""Learning a type of ALFWorld task that training never had, from a line of text in the prompt: the tables of benchmarks/results/alfworld-skills.md.

    python benchmarks/alfworld_skills.py --types heat --seeds 0 -o runs/alfworld-skills      # one policy: about 5 CPU minutes
    python benchmarks/alfworld_skills.py -o runs/alfworld-skills                              # clean, cool and heat, three seeds

For each held-out type and seed: the expert plays the other types, with their true rules and with varied ones (`env.kwargs.rules`);
`skillttrl distill` writes the bank of the known types; `skillttrl train` imitates; and the policy plays games of the held-out type
under their true rule, greedily, with the right skill in its prompt, with one that names other tools, with that of another type, with none,
and with what the bank finds. Finished parts are not repeated. It needs the official games (`ALFWORLD_DATA`).
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from skill_ttrl.agents.agent import TASK_SKILL
from skill_ttrl.commands.resolve import resolve_target
from skill_ttrl.envs import make_env
from skill_ttrl.envs.alfworld.env import TREATED, TRUE_RULES, Rule, advice, room_and_words
from skill_ttrl.envs.alfworld.games import TASK_TYPES
from skill_ttrl.llm.backend import Sampling
from skill_ttrl.progress import SilentProgress
from skill_ttrl.skills.bank import SkillBank
from skill_ttrl.skills.retrieval import BankView, make_retriever
from skill_ttrl.statistics import paired_difference, wilson_interval
from skill_ttrl.train.build import build_for_eval
from skill_ttrl.train.run import RolloutWorker
from skill_ttrl.types import Skill, Task, Trajectory

HELD_OUT = {kind: task_type for task_type, kind in TREATED.items()}
VALIDATION = ("valid_seen", "valid_unseen")
OTHER = {"heat": "cool", "cool": "clean", "clean": "heat"}
"""Kind → the kind whose skill stands in its place, in the arm `other`."""
GAMES = 160
"""Games of the split `train` that are played of the held-out type, spread over it."""
SEARCHES = {
    "found by words": {},
    "found by words of when_to_apply": {"searched": "when_to_apply"},
}
"""Arm → how the bank of all types is asked by the words of the task alone, beside its default."""
REAL, VARIED = 2400, 4800
"""Episodes of the expert under true and under varied rules."""


def main() -> None:
    """Run what is missing, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--types", nargs="+", choices=sorted(HELD_OUT), default=["heat", "cool", "clean"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=2000, help="updates of the cold start")
    parser.add_argument("-o", "--output", type=Path, default=Path("runs/alfworld-skills"))
    parser.add_argument("--tables-only", action="store_true")
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    for kind in options.types:
        for seed in options.seeds:
            found = options.output / f"{kind}-{seed}.json"
            if not found.exists() and not options.tables_only:
                run = train(kind, seed, options.steps, options.output)
                found.write_text(json.dumps(measure(kind, run, options.output / f"data-{kind}"), indent=1))
            if found.exists():
                rows += [{"held out": kind, "seed": seed, **row} for row in json.loads(found.read_text())]
    print(table(rows), cost_table(rows), sep="\n\n")


def train(kind: str, seed: int, steps: int, output: Path) -> Path:
    """The cold start without one type of task; its run folder."""
    data, folder = output / f"data-{kind}", output / f"run-{kind}-{seed}"
    prepare(kind, data)
    if not (folder / "summary.json").exists():
        config = folder.with_suffix(".yaml")
        config.write_text(yaml.safe_dump(recipe(kind, seed, steps, data), sort_keys=False))
        skillttrl("train", config, "-o", folder, "--resume", "auto")
    return folder


def prepare(kind: str, data: Path) -> None:
    """Episodes of the expert on the types that are known, and the banks that counting writes from them."""
    data.mkdir(parents=True, exist_ok=True)
    known = [name for name in TASK_TYPES if name != HELD_OUT[kind]]
    treated = [name for name in known if name in TREATED]
    collect(data / "real.jsonl", REAL, known, [])
    collect(data / "varied.jsonl", VARIED, treated, ["env.kwargs.rules=varied", "env.kwargs.variants=4"])
    collect(data / "held-out.jsonl", 60, [HELD_OUT[kind]], [])
    write_joined(data / "episodes.jsonl", [data / "real.jsonl", data / "varied.jsonl"])
    write_joined(data / "all.jsonl", [data / "real.jsonl", data / "held-out.jsonl"])
    for bank, episodes in (("known-bank", "real.jsonl"), ("full-bank", "all.jsonl")):
        if not (data / bank).exists():
            chain = ("distill.max_general=0", "distill.max_mistakes=0", "distill.max_specific=1")
            skillttrl("distill", "--trajectories", data / episodes, "-o", data / bank, settings=chain)


def collect(path: Path, episodes: int, types: Sequence[str], settings: Sequence[str]) -> None:
    """The expert plays training games of these types, with noise."""
    if path.exists():
        return
    partial = path.with_name(f"partial-{path.name}")
    noise = ["--epsilon", "0.1,0.3", "--epsilon-moves", "0.6", "--max-steps", "40"]
    arguments = [
        "--policy",
        "expert",
        "--rollouts-per-task",
        "2",
        "--limit",
        str(episodes),
        "--num-workers",
        "1",
        *noise,
    ]
    arguments += ["--types", ",".join(types)]
    skillttrl("collect", "--env", "alfworld", *arguments, "-o", partial, settings=settings)
    partial.rename(path)


def write_joined(path: Path, parts: Sequence[Path]) -> None:
    """One file of several."""
    if not path.exists():
        with path.open("wb") as whole:
            for part in parts:
                with part.open("rb") as stream:
                    shutil.copyfileobj(stream, whole)


def recipe(kind: str, seed: int, steps: int, data: Path) -> dict[str, Any]:
    """The config of a cold start."""
    known = [name for name in TASK_TYPES if name != HELD_OUT[kind]]
    return {
        "name": f"alfworld-skills-{kind}",
        "seed": seed,
        "phases": ["sft"],
        "env": {
            "id": "alfworld",
            "kwargs": {"task_types": known, "rules": "varied", "variants": 4},
            "train_split": "train",
            "eval_split": "valid_seen",
            "eval_tasks": 16,
        },
        "agent": {
            "template": "plain",
            "context_mode": "episode",
            "observations": "alfworld_reach",
            "action_parser": "none",
            "prompts": "entities",
            "structured_actions": True,
            "max_turns": 50,
        },
        "data": {"max_prompt_tokens": 900},
        "model": {
            "path": "builtin",
            "builtin": {
                "hidden_size": 96,
                "layers": 3,
                "heads": 6,
                "intermediate_size": 192,
                "vocabulary": "entities",
                "shared_embeddings": True,
                "attend_to_alike": 2.0,
                "max_positions": 1152,
            },
        },
        "skills": {
            "bank": str(data / "known-bank"),
            "embedder": "hash",
            "index": "memory",
            "min_score": None,
            "prompt_top_k": 1,
            "prompt_max_tokens": 192,
            "max_retrievals": 0,
            "update": "none",
        },
        "demonstrations": {
            "trajectories": str(data / "episodes.jsonl"),
            "label": "expert",
            "examples": None,
            "no_skill_fraction": 0.5,
            "random_skill_fraction": 0.15,
        },
        "sft": {
            "steps": steps,
            "batch_tokens": 2048,
            "optimizer": "muon",
            "learning_rate": 6e-3,
            "muon_learning_rate": 0.01,
            "betas": [0.9, 0.95],
            "warmup_steps": 30,
            "lr_scheduler": "linear",
            "decay_from": 0.5,
            "min_lr_ratio": 0.02,
        },
        "rollout": {"max_new_tokens": 10, "temperature": 1.0},
        "eval": {"samples": 1, "temperature": 0.4, "greedy": True, "controls": []},
        "runtime": {"device": "cpu", "threads": 1},
    }


def skillttrl(*arguments: object, settings: Sequence[str] = ()) -> str:
    """One command, as a user would give it; what it prints."""
    words = [str(word) for word in arguments] + [word for setting in settings for word in ("--set", setting)]
    print("$ skillttrl", " ".join(words), file=sys.stderr, flush=True)
    began = time.perf_counter()
    command = [sys.executable, "-m", "skill_ttrl.cli.main", *words]
    printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    print(f"  {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)
    return printed


def measure(kind: str, run: Path, data: Path) -> list[dict[str, Any]]:
    """Success of a policy in every arm, greedy and constrained."""
    games, validation, known = games_of(kind)
    worker = open_worker(run, [*games, *validation])
    full = SkillBank.open(data / "full-bank", read_only=True)
    own = SkillBank.open(data / "known-bank", read_only=True)
    distilled = next(skill for skill in full.snapshot() if skill.task_type == HELD_OUT[kind])
    anywhere = replace(worker, agent=replace(worker.agent, skills=untyped(worker)))
    paths = {game.id: game.path for game in make_env("alfworld").unwrapped.games.of("train")}
    paths |= {game.id: game.path for split in VALIDATION for game in make_env("alfworld").unwrapped.games.of(split)}
    bring: Mapping[str, Callable[[Task], Mapping[str, str]]] = {
        "right": lambda task: fields(distilled),
        "tool shuffled": lambda task: advice(shuffled(kind, task, paths)),
        "other type": lambda task: advice(TRUE_RULES[OTHER[kind]]),
        "none": lambda task: {},
    }
    rows: list[dict[str, Any]] = []

    def add(where: str, arm: str, player: RolloutWorker, tasks: Sequence[Task]) -> None:
        rows.append({"games": where, "skill": arm, **play(player, tasks, kind)})
        print(rows[-1], file=sys.stderr, flush=True)

    for where, tasks in ((f"{len(games)} train", games), (f"{len(validation)} validation", validation)):
        for arm, skill in bring.items():
            shown = [replace(task, options={**task.options, TASK_SKILL: skill(task)}) for task in tasks]
            add(where, arm, worker, shown)
        for arm, settings in SEARCHES.items():
            retriever = make_retriever(replace(full.settings, **settings, index="memory"))
            add(where, arm, anywhere.with_bank(BankView(full.snapshot(), retriever)), tasks)
    add(
        f"{len(known)} validation",
        "known types, bank",
        worker.with_bank(BankView(own.snapshot(), own.retriever)),
        known,
    )
    add(f"{len(known)} validation", "known types, none", worker.with_bank(None), known)
    worker.close()
    return rows


def games_of(kind: str) -> tuple[list[Task], list[Task], list[Task]]:
    """`GAMES` training games of a type, all its validation games, and all validation games of the other types."""
    env = make_env("alfworld").unwrapped
    train = [task for task in env.tasks("train") if task.task_type == HELD_OUT[kind]]
    every = [task for split in VALIDATION for task in env.tasks(split)]
    own = [task for task in every if task.task_type == HELD_OUT[kind]]
    return (
        [train[place * len(train) // GAMES] for place in range(GAMES)],
        own,
        [task for task in every if task.task_type != HELD_OUT[kind]],
    )


def open_worker(run: Path, tasks: Sequence[Task]) -> RolloutWorker:
    """The policy of a run, to play games under their true rules."""
    target = resolve_target(str(run))
    config = target.config.model_copy(deep=True)
    config.env.kwargs = {}
    return build_for_eval(config, {"": [*tasks]}, SilentProgress(), weights=target.weights)[0]


def untyped(worker: RolloutWorker) -> Any:
    """Skills of a config under which the bank is asked by the words of a task alone."""
    assert worker.config.skills is not None
    return worker.config.skills.model_copy(update={"type_names": dict.fromkeys(TASK_TYPES, "")})


def fields(skill: Skill) -> dict[str, str]:
    """A skill as a task brings it."""
    return {"title": skill.title, "text": skill.text, "when_to_apply": skill.when_to_apply}


def shuffled(kind: str, task: Task, paths: Mapping[str, Path]) -> Rule:
    """The true rule with another tool of the room."""
    kinds = [name for name in room_and_words(paths[task.options["task"]])[0] if name != TRUE_RULES[kind].tool]
    return replace(TRUE_RULES[kind], tool=random.Random(task.id).choice(kinds))


def play(worker: RolloutWorker, tasks: Sequence[Task], kind: str) -> dict[str, Any]:
    """Greedy success, and how often the treatment was done."""
    sampling = Sampling(temperature=0.0, max_new_tokens=10)
    began = time.process_time()
    groups = worker.generate_rollouts(tasks, 1, sampling, 0)
    played = [group.trajectories[0] for group in groups]
    won = sum(each.is_success for each in played)
    interval = wilson_interval(won, len(played))
    verb = TRUE_RULES[kind].verb
    return {
        "won": won,
        "of": len(played),
        "success": won / len(played),
        "low": interval[0],
        "high": interval[1],
        "took": sum(any(action.startswith("take ") for action in actions(each)) for each in played) / len(played),
        "treated": sum(any(action.startswith(f"{verb} ") for action in actions(each)) for each in played) / len(played),
        "cpu_s": round(time.process_time() - began, 1),
        "failed": sum(each.error is not None for each in played),
        "lost": [each.task.id for each in played if not each.is_success],
    }


def actions(trajectory: Trajectory) -> list[str]:
    """The actions of a rollout."""
    return [step.action for step in trajectory.steps]


def difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[float, float, float]:
    """Success after less before over the same games, with its interval."""
    names = sorted({*before["lost"], *after["lost"]})
    rest = [1.0] * (after["of"] - len(names))
    return paired_difference(
        [float(name not in before["lost"]) for name in names] + rest,
        [float(name not in after["lost"]) for name in names] + rest,
    )


def cost_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Success on the known types with their bank less without, paired over games: each seed, and all."""
    lines = ["| held out | seed | without | with the bank | difference |", "|---|---|---|---|---|"]
    pairs = []
    for row in rows:
        if row["skill"] == "known types, none":
            same = (row["held out"], row["seed"])
            bank = next(
                each
                for each in rows
                if each["skill"] == "known types, bank" and (each["held out"], each["seed"]) == same
            )
            pairs.append((row, bank))
            lines.append(_cost_line(*same, row, bank))
    if pairs:
        whole = [
            {
                "of": sum(each[place]["of"] for each in pairs),
                "lost": [(number, name) for number, each in enumerate(pairs) for name in each[place]["lost"]],
            }
            for place in (0, 1)
        ]
        lines.append(
            _cost_line("all", "", *({**each, "success": 1 - len(each["lost"]) / each["of"]} for each in whole))
        )
    return "\n".join(lines)


def _cost_line(kind: str, seed: Any, without: Mapping[str, Any], bank: Mapping[str, Any]) -> str:
    change, low, high = difference(without, bank)
    return f"| {kind} | {seed} | {without['success']:.3f} | {bank['success']:.3f} | {change:+.3f} [{low:+.3f}, {high:+.3f}] |"


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Success by arm, all seeds together, with the seeds' own."""
    lines = [
        "| held out | games | skill in the prompt | success | interval | seeds | treated |",
        "|---|---|---|---|---|---|---|",
    ]
    for key in dict.fromkeys((row["held out"], row["games"], row["skill"]) for row in rows):
        own = [row for row in rows if (row["held out"], row["games"], row["skill"]) == key]
        won, count = sum(row["won"] for row in own), sum(row["of"] for row in own)
        interval = wilson_interval(won, count)
        seeds = ", ".join(f"{row['success']:.3f}" for row in own)
        treated = sum(row["treated"] for row in own) / len(own)
        cells = [*key, f"{won / count:.3f}", f"[{interval[0]:.3f}, {interval[1]:.3f}]", seeds, f"{treated:.2f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()

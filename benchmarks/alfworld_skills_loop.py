"""From a type of task that the policy loses to a skill that wins it, with frozen weights: benchmarks/results/alfworld-skills.md.

    python benchmarks/alfworld_skills.py --types heat --seeds 0 -o runs/alfworld-skills         # the policy, which never had the type
    python benchmarks/alfworld_skills_loop.py --types heat --seeds 0 -o runs/alfworld-skills    # about 2 CPU minutes

Training games of the type are dealt with the seed: some for the bank's gate (`skills.gate`), some for failures, some for demonstrations.
The `GAMES` that success is measured on are none of these.

- **With a teacher**: the expert wins 1, 2, 3, 5 or 10 games, `distill` writes what they have in common, the gate decides. Controls: wins of
  another type, and of a teacher who uses another tool.
- **From failures alone**: the policy loses, `evolve.teacher: analogy` guesses, the gate decides on one guess after another.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from alfworld_skills import GAMES, HELD_OUT, OTHER, difference, games_of, open_worker, play

from skill_ttrl.commands.distill import distill_into
from skill_ttrl.config import DistillConfig, EvolveConfig, GateConfig
from skill_ttrl.envs import make_env
from skill_ttrl.envs.alfworld.env import TRUE_RULES, Rule, room_and_words
from skill_ttrl.envs.alfworld.expert import ALFWorldExpert
from skill_ttrl.llm.backend import Sampling
from skill_ttrl.optimize.paired import GateOutcome
from skill_ttrl.rollout.rollout import run_scripted_episode
from skill_ttrl.skills.admit import AdmissionRules, admit
from skill_ttrl.skills.bank import SkillBank
from skill_ttrl.skills.changes import Snapshot
from skill_ttrl.skills.teachers import make_teacher
from skill_ttrl.skills.types import case_of
from skill_ttrl.train.bank_changes import BankGate, outcome_record
from skill_ttrl.train.run import RolloutWorker
from skill_ttrl.train.run_bank import RunBank
from skill_ttrl.types import Change, Task, Trajectory

DEMONSTRATIONS = (1, 2, 3, 5, 10)
GATE = GateConfig(tasks=40, rollouts_per_task=1, temperature=0.4)
FAILURES = 60
"""Games that the policy loses before anything is guessed."""
GUESSES = 5
"""Guesses that the gate tests, the likeliest first; those after an accepted one say what else it would have let in."""
ONE_SKILL = DistillConfig(max_general=0, max_mistakes=0, max_specific=1)


@dataclass
class Bench:
    """A policy, the games of a type that it has never had, and the bank of the types that it knows."""

    kind: str
    seed: int
    worker: RolloutWorker
    run_bank: RunBank
    gate: BankGate
    failures: list[Task]
    teaching: list[Task]
    measured: Mapping[str, list[Task]]
    known: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Success with a bank, by its texts."""

    def test(self, before: Snapshot, after: Snapshot) -> GateOutcome:
        """The gate's test of a change; `commands.play.open_gate` gives the same on games that a run holds out.

        `before` is a copy of the known types' bank, whose scores are drawn once.
        """
        return self.gate.test(self.run_bank, self.run_bank.bank.snapshot(), after, self.seed)

    def success(self, bank: Snapshot) -> dict[str, Any]:
        """Games of each set that are won with a bank, greedily, beside those that are won with the bank of the known types."""
        key = "".join(skill.text + skill.when_to_apply for skill in bank)
        if key not in self.known:
            worker = self.worker.with_bank(self.run_bank.view_of(bank))
            self.known[key] = {name: play(worker, tasks, self.kind) for name, tasks in self.measured.items()}
        return self.known[key]

    def copy(self) -> SkillBank:
        """The bank of the known types, to be changed."""
        return SkillBank.from_snapshot(self.run_bank.bank.snapshot(), self.run_bank.bank.settings)


def main() -> None:
    """Run what is missing, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--types", nargs="+", choices=sorted(HELD_OUT), default=["heat", "cool", "clean"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument(
        "--temperatures",
        type=float,
        nargs="+",
        default=[1.0],
        help="of the games that are lost; the first with guesses counts",
    )
    parser.add_argument("-o", "--output", type=Path, default=Path("runs/alfworld-skills"))
    parser.add_argument("--tables-only", action="store_true")
    options = parser.parse_args()
    found: list[dict[str, Any]] = []
    for kind in options.types:
        for seed in options.seeds:
            path = options.output / f"loop-{kind}-{seed}.json"
            if not path.exists() and not options.tables_only:
                path.write_text(json.dumps(loop(kind, seed, options.output, options.temperatures), indent=1))
            if path.exists():
                found += json.loads(path.read_text())
    print(taught_table(found), guessed_table(found), sep="\n\n")


def loop(kind: str, seed: int, output: Path, temperatures: Sequence[float]) -> list[dict[str, Any]]:
    """Every way from the type without a skill to one, with one policy."""
    bench = open_bench(kind, seed, output)
    before = bench.success(bench.run_bank.bank.snapshot())
    rows: list[dict[str, Any]] = []
    for how, count, episodes in demonstrations(bench):
        rows.append({"way": how, "demonstrations": count, **teach(bench, episodes)})
    rows += guess(bench, temperatures, output / f"bank-{kind}-{seed}")
    for row in rows:
        row |= {"kind": kind, "seed": seed}
        for name in bench.measured:
            row[name] |= {"difference": difference(before[name], row[name])}
        print({name: value for name, value in row.items() if name not in bench.measured}, file=sys.stderr, flush=True)
    bench.worker.close()
    return rows


def open_bench(kind: str, seed: int, output: Path) -> Bench:
    """Load the policy, and deal the games."""
    measured, validation, _ = games_of(kind)
    apart = {task.id for task in measured}
    train = [task for task in make_env("alfworld").unwrapped.tasks("train") if task.task_type == HELD_OUT[kind]]
    free = [task for task in train if task.id not in apart]
    random.Random(seed).shuffle(free)
    gate, failures, teaching = (
        free[: GATE.tasks],
        free[GATE.tasks : GATE.tasks + FAILURES],
        free[GATE.tasks + FAILURES :],
    )
    worker = open_worker(output / f"run-{kind}-{seed}", [*measured, *validation, *free])
    bank = SkillBank.open(output / f"data-{kind}" / "known-bank", read_only=True)
    assert worker.config.skills is not None
    return Bench(
        kind,
        seed,
        worker,
        RunBank(worker.config.skills, bank),
        BankGate(GATE, gate, worker),
        failures,
        teaching,
        {f"{GAMES} train": measured, f"{len(validation)} validation": validation},
    )


def demonstrations(bench: Bench) -> Iterator[tuple[str, int, list[Trajectory]]]:
    """Wins of the type, few and many; of another type, as if they were of this one; and of a teacher with another tool."""
    most = max(DEMONSTRATIONS)
    games = bench.teaching[:most]
    won = [expert(task) for task in games]
    for count in DEMONSTRATIONS:
        yield "the expert", count, won[:count]
    others = [
        task for task in make_env("alfworld").unwrapped.tasks("train") if task.task_type == HELD_OUT[OTHER[bench.kind]]
    ]
    borrowed = [expert(task) for task in random.Random(bench.seed).sample(others, most)]
    named = [replace(each, task=replace(each.task, task_type=HELD_OUT[bench.kind])) for each in borrowed]
    yield "another type", most, named
    paths = {game.id: game.path for game in make_env("alfworld").unwrapped.games}
    rooms = [set(room_and_words(paths[task.options["task"]])[0]) for task in games]
    own = TRUE_RULES[bench.kind]
    tool = random.Random(bench.seed).choice(sorted(set.intersection(*rooms) - {own.tool}))
    rule = str(Rule(own.state, own.verb, tool))
    yield "another tool", most, [expert(replace(task, options={**task.options, "rule": rule})) for task in games]


def expert(task: Task) -> Trajectory:
    """The expert's episode, without noise."""
    return run_scripted_episode(make_env("alfworld"), task, ALFWorldExpert(), seed=0)


def teach(bench: Bench, episodes: Sequence[Trajectory]) -> dict[str, Any]:
    """Distill, and let the gate decide, as `skillttrl distill --append --policy` does; success with what came of it."""
    bank = bench.copy()
    config = bench.worker.config.model_copy(update={"distill": ONE_SKILL})
    found = distill_into(bank, episodes, config, gate=bench.test)
    text = next((skill.text for skill in bank.snapshot() if skill.task_type == HELD_OUT[bench.kind]), "")
    ungated = bench.copy()
    drafted = distill_into(ungated, episodes, config).skills
    return {
        "drafted": drafted[0].text if drafted else "",
        "when": drafted[0].when_to_apply if drafted else "",
        "accepted": bool(text),
        "gate": dict(found.gate),
        **bench.success(bank.snapshot()),
    }


def guess(bench: Bench, temperatures: Sequence[float], folder: Path) -> Iterator[dict[str, Any]]:
    """Lose games at each temperature; of the first failures that give guesses the gate tests `GUESSES`. The first that it accepts makes a bank."""
    bank = bench.copy()
    guesses: list[Change] = []
    for place, temperature in enumerate(temperatures):
        began = time.process_time()
        sampling = Sampling(temperature=temperature, max_new_tokens=bench.worker.config.rollout.max_new_tokens)
        view = bench.run_bank.view_of(bank.snapshot())
        groups = bench.worker.with_bank(view).generate_rollouts(bench.failures, 1, sampling, bench.seed + place)
        played = [group.trajectories[0] for group in groups]
        cases = [case_of(each) for each in played if not each.is_success]
        drafts = make_teacher("analogy").evolve(cases, list(bank.snapshot()), EvolveConfig()).drafts
        admitted = admit(drafts, bank.snapshot(), AdmissionRules("evolve"))
        form = f"{TRUE_RULES[bench.kind].verb} "
        offered = sum(
            any(act.startswith(form) for step in each.steps for act in step.admissible_actions) for each in played
        )
        done = sum(any(step.action.startswith(form) for step in each.steps) for each in played)
        if not guesses:
            guesses = [*admitted.changes]
        yield {
            "way": "failures",
            "temperature": temperature,
            "games": len(played),
            "won": len(played) - len(cases),
            "offered": offered,
            "done": done,
            "drafts": [draft.text for draft in drafts],
            "cpu_s": round(time.process_time() - began, 1),
            **bench.success(bank.snapshot()),
        }
    for number, change in enumerate(guesses[:GUESSES]):
        now = bank.snapshot()
        outcome = bench.test(now, now.changed(now.version + 1, (change,)))
        assert change.after is not None
        after = now.changed(now.version + 1, (change,)) if outcome.decision.accept else now
        if outcome.decision.accept and not folder.exists():
            shutil.copytree(bench.run_bank.bank.path, folder)
            with SkillBank.open(folder, index="memory") as opened:
                opened.apply((change,), reason="evolve", evidence=change.after.evidence)
        yield {
            "way": "guess",
            "number": number + 1,
            "drafted": change.after.text,
            "when": change.after.when_to_apply,
            "accepted": outcome.decision.accept,
            "gate": outcome_record(outcome),
            **bench.success(after),
        }


def taught_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Success by number of demonstrations, seeds together."""
    lines = [
        "| held out | wins of | number | skills written | accepted | success, seeds | gate: before, after |",
        "|---|---|---|---|---|---|---|",
    ]
    taught = [row for row in rows if "demonstrations" in row]
    for key in dict.fromkeys((row["kind"], row["way"], row["demonstrations"]) for row in taught):
        own = [row for row in taught if (row["kind"], row["way"], row["demonstrations"]) == key]
        lines.append(line_of(key, own))
    return "\n".join(lines)


def guessed_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Table of the actions that failures were offered, and of each guess before the gate."""
    lines = [
        "| held out | seed | T | games | won | were offered the verb | said it | guesses |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        if row["way"] == "failures":
            names = ("kind", "seed", "temperature", "games", "won", "offered", "done")
            lines.append(f"| {' | '.join(str(row[name]) for name in names)} | {len(row['drafts'])} |")
    lines += [
        "",
        "| held out | seed | guess | steps | accepted | gate: before, after | success |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        if row["way"] == "guess":
            steps = ", ".join(re.findall("`[^`]*`", row["drafted"]))
            cells = [
                row["kind"],
                row["seed"],
                row["number"],
                steps,
                "yes" if row["accepted"] else "no",
                gate_of(row),
                success_of(row),
            ]
            lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def line_of(key: Sequence[Any], own: Sequence[Mapping[str, Any]]) -> str:
    """A row of `taught_table`."""
    written, accepted = sum(bool(row["drafted"]) for row in own), sum(row["accepted"] for row in own)
    gates = "; ".join(gate_of(row) for row in own if row["gate"])
    cells = [*key, f"{written} of {len(own)}", accepted, "; ".join(success_of(row) for row in own), gates]
    return f"| {' | '.join(map(str, cells))} |"


def gate_of(row: Mapping[str, Any]) -> str:
    """Both means of a decision."""
    return f"{row['gate']['before']:.2f}, {row['gate']['after']:.2f}"


def success_of(row: Mapping[str, Any]) -> str:
    """Success on the training games, and the difference with its interval."""
    found = row[f"{GAMES} train"]
    _, low, high = found["difference"]
    return f"{found['success']:.3f} [{low:+.3f}, {high:+.3f}]"


if __name__ == "__main__":
    main()

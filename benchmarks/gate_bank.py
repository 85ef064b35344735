"""Meaningless changes of a run's bank before the gate: how many pass, and how many a strict `>` lets in. See docs/optimize-results.md.

    skillttrl train quickstart_skills_alfworld --set 'phases=[collect,distill,sft]' --set evolve=null -o runs/cold-0
    python benchmarks/gate_bank.py runs/cold-0 --candidates 10

A candidate has the words of one skill in another order, a skill in turn; nothing is trained.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

import numpy as np

from skill_ttrl.commands.play import open_gate
from skill_ttrl.commands.resolve import resolve_target
from skill_ttrl.optimize import paired
from skill_ttrl.skills.changes import Snapshot
from skill_ttrl.types import Skill


def main() -> None:
    """Test the candidates one after another and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("--candidates", type=int, default=10)
    parser.add_argument("--tasks", type=int, default=40)
    options = parser.parse_args()
    paired.CHUNK = options.tasks  # all tasks are rolled out: the column of the strict rule needs them
    settings = ["runtime.threads=1"]
    skills = resolve_target(options.run, settings).bank().skills
    rng = np.random.default_rng(0)
    print("| candidate | before | after | difference | p | paired | strict > |\n|---|---|---|---|---|---|---|")
    with open_gate(options.run, [*settings, f"skills.gate.tasks={options.tasks}"]) as test:
        now = Snapshot.of(1, skills)
        for number in range(options.candidates):
            place = number % len(skills)
            changed = [shuffled(skill, rng) if index == place else skill for index, skill in enumerate(skills)]
            found = test(now, Snapshot.of(2, changed))
            before, after = (sum(score or 0.0 for score in side) / found.tasks for side in (found.before, found.after))
            decision = found.decision
            cells = [f"{before:.3f}", f"{after:.3f}", f"{decision.difference:+.3f}", f"{decision.p_value:.3f}"]
            words = ["accepted" if accepted else "rejected" for accepted in (decision.accept, after > before)]
            print("| " + " | ".join([skills[place].id, *cells, *words]) + " |", flush=True)


def shuffled(skill: Skill, rng: np.random.Generator) -> Skill:
    """The skill with its words in another order."""
    words = skill.text.split()
    return replace(skill, text=" ".join(words[index] for index in rng.permutation(len(words))))


if __name__ == "__main__":
    main()

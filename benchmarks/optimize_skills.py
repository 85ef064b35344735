"""Rules found from failures alone, by a small policy that follows rules: a table of benchmarks/results/optimize.md.

    python benchmarks/optimize_skills.py                                   # trains a policy a seed (6 min each), then the table
    python benchmarks/optimize_skills.py --policies runs/qs_0 runs/qs_1    # policies that are trained already, one a seed

The policy is that of `quickstart_skills`: it asks its bank for the rule of a name and follows it. Here the bank is the document, a
rule a line, of the 40 names that are in no demonstration and no training problem. Each name has ten problems, one a digit: four are
rolled out and reflected on, three decide in the gate, three are the test. The weights stay frozen, and no language model is asked: the
optimizer `induce` knows the form of a rule, not the rules.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from skill_ttrl.commands import train
from skill_ttrl.commands.optimize import open_rollouts
from skill_ttrl.commands.resolve import resolve_target
from skill_ttrl.config import OptimizeConfig, load_config
from skill_ttrl.data.families import MODULUS, OperatorGrammar, Operators, bank_family, read_rules
from skill_ttrl.data.tasks import MATH_ENV_ID
from skill_ttrl.optimize.calls import Calls
from skill_ttrl.optimize.induction import InductionOptimizer
from skill_ttrl.optimize.loop import Loop, optimize
from skill_ttrl.optimize.record import OptimizeTask
from skill_ttrl.optimize.types import RawPatch, RolloutResult, StepView
from skill_ttrl.progress import SilentProgress
from skill_ttrl.statistics import mean_interval, paired_difference
from skill_ttrl.train.document_rollouts import PolicyRollouts, as_bank
from skill_ttrl.types import Task, derive_seed

RECIPE = "quickstart_skills"
ROLES = {"train": 4, "selection": 3, "test": 3}
"""Digits of each name by role."""
CONFIG = OptimizeConfig(optimizer="induce", epochs=6, edit_budget=8, min_edit_budget=4)
"""The paper's batches of 40 and strict gate; 24 steps of at most 8 to 4 edits, for the 40 rules that are missing."""


@dataclass(frozen=True)
class Arm:
    """One way to get a document."""

    name: str
    document: str = ""
    """The document itself, or the first one."""
    optimized: bool = False
    labels: bool = True
    """The optimizer sees the true answers of its training problems; else only whether an answer was right, of answers that are sampled at
    temperature 1: a lucky guess tells most."""
    random: bool = False
    """Any line of the grammar in place of one that no rollout excludes."""


@dataclass(frozen=True)
class Outcome:
    """One arm with one policy."""

    test: Sequence[RolloutResult]
    rules: int
    """Lines of the document that are the true rule of their name, or the same function."""
    lines: int
    accepted: int = 0
    rejected: int = 0
    rollouts: int = 0


class RandomLines(OperatorGrammar):
    """The control: a grammar whose lines predict nothing, so that no answer excludes any."""

    def predict(self, line: str, question: str) -> None:
        """Nothing."""


class RandomEdits(InductionOptimizer):
    """Proposes any line for each failing name, in place of the one that is there."""

    def reflect(self, view: StepView) -> list[RawPatch]:
        """As induction, without knowledge of what the document holds."""
        found, written = super().reflect(replace(view, document="")), view.document.split("\n")
        for edit in found[0].patch.edits if found else ():
            line = edit.content.split("\n")[-1]
            present = [each for each in written if each.split(" ")[0] == line.split(" ")[0]]
            if present:
                edit.op, edit.target, edit.content = "replace", present[0], line
        return found


def main() -> None:
    """Train what is missing, run every arm, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policies", type=Path, nargs="+", help="run folders of quickstart_skills, of seeds 0, 1, ...")
    parser.add_argument("--output", type=Path, default=Path("runs/benchmark-optimize-skills"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    options = parser.parse_args()
    policies = options.policies or [trained(options.output, seed) for seed in options.seeds]
    found = [run_policy(policy, seed) for seed, policy in enumerate(policies)]
    print(table(found))


def trained(output: Path, seed: int) -> Path:
    """The policy of a seed, trained where it is missing."""
    folder = output / f"policy-{seed}"
    if not (folder / "summary.json").exists():
        train.run(load_config(RECIPE, [f"seed={seed}"]), folder, resume="auto")
    return folder


def run_policy(policy: Path, seed: int) -> dict[str, Outcome]:
    """Every arm with one policy, by name."""
    target = resolve_target(policy, ["runtime.threads=1"])
    place = as_bank(target.config.skills, read_rules)
    with open_rollouts(target, problems(seed), place, SilentProgress()) as (roll_out, items):
        task = OptimizeTask(items["train"], items["selection"], items["test"], "operators")
        return {arm.name: run_arm(arm, task, roll_out, seed) for arm in arms(seed)}


def problems(seed: int, family: Operators | None = None) -> dict[str, list[Task]]:
    """The problems of every held-out name by role; which digits have which role is drawn for each name."""
    family = family or Operators()
    found: dict[str, list[Task]] = {role: [] for role in ROLES}
    every = family.problems("test", MATH_ENV_ID)
    for start in range(0, len(every), MODULUS):
        own = every[start : start + MODULUS]
        random.Random(derive_seed(seed, "digits", own[0].id)).shuffle(own)
        for role, count in ROLES.items():
            found[role] += own[:count]
            own = own[count:]
    return found


def arms(seed: int) -> list[Arm]:
    """The documents that are compared."""
    names = sorted(Operators().names["test"])
    right, wrong = (rules(family, names) for family in ("operators", "operators-shuffled"))
    mixed = random.Random(derive_seed(seed, "first document")).sample(names, len(names) // 2)
    part = [*rules("operators", mixed[::2]), *rules("operators-shuffled", mixed[1::2])]
    return [
        Arm("untouched (empty)"),
        Arm("optimized", optimized=True),
        Arm("optimized, no labels", optimized=True, labels=False),
        Arm("optimized from 10 right and 10 wrong rules", "\n".join(part), optimized=True),
        Arm("that document untouched", "\n".join(part)),
        Arm("random edits, same gate", optimized=True, random=True),
        Arm("random edits, same gate, no labels", optimized=True, labels=False, random=True),
        Arm("shuffled rules", "\n".join(wrong)),
        Arm("true rules (ceiling)", "\n".join(right)),
    ]


def rules(family: str, names: Sequence[str]) -> list[str]:
    """The lines of these names."""
    return [skill.text for skill in bank_family(family) if skill.title in names]


def run_arm(arm: Arm, task: OptimizeTask, roll_out: PolicyRollouts, seed: int) -> Outcome:
    """Optimize where the arm does, and roll out its document on the test items."""
    greedy = Calls(None, roll_out, seed=seed)
    if not arm.optimized:
        return Outcome(greedy.roll_out("test", arm.document, task.test), *count_rules(arm.document))
    if not arm.labels:
        roll_out = replace(roll_out, show_reference=False, temperature=1.0)
    calls = Calls(None, roll_out, seed=seed, reuse_rollouts=arm.labels)
    optimizer = RandomEdits(RandomLines()) if arm.random else InductionOptimizer(OperatorGrammar())
    done = optimize(Loop(replace(task, test=()), CONFIG, calls, optimizer, seed), arm.document)
    actions = [row["action"] for row in done.rows]
    return Outcome(
        greedy.roll_out("test", done.state.best, task.test),
        *count_rules(done.state.best),
        accepted=sum(action.startswith("accept") for action in actions),
        rejected=actions.count("reject"),
        rollouts=sum(counts.done for counts in calls.counts.values()),
    )


def count_rules(document: str) -> tuple[int, int]:
    """Lines that are right as functions, and all lines with a rule."""
    grammar, family, right = OperatorGrammar(), Operators(), 0
    lines = read_rules(document)
    for skill in lines:
        asked = [f"Compute {skill.title} {x}." for x in range(MODULUS)]
        true = family.rule(skill.title).of(skill.title)
        right += all(grammar.predict(skill.text, one) == grammar.predict(true, one) for one in asked)
    return right, len(lines)


def table(found: Sequence[Mapping[str, Outcome]]) -> str:
    """Success on the test items by arm, over all policies: intervals are of the mean over items."""
    head = "| document | " + " | ".join(f"policy {seed}" for seed in range(len(found)))
    head += " | all (95 %) | against untouched (95 %, paired) | true rules / lines | accepted / rejected | rollouts |"
    rows = [head, "|---" * (len(found) + 6) + "|"]
    base = [result.hard for outcomes in found for result in outcomes["untouched (empty)"].test]
    for name in found[0]:
        outcomes = [each[name] for each in found]
        hard = [result.hard for outcome in outcomes for result in outcome.test]
        low, high = mean_interval(hard)
        gain, worst, best = paired_difference(base, hard)
        cells = [f"{fmean(result.hard for result in outcome.test):.3f}" for outcome in outcomes]
        counts = ", ".join(f"{outcome.rules}/{outcome.lines}" for outcome in outcomes)
        steps = (
            ", ".join(f"{outcome.accepted}/{outcome.rejected}" for outcome in outcomes) if outcomes[0].rollouts else "-"
        )
        done = ", ".join(f"{outcome.rollouts:,}" for outcome in outcomes) if outcomes[0].rollouts else "-"
        rows.append(
            f"| {name} | {' | '.join(cells)} | {fmean(hard):.3f} [{low:.3f}, {high:.3f}] | {gain:+.3f} [{worst:+.3f}, {best:+.3f}] | "
            f"{counts} | {steps} | {done} |"
        )
    return "\n".join(rows)


if __name__ == "__main__":
    main()

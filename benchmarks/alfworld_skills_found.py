"""Which skill of a bank the words of a task find, without a policy: a table of benchmarks/results/alfworld-skills.md, in seconds.

    python benchmarks/alfworld_skills_found.py -o runs/alfworld-skills       # after alfworld_skills.py, which makes the banks

The tasks are every eighth training game of all types; the bank has one skill a type. It needs the official games (`ALFWORLD_DATA`).
"""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path

from skill_ttrl.envs import make_env
from skill_ttrl.skills.bank import SkillBank
from skill_ttrl.skills.retrieval import BankView, Query, make_retriever

EVERY = 8
MODES = {"`hash`": "embedding", "BM25": "keyword", "both": "hybrid"}


def main() -> None:
    """Print the share of tasks for which the skill of their own type is found first."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, default=Path("runs/alfworld-skills"))
    options = parser.parse_args()
    said = goals()
    kinds = sorted({kind for kind, _ in said})
    for folder in sorted(options.output.glob("data-*/full-bank")):
        bank = SkillBank.open(folder, read_only=True)
        print(f"\n{folder}, {len(said)} tasks\n")
        print("\n".join([f"| scores | searched | all | {' | '.join(kinds)} |", "|---" * (3 + len(kinds)) + "|"]))
        for name, mode in MODES.items():
            for searched in ("all", "when_to_apply"):
                settings = bank.settings.changed(retrieval_mode=mode, searched=searched, index="memory")
                view = BankView(bank.snapshot(), make_retriever(settings))
                found = view.select_for_prompts([Query(words) for _, words in said], 1)
                right = [
                    bool(skills) and skills[0].task_type == kind for (kind, _), skills in zip(said, found, strict=True)
                ]
                of_kind = Counter(kind for (kind, _), hit in zip(said, right, strict=True) if hit)
                whole = Counter(kind for kind, _ in said)
                shares = " | ".join(f"{of_kind[kind] / whole[kind]:.2f}" for kind in kinds)
                print(f"| {name} | {searched} | {sum(right) / len(right):.3f} | {shares} |")


def goals() -> list[tuple[str, str]]:
    """Of each task its type, and what it says is to be done."""
    env = make_env("alfworld").unwrapped
    tasks = env.tasks("train")[::EVERY]
    return [(task.task_type, env.reset(options={"task": task.options["task"]})[1]["task"]) for task in tasks]


if __name__ == "__main__":
    main()

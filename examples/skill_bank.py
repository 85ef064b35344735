"""A skill bank in a folder: add, find, count uses, look back, go back. Needs no model; the folder is a temporary one.

Run it: python examples/skill_bank.py
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from skill_ttrl import Skill, SkillBank


def use(folder: Path) -> None:
    # `index="memory"` keeps vectors in this process; without it they are kept in Chroma (the extra `skills`).
    with SkillBank(folder, max_skills=3, index="memory") as bank:
        bank.add(Skill("parity", "Parity", "An odd sum needs an odd term.", "sums of integers", tier="general"))
        bank.add(Skill("fermat", "Fermat", "For a prime p, a^(p-1) = 1 mod p.", "powers modulo a prime"))
        for hit in bank.search("2^10 modulo 7, a prime"):
            print(f"found {hit.skill.id} ({hit.score:.2f})")

        # A use counts whether it helped; a better skill keeps what was counted, and its ancestors.
        bank.record_usages([("fermat", True), ("fermat", True), ("parity", False)], round=1)
        euler = Skill("euler", "Euler", "For a prime to n, a^phi(n) = 1 mod n.", "powers modulo n")
        better = bank.replace("fermat", euler, reason="holds for composites too", evidence=["problem-12"])
        print("uses", better.stats.uses, "| success", better.stats.success_rate, "| from", *better.parents)

        # The bank holds three: the fourth takes the place of the least useful, in the same update.
        bank.add(Skill("units", "Units", "Check the last digit."))
        bank.add(Skill("bounds", "Bounds", "Bound it from both sides."))
        print("kept:", *bank.snapshot().skills)

        for update in bank.history():
            print(f"  version {update.version}: {update.reason:26}", *(change.kind for change in update.changes))
        bank.rollback(2, reason="a bad idea")

    with SkillBank.open(folder, read_only=True) as again:  # in another process just the same
        print("version", again.version, "holds", *again.snapshot().skills, "| the one before:", *again.at(6).skills)


def main() -> None:
    with TemporaryDirectory() as folder:
        use(Path(folder) / "bank")


if __name__ == "__main__":
    main()

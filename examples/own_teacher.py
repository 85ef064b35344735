"""A teacher of one's own: it tells the next episodes how the shortest won one began.

Run it: python examples/own_teacher.py. A config names it: distill.teacher: own_teacher:ShortestWin.
"""

from __future__ import annotations

from collections.abc import Sequence

from skill_ttrl.config import DistillConfig
from skill_ttrl.skills.teachers import make_teacher
from skill_ttrl.skills.types import Case, Draft, TeacherResult
from skill_ttrl.types import Step


class ShortestWin:
    """Called without arguments; `distill` learns before training, `evolve` from failures while the policy trains."""

    def distill(self, cases: Sequence[Case], config: DistillConfig) -> TeacherResult:
        wins = sorted((case for case in cases if case.won), key=lambda case: len(case.steps))
        drafts = [
            Draft("Shortest win", f"Begin with: {', '.join(step.action for step in case.steps[:2])}.",
                  task_type=case.task_type, evidence=(case.task_id,))
            for case in wins[:1]
        ]  # fmt: skip
        return TeacherResult(tuple(drafts))  # drafts are checked, deduplicated and numbered on their way into the bank

    def evolve(self, failures: object, skills: object, config: object) -> TeacherResult:
        return TeacherResult()


if __name__ == "__main__":
    steps = tuple(
        Step("a kitchen", action, 0.0, False, False) for action in ("go to fridge", "open fridge", "take milk")
    )
    teacher = make_teacher("own_teacher:ShortestWin")
    found = teacher.distill([Case("t1", "find milk", "find", True, steps)], DistillConfig())
    print(found.drafts[0].text)

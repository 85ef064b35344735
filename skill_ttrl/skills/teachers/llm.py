"""The teacher that asks a language model, for `distill.teacher: openai` and `evolve.teacher: openai`.

`endpoints.teacher` names the model. `distill_llm` and `evolve_llm` hold the questions.
"""

from __future__ import annotations

from collections.abc import Sequence

from skill_ttrl.config import DistillConfig, EvolveConfig
from skill_ttrl.skills.querying import LLMQuerier
from skill_ttrl.skills.teachers import distill_llm, evolve_llm
from skill_ttrl.skills.teachers.types import Case, TeacherResult
from skill_ttrl.types import Skill


class LLMTeacher:
    """Asks a language model. Several questions of one call go out together.

    Args:
        asking: the model.
    """

    def __init__(self, asking: LLMQuerier) -> None:
        self.asking = asking
        for name in (*distill_llm.TEMPLATES, *evolve_llm.TEMPLATES):  # one that cannot be read is found now
            asking.templates.get(name)

    def distill(self, cases: Sequence[Case], config: DistillConfig) -> TeacherResult:
        """See `Teacher.distill`.

        Raises:
            EndpointError: a request came to nothing, under `on_failure: stop`.
            BudgetError: the budget is spent; nothing is to be used.
        """
        return distill_llm.distilled(self.asking, cases, config)

    def evolve(self, failures: Sequence[Case], skills: Sequence[Skill], config: EvolveConfig) -> TeacherResult:
        """See `Teacher.evolve`; raises as `distill`."""
        return evolve_llm.evolved_by_asking(self.asking, failures, skills, config)

"""The further calls of an optimizer that asks a language model: how many edits, a whole document, guidance, memory, fewer notes.

Each method asks once and reads the answer by a pure function. None, or a budget of 0, is an answer that cannot be used: counted.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from skill_ttrl.config import OptimizeConfig
from skill_ttrl.optimize.calls import Calls, ChatRequest
from skill_ttrl.optimize.documents import read_consolidated, read_document
from skill_ttrl.optimize.lessons import Pair, guidance_request, memory_request, read_guidance, read_memory
from skill_ttrl.optimize.optimizer import StepView
from skill_ttrl.optimize.replies import extract_json
from skill_ttrl.optimize.scores import compute_score
from skill_ttrl.optimize.transcript import describe_edit
from skill_ttrl.optimize.types import Patch
from skill_ttrl.prompts.templates import Templates

_INTEGER = re.compile(r"(?<![\d.])[+-]?\d{1,9}(?!\d)(?!\.\d*[1-9])")


@dataclass(frozen=True, slots=True)
class BudgetDecision:
    """How many proposals are applied."""

    budget: int
    """Between 0 and the number of proposals."""
    named: int | None
    """The model's number; None where it wrote no whole one."""
    reasoning: str = ""

    @property
    def clamped(self) -> bool:
        """True if the model named another number than is applied."""
        return self.named is not None and self.named != self.budget

    def to_dict(self) -> dict[str, Any]:
        """The decision as JSON, with SkillOpt's names."""
        return {
            "learning_rate": self.budget,
            "raw_learning_rate": self.named,
            "clamped": self.clamped,
            "fallback": self.named is None,
            "reasoning": self.reasoning,
        }


def read_budget(answer: str | None, available: int) -> BudgetDecision:
    """The budget in an answer. Without a whole number it is 0: an answer that cannot be read changes no document."""
    found = extract_json(answer or "") or {}
    named = whole_number(found.get("learning_rate"))
    return BudgetDecision(min(max(named or 0, 0), available), named, str(found.get("reasoning") or ""))


def whole_number(value: Any) -> int | None:
    """A whole number, also one in a text (`about 3 edits`); None for anything else."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, float):
        return int(value) if value.is_integer() else None
    found = _INTEGER.search(value) if isinstance(value, str) else None
    return None if found is None else int(found[0])


DECISION_TOKENS = 2048

T = TypeVar("T")


@dataclass
class LLMWriter:
    """Asks a language model for what the features beyond the six stages need.

    Args:
        calls: where requests go.
        config: longest answers.
        templates: where prompts are read from.
    """

    calls: Calls
    config: OptimizeConfig
    templates: Templates

    def decide_budget(self, view: StepView, patch: Patch) -> BudgetDecision:
        """How many of the merged proposals this step applies."""
        hard, soft = compute_score(view.rollouts)
        user = self.templates.render(
            "lr_autonomous_request",
            document=view.document or "(empty)",
            context=view.show_context(),
            rollouts=str(len(view.rollouts)),
            hard=f"{hard:.4f}",
            soft=f"{soft:.4f}",
            count=str(len(patch.edits)),
            edits="\n".join(f"[{place}] {describe_edit(edit)}" for place, edit in enumerate(patch.edits)),
        )
        decision = read_budget(
            self._ask("lr_autonomous", user, min(DECISION_TOKENS, self.config.max_answer_tokens)), len(patch.edits)
        )
        if decision.named is None:
            view.fallbacks["lr_autonomous"] += 1
        return decision

    def rewrite(self, view: StepView, patch: Patch) -> str | None:
        """The whole document with the chosen suggestions carried out."""
        shown = json.dumps([edit.to_dict() for edit in patch.edits], ensure_ascii=False, indent=2)
        user = self.templates.render(
            "rewrite_skill_request",
            document=view.document or "(empty)",
            context=view.show_context(),
            count=str(len(patch.edits)),
            suggestions=shown,
        )
        text = read_document(self._ask("rewrite_skill", user, self.config.max_rewrite_tokens))
        return _counted("rewrite_skill", text, view.fallbacks)

    def write_guidance(self, before: str, now: str, pairs: Sequence[Pair], fallbacks: Counter[str]) -> str | None:
        """The guidance block of the slow update."""
        text = read_guidance(self._ask_with("slow_update", guidance_request(before, now, pairs)))
        return _counted("slow_update", text, fallbacks)

    def write_memory(
        self, before: str, now: str, memory: str, pairs: Sequence[Pair], fallbacks: Counter[str]
    ) -> str | None:
        """The optimizer's memory for the next epoch."""
        text = read_memory(self._ask_with("meta_skill", memory_request(before, now, memory, pairs)))
        return _counted("meta_skill", text, fallbacks)

    def consolidate(self, notes: Sequence[str], fallbacks: Counter[str]) -> list[str] | None:
        """Fewer notes that say the same."""
        shown = "\n".join(f"{place}. {note}" for place, note in enumerate(notes, 1))
        answer = self._ask_with("appendix_consolidate", {"notes": shown, "count": str(len(notes))})
        found = read_consolidated(answer, notes)
        return _counted("appendix_consolidate", found, fallbacks)

    def _ask_with(self, stage: str, places: dict[str, str]) -> str | None:
        return self._ask(stage, self.templates.render(f"{stage}_request", **places), self.config.max_answer_tokens)

    def _ask(self, stage: str, user: str, most: int) -> str | None:
        (answer,) = self.calls.ask([ChatRequest(stage, self.templates.render(stage), user, most)])
        return answer


def _counted(stage: str, value: T | None, fallbacks: Counter[str]) -> T | None:
    """The value; without one, an answer that could not be used is counted."""
    if value is None:
        fallbacks[stage] += 1
    return value

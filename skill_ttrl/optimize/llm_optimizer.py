"""The optimizer that asks a language model: analysts reflect, a hierarchical merge aggregates, a ranking selects.

Each method is one stage of SkillOpt (arXiv 2605.23904); requests of one level go out together. An answer that cannot be used leaves
its part out, or falls back to a rule that the step's record names: nothing is replaced silently.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from skill_ttrl.config import OptimizeConfig
from skill_ttrl.optimize.calls import Calls, ChatRequest
from skill_ttrl.optimize.optimizer import StepView
from skill_ttrl.optimize.replies import extract_json
from skill_ttrl.optimize.transcript import show_rollouts
from skill_ttrl.optimize.types import Edit, Patch, RawPatch, RolloutResult
from skill_ttrl.prompts.templates import Templates

Source = Literal["failure", "success"]
RANKING_TOKENS = 2048
EDIT_CHARS = 500
"""Longest description of an edit that the ranking is shown."""


@dataclass
class LLMOptimizer:
    """Reflects, merges and selects by asking a language model.

    Args:
        calls: where requests go.
        config: sizes of minibatches and merges, and what to do without an answer.
        templates: where prompts are read from.
    """

    calls: Calls
    config: OptimizeConfig
    templates: Templates = field(default_factory=Templates)

    def reflect(self, view: StepView) -> list[RawPatch]:
        """One patch a minibatch of failures, and one a minibatch of successes, as far as the analysts' answers can be read."""
        jobs = minibatches(view.rollouts, self.config, view.seed)
        requests = [self._analyst(view, source, rollouts) for source, rollouts in jobs]
        found = []
        for (source, rollouts), answer in zip(jobs, self.calls.ask(requests), strict=True):
            patch = read_patch(answer)
            if patch is None:
                view.fallbacks["analyst"] += 1
            else:
                found.append(signed(patch, source, len(rollouts), view.max_edits))
        return found

    def merge(self, view: StepView, patches: Sequence[RawPatch]) -> Patch:
        """Failures and successes merged apart, level by level, then both with failures first (`merge: separate`)."""
        failure = [raw.patch for raw in patches if raw.source_type == "failure" and raw.patch.edits]
        success = [raw.patch for raw in patches if raw.source_type == "success" and raw.patch.edits]
        if self.config.merge == "joint" and 1 < len(failure) + len(success) <= self.config.merge_batch_size:
            return self._merge_final(view, concatenated(failure), concatenated(success))
        merged = self._merge_levels(view, "merge_failure", failure), self._merge_levels(view, "merge_success", success)
        if not all(patch.edits for patch in merged):
            return merged[0] if merged[0].edits else merged[1]
        return self._merge_final(view, *merged)

    def select(self, view: StepView, patch: Patch, max_edits: int) -> Patch:
        """The edits that the model ranks highest; without a usable answer failures first, then by support (counted)."""
        described = "\n".join(f"[{place}] {describe_edit(edit)}" for place, edit in enumerate(patch.edits))
        user = self._render(
            "ranking_request", view, edits=described, count=str(len(patch.edits)), budget=str(max_edits)
        )
        request = ChatRequest(
            "ranking", self._rules("ranking"), user, min(RANKING_TOKENS, self.config.max_answer_tokens)
        )
        (answer,) = self.calls.ask([request])
        found = extract_json(answer or "")
        if chosen := ranked_edits(found, patch.edits, max_edits):
            return Patch(chosen, f"{patch.reasoning} [ranked: {len(chosen)} of {len(patch.edits)}]".strip(), found)
        view.fallbacks["ranking"] += 1
        return Patch(by_support(patch.edits)[:max_edits], f"{patch.reasoning} [no usable ranking: by support]".strip())

    def _analyst(self, view: StepView, source: Source, rollouts: Sequence[RolloutResult]) -> ChatRequest:
        stage = "analyst_error" if source == "failure" else "analyst_success"
        user = self._render(
            "analyst_request",
            view,
            budget=str(view.max_edits),
            outcome="failed" if source == "failure" else "succeeded",
            count=str(len(rollouts)),
            rollouts=show_rollouts(rollouts),
        )
        return ChatRequest(stage, self._rules(stage), user, self.config.max_answer_tokens)

    def _merge_levels(self, view: StepView, stage: str, patches: Sequence[Patch]) -> Patch:
        """Merge `merge_batch_size` patches at a time until one is left."""
        level, left, size = 0, list(patches), self.config.merge_batch_size
        while len(left) > 1:
            level += 1
            groups = [left[start : start + size] for start in range(0, len(left), size)]
            several = [group for group in groups if len(group) > 1]
            answers = iter(self.calls.ask([self._merger(view, stage, group, level) for group in several]))
            left = [self._merged(view, group, next(answers), level) if len(group) > 1 else group[0] for group in groups]
        return left[0] if left else Patch()

    def _merged(self, view: StepView, group: Sequence[Patch], answer: str | None, level: int) -> Patch:
        patch = read_patch(answer)
        if patch is None:
            view.fallbacks["merge"] += 1
            patch = concatenated(group)
        return replace(patch, edits=[replace(edit, merge_level=edit.merge_level or level) for edit in patch.edits])

    def _merger(self, view: StepView, stage: str, patches: Sequence[Patch], level: int) -> ChatRequest:
        shown = json.dumps([patch.to_dict() for patch in patches], ensure_ascii=False, indent=2)
        user = self._render("merge_patches_request", view, patches=shown, count=str(len(patches)), level=str(level))
        return ChatRequest(stage, self._rules(stage), user, self.config.max_answer_tokens)

    def _merge_final(self, view: StepView, failure: Patch, success: Patch) -> Patch:
        shown = json.dumps([failure.to_dict(), success.to_dict()], ensure_ascii=False, indent=2)
        user = self._render(
            "merge_final_request",
            view,
            failures=str(len(failure.edits)),
            successes=str(len(success.edits)),
            patches=shown,
        )
        request = ChatRequest("merge_final", self._rules("merge_final"), user, self.config.max_answer_tokens)
        (answer,) = self.calls.ask([request])
        patch = read_patch(answer)
        if patch is not None:
            return patch
        view.fallbacks["merge"] += 1
        return Patch([*failure.edits, *success.edits], "no usable merge: failures first, then successes")

    def _rules(self, stage: str) -> str:
        return self.templates.render(stage)

    def _render(self, template: str, view: StepView, **values: str) -> str:
        context = "\n\n".join(f"## {heading}\n{text}" for heading, text in view.context.items() if text)
        return self.templates.render(template, document=view.document or "(empty)", context=context, **values)


def minibatches(
    rollouts: Sequence[RolloutResult], config: OptimizeConfig, seed: int
) -> list[tuple[Source, list[RolloutResult]]]:
    """Failures, then successes, each shuffled by `seed` and cut into minibatches."""
    failures = [result for result in rollouts if not result.hard]
    successes = [] if config.failure_only else [result for result in rollouts if result.hard]
    random.Random(seed).shuffle(failures)
    random.Random(seed + 1).shuffle(successes)
    size = config.minibatch_size
    sources: list[tuple[Source, list[RolloutResult]]] = [("failure", failures), ("success", successes)]
    return [(source, rows[start : start + size]) for source, rows in sources for start in range(0, len(rows), size)]


def read_patch(answer: str | None) -> Patch | None:
    """The patch in an answer; None where there is none."""
    found = extract_json(answer or "")
    if not found or not isinstance(found.get("edits"), list):
        return None
    return Patch.from_dict(found)


def signed(patch: Patch, source: Source, count: int, max_edits: int) -> RawPatch:
    """The first `max_edits` edits of an analyst's patch, with where they come from and how many rollouts stand behind them."""
    edits = [
        replace(
            edit,
            support_count=count if edit.support_count is None else edit.support_count,
            source_type=edit.source_type or source,
        )
        for edit in patch.edits[: max(max_edits, 1)]
    ]
    return RawPatch(replace(patch, edits=edits), source, count)


def concatenated(patches: Sequence[Patch]) -> Patch:
    """All edits of several patches, one after another."""
    return Patch([edit for patch in patches for edit in patch.edits], "concatenated")


def ranked_edits(found: Mapping[str, Any] | None, edits: Sequence[Edit], most: int) -> list[Edit]:
    """The edits that `selected_indices` names, in its order, without repetitions; empty where it names none."""
    named = (found or {}).get("selected_indices")
    places = [place for place in named if type(place) is int] if isinstance(named, list) else []
    return [edits[place] for place in dict.fromkeys(places) if 0 <= place < len(edits)][:most]


def by_support(edits: Sequence[Edit]) -> list[Edit]:
    """Edits from failures first, then by how many rollouts stand behind them."""
    return sorted(edits, key=lambda edit: (edit.source_type != "failure", -_number(edit.support_count)))


def describe_edit(edit: Edit) -> str:
    """One line that says what an edit does, cut where it is long."""
    shown: dict[str, Callable[[], object]] = {
        "target": lambda: repr(edit.target),
        "content": lambda: repr(edit.content),
        "support": lambda: edit.support_count,
        "source": lambda: edit.source_type,
    }
    given = (edit.target, edit.content, edit.support_count is not None, edit.source_type)
    parts = [
        f"op={edit.op}",
        *(f"{name}={show()}" for (name, show), has in zip(shown.items(), given, strict=True) if has),
    ]
    text = "  ".join(parts)
    return text if len(text) <= EDIT_CHARS else f"{text[: EDIT_CHARS - 3].rstrip()}..."


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0

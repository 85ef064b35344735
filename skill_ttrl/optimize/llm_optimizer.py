"""The optimizer that uses a language model: analysts reflect, a hierarchical merge aggregates, a ranking selects.

Beyond these stages it says how many edits a step applies, and writes whole documents, guidance and memory. Each method is one stage of SkillOpt (arXiv 2605.23904); requests of one level go out together. An answer that cannot be used leaves
its part out, or falls back to a rule that the step's record names: nothing is replaced silently.
"""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from skill_ttrl.config import OptimizeConfig
from skill_ttrl.optimize.calls import Calls, ChatRequest
from skill_ttrl.optimize.documents import MODES, extract_json, guidance_of, read_document, read_text
from skill_ttrl.optimize.lessons import NONE_YET, Pair, describe_edit, show_pairs, show_rollout
from skill_ttrl.optimize.types import (
    BudgetDecision,
    Edit,
    Patch,
    RawPatch,
    RolloutResult,
    SourceType,
    StepView,
    compute_score,
)
from skill_ttrl.prompts.templates import Templates

REQUEST_TOKENS = 2048
"""Longest ranking, and longest decision on the edit budget."""
REWRITE_TOKENS = 16_384
"""Longest answer that holds a whole document."""
_INTEGER = re.compile(r"(?<![\d.])[+-]?\d{1,9}(?!\d)(?!\.\d*[1-9])")
T = TypeVar("T")


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


def _documents(before: str, now: str) -> dict[str, str]:
    return {"previous_document": before or "(empty)", "document": now or "(empty)"}


def _counted(stage: str, value: T | None, fallbacks: Counter[str]) -> T | None:
    """The value; without one, an unusable answer is counted."""
    if value is None:
        fallbacks[stage] += 1
    return value


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

    def __post_init__(self) -> None:
        self.mode = MODES[self.config.update_mode]

    def reflect(self, view: StepView) -> list[RawPatch]:
        """One patch a minibatch of failures, and one a minibatch of successes, as far as the analysts' answers can be read."""
        jobs = minibatches(view.rollouts, self.config, view.seed)
        answers = self.calls.ask([self._analyst(view, source, rollouts) for source, rollouts in jobs])
        found = []
        for (source, rollouts), answer in zip(jobs, answers, strict=True):
            raw = self._read_analyst(view, source, len(rollouts), answer)
            if raw is None:
                view.fallbacks["analyst"] += 1
            else:
                found.append(raw)
        return found

    def merge(self, view: StepView, patches: Sequence[RawPatch]) -> Patch:
        """Failures and successes merged apart, level by level, then both with failures first."""
        failure = [raw.patch for raw in patches if raw.source_type == "failure" and raw.patch.edits]
        success = [raw.patch for raw in patches if raw.source_type == "success" and raw.patch.edits]
        merged = self._merge_levels(view, "merge_failure", failure), self._merge_levels(view, "merge_success", success)
        if not all(patch.edits for patch in merged):
            return merged[0] if merged[0].edits else merged[1]
        return self._merge_final(view, *merged)

    def select(self, view: StepView, patch: Patch, max_edits: int) -> Patch:
        """The edits that the model ranks highest; without a usable answer failures first, then by support (counted)."""
        described = "\n".join(f"[{place}] {describe_edit(edit)}" for place, edit in enumerate(patch.edits))
        most = min(REQUEST_TOKENS, self.config.max_answer_tokens)
        places = {"edits": described, "count": str(len(patch.edits)), "budget": str(max_edits)}
        (answer,) = self.calls.ask([self._request("ranking", view, most, "ranking", **places)])
        found = extract_json(answer or "")
        if chosen := ranked_edits(found, patch.edits, max_edits):
            return Patch(chosen, f"{patch.reasoning} [ranked: {len(chosen)} of {len(patch.edits)}]".strip(), found)
        view.fallbacks["ranking"] += 1
        return Patch(by_support(patch.edits)[:max_edits], f"{patch.reasoning} [no usable ranking: by support]".strip())

    def _analyst(self, view: StepView, source: SourceType, rollouts: Sequence[RolloutResult]) -> ChatRequest:
        places = {
            "budget": str(view.max_edits),
            "outcome": "failed" if source == "failure" else "succeeded",
            "count": str(len(rollouts)),
            "rollouts": "\n\n".join(map(show_rollout, rollouts)),
        }
        stage = "analyst_error" if source == "failure" else "analyst_success"
        return self._request("analyst", view, self._answer_tokens, stage, **places)

    def _read_analyst(self, view: StepView, source: SourceType, count: int, answer: str | None) -> RawPatch | None:
        """An analyst's patch; None where the answer has none."""
        found = extract_json(answer or "") or {}
        patch = self.mode.patch_in(found)
        if patch is None:
            return None
        summary = [dict(each) for each in _listed(found.get("failure_summary")) if isinstance(each, Mapping)]
        most = max(view.max_edits, 1) if self.mode.ranks else None
        return RawPatch(signed(patch, source, count, most), source, count, failure_summary=summary)

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
        patch = self.mode.read(answer)
        if patch is None:
            view.fallbacks["merge"] += 1
            patch = concatenated(group)
        return replace(patch, edits=[replace(edit, merge_level=edit.merge_level or level) for edit in patch.edits])

    def _merger(self, view: StepView, stage: str, patches: Sequence[Patch], level: int) -> ChatRequest:
        shown = json.dumps([patch.to_dict() for patch in patches], ensure_ascii=False, indent=2)
        places = {"patches": shown, "count": str(len(patches)), "level": str(level)}
        return self._request("merge_patches", view, self._answer_tokens, stage, **places)

    def _merge_final(self, view: StepView, failure: Patch, success: Patch) -> Patch:
        shown = json.dumps([failure.to_dict(), success.to_dict()], ensure_ascii=False, indent=2)
        places = {"failures": str(len(failure.edits)), "successes": str(len(success.edits)), "patches": shown}
        (answer,) = self.calls.ask([self._request("merge_final", view, self._answer_tokens, "merge_final", **places)])
        patch = self.mode.read(answer)
        if patch is not None:
            return patch
        view.fallbacks["merge"] += 1
        return Patch([*failure.edits, *success.edits], "no usable merge: failures first, then successes")

    # The calls beyond the three stages. None, or a budget of 0, is an unusable answer: counted.

    def decide_budget(self, view: StepView, patch: Patch) -> BudgetDecision:
        """How many of the merged proposals this step applies."""
        hard, soft = compute_score(view.rollouts)
        places = {
            "rollouts": str(len(view.rollouts)),
            "hard": f"{hard:.4f}",
            "soft": f"{soft:.4f}",
            "count": str(len(patch.edits)),
            "edits": "\n".join(f"[{place}] {describe_edit(edit)}" for place, edit in enumerate(patch.edits)),
        }
        most = min(REQUEST_TOKENS, self.config.max_answer_tokens)
        decision = read_budget(self._ask("lr_autonomous", view.places() | places, most), len(patch.edits))
        if decision.named is None:
            view.fallbacks["lr_autonomous"] += 1
        return decision

    def rewrite(self, view: StepView, patch: Patch) -> str | None:
        """The whole document with the chosen suggestions carried out."""
        shown = json.dumps([edit.to_dict() for edit in patch.edits], ensure_ascii=False, indent=2)
        places = view.places() | {"count": str(len(patch.edits)), "suggestions": shown}
        text = read_document(self._ask("rewrite_skill", places, REWRITE_TOKENS))
        return _counted("rewrite_skill", text, view.fallbacks)

    def write_guidance(self, before: str, now: str, pairs: Sequence[Pair], fallbacks: Counter[str]) -> str | None:
        """The guidance block of the slow update."""
        guidance = guidance_of(now) or NONE_YET
        places = {"guidance": guidance, "comparison": show_pairs(pairs)}
        answer = self._ask("slow_update", _documents(before, now) | places)
        return _counted("slow_update", read_text(answer, "slow_update_content"), fallbacks)

    def write_memory(
        self, before: str, now: str, memory: str, pairs: Sequence[Pair], fallbacks: Counter[str]
    ) -> str | None:
        """The optimizer's memory for the next epoch."""
        places = {"memory": memory or NONE_YET, "comparison": show_pairs(pairs)}
        answer = self._ask("meta_skill", _documents(before, now) | places)
        return _counted("meta_skill", read_text(answer, "meta_skill_content"), fallbacks)

    def _ask(self, stage: str, places: Mapping[str, str], most: int | None = None) -> str | None:
        user = self.templates.render(f"{stage}_request", **places)
        request = ChatRequest(stage, self.templates.render(stage), user, most or self.config.max_answer_tokens)
        (answer,) = self.calls.ask([request])
        return answer

    @property
    def _answer_tokens(self) -> int:
        return self.config.max_answer_tokens if self.mode.ranks else REWRITE_TOKENS

    def _request(self, template: str, view: StepView, tokens: int, stage: str, **places: str) -> ChatRequest:
        """A question of a stage: its rules in the form of the update mode, and the step's facts."""
        user = self.templates.render(f"{template}_request", **view.places(), **places)
        return ChatRequest(stage, self.templates.render(f"{stage}{self.mode.suffix}"), user, tokens)


def minibatches(
    rollouts: Sequence[RolloutResult], config: OptimizeConfig, seed: int
) -> list[tuple[SourceType, list[RolloutResult]]]:
    """Failures, then successes, each shuffled by `seed` and cut into minibatches."""
    failures = [result for result in rollouts if not result.hard]
    successes = [] if config.failure_only else [result for result in rollouts if result.hard]
    random.Random(seed).shuffle(failures)
    random.Random(seed + 1).shuffle(successes)
    size = config.minibatch_size
    sources: list[tuple[SourceType, list[RolloutResult]]] = [("failure", failures), ("success", successes)]
    return [(source, rows[start : start + size]) for source, rows in sources for start in range(0, len(rows), size)]


def signed(patch: Patch, source: SourceType, count: int, most: int | None) -> Patch:
    """The first `most` edits of an analyst's patch, with where they come from and how many rollouts stand behind them."""
    edits = [
        replace(
            edit,
            support_count=count if edit.support_count is None else edit.support_count,
            source_type=edit.source_type or source,
        )
        for edit in patch.edits[:most]
    ]
    return replace(patch, edits=edits)


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
    return sorted(edits, key=lambda edit: (edit.source_type != "failure", -(edit.support_count or 0)))


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []

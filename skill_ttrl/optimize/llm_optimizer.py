"""The optimizer that uses a language model: analysts reflect, a hierarchical merge aggregates, a ranking selects.

At the end of an epoch it writes the guidance (`slow_update`). Each method is one stage of SkillOpt (arXiv 2605.23904); requests of one level
go out together. An answer that cannot be used leaves its part out, or falls back to a rule that the step's record names: nothing is replaced
silently.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from skill_ttrl.config import OptimizeConfig
from skill_ttrl.optimize.calls import Calls, ChatRequest
from skill_ttrl.optimize.documents import extract_json, patch_in, read_patch, read_text, split
from skill_ttrl.optimize.lessons import Pair, list_edits, show_pairs, show_rollout
from skill_ttrl.optimize.types import Edit, Patch, RawPatch, RolloutResult, SourceType, StepView, failures_in
from skill_ttrl.prompts.templates import Templates

REQUEST_TOKENS = 2048
"""Longest ranking."""


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
        requests = []
        for source, rollouts in jobs:
            stage, outcome = ("analyst_error", "failed") if source == "failure" else ("analyst_success", "succeeded")
            places = {"budget": str(view.max_edits), "outcome": outcome, "count": str(len(rollouts))}
            shown = "\n\n".join(map(show_rollout, rollouts))
            requests.append(self._request("analyst", view, stage, places | {"rollouts": shown}))
        found = []
        for (source, rollouts), answer in zip(jobs, self.calls.ask(requests), strict=True):
            given = extract_json(answer or "") or {}
            patch = patch_in(given)
            if patch is None:
                view.fallbacks["analyst"] += 1
                continue
            edits = [signed(edit, source, len(rollouts)) for edit in patch.edits[: max(view.max_edits, 1)]]
            found.append(RawPatch(replace(patch, edits=edits), source, len(rollouts), failures_in(given)))
        return found

    def merge(self, view: StepView, patches: Sequence[RawPatch]) -> Patch:
        """Failures and successes merged apart, level by level, then both with failures first."""
        merged = []
        for source in ("failure", "success"):
            own = [raw.patch for raw in patches if raw.source_type == source and raw.patch.edits]
            merged.append(self._merge_levels(view, f"merge_{source}", own))
        if not all(patch.edits for patch in merged):
            return merged[0] if merged[0].edits else merged[1]
        counts = {"failures": str(len(merged[0].edits)), "successes": str(len(merged[1].edits))}
        request = self._request("merge_final", view, "merge_final", counts | {"patches": _as_json(merged)})
        patch = read_patch(*self.calls.ask([request]))
        if patch is None:
            view.fallbacks["merge"] += 1
            patch = joined(merged, "no usable merge: failures first, then successes")
        return patch

    def _merge_levels(self, view: StepView, stage: str, patches: Sequence[Patch]) -> Patch:
        """Merge `merge_batch_size` patches at a time until one is left."""
        level, left, size = 0, list(patches), self.config.merge_batch_size
        while len(left) > 1:
            level += 1
            groups = [left[start : start + size] for start in range(0, len(left), size)]
            several = [group for group in groups if len(group) > 1]
            places = [{"patches": _as_json(group), "count": str(len(group)), "level": str(level)} for group in several]
            answers = iter(self.calls.ask([self._request("merge_patches", view, stage, each) for each in places]))
            left = []
            for group in groups:
                patch = group[0] if len(group) == 1 else read_patch(next(answers))
                if patch is None:
                    view.fallbacks["merge"] += 1
                    patch = joined(group, "concatenated")
                if len(group) > 1:
                    edits = [replace(edit, merge_level=edit.merge_level or level) for edit in patch.edits]
                    patch = replace(patch, edits=edits)
                left.append(patch)
        return left[0] if left else Patch()

    def select(self, view: StepView, patch: Patch, max_edits: int) -> Patch:
        """The edits that the model ranks highest; without a usable answer failures first, then by support (counted)."""
        places = {"edits": list_edits(patch.edits), "count": str(len(patch.edits)), "budget": str(max_edits)}
        most = min(REQUEST_TOKENS, self.config.max_answer_tokens)
        (answer,) = self.calls.ask([self._request("ranking", view, "ranking", places, most)])
        found = extract_json(answer or "") or {}
        named = found.get("selected_indices")
        indices = [place for place in named if type(place) is int] if isinstance(named, list) else []
        chosen = [patch.edits[place] for place in dict.fromkeys(indices) if 0 <= place < len(patch.edits)][:max_edits]
        if chosen:
            return Patch(chosen, f"{patch.reasoning} [ranked: {len(chosen)} of {len(patch.edits)}]".strip(), found)
        view.fallbacks["ranking"] += 1
        ranked = sorted(patch.edits, key=lambda edit: (edit.source_type != "failure", -(edit.support_count or 0)))
        return Patch(ranked[:max_edits], f"{patch.reasoning} [no usable ranking: by support]".strip())

    def guide(self, before: str, now: str, pairs: Sequence[Pair], fallbacks: Counter[str]) -> str | None:
        """New guidance from the comparison of two epochs' documents; None where the answer cannot be used: counted."""
        user = self.templates.render(
            "slow_update_request",
            comparison=show_pairs(pairs),
            previous_document=before or "(empty)",
            document=now or "(empty)",
            guidance=split(now).guidance or "(none yet: this is the first)",
        )
        system = self.templates.render("slow_update")
        (answer,) = self.calls.ask([ChatRequest("slow_update", system, user, self.config.max_answer_tokens)])
        text = read_text(answer, "slow_update_content")
        if text is None:
            fallbacks["slow_update"] += 1
        return text

    def _request(
        self, template: str, view: StepView, stage: str, places: Mapping[str, str], tokens: int | None = None
    ) -> ChatRequest:
        """A question of a stage: its rules, and the present document."""
        user = self.templates.render(f"{template}_request", document=view.document or "(empty)", **places)
        return ChatRequest(stage, self.templates.render(stage), user, tokens or self.config.max_answer_tokens)


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


def signed(edit: Edit, source: SourceType, count: int) -> Edit:
    """An analyst's edit, with where it comes from and how many rollouts stand behind it."""
    support = count if edit.support_count is None else edit.support_count
    return replace(edit, support_count=support, source_type=edit.source_type or source)


def joined(patches: Sequence[Patch], reasoning: str) -> Patch:
    """All edits of several patches, one after another."""
    return Patch([edit for patch in patches for edit in patch.edits], reasoning)


def _as_json(patches: Sequence[Patch]) -> str:
    return json.dumps([patch.to_dict() for patch in patches], ensure_ascii=False, indent=2)

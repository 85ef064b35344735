"""The skill bank of a run, learning from each step's winners."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from skill_ttrl.config import SkillsConfig, SkillTTRLConfig
from skill_ttrl.errors import BudgetError
from skill_ttrl.rollout.outcome import winning
from skill_ttrl.sanitize import escape_terminal
from skill_ttrl.skills.bank import SkillBank
from skill_ttrl.skills.changes import Snapshot, usage_changes
from skill_ttrl.skills.merge import group_digest, merge_groups
from skill_ttrl.skills.mergers import TROUBLE, Merger, MergeReport, make_merger
from skill_ttrl.skills.querying import OPENAI, LLMEndpoints, bank_unchanged
from skill_ttrl.skills.retrieval import BankView
from skill_ttrl.skills.similarity import Similarity, embedding_similarity
from skill_ttrl.train.metrics import completions_of, trajectories_of
from skill_ttrl.types import BankUpdate, Change, Group, Skill, Task, to_json

REPORTED = {
    "generated": "generated",
    "extracted": "extracted",
    "added": "added",
    "used": "credited",
    "evolved": "evolved",
}
"""Counts of a merge that are figures of its step."""
UNPAID = "The budget for language models is spent, so this step's winners do not change the bank."
"""Begins the warning of it."""
UNCHANGED = "The bank is unchanged since the previous step; --resume auto continues from the newest checkpoint."
"""Ends the errors of language models in a run."""
Warn = Callable[..., None]
"""Says a text; `once`: how an earlier one must begin for this one not to be said (`Run.warn`)."""


@dataclass
class RunBank:
    """A bank and how a run uses it."""

    config: SkillsConfig
    bank: SkillBank
    models: LLMEndpoints = field(default_factory=LLMEndpoints)
    """Language models that may be asked."""
    notices: list[str] = field(default_factory=list)
    """Findings from opening the bank that the user should read."""
    draft: SkillBank | None = None
    """With a gate: a copy in memory with the changes that it has not decided on yet. Prompts never show it."""

    def __bool__(self) -> bool:
        """Tell whether prompts show it and rollouts query it: `skills.enabled`."""
        return self.config.enabled

    @property
    def skills(self) -> list[Skill]:
        """The skills as they are now."""
        return list(self.bank.snapshot())

    @property
    def target(self) -> SkillBank:
        """Bank that receives changes: the run's own, or with a gate its draft."""
        return self.bank if self.draft is None else self.draft

    @cached_property
    def alike(self) -> Similarity | None:
        """How alike the texts of two skills are; None where only their words are compared."""
        if self.config.dedup_threshold is None or self.bank.retriever.embedder is None:
            return None
        return embedding_similarity(self.bank.retriever.embed)

    def view(self) -> BankView | None:
        """The newest version of the bank, frozen; None where it is not used. A step sees it until it ends."""
        return self.view_of(self.bank.snapshot()) if self else None

    def view_of(self, snapshot: Snapshot) -> BankView:
        """Another version, searched as this bank is."""
        return BankView(snapshot, self.bank.retriever)

    @cached_property
    def merger(self) -> Merger:
        """Fuses what winners wrote.

        Raises:
            ConfigError: there is none of this name, or it asks a language model that is not in the config.
        """
        return make_merger(
            self.config.merger, similarity=self.alike, threshold=self.config.dedup_threshold or 1.0, models=self.models
        )

    def learn(
        self, groups: Sequence[Group], step: int, warn: Warn = lambda text, once: None, *, evolves: bool = False
    ) -> dict[str, float]:
        """Merge the skills of a step's winners into the bank, evict stale skills, and return the metrics.

        A winner is a rollout whose reward is the best of its group and above zero; see `winning`. The merge is one update or none:
        once the budget for language models is spent, nothing is merged.

        Args:
            groups: the step's rollouts, with rewards.
            step: its number.
            warn: called with failures of a language model.
            evolves: failures change the bank too, and evict by the uses that are then counted here.

        Raises:
            EndpointError: a language model gave no usable answer, under `skills.on_failure: stop`.
        """
        figures = self._merge(groups, step, warn) if self.config.update == "merge" else {}
        if self.config.update == "none" and evolves:
            self._count_uses(groups, step)
        if self.config.stale_after_steps is not None:
            figures["skills_evicted"] = float(len(self.target.evict_stale(step)))
        return figures | self.metrics()

    def apply(self, changes: Iterable[Change], **why: Any) -> BankUpdate:
        """Change the bank, or its draft, by one update; see `SkillBank.apply`."""
        return self.target.apply(changes, **why)

    def _merge(self, groups: Sequence[Group], step: int, warn: Warn) -> dict[str, float]:
        names = self.config.type_names  # new skills are found again under the bank's name of their type
        tasks = [replace(g.task, task_type=names.get(g.task.task_type, g.task.task_type)) for g in groups]
        named = [replace(group, task=task) for group, task in zip(groups, tasks, strict=True)]
        try:
            with bank_unchanged(UNCHANGED):
                changes, report = merge_groups(
                    named,
                    [winning(group) for group in groups],
                    self.target.snapshot(),
                    self.config,
                    self.merger,
                    similarity=self.alike,
                    round=step,
                )
        except BudgetError as error:
            changes, report = (), MergeReport(requests=1, failed=1)
            warn(f"{UNPAID} {error}", once=UNPAID)
        if changes:
            evidence = tuple(dict.fromkeys(group.task.id for group in groups))
            samples = [group_digest(group, step) for group in groups]
            self.apply(changes, reason="merge", evidence=evidence, round=step, samples=samples)
        trouble = report.trouble()
        if report.error and trouble:
            warn(f"{trouble} Metrics: skills_merge_failed, skills_merge_fallback.", once=TROUBLE)
        figures = {f"skills_{name}": float(getattr(report, counted)) for name, counted in REPORTED.items()}
        figures["skills_rejected"] = float(len(report.skipped))
        if self.config.merger == OPENAI:
            figures |= {
                "skills_merge_requests": float(report.requests),
                "skills_merge_failed": float(report.failed),
                "skills_merge_fallback": float(report.fallback),
            }
        return figures

    def unshown(self, tasks: Iterable[Task]) -> str:
        """Which skills no prompt of these tasks would show, for their type is none of theirs, and what to do; empty where there are none.

        A bank by others names types in its own words: without `skills.type_names` its skills for types are left out.
        """
        kinds = {task.task_type for task in tasks}
        here = {self.config.type_names.get(kind, kind) for kind in kinds}
        lost = [each for each in self.bank if each.tier != "general" and each.task_type not in {"", *here}]
        if not lost or "" in kinds:
            return ""
        theirs = ", ".join(sorted({escape_terminal(each.task_type) for each in lost}))
        return (
            f"{len(lost)} of {len(self.bank)} skills in the bank are for task types that this run does not have ({theirs}), so no "
            f"prompt shows them. Its types: {', '.join(sorted(kinds))}. skills.type_names maps the bank's names."
        )

    def _count_uses(self, groups: Sequence[Group], step: int) -> None:
        """Count for each skill the rollouts that got it, and those of them that succeeded; evolution evicts by these counts."""
        rollouts = [each for group in groups for each in group.trajectories if each.error is None]
        uses = [
            (name, each.is_success)
            for each in rollouts
            for name in dict.fromkeys((*each.skills_in_prompt, *each.retrieved))
            if name in self.target
        ]
        if uses:
            evidence = tuple(dict.fromkeys(group.task.id for group in groups))
            self.target.record_usages(uses, step, evidence=evidence)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the bank for a checkpoint, JSON-able."""
        state: dict[str, Any] = {"bank_version": self.bank.version}
        if self.draft is not None:
            state["bank_pending"] = [json.loads(to_json(each)) for each in self.draft.history()]
        return state

    def start_draft(self, pending: Iterable[BankUpdate] = ()) -> None:
        """Collect changes from here on for a gate, beginning with those that a checkpoint holds."""
        self.draft = SkillBank.from_snapshot(self.bank.snapshot(), self.bank.settings)
        for update in pending:
            self.draft.apply(update)

    def accept_draft(self) -> None:
        """Apply the draft's updates as they are, and start the next draft."""
        for update in () if self.draft is None else self.draft.history():
            self.bank.apply(update)
        self.start_draft()

    def reject_draft(self, step: int) -> None:
        """Keep the bank, apart from what was counted for its skills, and start the next draft."""
        if counted := usage_changes(self.bank.snapshot(), self.target.snapshot()):
            self.bank.apply(counted, reason="use", round=step)
        self.start_draft()

    def metrics(self) -> dict[str, float]:
        """Size and version of the bank, as metrics."""
        return {"bank_skills": float(len(self.bank)), "bank_version": float(self.bank.version)}

    def summary(self) -> dict[str, Any]:
        """Fields of the run's summary."""
        return {name: int(value) for name, value in self.metrics().items()}

    def close(self) -> None:
        """Close the bank and its index."""
        self.bank.close()


def models_of(config: SkillTTRLConfig) -> LLMEndpoints:
    """The language models that may change a bank, as the config names them."""
    skills = config.skills or SkillsConfig()
    return LLMEndpoints(config.endpoints, skills.on_failure, config.agent.prompts)


def skill_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """Compute how much a step's rollouts used the bank: shares of rollouts, and errors and inserted tokens per rollout."""
    rollouts = trajectories_of(groups)
    ops = [trajectory.ops for trajectory in rollouts if trajectory.ops is not None]
    if not ops:
        return {}
    count = len(rollouts)
    return {
        "retrieve_rate": sum(found.has_retrieve for found in ops) / count,
        "generate_rate": sum(found.has_generate for found in ops) / count,
        "evolve_rate": sum(found.has_evolve for found in ops) / count,
        "retrieval_hit_rate": sum(bool(trajectory.retrieved) for trajectory in rollouts) / count,
        "skill_op_parse_errors": sum(len(found.errors) for found in ops) / count,
        "retrieved_tokens": sum(completion.num_inserted_tokens for completion in completions_of(groups)) / count,
    }

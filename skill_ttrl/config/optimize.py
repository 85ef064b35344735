"""Section of a config: the optimization of a skill document while the weights stay frozen (SkillOpt, arXiv 2605.23904).

Defaults are the paper's: 4 epochs, batches of 40 items, minibatches of 8, an edit budget that falls from 4 to 2, a strict gate.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from skill_ttrl.config.data import SourceConfig
from skill_ttrl.config.section import Section

UPDATE_MODE_ALIASES = {
    **dict.fromkeys(("edits",), "patch"),
    **dict.fromkeys(("rewrite", "suggestions", "rewrite_suggestions"), "rewrite_from_suggestions"),
    **dict.fromkeys(("full_rewrite", "minibatch_full_rewrite", "skill_rewrite_minibatch"), "full_rewrite_minibatch"),
}
"""Further names of `optimize.update_mode`, as SkillOpt's."""


def _mode_by_alias(name: Any) -> Any:
    return UPDATE_MODE_ALIASES.get(name.strip().lower(), name) if isinstance(name, str) else name


class OptimizeGateConfig(Section):
    """Test that a candidate document must pass on the selection items."""

    metric: Literal["hard", "soft", "mixed"] = "hard"
    """Score of an item: `hard` (success), `soft` (partial credit in [0, 1]) or `mixed`."""
    mixed_weight: float = Field(default=0.5, ge=0, le=1)
    """Weight w of the soft score under `mixed`: (1 - w) hard + w soft."""
    enabled: bool = True
    """False accepts every candidate (the ablation)."""
    rule: Literal["strict", "better", "not_worse"] = "strict"
    """`strict`: accept a higher mean (the paper). `better`: accept a significantly higher mean, by the paired test of docs/gate.md.
    `not_worse`: accept unless the loss may exceed `min_effect`."""
    min_effect: float = Field(default=0.0, ge=0, lt=1)
    """Smallest gain of the mean that counts; for `not_worse`, the smallest loss to reject, above 0."""
    alpha: float = Field(default=0.05, gt=0, lt=0.5)
    """One-sided error of a decision under `better` and `not_worse`."""
    early_stop: bool = True
    """Stop evaluating a candidate once no result of the remaining items can make it pass. This does not change the decision."""
    chunk: int = Field(default=8, ge=1)
    """Items rolled out between two such checks."""
    semantic_density: float = Field(default=0.0, ge=0, le=1)
    """Weight of a bonus for documents with many words such as MUST and NEVER (SkillOpt: .05); 0: none. For `strict`."""

    @model_validator(mode="after")
    def _rule_fits(self) -> OptimizeGateConfig:
        if self.rule == "not_worse" and not self.min_effect:
            raise ValueError("rule=not_worse needs a min_effect above 0: the smallest loss to reject")
        if self.rule != "strict" and self.semantic_density:
            raise ValueError("semantic_density needs rule=strict: a paired test compares only the scores of items")
        return self


class OptimizeSlowUpdateConfig(Section):
    """The guidance block, rewritten at the end of each epoch but the first; edits of steps cannot touch it."""

    enabled: bool | None = None
    """Write the block; None: if the optimizer uses a language model."""
    samples: int = Field(default=20, ge=1)
    """Training items rolled out under the document of the last epoch and of this one."""
    pair_policy: Literal["mixed", "changed", "unchanged"] = "mixed"
    """Items to show: all, only those whose success changed (searching further items for them), or the others."""
    gate: bool = True
    """Test the new block with the gate. False accepts it unmeasured, as SkillOpt does; the last document is then evaluated at the end."""


class OptimizeSkillAwareConfig(Section):
    """Skill-aware reflection: defects are fixed in the body, lapses of the agent become notes in the appendix."""

    enabled: bool = False
    """Ask analysts to distinguish the two."""
    appendix_source: Literal["both", "failure_only"] = "both"
    """Analysts whose notes are used."""
    consolidate_threshold: int = Field(default=0, ge=0)
    """Shorten the appendix with one call if it has more notes than this; 0: never."""


class OptimizeSelectionConfig(Section):
    """Tasks that decide on candidate documents. Analysts do not see them, and they are not training tasks. Set at most one of these."""

    tasks: int | None = Field(default=None, ge=1)
    """Number of training tasks to hold out, drawn by the seed; None: a quarter of them."""
    split: str | None = None
    """A split of the environment's own tasks."""
    data: SourceConfig | None = None
    """Tasks of a file, a data set or a family."""


class OptimizeConfig(Section):
    """Optimization of a skill document: rollout, reflect, aggregate, select, edit, gate."""

    engine: str = "skillopt"
    """`skillopt` (the stages below), `gepa`, or `module:attribute` of your own."""
    engine_options: dict[str, Any] = Field(default_factory=dict)
    """Options of the engine. gepa: `minibatch_size` (3), `iterations`, `candidate_selection` (`pareto`)."""
    optimizer: str = "openai"
    """The optimizer that reflects, merges and ranks: `openai` (a language model, `endpoints.optimizer`), `induce` (no language model: rules by
    elimination, in a grammar of yours), or `module:attribute` of your own."""
    optimizer_options: dict[str, Any] = Field(default_factory=dict)
    """Options of the optimizer. induce: `grammar` (`module:attribute`)."""
    prompts: str | None = None
    """Folder with your own prompts for the optimizer, by name (`analyst_error.md`, `ranking.md`, …); None: the shipped ones."""
    every: int | None = Field(default=None, ge=1)
    """For `skillttrl train`: steps of the rl phase between text edits of the run's skill bank, each one step of this loop; None: no text
    edits."""
    document: str | None = None
    """File with the first document; None: `agent.document`, otherwise an empty one."""
    place: Literal["prompt", "bank"] = "prompt"
    """Where the policy reads the document. `prompt`: at the start of every prompt (`agent.document_as`). `bank`: its parts are the skills
    of the bank configured in `skills`."""
    granularity: str = "section"
    """Part of the document that becomes one skill if `place` is `bank`: a `section`, or `module:attribute`, a function from a document to
    its skills."""
    selection: OptimizeSelectionConfig = Field(default_factory=OptimizeSelectionConfig)
    temperature: float = Field(default=0.0, ge=0)
    """Temperature of the rollouts; 0: greedy."""
    show_reference: bool = True
    """Show analysts the true answers of the training tasks, if there are any."""
    epochs: int = Field(default=4, ge=1)
    """Passes over the training items."""
    batch_size: int = Field(default=40, ge=1)
    """Items rolled out per step."""
    minibatch_size: int = Field(default=8, ge=1)
    """Rollouts shown to one analyst."""
    minibatches_per_request: int = Field(default=1, ge=1)
    """Minibatches per request, each judged separately. Saves requests and tokens if the model keeps them apart."""
    merge_batch_size: int = Field(default=8, ge=2)
    """Patches merged per call."""
    merge: Literal["separate", "joint"] = "separate"
    """`separate`: failures, then successes, then both (the paper). `joint`: one call if all patches fit into it."""
    edit_budget: int = Field(default=4, ge=1)
    """Most edits per step at the start: the textual learning rate."""
    min_edit_budget: int = Field(default=2, ge=1)
    """Most edits per step at the end."""
    lr_scheduler: Literal["constant", "linear", "cosine"] = "cosine"
    """How the edit budget decreases."""
    lr_control_mode: Literal["fixed", "autonomous", "none"] = "fixed"
    """Source of a step's edit budget: the schedule, the optimizer's model, or none (all merged edits are applied)."""
    update_mode: Annotated[
        Literal["patch", "rewrite_from_suggestions", "full_rewrite_minibatch"], BeforeValidator(_mode_by_alias)
    ] = "patch"
    """Form of the analysts' proposals: edits, suggestions from which one call rewrites the document, or whole documents."""
    accumulation: int = Field(default=1, ge=1)
    """Batches to roll out and reflect on before one update."""
    step_buffer: bool = True
    """Show the optimizer the failures and rejected edits of the epoch's earlier steps."""
    meta_skill: bool | None = None
    """Keep a memory of what helped, rewritten at the end of each epoch; None: if the optimizer uses a language model."""
    slow_update: OptimizeSlowUpdateConfig = Field(default_factory=OptimizeSlowUpdateConfig)
    skill_aware: OptimizeSkillAwareConfig = Field(default_factory=OptimizeSkillAwareConfig)
    failure_only: bool = False
    """Reflect only on failures."""
    gate: OptimizeGateConfig = Field(default_factory=OptimizeGateConfig)
    reuse_rollouts: bool | None = None
    """Reuse earlier rollouts of an unchanged document; None: if the policy is sampled greedily."""
    max_document_tokens: int | None = Field(default=None, ge=1)
    """Longest document, at 4 bytes per token. A longer candidate is rejected without an evaluation. None: unlimited."""
    max_answer_tokens: int = Field(default=4096, ge=1)
    """Longest answer of an analyst or merger."""
    workers: int = Field(default=8, ge=1)
    """Most concurrent calls."""
    test: bool = True
    """Evaluate the first and the best document on the test items at the end."""
    test_tasks: int | None = Field(default=None, ge=1)
    """Number of training tasks to hold out for that test if there is no `data.eval`; None: use `data.eval` or the environment's tasks."""

    @model_validator(mode="after")
    def _budgets_are_ordered(self) -> OptimizeConfig:
        if self.min_edit_budget > self.edit_budget:
            raise ValueError(
                f"min_edit_budget ({self.min_edit_budget}) must not exceed edit_budget ({self.edit_budget})"
            )
        return self

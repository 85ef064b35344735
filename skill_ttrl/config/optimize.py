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
    """The test that a candidate document has to pass on the selection items."""

    metric: Literal["hard", "soft", "mixed"] = "hard"
    """Score of an item: `hard` (success), `soft` (partial credit in [0, 1]) or `mixed`."""
    mixed_weight: float = Field(default=0.5, ge=0, le=1)
    """Weight w of the soft score under `mixed`: (1 - w) hard + w soft."""
    enabled: bool = True
    """False accepts every candidate (the ablation)."""
    rule: Literal["strict", "better", "not_worse"] = "strict"
    """`strict`: a higher mean (the paper). `better`: significantly higher, by the paired test of docs/gate.md. `not_worse`: significantly
    more than `min_effect` below."""
    min_effect: float = Field(default=0.0, ge=0, lt=1)
    """Smallest gain of the mean that counts; for `not_worse` the loss that is too much, above 0."""
    alpha: float = Field(default=0.05, gt=0, lt=0.5)
    """One-sided error of a decision under `better` and `not_worse`."""
    rounds: int = Field(default=1, ge=1)
    """Decisions that share `alpha`: each is made at `alpha / rounds`."""
    early_stop: bool = True
    """Stop evaluating a candidate once no result of the remaining items can make it pass. The decision is the same."""
    chunk: int = Field(default=8, ge=1)
    """Items rolled out between two such looks."""
    semantic_density: float = Field(default=0.0, ge=0, le=1)
    """Weight of a bonus for documents with many words such as MUST and NEVER (SkillOpt's own value is .05); 0: none. For `strict`."""

    @model_validator(mode="after")
    def _rule_fits(self) -> OptimizeGateConfig:
        if self.rule == "not_worse" and not self.min_effect:
            raise ValueError("rule=not_worse needs a min_effect above 0: the loss that is too much")
        if self.rule != "strict" and self.semantic_density:
            raise ValueError("semantic_density needs rule=strict: a paired test compares scores of items alone")
        return self


class OptimizeSlowUpdateConfig(Section):
    """The guidance block, rewritten at the end of each epoch but the first; edits of steps cannot touch it."""

    enabled: bool | None = None
    """Write the block; None: where the optimizer asks a language model."""
    samples: int = Field(default=20, ge=1)
    """Training items rolled out under the document of the last epoch and of this one."""
    pair_policy: Literal["mixed", "changed", "unchanged"] = "mixed"
    """Items that are shown: all, those whose success changed (looked for among further items), or the others."""
    gate: bool = True
    """Put the new block before the gate. False takes it unmeasured, as SkillOpt does; the last document is then measured at the end."""


class OptimizeSkillAwareConfig(Section):
    """Skill-aware reflection: defects are fixed in the body, lapses of the agent become notes in the appendix."""

    enabled: bool = False
    """Ask analysts to tell the two apart."""
    appendix_source: Literal["both", "failure_only"] = "both"
    """Analysts whose notes are taken."""
    consolidate_threshold: int = Field(default=0, ge=0)
    """One call shortens the appendix where it has more notes than this; 0: never."""


class OptimizeSelectionConfig(Section):
    """The tasks that decide on candidate documents: no analyst sees them, and they are no training tasks. At most one of these is set."""

    tasks: int | None = Field(default=None, ge=1)
    """So many of the training tasks, drawn by the seed and held out; None: a quarter of them."""
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
    """The optimizer that reflects, merges and ranks: `openai` (a language model, `endpoints.optimizer`), `induce` (none: rules by elimination, in a grammar of
    yours), or `module:attribute` of your own."""
    optimizer_options: dict[str, Any] = Field(default_factory=dict)
    """Options of the optimizer. induce: `grammar` (`module:attribute`)."""
    prompts: str | None = None
    """Folder with prompts of your own for the optimizer, by name (`analyst_error.md`, `ranking.md`, …); None: the shipped ones."""
    every: int | None = Field(default=None, ge=1)
    """For `skillttrl train`: steps of the rl phase between two text edits of the run's own skill bank, by one step of this loop each; None:
    the text of the bank is not edited."""
    document: str | None = None
    """File with the first document; None: that of `agent.document`, else an empty one."""
    place: Literal["prompt", "bank"] = "prompt"
    """Where the policy reads the document. `prompt`: at the head of every prompt (`agent.document_as`); `bank`: its parts are the skills of the
    bank that the section `skills` describes."""
    granularity: str = "section"
    """The part of the document that is one skill where `place` is `bank`: a `section`, or `module:attribute`, a function from a
    document to its skills."""
    selection: OptimizeSelectionConfig = Field(default_factory=OptimizeSelectionConfig)
    temperature: float = Field(default=0.0, ge=0)
    """Of the rollouts; 0: the likeliest words."""
    show_reference: bool = True
    """Analysts read the true answers of the training tasks, where there are any."""
    epochs: int = Field(default=4, ge=1)
    """Passes over the training items."""
    batch_size: int = Field(default=40, ge=1)
    """Items rolled out a step."""
    minibatch_size: int = Field(default=8, ge=1)
    """Rollouts shown to one analyst."""
    minibatches_per_request: int = Field(default=1, ge=1)
    """Minibatches of one request, judged each by itself: fewer requests and tokens, where the model keeps them apart."""
    merge_batch_size: int = Field(default=8, ge=2)
    """Patches merged by one call."""
    merge: Literal["separate", "joint"] = "separate"
    """`separate`: failures, successes, then both (the paper); `joint`: one call where all patches fit into one."""
    edit_budget: int = Field(default=4, ge=1)
    """Most edits a step at the start: the textual learning rate."""
    min_edit_budget: int = Field(default=2, ge=1)
    """Most edits a step at the end."""
    lr_scheduler: Literal["constant", "linear", "cosine"] = "cosine"
    """How the edit budget falls."""
    lr_control_mode: Literal["fixed", "autonomous", "none"] = "fixed"
    """Source of a step's edit budget: the schedule, the optimizer's model, or nobody (all merged edits are applied)."""
    update_mode: Annotated[
        Literal["patch", "rewrite_from_suggestions", "full_rewrite_minibatch"], BeforeValidator(_mode_by_alias)
    ] = "patch"
    """Form of the analysts' proposals: edits, suggestions from which one call writes the document anew, or whole documents."""
    accumulation: int = Field(default=1, ge=1)
    """Batches that are rolled out and reflected on before one update."""
    step_buffer: bool = True
    """Show failures and rejected edits of an epoch's steps to the optimizer in its later steps."""
    meta_skill: bool | None = None
    """Keep a memory of what helped, rewritten at the end of each epoch; None: where the optimizer asks a language model."""
    slow_update: OptimizeSlowUpdateConfig = Field(default_factory=OptimizeSlowUpdateConfig)
    skill_aware: OptimizeSkillAwareConfig = Field(default_factory=OptimizeSkillAwareConfig)
    failure_only: bool = False
    """Reflect on failures alone."""
    gate: OptimizeGateConfig = Field(default_factory=OptimizeGateConfig)
    reuse_rollouts: bool | None = None
    """Take rollouts of an unchanged document from before; None: where the policy is sampled greedily."""
    max_document_tokens: int | None = Field(default=None, ge=1)
    """Longest document (a token is taken for 4 bytes); a longer candidate is rejected without an evaluation. None: no bound."""
    max_answer_tokens: int = Field(default=4096, ge=1)
    """Longest answer of an analyst or merger."""
    workers: int = Field(default=8, ge=1)
    """Calls on their way at once."""
    test: bool = True
    """Evaluate the first and the best document on the test items at the end."""
    test_tasks: int | None = Field(default=None, ge=1)
    """So many of the training tasks are held out for that test, where there is no `data.eval`; None: `data.eval` or the environment says which."""

    @model_validator(mode="after")
    def _budgets_are_ordered(self) -> OptimizeConfig:
        if self.min_edit_budget > self.edit_budget:
            raise ValueError(
                f"min_edit_budget ({self.min_edit_budget}) must not exceed edit_budget ({self.edit_budget})"
            )
        return self

"""Section of a config: the optimisation of a skill document while the weights stay frozen (SkillOpt, arXiv 2605.23904).

Defaults are the paper's: 4 epochs, batches of 40 items, minibatches of 8, an edit budget that falls from 4 to 2, a strict gate.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from skill_ttrl.config.data import SourceConfig
from skill_ttrl.config.section import Section


class OptimizeGateConfig(Section):
    """The test that a candidate document has to pass on the selection items."""

    metric: Literal["hard", "soft", "mixed"] = "hard"
    """Score of an item: `hard` (success), `soft` (partial credit in [0, 1]) or `mixed`."""
    mixed_weight: float = Field(default=0.5, ge=0, le=1)
    """Weight w of the soft score under `mixed`: (1 - w) hard + w soft."""
    use: bool = True
    """False accepts every candidate (the ablation)."""
    min_effect: float = Field(default=0.0, ge=0, lt=1)
    """Smallest gain of the mean that counts."""
    early_stop: bool = True
    """Stop evaluating a candidate once no result of the remaining items can make it pass. The decision is the same."""
    chunk: int = Field(default=8, ge=1)
    """Items rolled out between two such looks."""


class OptimizeSelectionConfig(Section):
    """The tasks that decide on candidate documents: no analyst sees them, and they are no training tasks. At most one of these is set."""

    tasks: int | None = Field(default=None, ge=1)
    """So many of the training tasks, drawn by the seed and held out; None: a quarter of them."""
    split: str | None = None
    """A split of the environment's own tasks."""
    data: SourceConfig | None = None
    """Tasks of a file, a data set or a family."""


class OptimizeConfig(Section):
    """Optimisation of a skill document: rollout, reflect, aggregate, select, edit, gate."""

    engine: str = "skillopt"
    """`skillopt` (the stages below), `gepa`, or `module:attribute` of your own."""
    engine_options: dict[str, Any] = Field(default_factory=dict)
    """Options of the engine. gepa: `minibatch_size` (3), `iterations`, `candidate_selection` (`pareto`)."""
    optimizer: str = "openai"
    """Who reflects, merges and ranks: `openai` (a language model, `endpoints.optimizer`), `induce` (none: rules by elimination, in a grammar of
    yours), or `module:attribute` of your own."""
    optimizer_options: dict[str, Any] = Field(default_factory=dict)
    """Options of the optimizer. induce: `grammar` (`module:attribute`)."""
    prompts: str | None = None
    """Folder with prompts of your own for the optimizer, by name (`analyst_error.md`, `ranking.md`, …); None: the shipped ones."""
    document: str | None = None
    """File with the first document; None: that of `agent.document`, else an empty one."""
    place: Literal["prompt", "bank"] = "prompt"
    """Where the policy reads the document. `prompt`: at the head of every prompt (`agent.document_as`); `bank`: its paragraphs are the skills
    of the bank that the section `skills` describes."""
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
    failure_only: bool = False
    """Reflect on failures alone."""
    gate: OptimizeGateConfig = Field(default_factory=OptimizeGateConfig)
    reuse_rollouts: bool | None = None
    """Take rollouts of an unchanged document from before; None: where the policy is sampled greedily."""
    max_document_tokens: int | None = Field(default=None, ge=1)
    """Longest document (a token is taken for 4 bytes); a longer candidate is rejected without an evaluation. None: no bound."""
    max_answer_tokens: int = Field(default=4096, ge=1)
    """Longest answer of an analyst or merger."""
    on_failure: Literal["skip", "stop"] = "skip"
    """After a call without a usable answer: leave its part out and count it, or stop."""
    workers: int = Field(default=8, ge=1)
    """Calls on their way at once."""
    test: bool = True
    """Evaluate the first and the best document on the test items at the end."""

    @model_validator(mode="after")
    def _budgets_are_ordered(self) -> OptimizeConfig:
        if self.min_edit_budget > self.edit_budget:
            raise ValueError(
                f"min_edit_budget ({self.min_edit_budget}) must not exceed edit_budget ({self.edit_budget})"
            )
        return self

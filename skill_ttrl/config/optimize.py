"""Section of a config: the optimization of a skill document while the weights stay frozen (SkillOpt, arXiv 2605.23904).

Defaults are the paper's: 4 epochs, batches of 40 items, minibatches of 8, an edit budget that falls from 4 to 2, a strict gate.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from skill_ttrl.config.data import Paths
from skill_ttrl.config.section import Section


class OptimizeGateConfig(Section):
    """Test that a candidate document must pass on the selection items."""

    metric: Literal["hard", "soft", "mixed"] = "hard"
    """Score of an item: `hard` (success), `soft` (partial credit in [0, 1]) or `mixed`."""
    mixed_weight: float = Field(default=0.5, ge=0, le=1)
    """Weight w of the soft score under `mixed`: (1 - w) hard + w soft."""
    rule: Literal["strict", "better", "none"] = "strict"
    """`strict`: accept a higher mean (the paper). `better`: accept a significantly higher mean, by the paired test of docs/gate.md.
    `none`: accept every candidate (the ablation)."""


class OptimizeSelectionConfig(Section):
    """Tasks that decide on candidate documents. Analysts do not see them, and they are not training tasks. Set at most one of these."""

    tasks: int | None = Field(default=None, ge=1)
    """Number of training tasks to hold out, drawn by the seed; None: a quarter of them."""
    split: str | None = None
    """A split of `data`; without it, of the environment's own tasks."""
    data: Paths | None = None
    """Tasks of a file, a data set or a family."""


class OptimizeConfig(Section):
    """Optimization of a skill document: rollout, reflect, aggregate, select, edit, gate."""

    engine: Literal["skillopt", "gepa"] = "skillopt"
    """`skillopt` (the stages below) or `gepa`."""
    optimizer: str = "openai"
    """The optimizer that reflects, merges and ranks: `openai` (a language model, `endpoints`), `induce` (no language model: rules by
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
    """Where the policy reads the document. `prompt`: at the start of every prompt (`agent.document`). `bank`: its parts are the skills
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
    merge_batch_size: int = Field(default=8, ge=2)
    """Patches merged per call."""
    edit_budget: int = Field(default=4, ge=1)
    """Most edits per step at the start: the textual learning rate."""
    min_edit_budget: int = Field(default=2, ge=1)
    """Most edits per step at the end."""
    lr_scheduler: Literal["constant", "linear", "cosine", "autonomous", "none"] = "cosine"
    """How the edit budget decreases. `autonomous`: the optimizer's model sets it, step by step. `none`: all merged edits are applied."""
    update_mode: Literal["patch", "rewrite_from_suggestions", "full_rewrite_minibatch"] = "patch"
    """Form of the analysts' proposals: edits, suggestions from which one call rewrites the document, or whole documents."""
    accumulation: int = Field(default=1, ge=1)
    """Batches to roll out and reflect on before one update."""
    step_buffer: bool = True
    """Show the optimizer the failures and rejected edits of the epoch's earlier steps."""
    meta_skill: bool | None = None
    """Keep a memory of what helped, rewritten at the end of each epoch; None: if the optimizer uses a language model."""
    slow_update: bool | None = None
    """Rewrite a guidance block, which edits cannot touch, at the end of each epoch but the first; None: if the optimizer uses a language
    model."""
    failure_only: bool = False
    """Reflect only on failures."""
    gate: OptimizeGateConfig = Field(default_factory=OptimizeGateConfig)
    max_answer_tokens: int = Field(default=4096, ge=1)
    """Longest answer of an analyst or merger."""
    workers: int = Field(default=8, ge=1)
    """Most concurrent calls."""
    test_tasks: int | None = Field(default=None, ge=0)
    """Number of training tasks to hold out for a test of the first and the best document at the end; 0: no test; None: use `data.eval` or
    the environment's tasks."""

    @model_validator(mode="after")
    def _budgets_are_ordered(self) -> OptimizeConfig:
        if self.min_edit_budget > self.edit_budget:
            raise ValueError(
                f"min_edit_budget ({self.min_edit_budget}) must not exceed edit_budget ({self.edit_budget})"
            )
        return self

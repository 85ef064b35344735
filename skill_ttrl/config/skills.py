"""Sections of a config: the skill bank, and the optimization of a skill document (SkillOpt, arXiv 2605.23904), with the papers' defaults."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from skill_ttrl.config.data import NamedSource, Paths
from skill_ttrl.config.section import Section


class GateConfig(Section):
    """A paired test on held-out training tasks that every change of the bank has to pass, whatever it comes from. See docs/gate.md."""

    tasks: int = Field(default=60, ge=1)
    """Number of tasks of the gate. They are drawn from the training tasks with the run's seed and are not trained on; with `data`, the most
    tasks to use from it."""
    data: NamedSource | None = None
    """Separate tasks for the gate. Environments such as `math`, where only true answers tell success, need their answers. None: training
    tasks."""
    rollouts_per_task: int = Field(default=4, ge=1, le=64)
    """Rollouts of each task with each version of the bank."""
    rule: Literal["better", "not_worse"] = "better"
    """`better`: accept a significant gain of at least `min_effect`. `not_worse`: accept unless the loss may exceed `min_effect`."""
    min_effect: float = Field(default=0.02, ge=0, lt=1)
    """Smallest gain of the mean that counts; for `not_worse`, the smallest loss to reject, above 0."""
    temperature: float | None = Field(default=None, gt=0)
    """None: the temperature of training rollouts."""
    every: int = Field(default=1, ge=1)
    """Steps between decisions. The changes since the last one are decided together; the last step always decides."""

    @model_validator(mode="after")
    def _not_worse_has_a_margin(self) -> GateConfig:
        if self.rule == "not_worse" and not self.min_effect:
            raise ValueError("rule=not_worse needs a min_effect above 0: the smallest loss to reject")
        return self


class SkillsConfig(Section):
    """The skill bank and how the agent uses it. Without this section a run has no skills."""

    bank: str | None = None
    """Initial skills: a bank's folder, an exported JSON or JSONL file, `document:FILE` (a skill document), or `synthetic:operators`; None:
    an empty bank. The run uses its own copy."""
    enabled: bool = True
    """False: prompts have no skills and queries get no answer. A control."""
    type_names: dict[str, str] = Field(default_factory=dict)
    """Names of task types in the bank, if they differ from the environment's: `pick_heat_then_place_in_recep: heat` for SkillRL's banks.
    Skills are retrieved and added under these names."""
    max_skills: int = Field(default=200, ge=1)
    """Capacity; the least useful skills are evicted first."""
    stale_after_steps: int | None = Field(default=None, ge=1)
    """Evict a skill that was not used for this many steps, unless its source is `seeded`; None: never."""
    max_skills_per_problem: int | None = Field(default=3, ge=1)
    """Most new skills per problem and step, the best supported first (Skill-TTRL: 3); None: no limit."""
    retrieval: Literal["embedding", "keyword", "hybrid", "template"] = "embedding"
    """Cosine of the embedder's vectors, BM25, or their weighted sum. `template`: SkillRL's way without a query: prompts show all skills of
    the task's type, `prompt_top_k` general ones and the first five mistakes, up to `prompt_max_tokens`; queries use BM25."""
    embedder: str = "sentence-transformers"
    """`sentence-transformers`, `hash` (words and their spelling, not their meaning; nothing to download), `openai` (`endpoints`), or
    `module:attribute` of your own."""
    embedder_model: str = "sentence-transformers/all-MiniLM-L6-v2"
    """Hugging Face id or folder, for `sentence-transformers`."""
    embedder_revision: str | None = None
    """Commit of a hub model."""
    searched: Literal["all", "when_to_apply"] = "all"
    """Part of a skill that a query is compared with: title, `when_to_apply` and text together, or each alternative in `when_to_apply`
    separately (`put a hot X in Y, or heat some X`), of which the best counts. The latter suits skills that state their use in the words of
    the tasks, as those of `skillttrl distill` do: the steps of one skill contain words of other tasks."""
    fallback: Literal["none", "most_useful"] = "none"
    """Skills for a BM25 query (`keyword`, and queries of `template`) with no matching skill. `none`: nothing. `most_useful`: those of the
    task's type, by tier, with the highest success per use, as in the first Skill-TTRL."""
    index: Literal["chroma", "memory"] = "chroma"
    """Where to store vectors: an embedded Chroma in the bank's folder, or nowhere. Both give the same results; `memory` computes the vectors
    again at each start."""
    min_score: float | None = 0.0
    """SkillRL's delta (0.4 for its embedder; a cosine for `embedding`): skills of the tier `task` with a lower score are not retrieved.
    General skills and mistakes are not retrieved below 0, or below `min_score` if that is negative. None: no threshold."""
    prompt_top_k: int = Field(default=6, ge=0)
    """Most skills in the first prompt, retrieved with the task's text; 0: none, the model must query."""
    prompt_max_tokens: int = Field(default=512, ge=1)
    """Token budget of the skills in the prompt, in addition to `data.max_prompt_tokens`; skills that do not fit are dropped."""
    max_retrievals: int = Field(default=1, ge=0)
    """Most queries in one answer: `<retrieve query="...">` is answered at `</retrieve>`, `<retrieve query="..."/>` at its end. 0: none."""
    retrieval_top_k: int = Field(default=3, ge=1)
    """Skills inserted per query."""
    retrieval_max_tokens: int = Field(default=256, ge=1)
    """Token budget per query."""
    as_tools: bool = False
    """Offer the bank as the tools `search_skills(query)` and `read_skill(id)`, in addition to skills in prompts."""
    episode_notes: bool = False
    """Skills that a rollout writes can be retrieved by the same rollout in its later turns, before any merge. For `retrieval: embedding`."""
    update: Literal["merge", "none"] = "merge"
    """`merge`: after each step the winners' operations change the bank."""
    merger: str = "heuristic"
    """`heuristic` (no language model), `openai` (`endpoints`), or `module:attribute` of your own."""
    on_failure: Literal["stop", "skip", "heuristic"] = "stop"
    """What to do if a language model that merges gives no usable answer: stop the run, skip that part of the update, or let the heuristic
    do it. The last two are reported and counted."""
    dedup_threshold: float | None = Field(default=0.95, gt=0, le=1)
    """New skills whose vectors are at least this similar (cosine) are duplicates, unless their texts differ in a number, a sign or a
    negation. None: only texts with the same words are."""
    extract_from_solutions: bool = True
    """If no winner of a group wrote a skill, extract one from what their solutions share."""

    gate: GateConfig | None = None
    """Test that changes of the bank must pass in the rl phase; None: they are applied without one."""

    @property
    def embeds(self) -> bool:
        """True if skills are found by vectors, so that an embedder is needed."""
        return self.retrieval in ("embedding", "hybrid")

    @model_validator(mode="after")
    def _notes_need_vectors(self) -> SkillsConfig:
        if self.episode_notes and self.retrieval != "embedding":
            raise ValueError(
                "episode_notes needs retrieval=embedding: only cosines compare a note with the bank's skills"
            )
        return self


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
    every: int | None = Field(default=None, ge=1)
    """For `skillttrl train`: steps of the rl phase between text edits of the run's skill bank, each one step of this loop; None: no text
    edits."""
    place: Literal["prompt", "bank"] = "prompt"
    """Where the policy reads the document. `prompt`: at the start of every prompt (`agent.document`). `bank`: its parts are the skills
    of the bank configured in `skills`."""
    granularity: str = "section"
    """Part of the document that becomes one skill if `place` is `bank`: a `section`, or `module:attribute`, a function from a document to
    its skills."""
    selection: OptimizeSelectionConfig = Field(default_factory=OptimizeSelectionConfig)
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
    lr_scheduler: Literal["constant", "linear", "cosine", "none"] = "cosine"
    """How the edit budget decreases. `none`: all merged edits are applied."""
    slow_update: bool | None = None
    """Rewrite a guidance block, which edits cannot touch, at the end of each epoch but the first; None: if the optimizer uses a language
    model."""
    failure_only: bool = False
    """Reflect only on failures."""
    gate: OptimizeGateConfig = Field(default_factory=OptimizeGateConfig)
    max_answer_tokens: int = Field(default=4096, ge=1)
    """Longest answer of an analyst or merger."""
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

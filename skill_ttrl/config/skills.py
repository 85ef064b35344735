"""Section of a config: the skill bank."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import Field, model_validator

from skill_ttrl.config.gate import GateConfig
from skill_ttrl.config.section import Section


class SkillsConfig(Section):
    """The skill bank and how the agent uses it. Without this section a run has no skills."""

    bank: str | None = None
    """Skills to begin with: a bank's folder, an exported JSON or JSONL file, `document:FILE` (a skill document), or
    `synthetic:operators`; None: an empty bank. The run stores a copy of its own in its folder, unless the bank is `shared`."""
    shared: bool = False
    """True: `bank` is a folder that several runs read and write at the same time; the first of them makes it. Each step begins with the newest
    version. Vectors then need `chroma_server`, or `index: memory`. See [scale.md](scale.md#shared-bank)."""
    enabled: bool = True
    """False: the bank is not used. No skills are put into prompts, no queries are answered. A control."""
    type_names: dict[str, str] = Field(default_factory=dict)
    """Names of types of task in the bank, where they differ from the environment's: `pick_heat_then_place_in_recep: heat` for
    SkillRL's banks. Skills are looked up and added under these names."""
    max_skills: int = Field(default=200, ge=1)
    """Capacity; the least useful skills go first."""
    stale_after_steps: int | None = Field(default=None, ge=1)
    """A skill that was not used for so many steps is evicted, unless its source is `seeded`; None: never."""
    max_skills_per_problem: int | None = Field(default=3, ge=1)
    """New skills that one step adds for a problem, the best supported first (Skill-TTRL: 3); None: no limit."""
    retrieval: Literal["embedding", "keyword", "hybrid", "template"] = "embedding"
    """Cosine of the embedder's vectors, BM25, or their weighted sum. `template` is SkillRL's way without a query: prompts show all skills of
    the task's type, `prompt_top_k` general ones and the first five mistakes, as far as `prompt_max_tokens` reach; questions are answered
    by BM25."""
    embedder: str = "sentence-transformers"
    """`sentence-transformers`, `hash` (words and their spelling, not their meaning; nothing to download), `openai` (`endpoints.embeddings`), or
    `module:attribute` of your own."""
    embedder_model: str = "sentence-transformers/all-MiniLM-L6-v2"
    """Hugging Face id or folder, for `sentence-transformers`."""
    embedder_revision: str | None = None
    """Commit of a hub model."""
    searched: Literal["all", "when_to_apply"] = "all"
    """Part of a skill that a query is compared with: title, `when_to_apply` and text together, or each wording in `when_to_apply` by
    itself (`put a hot X in Y, or heat some X`), of which the best counts. The latter is for skills that state their use in the words of
    the tasks, as `skillttrl distill` writes them: the steps of one skill hold words of other tasks."""
    fallback: Literal["none", "most_useful"] = "none"
    """Skills that a query finds by BM25 (`keyword`, and queries of `template`) where no skill shares a word with it. `none`: nothing.
    `most_useful`: those of the task's type, in each tier, with the most success per use, as the first Skill-TTRL had."""
    index: Literal["chroma", "memory"] = "chroma"
    """Where vectors are kept. Both give the same lists; `memory` computes the vectors again at each start."""
    chroma_server: str | None = Field(default=None, pattern=r"^[^:/]+:\d+$")
    """`host:port` of a running Chroma server; None: an embedded Chroma in the bank's folder."""
    top_k: int = Field(default=6, ge=1)
    """Skills that `SkillBank.retrieve` and `skillttrl skills show --search` find where they are given no number (SkillRL: 6). A
    run takes `prompt_top_k` and `retrieval_top_k`."""
    min_score: float | None = 0.0
    """SkillRL's delta (0.4 for its embedder; a cosine for `embedding`): skills of the tier `task` that score less are not found.
    General skills and mistakes are not found below 0, or below `min_score` where that is negative. None: no threshold."""
    prompt_top_k: int = Field(default=6, ge=0)
    """Most skills put into the first prompt, found by the task's own text; 0: the model must ask."""
    prompt_max_tokens: int = Field(default=512, ge=1)
    """Token budget of the skills in the prompt, in addition to `data.max_prompt_tokens`; skills that do not fit are left out."""
    max_retrievals: int = Field(default=1, ge=0)
    """How often the model may ask in one answer: `<retrieve query="...">` is answered at `</retrieve>`, `<retrieve query="..."/>` at its
    end. 0: never."""
    retrieval_top_k: int = Field(default=3, ge=1)
    """Skills inserted for one question."""
    retrieval_max_tokens: int = Field(default=256, ge=1)
    """Token budget of one insertion."""
    episode_notes: bool = False
    """Skills that a rollout generates can be retrieved by the same rollout in its later turns, before any merge. For
    `retrieval: embedding`."""
    update: Literal["merge", "none"] = "merge"
    """`merge`: after each step the winners' operations change the bank."""
    enable_generate: bool = True
    """False: a merge leaves out the skills that winners write, and takes none from their solutions. What a prompt offers is `agent.template`."""
    enable_evolve: bool = True
    """False: a merge leaves out rewrites of skills."""
    merger: str = "heuristic"
    """`heuristic` (no language model), `openai` (`endpoints.merger`), or `module:attribute` of your own."""
    on_failure: Literal["stop", "skip", "heuristic"] = "stop"
    """Action where a language model that merges gives no usable answer: the run stops, that part of the update is left
    out, or the heuristic does it. The two latter are reported and counted."""
    dedup_threshold: float | None = Field(default=0.95, gt=0, le=1)
    """New skills whose vectors are at least this alike (cosine) say the same; texts that differ in a number, a sign or a
    negation never do. None: only texts of the same words."""
    extract_from_solutions: bool = True
    """Where no winner of a group wrote a skill, take one from what their solutions have in common."""

    gate: GateConfig | None = None
    """Test that changes of the bank have to pass in the rl phase; None: they are applied as they come."""

    @property
    def embeds(self) -> bool:
        """True if skills are found by vectors, so that an embedder is needed."""
        return self.retrieval in ("embedding", "hybrid")

    def sharing_problems(self) -> Iterator[str]:
        """Settings that a shared bank cannot have, one sentence each; none where it is not shared."""
        if not self.shared:
            return
        if self.bank is None or self.bank.startswith(("synthetic:", "document:")):
            yield f"skills.shared needs skills.bank to name the folder that the runs share; it is {self.bank}"
        if self.embeds and self.index == "chroma" and self.chroma_server is None:
            yield (
                "skills.shared needs skills.chroma_server (chroma run --path FOLDER --port PORT) or skills.index=memory: one process owns "
                "an embedded Chroma"
            )
        if self.stale_after_steps is not None:
            yield "skills.stale_after_steps counts the steps of one run, and skills.shared is for several: leave it out"
        if self.gate is not None:
            yield "skills.gate tests a bank that one run changes, and skills.shared is for several: leave one of them out"

    @model_validator(mode="after")
    def _notes_need_vectors(self) -> SkillsConfig:
        if self.episode_notes and self.retrieval != "embedding":
            raise ValueError(
                "episode_notes needs retrieval=embedding: only cosines compare a note with the bank's skills"
            )
        return self

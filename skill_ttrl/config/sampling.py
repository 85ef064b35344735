"""Sections of a config: prompts and actions of the agent, sampling, voting, and how accuracy is measured."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from skill_ttrl.config.section import Section


class AgentConfig(Section):
    """How a task becomes a prompt."""

    template: str = "boxed"
    """A Markdown file of `skill_ttrl/prompts` by name, or a path to one of your own; `$question` marks the place."""
    system: str | None = None
    """System message; None leaves it out."""
    document: str | None = None
    """A Markdown file whose text stands at the head of every prompt: a skill document. It counts toward `data.max_prompt_tokens`;
    None: prompts have none."""
    document_as: Literal["system", "prompt", "bank"] = "system"
    """Where the document stands. `system`: behind `system` in the system message. `prompt`: before the task in the user's message (template
    `document`), for models whose chat template knows no system message. `bank`: each of its sections is a skill of the bank that the run begins
    with (`skills.bank: document:FILE`), shown and found as skills are."""
    document_revision: str | None = None
    """Digest of the document's text; recorded when it is read."""
    max_turns: int = Field(default=1, ge=1)
    """Longest episode in turns."""
    context_mode: Literal["conversation", "episode", "none", "window"] = "conversation"
    """The part of earlier turns that a later one sees. `conversation`: all of them, as they were said, in a prompt that is made anew. `episode`: all of
    them as one growing sequence of tokens: a later prompt is the one before, the tokens that were sampled, and those of the new observation,
    so that nothing is computed twice and an episode is one sequence in training; for `hf` and `vllm`, and for chat templates that
    only append (docs/imitation.md). `none`: nothing, each turn is a fresh prompt. `window`: each turn is a fresh prompt too, made by `template` of the task, the last `history_length` turns, what is seen,
    the actions that are possible, and the skills."""
    observations: str = "full"
    """Form of an observation in prompts, and of actions where it has one of them. `full`: as the environment says it. `alfworld`: the things that an observation of ALFWorld names,
    or one word, `alfworld_reach` those too that the possible actions show to be within reach (docs/environments.md). `module:attribute`: a function of your own from the scene to a text, or
    a `Form` (`skill_ttrl.agents.observations`) of such a function and one of the actions that the policy writes in place of the environment's (docs/imitation.md). Episodes, experts and teachers
    have what the environment said, and its actions, in any case."""
    history_length: int | None = Field(default=2, ge=0)
    """Past turns in a prompt of `context_mode: window` (SkillRL: 2); None: all."""
    max_observation_tokens: int | None = Field(default=None, ge=1)
    """Longest observation in a prompt of `context_mode: window`; its end is cut off, and the step says so. None: only
    `data.max_prompt_tokens` bounds it."""
    actions: Literal["text", "numbered"] = "text"
    """How the possible actions are listed in a prompt of `context_mode: window`. `numbered`: each with a number behind it, and the number is
    what the model answers. One with a place for words of its own, `search[<your query>]`, is listed with the task's words in it; other
    words are written out."""
    action_order: Literal["listed", "words"] = "listed"
    """In which order a prompt of `context_mode: window` lists them. `listed`: as the environment does. `words`: those whose thing the task names
    first, then those that the skills name, what was done already last; of a list that is too long the end is cut."""
    hidden_verbs: list[str] = Field(default_factory=list)
    """Verbs whose actions such a prompt does not list (SkillRL: `help` in ALFWorld). Written all the same, they count as invalid and
    are played."""
    action_parser: Literal["none", "action", "skillrl"] = "none"
    """How an action is read from what the model wrote. `none`: all of it is the action. `action`: what stands in `<action>`; what
    is meant but misspelt is repaired, what is not possible is invalid. `skillrl`: SkillRL's rules to the letter."""
    prompts: str | None = None
    """A folder of your own templates; a file there takes the place of the shipped one of the same name."""
    structured_actions: bool = False
    """Where the environment lists `admissible_commands`, the model can write nothing but one of them. For backends that can: `hf`, and for
    measuring alone `vllm`, and `openai` where the server knows `structured_outputs`. What `hf` sampled so is learnt from under the same
    limits: probabilities, entropies and KL are those among the tokens that were possible."""


class RolloutConfig(Section):
    """Sampling."""

    backend: str = "hf"
    """`hf`, `vllm` (see the section `vllm`), `openai` (`endpoints.policy`; its weights stay as they are), `command` (a program, see
    the section `command`), or `module:attribute` of your own (see `skill_ttrl.llm.backend`)."""
    n_votes_per_prompt: int = Field(default=64, ge=1)
    """Samples that vote (TTRL: 64)."""
    n_samples_per_prompt: int = Field(default=32, ge=1)
    """Samples of those that are trained on, chosen with a seed (TTRL: 32)."""
    temperature: float = Field(default=1.0, gt=0)
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int = Field(default=0, ge=0)
    """0 keeps the whole vocabulary."""
    max_new_tokens: int = Field(default=3072, ge=1)
    """Longest completion in tokens (TTRL: 3072)."""
    prompts_per_batch: int | None = Field(default=None, ge=1)
    """Prompts whose rollouts are sampled together, from a seed of their own; the next ones follow, or are sampled by another worker of a Ray
    cluster at the same time (`scale.engine`). Fewer take less memory. None: all prompts of a step, or of an evaluation. Another number draws other
    samples from the same seed."""
    max_batch_size: int = Field(default=1024, ge=1)
    """Most rows that the `hf` backend decodes at once. Another number draws other samples from the same seed."""
    mode: Literal["auto", "sync", "async"] = "auto"
    """How episodes of several turns advance. `sync`: all together, turn by turn, which gives the same samples from the same
    seed. `async`: each as soon as it is answered, so that a slow one holds up nobody, for samplers that batch what comes in; environments
    are then called in threads. `auto`: `sync` for `hf` and for episodes of one turn, `async` for the others. See docs/imitation.md."""
    rollout_timeout_s: float | None = Field(default=None, gt=0)
    """An episode that has waited so long, for its environment and the sampler, ends there (`stop_reason` "timeout") and has failed; None:
    it may take any time."""

    kv_cache_on_update: Literal["drop", "keep"] = "drop"
    """Keys and values of an episode in flight when `hf` gets new weights (`rl.max_staleness`). `drop`: the next turn reads the episode again with
    the new ones. `keep`: it reads its own tokens alone, after what the older weights made of those before (PipelineRL); log-probs are those that it
    was sampled with in either case."""

    @model_validator(mode="after")
    def _votes_cover_samples(self) -> RolloutConfig:
        if self.n_votes_per_prompt < self.n_samples_per_prompt:
            raise ValueError(
                f"n_votes_per_prompt ({self.n_votes_per_prompt}) must be at least n_samples_per_prompt "
                f"({self.n_samples_per_prompt}): the trained samples are a subset of those that vote"
            )
        return self


class VoteConfig(Section):
    """Voting strategy, and its effect on training where votes are rewarded (`rl.reward: majority`). See docs/voting.md."""

    strategy: str = "majority"
    """`majority`, `confidence`, `soft`, `harmonic`, `restrain`, `guard`, `gated`, or `module:function` of your own."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Options of the strategy, e.g. `threshold`."""
    paraphrase: str = "policy"
    """Source of the paraphrases that a strategy needs (`harmonic`): `policy`, decoded greedily with the template `paraphrase`, or
    `module:function` of your own, from a text to a text."""


class EvalConfig(Section):
    """How accuracy is measured (avg@k, pass@k, maj@k, greedy)."""

    samples: int = Field(default=16, ge=1)
    """Samples a problem (TTRL: 16)."""
    temperature: float = Field(default=0.6, gt=0)
    """TTRL: 0.6."""
    top_p: float = Field(default=0.95, gt=0, le=1)
    """TTRL: 0.95."""
    extra_temperatures: list[Annotated[float, Field(gt=0)]] = Field(default_factory=list)
    """Further temperatures at which avg@k is measured."""
    greedy: bool = True
    controls: list[str] = Field(default_factory=lambda: ["random", "first"])
    """Scripted agents that play the same tasks for comparison, in environments that judge and list actions: `random`, `first` (the
    first action that a prompt lists), `constant:TEXT`, or another scripted agent. `[]`: none."""
    confidence: float = Field(default=0.95, gt=0, lt=1)
    """Level of the intervals."""

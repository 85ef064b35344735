"""The sections of a config: one pydantic model each, defaults from the papers.

To add a setting, add a field with its default and a docstring: `skillttrl configs show` and the reference page read it.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Phase = Literal["collect", "distill", "sft", "rl", "vote_sft"]


Beta = Annotated[float, Field(ge=0, lt=1)]


class Section(BaseModel):
    """Base of every section: unknown keys are errors, assignments are validated, docstrings are help texts."""

    model_config = ConfigDict(
        extra="forbid", validate_assignment=True, use_attribute_docstrings=True, allow_inf_nan=False
    )


class SourceConfig(Section):
    """Where tasks or demonstrations come from."""

    path: str
    """A JSON, JSONL or Parquet file, `hf:owner/name` (a Hugging Face data set) or `family:name` (generated problems)."""
    split: str | None = None
    """Part of a data set or family to take; files have none."""
    revision: str | None = None
    """Commit of a Hugging Face data set; recorded when it is resolved."""
    prompt_field: str = "prompt"
    """Column with the problem (falls back to `question` and `problem` only where this one is left at its default)."""
    answer_field: str = "answer"
    """Column with the true answer; may be absent, then nothing is measured against labels."""
    limit: int | None = Field(default=None, ge=1)
    """Take this many, the first in file order or in a family's fixed order."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Further arguments of a family, e.g. `noise`."""


class VerifiedConfig(Section):
    """A run that somebody recorded. It decides nothing, and holds only for the settings that it was made with."""

    hardware: str
    date: str = Field(pattern=r"^\d{4}-\d\d-\d\d$")
    """Year, month, day."""
    wall_time: str
    peak_memory: str
    result: str
    config_digest: str = Field(pattern="^[0-9a-f]{16}$")
    """`settings_digest` of the config that was run; where it differs, the config counts as never verified."""


class EnvConfig(Section):
    """The environment that plays the tasks."""

    id: str = "math"
    """Short name (`math`), Gymnasium id (`SkillTTRL/Math-v0`) or `module:EnvId-v0` of your own."""
    kwargs: dict[str, Any] = Field(default_factory=dict)
    """Handed to `gymnasium.make`."""
    train_split: str = "train"
    """Split of the environment's own tasks that is trained on, where there is no `data.train`."""
    eval_split: str = "test"
    """Split of the environment's own tasks that is measured on, where there is neither `data.eval` nor `data.train`. ALFWorld:
    `valid_seen` or `valid_unseen`."""
    train_tasks: int | None = Field(default=None, ge=1)
    """So many of the environment's own training tasks, spread evenly over their order, so that every type is among them; None:
    all."""
    eval_tasks: int | None = Field(default=None, ge=1)
    """So many of those that are measured on, spread in the same way; None: all."""


class DataConfig(Section):
    """Tasks to train on and to measure on. An environment that brings its own tasks needs neither."""

    train: SourceConfig | None = None
    eval: SourceConfig | None = None
    """Held-out tasks; without them evaluation runs on the training tasks and the report says `transductive`."""
    max_prompt_tokens: int = Field(default=1024, ge=1)
    """Longest prompt in tokens (TTRL: 512 for AIME, 1024 for AMC)."""
    overlong: Literal["filter", "truncate", "refuse"] = "filter"
    """What happens to a longer prompt: left out (and counted), cut at the left, or the run stops."""
    leak: Literal["refuse", "report"] = "refuse"
    """Action if held-out tasks would be learned from: the command stops, or continues and reports it in its summary."""


class AgentConfig(Section):
    """How a task becomes a prompt."""

    template: str = "boxed"
    """A Markdown file of `skill_ttrl/prompts` by name, or a path to one of your own; `$question` marks the place."""
    system: str | None = None
    """System message; None leaves it out."""
    max_turns: int = Field(default=1, ge=1)
    """Longest episode in turns."""
    memory: Literal["conversation", "none", "window"] = "conversation"
    """What a later turn sees of earlier ones. `conversation`: all of them, as they were said. `none`: nothing, each turn is a
    fresh prompt. `window`: each turn is a fresh prompt too, made by `template` of the task, the last `history` turns, what is seen,
    the actions that are possible, and the skills."""
    history: int | None = Field(default=2, ge=0)
    """Past turns in a prompt of `memory: window` (SkillRL: 2); None: all."""
    observation_tokens: int | None = Field(default=None, ge=1)
    """Longest observation in a prompt of `memory: window`; its end is cut off, and the step says so. None: only
    `data.max_prompt_tokens` bounds it."""
    actions: Literal["text", "numbered"] = "text"
    """How the possible actions are listed in a prompt of `memory: window`. `numbered`: each with a number behind it, and the number is
    what the model answers. One with a place for words of its own, `search[<your query>]`, is listed with the task's words in it; other
    words are written out."""
    order: Literal["listed", "words"] = "listed"
    """In which order a prompt of `memory: window` lists them. `listed`: as the environment does. `words`: those whose thing the task names
    first, then those that the skills name, what was done already last; of a list that is too long the end is cut."""
    unlisted: list[str] = Field(default_factory=list)
    """Verbs whose actions such a prompt does not list (SkillRL: `help` in ALFWorld). Written all the same, they count as invalid and
    are played."""
    projection: Literal["none", "action", "skillrl"] = "none"
    """How an action is read from what the model wrote. `none`: all of it is the action. `action`: what stands in `<action>`; what
    is meant but misspelt is repaired, what is not possible is invalid. `skillrl`: SkillRL's rules to the letter."""
    prompts: str | None = None
    """A folder of your own templates; a file there takes the place of the shipped one of the same name."""
    constrain_actions: bool = False
    """Where the environment lists `admissible_commands`, the model can write nothing but one of them. For backends that can
    (`vllm`, and `openai` where the server knows `structured_outputs`), and for measuring only: constrained log-probs are
    not the policy's."""


class SkillsConfig(Section):
    """The skill bank and how the agent uses it. Without this section a run has no skills."""

    bank: str | None = None
    """What to begin with: a bank's folder, an exported JSON or JSONL file, or `family:operators`; None: an empty bank.
    The run keeps a copy of its own, in its folder."""
    use: bool = True
    """False leaves the bank unasked: nothing is put into prompts, no question is answered. A control."""
    type_names: dict[str, str] = Field(default_factory=dict)
    """What the bank calls a type of task, where it is not what the environment calls it: `pick_heat_then_place_in_recep: heat` for
    SkillRL's banks. Skills are looked up under that name, and new ones go by it."""
    max_skills: int = Field(default=200, ge=1)
    """Capacity; the least useful skills go first."""
    stale_after: int | None = Field(default=None, ge=1)
    """A skill that was not used for so many steps is retired, unless its source is `seeded`; None: never."""
    max_skills_per_problem: int | None = Field(default=3, ge=1)
    """New skills that one step adds for a problem, the best supported first (Skill-TTRL: 3); None: no limit."""
    retrieval: Literal["embedding", "keyword", "hybrid", "template"] = "embedding"
    """Cosine of the embedder's vectors, BM25, or their weighted sum. `template` is SkillRL's way without a query: prompts show all skills of
    the task's type, `in_prompt` general ones and the first five mistakes, as far as `prompt_tokens` reach; questions are answered
    by BM25."""
    embedder: str = "sentence-transformers"
    """`sentence-transformers`, `hash` (words and their spelling, not their meaning; nothing to download), `openai` (`endpoints.embeddings`), or
    `module:attribute` of your own."""
    embedder_model: str = "sentence-transformers/all-MiniLM-L6-v2"
    """Hugging Face id or folder, for `sentence-transformers`."""
    embedder_revision: str | None = None
    """Commit of a hub model."""
    index: Literal["chroma", "memory"] = "chroma"
    """Where vectors are kept. Both give the same lists; `memory` computes the vectors again at each start."""
    chroma_server: str | None = Field(default=None, pattern=r"^[^:/]+:\d+$")
    """`host:port` of a running Chroma server; None: an embedded Chroma in the bank's folder."""
    top_k: int = Field(default=6, ge=1)
    """Skills that `SkillBank.retrieve` and `skillttrl inspect --search` find where they are given no number (SkillRL: 6). A
    run takes `in_prompt` and `retrieve_k`."""
    min_score: float | None = 0.0
    """SkillRL's delta (0.4 for its embedder; a cosine for `embedding`): skills of the tier `task` that score less are not found.
    General skills and mistakes are not found below 0, or below `min_score` where that is negative. None: no threshold."""
    in_prompt: int = Field(default=6, ge=0)
    """Most skills put into the first prompt, found by the task's own text; 0: the model must ask."""
    prompt_tokens: int = Field(default=512, ge=1)
    """Token budget of the skills in the prompt, beside `data.max_prompt_tokens`; what does not fit is left out."""
    max_retrievals: int = Field(default=1, ge=0)
    """How often the model may ask in one answer: `<retrieve query="...">` is answered at `</retrieve>`, `<retrieve query="..."/>` at its
    end. 0: never."""
    retrieve_k: int = Field(default=3, ge=1)
    """Skills inserted for one question."""
    retrieve_tokens: int = Field(default=256, ge=1)
    """Token budget of one insertion."""
    own_notes: bool = False
    """Skills that a try generates can be found by the same try in its later turns, before any merge. For
    `retrieval: embedding`."""
    update: Literal["merge", "none"] = "merge"
    """`merge`: after each step the winners' operations change the bank."""
    merger: str = "heuristic"
    """`heuristic` (no language model), `openai` (`endpoints.merger`), or `module:attribute` of your own."""
    extractor: str = "heuristic"
    """Who writes the skill where no winner of a group did: `heuristic`, `openai` (`endpoints.teacher`), or `module:attribute`
    of your own."""
    on_failure: Literal["stop", "skip", "heuristic"] = "stop"
    """When a language model that merges or extracts gives no usable answer: the run stops, that part of the update is left
    out, or the heuristic does it. The two latter are said and counted."""
    fuse_above: float | None = Field(default=0.95, gt=0, le=1)
    """New skills whose vectors are at least this alike (cosine) say the same; texts that differ in a number, a sign or a
    negation never do. None: only texts of the same words."""
    extract: bool = True
    """Where no winner of a group wrote a skill, take one from what their solutions have in common."""

    @property
    def embeds(self) -> bool:
        """Whether skills are found by vectors, so that an embedder is needed."""
        return self.retrieval in ("embedding", "hybrid")

    @model_validator(mode="after")
    def _notes_need_vectors(self) -> SkillsConfig:
        if self.own_notes and self.retrieval != "embedding":
            raise ValueError("own_notes needs retrieval=embedding: only cosines compare a note with the bank's skills")
        return self


class LoraConfig(Section):
    """Low-rank adapters through peft."""

    r: int = Field(default=16, ge=1)
    alpha: float = Field(default=32.0, gt=0)
    dropout: float = Field(default=0.0, ge=0, lt=1)
    target_modules: list[str] | Literal["all-linear"] = "all-linear"


class EmbeddedConfig(Section):
    """Shape of the built-in policy: a small Qwen2 with random weights and a tokenizer made on the spot."""

    hidden_size: int = Field(default=96, ge=8, le=4096)
    layers: int = Field(default=2, ge=1, le=64)
    heads: int = Field(default=4, ge=1)
    max_positions: int = Field(default=512, ge=16)
    merges: int = Field(default=96, ge=0, le=20_000)
    """Words that the tokenizer learns from the demonstrations, at most."""
    numbers: int = Field(default=0, ge=0, le=999)
    """So many numbers in brackets, `[1]` and so on, are one token each: the answers of `agent.actions: numbered`."""

    @model_validator(mode="after")
    def _heads_share_the_width(self) -> EmbeddedConfig:
        if self.hidden_size % (2 * self.heads):
            raise ValueError(
                f"hidden_size ({self.hidden_size}) must be a multiple of twice the heads ({self.heads}): each head needs an "
                "even width"
            )
        return self


EMBEDDED = "embedded"
"""Value of `model.path` for the built-in small policy."""


class ModelConfig(Section):
    """The policy."""

    path: str = "Qwen/Qwen2.5-Math-7B"
    """Hugging Face id, a folder, or `embedded` for the built-in small policy."""
    revision: str | None = None
    """Commit of a hub model; recorded when it is resolved."""
    trust_remote_code: bool = False
    embedded: EmbeddedConfig = Field(default_factory=EmbeddedConfig)
    lora: LoraConfig | None = None
    """Set to train adapters instead of all weights."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: about a third slower, far less memory."""
    attn_implementation: str | None = None
    """`sdpa`, `eager`, `flash_attention_2`; None lets transformers choose."""


class SFTConfig(Section):
    """Supervised cold start on demonstrations, loss on completions only."""

    data: SourceConfig | None = None
    """Demonstrations with `prompt` and `response` columns, or a family's."""
    steps: int = Field(default=500, ge=0)
    batch_size: int = Field(default=64, ge=1)
    """Demonstrations a step."""
    micro_batch_size: int = Field(default=64, ge=1)
    optimizer: Literal["adamw", "muon"] = "adamw"
    """`muon` takes hidden matrices, AdamW the rest."""
    learning_rate: float = Field(default=1e-4, gt=0, le=10)
    """Peak rate of AdamW (SkillRL: 1e-4)."""
    muon_learning_rate: float = Field(default=0.02, gt=0, le=10)
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    weight_decay: float = Field(default=0.0, ge=0)
    warmup_steps: int = Field(default=20, ge=0)
    schedule: Literal["constant", "cosine"] = "cosine"
    min_lr_ratio: float = Field(default=0.1, ge=0, le=1)
    """Where the cosine ends, as a share of the peak."""
    restart_after: float | None = Field(default=None, gt=0, lt=1)
    """Share of the steps after which the schedule begins again, warm-up included (SGDR, arXiv 1608.03983); None: never."""
    restart_scale: float = Field(default=1.0, gt=0)
    """Peak rates after the restart, as a share of those before."""
    grad_clip: float = Field(default=1.0, gt=0)
    order: Literal["shuffled", "given"] = "shuffled"
    """Of the demonstrations: each epoch one shuffle drawn from the run's seed, or as the source has them (a curriculum)."""
    clean_fraction: float = Field(default=0.0, ge=0, le=1)
    """Share of the steps, from the start, that see a family's demonstrations without noise."""
    whole_fraction: float = Field(default=0.0, ge=0, le=1)
    """Share of the steps, from the start, whose loss is on the prompts too: a model that has read nothing yet learns its words and how
    to copy from them. 0 for a pretrained one."""
    checkpoint_every: int = Field(default=100, ge=1)
    """Steps between checkpoints."""


class RolloutConfig(Section):
    """Sampling."""

    backend: str = "hf"
    """`hf`, `vllm` (see the section `vllm`), `openai` (`endpoints.policy`; its weights stay as they are), or `module:attribute`
    of your own (see `skill_ttrl.llm.backend`)."""
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
    max_batch_size: int = Field(default=1024, ge=1)
    """Most rows that the `hf` backend decodes at once. Another number draws other samples from the same seed."""
    schedule: Literal["auto", "lockstep", "free"] = "auto"
    """How episodes of several turns advance. `lockstep`: all together, turn by turn, which gives the same samples from the same
    seed. `free`: each as soon as it is answered, so that a slow one holds up nobody, for samplers that batch what comes in; environments
    are then called in threads. `auto`: `lockstep` for `hf` and for episodes of one turn, `free` for the others. See docs/episodes.md."""
    episode_seconds: float | None = Field(default=None, gt=0)
    """An episode that has waited so long, for its environment and the sampler, ends there (`stop_reason` "timeout") and has failed; None:
    it may take any time."""

    @model_validator(mode="after")
    def _votes_cover_samples(self) -> RolloutConfig:
        if self.n_votes_per_prompt < self.n_samples_per_prompt:
            raise ValueError(
                f"n_votes_per_prompt ({self.n_votes_per_prompt}) must be at least n_samples_per_prompt "
                f"({self.n_samples_per_prompt}): the trained samples are a subset of those that vote"
            )
        return self


class RLConfig(Section):
    """Reinforcement learning: what is rewarded and how the weights follow. Defaults but that of `steps`: TTRL (arXiv 2504.16084, §3.1)."""

    reward: str = "majority"
    """`majority` (no labels), the controls `label`, `random`, `format`, `env` (the environment's own return),
    `module:function`, or `model:PATH` for a Hugging Face reward model."""
    reward_revision: str | None = None
    """Commit of a hub's reward model, or digest of the files of one in a folder; recorded when it is resolved."""
    steps: int = Field(default=80, ge=0)
    """Steps of `prompts_per_step` prompts each. TTRL counts passes over the data instead: 80 of AIME 2024, 30 of AMC, 10 of MATH-500; n
    passes over P problems are n * (P // `prompts_per_step`) steps. On resume it may be larger (docs/resume.md)."""
    prompts_per_step: int = Field(default=8, ge=1)
    advantage: str = "grpo"
    group_statistics: Literal["episodes", "steps"] = "episodes"
    """What mean and deviation of a group of episodes are taken over. `episodes`: each episode weighs the same, however long it
    is. `steps`: each step does, so that long ones weigh more (verl-agent, SkillRL)."""
    invalid_penalty: float = Field(default=0.0, ge=0)
    """Taken off the reward of each step whose action was invalid (SkillRL: 0.1, beside a reward of 10)."""
    loss: str = "ppo_clip"
    learning_rate: float = Field(default=5e-7, gt=0, le=10)
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    weight_decay: float = Field(default=0.01, ge=0)
    warmup_steps: int | None = Field(default=None, ge=0)
    """None: `warmup_ratio` of the optimiser's steps."""
    warmup_ratio: float = Field(default=0.03, ge=0, le=1)
    schedule: Literal["constant", "cosine"] = "cosine"
    min_lr_ratio: float = Field(default=0.0, ge=0, le=1)
    grad_clip: float = Field(default=1.0, gt=0)
    epochs: int = Field(default=1, ge=1)
    """Passes over each batch of rollouts."""
    mini_batch_prompts: int | None = Field(default=1, ge=1)
    """Prompts in each optimiser step (TTRL: 1, that is 32 samples); None: all of the batch in one."""
    micro_batch_size: int = Field(default=8, ge=1)
    """Sequences in each forward pass; gradients accumulate over them. Changes memory, not results."""
    clip_ratio: float = Field(default=0.2, gt=0)
    clip_ratio_high: float | None = Field(default=None, gt=0)
    """Upper clip when it differs (DAPO: 0.28); None: the same as `clip_ratio`."""
    dual_clip: float | None = Field(default=3.0, gt=1)
    """Bound on the loss of a sample with negative advantage, as a multiple of it; None: no bound."""
    loss_aggregation: Literal["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"] = (
        "token-mean"
    )
    kl_coef: float = Field(default=0.001, ge=0)
    """Weight of the KL term towards the reference model, in the loss; 0 keeps no reference model."""
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"
    sampler_correction: Literal["auto", "none", "truncate", "mask"] = "auto"
    """What is done about a sampler whose log-probs are not the learner's own (docs/learner.md). `truncate`: each token's
    advantage is weighted by min(p_learner / p_sampler, cap) (truncated importance sampling); `mask`: tokens whose weight is
    above the cap or below its inverse are left out. Both measure the gap and take the learner's own log-probs for the clip.
    `none`: the sampler's log-probs are taken for both. `auto`: `none` for `hf`, which is the learner, `truncate` else."""
    sampler_correction_cap: float = Field(default=2.0, gt=1)
    """Largest weight (verl: 2)."""
    reference_refresh_steps: int | None = Field(default=None, ge=1)
    """Copy the policy into the reference every so many steps; None: never."""
    entropy_coef: float = Field(default=0.0, ge=0)
    advantage_epsilon: float = Field(default=1e-6, gt=0)
    """Added to the group's standard deviation (verl: 1e-6)."""
    checkpoint_every: int = Field(default=10, ge=1)
    """Steps between checkpoints."""
    validate_every: int | None = Field(default=None, ge=1)
    """Steps between evaluations on the held-out tasks (TTRL: 2); None: before and after only."""
    stop_rule: str | None = None
    """Ends the phase early, at a checkpoint, by signs that need no label: `entropy`, `flip_rate`, `agreement`
    (see `skill_ttrl.runs.stop_rules`), or `module:function` of your own. None: all steps are done."""
    stop_options: dict[str, Any] = Field(default_factory=dict)
    """Options of that rule, e.g. `threshold`."""


class VoteSFTConfig(Section):
    """The baseline: fine-tuning on the samples that agree with their majority, as many sampled as the rl phase would
    (LMSI, arXiv 2210.11610). Steps, prompts, `micro_batch_size`, `betas`, `weight_decay` and `grad_clip` are those of `rl`.
    """

    passes: int = Field(default=1, ge=1)
    """Passes over the samples that agree."""
    batch_size: int = Field(default=64, ge=1)
    """Samples a step."""
    learning_rate: float = Field(default=1e-5, gt=0, le=10)
    """Peak rate of AdamW; small models take more."""
    warmup_ratio: float = Field(default=0.03, ge=0, le=1)
    """Share of the optimiser's steps."""
    schedule: Literal["constant", "cosine"] = "cosine"
    min_lr_ratio: float = Field(default=0.1, ge=0, le=1)
    """Where the cosine ends, as a share of the peak."""
    checkpoint_every: int = Field(default=100, ge=1)
    """Steps between checkpoints while it learns; while it samples they are `rl.checkpoint_every` rounds apart."""


class VoteConfig(Section):
    """Who wins a vote, and what that does to training where votes are rewarded (`rl.reward: majority`). See docs/voting.md."""

    strategy: str = "majority"
    """`majority`, `confidence`, `soft`, `harmonic`, `restrain`, `guard`, `gated`, or `module:function` of your own."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Options of the strategy, e.g. `threshold`."""
    paraphrase: str = "policy"
    """Who says a question in other words where a strategy asks for it (`harmonic`): `policy`, greedily, with the template
    `paraphrase`, or `module:function` of your own, from a text to a text."""


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
    first action that a prompt lists), `constant:TEXT`, or another player. `[]`: none."""
    confidence: float = Field(default=0.95, gt=0, lt=1)
    """Level of the intervals."""


class RunConfig(Section):
    """What is kept of a run."""

    tracker: Literal["none", "tensorboard", "wandb", "trackio", "mlflow"] = "none"
    keep_checkpoints: int | None = Field(default=3, ge=1)
    """Newest checkpoints of each phase that stay; None keeps all."""
    save_trajectories: bool = True
    """Write every trajectory with ids, log-probs and rewards. The phase vote_sft does so in any case: it learns from them."""
    max_skipped_updates: int | None = Field(default=20, ge=1)
    """A phase ends with an error (exit code 8) once so many updates in a row were left out because loss or gradient is not finite; None:
    only where all of its updates were."""


class RuntimeConfig(Section):
    """The machine."""

    device: str = "auto"
    """`cpu`, `cuda`, `cuda:1`, `mps`, or `auto`: a GPU where there is one."""
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """Of the training forward; `auto` is bf16 on a GPU that has it and fp32 elsewhere."""
    threads: int | None = Field(default=None, ge=1, le=1024)
    """CPU threads of torch. None: torch decides. The same number gives the same bits."""

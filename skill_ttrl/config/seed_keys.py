"""Keys of two published configs and their counterparts here: the first Skill-TTRL's YAML, and the JSON of SkillRL in Rust.

One table each. `convert` reads whole files by them, `SeedSections` single settings in Python. Of a key without a counterpart the table
says why, and what to set.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from types import EllipsisType
from typing import Any

from pydantic import BaseModel

from skill_ttrl.config.section import section_at
from skill_ttrl.errors import ConfigError, did_you_mean

Write = Callable[[Any], Any]


@dataclass(frozen=True)
class Key:
    """Counterpart of a key."""

    default: Any
    """Value of the published system where a file leaves the key out."""
    paths: tuple[str, ...] = ()
    """Our settings, by their paths; none: there is no counterpart."""
    write: Write | None = None
    """From a value of theirs to ours; `...` sets nothing. None: the same value."""
    read: Write | None = None
    """From the value of our first setting to theirs. None: the same value."""
    note: str = ""
    """Difference; of a key without a counterpart, the reason and what to do."""
    unset: str = ""
    """Remark where a value of theirs, stated or not, sets nothing here."""
    more: Callable[[Any], Mapping[str, Any]] | None = None
    """Further settings that follow from a value of theirs, where a file is converted or the key is set."""

    def values(self, value: Any) -> dict[str, Any]:
        """Our settings for a value of theirs."""
        ours = value if self.write is None else self.write(value)
        found = {} if isinstance(ours, EllipsisType) else dict.fromkeys(self.paths, ours)
        return found | dict(self.more(value) if self.more else {})


def _unless_empty(value: Any) -> Any:
    return value or ...


def _above_zero(value: Any) -> Any:
    return value if isinstance(value, int | float) and value > 0 else ...


def _named(table: Mapping[Any, Any]) -> Write:
    """Translate the names of a table; others are left for the config's own check to refuse."""
    return lambda value: table.get(value, value) if isinstance(value, Hashable) else value


def _hub_id(name: Any) -> Any:
    """The full id of an embedder that sentence-transformers abbreviates."""
    return name if not isinstance(name, str) or "/" in name else f"sentence-transformers/{name}"


KEY_NOTE = "No key is written to a file: put it into the environment variable OPENAI_API_KEY"
DEMONSTRATIONS = 7500
"""Default of `demonstrations.examples`, SkillRL's number for ALFWorld."""
PRECISIONS = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
ESTIMATORS = {"reinforce_pp": "reinforce_plus_plus"}
EPOCHS = "It counts epochs, but this setting counts steps: set {} to epochs x problems / rl.prompts_per_step"

FIRST_SKILL_TTRL: Mapping[str, Key] = {
    "data.train_files": Key(
        [],
        ("data.train.path",),
        _unless_empty,
        unset="It names no problems: set data.train.path, or the run trains on the environment's own",
    ),
    "data.val_files": Key([], ("data.eval.path",), _unless_empty),
    "data.max_prompt_length": Key(512, ("data.max_prompt_tokens",)),
    "data.max_response_length": Key(3072, note="rollout.max_tokens bounds a response in both"),
    "data.train_batch_size": Key(8, ("rl.prompts_per_step",)),
    "data.shuffle": Key(True, note="Training problems are always shuffled, by the seed"),
    "data.suffix_prompt": Key(
        None,
        note="The template agent.template (`boxed`) asks for the answer in a box; for other words write one of your own",
    ),
    "model.path": Key("Qwen/Qwen2.5-Math-7B", ("model.path",)),
    "model.tokenizer_path": Key(None, note="The tokenizer is the model's own"),
    "model.dtype": Key("bfloat16", ("runtime.precision",), _named(PRECISIONS)),
    "model.lora_rank": Key(0, ("model.lora.r",), _above_zero),
    "model.lora_alpha": Key(16, ("model.lora.alpha",)),
    "rollout.engine": Key("vllm", ("rollout.backend",)),
    "rollout.temperature": Key(0.6, ("rollout.temperature", "eval.temperature")),
    "rollout.top_p": Key(
        0.95,
        ("eval.top_p",),
        note="It applies to evaluations. Rollouts are sampled from the full distribution; the backend `hf` can use rollout.top_p",
    ),
    "rollout.max_tokens": Key(3072, ("rollout.max_new_tokens",)),
    "rollout.n_votes_per_prompt": Key(64, ("rollout.n_votes_per_prompt",)),
    "rollout.n_samples_per_prompt": Key(32, ("rollout.n_samples_per_prompt",)),
    "rollout.tensor_parallel_size": Key(1, ("vllm.tensor_parallel_size",)),
    "algorithm.adv_estimator": Key(
        "grpo",
        ("rl.algorithm.type",),
        _named(ESTIMATORS),
        _named({ours: theirs for theirs, ours in ESTIMATORS.items()}),
        more=lambda value: {"rl.critic": {}} if value == "gae" else {},
    ),
    "algorithm.gamma": Key(1.0, note="It is an option of the algorithm gae: rl.algorithm={type: gae, gamma: 1.0}"),
    "algorithm.lam": Key(1.0, note="It is an option of the algorithm gae: rl.algorithm={type: gae, lam: 1.0}"),
    "algorithm.clip_ratio": Key(0.2, ("rl.loss.clip_ratio",)),
    "algorithm.clip_ratio_high": Key(
        5.0,
        ("rl.loss.dual_clip",),
        lambda value: value or None,
        note="It bounds the loss of bad tokens (dual clip); rl.loss.clip_ratio_high is DAPO's upper clip",
    ),
    "algorithm.norm_adv_by_std": Key(
        True, ("rl.algorithm.scale_rewards",), _named({True: "group", False: "none"}), lambda value: value != "none"
    ),
    "algorithm.kl_coef": Key(0.001, ("rl.kl_coef",)),
    "algorithm.use_kl_loss": Key(True, ("rl.kl_coef",), lambda value: ... if value else 0.0, lambda value: value > 0),
    "algorithm.entropy_coeff": Key(0.001, ("rl.entropy_coef",)),
    "algorithm.loss_agg_mode": Key("token-mean", ("rl.loss_aggregation",)),
    "skill_bank.max_skills": Key(200, ("skills.max_skills",)),
    "skill_bank.retrieval_mode": Key(
        "embedding",
        ("skills.retrieval",),
        more=lambda value: {"skills.fallback": "most_useful"} if value == "keyword" else {},
    ),
    "skill_bank.embedding_model": Key("all-MiniLM-L6-v2", ("skills.embedder_model",), _hub_id),
    "skill_bank.top_k_retrieve": Key(6, ("skills.prompt_top_k",)),
    "skill_bank.skill_bank_path": Key(None, ("skills.bank",), _unless_empty),
    "skill_bank.enable_evolve": Key(True, note="What winners write changes the bank, or nothing does: skills.update"),
    "skill_bank.enable_generate": Key(True, note="What winners write changes the bank, or nothing does: skills.update"),
    "skill_bank.enable_retrieve": Key(
        True, ("skills.max_retrievals",), lambda value: 1 if value else 0, lambda value: value > 0
    ),
    "skill_bank.eviction_window": Key(50, ("skills.stale_after_steps",)),
    "skill_bank.min_winners_for_extraction": Key(2, note="two winners must share a technique"),
    "skill_bank.max_skills_per_problem": Key(3, ("skills.max_skills_per_problem",)),
    "merger.model": Key(
        "gpt-4o",
        ("endpoints.roles.merger.model",),
        _unless_empty,
        more=lambda value: {} if value is None else {"skills.merger": "openai", "skills.on_failure": "heuristic"},
    ),
    "merger.api_key": Key(None, note=KEY_NOTE),
    "merger.api_base": Key(None, ("endpoints.roles.merger.base_url",), _unless_empty),
    "merger.max_tokens": Key(2048, ("endpoints.roles.merger.max_tokens",)),
    "merger.temperature": Key(0.3, ("endpoints.roles.merger.temperature",)),
    "trainer.total_epochs": Key(80, ("rl.total_epochs",)),
    "trainer.save_freq": Key(5, note=EPOCHS.format("rl.save_steps")),
    "trainer.val_freq": Key(2, note=EPOCHS.format("rl.eval_steps")),
    "trainer.log_freq": Key(1, note="Every step is logged"),
    "trainer.learning_rate": Key(5e-7, ("rl.learning_rate",)),
    "trainer.weight_decay": Key(0.01, ("rl.weight_decay",)),
    "trainer.max_grad_norm": Key(1.0, ("rl.grad_clip",)),
    "trainer.warmup_ratio": Key(0.05, ("rl.warmup_steps",)),
    "trainer.ref_update_interval": Key(10, note="The reference model stays the model at the start of the phase"),
    "trainer.output_dir": Key("outputs", note="A run's folder is named by the command: --output FOLDER"),
    "trainer.seed": Key(42, ("seed",)),
    "trainer.n_gpus": Key(1, ("runtime.nproc",), lambda value: ... if value == 1 else value, lambda value: value or 1),
    "trainer.gradient_accumulation_steps": Key(1, note="Gradients accumulate over rl.micro_batch_size by themselves"),
    "trainer.micro_batch_size": Key(2, ("rl.micro_batch_size",)),
    "trainer.mini_batch_size": Key(1, ("rl.mini_batch_size",)),
}
"""Of `skill_ttrl/config/config.py` of the first Skill-TTRL."""

SKILLRL_RUST: Mapping[str, Key] = {
    "sft.learning_rate": Key(1e-4, ("sft.learning_rate",)),
    "sft.batch_size": Key(16, ("sft.batch_size",)),
    "sft.epochs": Key(
        3,
        ("sft.steps",),
        lambda value: ...,
        note=f"Epochs are counted in steps: sft.steps is epochs x {DEMONSTRATIONS} (demonstrations.examples) / sft.batch_size",
    ),
    "rl.learning_rate": Key(1e-6, ("rl.learning_rate",)),
    "rl.batch_size": Key(64, ("rl.prompts_per_step",)),
    "rl.group_size": Key(8, ("rollout.n_votes_per_prompt", "rollout.n_samples_per_prompt")),
    "rl.kl_coeff": Key(0.01, ("rl.kl_coef",)),
    "rl.clip_epsilon": Key(0.2, ("rl.loss.clip_ratio",)),
    "rl.invalid_action_penalty": Key(0.1, ("rl.invalid_action_penalty_coef",)),
    "rl.max_prompt_length": Key(6000, ("data.max_prompt_tokens",)),
    "rl.max_response_length": Key(1024, ("rollout.max_new_tokens",)),
    "rl.training_epochs": Key(150, ("rl.steps",)),
    "skill_retrieval.top_k": Key(6, ("skills.prompt_top_k",)),
    "skill_retrieval.similarity_threshold": Key(0.4, ("skills.min_score",)),
    "evolution.validation_interval": Key(5, ("evolve.every",)),
    "evolution.max_new_skills": Key(3, ("evolve.max_new_skills",)),
    "evolution.evolution_threshold": Key(0.4, ("evolve.threshold",)),
    "evolution.max_analysis_deep": Key(10, ("evolve.max_failures_below_threshold",)),
    "evolution.max_analysis_shallow": Key(5, ("evolve.max_failures_above_threshold",)),
    "model.policy_api_base": Key(
        None,
        ("endpoints.roles.policy.base_url",),
        _unless_empty,
        note="The phases sft and rl load the weights of model.path; `--policy openai` uses this server",
    ),
    "model.policy_model_id": Key("Qwen/Qwen2.5-7B-Instruct", ("model.path", "endpoints.roles.policy.model")),
    "model.policy_api_key": Key("", note=KEY_NOTE),
    "model.teacher_api_base": Key(None, ("endpoints.roles.teacher.base_url",), _unless_empty),
    "model.teacher_model_id": Key("o3", ("endpoints.roles.teacher.model",)),
    "model.teacher_api_key": Key("", note=KEY_NOTE),
    "model.embedding_api_base": Key(None, ("endpoints.roles.embeddings.base_url",), _unless_empty),
    "model.embedding_model_id": Key("text-embedding-3-small", ("endpoints.roles.embeddings.model",)),
    "model.embedding_api_key": Key("", note=KEY_NOTE),
}
"""Of the published README of SkillRL in Rust."""


class SeedSection:
    """View of a config by the keys of one section of the first Skill-TTRL (`seed_keys.FIRST_SKILL_TTRL`). Holds nothing itself."""

    def __init__(self, config: BaseModel, section: str) -> None:
        object.__setattr__(self, "_config", config)
        object.__setattr__(self, "_section", section)

    def __getattr__(self, name: str) -> Any:
        key = FIRST_SKILL_TTRL.get(f"{self._section}.{name}")
        if key is None or not key.paths:
            raise AttributeError(f"config.{self._section} has no {name!r}.{did_you_mean(name, self._names())}")
        value = _value(self._config, key.paths[0])
        return value if key.read is None else key.read(value)

    def __setattr__(self, name: str, value: Any) -> None:
        key = FIRST_SKILL_TTRL.get(f"{self._section}.{name}")
        if key is None:
            raise ConfigError(f"config.{self._section} has no {name!r}.{did_you_mean(name, self._names())}")
        if not key.paths:
            raise ConfigError(f"config.{self._section}.{name} has no counterpart here. {key.note}.")
        for path, ours in key.values(value).items():
            _set(self._config, path, ours)

    def __dir__(self) -> list[str]:
        return self._names()

    def _names(self) -> list[str]:
        start = f"{self._section}."
        return [
            path.removeprefix(start) for path, key in FIRST_SKILL_TTRL.items() if path.startswith(start) and key.paths
        ]


def _view(section: str, about: str) -> property:
    return property(lambda config: SeedSection(config, section), doc=about)


class SeedSections:
    """The views, for the config."""

    algorithm = _view("algorithm", "Alias of settings in `rl`.")
    skill_bank = _view(
        "skill_bank", "Alias of settings in `skills`; setting one adds that section where there is none."
    )
    merger = _view(
        "merger", "Alias of settings in `endpoints.roles.merger`; setting the model makes it `skills.merger` too."
    )
    trainer = _view("trainer", "Alias of settings in `rl`, `seed` and `runtime`.")


def _value(config: BaseModel, path: str) -> Any:
    """The value of a setting; its default where its section is None."""
    node: Any = config
    for at, name in enumerate(keys := path.split(".")):
        if node is None:
            section = section_at(type(config), keys[:at])
            field = section.model_fields.get(name) if section else None
            node = None if field is None or field.is_required() else field.get_default(call_default_factory=True)
        else:
            node = node.get(name) if isinstance(node, dict) else getattr(node, name)
    return node


def _set(config: BaseModel, path: str, value: Any) -> None:
    """Set a setting, checked as any other; a section that is None is made."""
    first, *others = path.split(".")
    data: Any = {first: value}
    if others:
        data = config.model_dump(exclude_unset=True)
        node = data
        for key in (first, *others[:-1]):
            node[key] = node.get(key) or {}
            node = node[key]
        node[others[-1]] = value
    setattr(config, first, getattr(type(config).model_validate(data), first))

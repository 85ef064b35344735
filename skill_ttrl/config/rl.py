"""Section of a config: reinforcement learning. Defaults: TTRL (arXiv 2504.16084, section 3.1)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field, ValidationError, field_validator, model_validator

from skill_ttrl.config.section import Beta, Section, explain_problem, name_and_options
from skill_ttrl.errors import ConfigError, did_you_mean
from skill_ttrl.registry import Registry, naming


class ImpliedType(str):
    """Type of options that are stated without one: an algorithm may bring another."""


def _named(default: str) -> BeforeValidator:
    """Read a bare name as `{"type": name}`, and options without a type as those of `default`."""

    def read(value: Any) -> Any:
        if isinstance(value, str):
            return {"type": value}
        if not isinstance(value, dict):
            raise ValueError("expected a name, or {type: name} with options")
        if not isinstance(value.get("type", default), str):
            raise ValueError("its type must be a name")
        return {"type": ImpliedType(default)} | value

    return BeforeValidator(read)


class KLInRewardConfig(Section):
    """KL penalty on the rewards: `token_level_rewards` = `token_level_scores` - coef * KL (PPO for RLHF, arXiv 1909.08593)."""

    coef: float = Field(default=0.001, gt=0)
    """Weight of log π - log π_ref of each token, in nats."""


COPY = "policy"
"""`rl.critic.model`: a copy of the policy."""


class CriticConfig(Section):
    """The critic of `rl.algorithm: gae` (docs/algorithms.md). Its loss is aggregated as `rl.loss_aggregation` says."""

    model: str | None = None
    """Decoder that the values are read from. None: the policy's own, with only a linear head to train. `policy`: a copy of the policy at
    the start of the phase. Otherwise a Hugging Face id or a folder. A separate model trains all its weights, or adapters if `model.lora` is
    set."""
    learning_rate: float | None = Field(default=None, gt=0, le=10)
    """Constant AdamW rate of a separate model or a head; None: 1e-5 for a model (verl), 0.1 / hidden size for a head."""


class RLConfig(Section):
    """Reinforcement learning: what is rewarded and how the weights follow. Defaults but that of `steps`: TTRL (arXiv 2504.16084, §3.1)."""

    reward: str = "majority"
    """`majority` (no labels), `verify` (each problem's `check`), the controls `label`, `random`, `format`, `env` (the environment's own return),
    `module:function`, or `model:PATH` for a Hugging Face reward model."""
    extra_rewards: dict[str, Annotated[float, Field(gt=-1e15, lt=1e15)]] = Field(default_factory=dict)
    """Further rewards by name (as in `reward`, except `model:PATH`), each with its weight; `reward` itself has weight 1. The rollout earns
    their weighted sum."""
    steps: int = Field(default=80, ge=0)
    """Steps of `prompts_per_step` prompts each. TTRL counts passes over the data instead: 80 of AIME 2024, 30 of AMC, 10 of MATH-500; n
    passes over P problems are n * (P // `prompts_per_step`) steps. On resume it may be larger (docs/operations.md)."""
    total_epochs: int | None = Field(default=None, ge=1)
    """Passes over the training tasks instead of `steps`: the run sets `steps` to n * (P // `prompts_per_step`), at least n, and this to
    None. None: `steps` applies."""
    prompts_per_step: int = Field(default=8, ge=1)
    """Tasks per step, each with a group of rollouts (verl: `data.train_batch_size`)."""
    max_staleness: int = Field(default=0, ge=0)
    """Steps by which rollouts may run ahead of the learner (docs/scale.md): the weights that sample are at most this many steps older than
    those being trained. 0: sampling and learning alternate. Above 0, `hf` samples with a copy of the model."""
    in_flight_updates: bool = True
    """Rollouts that run ahead receive new weights between two turns. False: only once they have ended, which makes a run repeatable and
    needs `max_staleness` 1."""
    algorithm: Annotated[dict[str, Any], _named("grpo")] = Field(default_factory=lambda: {"type": "grpo"})
    """How rewards become advantages: a name, or `type` (a registered name, or `module:Class`) with that algorithm's options
    (docs/algorithms.md). An algorithm may change the defaults of this section."""
    invalid_action_penalty_coef: float = Field(default=0.0, ge=0)
    """Subtracted from the reward of each step whose action was invalid (SkillRL: 0.1, with a reward of 10 for success)."""
    loss: Annotated[dict[str, Any], _named("ppo_clip")] = Field(default_factory=lambda: {"type": "ppo_clip"})
    """The policy loss: a name, or `type` (a registered name, or `module:Class`) with that loss's options (docs/algorithms.md)."""
    learning_rate: float = Field(default=5e-7, gt=0, le=10)
    """Peak rate of AdamW."""
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    """AdamW's decay rates for the running means of the gradient and its square."""
    weight_decay: float = Field(default=0.01, ge=0)
    """Decoupled weight decay of matrices only."""
    warmup_steps: Annotated[int, Field(ge=0)] | Annotated[float, Field(ge=0, lt=1)] = 0.03
    """Optimizer steps in which the rate rises from 0; below 1: their share of all."""
    lr_scheduler: Literal["constant", "cosine"] = "cosine"
    """Schedule of the rate after the warm-up; `cosine` falls to `min_lr_ratio`."""
    min_lr_ratio: float = Field(default=0.0, ge=0, le=1)
    """Share of the peak rate at the end of a cosine."""
    grad_clip: float = Field(default=1.0, gt=0)
    """Largest gradient norm; a larger one is scaled down to it."""
    ppo_epochs: int = Field(default=1, ge=1)
    """Passes over each batch of rollouts."""
    mini_batch_size: int | None = Field(default=1, ge=1)
    """Prompts per optimizer step (TTRL: 1, that is 32 samples); None, or no fewer than there are: the whole batch in one step. If it does not
    divide the batch, the last mini-batch is smaller and its mean has the same weight as the others."""
    mini_batch_by: Literal["prompts", "samples"] = "prompts"
    """Unit in which a batch is shuffled and divided into mini-batches. `prompts`: all samples of a prompt stay together (verl on one GPU).
    `samples`: each mini-batch has the same number of samples, drawn from all prompts (TRL); gradients then vary less between mini-batches."""
    micro_batch_size: int = Field(default=8, ge=1)
    """Sequences in each forward pass; gradients accumulate over them. Affects memory and speed, not results: packed, a beginning that the
    prompts of a pass share is computed once, so larger is faster where prompts are long and answers short."""
    loss_aggregation: Literal["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"] = (
        "token-mean"
    )
    """How token losses become one number (verl: `loss_agg_mode`; docs/learner.md)."""
    kl_coef: float = Field(default=0.001, ge=0)
    """Weight of the loss term for the KL divergence from the reference model, estimated by k3 (docs/algorithms.md); 0: no reference model."""
    kl_in_reward: KLInRewardConfig | None = None
    """A KL penalty on the rewards, before advantages; None: none."""
    rollout_correction: Literal["auto", "none", "token_truncate"] = "auto"
    """Importance weights against a rollout backend whose log-probs are not the learner's own (docs/algorithms.md). `token_truncate`: weight
    each token's loss by p_learner / p_backend, at most 2 (truncated importance sampling). `none`: use the backend's log-probs as the
    learner's. `auto`: `none` for `hf`, which is the learner; otherwise `token_truncate`, also for `hf` under `max_staleness`."""
    dynamic_sampling: int = Field(default=0, ge=0)
    """Most rounds of `prompts_per_step` tasks in which a step looks for as many groups whose rewards differ, and trains on these (DAPO, arXiv
    2503.14476, section 3.2; verl: 10); 0: one round, of which all groups are used."""
    overlong_penalty: float = Field(default=0.0, ge=0)
    """Penalty on the reward of a response as long as `rollout.max_new_tokens`; it begins a fifth before (DAPO, section 3.4: 1)."""
    entropy_coef: float = Field(default=0.0, ge=0)
    """Weight of the entropy bonus in the loss."""
    critic: CriticConfig | None = None
    """The critic, required by `rl.algorithm: gae`; None: none."""
    save_steps: int = Field(default=10, ge=1)
    """Steps between checkpoints."""
    eval_steps: int | None = Field(default=None, ge=1)
    """Steps between evaluations on the held-out tasks (TTRL: 2); None: only before and after."""
    stop_rule: str | dict[str, Any] | None = None
    """Stops the phase early, at a checkpoint, by a criterion without labels: `collapse`, which gives back the weights of before RL and looks
    only where `rl.reward` is `majority`, `tripwires`, `entropy` (see `skill_ttrl.train.metrics`), or `module:function` of your own; with
    options: `{type: collapse, copied: 2}`. None: run all steps."""

    @property
    def voted(self) -> bool:
        """True if the votes decide the reward."""
        return self.reward == "majority"

    @property
    def stops_collapse(self) -> bool:
        """True if the rule `collapse` is in force: it judges votes, so they must be what is rewarded."""
        return self.stop_rule is not None and self.stop[0] == "collapse" and self.voted

    @property
    def stop(self) -> tuple[str, dict[str, Any]]:
        """Name and options of `stop_rule`, which is not None."""
        return name_and_options({} if self.stop_rule is None else self.stop_rule, "collapse")

    @model_validator(mode="after")
    def _fits_together(self) -> RLConfig:
        if self.max_staleness > 1 and not self.in_flight_updates:
            raise ValueError(
                f"in_flight_updates=false needs a max_staleness of at most 1, found {self.max_staleness}. Set max_staleness to 1, or in_flight_updates to true"
            )
        return self

    @field_validator("extra_rewards")
    @classmethod
    def _weights_count(cls, value: dict[str, float]) -> dict[str, float]:
        for name, weight in value.items():
            if weight == 0:
                raise ValueError(f"the weight of {name} is 0, so it has no effect; remove it")
            if name.startswith("model:"):
                raise ValueError(f"{name}: a reward model can only be rl.reward, whose version is recorded")
        return value


# From `{type: NAME, …options}` to the thing itself, for algorithms and losses.


def naming_own(kind: str, settings: Mapping[str, Any]) -> AbstractContextManager[None]:
    """`registry.naming` for a class of the user's own; an error in a built-in one is a bug and stays as it is."""
    name = str(settings["type"])
    return naming(f"The {kind} {name!r}") if ":" in name else nullcontext()


def build_from(registry: Registry[Any], settings: Mapping[str, Any]) -> Any:
    """Build what `settings["type"]` names from the rest of the settings.

    Raises:
        ConfigError: nothing has this name, or an option is wrong; each wrong option is named.
        ExtensionError: a class of the user's own raised.
    """
    name = str(settings["type"])
    kind = registry.get(name)
    stated = {option: value for option, value in settings.items() if option != "type"}
    options = {**getattr(kind, "option_defaults", {}), **stated}
    what = f"The {registry.kind} {name!r}"
    if not hasattr(kind, "options_type"):
        raise ConfigError(f"{what} is no {registry.kind}: expected a class with `options_type`, found {kind!r:.80}.")
    try:
        chosen = kind.options_type(**options)
    except ValidationError as error:
        raise ConfigError(f"{what}: " + " ".join(_explained(error, kind.options_type))) from None
    with naming(what):
        return kind(chosen)


def _explained(error: ValidationError, options_type: type[BaseModel]) -> Iterator[str]:
    """A sentence for each wrong option, or for several that do not go together."""
    for problem in error.errors():
        option = ".".join(map(str, problem["loc"]))
        if problem["type"] == "extra_forbidden" and len(problem["loc"]) == 1:
            yield f"no option {option!r}.{did_you_mean(option, options_type.model_fields) or ' It has none.'}"
            continue
        for text in explain_problem(problem, options_type):
            yield f"{option}: {text}" if option else text

"""Inputs of a backend: the policy's source, the settings of sampling, and where it computes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from skill_ttrl.config import ModelConfig, SkillTTRLConfig

if TYPE_CHECKING:
    from skill_ttrl.llm.models.load import LoadedModel

P = ParamSpec("P")
T = TypeVar("T")
OnLearner = Callable[..., Any]
"""Called with a function and its arguments: runs the function on the learner's model, its first argument, on every rank that has a part
of it, and gives what it gives here."""
AROUND_SKILLS = 256
"""Tokens left for the templates around the skills of a prompt, and around those of an answer to a question."""


@dataclass(frozen=True)
class ModelSource:
    """The policy to sample from. The learner's copy of it is loaded at the first look at `loaded`."""

    config: ModelConfig
    load: Callable[[], LoadedModel]
    """Loads the learner's model; see `loaded`."""
    weights: Path | None = None
    """Checkpoint that the policy is taken from, in place of `config.path`."""
    trains: bool = False
    """True if the weights will change: then `update_weights` follows each step."""

    @cached_property
    def loaded(self) -> LoadedModel:
        """The learner's model and tokenizer."""
        return self.load()


@dataclass(frozen=True)
class BackendContext:
    """The argument of a backend. One of the user's own reads what it needs of it."""

    model: ModelSource
    settings: SkillTTRLConfig
    """The whole config."""
    device: str = "cpu"
    """Where the learner computes."""
    autocast: Any = None
    """torch dtype of the learner's forward pass where it differs from its weights'."""
    notice: Callable[[str], None] = field(default=lambda text: None)
    """Tells the user something, such as that a server is being waited for."""
    stopping: Callable[[], bool] = field(default=lambda: False)
    """True once the user wants to leave: then nothing that was lost is waited for."""
    over_ranks: OnLearner | None = None
    """How to reach a learner's model that spans several ranks; None: it is here."""

    @classmethod
    def of(
        cls,
        config: SkillTTRLConfig,
        load: Callable[[], LoadedModel],
        device: str = "cpu",
        *,
        weights: Path | None = None,
        trains: bool = False,
        **others: Any,
    ) -> BackendContext:
        """The context of a whole config; `others` are further fields."""
        source = ModelSource(config.model, load, weights, trains)
        return cls(source, config, device, **others)

    @property
    def loaded(self) -> LoadedModel:
        """The learner's model and tokenizer, loaded at the first look."""
        return self.model.loaded

    def on_learner(self, function: Callable[Concatenate[Any, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a module's own function on the learner's model, which may span several ranks: its whole weights are nowhere else to be had."""
        model = self.loaded.model
        if self.over_ranks is None:
            return function(model, *args, **kwargs)
        result: T = self.over_ranks(function, *args, **kwargs)
        return result


def runs_ahead(config: SkillTTRLConfig) -> bool:
    """True if rollouts run ahead of the learner."""
    return "rl" in config.phases and config.rl.max_staleness > 0


def longest_sequence(config: SkillTTRLConfig) -> int:
    """Tokens of the longest prompt and completion together, with room for the templates around skills."""
    needed = config.data.max_prompt_tokens + config.rollout.max_new_tokens
    if (skills := config.skills) is not None:
        needed += (skills.prompt_max_tokens + AROUND_SKILLS) * (skills.prompt_top_k > 0)
        needed += skills.max_retrievals * (skills.retrieval_max_tokens + AROUND_SKILLS)
    return needed

"""The protocol of a policy loss: its inputs, its outputs and the registry."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from jaxtyping import Bool, Float
from pydantic import BaseModel
from torch import Generator, Tensor

from skill_ttrl.registry import Registry


@dataclass(frozen=True, slots=True)
class LossInputs:
    """One padded micro-batch: N sequences of up to R response tokens. Further inputs of a loss become fields here."""

    log_probs: Float[Tensor, "N R"]
    """Of the policy that learns, with gradient, in nats."""
    old_log_probs: Float[Tensor, "N R"]
    """Denominators of the policy ratio: of the policy before this update."""
    advantages: Float[Tensor, "N R"]
    response_mask: Float[Tensor, "N R"]
    """1 at trained tokens, 0 elsewhere."""
    sampler_log_probs: Float[Tensor, "N R"]
    """As sampled; equal to `old_log_probs` where nothing is corrected."""
    entropy: Float[Tensor, "N R"] | None = None
    """Of the policy's distribution at each token, with gradient; None where nothing asks for it."""
    selected: Float[Tensor, "N R"] | None = None
    """1 at the tokens that the loss itself has selected (`SelectingLoss`), 0 elsewhere; None where it selects none."""


class PolicyLoss(Protocol):
    """A policy loss.

    It may say of itself, as attributes: `zero_without_advantage` (default False): loss and gradient are exactly 0 wherever the
    advantage is 0, so that such items need not be computed. `has_ratio` (default True): its gradient is weighted by the policy ratio,
    so that a ratio against the rollout backend corrects for the backend (`rl.correction`). `one_advantage` (default False): it takes one
    advantage for all tokens of a sequence.
    """

    def __call__(self, inputs: LossInputs) -> tuple[Float[Tensor, "N R"], dict[str, Tensor]]:
        """(loss of each token, info).

        The learner multiplies the importance weights in and aggregates (`losses.aggregate`). `info` holds metrics of the loss's
        own, for example `clip_fraction`: detached means over the trained tokens.
        """


@runtime_checkable
class SelectingLoss(Protocol):
    """A loss that treats some tokens of a batch unlike the others."""

    def select(
        self, log_probs_K: Float[Tensor, " K"], advantages_K: Float[Tensor, " K"], generator: Generator
    ) -> Bool[Tensor, " K"]:
        """Select tokens among all K trained ones of a step, from the log-probs before the update."""


class PolicyLossType(Protocol):
    """A class of policy losses, called with its options once a run."""

    @property
    def options_type(self) -> type[BaseModel]:
        """The options, with their defaults and checks."""

    def __call__(self, options: Any, /) -> PolicyLoss:
        """Build it from an `options_type`."""


LOSSES: Registry[PolicyLossType] = Registry("loss", key="rl.loss", confused_with="skill_ttrl.rl.algorithms:ALGORITHMS")

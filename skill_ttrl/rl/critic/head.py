"""The linear head of a critic, on hidden states less their mean, with an intercept that follows the mean return."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

RATE = 0.1
"""Learning rate times the width of the hidden states, where none is set: an optimizer step moves a value by about so much at most."""


class ValueHead(nn.Module):
    """V = w (h - centre) + intercept, in float32; w, and with it every value, begins at 0.

    Hidden states have a large common part. Without the centre w would learn the mean return through it, and values would differ by how
    far each state goes along that part, which says nothing of its return. So only w is left to gradient descent.

    Args:
        width: Of the hidden states.
        device: Where it computes.
    """

    centre: Tensor
    intercept: Tensor
    has_centre: Tensor

    def __init__(self, width: int, device: torch.device) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width, device=device))
        self.register_buffer("centre", torch.zeros(width, device=device))
        self.register_buffer("intercept", torch.zeros((), device=device))
        self.register_buffer("has_centre", torch.zeros((), dtype=torch.bool))

    def forward(self, hidden_Q_D: Float[Tensor, "Q D"]) -> Float[Tensor, " Q"]:
        """Value of each hidden state."""
        return (hidden_Q_D.float() - self.centre) @ self.weight + self.intercept

    @torch.no_grad()
    def centre_on(self, total_D: Float[Tensor, " D"], count: int) -> None:
        """Take the mean of these hidden states, given as sum and number, for the centre; once."""
        if count and not self.has_centre:
            self.centre.copy_(total_D / count)
            self.has_centre.fill_(True)

    @torch.no_grad()
    def shift(self, difference: float) -> None:
        """Add to every value; nothing where it is not finite."""
        if math.isfinite(difference):
            self.intercept += difference

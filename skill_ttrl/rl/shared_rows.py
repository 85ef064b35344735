"""Embeddings that learn as sums of shared rows, in a model whose matrix is a plain one.

The optimizer holds the rows in the matrix's place: `take_gradient` hands them the matrix's gradient before a step, `write` sets
the matrix after it. What is sampled from, saved and loaded is the matrix.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from skill_ttrl.errors import ConfigError, ModelError
from skill_ttrl.llm.models.builtin import MARK, row_membership

if TYPE_CHECKING:
    from skill_ttrl.rl.policy import Policy

TOLERANCE = 1e-4
"""Largest difference between a marked matrix and the nearest sums of rows, as a share of its largest value."""


class SharedRows:
    """The rows whose sums are an embedding matrix, found by least squares.

    A constant could be moved from all kinds to all numbers; the smallest rows are taken. Gradients do not depend on it.

    Args:
        embeddings: The matrix, (V, D); tied to the head or not.
        membership: Which rows each of its tokens is the sum of, (V, K).

    Raises:
        ModelError: the matrix is no such sum.
    """

    def __init__(self, embeddings: nn.Parameter, membership: Tensor) -> None:
        if len(membership) != len(embeddings):
            raise ModelError(
                f"The model is marked {MARK}, but its {len(embeddings)} embeddings are not those of its tokenizer's "
                f"{len(membership)} tokens. Remove {MARK} from its config.json to train them one by one."
            )
        self.embeddings = embeddings
        values = embeddings.detach().double().cpu()
        rows = torch.linalg.lstsq(membership.double(), values, driver="gelsd").solution
        error = float((membership.double() @ rows - values).abs().max() / values.abs().max().clamp(min=1e-12))
        if not error <= TOLERANCE:
            raise ModelError(
                f"The model is marked {MARK}, but its embeddings are no sums of a row a kind and a row a number (they differ by "
                f"{error:.1e} of the largest). Remove {MARK} from its config.json to train them one by one."
            )
        # Contiguous: fused AdamW takes values and gradient in the order in which they lie in memory.
        self.rows = nn.Parameter(rows.to(embeddings).contiguous())
        self._membership = membership.to(embeddings)

    @torch.no_grad()
    def take_gradient(self) -> None:
        """Move the gradient of the matrix to the rows."""
        gradient, self.embeddings.grad = self.embeddings.grad, None
        if gradient is not None:
            self.rows.grad = self._membership.T @ gradient

    @torch.no_grad()
    def write(self) -> None:
        """Set the matrix to the sums of the rows."""
        self.embeddings.copy_(self._membership @ self.rows)


def shared_rows(policy: Policy) -> SharedRows | None:
    """The shared rows of a policy's embeddings; None where each has its own, or where they do not learn.

    Raises:
        ConfigError: the weights are sharded.
        ModelError: see `SharedRows`.
    """
    embeddings = policy.model.get_input_embeddings().weight
    if not getattr(policy.model.config, MARK, False) or not embeddings.requires_grad:
        return None
    if policy.sharding is not None:
        raise ConfigError(
            f"The model is marked {MARK}: its embeddings learn as sums of rows, which are not sharded. Set runtime.parallel=ddp, or "
            "train without model.builtin.shared_embeddings."
        )
    return SharedRows(embeddings, row_membership(policy.tokenizer))

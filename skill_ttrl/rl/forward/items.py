"""Items as the forward pass needs to know them: tokens, where each item begins, and what is trained."""

from __future__ import annotations

from typing import Protocol

from jaxtyping import Bool, Int
from torch import Tensor


class Items(Protocol):
    """Flat items, as a `RolloutBatch` holds them; see there."""

    @property
    def tokens_F(self) -> Int[Tensor, " F"]: ...  # noqa: D102
    @property
    def trained_F(self) -> Bool[Tensor, " F"]: ...  # noqa: D102
    @property
    def labels_F(self) -> Int[Tensor, " F"] | None: ...  # noqa: D102
    @property
    def allowed_F(self) -> Int[Tensor, " F"] | None: ...  # noqa: D102
    @property
    def allowed_ids_P(self) -> Int[Tensor, " P"] | None: ...  # noqa: D102
    @property
    def allowed_sizes_U(self) -> Int[Tensor, " U"] | None: ...  # noqa: D102
    @property
    def starts_N(self) -> Int[Tensor, " N"]: ...  # noqa: D102
    @property
    def lengths_N(self) -> Int[Tensor, " N"]: ...  # noqa: D102
    @property
    def prompt_lengths_N(self) -> Int[Tensor, " N"]: ...  # noqa: D102
    @property
    def response_lengths_N(self) -> Int[Tensor, " N"]: ...  # noqa: D102
    @property
    def prompt_keys(self) -> list[int]: ...  # noqa: D102

"""The values of `learner_values.json`, and what the tests that look at them have in common.

Where ours differ on purpose, a test says by how much:

| of | theirs | ours | why |
|---|---|---|---|
| TRL | sequence means divide by all sequences | by those with a trained token (verl too) | a rollout that is left out has no part in a mean |
| TRL | 1e-4 is added to deviations | 1e-6 (verl too), an option | small rewards keep their size |
| TRL, verl's `rloo_vectorized`, SkyRL | a group of one has advantage 0 | its reward (verl's other forms) | nothing is lost where single rollouts are sampled |
| TRL | `normalize_then_sum`, `normalize_advantages` over rollouts | over trained tokens (verl) | one whitening for all algorithms |
| TRL | k3 is not bounded | at most 10, its exponent 20 (verl) | one token cannot blow up an update |
| verl | GAE and REINFORCE++ whiten in the estimator | `UpdateRule` does, where they say so | in one place |
| RLVR-Decomposed | the reward-to-go begins anew after a token that is not trained on | it steps over (verl 0.9) | an environment's text does not cut the outcome off |
| NeMo-RL, SkyRL | whitened GAE has a value in a hole | 0 | nothing is trained there |
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

DOCUMENT: dict[str, Any] = json.loads(Path(__file__).with_name("learner_values.json").read_text(encoding="utf-8"))
TOLERANCE = 1e-6
"""Relative and absolute. The values have nine digits; TRL computes advantages in float32."""


@cache
def cases(source: str, family: str) -> dict[str, dict[str, Any]]:
    """The cases of a library whose names are `family/NAME`, by NAME; `family` alone is ""."""
    found: dict[str, dict[str, Any]] = DOCUMENT[source]["cases"]
    split = {name: name.partition("/") for name in found}
    return {split[name][2]: case for name, case in found.items() if split[name][0] == family}


def tensor(name: str) -> Tensor:
    """An input by its name: float64, or integers."""
    values = torch.tensor(DOCUMENT["inputs"][name])
    return values.double() if values.is_floating_point() else values


def given(case: dict[str, Any]) -> dict[str, Tensor]:
    """A case's inputs, by the names of the library's arguments."""
    return {argument: tensor(name) for argument, name in case["inputs"].items()}


def assert_close(
    found: Any, expected: Any, where: str, mask: Tensor | None = None, tolerance: float = TOLERANCE
) -> None:
    """Check that our values are the library's, under the mask where there is one."""
    ours, theirs = torch.as_tensor(found).detach().double(), torch.as_tensor(expected).double()
    if mask is not None:
        ours, theirs = ours.expand_as(mask) * mask, theirs.expand_as(mask) * mask
    torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance, msg=lambda text: f"{where}: {text}")


def base(name: str, table: Any) -> str | None:
    """The longest name of a table that a case's name begins with."""
    return max((key for key in table if f"{name}/".startswith(f"{key}/")), key=len, default=None)

"""DAPO, GSPO, CISPO and SAPO: GRPO's advantages with another policy loss (`rl.losses`), aggregation or sampling."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from skill_ttrl.rl.algorithms.contract import ALGORITHMS
from skill_ttrl.rl.algorithms.group_relative.grpo import GRPO


@ALGORITHMS.register("dapo")
class DAPO(GRPO):
    """Clip-higher, token mean, dynamic sampling, soft overlong penalty, no KL term and no dual clip (arXiv 2503.14476)."""

    defaults: ClassVar[Mapping[str, Any]] = {
        "loss": {"type": "ppo_clip", "clip_ratio": 0.2, "clip_ratio_high": 0.28, "dual_clip": None},
        "loss_aggregation": "token-mean",
        "dynamic_sampling": {},
        "overlong": {},
        "kl_coef": 0.0,
    }


@ALGORITHMS.register("gspo")
class GSPOAlgorithm(GRPO):
    """Ratios of sequences (arXiv 2507.18071); clips of its section 5.1."""

    defaults: ClassVar[Mapping[str, Any]] = {
        "loss": {"type": "gspo", "clip_ratio": 3e-4, "clip_ratio_high": 4e-4},
        "loss_aggregation": "seq-mean-token-mean",
    }


@ALGORITHMS.register("cispo")
class CISPOAlgorithm(GRPO):
    """Clipped importance weights (arXiv 2506.13585)."""

    defaults: ClassVar[Mapping[str, Any]] = {"loss": {"type": "cispo"}, "loss_aggregation": "token-mean"}


@ALGORITHMS.register("sapo")
class SAPOAlgorithm(GRPO):
    """A soft gate on the ratio (arXiv 2511.20347)."""

    defaults: ClassVar[Mapping[str, Any]] = {"loss": {"type": "sapo"}, "loss_aggregation": "seq-mean-token-mean"}

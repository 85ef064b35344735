"""Policy losses: what the gradient follows. One small file for each loss.

A loss takes `(log_probs, old_log_probs, advantages, response_mask, *, clip_ratio, clip_ratio_high, dual_clip,
loss_agg_mode, denominators)` and returns `(loss, info)`; `info` holds means over the masked tokens, as tensors, so that
nothing waits for the device. To add one, write it in a file beside `ppo_clip.py`, file it with
`LOSSES.register("name")(function)` and import it here; one of your own is named `module:function` in `rl.loss`. A loss that is
exactly 0 wherever the advantage is 0 may also be listed in `ZERO_WITHOUT_ADVANTAGE`: tokens without an advantage are then
not computed.
"""

from skill_ttrl.rl.losses.aggregate import (
    AggregationMode,
    Denominators,
    aggregate,
    compute_entropy_bonus,
    masked_mean,
)
from skill_ttrl.rl.losses.ppo_clip import compute_policy_loss
from skill_ttrl.rl.losses.registry import LOSSES, ZERO_WITHOUT_ADVANTAGE, PolicyLoss

__all__ = [
    "LOSSES",
    "ZERO_WITHOUT_ADVANTAGE",
    "AggregationMode",
    "Denominators",
    "PolicyLoss",
    "aggregate",
    "compute_entropy_bonus",
    "compute_policy_loss",
    "masked_mean",
]

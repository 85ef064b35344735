"""Rates of an update: tokens a second, and the share of the GPU's peak that it reached (MFU)."""

from __future__ import annotations

from collections.abc import Mapping

import torch

PEAK_FLOPS = {
    "H200": 989e12, "H100": 989e12, "A100": 312e12, "L40S": 362e12, "RTX 4090": 165e12, "B200": 2250e12,
}  # fmt: skip
"""Dense bf16 operations a second by NVIDIA's data sheets (SXM and HGX where there are several forms). The first name that is in the GPU's
name counts."""


def peak_flops(name: str) -> float | None:
    """Peak of a GPU by its name; None if it is not in the table."""
    return next((flops for known, flops in PEAK_FLOPS.items() if known in name), None)


def update_rates(
    metrics: Mapping[str, float], seconds: float, device: torch.device, ranks: int = 1
) -> dict[str, float]:
    """Rates of an update that took so many seconds, scores included.

    Args:
        metrics: Of `Learner.update`: `all_tokens` and `operations`.
        seconds: Wall time.
        device: Where a rank computes.
        ranks: Processes that computed it, each with a device of its own.

    Returns:
        `update_tokens_per_second`, of all tokens, prompts included; and `mfu`, the operations as a share of what the devices do at best in
        bf16, only for a GPU in `PEAK_FLOPS`.
    """
    rates = {"update_tokens_per_second": metrics["all_tokens"] / max(seconds, 1e-9)}
    peak = peak_flops(torch.cuda.get_device_name(device)) if device.type == "cuda" else None
    if peak is not None:
        rates["mfu"] = metrics["operations"] / max(seconds, 1e-9) / (peak * ranks)
    return rates

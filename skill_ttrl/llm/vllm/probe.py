"""Does the sampler have the learner's weights? Both score the same few sequences, and the log-probs are compared.

An engine that reloads weights can report success and keep old ones (vLLM on a CPU: a tied output layer). Nothing but a
comparison of log-probs tells. The probe is absolute, not relative to the last update: an update that moves less than the
tolerance cannot be seen to be missing, but the differences add up, and are seen when they have.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from skill_ttrl.errors import WeightSyncError
from skill_ttrl.llm.backend import Generation

SEQUENCES, TOKENS = 8, 256
"""Most sequences of a probe, and most tokens of each."""
MAX_LOGPROB_DIFF = {"float32": 1e-3, "bfloat16": 0.1, "float16": 0.1}
"""Largest mean difference (nats a token) that is taken for rounding, by the engine's dtype. Measured on a sharp small model: 1e-5
in float32, 0.03 in bfloat16."""


@dataclass(frozen=True, slots=True)
class LogprobDiff:
    """How far two scorers of the same tokens are apart, in nats."""

    mean: float
    """Mean absolute difference of a token's log-prob."""
    largest: float
    tokens: int


class Probe:
    """Token sequences to score: sequences of the last samples; before there are any, tokens drawn from the vocabulary, of so many ids.

    No sequence has more than `longest` tokens.
    """

    def __init__(self, vocabulary: int, longest: int = TOKENS) -> None:
        generator = torch.Generator().manual_seed(0)
        self._longest = min(longest, TOKENS)
        length = min(32, self._longest)
        self.sequences: list[tuple[int, ...]] = [
            tuple(torch.randint(vocabulary, (length,), generator=generator).tolist()) for _ in range(4)
        ]

    def take(self, generations: Sequence[Generation]) -> None:
        """Remember the first sample of some prompts, spread over all of them."""
        found = [
            (*each.prompt_ids, *each.completions[0].token_ids)[: self._longest]
            for each in generations[:: max(1, len(generations) // SEQUENCES)][:SEQUENCES]
            if each.completions
        ]
        self.sequences = [ids for ids in found if len(ids) > 1] or self.sequences


@torch.no_grad()
def learner_logprobs(
    model: Any, sequences: Sequence[Sequence[int]], autocast: torch.dtype | None = None
) -> list[list[float]]:
    """Log-prob (nats, temperature 1) of each token but the first, sequence by sequence."""
    was_training = model.training
    model.eval()
    found = []
    try:
        with contextlib.ExitStack() as stack:
            if autocast is not None:
                stack.enter_context(torch.autocast(model.device.type, autocast))
            for ids in sequences:
                tokens = torch.tensor([list(ids)], device=model.device)
                logits = model(input_ids=tokens, use_cache=False).logits[0, :-1].float()
                scores = torch.log_softmax(logits, dim=-1).gather(1, tokens[0, 1:, None])
                found.append(scores.squeeze(1).tolist())
    finally:
        model.train(was_training)
    return found


def compare(ours: Sequence[Sequence[float]], theirs: Sequence[Sequence[float]]) -> LogprobDiff:
    """The gap between two lists of log-probs of the same shape.

    Raises:
        ValueError: they are not of the same shape, or empty.
    """
    pairs = [pair for mine, other in zip(ours, theirs, strict=True) for pair in zip(mine, other, strict=True)]
    if not pairs:
        raise ValueError("A probe without tokens compares nothing.")
    differences = [abs(mine - other) for mine, other in pairs]
    worst = max(float("inf") if difference != difference else difference for difference in differences)  # NaN
    return LogprobDiff(worst if worst == float("inf") else sum(differences) / len(differences), worst, len(pairs))


def check_sync(
    ours: Sequence[Sequence[float]], theirs: Sequence[Sequence[float]], most: float, update: str
) -> LogprobDiff:
    """The gap between the log-probs of learner and sampler after an update of the kind `update`.

    Raises:
        WeightSyncError: it is more than rounding: its mean is larger than `most` (`vllm.max_logprob_diff`).
    """
    gap = compare(ours, theirs)
    if gap.mean <= most:
        return gap
    raise WeightSyncError(
        f"After the update of its weights ({update}) the engine's log-probs differ from the learner's by {gap.mean:.3g} nats a "
        f"token on average, {gap.largest:.3g} at most, over {gap.tokens} tokens; at most {most:g} on average is "
        "rounding (vllm.max_logprob_diff). It does not sample from the trained policy, so the run ends here. Try another "
        "vllm.weight_sync or vllm.mode, float32 on both sides to distinguish rounding from old weights, or rollout.backend=hf."
    )

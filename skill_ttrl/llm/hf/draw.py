"""Drawing tokens: many from one distribution, where several samples have the same text so far."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from skill_ttrl.llm.backend import Request, Sampling
from skill_ttrl.types import derive_seed

BLOCK = 8_000_000
"""Numbers (distributions x vocabulary) that are summed up at once, in float64."""


def sample_seeds(requests: Sequence[Request], seed: int) -> list[list[int]]:
    """A seed for each sample of each request."""
    return [
        [derive_seed(seed, "sample", number, sample) for sample in range(request.n)]
        for number, request in enumerate(requests)
    ]


def row_uniforms(seeds: Sequence[int], length: int) -> Float[Tensor, "N T"]:
    """(N, length) numbers in [0, 1), each row drawn from its own seed: what a row samples depends on no other row."""
    generator = torch.Generator()
    rows = [torch.rand(length, generator=generator.manual_seed(seed)) for seed in seeds]
    return torch.stack(rows) if rows else torch.zeros(0, length)


def sample_token(
    logits_S_V: Float[Tensor, "S V"],
    sampling: Sampling,
    uniform_M: Float[Tensor, " M"],
    rows_M: Int[Tensor, " M"] | None = None,
    vocabulary: int | None = None,
) -> tuple[Int[Tensor, " M"], Float[Tensor, " M"]]:
    """Tokens and their log-probabilities (nats) at the sampling temperature, before any truncation.

    A token is where its cumulative distribution passes its number. Truncation (`top_k`, `top_p`) decides which
    tokens can be drawn; the log-probability stays that of the whole distribution, the one the learner can compute again.
    Temperature 0 takes the most likely token.

    Args:
        logits_S_V: Of S distributions.
        sampling: Temperature and truncation.
        uniform_M: A float32 number in [0, 1) for each token.
        rows_M: The distribution of each token; None: token i comes from distribution i.
        vocabulary: Ids from here on are not drawn: rows that pad a model's vocabulary, of which the tokenizer has no text.
    """
    logits_S_V = logits_S_V.float()
    if rows_M is None:
        rows_M = torch.arange(len(logits_S_V), device=logits_S_V.device)
    if sampling.temperature > 0:
        logits_S_V = logits_S_V / sampling.temperature
    logprobs_S_V = torch.log_softmax(logits_S_V, dim=-1)
    drawn_S_V = logprobs_S_V[:, :vocabulary]
    if sampling.temperature == 0:
        token_M = drawn_S_V.argmax(-1)[rows_M]
    else:
        token_M = _invert(truncate(drawn_S_V, sampling), uniform_M, rows_M)
    return token_M, logprobs_S_V[rows_M, token_M]


def _invert(
    logprobs_S_V: Float[Tensor, "S V"], uniform_M: Float[Tensor, " M"], rows_M: Int[Tensor, " M"]
) -> Int[Tensor, " M"]:
    """The token at which each distribution's sum passes its number."""
    count, vocabulary = logprobs_S_V.shape
    # A sum over a vocabulary of 151k loses its small terms in float32; Metal has nothing larger.
    wide = torch.float32 if logprobs_S_V.device.type == "mps" else torch.float64
    size = max(1, BLOCK // vocabulary) if wide == torch.float64 else 1
    token_M = torch.empty_like(rows_M)
    for start in range(0, count, size):
        sums_B_V = logprobs_S_V[start : start + size].exp().cumsum(-1, dtype=wide)
        # One sorted row for all: distribution i takes the numbers from i to i + 1.
        sums_B_V /= sums_B_V[:, -1:].clone()
        sums_B_V += torch.arange(len(sums_B_V), device=sums_B_V.device)[:, None]
        inside = slice(None) if size >= count else ((rows_M >= start) & (rows_M < start + size)).nonzero().squeeze(1)
        rows = rows_M[inside] - start
        places = torch.searchsorted(sums_B_V.flatten(), uniform_M[inside].to(wide) + rows, right=True)
        token_M[inside] = (places - rows * vocabulary).clamp_(max=vocabulary - 1)
    return token_M


def truncate(logprobs_N_V: Float[Tensor, "N V"], sampling: Sampling) -> Float[Tensor, "N V"]:
    """Log-probabilities with all tokens outside `top_k` and `top_p` at minus infinity; the likeliest always stays."""
    if 0 < sampling.top_k < logprobs_N_V.shape[-1]:
        floor = logprobs_N_V.topk(sampling.top_k, dim=-1).values[:, -1:]
        logprobs_N_V = logprobs_N_V.masked_fill(logprobs_N_V < floor, -torch.inf)
    if sampling.top_p < 1:
        ordered, index = logprobs_N_V.sort(descending=True, dim=-1)
        share = ordered.softmax(-1)
        outside = share.cumsum(-1) - share >= sampling.top_p
        logprobs_N_V = logprobs_N_V.masked_fill(outside.scatter(1, index, outside), -torch.inf)
    return logprobs_N_V

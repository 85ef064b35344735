"""The `hf` backend: batched sampling with a transformers model that lives in this process.

What makes it fast for groups: each prompt is read once and its cache is shared by all its samples; rows that have
finished leave the batch. It shares the learner's weights, so there is nothing to copy after an update, and it returns the
log-probabilities it sampled with, so there is no second forward pass to find them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from transformers import DynamicCache

from skill_ttrl.errors import ModelError
from skill_ttrl.llm.backend import Generation, Request, Sampling
from skill_ttrl.llm.chat import TokenizerMixin, end_ids
from skill_ttrl.types import Completion, FinishReason, derive_seed

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

RELEASE_SHARE = 0.2
"""Finished rows leave once they are this share of the batch: often enough to save work, seldom enough to copy little."""


class HFBackend(TokenizerMixin):
    """Samples from a causal transformers model, also one wrapped by peft; it is used in place, never copied.

    At most `max_batch_size` rows are decoded at once; more are taken in turns. `autocast` is the dtype of the forward pass where it
    differs from the weights' (bf16 on a GPU).
    """

    is_learner = trainable = blocking = True

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        max_batch_size: int = 1024,
        autocast: torch.dtype | None = None,
    ) -> None:
        self.model: Any = model
        self.tokenizer: Any = tokenizer
        self.max_batch_size = max_batch_size
        self.autocast = autocast
        self.policy_version = 0
        self.context: int | None = getattr(model.config, "max_position_embeddings", None)
        self.constrains = False
        self.eos_ids = end_ids(model, tokenizer)
        self.pad_id = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else min(self.eos_ids)
        self._stop_texts = cache(lambda stop: StopTexts(stop, tokenizer) if stop else None)

    def sync(self, policy_version: int) -> None:
        """Nothing to copy: the model is the learner's own."""
        self.policy_version = policy_version

    def rest(self) -> None:
        """Nothing to give back: the model is the learner's own."""

    def close(self) -> None:
        """Nothing was started."""

    async def generate(self, requests: Sequence[Request], sampling: Sampling, *, seed: int) -> list[Generation]:
        """Sample every request; see `Backend.generate`. A sample depends on the seed, its request's place and its own number alone."""
        return self.sample(requests, sampling, sample_seeds(requests, seed))

    def sample(
        self, requests: Sequence[Request], sampling: Sampling, seeds: Sequence[Sequence[int]]
    ) -> list[Generation]:
        """Sample every request, each of its samples with a seed of its own (`sample_seeds`)."""
        prompts, limits = self.prompts(requests), [request.limit(sampling) for request in requests]
        owners = [owner for owner, request in enumerate(requests) for _ in range(request.n)]
        row_seeds = [seed for of_request in seeds for seed in of_request]
        found: list[list[Completion]] = [[] for _ in requests]
        with self._inference():
            for start in range(0, len(owners), self.max_batch_size):
                part = slice(start, start + self.max_batch_size)
                rows = owners[part]
                sampled = self._sample(prompts, limits, rows, sampling, row_seeds[part])
                for owner, completion in zip(rows, sampled, strict=True):
                    found[owner].append(completion)
        return [Generation(prompt, tuple(done)) for prompt, done in zip(prompts, found, strict=True)]

    @contextlib.contextmanager
    def _inference(self) -> Iterator[None]:
        was_training = self.model.training
        self.model.eval()
        try:
            with torch.inference_mode(), contextlib.ExitStack() as stack:
                if self.autocast is not None:
                    stack.enter_context(torch.autocast(self.model.device.type, self.autocast))
                yield
        finally:
            self.model.train(was_training)

    def _sample(
        self,
        prompts: Sequence[tuple[int, ...]],
        limits: Sequence[int],
        rows: list[int],
        sampling: Sampling,
        seeds: Sequence[int],
    ) -> list[Completion]:
        """One completion for each row; `rows` names the prompt (and limit) of each, equal ones next to each other."""
        unique = sorted(set(rows))
        state = self._prefill([prompts[index] for index in unique])
        position = {index: row for row, index in enumerate(unique)}
        state.select(torch.tensor([position[index] for index in rows], device=self.model.device))

        limit_N = torch.tensor([limits[index] for index in rows], device=self.model.device)
        count, longest = len(rows), int(limit_N.max())
        stops = self._stop_texts(sampling.stop)
        uniform_N_T = row_uniforms(seeds, longest).to(self.model.device)
        tokens_N_T = torch.full((count, longest), self.pad_id, dtype=torch.long, device=self.model.device)
        logprobs_N_T = torch.zeros((count, longest), dtype=torch.float32, device=self.model.device)
        lengths_N = torch.zeros(count, dtype=torch.long, device=self.model.device)
        reasons: list[FinishReason] = ["length"] * count
        alive = torch.arange(count, device=self.model.device)
        eos = torch.tensor(sorted(self.eos_ids), device=self.model.device)
        finished = torch.zeros(count, dtype=torch.bool, device=self.model.device)

        for step in range(longest):
            token_N, logprob_N = sample_token(state.logits, sampling, uniform_N_T[alive, step])
            running = ~finished
            tokens_N_T[alive, step] = torch.where(running, token_N, self.pad_id)
            logprobs_N_T[alive, step] = torch.where(running, logprob_N, 0.0)
            lengths_N[alive] += running
            ended = torch.isin(token_N, eos) & running
            if stops is not None:
                ended |= stops.reached(tokens_N_T, alive, step, running)
            for row in alive[ended].tolist():
                reasons[row] = "stop"
            finished = finished | ended | (limit_N[alive] <= step + 1)
            done = int(finished.sum())
            if done == len(alive) or step == longest - 1:
                break
            if done >= RELEASE_SHARE * len(alive):
                keep = (~finished).nonzero().squeeze(1)
                state.select(keep)
                alive, token_N, finished = alive[keep], token_N[keep], finished[keep]
            self._advance(state, token_N)
        return self._collect(tokens_N_T, logprobs_N_T, lengths_N, reasons)

    def _prefill(self, prompts: list[tuple[int, ...]]) -> _Decoding:
        longest = max(len(prompt) for prompt in prompts)
        if self.context is not None and longest >= self.context:
            raise ModelError(f"A prompt of {longest} tokens does not fit the model's {self.context} positions.")
        if min(len(prompt) for prompt in prompts) == 0:
            raise ModelError("A prompt has no tokens; a model can only continue a text that has begun.")
        ids = torch.tensor([[self.pad_id] * (longest - len(prompt)) + list(prompt) for prompt in prompts])
        mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        ids, mask = ids.to(self.model.device), mask.to(self.model.device)
        positions = (mask.cumsum(1) - 1).clamp_(min=0)
        read = DynamicCache()
        out = self.model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=read,
            use_cache=True,
            logits_to_keep=1,
        )
        return _Decoding(read, mask, positions[:, -1:] + 1, out.logits[:, -1])

    def _advance(self, state: _Decoding, token_N: torch.Tensor) -> None:
        state.mask = torch.nn.functional.pad(state.mask, (0, 1), value=1)
        out = self.model(
            input_ids=token_N[:, None],
            attention_mask=state.mask,
            position_ids=state.positions,
            past_key_values=state.cache,
            use_cache=True,
        )
        state.positions = state.positions + 1
        state.logits = out.logits[:, -1]

    def _collect(
        self, tokens: torch.Tensor, logprobs: torch.Tensor, lengths: torch.Tensor, reasons: list[FinishReason]
    ) -> list[Completion]:
        rows = [row[:length] for row, length in zip(tokens.tolist(), lengths.tolist(), strict=True)]
        values = [row[:length] for row, length in zip(logprobs.tolist(), lengths.tolist(), strict=True)]
        texts = self.tokenizer.batch_decode(rows, skip_special_tokens=True)
        return [
            Completion(text, tuple(ids), tuple(logprob), reason, self.policy_version, mask=(True,) * len(ids))
            for text, ids, logprob, reason in zip(texts, rows, values, reasons, strict=True)
        ]


@dataclass
class _Decoding:
    """What decoding carries from token to token, row by row."""

    cache: DynamicCache
    mask: torch.Tensor
    positions: torch.Tensor
    logits: torch.Tensor

    def select(self, rows: torch.Tensor) -> None:
        """Keep these rows, in this order; a row may be taken more than once."""
        self.cache.batch_select_indices(rows)
        self.mask, self.positions, self.logits = self.mask[rows], self.positions[rows], self.logits[rows]


def sample_seeds(requests: Sequence[Request], seed: int) -> list[list[int]]:
    """A seed for each sample of each request."""
    return [
        [derive_seed(seed, "sample", number, sample) for sample in range(request.n)]
        for number, request in enumerate(requests)
    ]


def row_uniforms(seeds: Sequence[int], length: int) -> torch.Tensor:
    """(N, length) numbers in [0, 1), each row drawn from its own seed: what a row samples depends on no other row."""
    generator = torch.Generator()
    rows = [torch.rand(length, generator=generator.manual_seed(seed)) for seed in seeds]
    return torch.stack(rows) if rows else torch.zeros(0, length)


def sample_token(
    logits_N_V: torch.Tensor, sampling: Sampling, uniform_N: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """One token a row and its log-probability (nats) at the sampling temperature, before any truncation.

    The token is where the cumulative distribution passes the row's number in [0, 1). Truncation (`top_k`, `top_p`) decides which
    tokens can be drawn; the log-probability stays that of the whole distribution, the one the learner can compute again.
    Temperature 0 takes the most likely token.
    """
    logits = logits_N_V.float()
    if sampling.temperature > 0:
        logits = logits / sampling.temperature
    logprobs = torch.log_softmax(logits, dim=-1)
    if sampling.temperature == 0:
        token_N = logprobs.argmax(-1)
    else:
        # A sum over a vocabulary of 151k loses its small terms in float32; Metal has nothing larger.
        wide = torch.float32 if logits.device.type == "mps" else torch.float64
        cumulative = truncate(logprobs, sampling).exp().cumsum(-1, dtype=wide)
        place = uniform_N[:, None].to(wide) * cumulative[:, -1:]
        token_N = torch.searchsorted(cumulative, place, right=True).squeeze(1).clamp_(max=logits.shape[-1] - 1)
    return token_N, logprobs.gather(1, token_N[:, None]).squeeze(1)


def truncate(logprobs_N_V: torch.Tensor, sampling: Sampling) -> torch.Tensor:
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


class StopTexts:
    """Looks whether rows have reached one of some texts, decoding as little as it can.

    Only a token that holds a text's last character can complete it, and what it completes lies in the last few tokens.
    """

    def __init__(self, texts: tuple[str, ...], tokenizer: Any) -> None:
        self._texts = texts
        self._tokenizer = tokenizer
        self._window = max(len(text.encode()) for text in texts)  # a token is a byte at least
        self._closing: torch.Tensor | None = None
        # The bytes of another character may lie in several tokens: then all rows are read.
        if all(text[-1].isascii() for text in texts):
            last = {text[-1] for text in texts}
            pieces = tokenizer.batch_decode([[token] for token in range(len(tokenizer))])
            self._closing = torch.tensor([token for token, piece in enumerate(pieces) if last & set(piece)])

    def reached(self, tokens_N_T: torch.Tensor, alive: torch.Tensor, step: int, running: torch.Tensor) -> torch.Tensor:
        """For each living row whether it is running and has just completed one of the texts."""
        candidates = running
        if self._closing is not None:
            candidates = running & torch.isin(tokens_N_T[alive, step], self._closing.to(alive.device))
        places = candidates.nonzero().squeeze(1)
        found = torch.zeros_like(running)
        if len(places):
            tail = tokens_N_T[alive[places], max(0, step + 1 - self._window) : step + 1]
            texts = self._tokenizer.batch_decode(tail, skip_special_tokens=True)
            hits = [any(mark in text for mark in self._texts) for text in texts]
            found[places] = torch.tensor(hits, device=running.device)
        return found

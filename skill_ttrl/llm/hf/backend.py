"""The `hf` backend: batched sampling with a transformers model that lives in this process.

What makes it fast for groups: samples with the same text so far are one row of the model (see `decoding`), and those that are done leave
it. It shares the learner's weights, so there is nothing to copy after an update, and it returns the
log-probabilities it sampled with, so there is no second forward pass to find them. While it is `keeping`, keys and values outlive a call
(`decoding.KeptRows`): the next turn of an episode reads its new tokens alone.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from skill_ttrl.errors import ModelError
from skill_ttrl.llm.backend import Generation, Request, Sampling
from skill_ttrl.llm.chat import TokenizerMixin, answer_end, decode_texts, end_ids, open_thoughts
from skill_ttrl.llm.hf.choices import ChoiceTokens, Draft, Ids, sample_choices
from skill_ttrl.llm.hf.decoding import (
    Decoding,
    KeptDecoding,
    KeptRows,
    row_uniforms,
    sample_seeds,
    sample_token,
    takes_slot_masks,
)
from skill_ttrl.types import Completion, FinishReason

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


class StopTexts:
    """Looks whether rows have reached one of some texts, decoding as little as it can.

    Only a token that holds a text's last character can complete it, and what it completes lies in the last few tokens.
    """

    def __init__(self, texts: tuple[str, ...], tokenizer: Any, pieces: Sequence[str]) -> None:
        self._texts = texts
        self._tokenizer = tokenizer
        self._window = max(len(text.encode()) for text in texts)  # a token is a byte at least
        self._closing: torch.Tensor | None = None
        # The bytes of another character may lie in several tokens: then all rows are read.
        if all(text[-1].isascii() for text in texts):
            last = {text[-1] for text in texts}
            self._closing = torch.tensor([token for token, piece in enumerate(pieces) if last & set(piece)])

    def reached(self, tokens_N_T: Int[Tensor, "N T"], rows_M: Int[Tensor, " M"], step: int) -> Bool[Tensor, " M"]:
        """For each of these rows whether its token at `step` has just completed one of the texts."""
        found_M = torch.zeros(len(rows_M), dtype=torch.bool, device=rows_M.device)
        places = torch.arange(len(rows_M), device=rows_M.device)
        if self._closing is not None:
            places = torch.isin(tokens_N_T[rows_M, step], self._closing.to(rows_M.device)).nonzero().squeeze(1)
        if len(places):
            tail = tokens_N_T[rows_M[places], max(0, step + 1 - self._window) : step + 1]
            texts = self._tokenizer.batch_decode(tail, skip_special_tokens=True)
            hits = [any(mark in text for mark in self._texts) for text in texts]
            found_M[places] = torch.tensor(hits, device=rows_M.device)
        return found_M


KEPT_BYTES = 2**30
"""Most memory of keys and values that outlive a call (1 GiB); beyond it those go that were used longest ago."""
CPU_BYTES = 2**30
"""Most memory of keys and values of the rows that a CPU decodes at once (1 GiB): of a model that needs more, fewer rows fill it."""


class HFBackend(TokenizerMixin):
    """Samples from a causal transformers model, also one wrapped by peft; it is used in place, never copied.

    At most `max_batch_size` rows are decoded at once, on a CPU no more than `CPU_BYTES` hold; more are taken in turns. `autocast` is the dtype of the forward pass where it
    differs from the weights' (bf16 on a GPU).
    """

    is_learner = trainable = blocking = limits_slots = True

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
        self.max_model_len: int | None = getattr(model.config, "max_position_embeddings", None)
        self.supports_structured_outputs = True
        self.eos_ids = end_ids(model, tokenizer)
        self.pad_id = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else min(self.eos_ids)
        self._vocabulary = 1 + max(tokenizer.get_vocab().values())
        pieces = cache(lambda: tokenizer.batch_decode([[token] for token in range(len(tokenizer))]))
        self._stop_texts = lru_cache(lambda stop: StopTexts(stop, tokenizer, pieces()) if stop else None)
        self._choices = ChoiceTokens(tokenizer, answer_end(tokenizer))
        self.kept_bytes = KEPT_BYTES
        self._kept_rows: KeptRows | None = None
        self._keepers, self._counting = 0, threading.Lock()  # rollouts that run ahead enter from several threads
        self._weights: tuple[int, ...] = ()

    def update_weights(self, policy_version: int) -> None:
        """Nothing to copy: the model is the learner's own."""
        self.policy_version = policy_version
        self._kept_rows = None

    @contextlib.contextmanager
    def keeping(self) -> Iterator[None]:
        """Let keys and values outlive a call while this is entered, up to `kept_bytes`; see `Backend`.

        They go where weights change. A model with sliding windows, or another attention than `sdpa`, has none that outlive a call.
        """
        with self._counting:
            self._keepers += 1
        try:
            yield
        finally:
            with self._counting:
                self._keepers -= 1
                if not self._keepers:
                    self._kept_rows = None

    def sleep(self) -> None:
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
        row_seeds = [seed for of_request in seeds for seed in of_request]
        owners = [owner for owner, request in enumerate(requests) for _ in range(request.n)]
        found: list[list[Completion]] = [[] for _ in requests]
        with self._inference():
            limited = [bool(request.choice) for request in requests]
            for way in dict.fromkeys(limited):
                places = [place for place, owner in enumerate(owners) if limited[owner] == way]
                most = self._most_rows(max(map(len, prompts)) + max(limits))
                for start in range(0, len(places), most):
                    part = places[start : start + most]
                    rows, part_seeds = [owners[place] for place in part], [row_seeds[place] for place in part]
                    if way:
                        sampled = self._sample_choices(prompts, limits, requests, rows, part_seeds, sampling)
                    else:
                        sampled = self._sample(prompts, limits, rows, part_seeds, sampling)
                    for owner, completion in zip(rows, sampled, strict=True):
                        found[owner].append(completion)
            if self._kept_rows is not None:
                self._kept_rows.shrink(self.kept_bytes)
        made = [Generation(prompt, tuple(done)) for prompt, done in zip(prompts, found, strict=True)]
        return open_thoughts(self.tokenizer, requests, made)

    def _most_rows(self, tokens: int) -> int:
        """Rows of so many tokens that are decoded at once."""
        if self.model.device.type != "cpu":
            return self.max_batch_size
        text = self.model.config.get_text_config()
        heads = text.num_attention_heads
        width = getattr(text, "head_dim", None) or text.hidden_size // heads
        numbers = 2 * text.num_hidden_layers * (getattr(text, "num_key_value_heads", None) or heads) * width * tokens
        return max(1, min(self.max_batch_size, CPU_BYTES // int(numbers * self.model.dtype.itemsize)))

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
        self, prompts: Sequence[Ids], limits: Sequence[int], rows: list[int], seeds: list[int], sampling: Sampling
    ) -> list[Completion]:
        """One completion of any words for each row, which is the number of its prompt; equal ones stand next to each other."""
        device = self.model.device
        unique = sorted(set(rows))
        position = {index: slot for slot, index in enumerate(unique)}
        limit_N = torch.tensor([limits[index] for index in rows], device=device)
        count, longest = len(rows), max(limits[index] for index in unique)
        self._check_prompts([prompts[index] for index in unique])
        decoding = self._decoding([prompts[index] for index in unique], count, longest)
        slots_M = torch.tensor([decoding.slots[position[index]] for index in rows], device=device)

        stops, eos = self._stop_texts(sampling.stop), torch.tensor(sorted(self.eos_ids), device=device)
        tokens_N_T = torch.full((count, longest), self.pad_id, dtype=torch.long, device=device)
        logprobs_N_T = torch.zeros((count, longest), dtype=torch.float32, device=device)
        lengths_N = torch.zeros(count, dtype=torch.long, device=device)
        stopped_N = torch.zeros(count, dtype=torch.bool, device=device)
        uniform_N_T = row_uniforms(seeds, longest).to(device)
        running_M = torch.arange(count, device=device)
        for step in range(longest):
            token_M, logprob_M = sample_token(
                decoding.logits_S_V, sampling, uniform_N_T[running_M, step], slots_M, self._vocabulary
            )
            tokens_N_T[running_M, step], logprobs_N_T[running_M, step] = token_M, logprob_M
            lengths_N[running_M] = step + 1
            ended_M = torch.isin(token_M, eos)
            if stops is not None:
                ended_M |= stops.reached(tokens_N_T, running_M, step)
            stopped_N[running_M] = ended_M
            goes_on = (~ended_M & (limit_N[running_M] > step + 1)).nonzero().squeeze(1)
            if len(goes_on) == 0:
                break
            running_M, token_M, slots_M = running_M[goes_on], token_M[goes_on], slots_M[goes_on]
            slots_M = decoding.advance(slots_M, token_M)
        ids = [row[:length] for row, length in zip(tokens_N_T.tolist(), lengths_N.tolist(), strict=True)]
        logprobs = [row[:length] for row, length in zip(logprobs_N_T.tolist(), lengths_N.tolist(), strict=True)]
        return self._collect(ids, logprobs, stopped_N.tolist())

    def _sample_choices(
        self,
        prompts: Sequence[Ids],
        limits: Sequence[int],
        requests: Sequence[Request],
        rows: list[int],
        seeds: list[int],
        sampling: Sampling,
    ) -> list[Completion]:
        """One completion for each row that is one of its request's choices, whatever `Sampling.stop` says."""
        choices = [(request.choice, request.slot_words) for request in requests]
        longest, end_id = max(limits[index] for index in rows), self._choices.end_id
        drafts = [Draft(self._choices.start(*choices[index]), limits[index], end_id) for index in rows]
        self._check_prompts([prompts[index] for index in set(rows)])
        sample_choices(
            drafts,
            rows,
            prompts,
            lambda read: self._decoding(read, len(rows), longest, several=True),
            sampling,
            row_uniforms(seeds, longest),
            several=takes_slot_masks(self.model),
        )
        ids, logprobs = [draft.ids for draft in drafts], [draft.logprobs for draft in drafts]
        found = self._collect(ids, logprobs, [draft.stopped for draft in drafts])
        texts = [self._choices.text(*choices[index], done.token_ids) for index, done in zip(rows, found, strict=True)]
        return [
            replace(done, allowed=tuple(draft.allowed), text=done.text if text is None else text)
            for done, draft, text in zip(found, drafts, texts, strict=True)
        ]

    def _check_prompts(self, prompts: Sequence[tuple[int, ...]]) -> None:
        length = max(len(prompt) for prompt in prompts)
        if self.max_model_len is not None and length >= self.max_model_len:
            raise ModelError(f"A prompt of {length} tokens does not fit the model's {self.max_model_len} positions.")
        if min(len(prompt) for prompt in prompts) == 0:
            raise ModelError("A prompt is empty: a model needs at least one token to continue.")

    def _decoding(
        self, prompts: list[tuple[int, ...]], rows: int, longest: int, *, several: bool = False
    ) -> Decoding | KeptDecoding:
        """The prompts, read, on kept rows where there are some; `several`: where it can be, one that reads several tokens at once."""
        if not ((self._keepers or several) and takes_slot_masks(self.model)):
            return Decoding(self.model, prompts, self.pad_id, most_rows=rows, most_new_tokens=longest)
        kept_rows = KeptRows()
        if self._keepers:
            weights = tuple(part._version for part in self.model.parameters())  # each change in place raises it
            if self._kept_rows is None or weights != self._weights:
                self._kept_rows, self._weights = kept_rows, weights
            kept_rows = self._kept_rows
        return KeptDecoding(self.model, prompts, self.pad_id, kept_rows, most_rows=rows)

    def _collect(
        self, tokens: list[list[int]], logprobs: list[list[float]], stopped: Sequence[bool]
    ) -> list[Completion]:
        reasons: list[FinishReason] = ["stop" if stop else "length" for stop in stopped]
        rows = [tuple(row) for row in tokens]
        different = list(set(rows))  # samples of a group are often the same
        texts = dict(zip(different, decode_texts(self.tokenizer, different), strict=True))
        return [
            Completion(texts[ids], ids, tuple(logprob), reason, self.policy_version, completion_mask=(True,) * len(ids))
            for ids, logprob, reason in zip(rows, logprobs, reasons, strict=True)
        ]


class HFCopyBackend(HFBackend):
    """Samples from a copy of the learner's model, which has the learner's weights as of the last `update_weights`."""

    is_learner = False

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, **options: Any) -> None:
        # The copy's parameters need grads as the learner's do: torch takes other kernels where they do not, which round otherwise.
        super().__init__(deepcopy(model), tokenizer, **options)
        self._learner: Any = model

    @torch.no_grad()
    def update_weights(self, policy_version: int) -> None:
        """Copy the weights that learn. Nothing may be sampled meanwhile (`HandOver`)."""
        for own, learned in zip(self.model.parameters(), self._learner.parameters(), strict=True):
            if learned.requires_grad:
                own.copy_(learned)
        super().update_weights(policy_version)

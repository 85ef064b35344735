"""Generation that pauses to be told something: at a mark the model wrote, text is inserted and the model goes on.

The loop knows nothing of skills: what is inserted is decided by a callable, so a single-turn problem and a turn of a long
episode go through the same lines. What was inserted is in the completion's tokens, as the model saw it, with mask False:
it is never trained on.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from skill_ttrl.llm.base import Backend, Generation, Request, Sampling
from skill_ttrl.types import Completion, derive_seed


@dataclass(frozen=True, slots=True)
class Pause:
    """One sample that waits for an answer."""

    request: int
    """Which request it belongs to, by position."""
    sample: int
    """Which of the request's samples it is."""
    written: str
    """All that the model wrote in this completion so far, what was inserted left out; it ends at the mark."""


Answer = Callable[[Sequence[Pause]], Sequence[str | None]]
"""What to insert for each pause, all of one round at once; None inserts nothing, and the model goes on."""


@dataclass
class _Draft:
    """A completion while it grows."""

    request: int
    sample: int
    prompt: tuple[int, ...]
    text: str = ""
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    mask: list[bool] = field(default_factory=list)
    inserted: list[tuple[int, int]] = field(default_factory=list)
    last: Completion | None = None
    unscored: bool = False
    """Whether a piece came without log-probs: those of the others say nothing of the whole."""

    @property
    def sampled(self) -> int:
        return sum(self.mask) if self.mask else len(self.logprobs)

    def add(self, piece: Completion) -> None:
        self.text += piece.text
        self.ids += piece.token_ids
        self.logprobs += piece.logprobs
        self.mask += piece.mask or [True] * len(piece.token_ids)
        self.unscored |= bool(piece.text) and not piece.logprobs
        self.last = piece

    def insert(self, text: str, ids: Sequence[int] | None) -> None:
        self.inserted.append((len(self.text), len(self.text) + len(text)))
        self.text += text
        ids = ids or ()  # a backend that knows texts alone has none
        self.ids += ids
        self.logprobs += [0.0] * len(ids)
        self.mask += [False] * len(ids)

    def completion(self) -> Completion:
        assert self.last is not None
        return replace(
            self.last,
            text=self.text,
            token_ids=tuple(self.ids),
            logprobs=() if self.unscored and not self.ids else tuple(self.logprobs),
            mask=tuple(self.mask),
            inserted=tuple(self.inserted),
        )


async def generate_with_pauses(
    backend: Backend,
    requests: Sequence[Request],
    sampling: Sampling,
    *,
    seed: int,
    mark: str,
    answer: Answer,
    limit: int,
) -> list[Generation]:
    """Like `backend.generate`, but each completion may pause at `mark` up to `limit` times and be answered.

    All samples that pause are answered together and go on together; those that stand at the same tokens are one request.
    After the limit the mark is ordinary text. `max_new_tokens` bounds the sampled tokens; inserted ones do not count.

    Args:
        backend: samples.
        requests: as for `Backend.generate`.
        sampling: as for `Backend.generate`.
        seed: of the first round; each later round draws from it.
        mark: text at which a completion pauses.
        answer: says what to insert.
        limit: most pauses of one completion; 0 is plain generation.
    """
    if limit == 0:
        return await backend.generate(requests, sampling, seed=seed)
    pausing = replace(sampling, stop=(*sampling.stop, mark))
    first = await backend.generate(requests, pausing, seed=seed)
    drafts: list[list[_Draft]] = []
    for place, generation in enumerate(first):
        drafts.append([_Draft(place, sample, generation.prompt_ids) for sample in range(len(generation.completions))])
        for draft, piece in zip(drafts[-1], generation.completions, strict=True):
            draft.add(piece)
    living = [draft for row in drafts for draft in row]
    for asked in range(1, limit + 1):
        living = [draft for draft in living if _paused(draft, mark) and _room(draft, requests, sampling) > 0]
        if not living:
            break
        texts = answer([Pause(d.request, d.sample, _written(d)) for d in living])
        for draft, text in zip(living, texts, strict=True):
            if text is not None:
                draft.insert(text, backend.encode_text(text))
        waiting: dict[Request, list[_Draft]] = defaultdict(list)
        for draft in living:
            waiting[_going_on(draft, requests, sampling)].append(draft)
        going_on = [replace(request, n=len(row)) for request, row in waiting.items()]
        how = pausing if asked < limit else sampling
        found = await backend.generate(going_on, how, seed=derive_seed(seed, "pause", asked))
        for row, generation in zip(waiting.values(), found, strict=True):
            for draft, piece in zip(row, generation.completions, strict=True):
                draft.add(piece)
    return [
        Generation(generation.prompt_ids, tuple(draft.completion() for draft in row))
        for generation, row in zip(first, drafts, strict=True)
    ]


def _paused(draft: _Draft, mark: str) -> bool:
    return draft.last is not None and draft.last.finish_reason == "stop" and mark in draft.last.text


def _room(draft: _Draft, requests: Sequence[Request], sampling: Sampling) -> int:
    own = requests[draft.request].max_new_tokens or sampling.max_new_tokens
    return min(own, sampling.max_new_tokens) - draft.sampled


def _going_on(draft: _Draft, requests: Sequence[Request], sampling: Sampling) -> Request:
    """The request that continues a draft: by its tokens, and for a backend that knows none by what was said so far."""
    own, ids = requests[draft.request], (*draft.prompt, *draft.ids)
    room = _room(draft, requests, sampling)
    return replace(own, token_ids=ids or None, begun=draft.text, max_new_tokens=room)


def _written(draft: _Draft) -> str:
    return Completion(draft.text, (), (), "stop", inserted=tuple(draft.inserted)).written

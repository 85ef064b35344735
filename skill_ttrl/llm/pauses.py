"""Generation that pauses at stop markers: text is inserted there, and the model continues.

A callable decides what is inserted, so a single-turn problem and a turn of a long episode go through the same lines. Inserted
text is in the completion's tokens, as the model saw it, with mask False: it is never trained on.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import count

from skill_ttrl.llm.backend import Backend, Generation, Request, Sampling
from skill_ttrl.types import Completion, derive_seed


@dataclass(frozen=True, slots=True)
class InsertionPoint:
    """One sample that waits for an answer."""

    request: int
    """Which request it belongs to, by position."""
    sample: int
    """Which of the request's samples it is."""
    written: str
    """All that the model wrote in this completion so far, without insertions; ends with the stop marker."""
    stop_marker: str
    """The stop marker that it paused at."""


Answer = Callable[[Sequence[InsertionPoint]], Sequence[str | None]]
"""Returns the text to insert at each point of one round; empty for a question without an answer. None: the marker asked
nothing, and the pause does not count."""
MAX_IDLE = 8
"""Most pauses of a completion at markers that ask nothing; after them its markers are ordinary text. Each such pause costs a
request."""


@dataclass
class _Draft:
    """A completion while it grows."""

    index: int
    sample: int
    request: Request
    prompt: tuple[int, ...]
    longest: int
    """Most tokens to sample."""
    text: str = ""
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    mask: list[bool] = field(default_factory=list)
    inserted: list[tuple[int, int]] = field(default_factory=list)
    last: Completion | None = None
    asked: int = 0
    idle: int = 0
    """Pauses so far, by whether a question was asked."""
    unscored: bool = False
    """True if a piece came without log-probs; a completion without token ids then has none."""

    def add(self, piece: Completion) -> None:
        self.text += piece.text
        self.ids += piece.token_ids
        self.logprobs += piece.logprobs
        self.mask += piece.completion_mask or [True] * len(piece.token_ids)
        self.unscored |= bool(piece.text) and not piece.logprobs
        self.last = piece

    def insert(self, text: str | None, backend: Backend) -> None:
        self.asked += text is not None
        self.idle += text is None
        if text:
            self.inserted.append((len(self.text), len(self.text) + len(text)))
            self.text += text
            ids = backend.encode_text(text) or ()  # a backend that knows texts alone has none
            self.ids += ids
            self.logprobs += [0.0] * len(ids)
            self.mask += [False] * len(ids)

    @property
    def room(self) -> int:
        return self.longest - (sum(self.mask) if self.mask else len(self.logprobs))

    def may_pause(self, limit: int) -> bool:
        # A choice is one of them as a whole, whatever it spells.
        return not self.request.choice and self.asked < limit and self.idle < MAX_IDLE

    def paused(self, stop_markers: Sequence[str]) -> bool:
        last = self.last
        return last is not None and last.finish_reason == "stop" and any(each in last.text for each in stop_markers)

    def point(self, stop_markers: Sequence[str]) -> InsertionPoint:
        assert self.last is not None
        written = Completion(self.text, (), (), "stop", inserted_spans=tuple(self.inserted)).model_text
        return InsertionPoint(self.index, self.sample, written, max(stop_markers, key=self.last.text.rfind))

    def continuation(self) -> Request:
        """The request that continues it: by its tokens, and for a backend that knows none by its text so far."""
        ids = (*self.prompt, *self.ids)
        return replace(self.request, token_ids=ids or None, assistant_prefix=self.text, max_new_tokens=self.room)

    def completion(self) -> Completion:
        assert self.last is not None
        return replace(
            self.last,
            text=self.text,
            token_ids=tuple(self.ids),
            logprobs=() if self.unscored and not self.ids else tuple(self.logprobs),
            completion_mask=tuple(self.mask),
            inserted_spans=tuple(self.inserted),
        )


async def generate_with_insertions(
    backend: Backend,
    requests: Sequence[Request],
    sampling: Sampling,
    *,
    seed: int,
    stop_markers: tuple[str, ...],
    answer: Answer,
    limit: int,
) -> list[Generation]:
    """Like `backend.generate`, but each completion may ask at one of `stop_markers` up to `limit` times and be answered.

    All samples that pause are answered together and continue together; those that stand at the same tokens are one request.
    After the limit, or after `MAX_IDLE` pauses that asked nothing, markers are ordinary text. `max_new_tokens` bounds the
    sampled tokens; inserted ones do not count. `seed` is that of the first round, from which each later one draws. A
    `limit` of 0 is plain generation.
    """
    if limit == 0:
        return await backend.generate(requests, sampling, seed=seed)
    pausing = replace(sampling, stop=(*sampling.stop, *stop_markers))
    first = await backend.generate(requests, pausing, seed=seed)
    rows: list[list[_Draft]] = []
    for index, (request, generation) in enumerate(zip(requests, first, strict=True)):
        rows.append([])
        for sample, piece in enumerate(generation.completions):
            rows[-1].append(_Draft(index, sample, request, generation.prompt_ids, request.limit(sampling)))
            rows[-1][-1].add(piece)
    living = [draft for row in rows for draft in row]
    for number in count(1):
        living = [each for each in living if each.may_pause(limit) and each.paused(stop_markers) and each.room > 0]
        if not living:
            break
        texts = answer([draft.point(stop_markers) for draft in living])
        for draft, text in zip(living, texts, strict=True):
            draft.insert(text, backend)
        own = derive_seed(seed, "pause", number)
        await _continue(backend, [draft for draft in living if draft.may_pause(limit)], pausing, own)
        await _continue(backend, [draft for draft in living if not draft.may_pause(limit)], sampling, own)
    return [
        Generation(generation.prompt_ids, tuple(draft.completion() for draft in row))
        for generation, row in zip(first, rows, strict=True)
    ]


async def _continue(backend: Backend, drafts: Sequence[_Draft], sampling: Sampling, seed: int) -> None:
    """Sample the next piece of each draft."""
    waiting: dict[Request, list[_Draft]] = defaultdict(list)
    for draft in drafts:
        waiting[draft.continuation()].append(draft)
    if not waiting:
        return
    requests = [replace(request, n=len(same)) for request, same in waiting.items()]
    found = await backend.generate(requests, sampling, seed=seed)
    for same, generation in zip(waiting.values(), found, strict=True):
        for draft, piece in zip(same, generation.completions, strict=True):
            draft.add(piece)

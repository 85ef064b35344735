"""Generation that pauses to be told something: at a mark the model wrote, text is inserted and the model goes on.

The loop knows nothing of skills: what is inserted is decided by a callable, so a single-turn problem and a turn of a long
episode go through the same lines. What was inserted is in the completion's tokens, as the model saw it, with mask False:
it is never trained on.
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
    """All that the model wrote in this completion so far, what was inserted left out; it ends at the mark."""
    mark: str
    """The mark it stands at."""


Answer = Callable[[Sequence[InsertionPoint]], Sequence[str | None]]
"""Returns the text to insert for each pause of one round; empty for a question without an answer. None: the mark asked
nothing, and the pause does not count."""
MAX_IDLE = 8
"""So often a completion may pause at a mark that asks nothing; after that its marks are ordinary text. Each such pause costs a
request."""


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
    asked: int = 0
    idle: int = 0
    """Pauses so far, by whether a question was asked."""
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


async def generate_with_insertions(
    backend: Backend,
    requests: Sequence[Request],
    sampling: Sampling,
    *,
    seed: int,
    marks: tuple[str, ...],
    answer: Answer,
    limit: int,
) -> list[Generation]:
    """Like `backend.generate`, but each completion may ask at one of `marks` up to `limit` times and be answered.

    All samples that pause are answered together and go on together; those that stand at the same tokens are one request.
    After the limit, or after `MAX_IDLE` pauses that asked nothing, marks are ordinary text. `max_new_tokens` bounds the
    sampled tokens; inserted ones do not count.

    Args:
        backend: samples.
        requests: as for `Backend.generate`.
        sampling: as for `Backend.generate`.
        seed: of the first round; each later round draws from it.
        marks: texts at which a completion pauses.
        answer: says what to insert.
        limit: most questions in one completion; 0 is plain generation.
    """
    if limit == 0:
        return await backend.generate(requests, sampling, seed=seed)
    pausing = replace(sampling, stop=(*sampling.stop, *marks))
    first = await backend.generate(requests, pausing, seed=seed)
    drafts: list[list[_Draft]] = []
    for place, generation in enumerate(first):
        drafts.append([_Draft(place, sample, generation.prompt_ids) for sample in range(len(generation.completions))])
        for draft, piece in zip(drafts[-1], generation.completions, strict=True):
            draft.add(piece)
    living = [draft for row in drafts for draft in row]
    for number in count(1):
        living = [
            draft
            for draft in living
            if _may_pause(draft, limit) and _paused(draft, marks) and _room(draft, requests, sampling) > 0
        ]
        if not living:
            break
        texts = answer([InsertionPoint(d.request, d.sample, _written(d), _mark(d, marks)) for d in living])
        for draft, text in zip(living, texts, strict=True):
            draft.asked += text is not None
            draft.idle += text is None
            if text:
                draft.insert(text, backend.encode_text(text))
        for how, row in (
            (pausing, [draft for draft in living if _may_pause(draft, limit)]),
            (sampling, [draft for draft in living if not _may_pause(draft, limit)]),
        ):
            await _go_on(backend, row, requests, sampling, how, derive_seed(seed, "pause", number))
    return [
        Generation(generation.prompt_ids, tuple(draft.completion() for draft in row))
        for generation, row in zip(first, drafts, strict=True)
    ]


async def _go_on(
    backend: Backend, row: Sequence[_Draft], requests: Sequence[Request], sampling: Sampling, how: Sampling, seed: int
) -> None:
    """Sample the next piece of each draft."""
    waiting: dict[Request, list[_Draft]] = defaultdict(list)
    for draft in row:
        waiting[_going_on(draft, requests, sampling)].append(draft)
    if not waiting:
        return
    found = await backend.generate([replace(request, n=len(same)) for request, same in waiting.items()], how, seed=seed)
    for same, generation in zip(waiting.values(), found, strict=True):
        for draft, piece in zip(same, generation.completions, strict=True):
            draft.add(piece)


def _may_pause(draft: _Draft, limit: int) -> bool:
    return draft.asked < limit and draft.idle < MAX_IDLE


def _paused(draft: _Draft, marks: tuple[str, ...]) -> bool:
    last = draft.last
    return last is not None and last.finish_reason == "stop" and any(mark in last.text for mark in marks)


def _mark(draft: _Draft, marks: tuple[str, ...]) -> str:
    """The mark that stands last in the newest piece."""
    assert draft.last is not None
    return max(marks, key=draft.last.text.rfind)


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

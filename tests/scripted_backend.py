"""A backend that answers from a list; nothing in it samples, and it says so in the version of every completion."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from skill_ttrl.llm.backend import Generation, Request, Sampling
from skill_ttrl.types import Completion, Message

SCRIPTED_VERSION = -1


class ScriptedBackend:
    """Answers with `texts` in turn, byte by byte as tokens, each with log-probability 0."""

    is_learner = trainable = blocking = False

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts = itertools.cycle(texts)
        self.policy_version = SCRIPTED_VERSION
        self.max_model_len: int | None = None
        self.supports_structured_outputs = False

    def encode(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """UTF-8 bytes of the messages."""
        return tuple("\n".join(message.content for message in messages).encode())

    def encode_next(self, message: Message, after: Completion | None = None) -> tuple[int, ...]:
        """UTF-8 bytes of a line of its own; an answer ends with a zero."""
        return (*(() if after is None else (0,)), *f"\n{message.content}\n".encode())

    def encode_text(self, text: str) -> tuple[int, ...]:
        """UTF-8 bytes."""
        return tuple(text.encode())

    def count(self, messages: Sequence[Message]) -> int:
        """UTF-8 bytes of the messages."""
        return len(self.encode(messages))

    def count_text(self, text: str) -> int:
        """UTF-8 bytes."""
        return len(self.encode_text(text))

    def update_weights(self, policy_version: int) -> None:
        """A script has no weights."""

    def sleep(self) -> None:
        """A script has no memory to give back."""

    def close(self) -> None:
        """Nothing was started."""

    async def generate(self, requests: Sequence[Request], sampling: Sampling, *, seed: int) -> list[Generation]:
        """The next texts of the script, whatever is asked."""
        return [
            Generation(
                request.token_ids or self.encode(request.messages),
                tuple(self._completion(next(self._texts)) for _ in range(request.n)),
            )
            for request in requests
        ]

    def _completion(self, text: str) -> Completion:
        ids = tuple(text.encode())
        return Completion(text, ids, (0.0,) * len(ids), "stop", self.policy_version)


class RecordingBackend(ScriptedBackend):
    """The script, and what was asked of it."""

    def __init__(self, texts: Sequence[str]) -> None:
        super().__init__(texts)
        self.asked: list[list[Request]] = []
        self.prompts: list[str] = []
        """One a request, as text."""

    async def generate(self, requests: Sequence[Request], sampling: Sampling, *, seed: int) -> list[Generation]:
        self.asked.append(list(requests))
        self.prompts += [bytes(request.token_ids or ()).decode(errors="replace") for request in requests]
        return await super().generate(requests, sampling, seed=seed)

"""Words that a policy's tokenizer does not know: such a policy reads `<unk>`, whatever stands there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from skill_ttrl.llm.backend import Sampling
from skill_ttrl.llm.chat import count_unknown
from skill_ttrl.types import Group, Task

Generate = Callable[[Sequence[Task], int, Sampling, int], list[Group]]


def unknown_note(tokenizer: Any, sequences: Iterable[Sequence[int]]) -> str:
    """The share of tokens that are `<unk>`, in words; empty where there are none."""
    return _note(tokenizer, *count_unknown(tokenizer, sequences))


class UnknownWords:
    """Generates rollouts, and knows how much of what they read was unknown to the policy.

    Args:
        generate: generates them.
        tokenizer: the policy's; None: it is not here, and nothing is known.
    """

    def __init__(self, generate: Generate, tokenizer: Any) -> None:
        self._generate, self._tokenizer = generate, tokenizer
        self._unknown = self._read = 0

    def __call__(self, tasks: Sequence[Task], n: int, sampling: Sampling, seed: int) -> list[Group]:
        """The rollouts of `generate`."""
        groups = self._generate(tasks, n, sampling, seed)
        if self._tokenizer is not None:
            last = (each.steps[-1].prompt_ids for group in groups for each in group.trajectories if each.steps)
            unknown, read = count_unknown(self._tokenizer, last)
            self._unknown, self._read = self._unknown + unknown, self._read + read
        return groups

    @property
    def note(self) -> str:
        """Says what they read in the last prompts of the episodes; empty where all of it was known."""
        return f"Of what the policy read, {_note(self._tokenizer, self._unknown, self._read)}" if self._unknown else ""


def _note(tokenizer: Any, unknown: int, read: int) -> str:
    if not unknown:
        return ""
    share = f"{unknown:,} of {read:,} tokens ({unknown / read:.2%})"
    return f"{share} are {tokenizer.unk_token}: words that the policy's tokenizer does not know."

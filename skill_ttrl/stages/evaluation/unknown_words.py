"""Words that a policy's tokenizer does not know: such a policy reads `<unk>`, whatever stands there."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from contextlib import closing
from typing import Any

from skill_ttrl.llm.chat import count_unknown
from skill_ttrl.types import Group


def unknown_note(tokenizer: Any, sequences: Iterable[Sequence[int]]) -> str:
    """The share of tokens that are `<unk>`, in words; empty where there are none."""
    return _note(tokenizer, *count_unknown(tokenizer, sequences))


class UnknownWords:
    """Knows how much of what rollouts read was unknown to their policy.

    Args:
        tokenizer: the policy's; None: it is not here, and nothing is known.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._unknown = self._read = 0

    def watch(self, sampled: Generator[list[Group]]) -> Generator[list[Group]]:
        """Pass on the rollouts of each chunk, counted."""
        with closing(sampled):
            for groups in sampled:
                self._count(groups)
                yield groups

    def _count(self, groups: Sequence[Group]) -> None:
        if self._tokenizer is not None:
            last = (each.steps[-1].prompt_ids for group in groups for each in group.trajectories if each.steps)
            unknown, read = count_unknown(self._tokenizer, last)
            self._unknown, self._read = self._unknown + unknown, self._read + read

    @property
    def note(self) -> str:
        """Says what they read in the last prompts of the episodes; empty where all of it was known."""
        return f"Of what the policy read, {_note(self._tokenizer, self._unknown, self._read)}" if self._unknown else ""


def _note(tokenizer: Any, unknown: int, read: int) -> str:
    if not unknown:
        return ""
    share = f"{unknown:,} of {read:,} tokens ({unknown / read:.2%})"
    return f"{share} are {tokenizer.unk_token}: words that the policy's tokenizer does not know."

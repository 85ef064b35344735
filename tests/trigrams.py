"""A similarity by spelling, for tests of texts that are alike without saying the same."""

from __future__ import annotations

from collections.abc import Sequence

from skill_ttrl.skills.similarity import normalized_tokens


def ngram_similarity(a: Sequence[str], b: Sequence[str]) -> list[list[float]]:
    """Jaccard index of the sets of character trigrams, in [0, 1]."""

    def trigrams(text: str) -> frozenset[str]:
        plain = f" {' '.join(normalized_tokens(text))} "
        return frozenset(plain[start : start + 3] for start in range(max(1, len(plain) - 2)))

    left, right = list(map(trigrams, a)), list(map(trigrams, b))
    return [[len(x & y) / len(x | y) for y in right] for x in left]

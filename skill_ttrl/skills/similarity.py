"""When two skill texts say the same, and what stands for all of them.

Two texts are the same when their words are the same in the same order, apart from case, punctuation and words such as
"the" or "simply". That is an equivalence, so the outcome depends on no order, and it never takes one rule for another.
Similarity of characters would: "The rule for the operator fab is to add the two numbers and then plus 9" and the same
sentence about "fob" share 91 % of their character trigrams. So similarities (`embedding_similarity`) are used
only where they are handed in, and not across texts that differ in a number, a sign, a single letter or a word such as
"not" or "minus". Made-up names that are spelled alike still fool them.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from skill_ttrl.skills.types import grouped

Similarity = Callable[[Sequence[str], Sequence[str]], Sequence[Sequence[float]]]
"""`similarity(a, b)[i][j]` says how alike `a[i]` and `b[j]` are; 1 is the same. An array of shape (len(a), len(b)) will do."""

MAX_COMPARED = 200
"""Most texts that are compared by similarity, the most frequent first: the work grows with the square."""
VECTORS_KEPT = 20_000
"""Most vectors that `embedding_similarity` keeps."""

_TOKEN = re.compile(r"\d+(?:[.,]\d+)*|[^\W\d_]+|[^\w\s]|_")
_SENTENCE_END = re.compile(r"(?<=[.!?;])\s+|\n+")
_PUNCTUATION = frozenset(".,;:!?\"'`“”‘’()…*#")
_FILLERS = frozenset("the a an just simply please then also really very".split())
_DECISIVE = frozenset(
    "no not never none nor without cannot don dont unless except always only plus minus add subtract multiply divide times "
    "more less greater smaller larger max maximum maximise maximize min minimum minimise minimize increase decrease odd "
    "even positive negative left right up down on off in out open close heat cool hot cold first last before after above "
    "below same different true false and or all any take put".split()
)
"""Words that turn a rule into another."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """Texts that say the same."""

    text: str
    """The most frequent wording, then the shortest, then the first in the alphabet."""
    members: tuple[int, ...]
    """Positions of the texts, ascending."""


def clusters(texts: Sequence[str], similarity: Similarity | None = None, threshold: float = 0.95) -> list[Cluster]:
    """Put texts that say the same together; most members first, then shortest, then by alphabet, whatever the order was.

    Args:
        texts: any texts.
        similarity: compares the clusters' texts where their words differ; None: they stay apart.
        threshold: least similarity of texts that are put together.
    """
    same = grouped(range(len(texts)), key=lambda place: normalized_tokens(texts[place]))
    made = (Cluster(_wording([texts[place] for place in places]), tuple(places)) for places in same.values())
    found = sorted(made, key=_rank)
    if similarity is None or len(found) < 2:
        return found
    head, rest = found[:MAX_COMPARED], found[MAX_COMPARED:]
    scores = similarity([each.text for each in head], [each.text for each in head])
    led: dict[int, list[int]] = {}
    for place, each in enumerate(head):  # each joins the best supported one that is like it
        near = (
            one
            for one in led
            if scores[one][place] >= threshold and critical_tokens(head[one].text) == critical_tokens(each.text)
        )
        led.setdefault(next(near, place), []).append(place)
    joined = [
        Cluster(head[leader].text, tuple(sorted(member for place in group for member in head[place].members)))
        for leader, group in led.items()
    ]
    return sorted([*joined, *rest], key=_rank)


def match_existing(
    texts: Sequence[str], known: Sequence[str], similarity: Similarity | None = None, threshold: float = 0.95
) -> list[int | None]:
    """For each text the position of the first of `known` that says the same, else of the one most like it, or None."""
    by_content: dict[tuple[str, ...], int] = {}
    for place, text in enumerate(known):
        by_content.setdefault(normalized_tokens(text), place)
    found = [by_content.get(normalized_tokens(text)) for text in texts]
    open_places = [place for place, match in enumerate(found) if match is None][:MAX_COMPARED]
    if similarity is None or not known or not open_places:
        return found
    scores = similarity([texts[place] for place in open_places], known)
    for row, place in zip(scores, open_places, strict=True):
        near = [(-row[other], other) for other in range(len(known)) if row[other] >= threshold]
        wanted = critical_tokens(texts[place])
        found[place] = next((other for _, other in sorted(near) if critical_tokens(known[other]) == wanted), None)
    return found


def normalize(text: str) -> str:
    """The text without what does not tell texts apart: Unicode form, case, white space, punctuation at its ends."""
    plain = unicodedata.normalize("NFKC", text).casefold()
    return " ".join(plain.split()).strip("".join(_PUNCTUATION) + " ") or " ".join(plain.split())


def normalized_tokens(text: str) -> tuple[str, ...]:
    """Words, numbers and signs in order, without punctuation and fillers; never empty for a text that is not."""
    tokens = _TOKEN.findall(normalize(text))
    return tuple(token for token in tokens if token not in _PUNCTUATION and token not in _FILLERS) or tuple(tokens)


def critical_tokens(text: str) -> tuple[str, ...]:
    """Of `normalized_tokens`, in order, what must not differ between texts that are only similar."""
    return tuple(
        token for token in normalized_tokens(text) if not token.isalpha() or len(token) == 1 or token in _DECISIVE
    )


def content_id(text: str) -> str:
    """The id of a new skill: `sk-` and 10 hexadecimal digits made from its `normalize` text."""
    return "sk-" + hashlib.blake2b(normalize(text).encode("utf-8", "replace"), digest_size=5).hexdigest()


def sentences(text: str) -> list[str]:
    """The sentences and lines of a text."""
    return [part for part in map(str.strip, _SENTENCE_END.split(text)) if part]


def consensus_text(
    texts: Sequence[str], similarity: Similarity | None = None, threshold: float = 0.95, *, base: str | None = None
) -> Cluster:
    """One text for competing rewrites: that of a strict majority; without one the longest, `base` included.

    Free texts seldom agree, and the longest loses least (Skill-TTRL's rule). Each sentence that more than half of the texts
    have and the chosen one lacks is added: of two rules that contradict each other at most one has such a majority.

    Args:
        texts: at least one text, one for each voter.
        similarity: as in `clusters`.
        threshold: as in `clusters`.
        base: the text that they rewrite, where it is known; it has no vote.

    Returns:
        The text, and who wrote it or a sentence that was added to it; without members it is `base`, unchanged.
    """
    best = clusters(texts, similarity, threshold)[0]
    if 2 * len(best.members) <= len(texts):
        best = _longest(texts, base)
    voters: dict[tuple[str, ...], dict[int, str]] = defaultdict(dict)
    for place, text in enumerate(texts):
        for sentence in sentences(text):
            voters[normalized_tokens(sentence)][place] = sentence
    has = {normalized_tokens(sentence) for sentence in sentences(best.text)} | {normalized_tokens(best.text)}
    more = {key: said for key, said in voters.items() if 2 * len(said) > len(texts) and key not in has}
    added = sorted((-len(said), len(text), text) for said in more.values() for text in [_wording([*said.values()])])
    members = {*best.members, *(place for said in more.values() for place in said)}
    return Cluster(" ".join([best.text, *(text for _, _, text in added)]), tuple(sorted(members)))


def _longest(texts: Sequence[str], base: str | None) -> Cluster:
    """The text of most words, with those who wrote the same; `base` without members where none has more words."""

    def length(text: str) -> tuple[int, int]:
        return len(normalized_tokens(text)), len(text)

    most = max(map(length, texts))
    if base is not None and len(normalized_tokens(base)) >= most[0]:
        return Cluster(base, ())
    text = min(text for text in texts if length(text) == most)
    writers = (place for place, other in enumerate(texts) if normalized_tokens(other) == normalized_tokens(text))
    return Cluster(text, tuple(writers))


def embedding_similarity(embed: Callable[[Sequence[str]], NDArray[np.float32]]) -> Similarity:
    """The cosine of two texts' vectors, in [-1, 1], by `Embedder.embed`. It keeps the vectors: from step to step most texts of a bank stay."""
    held: dict[str, NDArray[np.float32]] = {}

    def vectors(texts: Sequence[str]) -> NDArray[np.float32]:
        new = [text for text in dict.fromkeys(texts) if text not in held]
        if len(held) + len(new) > VECTORS_KEPT:
            held.clear()
            new = list(dict.fromkeys(texts))
        if new:
            held.update(zip(new, embed(new), strict=True))
        return np.stack([held[text] for text in texts])

    def cosine(a: Sequence[str], b: Sequence[str]) -> Sequence[Sequence[float]]:
        scores: list[list[float]] = (vectors(a) @ vectors(b).T).tolist() if a and b else [[] for _ in a]
        return scores

    return cosine


def _wording(texts: Sequence[str]) -> str:
    counts = Counter(text.strip() for text in texts)
    return min(counts, key=lambda text: (-counts[text], len(text), text))


def _rank(cluster: Cluster) -> tuple[int, int, str]:
    return -len(cluster.members), len(cluster.text), cluster.text

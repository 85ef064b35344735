"""The merger that counts, for `skills.merger: heuristic`; it needs no language model."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from skill_ttrl.skills.changes import quote
from skill_ttrl.skills.merge.types import Draft, Merged, Rewrite, rewrites_by_base, titles
from skill_ttrl.skills.ops import ParsedOutput
from skill_ttrl.skills.similarity import Similarity, clusters, consensus_text, normalized_tokens, sentences
from skill_ttrl.skills.snapshot import Snapshot


class HeuristicMerger:
    """Fuses by counting: texts that say the same are one, competing rewrites of a skill are voted on (`consensus_text`).

    Args:
        similarity: compares texts whose words differ (`embedding_similarity`); None: only texts that differ in nothing but case,
            punctuation and fillers are fused.
        threshold: least similarity of texts that are fused.
    """

    def __init__(self, *, similarity: Similarity | None = None, threshold: float = 0.95) -> None:
        self.similarity = similarity
        self.threshold = threshold

    def merge(
        self,
        outputs: Sequence[ParsedOutput],
        *,
        retrieved: Sequence[Sequence[str]] = (),
        snapshot: Snapshot | None = None,
    ) -> Merged:
        """See `Merger.merge`. The texts of rewritten skills come from the snapshot, where there is one."""
        written = [
            (place, text, title)
            for place, output in enumerate(outputs)
            for text, title in zip(output.skill_ops.generate, titles(output.skill_ops), strict=True)
        ]
        drafts = tuple(
            Draft(
                cluster.text,
                _most_frequent([written[member][2] for member in cluster.members]),
                tuple(sorted({written[member][0] for member in cluster.members})),
            )
            for cluster in clusters([text for _, text, _ in written], self.similarity, self.threshold)
        )
        rewrites, skipped = list[Rewrite](), list[str]()  # one for each skill; skills that stay as they are
        for base, texts in rewrites_by_base(outputs).items():
            skill = snapshot.get(base) if snapshot is not None else None
            known = skill.text if skill is not None else None
            best = consensus_text([text for _, text in texts], self.similarity, self.threshold, base=known)
            if best.members:
                rewrites.append(Rewrite(base, best.text, tuple(texts[member][0] for member in best.members)))
            else:
                skipped.append(
                    f"evolve of {quote(base)}: its {len(texts)} rewrites differ, and none says more than the skill does"
                )
        return Merged(drafts, useful_ids(retrieved), tuple(rewrites), tuple(skipped))


def _most_frequent(texts: Sequence[str]) -> str:
    counts = Counter(text for text in texts if text)
    return min(counts, key=lambda text: (-counts[text], len(text), text), default="")


def useful_ids(retrieved: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """Ids that stand in more than one list (or in the only list), most frequent first."""
    counts = Counter(skill_id for given in retrieved for skill_id in set(given))
    least = min(2, len(retrieved))
    return tuple(sorted((name for name in counts if counts[name] >= least), key=lambda name: (-counts[name], name)))


MIN_WINNERS = 2
MOST = 0.6
"""A technique is in more than this share of the winners' solutions."""
RARE = 0.25
"""And in at most this share of the losers'."""
MIN_WORDS = 3
"""Words (not numbers or signs) that it has at least."""
MAX_SENTENCES = 2
RUN_LENGTHS = range(4, 13)
"""Words of a run."""
MAX_SOLUTIONS = 64
MAX_CHARS = 6000
"""Only so many solutions, and so much of each, is read: the work is bounded."""

_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
_ANSWERS = re.compile(r"<answer>[^<]*(?:</answer>)?|\\boxed\{[^{}]*\}|</?[a-z_]{1,20}>", re.IGNORECASE)
_SET_PHRASES = re.compile(
    r"\banswer\b|\bstep by step\b|\blet'?s?\b (?:us |me )?(?:think|solve|see|start|begin)|\bwe (?:are|were) (?:given|asked)\b"
    r"|\bin conclusion\b|\bthe (?:result|problem|question|solution)\b|\bi (?:will|need|have)\b|\bfinally\b",
    re.IGNORECASE,
)


def technique(problem: str, winners: Sequence[str], losers: Sequence[str]) -> str | None:
    """Extract the sentences, or else the longest run of words, that the winners' solutions share; None if there are none.

    Args:
        problem: text of the task; sentences that only repeat it are no technique.
        winners: solutions that won, at least two.
        losers: solutions that lost; may be empty, and then nothing counts as frequent among them.
    """
    if len(winners) < MIN_WINNERS:
        return None
    won, lost = (
        [_readable(text) for text in winners[:MAX_SOLUTIONS]],
        [_readable(text) for text in losers[:MAX_SOLUTIONS]],
    )
    given = set(normalized_tokens(_abstract(problem)))
    parts = [{normalized_tokens(part): part for part in sentences(text)} for text in won]
    shared = _shared(
        [set(each) for each in parts], [{normalized_tokens(part) for part in sentences(text)} for text in lost]
    )
    good = {key: score for key, score in shared.items() if _says_something(key, given)}
    best = sorted(good, key=lambda key: (-good[key], -len(key), key))[:MAX_SENTENCES]
    if best:
        wordings = {key: min(each[key] for each in parts if key in each) for key in best}
        speaker = next(each for each in parts if best[0] in each)
        order = sorted(best, key=lambda key: list(speaker).index(key) if key in speaker else len(speaker))
        return " ".join(wordings[key].rstrip(":,;") for key in order)
    return _run(won, lost, given)


def _run(won: Sequence[str], lost: Sequence[str], given: set[str]) -> str | None:
    """The longest run of words that is shared as a sentence should be."""
    shared = _shared([_runs(text) for text in won], [_runs(text) for text in lost])
    good = [run for run in shared if _says_something(run, given)]
    best = sorted(good, key=lambda run: (-len(run), -shared[run], run))
    return " ".join(best[0]) if best else None


def _shared(won: Sequence[set[tuple[str, ...]]], lost: Sequence[set[tuple[str, ...]]]) -> dict[tuple[str, ...], float]:
    """Return the keys that most of `won` and few of `lost` contain, each with the difference of the two shares."""
    inside, outside = Counter(key for keys in won for key in keys), Counter(key for keys in lost for key in keys)
    shares = {key: (count / len(won), outside[key] / max(len(lost), 1)) for key, count in inside.items()}
    return {
        key: high - low
        for key, (high, low) in shares.items()
        if inside[key] >= MIN_WINNERS and high > MOST and low <= RARE
    }


def _says_something(key: tuple[str, ...], given: set[str]) -> bool:
    """Enough words, most of them not the problem's, and no set phrase."""
    words = [token for token in key if len(token) > 1 and token.isalpha()]
    new = [word for word in words if word not in given]
    return len(words) >= MIN_WORDS and 2 * len(new) >= len(words) and not _SET_PHRASES.search(" ".join(key))


def _runs(text: str) -> set[tuple[str, ...]]:
    """Runs of words, each within a sentence without set phrases."""
    found: set[tuple[str, ...]] = set()
    for part in (part for part in sentences(text) if not _SET_PHRASES.search(part)):
        words = part.split()
        for length in RUN_LENGTHS:
            found |= {tuple(words[start : start + length]) for start in range(len(words) - length + 1)}
    return found


def _readable(text: str) -> str:
    """A solution without answers and tags, numbers as `n`."""
    return _abstract(_ANSWERS.sub(" ", text[:MAX_CHARS]))


def _abstract(text: str) -> str:
    return _NUMBER.sub("n", text)

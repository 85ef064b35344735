"""A technique found across solutions: what most winners of a group say and few losers do.

For groups in which no winner wrote a skill. It needs no language model: sentences that recur are counted, then runs of
words where no sentence does. Numbers belong to the one problem and are written as `n`; the problem's own words, answers
and set phrases ("step by step", "the answer is") are no technique. Nothing found is a normal outcome.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

from skill_ttrl.skills.merge.types import Extracted, Solved, Technique
from skill_ttrl.skills.similarity import normalized_tokens, sentences

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


class HeuristicExtractor:
    """Counts sentences and runs of words that most winners and few losers have; needs no language model."""

    def extract(self, problems: Sequence[Solved]) -> Extracted:
        """See `Extractor.extract`."""
        return Extracted(tuple(map(shared, problems)))


def shared(solved: Solved) -> Technique | None:
    """The technique of one problem by counting."""
    text = technique(solved.problem, solved.winners, solved.losers)
    return None if text is None else Technique(text)


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


def refusal(text: str, problem: str) -> str | None:
    """Why a text that somebody else wrote is no technique, by the measure of those that are found here; None where it is one.

    Args:
        text: what is to become a skill.
        problem: text of the task; a technique must say more than that.
    """
    given = set(normalized_tokens(_abstract(problem)))
    if any(_says_something(normalized_tokens(_abstract(part)), given) for part in sentences(text)):
        return None
    return f"no sentence of it has {MIN_WORDS} words of which half are not the problem's own"


def holds(text: str, answers: Iterable[str]) -> bool:
    """True if one of the answers occurs in the text, word for word."""
    words = normalized_tokens(text)
    said = [normalized_tokens(answer) for answer in answers if answer.strip()]
    return any(words[start : start + len(one)] == one for one in said for start in range(len(words) - len(one) + 1))


def without_answers(text: str) -> str:
    """A solution without the places where answers stand, and without tags."""
    return _ANSWERS.sub(" ", text)


def _run(won: Sequence[str], lost: Sequence[str], given: set[str]) -> str | None:
    """The longest run of words that is shared as a sentence should be."""
    shared = _shared([_runs(text) for text in won], [_runs(text) for text in lost])
    good = [run for run in shared if _says_something(run, given)]
    best = sorted(good, key=lambda run: (-len(run), -shared[run], run))
    return " ".join(best[0]) if best else None


def _shared(won: Sequence[set[tuple[str, ...]]], lost: Sequence[set[tuple[str, ...]]]) -> dict[tuple[str, ...], float]:
    """Return the keys that most of `won` and few of `lost` contain, each with the difference of the two shares."""
    inside, outside = Counter(_each(won)), Counter(_each(lost))
    shares = {key: (count / len(won), outside[key] / max(len(lost), 1)) for key, count in inside.items()}
    return {
        key: high - low
        for key, (high, low) in shares.items()
        if inside[key] >= MIN_WINNERS and high > MOST and low <= RARE
    }


def _each(sets: Iterable[set[tuple[str, ...]]]) -> Iterable[tuple[str, ...]]:
    return (key for keys in sets for key in keys)


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
    return _abstract(without_answers(text[:MAX_CHARS]))


def _abstract(text: str) -> str:
    return _NUMBER.sub("n", text)

"""Short answers against accepted phrasings, as text: no mathematics, no LaTeX.

The two scores of question answering with references: an accepted phrasing stands in the prediction (`matches`), and the overlap of
their words (`token_f1`). Both look at text in lower case with single spaces.
"""

from __future__ import annotations

from collections.abc import Iterable


def matches(prediction: str, accepted: Iterable[str], *, whole: bool = False) -> bool:
    """True if the prediction contains one of the accepted phrasings, or, with `whole`, is one of them."""
    said = _normalized(prediction)
    wanted = [text for text in map(_normalized, accepted) if text]
    return bool(said) and any(text == said or (not whole and text in said) for text in wanted)


def token_f1(prediction: str, accepted: Iterable[str]) -> float:
    """Best F1, in [0, 1], of the prediction's words against those of an accepted phrasing.

    Different words are counted that both have; precision and recall are shares of all words of each (skillrl's `SimpleQAEnv`).
    """
    said = _normalized(prediction).split()
    best = 0.0
    for text in accepted:
        wanted = _normalized(text).split()
        common = len({*said} & {*wanted})
        if common:
            precision, recall = common / len(said), common / len(wanted)
            best = max(best, 2 * precision * recall / (precision + recall))
    return best


def _normalized(text: str) -> str:
    return " ".join(text.lower().split())

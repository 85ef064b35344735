"""The extractor that asks a language model (the teacher), for `skills.extractor: openai`.

One request for each problem. What it writes is held to what the heuristic holds itself to: it must not give the problem's
answer away, nor say no more than the problem does.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict

from skill_ttrl.errors import EndpointError
from skill_ttrl.skills.admit import text_problem
from skill_ttrl.skills.changes import quote
from skill_ttrl.skills.merge.extract import MIN_WINNERS, holds, refusal, shared, without_answers
from skill_ttrl.skills.merge.types import Extracted, Solved, Technique
from skill_ttrl.skills.ops import MAX_TITLE
from skill_ttrl.skills.querying import TEXT_CHARS, LLMCallStats, LLMQuerier, fenced, shortened
from skill_ttrl.skills.similarity import normalized_tokens
from skill_ttrl.types import Message

MAX_WON, MAX_LOST = 4, 2
"""Most solutions of each kind in one request; those that say the same are one."""
SOLUTION_CHARS = 3000
"""Of each solution, and of the problem, so many characters: a request has at most about 6,000 tokens."""


class WrittenTechnique(BaseModel):
    """A technique in the teacher's words."""

    model_config = ConfigDict(extra="forbid")
    title: str
    text: str


class ExtractAnswer(BaseModel):
    """Answer requested from the teacher."""

    model_config = ConfigDict(extra="forbid")
    technique: WrittenTechnique | None


class LLMExtractor:
    """Asks a language model what the winners of each problem have in common.

    Args:
        asking: the model.
    """

    def __init__(self, asking: LLMQuerier) -> None:
        self.asking = asking
        for name in ("extract", "extract_request"):  # one that cannot be read is found now
            asking.templates.get(name)

    def extract(self, problems: Sequence[Solved]) -> Extracted:
        """See `Extractor.extract`. A problem with one winner has nothing in common with anything and is not asked about.

        Raises:
            EndpointError: a request came to nothing, and failures are not to be got over.
            BudgetError: what may be spent is spent.
        """
        places = [place for place, each in enumerate(problems) if len(each.winners) >= MIN_WINNERS]
        answers = self.asking.ask([self._question(problems[place]) for place in places], ExtractAnswer)
        found: list[Technique | None] = [None] * len(problems)
        skipped: list[str] = []
        asked = LLMCallStats()
        for place, answer in zip(places, answers, strict=True):
            if isinstance(answer, EndpointError):
                asked += self.asking.failure(answer)
                if self.asking.on_failure == "heuristic":
                    found[place] = shared(problems[place])
                continue
            asked += LLMCallStats(1)
            written = answer.technique
            if written is None:
                continue
            problem = _refusal(written, problems[place])
            if problem is None:
                found[place] = Technique(written.text.strip(), " ".join(written.title.split())[:MAX_TITLE])
            else:
                task = quote(problems[place].name)
                skipped.append(f"the language model's technique {quote(written.text)} for {task}: {problem}")
        return Extracted(tuple(found), tuple(skipped), asked)

    def _question(self, solved: Solved) -> tuple[Message, ...]:
        render = self.asking.templates.render
        rules = {"title_chars": str(MAX_TITLE), "text_chars": str(TEXT_CHARS)}
        asked = render(
            "extract_request",
            problem=shortened(solved.problem, SOLUTION_CHARS),
            winners=_solutions(solved.winners, MAX_WON),
            losers=_solutions(solved.losers, MAX_LOST),
        )
        return Message("system", render("extract", **rules)), Message("user", asked)


def _refusal(written: WrittenTechnique, solved: Solved) -> str | None:
    problem = text_problem(written.text, TEXT_CHARS) or refusal(written.text, solved.problem)
    if problem is None and holds(f"{written.title}\n{written.text}", solved.answers):
        problem = "it holds the problem's answer"
    return problem


def _solutions(texts: Sequence[str], most: int) -> str:
    """Different ones, the shortest first; that there are more is said."""
    different = {
        normalized_tokens(text): text
        for text in sorted(map(without_answers, texts), key=lambda text: (-len(text), text))
    }
    chosen = sorted((text for text in different.values() if text.strip()), key=lambda text: (len(text), text))
    shown_ones = [fenced("solution", text.strip(), SOLUTION_CHARS) for text in chosen[:most]]
    rest = len(chosen) - most
    return "\n".join([*shown_ones, *([f"[{rest} more are left out]"] if rest > 0 else [])]) or "none"

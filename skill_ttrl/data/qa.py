"""Question-answering tasks from records: a question, the phrasings that are accepted as answers, perhaps a context to read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from skill_ttrl.data.records import Records, column, record_ids
from skill_ttrl.errors import DataError
from skill_ttrl.types import Task

QA_ENV_ID = "SkillTTRL/QA-v0"
ANSWERS, CONTEXT, TYPE = "answers", "context", "task_type"


def shown_question(question: str, context: str = "") -> str:
    """The text that a task shows: the question alone, or behind its context."""
    return f"Context:\n{context}\n\nQuestion: {question}" if context else question


def qa_task(name: str, question: str, answers: Sequence[str] | None, **more: Any) -> Task:
    """A task of `SkillTTRL/QA-v0`; `answers` None: nothing is graded. `more` are other fields of the task."""
    options: dict[str, Any] = {"question": question}
    if answers is not None:
        options["answers"] = list(answers)
    return Task(name, more.pop("env_id", QA_ENV_ID), options, **more)


def qa_tasks(records: Records, questions: Sequence[str], answer_field: str, split: str) -> list[Task]:
    """The tasks of records, in order.

    Args:
        records: with `answers` (a list of texts, or one text) or the column `answer_field`, or neither: then nothing is graded; and
            perhaps `context` and `task_type`.
        questions: one for each record.
        answer_field: column with the answers where there is no `answers`.
        split: their split.

    Raises:
        DataError: a record's answers, context or type cannot be used; names file and line.
    """
    name = ANSWERS if ANSWERS in records.columns else answer_field
    answers: Sequence[Any] = [None] * len(records)
    if name in records.columns:
        found = column(records, name, (str, int, float, list, type(None)))
        answers = [_phrasings(value, name, place) for value, place in zip(found, records.places, strict=True)]
    contexts, kinds = (_optional(records, each) for each in (CONTEXT, TYPE))
    rows = zip(record_ids(records), questions, contexts, answers, kinds, strict=True)
    return [
        qa_task(name, shown_question(question, context), accepted, split=split, task_type=kind)
        for name, question, context, accepted, kind in rows
    ]


def _phrasings(value: Any, name: str, place: str) -> list[str] | None:
    """The accepted phrasings that a record states; None where it states none."""
    if value is None:
        return None
    listed = value if isinstance(value, list) else [value]
    if not all(isinstance(each, str | int | float) and not isinstance(each, bool) for each in listed):
        raise DataError(f"{place}: {name!r} must be a text or a list of texts, found {str(value)[:60]!r}.")
    texts = [str(each) for each in listed]
    if not texts or not all(text.strip() for text in texts):
        raise DataError(
            f"{place}: {name!r} must have at least one answer and no empty one, found {str(value)[:60]!r}. For a question without known answers, write null."
        )
    return texts


def _optional(records: Records, name: str) -> list[str]:
    """A column of texts; empty texts where a record, or all, have none."""
    found = []
    for row, place in zip(records.rows, records.places, strict=True):
        value = row.get(name)
        if not isinstance(value, str | None):
            raise DataError(f"{place}: {name!r} must be a text, found {type(value).__name__}.")
        found.append((value or "").strip())
    return found

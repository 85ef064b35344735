"""verl's layout of problems: a conversation in `prompt`, the true answer in `reward_model.ground_truth`.

Its other columns (`data_source`, `ability`, `extra_info`, `reward_model.style`) are not read: they choose a grader in verl.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from skill_ttrl.data.records import Records
from skill_ttrl.errors import DataError

ANSWERS = "reward_model"
"""Column that holds the true answer as `ground_truth`."""


def has_chats(records: Records, prompt: str) -> bool:
    """True where the prompts are conversations, lists of `{role, content}`."""
    return isinstance(records.rows[0].get(prompt), list)


def read_chats(records: Records, prompt: str) -> tuple[list[str], str | None]:
    """Read the problems of a column of conversations.

    A conversation is a user's message, which may have a system message before it. The agent puts the problem into its template, as
    it does one that is a text.

    Returns:
        (problems, system message); None where there is none.

    Raises:
        DataError: a conversation of another shape, or system messages that differ.
    """
    read = [_chat(row, prompt, place) for row, place in zip(records.rows, records.places, strict=True)]
    first = read[0][0]
    for (system, _), place in zip(read, records.places, strict=True):
        if system != first:
            raise DataError(
                f"{place}: its system message is another than that of {records.places[0]}. One system message is sent with every "
                "prompt of a run (agent.system): put what differs into the user's message."
            )
    return [question for _, question in read], first


def ground_truths(records: Records) -> list[Any]:
    """The true answer of each record, None where it has none.

    Raises:
        DataError: one that is no text or number: it cannot be graded.
    """
    found = []
    for row, place in zip(records.rows, records.places, strict=True):
        graded = row.get(ANSWERS)
        truth = graded.get("ground_truth") if isinstance(graded, Mapping) else graded
        if not isinstance(truth, str | int | float | None) or isinstance(truth, bool):
            raise DataError(
                f"{place}: {ANSWERS}.ground_truth must be a text or a number, found {type(truth).__name__}. Answers are compared as "
                "mathematics; name another column with answer_field, or one that does not exist to train without."
            )
        found.append(truth)
    return found


def _chat(row: Mapping[str, Any], prompt: str, place: str) -> tuple[str | None, str]:
    """(system message or None, the user's message) of one conversation."""
    messages = row.get(prompt)
    turns = [each if isinstance(each, Mapping) else {} for each in messages] if isinstance(messages, list) else []
    roles = [turn.get("role") for turn in turns]
    if roles not in (["user"], ["system", "user"]):
        raise DataError(
            f"{place}: {prompt!r} must be a user's message, with a system message before it at most; found "
            f"{f'roles {roles}' if isinstance(messages, list) else type(messages).__name__}."
        )
    contents = [turn.get("content") for turn in turns]
    for role, content in zip(roles, contents, strict=True):
        if not isinstance(content, str):
            raise DataError(
                f"{place}: the content of the {role} message must be a text, found {type(content).__name__}."
            )
    return (contents[0] if len(contents) == 2 else None), str(contents[-1])

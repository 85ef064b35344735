"""Math tasks and demonstrations from a `Source`: a file, a Hugging Face data set, or a generated family."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from skill_ttrl.answers import conditions, find_answer, true_answer
from skill_ttrl.config import Source
from skill_ttrl.data.families import (
    DEFAULT_NOISE,
    FAMILIES,
    QA_ENV_ID,
    Demonstration,
    Operators,
    ProblemFamily,
    Turn,
    qa_task,
    shown_question,
)
from skill_ttrl.data.records import Record, Records, column, read_source, record_ids
from skill_ttrl.errors import ConfigError, DataError, did_you_mean
from skill_ttrl.llm.chat import call_text
from skill_ttrl.llm.openai.replies import read_call
from skill_ttrl.storage.jsonl import parse_json
from skill_ttrl.types import Task, ToolCall

MATH_ENV_ID = "SkillTTRL/Math-v0"
TYPE_FIELDS = ("task_type", "type", "subject")
UNTYPED = "math"
"""Type of a problem whose record states none."""
PROMPT_FALLBACKS = ("question", "problem")
SOLUTION = "solution"
"""Column with the answer, or a solution that marks it, where there is neither the answer column nor verl's."""
GRADED = "reward_model"
"""Column of verl's layout that holds the true answer as `ground_truth`."""
CHECK = "check"
"""Column, and option of a task, with the conditions that an answer must satisfy (`rl.reward: verify`)."""
ANSWERS, CONTEXT, TYPE = "answers", "context", "task_type"
"""Columns of questions with accepted answers."""
_FAMILY_OPTIONS = ("noise",)


def longest_series(tasks: Iterable[Task]) -> int:
    """Problems of the longest series among math tasks; 1 where each stands alone."""
    return max((1 + len(task.options.get("then", ())) for task in tasks if task.env_id == MATH_ENV_ID), default=1)


def load_tasks(source: Source, env_id: str = MATH_ENV_ID, *, split: str = "train") -> list[Task]:
    """The problems of a source, in its order, as tasks with `options={"question": ...}`.

    A column `check` goes into the options too (`answers.conditions`). It is no reference and stays where those are removed: it may tell
    the answer to whoever reads the file, but no environment shows it, so the policy never sees it.

    The reference is the answer column's value, or None where there is no such column; of an answer that ends in
    `#### 72` (GSM8K) it is what follows the mark. Where there is no column `answer`, a column `solution` has the answer, or a solution that
    marks it. In verl's layout (a conversation in `prompt`, its other columns unread) the problem is the user's message and the answer
    `reward_model.ground_truth`; a system message is no part of a task (`system_message`). The task type is the column `task_type`, `type` or `subject`,
    else "math". The tasks of `SkillTTRL/QA-v0` have their accepted answers among the options (`qa_tasks`).

    Args:
        source: where the problems come from.
        env_id: the environment that plays them.
        split: what they are for; the split of a family, and the name on the tasks, where `source.split` is not set.

    Raises:
        ConfigError: unknown family or option of it.
        DataError: an empty problem; see `read_records` and `column`.
    """
    family = find_family(source)
    if family is not None:
        return family.problems(source.split or split, env_id)[: source.limit]
    records = read_source(source)
    questions = _questions(source, records)[0]
    for question, place in zip(questions, records.places, strict=True):
        if not question.strip():
            name = _prompt_column(source, records)
            raise DataError(f"{place}: {name!r} is empty. Write a problem there, or remove the record.")
    if env_id == QA_ENV_ID:
        return qa_tasks(records, questions, source.answer_field, source.split or split)
    answers = _answers(records, source.answer_field)
    types = map(_task_type, records.rows)
    split = source.split or split
    rows = zip(record_ids(records), questions, _checks(records), answers, types, strict=True)
    return [
        Task(name, env_id, {"question": question} | check, split=split, task_type=kind, ground_truth=answer)
        for name, question, check, answer, kind in rows
    ]


def load_demonstrations(source: Source, *, seed: int = 0, noise: float | None = None) -> list[Demonstration]:
    """(prompt, response) pairs to learn from, in the source's order.

    A file or data set has the columns `prompt` (see `Source.prompt_field`) and `response`, or a column `messages`
    with a conversation: a user's and an assistant's message in turn. Each assistant message is a demonstration, with the messages before it.
    One with `tool_calls` (OpenAI's form) is followed by a `tool` message for each call, in the same order.

    Args:
        source: where they come from; a family gives its split "demos" unless `source.split` names another.
        seed: of a family's noise; another seed draws it afresh.
        noise: of a family; None takes `source.options["noise"]`, or 0.2.

    Raises:
        ConfigError: unknown family or option of it, or a noise outside [0, 1].
        DataError: see `read_records` and `column`; a conversation of another shape.
    """
    family = find_family(source)
    if family is not None:
        share = source.options.get("noise", DEFAULT_NOISE) if noise is None else noise
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= 1:
            raise ConfigError(f"The noise of {source.path} must be a number from 0 to 1, found {share!r}.")
        return family.demonstrations(seed, share, source.split or "demos", source.limit)
    records = read_source(source)
    if "messages" in records.columns:
        pairs = zip(column(records, "messages", list), records.places, strict=True)
        return [shown for messages, place in pairs for shown in _from_messages(messages, place)]
    prompts = column(records, _prompt_column(source, records))
    return [Demonstration(*pair) for pair in zip(prompts, column(records, "response"), strict=True)]


def tokenizer_corpus(source: Source, *, seed: int) -> list[str]:
    """Texts for the built-in tokenizer to learn from: prompts and responses, unless the family has a list of its own."""
    family = find_family(source)
    if isinstance(family, Operators):
        return family.corpus()
    return [text for shown in load_demonstrations(source, seed=seed) for text in (shown.prompt, shown.response)]


def as_source(source: Source | Mapping[str, Any] | str) -> Source:
    """A source from its config, the fields of one, or its path."""
    if isinstance(source, Source):
        return source
    return Source(path=source) if isinstance(source, str) else Source.model_validate(dict(source))


def find_family(source: Source) -> ProblemFamily | None:
    """The generated family that a source names; None for a file or a data set.

    Raises:
        ConfigError: unknown family or option of it.
    """
    if not source.path.startswith("synthetic:"):
        if source.options:
            raise ConfigError(
                f"options {sorted(source.options)} are for generated families only, and {source.path} is not one."
            )
        return None
    for option in source.options:
        if option not in _FAMILY_OPTIONS:
            raise ConfigError(f"{source.path} has no option {option!r}.{did_you_mean(option, _FAMILY_OPTIONS)}")
    family = FAMILIES.get(source.path.removeprefix("synthetic:"))
    if not hasattr(family, "problems"):
        raise ConfigError(
            f"{source.path} is not a family: it has no `problems`. See skill_ttrl.data.families.ProblemFamily."
        )
    return family


def system_message(source: Source) -> str | None:
    """The system message that the conversations of a source begin with (verl's layout); None where they have none.

    Raises:
        DataError: they differ; or see `read_records`.
    """
    return None if find_family(source) is not None else _questions(source, read_source(source))[1]


def _questions(source: Source, records: Records) -> tuple[list[str], str | None]:
    """(problems, the system message that stands before all of them).

    In a column of conversations (verl's layout) a problem is a user's message, which may have a system message before it. The agent puts
    the problem into its template, as it does one that is a text.

    Raises:
        DataError: a conversation of another shape, or system messages that differ.
    """
    name = _prompt_column(source, records)
    if not isinstance(records.rows[0].get(name), list):
        return column(records, name), None
    chats = []
    for row, place in zip(records.rows, records.places, strict=True):
        roles, contents = _conversation(row.get(name), name, place)
        if roles not in (["user"], ["system", "user"]):
            raise DataError(
                f"{place}: {name!r} must be one user message, optionally preceded by a system message; found roles {roles}."
            )
        chats.append((contents[0] if len(contents) == 2 else None, contents[-1]))
        if chats[-1][0] != chats[0][0]:
            raise DataError(
                f"{place}: its system message differs from that of {records.places[0]}. A run sends one system message with every prompt (agent.system): move what differs into the user's message."
            )
    return [question for _, question in chats], chats[0][0]


def _conversation(messages: Any, name: str, place: str) -> tuple[list[Any], list[str]]:
    """(roles, contents) of the messages in a record."""
    listed = messages if isinstance(messages, list) else []
    turns = [each if isinstance(each, Mapping) else {} for each in listed]
    contents = ["" if turn.get("tool_calls") and turn.get("content") is None else turn.get("content") for turn in turns]
    if not all(isinstance(content, str) for content in contents):
        raise DataError(f"{place}: the 'content' of each message of {name!r} must be a text.")
    return [turn.get("role") for turn in turns], [str(content) for content in contents]


def _prompt_column(source: Source, records: Records) -> str:
    if source.prompt_field != Source.model_fields["prompt_field"].default:
        return source.prompt_field
    names = (source.prompt_field, *PROMPT_FALLBACKS)
    found = next((name for name in names if name in records.columns), None)
    if found is None:
        others = " or ".join(map(repr, PROMPT_FALLBACKS))
        raise DataError(
            f"{records.source} has no column {source.prompt_field!r}, nor {others}.{did_you_mean(source.prompt_field, records.columns)}"
        )
    return found


_ANSWER_KINDS = (str, int, float, type(None))


def _answers(records: Records, name: str) -> Sequence[str | None]:
    default, names = name == Source.model_fields["answer_field"].default, records.columns
    if name in names:
        return [_answer(value) for value in column(records, name, _ANSWER_KINDS, optional=True)]
    if default and GRADED in names:
        found = []
        for row, place in zip(records.rows, records.places, strict=True):
            graded = row.get(GRADED)
            truth = graded.get("ground_truth") if isinstance(graded, Mapping) else graded
            if not isinstance(truth, _ANSWER_KINDS) or isinstance(truth, bool):
                raise DataError(
                    f"{place}: {GRADED}.ground_truth must be a text or a number, found {type(truth).__name__}. Answers are compared as "
                    "mathematics; set answer_field to another column, or to one that does not exist to train without answers."
                )
            found.append(_answer(truth))
        return found
    if default and SOLUTION in names:
        return [_solved(value) for value in column(records, SOLUTION, _ANSWER_KINDS, optional=True)]
    return [None] * len(records)


def _answer(value: str | int | float | None) -> str | None:
    text = true_answer(value.rpartition("####")[2] if isinstance(value, str) else value)
    return (text or "").strip() or None


def _solved(value: str | int | float | None) -> str | None:
    """The answer that a solution marks; a solution without a mark is the answer itself."""
    found = find_answer(value) if isinstance(value, str) else None
    return found.answer if found else _answer(value)


def _checks(records: Records) -> Sequence[dict[str, str]]:
    """The option `check` of each record, nothing where it has none.

    Raises:
        DataError: one that is no text, or that cannot be read.
    """
    if CHECK not in records.columns:
        return [{}] * len(records)
    checks = column(records, CHECK, (str, type(None)), optional=True)
    for check, place in zip(checks, records.places, strict=True):
        try:
            conditions(check or "x = 0")
        except ValueError as error:
            raise DataError(
                f'{place}: {CHECK!r} cannot be read: {error}. Write conditions on x, for example "x + 7 = 25", or null.'
            ) from None
    return [{} if check is None else {CHECK: check} for check in checks]


def _task_type(row: Record) -> str:
    """The type that a record states, in small letters joined by `_`; of one that states none `UNTYPED`."""
    stated = [value for name in TYPE_FIELDS if isinstance(value := row.get(name), str) and value.strip()]
    return re.sub(r"\W+", "_", stated[0].lower()).strip("_") if stated else UNTYPED


def _from_messages(messages: Any, place: str) -> list[Demonstration]:
    """One for each turn of the assistant, with the turns before it."""
    roles, said = _conversation(messages, "messages", place)
    shape = "".join(str(role)[:1] if role in ("user", "assistant", "tool") else "?" for role in roles)
    calls = [_calls(each, place) if role == "assistant" else [] for each, role in zip(messages, roles, strict=True)]
    asked = [len(each) for each, role in zip(calls, shape, strict=True) if role == "a"]
    answered = [len(results) for results in re.findall("a(t*)", shape)]
    if not re.fullmatch("(?:u(?:at+)*a)+", shape) or answered != asked:
        raise DataError(
            f"{place}: 'messages' must alternate between user and assistant messages, with a tool message for each of 'tool_calls' of the "
            f"latter; found roles {roles}. Set one system message for all with agent.system."
        )
    found, before, prompt = list[Demonstration](), list[Turn](), ""
    for at, role in enumerate(shape):
        if role == "u":
            prompt = said[at]
        elif role == "a":
            turn = prompt, said[at] + "".join(map(call_text, calls[at]))
            found.append(Demonstration(*turn, before=tuple(before)))
            ends = enumerate(calls[at], at + 1)
            answers = {str(messages[end].get("tool_call_id") or call.id): said[end] for end, call in ends}
            if len(answers) < len(calls[at]) or answers.keys() != {call.id for call in calls[at]}:
                raise DataError(
                    f"{place}: the 'tool_call_id' of each tool message must be the id of another of the 'tool_calls' before it."
                )
            called = tuple(replace(call, result=answers[call.id]) for call in calls[at])
            before.append((*turn, called) if called else turn)
            prompt = "\n".join(answers[call.id] for call in calls[at])
    return found


def _calls(message: Mapping[str, Any], place: str) -> list[ToolCall]:
    """The calls of tools in a message, in OpenAI's form, with arguments as chat templates write them."""
    given = message.get("tool_calls") or []
    found = [read_call(each, number) for number, each in enumerate(given if isinstance(given, list) else [given])]
    if any(call.error or not call.name for call in found):
        raise DataError(
            f"{place}: each of 'tool_calls' must have a function with a name and arguments that are a JSON object."
        )
    return [replace(call, arguments=json.dumps(parse_json(call.arguments), ensure_ascii=False)) for call in found]


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
    tasks = []
    for row, place, own, question in zip(records.rows, records.places, record_ids(records), questions, strict=True):
        for each in (CONTEXT, TYPE):
            if not isinstance(row.get(each), str | None):
                raise DataError(f"{place}: {each!r} must be a text, found {type(row[each]).__name__}.")
        context, kind = ((row.get(each) or "").strip() for each in (CONTEXT, TYPE))
        accepted = _phrasings(row.get(name), name, place)
        tasks.append(qa_task(own, shown_question(question, context), accepted, split=split, task_type=kind))
    return tasks


def _phrasings(value: Any, name: str, place: str) -> list[str] | None:
    """The accepted phrasings that a record states; None where it states none."""
    if value is None:
        return None
    listed = value if isinstance(value, list) else [value]
    texts = [str(each) for each in listed if isinstance(each, str | int | float) and not isinstance(each, bool)]
    if not texts or len(texts) != len(listed) or not all(text.strip() for text in texts):
        raise DataError(
            f"{place}: {name!r} must be a text or a list of texts, at least one and none empty, found {str(value)[:60]!r}. For a question without known answers, write null."
        )
    return texts

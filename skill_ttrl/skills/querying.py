"""Queries to the language models that merge, extract and teach: endpoints, escaped texts, failures.

A request goes out with others at once, and the answers are used in the order of the questions: the same answers lead to the
same update, however long each took. Texts of other models go in escaped, between tags, and of bounded length.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ValidationError, model_validator

from skill_ttrl.config import EndpointConfig, EndpointsConfig, Role
from skill_ttrl.errors import BudgetError, ConfigError, EndpointError, annotate_error
from skill_ttrl.llm.backend import wait_for
from skill_ttrl.llm.openai.client import Client, make_client
from skill_ttrl.prompts.templates import Templates
from skill_ttrl.sanitize import escape, escape_terminal
from skill_ttrl.types import Message

OPENAI = "openai"
"""Name of the merger and of the teacher that ask a language model."""
OnFailure = Literal["stop", "skip", "heuristic"]
TEXT_CHARS = 4000
"""Longest skill that a language model is shown whole, and that it may write, in characters."""
A = TypeVar("A", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class LLMCallStats:
    """Counts of calls to language models."""

    requests: int = 0
    failed: int = 0
    """Requests that gave no usable answer, and whose part of the update was left out."""
    fallback: int = 0
    """Requests that gave no usable answer, and whose part the heuristic did."""
    error: str = ""
    """Message of the first of those."""


class ListsAnswer(BaseModel, extra="forbid"):
    """An answer of lists; those that are empty may be left out, and `null` is empty."""

    @model_validator(mode="before")
    @classmethod
    def _lists_may_be_left_out(cls, answer: Any) -> Any:
        """The schema asks for all lists, but a model without structured output leaves out what would be empty."""
        names = list(cls.model_fields)
        if isinstance(answer, list) and getattr(cls, "from_list", False):
            answer = {names[0]: answer}
        if not isinstance(answer, dict) or not answer.keys() & {*names}:
            return answer
        return {name: [] for name in names} | {key: [] if each is None else each for key, each in answer.items()}


@dataclass(frozen=True)
class LLMEndpoints:
    """Endpoints by role, and the treatment of a part of an update for which no usable answer came."""

    endpoints: EndpointsConfig = field(default_factory=EndpointsConfig)
    on_failure: OnFailure = "stop"
    prompts: str | None = None
    """A set of templates, or a folder of the user's; see `Templates`."""

    def asking(self, role: Role) -> LLMQuerier:
        """The model of a role.

        Raises:
            ConfigError: there is none in the config, its key is missing, or a prompt cannot be read.
            MissingDependencyError: the packages of the extra `openai` are not installed.
        """
        return LLMQuerier(partial(make_client, self.endpoints, role), self.on_failure, Templates(self.prompts))


class LLMQuerier:
    """Queries one language model for JSON.

    Args:
        connect: makes a client; called for each round of questions, so that nothing stays open between the steps.
        on_failure: what becomes of a question without a usable answer.
        templates: where prompts are read from.
    """

    def __init__(
        self, connect: Callable[[], Client], on_failure: OnFailure = "stop", templates: Templates | None = None
    ) -> None:
        self.on_failure = on_failure
        self.templates = templates or Templates()
        self._connect = connect
        connect().shut()  # what is missing is found now, not after a cold start

    def ask(self, questions: Sequence[Sequence[Message]], schema: type[A]) -> list[A | EndpointError]:
        """Put all questions, as many at once as the client lets through; one answer or error each, in order.

        Raises:
            EndpointError: a question came to nothing, under `stop`.
            BudgetError: what may be spent is spent. Whatever the others answered is not to be used.
        """
        if not questions:
            return []
        found = wait_for(_put(self._connect(), questions, schema))
        wrong = [each for each in found if isinstance(each, BaseException)]
        grave = [each for each in wrong if self.on_failure == "stop" or not isinstance(each, EndpointError)]
        if grave:
            raise min(grave, key=lambda each: isinstance(each, EndpointError))  # the spent budget says more
        return [each for each in found if isinstance(each, BaseModel | EndpointError)]


@contextmanager
def bank_unchanged(what: str) -> Iterator[None]:
    """Append to errors of language models what they mean for the bank, and how to continue."""
    ways = "To continue without the model: --set skills.on_failure=skip, or heuristic."
    with annotate_error(EndpointError, f"{what} {ways}"), annotate_error(BudgetError, what):
        yield


def asking_model(
    model: str, *, api_key: str | None = None, base_url: str | None = None, on_failure: OnFailure = "stop"
) -> LLMQuerier:
    """A language model that is named in Python, without a config. A key that is handed in stays in memory.

    Raises:
        ConfigError: an address that is none, or no key for a server that needs one.
        MissingDependencyError: the packages of the extra `openai` are not installed.
    """
    try:
        endpoint = EndpointConfig(model=model, base_url=base_url)
    except ValidationError as error:
        raise ConfigError(f"base_url: {error.errors()[0]['msg'].removeprefix('Value error, ')}.") from None
    return LLMQuerier(lambda: Client(endpoint, "merger", key=api_key), on_failure)  # a partial would show the key


async def _put(client: Client, questions: Sequence[Sequence[Message]], schema: type[A]) -> list[A | BaseException]:
    try:
        asked = (client.json(question, schema) for question in questions)
        return list(await asyncio.gather(*asked, return_exceptions=True))
    finally:
        client.shut()


def fenced(tag: str, text: str, most: int = TEXT_CHARS, **attributes: object) -> str:
    """A text of unknown origin between tags that it cannot close, cut after `most` characters, which is said."""
    names = "".join(f' {name}="{attribute(value)}"' for name, value in attributes.items())
    return f"<{tag}{names}>\n{shortened(text, most)}\n</{tag}>"


def attribute(value: object) -> str:
    """A value as it may stand between the quotes of an attribute: on one line, escaped."""
    return " ".join(escape(str(value)).replace('"', "'").split())


def shortened(text: str, most: int) -> str:
    """The text escaped, and cut where it is longer than `most` characters."""
    text = escape_terminal(text)
    rest = len(text) - most
    return escape(text) if rest <= 0 else f"{escape(text[:most])}\n[… {rest} more characters are left out]"

"""The `openai` backend: a policy at a remote endpoint that speaks OpenAI's protocol. Its weights are not trained.

It works on text only. Request options that the protocol lacks are sent as vLLM's extensions with `endpoints.roles.policy.server_type: vllm`,
and otherwise handled as docs/endpoints.md states. A failed request becomes a completion with the reason in `error`; a server
that would refuse every request ends the run.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Coroutine, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from skill_ttrl.errors import BudgetError, ConfigError, EndpointError, SkillTTRLError
from skill_ttrl.llm.backend import Generation, Request, Sampling
from skill_ttrl.llm.chat import read_calls
from skill_ttrl.llm.openai.client import make_client
from skill_ttrl.llm.openai.replies import FATAL_KINDS, Choice, tokens_in_text
from skill_ttrl.types import Completion, FinishReason, Message, content, derive_seed, with_thought

if TYPE_CHECKING:
    from skill_ttrl.llm.backend import BackendContext

T = TypeVar("T")

GO_ON = "Go on with your answer exactly where it breaks off. Do not repeat any of it."
"""Said after an answer that was begun, to a server that cannot continue one."""
AROUND_A_MESSAGE = 4
"""Tokens that a chat template puts around a message, for estimates."""
_CLOSING = re.compile(r"</([\w-]+)>")
_IN_TAG = re.compile(r"""<[a-zA-Z][\w-]*+(?:\s++[\w-]++\s*+=\s*+(?:"[^"]*+"|'[^']*+'))++\s*+\Z""")
_TAG_CHARS = 2000
"""Longest tag that is looked for at the end of a text, in characters."""
EMPTY_END = "/>"


class TextBackend:
    """Base of backends that work on texts alone and cannot train: they encode nothing and take over no weights."""

    is_learner = trainable = blocking = False
    supports_structured_outputs = False
    max_model_len: int | None = None

    def __init__(self) -> None:
        self.policy_version = 0

    def encode(self, messages: Sequence[Message], tools: Sequence[str] = ()) -> None:
        """Return None: this backend works on text only."""

    def encode_next(self, message: Message, after: Completion | None = None) -> None:
        """Return None: this backend works on text only."""

    def encode_results(self, results: Sequence[Message], after: Completion) -> None:
        """Return None: this backend works on text only."""

    def encode_text(self, text: str) -> None:
        """Return None: this backend works on text only."""

    def count(self, messages: Sequence[Message]) -> int:
        """A quarter of the bytes."""
        texts = (message.content + "".join(call.arguments for call in message.calls) for message in messages)
        return sum(tokens_in_text(text) + AROUND_A_MESSAGE for text in texts)

    def count_text(self, text: str) -> int:
        """As `count`."""
        return tokens_in_text(text)

    def update_weights(self, policy_version: int) -> None:
        """Do nothing: these weights stay as they are."""

    def sleep(self) -> None:
        """Do nothing: there is nothing to give back."""


class ProgramBackend(TextBackend):
    """No model: the program that plays brings its own (`rollout.backend: none`), and nothing is sampled here."""

    def __init__(self, context: BackendContext) -> None:
        super().__init__()

    def close(self) -> None:
        """Nothing was started."""

    async def generate(self, requests: Sequence[Request], sampling: Sampling, *, seed: int) -> list[Generation]:
        """Raise `ConfigError`: there is nothing to sample from."""
        raise ConfigError("rollout.backend=none has no model to ask: a program plays (program.argv).")


class OpenAIBackend(TextBackend):
    """Samples from the role `policy` of `endpoints`. No model of its own is loaded.

    Raises:
        ConfigError: there is no such endpoint, its key is missing, it is to be trained, or `rollout.top_k` cannot be said to it.
        MissingDependencyError: the package openai is not installed.
    """

    def __init__(self, context: BackendContext) -> None:
        super().__init__()
        self.client = make_client(context.settings.endpoints, "policy")
        self.config = self.client.config
        self._vllm = self.config.server_type == "vllm"

    def close(self) -> None:
        """End the connections."""
        self.client.shut()

    async def generate(self, requests: Sequence[Request], sampling: Sampling, *, seed: int) -> list[Generation]:
        """Ask for every request; see `Backend.generate`.

        Raises:
            EndpointError: the server refuses whatever is asked: its key, model or address is wrong, or it is not there.
            BudgetError: the budget is spent. What was on its way has been waited for.
        """
        if sampling.top_k and not self._vllm:
            raise ConfigError(
                f"OpenAI's protocol has no top_k (rollout.top_k={sampling.top_k}). Set it to 0, or endpoints.roles.policy.server_type=vllm "
                "for a server that supports it."
            )
        return await all_of(
            self._generation(request, sampling, derive_seed(seed, "request", place))
            for place, request in enumerate(requests)
        )

    async def _generation(self, request: Request, sampling: Sampling, seed: int) -> Generation | BudgetError:
        messages, extra = request.messages, dict[str, Any]()
        if not self._vllm:  # these protocols take no thoughts back; a chat template knows what to do with them
            messages = tuple(
                replace(each, content=content(each.content)) if each.role == "assistant" else each for each in messages
            )
        if request.assistant_prefix:
            messages = (*messages, Message("assistant", request.assistant_prefix))
            if not self._vllm:
                messages = (*messages, Message("user", GO_ON))
        if request.tools:
            extra["tools"] = [json.loads(each) for each in request.tools]
        if self._vllm:
            extra |= {"top_k": sampling.top_k} if sampling.top_k else {}
            extra |= {"include_stop_str_in_output": True} if sampling.stop else {}
            if request.assistant_prefix:
                extra |= {"continue_final_message": True, "add_generation_prompt": False}
        try:
            reply = await self.client.chat(
                messages,
                n=request.n,
                temperature=sampling.temperature,
                top_p=sampling.top_p if sampling.top_p < 1 else None,
                max_tokens=request.limit(sampling),
                stop=sampling.stop,
                seed=seed,
                extra=extra,
            )
        except BudgetError as error:  # the others' answers are paid for: they are waited for
            return error
        except EndpointError as error:
            if error.kind in FATAL_KINDS:
                raise
            nothing = Completion("", (), (), "error", self.policy_version, error=str(error))
            return Generation((), (nothing,) * request.n)
        return Generation((), tuple(self._completion(choice, sampling, request.tools) for choice in reply.choices))

    def _completion(self, choice: Choice, sampling: Sampling, tools: Sequence[str] = ()) -> Completion:
        error = None
        if choice.outcome == "filtered":
            error = "The server's content filter cut the answer."
        elif choice.outcome == "tool_call" and not (tools and choice.calls):
            error = "The model called a tool, but none is offered."
        text = choice.refusal or choice.text  # a refusal is what the model said
        if error is not None:
            who = f"endpoints.roles.policy: {self.config.model!r} at {self.client.host}"
            return Completion("", (), (), "error", self.policy_version, error=f"{who}: {error}")
        reason: FinishReason = "length" if choice.finish_reason == "length" else "stop"
        if reason == "stop" and not self._vllm:
            text = with_stop_text(text, sampling.stop, choice.stopped_at)
        text = with_thought(choice.thought, text)
        calls = choice.calls
        if tools and not calls:  # some servers leave them in the text
            text, found = read_calls(text)
            calls = tuple(replace(each, id=f"call_{place}") for place, each in enumerate(found))
        made = Completion(text, (), choice.logprobs or (), reason, self.policy_version)
        return replace(made, calls=calls) if tools else made


def with_stop_text(text: str, stop: Sequence[str], stopped_at: str | None) -> str:
    """The text with the stop text that ended it, which most servers cut off.

    Where the server does not say which it was, `/>` is put back where the text ends inside a tag, and a closing tag where the
    text has opened it and not closed it; otherwise the model may just as well have ended by itself, and the text stays.
    """
    if stopped_at is not None:
        return text if text.endswith(stopped_at) else text + stopped_at
    if EMPTY_END in stop and _IN_TAG.search(text[-_TAG_CHARS:]):
        return text + EMPTY_END
    for mark in stop:
        tag = _CLOSING.fullmatch(mark)
        if tag and len(re.findall(rf"<{re.escape(tag[1])}(?=[\s>])", text)) > text.count(mark):
            return text + mark
    return text


async def all_of(asked: Iterable[Coroutine[Any, Any, T | BudgetError]]) -> list[T]:
    """All answers. An error cancels the others, but for a returned `BudgetError`: they are paid for, and are waited for.

    Raises:
        BudgetError: one was returned.
    """
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(each) for each in asked]
    except BaseExceptionGroup as errors:
        # The error that a user can do something about.
        raise min(errors.exceptions, key=lambda error: not isinstance(error, SkillTTRLError)) from None
    found = list[T]()
    for task in tasks:
        if isinstance(each := task.result(), BudgetError):
            raise each
        found.append(each)
    return found

"""The protocol of a rollout backend, and the requests it takes.

A `Request` is a prompt that is sampled `n` times; a backend takes many at once and answers in order. It is asynchronous
so that episodes of different lengths can share one engine. To add a backend, write a class with these members and name it as
`rollout.backend: module:attribute`: it is called with one `BackendContext`.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar

from skill_ttrl.config import RolloutConfig, SkillTTRLConfig
from skill_ttrl.errors import EndpointError
from skill_ttrl.sanitize import replace_surrogates
from skill_ttrl.signals import signals_held
from skill_ttrl.types import Completion, Message

if TYPE_CHECKING:
    from skill_ttrl.llm.models.load import LoadedModel

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to sample. `temperature` 0 is greedy; log-probs are then those of the untempered distribution."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    max_new_tokens: int = 512
    stop: tuple[str, ...] = ()
    """Texts that end a completion, which includes them; a last token that extends past one stays whole."""

    @classmethod
    def of(cls, how: RolloutConfig, temperature: float | None = None) -> Sampling:
        """How a config samples; at another temperature only its limits hold: length and stop texts."""
        if temperature is not None:
            return cls(temperature, max_new_tokens=how.max_new_tokens, stop=tuple(how.stop))
        return cls(how.temperature, how.top_p, how.top_k, how.max_new_tokens, tuple(how.stop))


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt, sampled `n` times: `messages` rendered by the backend, or exact `token_ids`."""

    messages: tuple[Message, ...] = ()
    n: int = 1
    token_ids: tuple[int, ...] | None = None
    """Exact prompt tokens. If given, a backend that works on tokens ignores `messages` and `assistant_prefix`."""
    assistant_prefix: str = ""
    """Text of the answer so far, which the completion continues; for backends that work on text only."""
    choice: tuple[str, ...] = ()
    """The completion is exactly one of these texts; empty: anything. Only for backends that say `supports_structured_outputs`."""
    slot_words: tuple[str, ...] = ()
    """The texts that may stand in the place `<...>` at the end of a choice, any number of them but at least one, with a space between two.
    Only for backends that say `limits_slots`."""
    max_new_tokens: int | None = None
    """Longest completion of this request, at most `Sampling.max_new_tokens`; None: that."""
    tools: tuple[str, ...] = ()
    """Schemas of the tools that the model may call, each as a JSON text `{"type": "function", "function": {...}}`."""

    def limit(self, sampling: Sampling) -> int:
        """Most tokens of a completion."""
        return min(self.max_new_tokens or sampling.max_new_tokens, sampling.max_new_tokens)


@dataclass(frozen=True, slots=True)
class Generation:
    """The `n` completions of one request and the prompt tokens they follow."""

    prompt_ids: tuple[int, ...]
    """Empty if the backend works on text only."""
    completions: tuple[Completion, ...]


@dataclass(frozen=True, slots=True)
class BackendFacts:
    """Properties of a kind of backend that the rest of the program goes by, known before one is made (`backend_facts`)."""

    is_learner: bool = False
    """Samples with the learner's own model object: no second copy of the weights, and log-probs that need no correction."""
    is_copy: bool = False
    """Samples with a copy of the learner's model in this process, while the learner trains (`rl.max_staleness`)."""
    trainable: bool = True
    """Can follow the learner's weights."""
    blocking: bool = False
    """`generate` blocks the event loop; concurrent requests are batched into one call."""
    remote: bool = False
    """Samples from what is not a model here, such as the one of `endpoints`: the section `model` is not used, and no weights are
    loaded."""
    log_probs: bool = True
    """Gives the log-prob each token was sampled with. One that does not cannot be trained with."""
    engine: bool = False
    """Runs an inference engine, with weights and a cache of its own, in this process."""
    structured: bool = False
    """Can restrict a completion to given texts (`Backend.supports_structured_outputs`)."""
    grows: bool = True
    """Has `encode_next`, and so can continue an episode as one sequence of tokens."""


class TokenCounter(Protocol):
    """Counts tokens, as a backend or a tokenizer alone can."""

    def count(self, messages: Sequence[Message]) -> int:
        """Tokens of a prompt; an estimate where the backend knows texts alone."""
        ...

    def count_text(self, text: str) -> int:
        """Tokens of a text; an estimate where the backend knows texts alone."""
        ...


class Backend(TokenCounter, Protocol):
    """A rollout backend, which also counts tokens (`TokenCounter`).

    One that has something to start before it can sample has `start()`: a rollout calls it before the time of its episodes counts.
    One that can hold on to what it computed for a request has `keeping()`, a context manager: a rollout whose prompts extend what was
    sampled enters it, and a later request that begins as an earlier one and its completion computes the rest alone.
    One whose agents may call tools has `encode(messages, tools)` with a second argument, `tool_calls` and `encode_results`, as
    `llm.chat.TokenizerMixin` has them; a remote one gives `Completion.calls`.
    With `rl.max_staleness` several threads ask, each from an event loop of its own; one that is `blocking` is never asked twice at a time, and none
    is asked during `update_weights` (`llm.hand_over`).
    """

    is_learner: bool
    """Samples with the learner's own model. A class attribute, like the next two; False if a custom backend leaves it out."""
    trainable: bool
    """True where it is left out."""
    blocking: bool
    """False where it is left out."""
    policy_version: int
    """Stamped on every completion; raised by `update_weights`."""
    supports_structured_outputs: bool
    """True if completions are limited to `Request.choice`: a class attribute of a backend of the user's own, False where it is left out. One
    that can limit slots to `Request.slot_words` too says `limits_slots`."""

    @property
    def max_model_len(self) -> int | None:
        """Most tokens of a prompt and its completion together; None: not known."""
        ...

    def encode(self, messages: Sequence[Message]) -> tuple[int, ...] | None:
        """Prompt tokens of a conversation that the assistant is to continue; None for a backend that knows texts alone."""
        ...

    def encode_next(self, message: Message, after: Completion | None = None) -> tuple[int, ...] | None:
        """Tokens between an answer and the next one: the message, and the beginning of the next answer (`llm.chat.encode_next`).

        With `after` the answer's end token comes first where it lacks one. None for a backend that knows texts alone, and one of the
        user's own may leave it out; neither takes `agent.context_mode: episode`.

        Raises:
            ConfigError: the chat template does not only append.
        """
        ...

    def encode_text(self, text: str) -> tuple[int, ...] | None:
        """Tokens of a text that is inserted into a completion; control tokens that it spells stay text. None as above."""
        ...

    async def generate(self, requests: Sequence[Request], sampling: Sampling, *, seed: int) -> list[Generation]:
        """One `Generation` for each request, in order.

        The same seed and requests give the same tokens, as far as the sampler can promise it (`hf` does; an engine whose
        sums depend on what else is in the batch does so nearly always; a remote model does not).
        """
        ...

    def update_weights(self, policy_version: int) -> None:
        """Take over the learner's present weights under this version number.

        Raises:
            WeightSyncError: what samples afterwards is not what the learner has.
        """
        ...

    def sleep(self) -> None:
        """Give back the memory that the learner could use. The next `update_weights` ends it."""
        ...

    def close(self) -> None:
        """Stop what the backend has started. It cannot be used afterwards."""
        ...


def refuse_error(generations: Sequence[Generation]) -> None:
    """For callers to whom a missing answer is no outcome.

    Raises:
        EndpointError: one of the completions came to nothing; says why.
    """
    for generation in generations:
        for completion in generation.completions:
            if completion.finish_reason == "error":
                raise EndpointError(completion.error or "The backend returned no answer.")


ROUNDING = 1e-3
"""Largest log-prob that rounding may explain, in nats."""


def checked(completion: Completion) -> Completion:
    """A backend's completion as it may be used: one with an invalid log-prob has failed (`finish_reason` "error").

    Halves of characters (lone surrogates) in its text are replaced one by one, so that spans of it stay right.
    """
    logprobs = completion.logprobs
    if logprobs and not (math.isfinite(sum(logprobs)) and max(logprobs) <= ROUNDING):
        place = next(i for i, each in enumerate(logprobs) if not (math.isfinite(each) and each <= ROUNDING))
        problem = (
            f"The backend gave token {place} the log-prob {logprobs[place]:g}: a log-prob is finite and at most 0."
        )
        return replace(completion, finish_reason="error", error=problem)
    text = replace_surrogates(completion.text)
    error = None if completion.error is None else replace_surrogates(completion.error)
    same = text == completion.text and error == completion.error
    return completion if same else replace(completion, text=text, error=error)


def wait_for(work: Coroutine[Any, Any, T]) -> T:
    """Run `work` to its end, also where an event loop is running already, as in a notebook."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return _run(work)
    with ThreadPoolExecutor(max_workers=1) as pool:
        return pool.submit(copy_context().run, _run, work).result()


def _run(work: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run`, but a signal whose handler raises finds no loop that is half made, nor work that nobody began."""
    runner: asyncio.Runner | None = None
    try:
        with signals_held():
            runner = asyncio.Runner()
            runner.get_loop()
        return runner.run(work)
    finally:
        with signals_held():
            if runner is not None:
                runner.close()
            work.close()


P = ParamSpec("P")
OnLearner = Callable[..., Any]
"""Called with a function and its arguments: runs the function on the learner's model, its first argument, on every rank that has a part
of it, and gives what it gives here."""


@dataclass(frozen=True)
class BackendContext:
    """The argument of a backend. One of the user's own reads what it needs of it."""

    settings: SkillTTRLConfig
    """The whole config."""
    load: Callable[[], LoadedModel]
    """Loads the learner's model; see `loaded`."""
    device: str = "cpu"
    """Where the learner computes."""
    weights: Path | None = None
    """Checkpoint that the policy is taken from, in place of `model.path`."""
    trains: bool = False
    """True if the weights will change: then `update_weights` follows each step."""
    autocast: Any = None
    """torch dtype of the learner's forward pass where it differs from its weights'."""
    notice: Callable[[str], None] = field(default=lambda text: None)
    """Tells the user something, such as that a server is being waited for."""
    stopping: Callable[[], bool] = field(default=lambda: False)
    """True once the user wants to leave: then nothing that was lost is waited for."""
    over_ranks: OnLearner | None = None
    """How to reach a learner's model that spans several ranks; None: it is here."""

    @cached_property
    def loaded(self) -> LoadedModel:
        """The learner's model and tokenizer, loaded at the first look."""
        return self.load()

    def on_learner(self, function: Callable[Concatenate[Any, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a module's own function on the learner's model, which may span several ranks: its whole weights are nowhere else to be had."""
        model = self.loaded.model
        if self.over_ranks is None:
            return function(model, *args, **kwargs)
        result: T = self.over_ranks(function, *args, **kwargs)
        return result


class BackgroundEventLoop:
    """Runs work for callers of any event loop. The thread starts with the first piece and ends for good with `close`."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of `work`. Cancelling the caller cancels the work.

        Raises:
            RuntimeError: after `close`.
        """
        with self._lock:
            if self._closed:
                work.close()
                raise RuntimeError(f"{self._name} is closed.")
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._loop.run_forever, name=self._name, daemon=True)
                self._thread.start()
            running = asyncio.run_coroutine_threadsafe(work, self._loop)
        return await asyncio.wrap_future(running)

    def close(self, last: Coroutine[Any, Any, None] | None = None) -> None:
        """Cancel what still runs and wait for it, do `last`, and end the thread. Safe to call twice."""
        with self._lock:
            self._closed = True
            loop, thread, self._loop, self._thread = self._loop, self._thread, None, None
        if loop is None or thread is None:
            if last is not None:
                last.close()
            return
        asyncio.run_coroutine_threadsafe(_end(last), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _end(last: Coroutine[Any, Any, None] | None) -> None:
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    if last is not None:
        await last

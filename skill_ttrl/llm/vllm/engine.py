"""A vLLM engine inside this process, in a thread of its own.

One thread owns the engine. Whoever wants something of it puts work into its inbox: requests, which join the running batch
at its next step (continuous batching), or a function that needs the whole engine, such as an update of its weights. What vLLM
changes for the whole process when it starts (seeds, threads, default dtype) is put back, since the learner lives here too.
"""

from __future__ import annotations

import itertools
import logging
import os
import queue
import random
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch

from skill_ttrl.errors import ConfigError, ModelError, on_error
from skill_ttrl.llm.models.weights import has_adapters
from skill_ttrl.llm.vllm.plugin.skillttrl_head import pack_output_layer

T = TypeVar("T")

ENVIRONMENT = {
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",  # its INFO would tear the progress view ...
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",  # ... and a word on stdout what other programs read there
}
"""Set before vLLM is imported, where the user has not."""
DUMP = "vllm.logging_utils.dump_input"
"""vLLM's logger that writes the whole input of a step that failed."""
IN_PROCESS = "VLLM_ENABLE_V1_MULTIPROCESSING"
"""Where this is not "0", vLLM computes in processes of its own, which the learner's tensors do not reach."""

_only = threading.Lock()
"""Held by the engine of this process. vLLM's process groups are the process's own, and the end of one engine is the end of them."""


@dataclass(frozen=True, slots=True)
class Work:
    """One request as the engine takes it."""

    prompt_ids: Sequence[int]
    params: Any
    """vLLM's `SamplingParams`."""
    lora: Any = None
    """vLLM's `LoRARequest`, where an adapter is to be used."""


class Engine:
    """Starts when it is made, with arguments of `vllm.LLM`; `close` ends it. A process can have one at a time.

    Args:
        arguments: Of `vllm.LLM`.

    Raises:
        ConfigError: there is one already, or the learner has a process group.
        ModelError: vLLM could not start with them.
    """

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        self._inbox: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._waiting: dict[str, Future[Any]] = {}
        self._names = map(str, itertools.count())
        self._broken: Exception | None = None
        self._closed = False
        self._llm: Any = None
        _claim()
        ready: Future[None] = Future()
        threads = torch.get_num_threads()
        live = partial(self._live, dict(arguments), threads, ready)
        self._thread = threading.Thread(target=live, name="vllm", daemon=True)
        self._thread.start()
        try:
            ready.result()
        except Exception as error:
            raise ModelError(
                f"vLLM could not start with {arguments.get('model')}: {reason(error)}. VLLM_LOGGING_LEVEL=INFO logs more; rollout.backend=hf works without vLLM."
            ) from error
        except BaseException:  # a signal: nobody waits for the engine any more
            self._inbox.put(None)
            raise

    def submit(self, work: Iterable[Work]) -> list[Future[Any]]:
        """Hand in requests, which join the batch together; each future gives vLLM's finished `RequestOutput`.

        A future that is cancelled takes its request out of the batch.
        """
        self._refuse_unusable()
        entries = [(next(self._names), each, Future[Any]()) for each in work]
        for name, _, future in entries:
            future.add_done_callback(partial(self._leave, name))
        self._inbox.put(partial(self._add, entries))
        return [future for *_, future in entries]

    def call(self, function: Callable[[Any], T]) -> T:
        """Run `function(llm)` in the engine's thread between two steps and return its result.

        Raises:
            RuntimeError: requests are running: half of their tokens would be sampled before it and half after it.
        """
        self._refuse_unusable()
        future: Future[T] = Future()

        def run() -> None:
            try:
                if self._waiting:
                    raise RuntimeError(f"The engine has {len(self._waiting)} requests that have not ended.")
                future.set_result(function(self._llm))
            except BaseException as error:
                future.set_exception(error)

        self._inbox.put(run)
        return future.result()

    def close(self) -> None:
        """End the engine and its thread; what still waits for it is cancelled."""
        if not self._closed:
            self._closed = True
            self._inbox.put(None)
            self._thread.join()

    def _refuse_unusable(self) -> None:
        if self._closed:
            raise RuntimeError("The vLLM engine is closed.")
        if self._broken is not None:
            raise ModelError(f"vLLM's engine failed before: {reason(self._broken)}.") from self._broken

    def _live(self, arguments: dict[str, Any], threads: int, ready: Future[None]) -> None:
        """The engine's thread, from the start of the engine to its end."""
        try:
            self._llm = _start(arguments, threads)
        except BaseException as error:
            _only.release()
            ready.set_exception(error)
            return
        ready.set_result(None)
        try:
            while self._take():
                if self._waiting:
                    self._step()
        finally:
            for future in list(self._waiting.values()):
                future.cancel()
            try:
                self._end()
            finally:
                _only.release()

    def _take(self) -> bool:
        """Do what was asked for, and wait for it where there is nothing else to do. False when it was to end."""
        block = not self._waiting
        while True:
            try:
                work = self._inbox.get(block=block)
            except queue.Empty:
                return True
            if work is None:
                return False
            try:
                work()
            except Exception as error:  # the thread must not die of it: others wait for what comes next
                self._break(error)
            block = False

    def _add(self, entries: Sequence[tuple[str, Work, Future[Any]]]) -> None:
        for name, work, future in entries:
            if future.cancelled():
                continue
            prompt = {"type": "token", "prompt_token_ids": list(work.prompt_ids)}
            try:
                if self._broken is not None:
                    raise self._broken
                self._llm.llm_engine.add_request(name, prompt, work.params, lora_request=work.lora)
            except Exception as error:
                _fail(future, "vLLM refused a request", error)
            else:
                self._waiting[name] = future

    def _leave(self, name: str, future: Future[Any]) -> None:
        if future.cancelled() and not self._closed:
            self._inbox.put(partial(self._abort, name))

    def _abort(self, name: str) -> None:
        if self._waiting.pop(name, None) is not None:
            self._llm.llm_engine.abort_request([name])

    def _step(self) -> None:
        try:
            with torch.random.fork_rng(devices=[]):  # on a CPU vLLM draws from the process's generator, seeds or not
                outputs = self._llm.llm_engine.step()
        except Exception as error:
            self._break(error)
            return
        for output in outputs:
            if output.finished and output.request_id in self._waiting:
                with suppress(InvalidStateError):  # it was cancelled meanwhile
                    self._waiting.pop(output.request_id).set_result(output)

    def _break(self, error: Exception) -> None:
        """The engine cannot be used any more: tell everybody who waits for it."""
        self._broken = error
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            _fail(future, "vLLM's engine failed", error)

    def _end(self) -> None:
        from vllm.distributed import cleanup_dist_env_and_memory

        client, self._llm = self._llm.llm_engine.engine_core, None
        client.shutdown()
        cleanup_dist_env_and_memory()


def reason(error: BaseException) -> str:
    """Return the type and message of a vLLM error in one line, the message cut to 600 characters."""
    text = " ".join(str(error).split()).rstrip(".")
    return f"{type(error).__name__}: {text[:600]}" if text else type(error).__name__


def _fail(future: Future[Any], what: str, error: Exception) -> None:
    found = ModelError(f"{what}: {reason(error)}.")
    found.__cause__ = error
    with suppress(InvalidStateError):  # it was cancelled meanwhile
        future.set_exception(found)


def set_environment() -> None:
    """Set the environment variables and log levels that vLLM needs before its import."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    os.environ[IN_PROCESS] = "0"
    level = os.environ["VLLM_LOGGING_LEVEL"].upper()
    logging.getLogger("vllm").setLevel(level)  # it speaks before it reads that itself
    # A step that fails would write all that it was given, prompts and all.
    if level == ENVIRONMENT["VLLM_LOGGING_LEVEL"]:
        logging.getLogger(DUMP).setLevel(logging.CRITICAL)


def _claim() -> None:
    """Make the caller's engine the one of this process, or say why there cannot be another: its end is that of all process groups."""
    grouped = torch.distributed.is_available() and torch.distributed.is_initialized() and not _only.locked()
    if grouped or not _only.acquire(blocking=False):
        raise ConfigError(
            f"This process has {'a process group of the learner' if grouped else 'a vLLM engine'} already, and an engine must be alone. "
            "Start servers (skillttrl serve) and set vllm.mode=server."
        )


def _start(arguments: Mapping[str, Any], threads: int) -> Any:
    """A `vllm.LLM` that computes in this process, in this thread, with `threads` CPU threads."""
    torch.set_num_threads(threads)  # each thread has its own number
    with process_untouched(), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        from vllm import LLM
        from vllm.distributed import cleanup_dist_env_and_memory

        # On a CPU vLLM 0.32 reads `vars()` of whatever a loaded module holds. llvmlite's library (of numba, of bm25s) answers every name
        # with a function of C, `__dict__` too.
        if ffi := sys.modules.get("llvmlite.binding.ffi"):
            ffi.lib._fntab.setdefault("__dict__", {})
        with on_error(cleanup_dist_env_and_memory):
            return LLM(**arguments)


@contextmanager
def process_untouched() -> Iterator[None]:
    """Puts back what vLLM sets for the whole process when it starts: random states, the default dtype, torch's threads, the hook
    for uncaught errors.

    On a CPU it also replaces `torch.set_num_threads` by a function that does nothing.
    """
    hook = sys.excepthook
    states = random.getstate(), np.random.get_state()
    dtype, precision = torch.get_default_dtype(), torch.get_float32_matmul_precision()
    set_threads, threads = torch.set_num_threads, torch.get_num_threads()
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices=devices):
        try:
            yield
        finally:
            sys.excepthook = hook
            torch.set_num_threads = set_threads
            torch.set_num_threads(threads)
            torch.set_default_dtype(dtype)
            torch.set_float32_matmul_precision(precision)
            random.setstate(states[0])
            np.random.set_state(states[1])


def reload_weights(llm: Any, weights: Any) -> None:
    """Put `weights`, (name, tensor) pairs as the model's checkpoint names them, tied ones once, in the place of an engine's own."""
    llm.collective_rpc("reload_weights", kwargs={"weights_iterator": weights})
    llm.apply_model(pack_output_layer)


def adapted_layers(model: Any) -> list[str]:
    """Names of the layers that have adapters, without the path to them.

    vLLM makes room for adapters on these alone. Left to itself it also takes the output layer where it is not tied to the
    embedding, and such an engine cannot score a prompt (0.32, on a CPU).

    Raises:
        ConfigError: the output layer has adapters, or there are none.
    """
    if not has_adapters(model):
        raise ConfigError("vllm.weight_sync=lora, but the policy that was loaded has no adapters. Set it to full.")
    names = {name.rpartition(".")[2] for name, layer in model.named_modules() if hasattr(layer, "get_delta_weight")}
    if "lm_head" in names:
        raise ConfigError("vllm.weight_sync=lora cannot follow adapters on the output layer (lm_head). Set it to full.")
    return sorted(names)


def score(engine: Engine, sequences: Sequence[Sequence[int]], lora: Any = None) -> list[list[float]]:
    """The engine's log-prob of each token but the first (nats, temperature 1), sequence by sequence.

    Each sequence of token ids is at least one shorter than the engine's length. `lora` is vLLM's `LoRARequest`.
    """
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    params = SamplingParams(
        temperature=0,  # its one token is thrown away
        max_tokens=1,
        prompt_logprobs=0,
        flat_logprobs=True,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )
    outputs = [future.result() for future in engine.submit([Work(ids, params, lora) for ids in sequences])]
    return [list(output.prompt_logprobs.logprobs) for output in outputs]

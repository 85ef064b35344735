"""vLLM requests and their results, shared by the engine in this process and by servers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from skill_ttrl.config import BUILTIN
from skill_ttrl.errors import ModelError
from skill_ttrl.llm.backend import Request, Sampling
from skill_ttrl.llm.chat import end_ids
from skill_ttrl.llm.models.load import load_tokenizer
from skill_ttrl.llm.models.model_config import load_model_config
from skill_ttrl.llm.vllm.checks import is_adapter
from skill_ttrl.types import Completion, FinishReason, derive_seed

if TYPE_CHECKING:
    from skill_ttrl.llm.context import BackendContext

SEEDS = 2**62
"""vLLM adds a sample's number to the seed of its request and keeps the sum in 64 bits."""
REASONS: dict[str, FinishReason] = {"stop": "stop", "length": "length"}


def request_seed(seed: int, number: int) -> int:
    """The seed of the request with this number: each draws its own samples."""
    return derive_seed(seed, "request", number) % SEEDS


def check_prompt(prompt: Sequence[int], length: int, whose: str) -> None:
    """Raise `ModelError` for a prompt that is empty or leaves no room for a token in `length`, prompt and completion together.

    `whose` says what has this length, and where it is set, for the message.
    """
    if not prompt:
        raise ModelError("A prompt has no tokens; a model can only continue a text that has begun.")
    if len(prompt) >= length:
        raise ModelError(f"A prompt of {len(prompt)} tokens does not fit {whose.format(length)}.")


def sampling_fields(
    request: Request, sampling: Sampling, seed: int, *, eos_ids: Iterable[int], room: int
) -> dict[str, Any]:
    """How vLLM is to sample, by the names that its `SamplingParams` and its HTTP interface have in common.

    Greedy samples are all the same: vLLM draws one and `completions` repeats it. `eos_ids` end a completion; `room` is the
    number of tokens that the prompt leaves.
    """
    return {
        "n": request.n if sampling.temperature > 0 else 1,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "seed": seed,
        "max_tokens": min(request.limit(sampling), room),
        "stop": list(sampling.stop),
        "include_stop_str_in_output": True,
        "stop_token_ids": sorted(eos_ids),
        "logprobs": 0,
    }


def completions(
    tokenizer: Any, samples: Sequence[tuple[tuple[int, ...], tuple[float, ...], str | None]], n: int, version: int
) -> tuple[Completion, ...]:
    """`n` completions of what vLLM gave: (token ids, their log-probs, its word for why it ended) of each sample.

    The texts are the tokenizer's, of the very tokens.
    """
    texts = tokenizer.batch_decode([list(ids) for ids, _, _ in samples], skip_special_tokens=True)
    found = tuple(
        Completion(text, ids, logprobs, REASONS.get(ended or "", "error"), version, completion_mask=(True,) * len(ids))
        for text, (ids, logprobs, ended) in zip(texts, samples, strict=True)
    )
    return found if len(found) == n else found * n


def read_policy(context: BackendContext) -> tuple[Any, Any, set[int]]:
    """(tokenizer, transformers' config, tokens that end a completion) of the policy, whose weights are loaded only where they
    are needed anyway.

    Raises:
        ModelError: the model is not there, or nothing could end its completions.
    """
    base, weights = context.model.config, context.model.weights
    if context.model.trains or (weights is None and base.path == BUILTIN):  # the learner has loaded it, or soon will
        loaded: Any = context.loaded
        return loaded.tokenizer, loaded.model.config, end_ids(loaded.model, loaded.tokenizer)
    from transformers import GenerationConfig

    own = base.model_copy(update={"path": str(weights), "revision": None})
    tokenizer = load_tokenizer(base if weights is None else own)
    files = base if weights is None or is_adapter(weights) else own
    model_config = load_model_config(files)
    try:
        generation = GenerationConfig.from_pretrained(files.path, revision=files.revision or "main")
    except OSError:  # many a model has none
        generation = GenerationConfig.from_model_config(model_config)
    return tokenizer, model_config, end_ids(SimpleNamespace(generation_config=generation), tokenizer)

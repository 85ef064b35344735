"""Weights come to a running engine as a safetensors file: vLLM's weight-transfer backend `skillttrl`.

Loaded by every process of a server as one of vLLM's general plugins. The order is that of vLLM's own engines for weights in
checkpoint format (`vllm/distributed/weight_transfer/ipc_engine.py`): layer by layer, kernels rebuilt as layers fill.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from skillttrl_guard import FOLDER_VARIABLE, inside  # type: ignore[import-not-found]
from skillttrl_head import pack_output_layer  # type: ignore[import-not-found]
from vllm.distributed.weight_transfer.base import WeightTransferEngine, WeightTransferInitInfo, WeightTransferUpdateInfo

BACKEND = "skillttrl"


def register() -> None:
    """Make the backend known to vLLM; called in each of its processes."""
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

    if BACKEND not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(BACKEND, TransferEngine)


@dataclass
class TransferInit(WeightTransferInitInfo):  # type: ignore[misc]  # vLLM is not there when types are checked
    """Settings of an engine before it takes weights: none."""


@dataclass
class TransferUpdate(WeightTransferUpdateInfo):  # type: ignore[misc]
    """Which file holds the weights."""

    path: str = ""


class TransferEngine(WeightTransferEngine[TransferInit, TransferUpdate]):  # type: ignore[misc]
    """Takes all weights from a file in the folder that the server was started with."""

    init_info_cls = TransferInit
    update_info_cls = TransferUpdate

    def init_transfer_engine(self, init_info: TransferInit) -> None:
        """Nothing to prepare."""

    def start_weight_update(self) -> None:
        """Put the layers into the state in which they take weights."""
        from vllm.model_executor.model_loader.reload import initialize_layerwise_reload

        initialize_layerwise_reload(self.model)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """As the base class, but there is nothing to wait for where there is no accelerator; after a failure the next update can begin."""
        try:
            self.receive_weights(self.parse_update_info(update_info))
        except BaseException:
            with contextlib.suppress(Exception):  # what went wrong before says more
                self.finish_weight_update()  # layers that wait for weights would refuse those of the next update
            raise
        if self.device.type != "cpu":
            torch.accelerator.synchronize()

    def receive_weights(self, update_info: TransferUpdate) -> None:
        """Load the weights into the model."""
        from vllm.model_executor.model_loader.weight_utils import safetensors_weights_iterator

        path = update_info.path
        if inside(path, os.environ.get(FOLDER_VARIABLE, "")) and Path(path).is_file():
            self.model.load_weights(safetensors_weights_iterator([path], use_tqdm_on_load=False))
        else:
            raise ValueError("Weights are read from a file in the folder that the server was started with, no other.")

    def finish_weight_update(self) -> None:
        """Rebuild what is left, and the packed copy of a tied output layer, which the reload does not know of."""
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

        finalize_layerwise_reload(self.model, self.model_config)
        pack_output_layer(self.model)

    def shutdown(self) -> None:
        """Nothing to leave."""

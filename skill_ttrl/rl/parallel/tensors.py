"""Tensors that may be sharded over the ranks (`DTensor`) or plain: what the optimizer and checkpoints need of both."""

from __future__ import annotations

from torch import Tensor
from torch.distributed.tensor import DTensor, Shard, distribute_tensor


def whole(tensor: Tensor) -> Tensor:
    """A sharded tensor as a plain one, gathered on every rank; a plain one as it is."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def local(tensor: Tensor) -> Tensor:
    """This rank's part of a sharded tensor, which shares its memory; a plain one as it is."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def like(value: Tensor, model: Tensor) -> Tensor:
    """A plain tensor that every rank has, sharded as `model` is; as it is where `model` is plain or of another shape."""
    if not isinstance(model, DTensor) or isinstance(value, DTensor) or value.shape != model.shape:
        return value
    # Every rank cuts out its own part: nothing is sent.
    placed = value.to(model.device_mesh.device_type)
    sharded: Tensor = distribute_tensor(placed, model.device_mesh, [Shard(0)], src_data_rank=None)
    return sharded.to(model.to_local().device)

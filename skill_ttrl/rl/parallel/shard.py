"""Weights spread over the ranks: torch's `fully_shard` (FSDP2) for each decoder layer and then the root.

Each rank holds 1/size of every parameter, gradient and optimizer moment; a layer's whole weights are there while it computes. The
root is entered through `inside`, because the learner calls decoder and head by themselves and not the model's own `forward`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
    FSDPModule,
    MixedPrecisionPolicy,
    fully_shard,
    register_fsdp_forward_method,
)
from torch.utils._pytree import tree_map_only

from skill_ttrl.errors import ModelError
from skill_ttrl.rl.parallel.ranks import Ranks, like, local

T = TypeVar("T")

_ENTRY = "skill_ttrl_inside"


class Sharding:
    """A model whose parameters are sharded in place over all ranks; made on every rank at the same time.

    Args:
        model: A causal language model of transformers, plain or with peft adapters; its weights may be on the CPU.
        device: Where this rank computes.
        size: Number of ranks.
        compute: Dtype of the forward pass where it is not that of the weights; gradients are summed in float32.

    Raises:
        ModelError: the model's decoder layers are not to be found.
    """

    def __init__(
        self,
        model: Any,
        device: torch.device,
        size: int,
        *,
        compute: torch.dtype | None = None,
    ) -> None:
        self.mesh: DeviceMesh = init_device_mesh(device.type, (size,))
        self._model = model
        self._gathered = False
        options: dict[str, Any] = {
            "mesh": self.mesh,
            "reshard_after_forward": True,  # a layer's whole weights are gathered again for the backward pass
            "mp_policy": MixedPrecisionPolicy(param_dtype=compute, reduce_dtype=torch.float32 if compute else None),
        }
        for layer in decoder_layers(model):
            fully_shard(layer, **options)
        fully_shard(model, **options)
        for part in self._parts():
            # The losses of all ranks add up: the denominators are those of the whole mini-batch.
            part.set_gradient_divide_factor(1.0)
            part.set_force_sum_reduction_for_comms(True)
        setattr(type(model), _ENTRY, _call)
        register_fsdp_forward_method(model, _ENTRY)

    def inside(self, work: Callable[[], T]) -> T:
        """Run `work`, which calls parts of the model, as if it were the model's forward pass."""
        result: T = getattr(self._model, _ENTRY)(work)
        return result

    @torch.no_grad()
    def fill(self, values: Mapping[str, Tensor], ranks: Ranks) -> None:
        """Give every rank its shard of the driver's values, one parameter at a time, and the buffers.

        Args:
            values: On the driver the whole parameters, by name; nothing elsewhere.
            ranks: All of them.
        """
        device = torch.device(self.mesh.device_type)
        for name, parameter in self._model.named_parameters():
            value = (
                values[name].to(device)
                if values
                else torch.empty(parameter.shape, dtype=parameter.dtype, device=device)
            )
            ranks.copy_from_driver_([value])
            local(parameter).copy_(local(like(value, parameter)))
        ranks.copy_from_driver_(list(self._model.buffers()))

    def gather(self) -> None:
        """Gather all weights on every rank, to sample with them; forward passes then take no collective until `release`."""
        if not self._gathered:
            for part in self._parts():
                part.set_reshard_after_forward(False, recurse=False)
                part.unshard()
            self._gathered = True

    def release(self) -> None:
        """Free the gathered weights; every rank holds its shard alone again."""
        for part in self._parts():
            part.reshard()
            if self._gathered:
                part.set_reshard_after_forward(True, recurse=False)
        self._gathered = False

    def _parts(self) -> Iterator[FSDPModule]:
        return (module for module in self._model.modules() if isinstance(module, FSDPModule))


def _call(self: Any, work: Callable[[], T]) -> T:
    # An in-place operation on a view would drop the hook that gathers the weights for the backward pass.
    return tree_map_only(Tensor, lambda tensor: tensor.clone() if tensor._is_view() else tensor, work())  # type: ignore[no-any-return]


def decoder_layers(model: Any) -> list[nn.Module]:
    """The decoder layers of a transformers model, by the class names that it gives for device maps (`_no_split_modules`).

    Raises:
        ModelError: it names none, or has none of that class.
    """
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    names = set(getattr(base, "_no_split_modules", None) or ())
    found = [module for module in base.get_decoder().modules() if type(module).__name__ in names]
    if not found:
        raise ModelError(
            f"{type(base).__name__} does not declare which of its modules are decoder layers (_no_split_modules), so its weights "
            "cannot be sharded. Use runtime.parallel=ddp."
        )
    return found

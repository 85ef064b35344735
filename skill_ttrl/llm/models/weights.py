"""The learner's weights as another sampler reads them: Hugging Face names, adapters folded in."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load, save
from torch import Tensor, nn

from skill_ttrl.errors import CheckpointError, ConfigError

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

SHARDS = "shards"
WEIGHTS = "model."
"""Begins the keys of the model's weights, which are their names after it."""


def is_sharded(folder: Path) -> bool:
    """True if the weights of this checkpoint are in pieces."""
    return (folder / SHARDS / ".metadata").is_file() and not any(folder.glob("*.safetensors"))


def write_shards(folder: Path, tensors: Mapping[str, Tensor], group: ProcessGroup | None = None) -> None:
    """Write tensors into `folder`/shards: of a sharded one each rank its part. All ranks of the group call this at the same time.

    Args:
        folder: Checkpoint that is being written.
        tensors: By key; plain ones are the same on every rank.
        group: The ranks, a group that can send objects; None: this process alone.
    """
    from torch.distributed.checkpoint.filesystem import FileSystemWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    with _quiet():
        save(
            dict(tensors), storage_writer=FileSystemWriter(folder / SHARDS), process_group=group, no_dist=group is None
        )


def read_shards(folder: Path, targets: Mapping[str, Tensor], group: ProcessGroup | None = None) -> None:
    """Fill `targets` in place, plain or sharded over the ranks of `group`, which call this at the same time.

    Raises:
        CheckpointError: a key is not there, or a file cannot be read.
    """
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.state_dict_loader import load

    try:
        with _quiet():
            load(
                dict(targets),
                storage_reader=FileSystemReader(folder / SHARDS),
                process_group=group,
                no_dist=group is None,
            )
    except (CheckpointException, OSError, RuntimeError, KeyError, EOFError) as error:
        reason = " ".join(str(error).split())[:300]
        raise CheckpointError(f"Checkpoint {folder} is damaged: its {SHARDS} cannot be read ({reason}).") from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the warning that one process is meant where one process is meant."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield


def stored_sizes(folder: Path, keys: Collection[str]) -> dict[str, tuple[torch.Size, torch.dtype]]:
    """Size and dtype of these tensors.

    Raises:
        CheckpointError: one is not there.
    """
    from torch.distributed.checkpoint.filesystem import FileSystemReader

    try:
        found: dict[str, Any] = FileSystemReader(folder / SHARDS).read_metadata().state_dict_metadata
        return {key: (found[key].size, found[key].properties.dtype) for key in keys}
    except (OSError, EOFError, KeyError, AttributeError) as error:
        raise CheckpointError(f"Checkpoint {folder} is damaged: its {SHARDS} do not hold {error}.") from None


def weights_of(model: torch.nn.Module) -> dict[str, Tensor]:
    """Return the tensors of a model that `shards` hold, by key: its parameters (tied ones once) and its persistent buffers."""
    saved = model.state_dict().keys()
    named = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return {f"{WEIGHTS}{name}": tensor.detach() for name, tensor in named.items() if name in saved}


@torch.no_grad()
def full_weights(model: Any) -> Iterator[tuple[str, Tensor]]:
    """(name, tensor) of every parameter of a causal model, plain or wrapped by peft, as its checkpoint names them; tied ones once.

    Adapters are folded into copies, one matrix at a time: the model itself is not touched, so nothing drifts however often
    this is done. Of a model that is spread over ranks all of them iterate: each tensor is gathered when its turn comes.
    """
    adapted = has_adapters(model)
    if adapts_tied_head(model):
        raise ConfigError(
            "These adapters change the embedding or the head of a model in which both are one matrix, which a separate sampler cannot follow. Set rollout.backend=hf."
        )
    base = model.get_base_model() if adapted else model
    layers = {name: layer for name, layer in base.named_modules() if adapted and hasattr(layer, "get_delta_weight")}
    for name, parameter in base.named_parameters():
        value = parameter.detach()
        owner, _, kind = name.rpartition(".base_layer.")
        if owner in layers:
            for adapter in layers[owner].active_adapters if kind == "weight" else ():
                value = value + layers[owner].get_delta_weight(adapter).to(value.dtype)
            yield f"{owner}.{kind}", gathered(value)
        elif not any(name.startswith(f"{layer}.") for layer in layers):
            yield name, gathered(value)


def adapts_tied_head(model: Any) -> bool:
    """True if adapters sit on the embedding or the head of a model in which both are one matrix."""
    if not has_adapters(model):
        return False
    base = model.get_base_model()
    ends = base.get_input_embeddings(), base.get_output_embeddings()
    matrices = [getattr(end, "base_layer", end).weight for end in ends]
    return matrices[0] is matrices[1] and any(hasattr(end, "get_delta_weight") for end in ends)


def merge_adapters(model: Any) -> Any:
    """Fold adapters into the weights, for a model without peft. Where they part the head from the embedding, it gets a matrix of its own."""
    if adapts_tied_head(model):
        base = model.get_base_model()
        head = base.get_output_embeddings()
        layer = getattr(head, "base_layer", head)
        layer.weight = nn.Parameter(layer.weight.detach().clone(), requires_grad=False)
        base.config.tie_word_embeddings = base.config.get_text_config().tie_word_embeddings = False
    return model.merge_and_unload()


@torch.no_grad()
def trained_weights(model: Any) -> dict[str, Tensor]:
    """Every parameter that learns, whole, by its name in the model: with adapters these alone."""
    return dict(each_trained_weight(model))


@torch.no_grad()
def each_trained_weight(model: Any) -> Iterator[tuple[str, Tensor]]:
    """`trained_weights` one after the other: each is gathered when its turn comes."""
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            yield name, gathered(parameter.detach())


def pack_weights(weights: Iterable[tuple[str, Tensor]]) -> bytes:
    """The weights as they travel to another process: in the format of safetensors."""
    return save({name: tensor.cpu().contiguous() for name, tensor in weights})


@torch.no_grad()
def take_weights(model: Any, packed: bytes) -> None:
    """Copy weights that `pack_weights` packed into the parameters of the same names.

    Raises:
        KeyError: a parameter that learns is not among them.
    """
    weights = load(packed)
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            parameter.copy_(weights[name])


def gathered(tensor: Tensor) -> Tensor:
    """A tensor that is spread over ranks as a whole one, gathered on each of them; a plain one as it is."""
    whole: Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return whole


def has_adapters(model: Any) -> bool:
    """True if peft wraps the model."""
    return hasattr(model, "get_base_model")

"""Tensors of a checkpoint in pieces, one file a rank (torch.distributed.checkpoint): read again with any number of ranks, or with one.

The pieces stand in the folder `shards` of a checkpoint whose weights were spread over ranks. The rest of it is a model folder without
weights: configs and tokenizer.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from skill_ttrl.errors import CheckpointError

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

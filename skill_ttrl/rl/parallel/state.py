"""State of a learner whose tensors are sharded, as a checkpoint holds it: plain data in one file, the tensors in pieces.

`split_tree` takes the sharded tensors out and leaves their keys; `join_tree` puts them back, sharded over as many ranks as there are
now, or whole where there is one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor import empty as empty_dtensor

from skill_ttrl.llm.models.weights import read_shards, stored_sizes
from skill_ttrl.rl.parallel.ranks import ALONE, Ranks

_STORED = "stored in shards"


def split_tree(tree: Any, path: str) -> tuple[Any, dict[str, Tensor]]:
    """(the tree with keys in the place of sharded tensors, these tensors by key); keys begin with `path`."""
    if isinstance(tree, DTensor):
        return {_STORED: path}, {path: tree}
    if not isinstance(tree, (dict, list, tuple)):
        return tree, {}
    parts = tree.items() if isinstance(tree, dict) else enumerate(tree)
    split = {name: split_tree(part, f"{path}.{name}") for name, part in parts}
    tensors = {key: tensor for _, found in split.values() for key, tensor in found.items()}
    rest = {name: each for name, (each, _) in split.items()}
    return (rest if isinstance(tree, dict) else type(tree)(rest.values())), tensors


def join_tree(tree: Any, folder: Path, mesh: DeviceMesh | None = None, ranks: Ranks = ALONE) -> Any:
    """The tree with the tensors that `split_tree` took out, read from `folder`.

    Args:
        tree: What `split_tree` gave.
        folder: Checkpoint with the pieces.
        mesh: The ranks to spread each tensor over; None: each is read whole.
        ranks: They call this at the same time.

    Raises:
        CheckpointError: a tensor cannot be read.
    """
    keys = _keys(tree)
    if not keys:
        return tree
    tensors: dict[str, Tensor] = {}
    for key, (size, dtype) in stored_sizes(folder, keys).items():
        if mesh is None:
            tensors[key] = torch.empty(size, dtype=dtype)
        else:
            tensors[key] = empty_dtensor(*size, dtype=dtype, device_mesh=mesh, placements=[Shard(0)])
    read_shards(folder, tensors, ranks.control)
    return _filled(tree, tensors)


def _keys(tree: Any) -> list[str]:
    if isinstance(tree, dict) and tree.keys() == {_STORED}:
        return [tree[_STORED]]
    parts = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, (list, tuple)) else ()
    return [key for part in parts for key in _keys(part)]


def _filled(tree: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(tree, dict):
        if tree.keys() == {_STORED}:
            return tensors[tree[_STORED]]
        return {name: _filled(part, tensors) for name, part in tree.items()}
    return type(tree)(_filled(part, tensors) for part in tree) if isinstance(tree, (list, tuple)) else tree

"""The learner of all ranks as the driver holds it: each call goes to every rank, which computes its share.

The commands of this module make, save and restore what a rank learns with; each rank has a `policy`, an `accelerator` and a `learner`
of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor import empty as empty_dtensor
from torch.utils._pytree import MappingKey, tree_leaves, tree_map, tree_map_with_path

from skill_ttrl.config import RLConfig, SFTConfig
from skill_ttrl.config.rl import COPY
from skill_ttrl.llm.models.load import save_model
from skill_ttrl.llm.models.weights import read_shards, stored_sizes, trained_weights, weights_of, write_shards
from skill_ttrl.rl.batch import RolloutBatch
from skill_ttrl.rl.learner import LocalLearner
from skill_ttrl.rl.parallel.commands import Driver, Objects, call
from skill_ttrl.rl.parallel.ranks import ALONE, Ranks
from skill_ttrl.rl.policy import Policy
from skill_ttrl.rl.sft_learner import SFTLearner
from skill_ttrl.rl.update_metrics import SkippedUpdate, TurnGradients

if TYPE_CHECKING:
    from skill_ttrl.rl.pack import EncodedDemonstration

LEARNER = "learner"


class DriverLearner:
    """The learner of a phase: makes one on every rank and passes each call to all of them.

    Args:
        driver: The ranks.
        config: Of the rl phase, or of a supervised one.
        options: Of the rl phase's learner: `total_steps`, `max_response_tokens`.
    """

    def __init__(self, driver: Driver, config: RLConfig | SFTConfig, **options: Any) -> None:
        self._driver = driver
        driver.run(make_learner, config, **options)

    @property
    def skipped(self) -> Sequence[SkippedUpdate]:
        """See `LocalLearner.skipped`; every rank has the whole batch, so the driver's are all."""
        found: Sequence[SkippedUpdate] = self._driver.objects[LEARNER].skipped
        return found

    @property
    def gradients(self) -> TurnGradients | None:
        """See `LocalLearner.gradients`; the ranks' are added up."""
        found: TurnGradients | None = self._driver.objects[LEARNER].gradients
        return found

    def score(self, batch: RolloutBatch, **options: Any) -> RolloutBatch:
        """See `LocalLearner.score`."""
        scored: RolloutBatch = self._driver.run(call, LEARNER, "score", batch, **options)
        return scored

    def update(self, batch: RolloutBatch, **options: Any) -> dict[str, float]:
        """See `LocalLearner.update`."""
        metrics: dict[str, float] = self._driver.run(call, LEARNER, "update", batch, **options)
        return metrics

    def step(self, demonstrations: Sequence[EncodedDemonstration], step: int, *, seed: int = 0) -> dict[str, float]:
        """See `SFTLearner.step`."""
        metrics: dict[str, float] = self._driver.run(call, LEARNER, "step", list(demonstrations), step, seed=seed)
        return metrics


def make_learner(objects: Objects, /, config: RLConfig | SFTConfig, **options: Any) -> None:
    """Command: make the learner of a phase."""
    policy: Policy = objects["policy"]
    if isinstance(config, SFTConfig):
        objects[LEARNER] = SFTLearner(policy, config, objects["accelerator"], objects.ranks)
        return
    if config.critic is not None and config.critic.model is not None:  # else its decoder is the policy's own
        options["critic_model"] = policy.copy() if config.critic.model == COPY else objects["critic"]
    objects[LEARNER] = LocalLearner(policy, config, objects["accelerator"], ranks=objects.ranks, **options)


def save_state(objects: Objects, folder: Path, *, learner: bool) -> dict[str, Any]:
    """Write the policy into `folder`, and the tensors of the learner where they are sharded.

    Whole weights and adapters are written as Hugging Face's files, sharded weights in pieces (`llm.models.weights`) next to the
    files that describe them.

    Returns:
        On the driver, the rest of the learner's state; empty without `learner`.
    """
    policy, ranks = objects["policy"], objects.ranks
    policy.release_weights()
    state = objects[LEARNER].state_dict() if learner else {}
    if policy.sharding is None:
        if ranks.is_driver:
            save_model(policy.model, policy.tokenizer, folder)
        return {LEARNER: state} if learner else {}
    state, tensors = split_tree(state, LEARNER)
    weights = trained_weights(policy.model) if policy.has_adapters else {}
    if not policy.has_adapters:
        tensors |= weights_of(policy.model)
    if ranks.is_driver:
        save_model(policy.model, policy.tokenizer, folder, weights=weights)
    write_shards(folder, tensors, ranks.control)
    return {LEARNER: state} if learner else {}


def load_state(objects: Objects, folder: Path, state: dict[str, Any]) -> None:
    """Restore the learner from what `save_state` gave and wrote, by whatever number of ranks."""
    policy = objects["policy"]
    policy.release_weights()
    mesh = None if policy.sharding is None else policy.sharding.mesh
    objects[LEARNER].load_state_dict(join_tree(state, folder, mesh, objects.ranks))


# State of a learner whose tensors are sharded, as a checkpoint holds it: plain data in one file, the tensors in pieces.
#
# `split_tree` takes the sharded tensors out and leaves their keys; `join_tree` puts them back, sharded over as many ranks as there are
# now, or whole where there is one.


_STORED = "stored in shards"


def split_tree(tree: Any, path: str) -> tuple[Any, dict[str, Tensor]]:
    """(the tree with keys in the place of sharded tensors, these tensors by key); keys begin with `path`."""
    tensors: dict[str, Tensor] = {}

    def take_out(place: tuple[Any, ...], leaf: Any) -> Any:
        if not isinstance(leaf, DTensor):
            return leaf
        key = ".".join([path, *(str(each.key if isinstance(each, MappingKey) else each.idx) for each in place)])
        tensors[key] = leaf
        return {_STORED: key}

    return tree_map_with_path(take_out, tree), tensors


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
    keys = [leaf[_STORED] for leaf in tree_leaves(tree, is_leaf=_is_stored) if _is_stored(leaf)]
    if not keys:
        return tree
    tensors: dict[str, Tensor] = {}
    for key, (size, dtype) in stored_sizes(folder, keys).items():
        if mesh is None:
            tensors[key] = torch.empty(size, dtype=dtype)
        else:
            tensors[key] = empty_dtensor(*size, dtype=dtype, device_mesh=mesh, placements=[Shard(0)])
    read_shards(folder, tensors, ranks.control)
    return tree_map(lambda leaf: tensors[leaf[_STORED]] if _is_stored(leaf) else leaf, tree, is_leaf=_is_stored)


def _is_stored(part: Any) -> bool:
    return isinstance(part, dict) and part.keys() == {_STORED}

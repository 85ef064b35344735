"""Several ranks that train one policy: rank 0 drives, and every rank carries out its calls on its own copy or shard.

The driver calls a function with `Driver.run`, and each rank runs it with its own `Replica`, so the function may use the collectives of
`Ranks` and those of sharded weights. A process alone calls its learner and its sampler directly.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor import empty as empty_dtensor
from torch.utils._pytree import MappingKey, tree_leaves, tree_map, tree_map_with_path

from skill_ttrl.config import RLConfig, SFTConfig
from skill_ttrl.config.rl import COPY
from skill_ttrl.errors import ModelError, RankError, SkillTTRLError
from skill_ttrl.llm.backend import Generation, Request, Sampling
from skill_ttrl.llm.hf import HFBackend, sample_seeds
from skill_ttrl.llm.models.load import save_model
from skill_ttrl.llm.models.weights import read_shards, stored_sizes, trained_weights, weights_of, write_shards
from skill_ttrl.rl.batch import RolloutBatch
from skill_ttrl.rl.device import out_of_memory
from skill_ttrl.rl.learner import LocalLearner
from skill_ttrl.rl.parallel.ranks import ALONE, Ranks, current_ranks, leave
from skill_ttrl.rl.policy import Policy
from skill_ttrl.rl.sft_learner import SFTLearner
from skill_ttrl.signals import SIGNALS, signals_held

if TYPE_CHECKING:
    from accelerate import Accelerator

    from skill_ttrl.rl.batch import EncodedDemonstration

P = ParamSpec("P")
T = TypeVar("T")
Share = tuple[list[int], list[Request], list[list[int]]]
"""Places of requests, the requests with as many samples as are this rank's, and these samples' seeds."""
LEARNER = "learner"
"""Key of the learner's state in a checkpoint."""


class Replica:
    """This rank's copy or shard of what learns and samples. Each part is there once a command has made it."""

    policy: Policy
    accelerator: Accelerator
    critic: Policy
    """Decoder of `rl.critic.model`, where that names a model."""
    learner: Any
    """`LocalLearner` or `SFTLearner` of the present phase."""
    backend: Any
    """`HFBackend` over the policy's own model."""

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks

    def forget(self) -> None:
        """Let go of all parts, at the end of a run."""
        self.__dict__ = {"ranks": self.ranks}

    def make_learner(self, config: RLConfig | SFTConfig, /, **options: Any) -> None:
        """Make the learner of a phase; `options` are those of `LocalLearner` or `SFTLearner`."""
        if isinstance(config, SFTConfig):
            self.learner = SFTLearner(self.policy, config, self.accelerator, self.ranks, **options)
            return
        if config.critic is not None and config.critic.model is not None:  # else its decoder is the policy's own
            options["critic_model"] = self.policy.copy() if config.critic.model == COPY else self.critic
        self.learner = LocalLearner(self.policy, config, self.accelerator, ranks=self.ranks, **options)

    def on_learner(self, method: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
        """Call a method of the learner."""
        return method(self.learner, *args, **kwargs)

    def on_policy(self, method: Callable[..., T], *args: Any) -> T:
        """Call a method of the policy."""
        return method(self.policy, *args)

    def on_model(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run a function on the model; of an iterator the other ranks than the driver go through all of it."""
        self.policy.release_weights()
        result = function(self.policy.model, *args, **kwargs)
        if isinstance(result, Iterator) and not self.ranks.is_driver:
            deque(result, maxlen=0)
        if not isinstance(result, Iterator):
            self.policy.release_weights()
        return result

    def sample_share(self, requests: Sequence[Request], sampling: Sampling, seed: int) -> list[Generation]:
        """Sample this rank's share. Sharded weights are gathered before, until the learner computes again.

        Returns:
            On the driver one `Generation` for each request, in order.
        """
        self.policy.gather_weights()
        places, own, seeds = shares(requests, seed, self.ranks.size)[self.ranks.rank]
        found = self.backend.sample(own, sampling, seeds) if own else []
        return merged(self.ranks.gather(list(zip(places, found, strict=True))), len(requests))

    def stamp(self, policy_version: int) -> None:
        """Stamp samples with this version; the sampler's weights are the learner's own."""
        self.backend.update_weights(policy_version)

    def save(self, folder: Path, *, learner: bool) -> dict[str, Any]:
        """Write the policy into `folder`, and the tensors of the learner where they are sharded.

        Whole weights and adapters are written as Hugging Face's files, sharded weights in pieces (`llm.models.weights`) next to the
        files that describe them.

        Returns:
            On the driver, the rest of the learner's state; empty without `learner`.
        """
        self.policy.release_weights()
        state = self.learner.state_dict() if learner else {}
        if self.policy.sharding is None:
            if self.ranks.is_driver:
                save_model(self.policy.model, self.policy.tokenizer, folder)
            return {LEARNER: state} if learner else {}
        state, tensors = split_tree(state, LEARNER)
        weights = trained_weights(self.policy.model) if self.policy.has_adapters else {}
        if not self.policy.has_adapters:
            tensors |= weights_of(self.policy.model)
        if self.ranks.is_driver:
            save_model(self.policy.model, self.policy.tokenizer, folder, weights=weights)
        write_shards(folder, tensors, self.ranks.control)
        return {LEARNER: state} if learner else {}

    def load_learner(self, folder: Path, state: dict[str, Any]) -> None:
        """Restore the learner from what `save` gave and wrote, by whatever number of ranks."""
        self.policy.release_weights()
        mesh = None if self.policy.sharding is None else self.policy.sharding.mesh
        self.learner.load_state_dict(join_tree(state, folder, mesh, self.ranks))


class Driver:
    """Rank 0's hold on the others; in a process alone, its replica."""

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks
        self.replica = Replica(ranks)
        self.in_step = True
        """False once a command failed half way: the other ranks take no more."""
        self._lock = threading.RLock()

    def run(self, command: Callable[Concatenate[Replica, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `command`, a function that can be pickled, on every rank's replica, and return what it gives here.

        Signals wait until it is done: all ranks run the same commands, or none.

        Raises:
            RankError: another rank failed, or is gone.
        """
        if not self.ranks.several:
            return command(self.replica, *args, **kwargs)
        if not self.in_step:
            raise RankError("A command failed on one rank, so the ranks of the run are no longer in step.")
        with self._lock, signals_held():
            self.in_step = False
            self.ranks.broadcast((command, args, kwargs))
            with self.ranks.watched():
                result = command(self.replica, *args, **kwargs)
            self.in_step = True
        return result

    def forget(self) -> None:
        """Let go of everything on every rank, at the end of a run. Where a command failed half way only here: the others will end."""
        self.replica.forget()
        if self.ranks.several and self.in_step:
            self.run(Replica.forget)

    def dismiss(self) -> None:
        """End the others, if they wait for a command. Where one of theirs failed half way they end when this process does."""
        if self.ranks.several and self.in_step:
            self.in_step = False
            self.ranks.broadcast(None)
            leave()


_driver: Driver | None = None


def current_driver() -> Driver:
    """The hold on the ranks that this process has joined (`ranks.join`); one for the whole process, which may train several times."""
    global _driver
    if _driver is None or _driver.ranks is not current_ranks():
        _driver = Driver(current_ranks())
    return _driver


def serve(ranks: Ranks) -> None:
    """Carry out the driver's commands until it dismisses this rank.

    A signal to stop is the driver's business: the others do what it says. A rank that fails leaves the reason for the driver and
    ends the process at once: the others notice that the connection is closed.
    """
    for signum in SIGNALS:
        signal.signal(signum, signal.SIG_IGN)
    replica = Replica(ranks)
    try:
        while (order := ranks.broadcast(None)) is not None:
            command, args, kwargs = order
            with ranks.watched():
                command(replica, *args, **kwargs)
        leave()
    except RankError as error:  # the driver or another rank is gone, and whoever failed has said why
        print(f"Rank {ranks.rank}: {error}", file=sys.stderr, flush=True)
        os._exit(RankError.exit_code)
    except BaseException as error:
        ranks.report_failure(error)
        # The launcher shows what a rank wrote last, where the driver could not say it.
        known = isinstance(error, SkillTTRLError) or out_of_memory(error) is not None
        print(f"{type(error).__name__}: {error}" if known else traceback.format_exc(), file=sys.stderr, flush=True)
        os._exit(getattr(error, "exit_code", ModelError.exit_code if known else 1))


def make_learner(driver: Driver, config: RLConfig | SFTConfig, **options: Any) -> Any:
    """The learner of a phase, made on every rank: a `LocalLearner` or an `SFTLearner`, whose options these are, or what holds all of them."""
    driver.run(Replica.make_learner, config, **options)
    return RanksLearner(driver) if driver.ranks.several else driver.replica.learner


class RanksLearner:
    """The learner of several ranks as the driver holds it: each call goes to every rank, which computes its share."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    @property
    def skipped(self) -> list[str]:
        """`LocalLearner.skipped` of the driver's replica: every rank has the whole batch."""
        found: list[str] = self._driver.replica.learner.skipped
        return found

    def score(self, batch: RolloutBatch, **options: Any) -> RolloutBatch:
        """Compute the batch's log-probs on all ranks; `options` are those of `LocalLearner.score`."""
        scored: RolloutBatch = self._driver.run(Replica.on_learner, LocalLearner.score, batch, **options)
        return scored

    def update(self, batch: RolloutBatch, **options: Any) -> dict[str, float]:
        """Learn from one batch on all ranks; `options` are those of `LocalLearner.update`."""
        return self._driver.run(Replica.on_learner, LocalLearner.update, batch, **options)

    def step(self, demonstrations: Sequence[EncodedDemonstration], step: int, *, seed: int = 0) -> dict[str, float]:
        """Take one optimizer step on all ranks; returns the metrics of `SFTLearner.step`."""
        return self._driver.run(Replica.on_learner, SFTLearner.step, list(demonstrations), step, seed=seed)


class RanksBackend(HFBackend):
    """The `hf` backend of several ranks as the driver holds it: each samples a share of the requests with its own model.

    Each sample has a seed of its own (`llm.hf.sample_seeds`), so any number of ranks draws what one would.
    """

    def __init__(self, driver: Driver, own: HFBackend) -> None:
        super().__init__(own.model, own.tokenizer, max_batch_size=own.max_batch_size, autocast=own.autocast)
        self._driver = driver
        driver.replica.backend = own

    async def generate(self, requests: Sequence[Request], sampling: Sampling, *, seed: int) -> list[Generation]:
        """Sample every request on all ranks; see `Backend.generate`."""
        return self._driver.run(Replica.sample_share, list(requests), sampling, seed)

    def update_weights(self, policy_version: int) -> None:
        """Stamp the samples of all ranks with this version; the weights are the learner's own."""
        super().update_weights(policy_version)
        self._driver.run(Replica.stamp, policy_version)


def merged(parts: Sequence[Sequence[tuple[int, Generation]]], count: int) -> list[Generation]:
    """The generations of `count` requests, in order, from those of each rank's share with their requests' places."""
    found: list[Generation | None] = [None] * count
    for part in parts:  # a request's samples lie on ranks that follow each other
        for place, each in part:
            before = found[place]
            found[place] = each if before is None else replace(each, completions=before.completions + each.completions)
    return [each for each in found if each is not None]


def shares(requests: Sequence[Request], seed: int, ranks: int) -> list[Share]:
    """Each rank's share: samples in their order, cut into runs whose lengths differ by at most one."""
    rows = [
        (place, sample_seed)
        for place, of_request in enumerate(sample_seeds(requests, seed))
        for sample_seed in of_request
    ]
    found: list[Share] = []
    for first, last in pairwise(part * len(rows) // ranks for part in range(ranks + 1)):
        seeds: dict[int, list[int]] = {}
        for place, sample_seed in rows[first:last]:
            seeds.setdefault(place, []).append(sample_seed)
        found.append(
            ([*seeds], [replace(requests[place], n=len(own)) for place, own in seeds.items()], [*seeds.values()])
        )
    return found


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

"""The processes of a run as each of them sees the others: its rank, and the collectives.

`torchrun`, or `skillttrl train --nproc`, starts the same command several times. Rank 0 is the driver: it owns the run folder,
the skill bank and the ledger. The others hold a replica or a shard of the policy and carry out the driver's commands
(`driver`). Everything that is not a tensor of the model goes over a group of its own (gloo), so that a rank can wait for hours
while the driver collects episodes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist
from jaxtyping import Int
from torch import Tensor
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from skill_ttrl.errors import RankError, SkillTTRLError
from skill_ttrl.rl.batch import RolloutBatch
from skill_ttrl.rl.device import out_of_memory
from skill_ttrl.rl.micro_batch import cut_micro_batches, split_over_ranks
from skill_ttrl.rl.parallel.launch import launched, local_rank, take_variables

if TYPE_CHECKING:
    from skill_ttrl.rl.policy import Policy

T = TypeVar("T")

CONTROL_TIMEOUT = timedelta(days=30)
"""A rank may wait so long for a command."""
COLLECTIVE_TIMEOUT = timedelta(hours=1)
"""A rank may be so far behind the others inside a command."""
BUCKET_BYTES = 64 * 1024**2
"""Gradients are summed in pieces of about this size (torch's DDP: 25 MB)."""
_LOST = (
    *("Connection closed by peer", "Connection reset by peer", "Broken pipe", "Socket closed", "Connection refused"),
    *("NCCL communicator was aborted", "ncclRemoteError", "remote process exited", "Timed out"),
)
"""Words of gloo's and NCCL's errors where the other side of a collective is gone."""


@dataclass(frozen=True)
class Ranks:
    """This process among `size` of them; without arguments it is alone, and every collective returns its own argument."""

    rank: int = 0
    size: int = 1
    control: dist.ProcessGroup | None = None
    """Group for everything but the model's tensors."""
    store: dist.distributed_c10d.Store | None = None
    """Where a rank that fails leaves its reason."""

    @property
    def several(self) -> bool:
        """True if there are others."""
        return self.size > 1

    @property
    def is_driver(self) -> bool:
        """True on rank 0."""
        return self.rank == 0

    @property
    def apart(self) -> tuple[int, ...]:
        """Labels that tell this rank's random draws from the driver's; the driver's are those of one process."""
        return (self.rank,) if self.rank else ()

    def broadcast(self, value: T) -> T:
        """The driver's `value`, on every rank; anything that pickle takes.

        Raises:
            RankError: another rank is gone.
        """
        if not self.several:
            return value
        box = [value if self.is_driver else None]
        with self.watched():
            dist.broadcast_object_list(box, src=0, group=self.control)
        return box[0]  # type: ignore[return-value]

    def gather(self, value: T) -> list[T]:
        """The values of all ranks in their order, on the driver; an empty list elsewhere.

        Raises:
            RankError: another rank is gone.
        """
        if not self.several:
            return [value]
        found: list[Any] | None = [None] * self.size if self.is_driver else None
        with self.watched():
            dist.gather_object(value, found, dst=0, group=self.control)
        return found or []

    def sum_(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by its sum over all ranks. They are sent in flat pieces of about `BUCKET_BYTES`."""
        if not self.several:
            return
        for bucket in _buckets(tensors):
            flat = torch.cat([tensor.reshape(-1) for tensor in bucket])
            dist.all_reduce(flat)
            for tensor, part in zip(bucket, torch.split(flat, [each.numel() for each in bucket]), strict=True):
                tensor.copy_(part.view_as(tensor))

    def largest(self, value: int) -> int:
        """The largest of all ranks' values, on every rank."""
        if not self.several:
            return value
        found = torch.tensor([value])
        dist.all_reduce(found, op=dist.ReduceOp.MAX, group=self.control)
        return int(found)

    def copy_from_driver_(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by the driver's."""
        if not self.several:
            return
        for tensor in tensors:
            dist.broadcast(tensor.detach(), src=0)

    def report_failure(self, error: BaseException) -> None:
        """Leave the reason why this rank ends where the driver looks for it (`failure`); nobody looks where the driver is gone."""
        if self.store is not None:
            text = str(error) if isinstance(error, SkillTTRLError) else f"{type(error).__name__}: {error}"
            reason = [text, getattr(error, "exit_code", 1), out_of_memory(error)]
            with suppress(dist.DistError):  # the driver holds the store
                self.store.set(f"failed/{self.rank}", json.dumps(reason))

    def failure(self) -> RankError | None:
        """The error that another rank has reported; None: none has, or the driver, which holds the reports, is gone."""
        if self.store is None:
            return None
        with suppress(dist.DistError):
            for other in range(self.size):
                if other != self.rank and self.store.check([f"failed/{other}"]):
                    text, code, phase = json.loads(self.store.get(f"failed/{other}"))
                    message = f"Rank {other} of {self.size} failed: {text}"
                    return RankError(message, exit_code=code, rank=other, out_of_memory=phase)
        return None

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Turn the error of a collective whose other side is gone into one that says which rank failed, and why.

        Raises:
            RankError: in its place.
        """
        try:
            yield
        except RuntimeError as error:
            if isinstance(error, SkillTTRLError) or not any(words in str(error) for words in _LOST):
                raise
            raise (self.failure() or RankError(f"{GONE}.")) from error


GONE = "Another process of this run ended without an error message: it was killed, by hand or by the system because memory ran out"
ALONE = Ranks()
_joined: Ranks | None = None


def current_ranks() -> Ranks:
    """The ranks that this process has joined; alone where it has joined none."""
    return ALONE if _joined is None else _joined


def join() -> Ranks:
    """Meet the other ranks, at most once a process. NCCL carries the tensors of GPUs, gloo all others.

    Raises:
        RankError: they do not come.
    """
    global _joined
    if _joined is not None or not launched():
        return current_ranks()
    on_gpu = torch.cuda.is_available() and torch.cuda.device_count() > local_rank()
    if on_gpu:
        torch.cuda.set_device(local_rank())
    try:
        dist.init_process_group("cpu:gloo,cuda:nccl" if on_gpu else "gloo", timeout=COLLECTIVE_TIMEOUT)
        control = dist.new_group(backend="gloo", timeout=CONTROL_TIMEOUT)
    except (RuntimeError, ValueError, TimeoutError) as error:  # DistStoreError, DistNetworkError are RuntimeErrors
        where = ", ".join(
            f"{name}={os.environ.get(name)}" for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
        )
        raise RankError(
            f"The processes of the run could not connect to each other ({where}): {str(error).splitlines()[0]}"
        ) from error
    store = dist.distributed_c10d._get_default_store()
    _joined = Ranks(dist.get_rank(), dist.get_world_size(), control, store)
    take_variables()
    return _joined


def leave() -> None:
    """Forget the other ranks; the process group is torn down."""
    global _joined
    if _joined is not None:
        _joined = None
        dist.destroy_process_group()


def _buckets(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Tensors of one dtype and device that follow each other, about `BUCKET_BYTES` at a time."""
    bucket: list[Tensor] = []
    size = 0
    for tensor in tensors:
        fits = bucket and (tensor.dtype, tensor.device) == (bucket[0].dtype, bucket[0].device)
        if bucket and (not fits or size >= BUCKET_BYTES):
            yield bucket
            bucket, size = [], 0
        bucket.append(tensor)
        size += tensor.numel() * tensor.element_size()
    if bucket:
        yield bucket


def own_micro_batches(
    policy: Policy,
    batch: RolloutBatch,
    indices: Int[Tensor, " M"] | None = None,
    *,
    ranks: Ranks = ALONE,
    sequences: int,
) -> Iterator[tuple[Int[Tensor, " N"], bool]]:
    """Items of each micro-batch that this rank computes, and whether they count.

    Sharded weights take collectives in every forward pass, so there every rank has the same number of micro-batches: one with fewer
    of its own computes the shortest item over again, which does not count.

    Args:
        policy: What computes them.
        batch: What all ranks have.
        indices: Items that all ranks compute together, None for all; the shares are balanced by tokens.
        ranks: All of them call this at the same time.
        sequences: Most items of a micro-batch.
    """
    indices = share = torch.arange(len(batch)) if indices is None else indices
    if ranks.several:
        share = split_over_ranks(batch, indices, ranks.size, packed=policy.packs)[ranks.rank]
    own = cut_micro_batches(batch, share, sequences=sequences, packed=policy.packs)
    count = len(own) if policy.sharding is None else ranks.largest(len(own))
    yield from ((rows, True) for rows in own)
    if count > len(own):
        shortest = indices[batch.lengths_N[indices].argmin()].unsqueeze(0)
        yield from ((shortest, False) for _ in range(len(own), count))


# Tensors that may be sharded over the ranks (`DTensor`) or plain: what the optimizer and checkpoints need of both.


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

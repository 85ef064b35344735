"""Sampling on every rank: the driver's requests are cut into equal runs of samples, and each rank draws its own with its replica.

Each sample has a seed of its own (`llm.hf.sample_seeds`), so as many ranks as there may be draw what one would.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from skill_ttrl.llm.backend import Generation, Request, Sampling
from skill_ttrl.llm.hf import HFBackend, sample_seeds
from skill_ttrl.rl.parallel.commands import Driver, Objects, call
from skill_ttrl.rl.parallel.split import even_cuts

Share = tuple[list[int], list[Request], list[list[int]]]
"""Places of requests, the requests with as many samples as are this rank's, and these samples' seeds."""


class RanksBackend(HFBackend):
    """The `hf` backend of all ranks, as the driver holds it.

    Args:
        driver: The ranks.
        own: The driver's own backend.
    """

    def __init__(self, driver: Driver, own: HFBackend) -> None:
        super().__init__(own.model, own.tokenizer, max_batch_size=own.max_batch_size, autocast=own.autocast)
        self._driver = driver
        driver.objects["backend"] = own

    async def generate(self, requests: Sequence[Request], sampling: Sampling, *, seed: int) -> list[Generation]:
        """Sample every request on all ranks; see `Backend.generate`."""
        return self._driver.run(sample_share, list(requests), sampling, seed)

    def update_weights(self, policy_version: int) -> None:
        """Stamp the samples of all ranks with this version; the weights are the learner's own."""
        super().update_weights(policy_version)
        self._driver.run(call, "backend", "update_weights", policy_version)


def sample_share(objects: Objects, requests: Sequence[Request], sampling: Sampling, seed: int) -> list[Generation]:
    """Command: sample this rank's share. Sharded weights are gathered before, until the learner computes again.

    Returns:
        On the driver one `Generation` for each request, in order.
    """
    ranks, backend = objects.ranks, objects["backend"]
    objects["policy"].gather_weights()
    places, own, seeds = shares(requests, seed, ranks.size)[ranks.rank]
    found = backend.sample(own, sampling, seeds) if own else []
    parts = ranks.gather(list(zip(places, found, strict=True)))
    return merged(parts, len(requests))


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
    for cut in even_cuts(len(rows), ranks):
        seeds: dict[int, list[int]] = {}
        for row in cut:
            place, sample_seed = rows[row]
            seeds.setdefault(place, []).append(sample_seed)
        found.append(
            ([*seeds], [replace(requests[place], n=len(own)) for place, own in seeds.items()], [*seeds.values()])
        )
    return found


def on_model(objects: Objects, function: Any, *args: Any, **kwargs: Any) -> Any:
    """Command: run a function on the learner's model on every rank; of an iterator the others go through all of it."""
    policy = objects["policy"]
    policy.release_weights()
    result = function(policy.model, *args, **kwargs)
    if isinstance(result, Iterator) and not objects.ranks.is_driver:
        deque(result, maxlen=0)
    if not isinstance(result, Iterator):
        policy.release_weights()
    return result

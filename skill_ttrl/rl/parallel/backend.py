"""Sampling on every rank: the driver's requests are cut into equal runs of samples, and each rank draws its own with its replica.

Each sample has a seed of its own (`llm.hf.sample_seeds`), so as many ranks as there may be draw what one would.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from skill_ttrl.llm.backend import Generation, Request, Sampling, wait_for
from skill_ttrl.llm.hf import HFBackend, sample_seeds
from skill_ttrl.rl.parallel.commands import Driver, Objects, call
from skill_ttrl.rl.parallel.split import even_cuts
from skill_ttrl.types import derive_seed

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


# An inference engine on every rank: each has the weights of the learner, and draws its share of the samples on its own device.
#
# Every rank calls its engine's methods at the same time: weights that are spread over the ranks are gathered parameter by parameter, by
# all of them, and each engine takes each as it comes.


class RanksEngines:
    """The engines of all ranks, as the driver holds them; what is not here is the driver's own backend's.

    A sample's seed depends on the number of ranks: an engine draws it from a request's place among those that it was given.

    Args:
        driver: The ranks.
        own: The driver's own backend, with an engine in this process (`llm.vllm.backend`).
    """

    is_learner, trainable, blocking = False, True, True

    def __init__(self, driver: Driver, own: Any) -> None:
        self._driver, self._own = driver, own
        self.policy_version: int = own.policy_version
        driver.objects["backend"] = own

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)

    async def generate(self, requests: Sequence[Request], sampling: Sampling, *, seed: int) -> list[Generation]:
        """Sample every request on all ranks; see `Backend.generate`."""
        return self._driver.run(sample_on_engine, list(requests), sampling, seed)

    def start(self) -> None:
        """Start the engines where they are not there yet."""
        self._driver.run(on_engine, "start")

    def update_weights(self, policy_version: int) -> None:
        """Have every engine take over the learner's weights; see `Backend.update_weights`."""
        self._driver.run(on_engine, "update_weights", policy_version)
        self.policy_version = policy_version

    def sleep(self) -> None:
        """Let the engines sleep, where the config says so."""
        self._driver.run(on_engine, "sleep")

    def close(self) -> None:
        """End the engines; of ranks that are gone they are too."""
        if self._driver.in_step:
            self._driver.run(on_engine, "close")
        else:
            self._own.close()


def on_engine(objects: Objects, method: str, *args: Any) -> None:
    """Command: call a method of each rank's backend. All compare their engine with the learner on the driver's sequences."""
    policy, backend = objects["policy"], objects["backend"]
    policy.release_weights()
    backend.probe = objects.ranks.broadcast(backend.probe)
    getattr(backend, method)(*args)
    policy.release_weights()


def sample_on_engine(objects: Objects, requests: Sequence[Request], sampling: Sampling, seed: int) -> list[Generation]:
    """Command: sample this rank's share with its engine.

    Returns:
        On the driver one `Generation` for each request, in order.
    """
    ranks, backend = objects.ranks, objects["backend"]
    on_engine(objects, "start")
    places, own, _ = shares(requests, seed, ranks.size)[ranks.rank]
    own_seed = derive_seed(seed, "rank", ranks.rank)
    found = wait_for(backend.generate(own, sampling, seed=own_seed)) if own else []
    parts = ranks.gather(list(zip(places, found, strict=True)))
    return merged(parts, len(requests))

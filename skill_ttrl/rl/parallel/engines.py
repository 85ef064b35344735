"""An inference engine on every rank: each has the weights of the learner, and draws its share of the samples on its own device.

Every rank calls its engine's methods at the same time: weights that are spread over the ranks are gathered parameter by parameter, by
all of them, and each engine takes each as it comes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from skill_ttrl.llm.backend import Generation, Request, Sampling, wait_for
from skill_ttrl.rl.parallel.backend import merged, shares
from skill_ttrl.rl.parallel.commands import Driver, Objects
from skill_ttrl.types import Completion, Message, derive_seed


class RanksEngines:
    """The engines of all ranks, as the driver holds them.

    A sample's seed depends on the number of ranks: an engine draws it from a request's place among those that it was given.

    Args:
        driver: The ranks.
        own: The driver's own backend, with an engine in this process (`llm.vllm.backend`).
    """

    is_learner, trainable, blocking = False, True, True

    def __init__(self, driver: Driver, own: Any) -> None:
        self._driver, self._own = driver, own
        self.max_model_len: int | None = own.max_model_len
        self.supports_structured_outputs: bool = own.supports_structured_outputs
        self.tokenizer: Any = own.tokenizer
        self.policy_version: int = own.policy_version
        driver.objects["backend"] = own

    def encode(self, messages: Sequence[Message]) -> tuple[int, ...] | None:
        """See `Backend.encode`."""
        found: tuple[int, ...] | None = self._own.encode(messages)
        return found

    def encode_next(self, message: Message, after: Completion | None = None) -> tuple[int, ...] | None:
        """See `Backend.encode_next`."""
        found: tuple[int, ...] | None = self._own.encode_next(message, after)
        return found

    def encode_text(self, text: str) -> tuple[int, ...] | None:
        """See `Backend.encode_text`."""
        found: tuple[int, ...] | None = self._own.encode_text(text)
        return found

    def count(self, messages: Sequence[Message]) -> int:
        """See `Backend.count`."""
        return int(self._own.count(messages))

    def count_text(self, text: str) -> int:
        """See `Backend.count_text`."""
        return int(self._own.count_text(text))

    async def generate(self, requests: Sequence[Request], sampling: Sampling, *, seed: int) -> list[Generation]:
        """Sample every request on all ranks; see `Backend.generate`."""
        return self._driver.run(sample_on_engine, list(requests), sampling, seed)

    def start(self) -> None:
        """Start the engines where they are not there yet."""
        self._driver.run(on_engine, "start")

    def update_weights(self, policy_version: int) -> None:
        """Have every engine take over the learner's weights; see `Backend.sync`."""
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

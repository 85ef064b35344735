"""A backend of one's own in one file: samples as `hf` does, and says how long each batch took.

A config names it, rollout.backend: own_backend:Timed. Run it: python examples/own_backend.py
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from skill_ttrl import RolloutEngine
from skill_ttrl.llm.backend import BackendContext, Generation, Request, Sampling
from skill_ttrl.llm.hf import HFBackend


class Timed(HFBackend):
    """What is named in `rollout.backend` is called with one `BackendContext` and gives a `Backend`."""

    def __init__(self, context: BackendContext) -> None:
        # Looking at `context.loaded` loads the learner's model. A backend that lives elsewhere never does.
        super().__init__(context.loaded.model, context.loaded.tokenizer, autocast=context.autocast)

    async def generate(self, requests: Sequence[Request], sampling: Sampling, *, seed: int) -> list[Generation]:
        began = time.perf_counter()
        found = await super().generate(requests, sampling, seed=seed)
        tokens = sum(done.num_sampled_tokens for each in found for done in each.completions)
        print(f"{len(requests)} prompts, {tokens} tokens, {tokens / (time.perf_counter() - began):,.0f} tokens/s")
        return found


if __name__ == "__main__":
    model = sys.argv[1] if len(sys.argv) > 1 else "builtin"  # untrained: what it writes is noise
    engine = RolloutEngine(model, "own_backend:Timed", max_new_tokens=8)
    texts = engine.generate(["Compute 12+34.", "Compute 5+6."], n_samples=3)
    print([len(row) for row in texts])
    engine.close()

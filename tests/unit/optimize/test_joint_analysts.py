"""Several minibatches in one request: the same minibatches, a patch each, and an answer that leaves some out is counted."""

from __future__ import annotations

import json
import math
from typing import Any

from skill_ttrl.optimize.calls import Reply
from tests.rule_optimizer import ScriptedOptimizer
from tests.rule_runs import RuleRun

ONE: dict[str, Any] = {"epochs": 1, "batch_size": 40, "minibatch_size": 4, "test": False}


def test_fewer_requests_for_the_same_minibatches() -> None:
    class Keen(ScriptedOptimizer):
        """Names the numbers of the minibatches that it sees."""

        def __call__(self, system: str, user: str, *, max_tokens: int, stage: str) -> Reply:
            super().__call__(system, user, max_tokens=max_tokens, stage=stage)
            count = max(1, user.count("### Minibatch "))
            assert max_tokens == 4096 * count or not stage.startswith("analyst")
            assert ('"patches"' in system) == (count > 1)
            patches = [{"edits": [{"op": "append", "content": f"{stage} {n}"}]} for n in range(count)]
            return Reply(json.dumps({"patches": patches} if count > 1 else patches[0]))

    analysts, patches = {}, {}
    for several in (1, 3, 100):
        run = RuleRun(seed=2, sizes=(40, 8, 0), optimizer=Keen())
        found = run(**ONE, minibatches_per_request=several)
        analysts[several] = sum(stage.startswith("analyst") for stage, *_ in run.optimizer.calls)  # type: ignore[union-attr]
        patches[several] = (found.rows[0]["n_failure_patches"], found.rows[0]["n_success_patches"])
        assert not found.rows[0]["fallbacks"].get("analyst")
    assert patches[1] == patches[3] == patches[100] and sum(patches[1]) == analysts[1]
    assert analysts[3] == sum(math.ceil(count / 3) for count in patches[1])
    assert analysts[100] == sum(count > 0 for count in patches[1])

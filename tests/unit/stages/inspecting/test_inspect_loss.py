"""Why a sample of a step was trained on or not, by what the run recorded."""

from __future__ import annotations

from typing import Any

import pytest

from skill_ttrl.config import RLConfig
from skill_ttrl.stages.inspecting.inspect_loss import _sample, _standstill

DYNAMIC: dict[str, Any] = {"dynamic_sampling": {}}


def record(
    sample: int = 0, reward: float = 0.0, *, advantages: Any = None, given: bool = False, finish: str = "stop"
) -> dict[str, Any]:
    """A line of trajectories.jsonl of one step; `given`: to the update."""
    steps = [{"completion": {"token_ids": [1, 2], "completion_mask": None, "finish_reason": finish}}]
    return {
        "task": {"id": "t"}, "sample": sample, "answer": None, "reward": reward, "error": None, "stop_reason": "terminated",
        "steps": steps, "advantages": advantages, "gradient_shares": [0.0] if given else None, "stopped_tokens": None,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("group", "rl", "words"),
    [
        ([record(given=True, finish="length")], {"overlong": {"filter": True}}, "cut off, filtered"),
        ([record(given=True)], {"algorithm": "psr"}, "left out: rl.algorithm=psr does not learn from it"),
        ([record(), record(1, given=True, advantages=[0.5])], {}, "only voted: not drawn"),
        ([record(), record(1)], {}, "prompt left out: its vote was skipped"),
        ([record(), record(1)], DYNAMIC, "all alike, drawn again"),
        ([record(), record(1, 1.0)], DYNAMIC, "surplus: "),
        ([record(given=True, advantages=[0.0])], {}, "no advantage: its group earned the same"),
        ([record(given=True, advantages=[None])], {}, "its advantage is not finite"),
        ([record(given=True, advantages=[0.5]), record(1, 1.0)], {}, "raised: "),
    ],
)
def test_the_reason_is_what_happened(group: list[dict[str, Any]], rl: dict[str, Any], words: str) -> None:
    found = _sample(group[0], group, RLConfig.model_validate(rl), None)
    assert found.why.startswith(words) and (found.advantage is None) == (group[0]["advantages"] in (None, [None]))


def test_a_step_in_which_the_policy_stood_still_raises_nothing() -> None:
    rl = RLConfig.model_validate({"algorithm": "gae", "critic": {"warmup_steps": 2}})
    row = {"updates": 0, "skipped_updates": 0}
    still = _standstill(row, rl, 1)
    assert still is not None and "warm-up" in still and _standstill(row, rl, 2) is None
    pulled = record(given=True, advantages=[1.0])
    assert _sample(pulled, [pulled], rl, still).why == still
    assert "not finite" in str(_standstill({"updates": 0, "skipped_updates": 1}, rl, 2))

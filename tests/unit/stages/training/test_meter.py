"""True answers stand with the meter alone: nothing that acts or learns has a handle to one while a run trains."""

from __future__ import annotations

import gc
import json
import types
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from skill_ttrl.config import load_config
from skill_ttrl.stages import rl, train
from skill_ttrl.stages.training.run import Run
from skill_ttrl.stages.training.state import RLState
from skill_ttrl.voting.rewards import RewardSet

TRAIN = {"12+30=": "730042", "11+20=": "730031", "10+15=": "730025"}
HELD_OUT = {"21+14=": "840035", "22+16=": "840038"}
"""Questions and what is claimed to be true of them: nothing that the policy could write."""
SHARED = (type, types.ModuleType, types.FrameType, types.CodeType, weakref.ref)
"""Objects of the whole process, which lead everywhere."""


def reachable(roots: Sequence[Any]) -> list[Any]:
    """All objects that attributes, items, closures and bound arguments lead to. A function's module is not among them."""
    seen: dict[int, Any] = {}
    queue = list(roots)
    while queue:
        found = queue.pop()
        if id(found) in seen or isinstance(found, SHARED):
            continue
        seen[id(found)] = found
        if isinstance(found, types.FunctionType):
            queue += [found.__closure__, found.__defaults__, found.__kwdefaults__, found.__dict__]
        elif type(found).__name__ != "_lru_cache_wrapper":
            queue += gc.get_referents(found)
    return list(seen.values())


def known_to(*roots: Any) -> set[str]:
    """The true answers that stand in a text which these objects lead to."""
    texts = [each for each in reachable(roots) if isinstance(each, str)]
    return {answer for answer in (*TRAIN.values(), *HELD_OUT.values()) if any(answer in text for text in texts)}


@pytest.mark.parametrize("reward", ["majority", "label"])
def test_only_the_meter_and_the_label_control_hold_true_answers(
    reward: str, tiny_yaml: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, problems in (("train", TRAIN), ("eval", HELD_OUT)):
        lines = [json.dumps({"id": text, "prompt": text, "answer": answer}) for text, answer in problems.items()]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    paths = [f"data.{name}={{path: {tmp_path / name}.jsonl}}" for name in ("train", "eval")]
    config = load_config(tiny_yaml, [*paths, f"rl.reward={reward}", "rl.steps=2", "sft.steps=2"])
    given: list[RewardSet] = []
    steps: list[int] = []

    def reinforce(run: Run, rewards: RewardSet, evolution: Any, **others: Any) -> None:
        given.append(rewards)
        rl.reinforce(run, rewards, evolution, **others)

    def look(run: Run, state: RLState, *rest: Any) -> None:
        assert known_to(run.components) == set(), "the parts that act"
        assert known_to(state) == set(), "learner, votes, evolution"
        assert known_to(run.meter) == {*TRAIN.values(), *HELD_OUT.values()}
        assert known_to(*given) == ({*TRAIN.values()} if reward == "label" else set())
        steps.append(state.step)
        (begin if state.step == 0 else evaluate_and_save)(run, state, *rest)

    begin, evaluate_and_save = rl.prepare_first_step, rl.evaluate_and_save
    monkeypatch.setattr(train, "reinforce", reinforce)
    monkeypatch.setattr(rl, "prepare_first_step", look)  # right after an evaluation
    monkeypatch.setattr(rl, "evaluate_and_save", look)
    train.run(config, tmp_path / "run")
    assert steps == [0, 1, 2]

"""Rollouts of a skill document by a small real policy that follows the rules it is shown (`quickstart_skills`' cold start)."""

from __future__ import annotations

from pathlib import Path

import pytest

from skill_ttrl.data.operators import Operators, read_rules
from skill_ttrl.data.tasks import MATH_ENV_ID
from skill_ttrl.errors import ConfigError, DataError
from skill_ttrl.optimize.types import RolloutResult
from skill_ttrl.progress import SilentProgress
from skill_ttrl.stages.optimizing.rollouts import as_bank
from skill_ttrl.stages.targets.resolve import resolve_target
from skill_ttrl.stages.targets.rollouts import open_rollouts

BASE = Path(__file__).parents[1] / "data" / "operators_base"
SHOWN = ["skills.in_prompt=1", "skills.prompt_tokens=32", "skills.max_retrievals=0", "runtime.threads=1"]


def test_a_policy_rolls_out_a_document_as_its_bank() -> None:
    target = resolve_target(str(BASE), SHOWN, config="quickstart_skills")
    tasks = Operators().problems("test", MATH_ENV_ID)
    splits = {"train": tasks[:40], "test": tasks[40:44]}
    names = [task.id.partition("-")[0] for task in tasks[:40:10]]
    document = "\n".join(Operators().rule(name).of(name) for name in names)
    told: list[tuple[int, RolloutResult]] = []
    with open_rollouts(target, splits, as_bank(target.config.skills, read_rules), SilentProgress()) as (
        roll_out,
        items,
    ):
        assert items["train"][0] == {
            "id": tasks[0].id,
            "split": "test",
            "task_type": "operator",
            "question": tasks[0].options["question"],
        }
        assert len(items["test"]) == 4 and not roll_out.batched
        ruled = roll_out(document, items["train"], seed=1, on_result=lambda place, result: told.append((place, result)))
        bare = roll_out("", items["train"], seed=1)
        again = roll_out(document, items["train"][7:9], seed=2)
        with pytest.raises(DataError, match="no task 'x'"):
            roll_out("", [{"id": "x"}], seed=1)
    assert sum(result.hard for result in ruled) >= 34 and sum(result.hard for result in bare) <= 16
    assert [result.id for result in ruled] == [task.id for task in tasks[:40]]
    assert sorted(place for place, _ in told) == [*range(40)] and all(ruled[place] == one for place, one in told)
    assert again == ruled[7:9], "greedy results depend on neither the seed nor the other items"
    assert ruled[0].extras["skills_in_prompt"] == [f"op-{names[0]}"] and ruled[0].reference_text == tasks[0].reference


def test_a_document_can_be_no_bank_where_the_config_has_none() -> None:
    with pytest.raises(ConfigError, match="no skills section"):
        as_bank(None, read_rules)

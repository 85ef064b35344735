"""Finding what is measured: a recipe whose phases need skills can be measured without its bank."""

from __future__ import annotations

import pytest

from skill_ttrl.stages.targets.resolve import resolve_target


@pytest.mark.parametrize("recipe", ["quickstart_alfworld", "quickstart_skills"])
def test_a_policy_is_found_without_its_bank_whatever_its_phases_need(recipe: str) -> None:
    found = resolve_target("embedded", config=recipe, use_bank=False)
    assert found.config.skills is not None and found.config.model.path == "embedded"

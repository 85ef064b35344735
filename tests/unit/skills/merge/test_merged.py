"""Which samples a bank has learned from."""

from __future__ import annotations

import pytest

from skill_ttrl.errors import SkillBankError
from skill_ttrl.skills.merge import merged_samples
from skill_ttrl.types import BankUpdate


@pytest.mark.parametrize("back_to", [2, 3, -1])
def test_a_log_whose_rollback_leads_nowhere_is_damaged(back_to: int) -> None:
    updates = [BankUpdate(1, (), "merge", samples=("a",)), BankUpdate(2, (), "rollback", back_to=back_to)]
    with pytest.raises(SkillBankError, match=f"version 2 brings back version {back_to}, which is not before it"):
        merged_samples(updates)

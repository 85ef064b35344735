"""The settings of a bank: those that its folder remembers, and those that a config gives."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from skill_ttrl.errors import SkillBankError
from skill_ttrl.skills.bank.changes import quote
from skill_ttrl.skills.bank.folder import BANK_FILE

if TYPE_CHECKING:
    from skill_ttrl.config import SkillsConfig

Mode = Literal["embedding", "keyword", "hybrid", "template"]
SETTINGS = (
    "max_skills",
    "retrieval_mode",
    "top_k",
    "min_score",
    "embedder",
    "embedder_model",
    "embedder_revision",
    "stale_after",
)
"""Settings that a bank's folder keeps from its last write."""
IN_CONFIG = {"retrieval_mode": "retrieval"}  # the others have the same name there


def check_settings(settings: Mapping[str, Any], path: Path) -> None:
    """Refuse what a config would refuse: `bank.json` may have been edited."""
    from pydantic import ValidationError

    from skill_ttrl.config import SkillsConfig

    try:
        SkillsConfig.model_validate({IN_CONFIG.get(name, name): value for name, value in settings.items()}, strict=True)
    except ValidationError as error:
        problem = error.errors()[0]
        name = str(problem["loc"][0])
        raise SkillBankError(
            f"{path / BANK_FILE} is damaged: {name} is {quote(problem['input'])} ({problem['msg']}). Correct it there."
        ) from None


def bank_settings(config: SkillsConfig) -> dict[str, Any]:
    """Settings from a config's `skills` section that a bank is made with."""
    return {name: getattr(config, IN_CONFIG.get(name, name)) for name in (*SETTINGS, "index", "chroma_server")}

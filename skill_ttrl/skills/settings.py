"""The settings of a bank: those that its folder remembers, and where its vectors are kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from skill_ttrl.errors import SkillBankError
from skill_ttrl.skills.changes import quote
from skill_ttrl.skills.folder import BANK_FILE, is_bank, read_settings

if TYPE_CHECKING:
    from skill_ttrl.config.skills import SkillsConfig

Mode = Literal["embedding", "keyword", "hybrid", "template"]
Searched = Literal["all", "when_to_apply"]
Fallback = Literal["none", "most_useful"]
DEFAULT_MODEL = "sentence-transformers/all-MiniLM-L6-v2"
REMEMBERED = (
    "max_skills",
    "retrieval_mode",
    "top_k",
    "min_score",
    "embedder",
    "embedder_model",
    "embedder_revision",
    "searched",
    "fallback",
    "stale_after_steps",
    "shared",
)
"""Settings that a bank's folder keeps from its last write."""
IN_CONFIG = {"retrieval_mode": "retrieval"}  # the others have the same name there


@dataclass(frozen=True)
class BankSettings:
    """Capacity and retrieval of a bank.

    Raises:
        SkillBankError: `max_skills` is less than 1.
    """

    max_skills: int = 200
    """Capacity. An update that would exceed it also evicts the least useful skills (`changes.eviction_key`)."""
    retrieval_mode: Mode = "embedding"
    """See `skills/retrieval/retriever.py`."""
    top_k: int = 6
    """Skills found for one query."""
    min_score: float | None = None
    """Least score of skills of the tier `task`; those of other tiers are found from 0 on. See `retriever.Retriever`."""
    embedder: str = "hash"
    """Name of the embedder (`skills/retrieval/make.py`)."""
    embedder_model: str = DEFAULT_MODEL
    """Hugging Face id or folder."""
    embedder_revision: str | None = None
    """Commit of a hub model."""
    searched: Searched = "all"
    """Part of a skill that queries are compared with (`retrieval.retriever.searched_texts`)."""
    fallback: Fallback = "none"
    """Skills that a query by keywords finds where no skill shares a word with it (`retriever.Retriever`). `SkillBank()`, in memory, has `most_useful`."""
    stale_after_steps: int | None = None
    """Rounds without a use after which `SkillBank.evict_stale` removes a skill; None: never."""
    index: Literal["chroma", "memory"] = "chroma"
    """Where vectors are kept; a bank in memory, or read only, keeps them in memory."""
    chroma_server: str | None = None
    """`host:port` of a Chroma server, in place of one in the bank's folder."""
    shared: bool = False
    """Several processes may have the bank open for writing: each update takes the lock for itself. A bank that was shared once stays so."""

    def __post_init__(self) -> None:
        if self.max_skills < 1:
            raise SkillBankError(f"max_skills is at least 1, found {self.max_skills}.")

    @classmethod
    def from_config(cls, config: SkillsConfig) -> BankSettings:
        """Settings from a config's `skills` section."""
        config = with_own_embedder(config)
        return cls(**{name: getattr(config, IN_CONFIG.get(name, name)) for name in cls.__dataclass_fields__})

    @classmethod
    def of_folder(cls, path: Path) -> BankSettings:
        """Settings that a bank was last written with.

        Raises:
            SkillBankError: there is no bank, or its settings are damaged.
        """
        stored = read_settings(path)
        stored = {name: stored[name] for name in REMEMBERED if name in stored}
        if problem := _problem(stored):
            raise SkillBankError(f"{path / BANK_FILE} is damaged: {problem}. Correct it there.")
        return cls(**stored)

    def remembered(self) -> dict[str, Any]:
        """Settings that the bank's folder keeps.

        Raises:
            SkillBankError: one has a value that a folder cannot keep.
        """
        settings = {name: getattr(self, name) for name in REMEMBERED}
        if problem := _problem(settings):
            raise SkillBankError(f"A skill bank cannot be opened with this setting: {problem}. Nothing was changed.")
        return settings


def with_own_embedder(skills: SkillsConfig) -> SkillsConfig:
    """The section with the embedder of the bank's folder that it names, where it states none.

    Raises:
        SkillBankError: the settings of that bank are damaged.
    """
    if skills.bank is None or "embedder" in skills.model_fields_set:
        return skills
    folder = next((each for each in (Path(skills.bank), Path(skills.bank) / "bank") if is_bank(each)), None)
    if folder is None:
        return skills
    own = BankSettings.of_folder(folder)
    return skills.model_copy(
        update={name: getattr(own, name) for name in ("embedder", "embedder_model", "embedder_revision")}
    )


def _problem(settings: Mapping[str, Any]) -> str:
    """The first value that a config would refuse; empty if there is none."""
    from pydantic import ValidationError

    from skill_ttrl.config.skills import SkillsConfig

    try:
        SkillsConfig.model_validate({IN_CONFIG.get(name, name): value for name, value in settings.items()}, strict=True)
    except ValidationError as error:
        problem = error.errors()[0]
        return f"{problem['loc'][0]} is {quote(problem['input'])} ({problem['msg']})"
    return ""

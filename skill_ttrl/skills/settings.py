"""The settings of a bank: those that its folder remembers, and where its vectors are kept."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, model_validator

from skill_ttrl.config.skills import SkillsConfig
from skill_ttrl.errors import SkillBankError
from skill_ttrl.skills.changes import quote
from skill_ttrl.skills.folder import BANK_FILE, is_bank, read_settings

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


class BankSettings(SkillsConfig):
    """Capacity and retrieval of a bank: settings of the section `skills`, by default without a download and without a threshold.

    As an argument and in a bank's folder `retrieval` is called `retrieval_mode`, as in the first Skill-TTRL.
    """

    embedder: str = "hash"
    min_score: float | None = None
    top_k: int = Field(default=6, ge=1)
    """Default number of skills for `SkillBank.retrieve` and `skillttrl skills show --search` (SkillRL: 6)."""

    @model_validator(mode="before")
    @classmethod
    def _first_name(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        return {"retrieval" if name == "retrieval_mode" else name: value for name, value in given.items()}

    @property
    def retrieval_mode(self) -> Mode:
        """Another name of `retrieval`."""
        return self.retrieval

    @classmethod
    def from_config(cls, config: SkillsConfig) -> BankSettings:
        """Settings from a config's `skills` section."""
        return cls.model_validate(with_own_embedder(config).model_dump(exclude={"gate"}))

    @classmethod
    def of_folder(cls, path: Path) -> BankSettings:
        """Settings that a bank was last written with.

        Raises:
            SkillBankError: there is no bank, or its settings are damaged.
        """
        stored = read_settings(path)
        kept = {name: stored[name] for name in REMEMBERED if name in stored}
        return _checked(kept, f"{path / BANK_FILE} is damaged", "Correct it there")

    def changed(self, **settings: Any) -> BankSettings:
        """The same with other values.

        Raises:
            SkillBankError: one cannot be a setting.
        """
        values = {**self.model_dump(exclude={"gate"}), **settings}
        return _checked(values, "A skill bank cannot be opened with this setting", "Nothing was changed")

    def in_memory(self) -> BankSettings:
        """The same with vectors that this process alone has."""
        return self.changed(index="memory", chroma_server=None)

    def remembered(self) -> dict[str, Any]:
        """Settings that the bank's folder keeps."""
        return {name: getattr(self, name) for name in REMEMBERED}


def _checked(values: Mapping[str, Any], what: str, remedy: str) -> BankSettings:
    try:
        return BankSettings.model_validate(dict(values), strict=True)
    except ValidationError as error:
        problem = error.errors()[0]
        name = ".".join(map(str, problem["loc"])) or "skills"
        raise SkillBankError(f"{what}: {name} is {quote(problem['input'])} ({problem['msg']}). {remedy}.") from None


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

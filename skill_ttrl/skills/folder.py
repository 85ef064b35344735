"""A bank's folder: what makes a folder a bank, its settings, and the lock of its one writer."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, model_validator

from skill_ttrl.config.skills import SkillsConfig
from skill_ttrl.errors import RunFolderError, SkillBankError
from skill_ttrl.skills.changes import quote
from skill_ttrl.storage.files import LOCK_FILE, acquire_lock, write_atomic
from skill_ttrl.storage.jsonl import parse_json
from skill_ttrl.trust import SUFFIX, check_links, check_trusted, is_signed, powers, sign

SCHEMA = 1
BANK_FILE = "bank.json"
LOG_FILE = "log.jsonl"
LOCK_SECONDS = 30.0
"""Longest wait for the lock of a shared bank: an update holds it for milliseconds."""
LOCK_PAUSE = (0.0005, 0.003)
"""Seconds between two attempts, drawn anew each time so that nobody is always late."""


def is_bank(path: Path) -> bool:
    """True if a folder holds a bank (of any schema)."""
    return (path / BANK_FILE).is_file()


def read_settings(path: Path) -> dict[str, Any]:
    """The settings a bank was last written with.

    Raises:
        SkillBankError: the folder is no bank, or one of another schema.
    """
    if not is_bank(path):
        found = "a file" if path.is_file() else "a folder without bank.json" if path.exists() else "nothing"
        raise SkillBankError(
            f"There is no skill bank at {path}: found {found}. Create one with: skillttrl skills add, or skillttrl skills import."
        )
    try:
        data = (path / BANK_FILE).read_bytes()
        content = parse_json(data)
        schema, settings = content["schema"], dict(content["settings"])
    except OSError as error:
        raise refusal("read", path / BANK_FILE, error) from error
    except (ValueError, KeyError, TypeError):
        raise SkillBankError(
            f"{path / BANK_FILE} is damaged: it has no schema and settings. Restore the file."
        ) from None
    if schema != SCHEMA:
        raise SkillBankError(
            f"The bank at {path} was written under schema {schema!r}; this version of Skill-TTRL reads {SCHEMA}. Export it "
            "with the version that wrote it (skillttrl skills export) and import the file here."
        )
    check_trusted(path / BANK_FILE, data.decode("utf-8", "replace"), {"skills": settings}, shown=True)
    return settings


def check_settings_trusted(path: Path, chosen: Iterable[str]) -> None:
    """Refuse settings of another user's bank that import code.

    Args:
        path: the bank's folder.
        chosen: settings that are not the bank's own.

    Raises:
        TrustError: there are such settings, and the user has not said that they are trusted.
    """
    stated = {name: value for name, value in read_settings(path).items() if name not in set(chosen)}
    check_trusted(path / BANK_FILE, (path / BANK_FILE).read_text(encoding="utf-8"), {"skills": stated})


def write_settings(path: Path, settings: dict[str, Any]) -> None:
    """Make the folder a bank with these settings, signed as this user's unless they were another's before."""
    file = path / BANK_FILE
    content = json.dumps({"schema": SCHEMA, "settings": settings}, indent=2) + "\n"
    before = read_settings(path) if is_bank(path) else {}
    inherited = {name: value for name, value in settings.items() if name in before and before[name] == value}
    if not powers({"skills": inherited}) or is_signed(file, file.read_text(encoding="utf-8")):
        sign(file, content, {"skills": settings})
    write_atomic(file, content.encode())


def settle_settings(path: Path, settings: dict[str, Any]) -> None:
    """Write the settings that a bank is opened with. Those of a shared bank stay: they are what all its writers agreed on.

    Raises:
        SkillBankError: the bank is shared and is opened for one process alone, or with another capacity.
    """
    found = read_settings(path)
    if not found.get("shared"):
        if settings != found:
            write_settings(path, settings)
        return
    if not settings.get("shared"):
        raise SkillBankError(
            f"The bank at {path} is shared with other processes, so it cannot be opened exclusively. Open it with "
            "shared=True (in a run: skills.shared=true), or work on a copy: skillttrl skills export, then import."
        )
    if settings["max_skills"] != found["max_skills"]:
        raise SkillBankError(
            f"The shared bank at {path} holds at most {found['max_skills']} skills, and here max_skills is "
            f"{settings['max_skills']}: each writer would evict what the others add. Set skills.max_skills={found['max_skills']}."
        )


def check_new(path: Path) -> None:
    """Refuse to make a bank where other things are.

    Raises:
        SkillBankError: the path is a file, or a folder that holds something and is no bank.
    """
    if path.exists() and not path.is_dir():
        raise SkillBankError(
            f"{path} is a file. A skill bank is a folder: name another path, or import the file into one."
        )
    own = (LOCK_FILE, f".{BANK_FILE}", f"{BANK_FILE}{SUFFIX}")
    entries = path.iterdir() if path.is_dir() else ()
    others = (entry for entry in entries if not entry.name.startswith(own))
    foreign = [entry for entry in others if entry.name != LOG_FILE or entry.stat().st_size > 0]  # an empty log is none
    if foreign and not is_bank(path):
        raise SkillBankError(
            f"{path} is not a skill bank and holds other things ({quote(foreign[0].name)}). Name a new or an empty folder."
        )


def take(path: Path, seconds: float = 0.0) -> int:
    """Lock the folder, made where it is not there; see `lock`."""
    check_new(path)
    path.mkdir(parents=True, exist_ok=True)
    check_links(path)
    return lock(path, seconds)


def lock(path: Path, seconds: float = 0.0) -> int:
    """Lock a bank's folder; the descriptor that holds the lock (`release_lock`).

    Args:
        path: the folder.
        seconds: how long to wait for another process.

    Raises:
        SkillBankError: another process has it all that time, or it cannot be locked.
    """
    until = time.monotonic() + seconds
    while True:
        try:
            return acquire_lock(path)
        except RunFolderError as error:
            if isinstance(error.__cause__, OSError):
                raise refusal("lock", path, error.__cause__) from error
            if time.monotonic() >= until:
                # The owner's number is in the message already. Reading the lock file here could free the lock: POSIX frees
                # all locks that a process has on a file when it closes any descriptor of it.
                only_looking = f"or only view it: skillttrl inspect {path}"
                waited = f" Stopped waiting after {seconds:g} s." if seconds else ""
                raise SkillBankError(str(error).replace("or choose another --output.", only_looking) + waited) from None
        time.sleep(random.uniform(*LOCK_PAUSE))


def refusal(action: str, path: Path, error: OSError) -> SkillBankError:
    """The error for what the system refused."""
    return SkillBankError(
        f"Cannot {action} {path}: {error.strerror or error}. Nothing was changed. Check the path, its permissions and the "
        "free space."
    )


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

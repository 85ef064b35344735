"""Contents of a skill bank, its changes, and the operations of a rollout on it. Imported from `skill_ttrl.types`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Tier = Literal["general", "task", "mistake"]
ChangeKind = Literal["add", "edit", "replace", "remove", "evict", "use"]


@dataclass(frozen=True, slots=True)
class Evolution:
    """A better text for a skill that exists."""

    base: str
    """Id of the skill, as the model wrote it, without `#`."""
    text: str


@dataclass(frozen=True, slots=True)
class SkillOps:
    """What one try asked of the skill bank, in the order it was written. Errors are data: nothing here raises."""

    generate: tuple[str, ...] = ()
    """Texts of new skills."""
    retrieve: tuple[str, ...] = ()
    """Queries."""
    evolve: tuple[Evolution, ...] = ()
    errors: tuple[str, ...] = ()
    """What could not be read, each with its reason."""
    titles: tuple[str, ...] = ()
    """Titles of the new skills, in the order of `generate`; empty where none was given."""

    @property
    def has_generate(self) -> bool:
        """Whether a new skill was written."""
        return bool(self.generate)

    @property
    def has_retrieve(self) -> bool:
        """Whether the bank was asked."""
        return bool(self.retrieve)

    @property
    def has_evolve(self) -> bool:
        """Whether a skill was rewritten."""
        return bool(self.evolve)

    @property
    def retrieve_query(self) -> str | None:
        """The first query."""
        return self.retrieve[0] if self.retrieve else None

    @property
    def evolve_base_id(self) -> str | None:
        """Id of the first skill that was rewritten."""
        return self.evolve[0].base if self.evolve else None

    def __bool__(self) -> bool:
        return bool(self.generate or self.retrieve or self.evolve)


@dataclass(frozen=True, slots=True)
class SkillStats:
    """How a skill has served. It is carried over when the skill is replaced."""

    uses: int = 0
    successes: int = 0
    created_round: int = 0
    """Training step, or whatever the caller counts rounds in."""
    last_used_round: int | None = None

    @property
    def success_rate(self) -> float | None:
        """Successes per use, in [0, 1]; None before the first use."""
        return self.successes / self.uses if self.uses else None


@dataclass(frozen=True, slots=True)
class Skill:
    """A piece of advice that can be put into a prompt. Its text is untrusted: data everywhere, escaped in prompts."""

    id: str
    """Unique in its bank."""
    title: str
    text: str
    when_to_apply: str = ""
    tier: Tier = "task"
    """`general` holds for every task, `task` for one type, `mistake` tells what to avoid."""
    task_type: str = ""
    """Kind of task it is for; empty for any."""
    version: int = 1
    """1 for a new skill, one more than its base for one that replaces another."""
    parents: tuple[str, ...] = ()
    """Ids of the skills it came from, nearest last."""
    source: str = ""
    """Who wrote it: "user", "merge", "import", ..."""
    evidence: tuple[str, ...] = ()
    """What speaks for it: ids of tasks or trajectories."""
    stats: SkillStats = field(default_factory=SkillStats)
    flags: tuple[str, ...] = ()
    """Suspicious parts of its text (see `sanitize`); empty for most."""
    extra: str = ""
    """What the file it came from said of it and no field here holds: a JSON object as text (`skills.leftover`), empty for
    none. A text, so that a skill stays hashable, and numbers and the order of keys stay as they were."""


@dataclass(frozen=True, slots=True)
class Change:
    """One skill before and after. Its inverse is the same with both exchanged."""

    kind: ChangeKind
    before: Skill | None
    after: Skill | None


@dataclass(frozen=True, slots=True)
class BankUpdate:
    """One step in a bank's history, and the only way to change a bank: replayable, and reversible by its own content."""

    version: int
    """Version of the bank after this update; the first is 1."""
    changes: tuple[Change, ...]
    reason: str
    """Why, in a few words: "merge", "evict: over capacity", "rollback to 12"."""
    evidence: tuple[str, ...] = ()
    """Ids of the tasks or trajectories that led to it."""
    round: int | None = None
    """Training step it belongs to."""
    origin: str | None = None
    """`Snapshot.origin` from this version on; None: as it was."""
    samples: tuple[str, ...] = ()
    """Digests of the samples that it learned from (`skills.merged`), so that none is counted twice."""
    back_to: int | None = None
    """The version that a rollback brings back; None for every other update."""
    writer: str = ""
    """`run` for what a run does to its own bank; empty for changes by hand, by commands and by programs."""

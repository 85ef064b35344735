"""Contents of a skill bank, its changes, and the operations of a rollout on it. Imported from `skill_ttrl.types`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, Literal, TypeVar

T = TypeVar("T")
Tier = Literal["general", "task", "mistake"]
ChangeKind = Literal["add", "edit", "replace", "remove", "evict", "use"]

FIELD_NAMES: Mapping[str, str] = {"skill_id": "id", "content": "text"}
"""Names of the first Skill-TTRL for fields of `Skill`."""
STATISTICS: Mapping[str, str] = {
    "usage_count": "uses",
    "success_count": "successes",
    "created_at_round": "created_step",
    "last_used_round": "last_used_step",
}
"""Its names for statistics, in the skill itself, each with the field of `SkillStats`."""
PARENT = "parent_id"
"""Its name for the skill that this one came from, or None."""
FOR_ANY_TASK = "general"
"""Its task type for skills that hold for any task: the tier `general` here."""


@dataclass(frozen=True, slots=True)
class Evolution:
    """New text for an existing skill."""

    base: str
    """Id of the skill, as the model wrote it, without `#`."""
    text: str


@dataclass(frozen=True, slots=True)
class SkillOps:
    """Skill operations of one rollout, in the order written. Parse errors are stored, not raised."""

    generate: tuple[str, ...] = ()
    """Texts of new skills."""
    retrieve: tuple[str, ...] = ()
    """Queries."""
    evolve: tuple[Evolution, ...] = ()
    errors: tuple[str, ...] = ()
    """Operations that could not be parsed, each with its reason."""
    titles: tuple[str, ...] = ()
    """Titles of the new skills, in the order of `generate`; empty if none was given."""

    @property
    def has_generate(self) -> bool:
        """True if the rollout wrote a new skill."""
        return bool(self.generate)

    @property
    def has_retrieve(self) -> bool:
        """True if the rollout queried the bank."""
        return bool(self.retrieve)

    @property
    def has_evolve(self) -> bool:
        """True if the rollout rewrote a skill."""
        return bool(self.evolve)

    @property
    def retrieve_query(self) -> str | None:
        """The first query."""
        return self.retrieve[0] if self.retrieve else None

    @property
    def evolve_base_id(self) -> str | None:
        """Id of the first skill that was rewritten."""
        return self.evolve[0].base if self.evolve else None

    @property
    def ops_summary(self) -> list[str]:
        """Names of the operations that the rollout wrote, in the order generate, retrieve, evolve."""
        return [name for name in ("generate", "retrieve", "evolve") if getattr(self, name)]

    def __bool__(self) -> bool:
        return bool(self.generate or self.retrieve or self.evolve)


@dataclass(frozen=True, slots=True)
class SkillStats:
    """Usage statistics of a skill, carried over when the skill is replaced."""

    uses: int = 0
    successes: int = 0
    created_step: int = 0
    """Training step, or whatever the caller counts rounds in."""
    last_used_step: int | None = None

    @property
    def success_rate(self) -> float | None:
        """Successes per use, in [0, 1]; None before the first use."""
        return self.successes / self.uses if self.uses else None


def _from_their_names(values: dict[str, Any]) -> dict[str, Any]:
    """Fields of `Skill` from those of the first Skill-TTRL; what is in our names already stays."""
    stats = {ours: values.pop(theirs) for theirs, ours in STATISTICS.items() if theirs in values}
    if not stats.get("uses"):
        stats.pop("last_used_step", None)  # there 0 stands for never
    if stats:
        values["stats"] = SkillStats(**stats)
    if (parent := values.pop(PARENT, None)) is not None:
        values["parents"] = (parent,)
    if values.get("task_type") == FOR_ANY_TASK:
        values.setdefault("tier", "general")
    return {FIELD_NAMES.get(name, name): value for name, value in values.items()}


def _with_their_names(skill: type[T]) -> type[T]:
    """Let the constructor take the names of the first Skill-TTRL too."""
    accepting: Any = skill
    made = accepting.__init__
    theirs = {*FIELD_NAMES, *STATISTICS, PARENT}

    @wraps(made)
    def init(self: Any, *args: Any, **values: Any) -> None:
        made(self, *args, **(values if theirs.isdisjoint(values) else _from_their_names(values)))

    accepting.__init__ = init
    return skill


@_with_their_names
@dataclass(frozen=True, slots=True)
class Skill:
    """A piece of advice that can be put into a prompt. Its text is untrusted: data everywhere, escaped in prompts."""

    id: str
    """Unique in its bank."""
    title: str
    text: str
    when_to_apply: str = ""
    tier: Tier = "task"
    """`general` applies to every task, `task` to one type, `mistake` describes what to avoid."""
    task_type: str = ""
    """Kind of task it is for; empty for any."""
    version: int = 1
    """1 for a new skill, one more than its base for one that replaces another."""
    parents: tuple[str, ...] = ()
    """Ids of the skills it came from, nearest last."""
    source: str = ""
    """Origin of the skill: "user", "merge", "import", ..."""
    evidence: tuple[str, ...] = ()
    """Ids of the tasks or trajectories that support it."""
    stats: SkillStats = field(default_factory=SkillStats)
    flags: tuple[str, ...] = ()
    """Suspicious parts of its text (see `sanitize`); empty for most."""

    # Names of the first Skill-TTRL; the constructor takes them too.

    @property
    def skill_id(self) -> str:
        """Alias of `id`."""
        return self.id

    @property
    def content(self) -> str:
        """Alias of `text`."""
        return self.text

    @property
    def usage_count(self) -> int:
        """Alias of `stats.uses`."""
        return self.stats.uses

    @property
    def success_count(self) -> int:
        """Alias of `stats.successes`."""
        return self.stats.successes

    @property
    def success_rate(self) -> float:
        """Successes per use, 0 before the first use; `stats.success_rate` is None there."""
        return self.stats.success_rate or 0.0

    @property
    def created_at_round(self) -> int:
        """Alias of `stats.created_step`."""
        return self.stats.created_step

    @property
    def last_used_round(self) -> int:
        """Step of the last use, 0 before the first one; `stats.last_used_step` is None there."""
        return self.stats.last_used_step or 0

    @property
    def parent_id(self) -> str | None:
        """The nearest of `parents`; None for none."""
        return self.parents[-1] if self.parents else None


@dataclass(frozen=True, slots=True)
class Change:
    """One skill before and after. Its inverse is the same with both exchanged."""

    kind: ChangeKind
    before: Skill | None
    after: Skill | None

    @property
    def skill(self) -> Skill:
        """The skill after the change, or before it where it is gone."""
        return self.after or self.before  # type: ignore[return-value]  # one of them is there


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
    step: int | None = None
    """Training step it belongs to."""
    origin: str | None = None
    """`Snapshot.origin` from this version on; None: as it was."""
    samples: tuple[str, ...] = ()
    """Digests of the samples that it learned from (`skills.merge`), so that none is counted twice."""
    back_to: int | None = None
    """The version that a rollback brings back; None for every other update."""
    writer: str = ""
    """`run` for a run's changes to its bank; empty for changes by hand, by commands and by programs."""

"""The skill bank: a versioned set of skills that changes by `BankUpdate`s only.

Every method that changes something writes one update with its reason and evidence to the log
(`skills/log.py`) before it counts. What readers get is a `Snapshot`: a frozen version that stays as it is whatever happens
to the bank. A bank without a path lives in memory and behaves the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from skill_ttrl.errors import SkillBankError, did_you_mean
from skill_ttrl.sanitize import replace_surrogates
from skill_ttrl.skills.changes import (
    EDITABLE,
    OnDuplicate,
    Snapshot,
    as_successor,
    difference,
    evictions,
    imported,
    last_active,
    new_ids,
    normalize_skill,
    quote,
    validate_changes,
    with_usage,
)
from skill_ttrl.skills.log import BankSettings, FileLog, MemoryLog, check_settings_trusted, replay
from skill_ttrl.types import BankUpdate, Change, Skill, SkillStats, Tier

if TYPE_CHECKING:
    from skill_ttrl.config import SkillsConfig
    from skill_ttrl.skills.retrieval import Hit, Retriever

SEEDED = "seeded"
"""Source of skills that never go stale."""


class UpdateMetadata(TypedDict, total=False):
    """Why a bank is changed; every method that changes one takes it."""

    reason: str
    """Why, in a few words."""
    evidence: Iterable[str]
    """Ids of tasks or trajectories."""
    round: int | None
    """Training step."""


class SkillBank:
    """Skills by id, their history, and their retrieval. A context manager; not for several threads at once.

    Args:
        path: the bank's folder, made when it is not there; None: in memory.
        settings: None: the defaults of `BankSettings`, for a bank in memory with `fallback="most_useful"`, as in the first Skill-TTRL.
        read_only: change nothing and take no lock: works while another process writes the bank.
        writer: see `BankUpdate.writer`.
        **changed: fields of `BankSettings` in place of those of `settings`, such as `max_skills=50`.

    Raises:
        ConfigError: there is no such embedder.
        SkillBankError: a setting has a wrong value, the folder cannot be read or written, or another process writes it.
    """

    def __init__(
        self,
        path: str | Path | None = None,
        settings: BankSettings | None = None,
        *,
        read_only: bool = False,
        writer: str = "",
        **changed: Any,
    ) -> None:
        self.path = None if path is None else Path(path)
        default = BankSettings(fallback="most_useful" if path is None else "none")
        self.settings = (settings or default).changed(**changed)
        self.writer = writer
        self._retriever: Retriever | None = None
        self._check_trusted: Callable[[], None] = lambda: None
        self._log: MemoryLog | FileLog = MemoryLog()
        if self.path is None or read_only:
            self.settings = self.settings.changed(index="memory")
        if self.path is not None:
            # All that can be wrong is found before the folder is touched.
            remembered = None if read_only else self.settings.remembered()
            if "embedder" in changed:
                from skill_ttrl.skills.embedders import EMBEDDERS

                EMBEDDERS.get(self.settings.embedder)
            self._log = FileLog(self.path, settings=remembered, read_only=read_only)

    @classmethod
    def open(cls, path: str | Path, *, read_only: bool = False, **changed: Any) -> SkillBank:
        """A bank that exists, with the settings it was last written with, apart from those of `changed`.

        Raises:
            SkillBankError: there is none, or it cannot be opened.
        """
        bank = cls(path, BankSettings.of_folder(Path(path)), read_only=read_only, **changed)
        bank._check_trusted = partial(check_settings_trusted, Path(path), changed)
        return bank

    @classmethod
    def from_config(cls, config: SkillsConfig, path: str | Path | None = None, *, writer: str = "") -> SkillBank:
        """A bank with the settings of a config's `skills` section. What it begins with (`skills.bank`) is not loaded."""
        return cls(path, BankSettings.from_config(config), writer=writer)

    @classmethod
    def from_snapshot(cls, snapshot: Snapshot, settings: BankSettings | None = None, **changed: Any) -> SkillBank:
        """A bank in memory that begins with a frozen version, under that version's number."""
        bank = cls(None, settings, **changed)
        # Normalized, as by every other way into a bank.
        normalized = Snapshot.of(snapshot.version, map(normalize_skill, snapshot), snapshot.origin)
        bank._log = MemoryLog(snapshot if normalized == snapshot else normalized)
        return bank

    # --- reading ---

    @property
    def version(self) -> int:
        """Number of updates so far; 0 for a new bank."""
        return self._log.current.version

    @property
    def notices(self) -> Sequence[str]:
        """Messages for the user about problems found at opening, such as a torn last line."""
        return tuple(self._log.notices)

    def snapshot(self) -> Snapshot:
        """The present version, frozen. The same object until the bank changes."""
        return self._log.current

    def get(self, skill_id: str) -> Skill | None:
        """The skill of this id, or None."""
        return self.snapshot().get(skill_id)

    def __len__(self) -> int:
        return len(self.snapshot())

    def __iter__(self) -> Iterator[Skill]:
        return iter(self.snapshot())

    def __contains__(self, skill_id: object) -> bool:
        return skill_id in self.snapshot()

    def history(self, after: int = 0) -> list[BankUpdate]:
        """All updates in order, or those that came after a version."""
        return list(self._log.updates(after))

    def at(self, version: int) -> Snapshot:
        """Any version, rebuilt from the log; 0 is the empty bank.

        Raises:
            SkillBankError: there is no such version.
        """
        if version == self.version:
            return self.snapshot()
        first = self._log.first
        if not first.version <= version < self.version:
            raise SkillBankError(
                f"There is no version {version} of this bank: it has {first.version} to {self.version}. "
                "See them with: skillttrl skills show BANK --history"
            )
        return replay(first, islice(self._log.updates(), version - first.version))

    def _need(self, skill_id: str) -> Skill:
        """The skill, or an error."""
        found = self.get(skill_id)
        if found is None:
            hint = did_you_mean(skill_id, self.snapshot().skills, "skillttrl skills show BANK")
            raise SkillBankError(f"There is no skill {quote(skill_id)} in the bank (version {self.version}).{hint}")
        return found

    # --- changing ---

    def plan(self, changes: Iterable[Change], **why: Unpack[UpdateMetadata]) -> BankUpdate:
        """The update that `apply` would write for these changes, evictions included. Nothing is changed.

        Raises:
            SkillBankError: a change does not fit the present version (see `changes.validate_changes`).
        """
        now = self.snapshot()
        done = validate_changes(now, changes)
        new = {change.after.id for change in done if change.after is not None and change.kind in ("add", "replace")}
        done += evictions(now.changed(now.version, done), self.settings.max_skills, spare=new)
        return BankUpdate(
            now.version + 1, done, why.get("reason", ""), tuple(why.get("evidence", ())), why.get("round")
        )

    def apply(
        self,
        changes: BankUpdate | Iterable[Change],
        *,
        origin: str | None = None,
        samples: Iterable[str] = (),
        **why: Unpack[UpdateMetadata],
    ) -> BankUpdate:
        """Change the bank: the one way to do so. When this returns, the update is in the log and on the disk.

        Args:
            changes: what to change, in order, made from the present version; or a whole update for the next version,
                which brings all that follows.
            origin: see `BankUpdate.origin`.
            samples: see `BankUpdate.samples`.
            **why: see `UpdateMetadata`.

        Raises:
            SkillBankError: a change does not fit the present version, or cannot be written. Nothing is changed then.
        """
        if isinstance(changes, BankUpdate):
            if changes.version != self.version + 1:
                raise SkillBankError(
                    f"The update is for version {changes.version}, but the bank's next is {self.version + 1}. Create it again from the present version."
                )
            return self._write(replace(changes, changes=self.plan(changes.changes).changes))
        return self._write(replace(self.plan(changes, **why), origin=origin, samples=tuple(samples)))

    def add(self, skill: Skill, **why: Unpack[UpdateMetadata]) -> Skill:
        """Add a new skill, evicting the least useful where the bank is full; the skill as it was stored.

        Raises:
            SkillBankError: its id is taken, or no id; its text is empty.
        """
        round = why.get("round")
        if round is not None and skill.stats == SkillStats():
            skill = replace(skill, stats=SkillStats(created_step=round))
        return self._change(Change("add", None, skill), why)

    def add_from_dict(
        self, d: Mapping[str, Any], task_type: str = "", source: str = "", **why: Unpack[UpdateMetadata]
    ) -> Skill:
        """Add a skill from a plain dictionary, in any of the spellings of `files.skill_from_dict`.

        `task_type` and `source` count where the dictionary has none; without an id it gets one.
        """
        from skill_ttrl.skills.files import skill_from_dict

        skill = skill_from_dict(d, task_type=task_type, source=source, new_id=new_ids(self.snapshot(), 1)[0])
        return self.add(skill, **why)

    def import_skills(
        self,
        skills: Iterable[Skill],
        *,
        on_duplicate: OnDuplicate = "refuse",
        origin: str = "",
        **why: Unpack[UpdateMetadata],
    ) -> BankUpdate:
        """Add many skills in one update (see `changes.imported`): all of them or none. A bank without skills also takes
        over the `origin` of their file (`files.SkillFile`).

        Raises:
            SkillBankError: an id is taken, or there are more than the bank can hold.
        """
        changes = imported(self.snapshot(), skills, on_duplicate)
        self._check_room(changes)
        why = {"reason": "import", **why}
        return self.apply(changes, origin=None if len(self) else origin, **why)

    def edit(
        self,
        skill_id: str,
        *,
        reason: str = "edit",
        evidence: Iterable[str] = (),
        round: int | None = None,
        **fields: Any,
    ) -> Skill:
        """Correct a skill in place: `title`, `text`, `when_to_apply`, `tier`, `task_type`, `source`.

        Its version and statistics stay: a better skill in the place of another is `replace`.
        """
        for name in fields:
            if name not in EDITABLE:
                raise SkillBankError(f"A skill's {name!r} cannot be edited.{did_you_mean(name, EDITABLE)}")
        old = self._need(skill_id)
        why = UpdateMetadata(reason=reason, evidence=evidence, round=round)
        return self._change(Change("edit", old, replace(old, **fields)), why)

    def replace(self, old_id: str, new_skill: Skill, **why: Unpack[UpdateMetadata]) -> Skill:
        """Put a better skill in the place of another. It keeps the old one's statistics and lineage
        (`changes.as_successor`); its id may be the same or a new one.
        """
        old = self._need(old_id)
        return self._change(Change("replace", old, as_successor(old, new_skill)), why)

    def remove(self, skill_id: str, **why: Unpack[UpdateMetadata]) -> Skill:
        """Take a skill out; the skill as it was."""
        return self._change(Change("remove", self._need(skill_id), None), why)

    def record_usage(self, skill_id: str, success: bool, round: int | None = None) -> Skill:
        """Count one use of a skill; the skill with its new statistics."""
        self.record_usages([(skill_id, success)], round)
        return self.snapshot().skills[skill_id]

    def record_usages(
        self,
        uses: Iterable[tuple[str, bool]],
        round: int | None = None,
        *,
        reason: str = "use",
        evidence: Iterable[str] = (),
    ) -> BankUpdate:
        """Count many uses, (id, success) each, in one update."""
        pairs = list(uses)
        total = Counter(skill_id for skill_id, _ in pairs)
        good = Counter(skill_id for skill_id, success in pairs if success)
        skills = [self._need(skill_id) for skill_id in total]
        changes = [Change("use", each, with_usage(each, total[each.id], good[each.id], round)) for each in skills]
        return self.apply(changes, reason=reason, evidence=evidence, round=round)

    def evict_stale(self, current_round: int) -> list[str]:
        """Evict skills that were neither used nor made in the last `stale_after_steps` rounds; their ids.

        Skills of the source `seeded` stay: whoever seeds a bank wants them there, used or not (as in Skill-TTRL).
        """
        if self.settings.stale_after_steps is None:
            return []
        least = current_round - self.settings.stale_after_steps
        stale = [skill for skill in self if skill.source != SEEDED and last_active(skill) <= least]
        if stale:
            reason = f"evict: not used for {self.settings.stale_after_steps} rounds"
            self.apply([Change("evict", skill, None) for skill in stale], reason=reason, round=current_round)
        return [skill.id for skill in stale]

    def rollback(self, version: int, *, reason: str | None = None, evidence: Iterable[str] = ()) -> BankUpdate:
        """Make the bank again what it was at `version`, by a new update; the history stays.

        Whole skills come back, statistics included: they are part of the version, and what was counted since is still in
        the log. Capacity is not looked at.
        """
        why = reason or f"rollback to {version}", tuple(evidence)
        old = self.at(version)
        changes = difference(self.snapshot(), old)
        return self._write(BankUpdate(self.version + 1, changes, *why, origin=old.origin, back_to=version))

    def rewind(self, version: int) -> None:
        """Delete every update after `version` permanently. Use it only when a run resumes from an older checkpoint and
        repeats its later updates. To undo an update, use `rollback`.

        Raises:
            SkillBankError: there is no such version.
        """
        self.at(version)
        if version != self.version:
            self._log.cut(version)

    # --- finding ---

    @property
    def retriever(self) -> Retriever:
        """Retriever of this bank, created on first use and closed with the bank.

        Raises:
            ConfigError, ModelError, SkillBankError, MissingDependencyError: see `retrieval.make_retriever`.
        """
        if self._retriever is None:
            from skill_ttrl.skills.retrieval import make_retriever

            self._check_trusted()
            self._retriever = make_retriever(self.settings, self.path)
        return self._retriever

    def retrieve(self, query: str, task_type: str | None = None, top_k: int | None = None) -> list[Skill]:
        """The skills most relevant to a query, best first; an empty query finds none."""
        return [hit.skill for hit in self.search(query, task_type=task_type, top_k=top_k)]

    def search(
        self,
        query: str,
        *,
        task_type: str | None = None,
        tiers: Collection[Tier] | None = None,
        top_k: int | None = None,
    ) -> list[Hit]:
        """The same with scores (`retrieval.Retriever.search`)."""
        k = self.settings.top_k if top_k is None else top_k
        return self.retriever.search(self.snapshot(), [query], task_type=task_type, tiers=tiers, k=k)[0]

    # --- files and closing ---

    def save(self, path: str | Path) -> None:
        """Write all skills to one JSON file (`skills/files.py`); the history stays here."""
        from skill_ttrl.skills.files import write_skills

        write_skills(path, self.snapshot(), "json")

    def load(self, path: str | Path, *, reason: str | None = None) -> BankUpdate:
        """Put the skills of a file in the place of all that are here, in one update. The file may be of any format that
        `files.read_file` knows.
        """
        from skill_ttrl.skills.files import read_file

        found = read_file(path)
        new = imported(Snapshot(), found.skills)
        self._check_room(new)
        changes = [*(Change("remove", skill, None) for skill in self), *new]
        return self.apply(changes, reason=reason or "load", origin=found.origin)

    def close(self) -> None:
        """Free the folder and the index. What was read stays readable; a change is refused."""
        if self._retriever is not None:
            self._retriever.close()
            self._retriever = None
        self._log.close()

    def __enter__(self) -> SkillBank:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _check_room(self, changes: Sequence[Change]) -> None:
        """Refuse to import more skills than the bank can hold, which would evict some of them at once."""
        most = self.settings.max_skills
        if len(changes) > most:
            raise SkillBankError(
                f"{len(changes)} skills do not fit in a bank of at most {most}. Raise max_skills, or import fewer."
            )

    def _write(self, update: BankUpdate) -> BankUpdate:
        now = self.snapshot()
        evidence = tuple(map(replace_surrogates, update.evidence))
        update = replace(update, reason=replace_surrogates(update.reason), evidence=evidence, writer=self.writer)
        if update.origin == now.origin:  # the log says what changes
            update = replace(update, origin=None)
        self._log.append(update, now.changed(update.version, update.changes, update.origin))
        return update

    def _change(self, change: Change, why: UpdateMetadata) -> Skill:
        """Apply one change, its kind the reason where none is given; the skill after it, or before it where it is gone."""
        why = {"reason": change.kind, **why}
        self.apply([change], **why)
        return self.get(change.skill.id) or change.skill

"""Views of `skillttrl inspect BANK`: a bank, its history, what a search finds; and a bank's skills as files.

Looking opens the bank read-only, so it works while a run writes it. Texts are untrusted: what is shown has its control
characters as pictures.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from skill_ttrl.commands.reports.summary_text import MAX_CELL, Inspection
from skill_ttrl.data.families import bank_family
from skill_ttrl.errors import SkillBankError
from skill_ttrl.runs.folder import RunFolder
from skill_ttrl.sanitize import one_line
from skill_ttrl.skills.bank import SkillBank
from skill_ttrl.skills.changes import TIERS, Snapshot
from skill_ttrl.skills.files import SkillFile, dump_skills, format_of, read_file, write_skills
from skill_ttrl.skills.log import LOG_FILE, is_bank
from skill_ttrl.train.open_run import BANK
from skill_ttrl.types import BankUpdate, Skill

BANK_COLUMNS = ("id", "tier", "title", "successes/uses", "size", "version", "parents", "flags")
"""`size` in characters; `version` is the skill's own."""
HISTORY_COLUMNS = ("version", "round", "reason", "changes", "skills", "evidence", "writer")
HIT_COLUMNS = ("score", "id", "tier", "title")
FALLBACK = "no skill shares a word with the query: these hits are the fallback, the most useful skills of the bank (skills.fallback)"


def bank_folder(path: str | Path) -> Path:
    """The bank's folder, also where a run that has one is named."""
    path = Path(path)
    return path / BANK if RunFolder.exists(path) and is_bank(path / BANK) else path


def look(path: str | Path) -> SkillBank:
    """The bank at a path (or in a run), read-only and with its own settings."""
    return SkillBank.open(bank_folder(path), read_only=True)


def open_or_make(path: str | Path) -> SkillBank:
    """The bank at a path for writing, with the settings it has; a new one where there is none."""
    path = Path(path)
    return SkillBank.open(path) if is_bank(path) else SkillBank(path)


def inspect_bank(path: str | Path, *, limit: int = 10) -> Inspection:
    """A bank's figures and its skills.

    Raises:
        SkillBankError: there is no bank, or it is damaged.
    """
    with look(path) as bank:
        now, folder = bank.snapshot(), bank_folder(path)
    skills, stats = list(now), [skill.stats for skill in now]
    tiers: Counter[str] = Counter(skill.tier for skill in skills)
    uses, successes = sum(each.uses for each in stats), sum(each.successes for each in stats)
    facts = {
        "version": now.version,
        "capacity": bank.settings.max_skills,
        "retrieval": _retrieval(bank),
        "log": f"{(folder / LOG_FILE).stat().st_size:,} bytes",
        "skills": f"{len(skills)} ({', '.join(f'{tier} {tiers[tier]}' for tier in TIERS)})",
        "task types": ", ".join(sorted({_cell(skill.task_type) for skill in skills if skill.task_type})) or "none",
        "uses": f"{uses}, successful {successes}" + (f" ({successes / uses:.2f})" if uses else ""),
        "size": f"{sum(map(_size, skills)):,} characters",
        "flagged": sum(bool(skill.flags) for skill in skills),
    }
    rows, notes = [_bank_row(skill) for skill in skills[:limit]], [*bank.notices]
    if len(rows) < len(skills):
        notes.append(f"showing {len(rows)} of {len(skills)} skills; --rows {len(skills)} shows all")
    return Inspection("bank", str(folder), facts, BANK_COLUMNS, rows, notes, skills)


def run_bank(run: Path) -> str | None:
    """A run's bank in one line; None where it has none. One that cannot be read says why and hides nothing else."""
    folder = bank_folder(run)
    if folder == run:
        return None
    try:
        with look(folder) as bank:
            return f"{len(bank)} skills, version {bank.version}; see skillttrl inspect {folder}"
    except SkillBankError as error:
        return str(error)


def bank_history(path: str | Path, *, limit: int = 10) -> Inspection:
    """The newest updates of a bank, newest first."""
    with look(path) as bank:
        updates = bank.history(max(0, bank.version - limit))
        notes = [*bank.notices]
        if len(updates) < bank.version:
            notes.append(f"showing the last {len(updates)} of {bank.version} updates; --rows {bank.version} shows all")
        facts = {"version": bank.version, "skills": len(bank)}
    rows = [_history_row(update) for update in reversed(updates)]
    return Inspection("history", str(bank_folder(path)), facts, HISTORY_COLUMNS, rows, notes)


def search_bank(path: str | Path, query: str, *, mode: str | None = None, top_k: int | None = None) -> Inspection:
    """Search a bank and list the hits with their scores. Computes vectors in memory; writes nothing.

    Raises:
        SkillBankError: the query is empty, or the mode is unknown.
    """
    if not query.strip():
        raise SkillBankError("The query is empty. Give a text, e.g. 'powers modulo a prime'.")
    changed = {} if mode is None else {"retrieval_mode": mode}
    with SkillBank.open(bank_folder(path), read_only=True, **changed) as bank:
        hits = bank.search(query, top_k=top_k)
        facts = {"version": bank.version, "query": _cell(query), "retrieval": _retrieval(bank)}
        notes = [*bank.notices, *([] if hits else ["nothing was found"])]
        if any(hit.fallback for hit in hits):
            notes.append(FALLBACK)
    scores = ["fallback" if hit.fallback else f"{hit.score:.4f}" for hit in hits]
    skills = [hit.skill for hit in hits]
    rows = [(score, skill.id, skill.tier, _cell(skill.title)) for score, skill in zip(scores, skills, strict=True)]
    return Inspection("search", str(bank_folder(path)), facts, HIT_COLUMNS, rows, notes, skills)


def _bank_row(skill: Skill) -> tuple[Any, ...]:
    tier = f"{skill.tier}: {_cell(skill.task_type)}" if skill.task_type else skill.tier
    stats, rate = skill.stats, skill.stats.success_rate
    used = f"{stats.successes}/{stats.uses}" + (f" ({rate:.2f})" if rate is not None else "")
    lineage, flags = _cell(", ".join(skill.parents)) or None, ", ".join(skill.flags) or None
    return (skill.id, tier, _cell(skill.title), used, f"{_size(skill):,}", skill.version, lineage, flags)


def _history_row(update: BankUpdate) -> tuple[Any, ...]:
    kinds = Counter[str](change.kind for change in update.changes)
    ids = dict.fromkeys(skill.id for change in update.changes if (skill := change.after or change.before))
    what = ", ".join(f"{kind} {count}" for kind, count in kinds.items()) or "nothing"
    evidence, writer = _cell(", ".join(update.evidence)) or None, _cell(update.writer) or None
    return (update.version, update.step, _cell(update.reason), what, _cell(", ".join(ids)), evidence, writer)


def _retrieval(bank: SkillBank) -> str:
    mode, embedder = bank.settings.retrieval_mode, bank.settings.embedder
    if mode in ("keyword", "template"):
        return mode
    return f"{mode} ({'hash: by words, not by meaning' if embedder == 'hash' else embedder})"


def _size(skill: Skill) -> int:
    return len(skill.title) + len(skill.text) + len(skill.when_to_apply)


def _cell(text: str) -> str:
    return one_line(text, MAX_CELL)


# Skills as files.


def skills_at(path: str | Path, format: str | None = None) -> tuple[SkillFile, int | None]:
    """The skills at a path and the bank's version: a bank's folder, a run that has one, a file, or `synthetic:operators` (None: no version).

    Raises:
        SkillBankError: nothing is there, or it holds no skills.
    """
    if str(path).startswith("synthetic:"):
        return SkillFile(bank_family(str(path).removeprefix("synthetic:"))), None
    path = Path(path)
    if not path.exists():
        raise SkillBankError(f"{path} does not exist. Name a bank's folder, a run, or a file of skills.")
    if format is None and (is_bank(path) or RunFolder.exists(path)):
        with look(path) as bank:
            now = bank.snapshot()
            return SkillFile(list(now), now.origin, tuple(bank.notices)), now.version
    return read_file(path, format), None


def export_text(source: str | Path, format: str | None = None) -> tuple[str, Sequence[str]]:
    """The skills of a bank, a run or a file as text, JSON where no format is named, and what was not taken.

    Raises:
        SkillBankError: they cannot be read, or the format is a folder.
    """
    found, version = skills_at(source)
    return dump_skills(Snapshot.of(version or 0, found.skills, found.origin), format or "json"), found.notices


def export(
    source: str | Path, output: str | Path, format: str | None = None
) -> tuple[Snapshot, int | None, Sequence[str]]:
    """Write the skills of a bank, a run or a file to a new file or folder.

    Args:
        source: a bank's folder, a run that has one, or a file of skills.
        output: what to write; it must not be there.
        format: how; None: by the name's ending.

    Returns:
        What was written, the bank's version (None for a file), and notes on what was left out.

    Raises:
        SkillBankError: the name does not say the format, something is there, or it cannot be read or written.
    """
    output, form = Path(output), format_of(output, format)
    if output.exists():
        raise SkillBankError(f"{output} exists already. Choose another name or remove it first.")
    found, version = skills_at(source)
    snapshot = Snapshot.of(version or 0, found.skills, found.origin)
    write_skills(output, snapshot, form)
    return snapshot, version, found.notices

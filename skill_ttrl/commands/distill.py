"""`skillttrl distill` and the phase distill: episodes in, a bank of skills out.

Episodes are read one by one; of each type a bounded number of won and of lost ones is sampled evenly, so that files may be
larger than memory. A teacher (`skills.teachers`) drafts skills, and the drafts become one update of the bank or none: a file that
is no file of episodes, or a language model without a usable answer, leaves it as it was.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from skill_ttrl.config import DistillConfig, SkillsConfig, SkillTTRLConfig
from skill_ttrl.data.episodes import Files, paths_of, read_episodes
from skill_ttrl.errors import DataError, SkillBankError
from skill_ttrl.llm.openai.ledger import track_usage
from skill_ttrl.progress import SILENT, NoticeCollector, Progress
from skill_ttrl.skills.admit import AdmissionRules, Admitted, admit
from skill_ttrl.skills.bank import SkillBank
from skill_ttrl.skills.changes import quote
from skill_ttrl.skills.log import BankSettings, is_bank
from skill_ttrl.skills.querying import TEXT_CHARS, bank_unchanged
from skill_ttrl.skills.similarity import embedding_similarity
from skill_ttrl.skills.teachers import make_teacher, taught
from skill_ttrl.skills.types import SOURCE, Case, CaseCollector, TeacherResult
from skill_ttrl.storage.files import remove_unfinished, unfinished, wrap_os_errors
from skill_ttrl.train.bank_changes import TestChange, outcome_record, verdict
from skill_ttrl.train.rules import Rules
from skill_ttrl.train.run_bank import models_of
from skill_ttrl.train.tasks import of_training
from skill_ttrl.types import Skill, Trajectory


@dataclass(frozen=True, slots=True)
class Distilled:
    """Outcome of a distillation."""

    teacher: str
    envs: tuple[str, ...]
    episodes: Mapping[str, Mapping[str, int]]
    """For each type of task, as the bank calls it, `won`, `lost` and `failed` (an error ended it; not looked at)."""
    skills: tuple[Skill, ...]
    """The new ones, as they are in the bank."""
    notes: tuple[str, ...] = ()
    """Left out or refused entries, each with its reason."""
    cause: str = ""
    """Why nothing was found, and what to do; empty where something was."""
    requests: int = 0
    failed: int = 0
    """Questions to the teacher without a usable answer."""
    version: int = 0
    """Version of the bank afterwards."""
    bank: str = ""
    trajectories: str = ""
    retrieval: str = ""
    """Search mode of the bank, with its embedder."""
    usage: Mapping[str, Any] = field(default_factory=dict)
    """Cost of language models (`Ledger.report`); empty without calls."""
    gate: Mapping[str, Any] = field(default_factory=dict)
    """Decision of the gate (`bank_changes.outcome_record`); empty where nothing was tested."""


def distill_into(
    bank: SkillBank,
    trajectories: Iterable[Trajectory],
    config: SkillTTRLConfig,
    progress: Progress = SILENT,
    *,
    gate: TestChange | None = None,
) -> Distilled:
    """Learn skills from episodes and put them into a bank, in one update or, where nothing new was found, none.

    Args:
        bank: the bank, open for writing.
        trajectories: the episodes; read once, one after another.
        config: `distill`, and of `skills` what types are called and above what texts say the same.
        progress: gets a notice of what was left out.
        gate: test that the skills have to pass, else the bank stays as it is (`commands.play.open_gate`); None: they are added.

    Raises:
        DataError: an episode is of a task that is not for training.
        ConfigError: there is no such teacher, or it asks a language model that is not in the config.
        EndpointError: a language model gave no usable answer, under `skills.on_failure: stop`; the bank is as it was.
        BudgetError: the budget is spent; the bank is as it was.
    """
    name = config.distill.teacher
    teacher = make_teacher(name, models=models_of(config))
    skills = config.skills or SkillsConfig()
    collector = CaseCollector(skills.type_names, config.seed)
    for trajectory in of_training(trajectories, config.training_splits, "The distilled bank"):
        collector.add(trajectory)
    cases, notes = collector.cases(), collector.notes()
    result = taught(teacher, "distill", cases, config.distill)
    # Distilling adds skills and changes none. What is counted is worded alike: only a model's texts are compared by similarity.
    compares = skills.dedup_threshold is not None and name != "heuristic"
    embedder = bank.retriever.embedder if compares else None
    rules = AdmissionRules(
        SOURCE,
        max_text_chars=TEXT_CHARS,
        rewrites=False,
        room=bank.settings.max_skills,
        room_settings=f"skills.max_skills={bank.settings.max_skills}",
        similarity=None if embedder is None else embedding_similarity(embedder.embed),
        threshold=skills.dedup_threshold or 1.0,
    )
    admitted = admit(result.drafts, bank.snapshot(), rules)
    notes += [*result.notes, *admitted.fusions]
    notes += [f"{quote(draft.title)}: {problem}." for draft, problem in admitted.refused]
    new = [change.after for change in admitted.changes if change.after is not None]
    now = bank.snapshot()
    planned = now.changed(now.version + 1, bank.plan(admitted.changes).changes) if new else now
    tested = gate(now, planned) if gate is not None and new else None
    if tested is not None:
        notes.append(verdict(tested))
        new = new if tested.decision.accept else []
    if new:
        bank.apply(admitted.changes, reason=SOURCE, evidence=admitted.evidence, round=0)
    cause = "" if new or tested is not None else _cause(cases, result, admitted, config.distill)
    if cause:
        notes.append(
            f"Nothing new was found: {'every skill was refused, as said above.' if admitted.refused else cause}"
        )
    for note in notes:
        progress.notice(note)
    now = bank.snapshot()
    return Distilled(
        teacher=name,
        envs=tuple(sorted(collector.envs)),
        episodes=collector.counts(),
        skills=tuple(now.skills[skill.id] for skill in new),
        notes=tuple(notes),
        cause=cause,
        requests=result.requests,
        failed=result.failed,
        version=now.version,
        gate={} if tested is None else outcome_record(tested),
    )


def run(
    trajectories: str | Path,
    bank: str | Path,
    *,
    teacher: str | None = None,
    merge: bool = False,
    config: SkillTTRLConfig | None = None,
    progress: Progress = SILENT,
    gate: TestChange | None = None,
) -> Distilled:
    """Learn skills from a file of episodes and write a bank, whole or not at all.

    Args:
        trajectories: a file of episodes (`skillttrl collect`, or a run's `trajectories.jsonl`).
        bank: folder of the new bank; with `merge`, of one that the skills are added to.
        teacher: name of the teacher; None: the config's, else `heuristic`.
        merge: add to a bank that is there.
        config: `distill` (how many skills), `endpoints` (the language model) and `skills.on_failure`. Of its
            `skills` section a new bank takes what is set there; apart from that it is as `SkillBank(path)` makes it, found by the
            built-in embedder (`hash`), which needs no download.
        progress: reports how far the reading is.
        gate: with `merge`, the test that the skills have to pass (`distill_into`).

    Raises:
        DataError: the file cannot be read, holds no episode, a line of it is none, or nothing could be distilled for a new bank.
        SkillBankError: the bank is there and `merge` is not asked for, or it cannot be read or written.
        ConfigError, EndpointError, BudgetError: see `distill_into`; nothing is written.
    """
    config = config or SkillTTRLConfig()
    if teacher is not None:
        config = config.model_copy(update={"distill": config.distill.model_copy(update={"teacher": teacher})})
    Rules(config, "distill").check()
    source, folder = Path(trajectories), Path(bank)
    there = is_bank(folder)
    if merge and not there:
        raise SkillBankError(f"There is no bank at {folder} to add to. Omit --append to create one.")
    if not merge and folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        what, way = ("a bank", "add to it with --append, or choose") if there else ("something", "choose")
        raise SkillBankError(f"There is {what} at {folder} already, and it is not overwritten: {way} another --output.")
    paid = Path(f"{folder.absolute()}.usage.jsonl")
    with (
        bank_unchanged("The bank was not changed."),
        track_usage(paid, config.endpoints) as ledger,
        _bank(folder, merge, config.skills) as opened,
    ):
        notices = NoticeCollector()
        with ledger.phase(SOURCE):
            episodes = read_with_progress(source, progress, notices)
            found = distill_into(opened, episodes, config, gate=gate)
        if not merge and not found.skills:
            raise DataError(f"Nothing could be distilled from {source}: {found.cause} No bank was made at {folder}.")
        mode = opened.settings.retrieval_mode
        retrieval = f"{mode}, {opened.settings.embedder}" if mode in ("embedding", "hybrid") else mode
    paid.unlink(missing_ok=True)  # its answers are part of the bank
    return replace(
        found,
        notes=(*(text for text, _ in notices.notices), *found.notes),
        bank=str(bank),
        trajectories=str(trajectories),
        retrieval=retrieval,
        usage=ledger.report(),
    )


def _cause(cases: Sequence[Case], result: TeacherResult, admitted: Admitted, limits: DistillConfig) -> str:
    """Why there is no new skill, and what to do."""
    if not cases:
        return "all episodes ended by an error or before a step. Read `error` in the file, and collect again."
    if not (limits.max_general or limits.max_specific or limits.max_mistakes):
        return "distill.max_general, max_specific and max_mistakes are all 0. Raise one."
    if admitted.refused:
        return f"{len(admitted.refused)} skills were refused, the first of them for this: {admitted.refused[0][1]}."
    if result.failed:
        return f"{result.failed} of {result.requests} requests to the teacher had no usable answer. Try another model."
    if limits.teacher != "heuristic":
        return f"the teacher {limits.teacher!r} wrote no usable skill. The notes above say what was refused."
    return (
        f"the {len(cases)} episodes, won and lost, differ in no action that can be counted. Collect more of both "
        "(skillttrl collect), or ask a language model: --teacher openai."
    )


@contextmanager
def _bank(folder: Path, merge: bool, skills: SkillsConfig | None) -> Iterator[SkillBank]:
    """The bank to write. A new one is made in another folder and moved into place when it is whole."""
    if merge:
        with SkillBank.open(folder, index="memory") as bank:  # nothing is searched for: vectors only compare drafts
            yield bank
        return
    skills = skills or SkillsConfig()
    chosen = BankSettings.from_config(skills).model_dump(include=skills.model_fields_set - {"gate"})
    folder.parent.mkdir(parents=True, exist_ok=True)
    remove_unfinished(folder.parent)
    with unfinished(folder.parent) as made:
        with SkillBank(made, **{**chosen, "index": "memory"}) as bank:
            yield bank
        made.chmod(0o755)  # as any folder
        with wrap_os_errors("write", folder):
            made.replace(folder)


def read_with_progress(files: Files, progress: Progress, notices: Progress) -> Iterator[Trajectory]:
    """Yield the episodes of files; their faults go to `notices`."""
    total = sum(map(_lines, paths_of(files)))
    progress.start(SOURCE, total, "episode")
    for done, trajectory in enumerate(read_episodes(files, notices), 1):
        yield trajectory
        if done % 50 == 0 or done == total:
            progress.advance(SOURCE, done, {})
    progress.finish(SOURCE)


def _lines(path: Path) -> int:
    """Lines of a file; 0 where there is none."""
    if not path.is_file():
        return 0
    with wrap_os_errors("read", path), path.open("rb") as stream:
        return sum(chunk.count(b"\n") for chunk in iter(lambda: stream.read(1 << 20), b""))

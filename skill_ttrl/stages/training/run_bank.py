"""The skill bank of a run: begun as the config says, kept in the run's folder, and learning from each step's winners.

A run's bank lives in `bank/` of its folder. A checkpoint holds the bank's version; going on from it cuts the log back to
that version, so a resumed run sees and writes what one that was never stopped would.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from skill_ttrl.config import SkillsConfig, SkillTTRLConfig
from skill_ttrl.data.operators import bank_family
from skill_ttrl.errors import BudgetError, EndpointError, RunFolderError, SkillBankError
from skill_ttrl.runs.exposure import Exposure
from skill_ttrl.runs.folder import RunFolder
from skill_ttrl.sanitize import escape_terminal
from skill_ttrl.skills.bank.bank import SkillBank
from skill_ttrl.skills.bank.folder import BANK_FILE, LOG_FILE, is_bank
from skill_ttrl.skills.bank.settings import BankSettings
from skill_ttrl.skills.bank.snapshot import Snapshot
from skill_ttrl.skills.evolution import Evolver
from skill_ttrl.skills.formats.agentskills_read import holds_skills
from skill_ttrl.skills.formats.files import read_file
from skill_ttrl.skills.formats.records import SkillFile
from skill_ttrl.skills.merge.make import make_extractor, make_merger
from skill_ttrl.skills.merge.merged import group_digest
from skill_ttrl.skills.merge.plan import MergeRules, merge_groups
from skill_ttrl.skills.merge.report import TROUBLE, MergeReport
from skill_ttrl.skills.merge.types import Extractor, Merger
from skill_ttrl.skills.querying import OPENAI, LLMEndpoints
from skill_ttrl.skills.retrieval.bank_view import BankView
from skill_ttrl.skills.similarity import Similarity, embedding_similarity
from skill_ttrl.storage.files import write_folder
from skill_ttrl.types import Group, Skill, Task, Trajectory

BANK = "bank"
WRITER = "run"
"""Marks the updates that a run makes in its own bank (`BankUpdate.writer`)."""
FAMILY = "family:"
REPORTED = ("generated", "extracted", "added", "credited", "evolved")
"""Counts of a merge that are figures of its step."""
UNPAID = "The budget for language models is spent: the winners of this step change nothing in the bank."
"""Begins the warning of it."""
Warn = Callable[..., None]
"""Says a text; `once`: how an earlier one must begin for this one not to be said (`Run.warn`)."""


@dataclass
class RunBank:
    """A bank and how a run uses it."""

    config: SkillsConfig
    bank: SkillBank
    models: LLMEndpoints = field(default_factory=LLMEndpoints)
    """Language models that may be asked."""
    exposure: Exposure = field(default_factory=Exposure)
    """Which skills the training's rollouts were given."""
    evolver: Evolver | None = None
    """What lets failures change the bank; None where nothing does."""
    notices: list[str] = field(default_factory=list)
    """Findings from opening the bank that the user should read."""

    @property
    def version(self) -> int:
        """Version of the bank as it is now."""
        return self.bank.version

    @cached_property
    def alike(self) -> Similarity | None:
        """How alike the texts of two skills are; None where only their words are compared."""
        embedder = self.bank.retriever.embedder if self.config.fuse_above is not None else None
        return None if embedder is None else embedding_similarity(embedder)

    def access(self) -> BankView:
        """The bank as it is now, frozen."""
        return BankView(self.bank.snapshot(), self.bank.retriever)

    @cached_property
    def merger(self) -> Merger:
        """Fuses what winners wrote.

        Raises:
            ConfigError: there is none of this name, or it asks a language model that is not in the config.
        """
        return make_merger(
            self.config.merger, similarity=self.alike, threshold=self.config.fuse_above or 1.0, models=self.models
        )

    @cached_property
    def extractor(self) -> Extractor:
        """Writes a skill where no winner did.

        Raises:
            ConfigError: as `merger`.
        """
        return make_extractor(self.config.extractor, models=self.models)

    def learn(self, groups: Sequence[Group], step: int, warn: Warn = lambda text, once: None) -> dict[str, float]:
        """Let the winners of a step change the bank, retire what went stale, and say what happened.

        A winner is a try whose reward is the best of its group and above zero; see `winning`. The bank is changed by one update or not
        at all: where the budget for language models is spent, nothing is merged.

        Args:
            groups: the step's tries, rewarded.
            step: its number.
            warn: told of what a language model failed to do.

        Raises:
            EndpointError: a language model gave no usable answer, under `skills.on_failure: stop`.
        """
        self.exposure.see(groups, [winning(group) for group in groups])
        figures = self._merge(groups, step, warn) if self.config.update == "merge" else {}
        if self.config.update == "none" and self.evolver is not None:
            self._count_uses(groups, step)
        if self.config.stale_after is not None:
            figures["skills_retired"] = float(len(self.bank.evict_stale(step)))
        return figures | {"bank_skills": float(len(self.bank)), "bank_version": float(self.bank.version)}

    def _merge(self, groups: Sequence[Group], step: int, warn: Warn) -> dict[str, float]:
        report = MergeReport()
        named = [replace(group, task=self._named(group.task)) for group in groups]
        try:
            changes, report = merge_groups(
                named,
                [winning(group) for group in groups],
                self.bank.snapshot(),
                MergeRules(
                    self.merger,
                    self.extractor if self.config.extract else None,
                    max_skills_per_problem=self.config.max_skills_per_problem,
                    similarity=self.alike,
                    threshold=self.config.fuse_above or 1.0,
                ),
                round=step,
            )
        except BudgetError as error:
            changes, report = (), MergeReport(requests=1, failed=1)
            warn(f"{UNPAID} {error}", once=UNPAID)
        except EndpointError as error:
            raise EndpointError(
                f"{error} The bank is as it was before this step. The same command with --resume auto goes on from the newest "
                "checkpoint; with skills.on_failure=skip, or heuristic, a new run gets over it.",
                error.kind,
            ) from None
        if changes:
            evidence = tuple(dict.fromkeys(group.task.id for group in groups))
            samples = [group_digest(group, step) for group in groups]
            self.bank.apply(changes, reason="merge", evidence=evidence, round=step, samples=samples)
        trouble = report.trouble()
        if report.error and trouble:
            warn(f"{trouble} The figures are skills_merge_failed and skills_merge_fallback.", once=TROUBLE)
        figures = {f"skills_{name}": float(getattr(report, name)) for name in REPORTED}
        figures["skills_refused"] = float(len(report.skipped))
        if OPENAI in (self.config.merger, self.config.extractor):
            figures |= {
                "skills_merge_requests": float(report.requests),
                "skills_merge_failed": float(report.failed),
                "skills_merge_fallback": float(report.fallback),
            }
        return figures

    def unshown(self, tasks: Iterable[Task]) -> str:
        """Which skills no prompt of these tasks would show, for their type is none of theirs, and what to do; empty where there are none.

        A bank by others names types in its own words: without `skills.type_names` its skills for types are left out.
        """
        kinds = {task.task_type for task in tasks}
        here = {self._named_type(kind) for kind in kinds}
        lost = [each for each in self.bank if each.tier != "general" and each.task_type not in {"", *here}]
        if not lost or "" in kinds:
            return ""
        theirs = ", ".join(sorted({escape_terminal(each.task_type) for each in lost}))
        return (
            f"{len(lost)} of {len(self.bank)} skills in the bank are for types of task that this run has none of ({theirs}): no prompt "
            f"shows them. Its own types: {', '.join(sorted(kinds))}. skills.type_names says what the bank calls them."
        )

    def _named_type(self, kind: str) -> str:
        return self.config.type_names.get(kind, kind)

    def _named(self, task: Task) -> Task:
        """The task with its type as the bank calls it: new skills are found again under that name."""
        return replace(task, task_type=self._named_type(task.task_type))

    def _count_uses(self, groups: Sequence[Group], step: int) -> None:
        """Count for each skill the tries that were given it, and those of them that succeeded: evolution retires by that."""
        tries = [each for group in groups for each in group.trajectories if each.error is None]
        uses = [
            (name, each.succeeded)
            for each in tries
            for name in dict.fromkeys((*each.skills_in_prompt, *each.retrieved))
            if name in self.bank
        ]
        if uses:
            self.bank.record_usages(uses, step, evidence=tuple(dict.fromkeys(group.task.id for group in groups)))

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint holds of the bank, JSON-able."""
        evolving = {} if self.evolver is None else {"evolve": self.evolver.state_dict()}
        return {"bank_version": self.version, "exposure": self.exposure.state_dict(), **evolving}

    def close(self) -> None:
        """Close the bank and its index."""
        self.bank.close()


def models_of(config: SkillTTRLConfig) -> LLMEndpoints:
    """The language models that may change a bank, as the config names them."""
    skills = config.skills or SkillsConfig()
    return LLMEndpoints(config.endpoints, skills.on_failure, config.agent.prompts)


def winning(group: Group) -> list[bool]:
    """For each try whether it won: the best reward of its group, and more than nothing.

    A try that was rewarded with the environment's own return has not won where the environment says so (`won` in `info`): of
    purchases that are all wrong in part, the best is nothing to learn a skill from. Other rewards never see what it says.
    """
    best = max((trajectory.reward or 0.0 for trajectory in group.trajectories), default=0.0)
    return [best > 0 and each.reward == best and not _only_in_part(each) for each in group.trajectories]


def _only_in_part(trajectory: Trajectory) -> bool:
    return trajectory.reward == trajectory.env_return and trajectory.won is False


def skill_figures(groups: Sequence[Group]) -> dict[str, float]:
    """How much a step's tries used the bank: shares of tries, and for each try the tokens that were inserted."""
    tries = [trajectory for group in groups for trajectory in group.trajectories]
    ops = [trajectory.ops for trajectory in tries if trajectory.ops is not None]
    if not ops:
        return {}
    count = len(tries)
    done = [step.completion for trajectory in tries for step in trajectory.steps if step.completion is not None]
    return {
        "retrieve_rate": sum(found.has_retrieve for found in ops) / count,
        "generate_rate": sum(found.has_generate for found in ops) / count,
        "evolve_rate": sum(found.has_evolve for found in ops) / count,
        "answered_rate": sum(bool(trajectory.retrieved) for trajectory in tries) / count,
        "ops_errors": sum(len(found.errors) for found in ops) / count,
        "inserted_tokens": sum(completion.told for completion in done) / count,
    }


def open_run_bank(
    config: SkillsConfig | None, folder: RunFolder, version: int | None, models: LLMEndpoints | None = None
) -> RunBank | None:
    """The bank of a run that is being trained; None where the config has no skills.

    Args:
        config: the run's skills section.
        folder: the run's folder, locked.
        version: what the checkpoint holds that the run goes on from; None begins the bank anew.
        models: language models that may be asked; see `models_of`.

    Raises:
        SkillBankError: what it is to begin with cannot be read, or the bank of a run that goes on is gone.
    """
    if config is None:
        return None
    path = folder.path / BANK
    first = starting_file(config) if version is None else SkillFile([])
    if version is not None and not is_bank(path):
        raise SkillBankError(
            f"The run's skill bank is gone: there is none at {path}, and the run goes on from its version {version}. "
            "Put the folder back, or start a new run."
        )
    notices = keep_edits(path, version or 0)
    if version is None:
        discard_bank(folder)  # of a start that was killed before its first checkpoint
    bank = SkillBank.from_config(config, path, writer=WRITER)
    try:
        if version is not None:
            bank.rewind(version)
        elif first.skills:
            bank.import_skills(first.skills, origin=first.origin, reason=f"import {config.bank}")
        _ = bank.retriever  # a wrong embedder must not cost the cold start
        notices += bank.notices
        return RunBank(config, bank, models or LLMEndpoints(), notices=notices)
    except BaseException:
        bank.close()
        raise


def keep_edits(path: Path, version: int) -> list[str]:
    """Copy a run's bank before it goes back to `version`, where somebody else has changed it since.

    The run's own updates after its checkpoint need no copy: they are made again.

    Args:
        path: the bank's folder in the run.
        version: what the run goes on from; 0 begins the bank anew.

    Returns:
        What to say of it; empty where nothing is lost.
    """
    if not is_bank(path):
        return []
    with SkillBank.open(path, read_only=True) as bank:
        edits = [update for update in bank.history(version) if update.writer != WRITER]
        last = bank.version
    if not edits:
        return []
    numbers = itertools.count(2)
    copy = path.with_name(f"{path.name}-version-{last}")
    while copy.exists():
        copy = path.with_name(f"{path.name}-version-{last}-{next(numbers)}")
    write_folder(copy, {name: (path / name).read_bytes() for name in (BANK_FILE, LOG_FILE)})
    said = ", ".join(f"{update.version} ({escape_terminal(update.reason)})" for update in edits[:5])
    return [
        f"The run's skill bank was changed by others than the run: version {said}{' …' * (len(edits) > 5)}. The run goes on "
        f"from its own version {version}, without that. The bank with these changes is kept at {copy}. To train with it, "
        f"start a new run with skills.bank={copy}."
    ]


def discard_bank(folder: RunFolder, bank: RunBank | None = None) -> None:
    """Close and remove the bank of a run that has no checkpoint: its next start begins it anew."""
    if bank is not None:
        bank.close()
    if (folder.path / BANK).exists():
        shutil.rmtree(folder.path / BANK)


def read_run_bank(config: SkillsConfig | None, run: Path, version: int | None) -> RunBank | None:
    """The bank of a run at one version, for asking and measuring. Nothing is written: vectors are made in memory."""
    if config is None:
        return None
    with SkillBank.open(run / BANK, read_only=True) as kept:
        snapshot = kept.snapshot() if version is None else kept.at(version)
    return RunBank(config, SkillBank.from_snapshot(snapshot, BankSettings.from_config(config)))


def bank_in_memory(config: SkillsConfig) -> RunBank:
    """A bank that begins as the config says and is kept nowhere: another one than the run's, to measure with."""
    return RunBank(
        config, SkillBank.from_snapshot(Snapshot.of(0, starting_skills(config)), BankSettings.from_config(config))
    )


def starting_skills(config: SkillsConfig) -> list[Skill]:
    """The skills that `skills.bank` names; see `starting_file`."""
    return starting_file(config).skills


def starting_file(config: SkillsConfig) -> SkillFile:
    """What `skills.bank` names: a bank's folder, a file or a folder of skills, or a family's rules."""
    if config.bank is None:
        return SkillFile([])
    if config.bank.startswith(FAMILY):
        return SkillFile(bank_family(config.bank.removeprefix(FAMILY)))
    path = Path(config.bank)
    if not path.exists():
        raise SkillBankError(f"skills.bank: there is nothing at {path}. Give a bank's folder or an exported file.")
    if path.is_dir() and not holds_skills(path):
        if RunFolder.exists(path):
            path = path / BANK
        with SkillBank.open(path, read_only=True) as bank:
            return SkillFile(list(bank.snapshot()), bank.snapshot().origin)
    return read_file(path)


def bank_version(state: dict[str, object]) -> int | None:
    """The bank's version in a checkpoint's state."""
    found = state.get("bank_version")
    if found is not None and not isinstance(found, int):
        raise RunFolderError(f"The checkpoint's bank_version is {found!r}, not a number. The checkpoint is damaged.")
    return found

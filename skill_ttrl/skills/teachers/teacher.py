"""Teachers: who writes skills from whole episodes, and better ones from failures.

`heuristic` counts what winners did and losers did not; `openai` asks a language model. One of your own is called by name as
`module:attribute`: anything that can be called without arguments and gives a `Teacher`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from skill_ttrl.config import DistillConfig, EvolveConfig
from skill_ttrl.errors import ConfigError
from skill_ttrl.registry import Registry
from skill_ttrl.skills.bank.changes import quote
from skill_ttrl.skills.querying import OPENAI, LLMEndpoints
from skill_ttrl.skills.similarity import Similarity, clusters, content_id
from skill_ttrl.types import Skill, SkillStats, Step, Tier, Trajectory


@dataclass(frozen=True, slots=True)
class Case:
    """One episode as a teacher looks at it."""

    task_id: str
    task: str
    """What was to be done, in words; empty where only the observations say it."""
    task_type: str
    """As the bank calls it (`skills.type_names`)."""
    won: bool
    steps: tuple[Step, ...]
    last_observation: str = ""


@dataclass(frozen=True, slots=True)
class Draft:
    """What a teacher wants in the bank: a new skill, or a better text for one that is there."""

    title: str
    text: str
    when_to_apply: str = ""
    tier: Tier = "task"
    task_type: str = ""
    """Empty for any."""
    base: str = ""
    """Id of the skill that it replaces; empty for a new one."""
    evidence: tuple[str, ...] = ()
    """Ids of the tasks it comes from."""


@dataclass(frozen=True, slots=True)
class TeacherResult:
    """What a teacher found."""

    drafts: tuple[Draft, ...] = ()
    notes: tuple[str, ...] = ()
    """What was refused or left out, each with its reason."""
    requests: int = 0
    """Questions to a language model."""
    failed: int = 0
    """Of these, those without a usable answer."""


class Teacher(Protocol):
    """Learns from episodes what to tell the next ones."""

    def distill(self, cases: Sequence[Case], config: DistillConfig) -> TeacherResult:
        """Skills from won and lost episodes, of all types: general principles, skills by type, mistakes to avoid."""
        ...

    def evolve(self, failures: Sequence[Case], skills: Sequence[Skill], config: EvolveConfig) -> TeacherResult:
        """New and better skills from failures, with the present bank in view; at most `config.max_new_skills`."""
        ...


TEACHERS: Registry[Callable[..., Teacher]] = Registry("teacher")


@TEACHERS.register("heuristic")
class HeuristicTeacher:
    """Counts what winners did and losers did not; needs no language model."""

    def distill(self, cases: Sequence[Case], config: DistillConfig) -> TeacherResult:
        """See `Teacher.distill`."""
        from skill_ttrl.skills.teachers.wins import distilled

        return distilled(cases, config)

    def evolve(self, failures: Sequence[Case], skills: Sequence[Skill], config: EvolveConfig) -> TeacherResult:
        """See `Teacher.evolve`."""
        from skill_ttrl.skills.teachers.failures import evolved_by_counting

        return evolved_by_counting(failures, skills, config)


@TEACHERS.register(OPENAI)
def _openai(models: LLMEndpoints) -> Teacher:
    from skill_ttrl.skills.teachers.llm import LLMTeacher

    return LLMTeacher(models.asking("teacher"))


def make_teacher(name: str = "heuristic", *, models: LLMEndpoints | None = None) -> Teacher:
    """The teacher called `name`; `models` says whom `openai` asks.

    Raises:
        ConfigError: there is none of that name, it cannot be made, or what a user's factory gives is no teacher.
    """
    factory = TEACHERS.get(name)
    try:
        made = factory(models or LLMEndpoints()) if name == OPENAI else factory()
    except TypeError as error:
        raise ConfigError(f"Teacher {name!r} cannot be made without arguments: {error}.") from None
    missing = [each for each in ("distill", "evolve") if not callable(getattr(made, each, None))]
    if missing:
        raise ConfigError(f"{name!r} gave a {type(made).__name__} without {' and '.join(missing)}: it is no teacher.")
    return made


def case_of(trajectory: Trajectory, type_names: Mapping[str, str] | None = None) -> Case:
    """One episode as a teacher looks at it; `type_names` says what the bank calls the types of tasks."""
    kind = trajectory.task.task_type
    stated = trajectory.task.options.get("question")
    return Case(
        task_id=trajectory.task.id,
        task=trajectory.goal or (stated if isinstance(stated, str) else ""),
        task_type=(type_names or {}).get(kind, kind),
        won=trajectory.succeeded,
        steps=trajectory.steps,
        last_observation=trajectory.last_observation,
    )


def fused(
    drafts: Sequence[Draft], similarity: Similarity | None = None, threshold: float = 0.95
) -> tuple[list[Draft], list[str]]:
    """Drafts of one kind that say the same as one, in the order of the first of them; and what was fused, in words.

    What a general principle says is not said again for a type of task, nor what a mistake of any type says for one; apart from
    that each type keeps its own. The wording is that of `fuse.clusters`, the evidence that of all. Drafts that take the place of
    a skill are left alone.

    Args:
        drafts: the most important first.
        similarity: as in `fuse.clusters`; None: only texts of the same words.
        threshold: least similarity of texts that say the same.
    """
    notes: list[str] = []
    placed: dict[int, Draft] = {place: draft for place, draft in enumerate(drafts) if draft.base}
    kinds: dict[bool, list[int]] = defaultdict(list)
    for place, draft in enumerate(drafts):
        if not draft.base:
            kinds[draft.tier == "mistake"].append(place)
    for places in kinds.values():
        for cluster in clusters([drafts[place].text for place in places], similarity, threshold):
            for alike in _of_one_scope([places[member] for member in cluster.members], drafts):
                placed[alike[0]] = _as_one([drafts[place] for place in alike], cluster.text)
                if len(alike) > 1:
                    notes.append(f"{len(alike)} skills that say the same are one: {quote(placed[alike[0]].title)}.")
    return [placed[place] for place in sorted(placed)], notes


def _of_one_scope(places: Sequence[int], drafts: Sequence[Draft]) -> list[list[int]]:
    """Places of drafts that say the same, by type of task; all together where one of them is for any."""
    if any(not drafts[place].task_type for place in places):
        return [list(places)]
    by_type: dict[str, list[int]] = defaultdict(list)
    for place in places:
        by_type[drafts[place].task_type].append(place)
    return list(by_type.values())


def skill_of(draft: Draft, *, source: str, taken: Collection[str] = (), round: int | None = None) -> Skill:
    """The new skill that a draft asks for. Its id is made from its text alone, so that it is the same each time; where that is
    in `taken`, a number makes it another.
    """
    name, number = content_id(draft.text), 1
    while name in taken:
        number += 1
        name = f"{content_id(draft.text)}-{number}"
    return Skill(
        id=name,
        title=draft.title,
        text=draft.text,
        when_to_apply=draft.when_to_apply,
        tier=draft.tier,
        task_type=draft.task_type,
        source=source,
        evidence=draft.evidence,
        stats=SkillStats(created_round=round or 0),
    )


def _as_one(alike: Sequence[Draft], text: str) -> Draft:
    """The widest of them, in the wording that most have, with the evidence of all."""
    best = min(alike, key=lambda draft: (bool(draft.task_type), draft.text.strip() != text))
    return replace(best, evidence=tuple(dict.fromkeys(each for draft in alike for each in draft.evidence)))

"""SkillRL's memories: its teacher's notes on single episodes, from which SkillRL makes skills.

    [{"memory_id", "contextual_description", "tags": {"environment", "outcome"},
      "content": {"task_meta": {"original_goal"},
                  "refined_trajectory": [{"step_index", "action", "critical_observation", "reasoning"}, ...],
                  "strategic_guidelines": {"planning_pattern": text or null,
                                           "mistakes_to_avoid": [{"trigger_condition", "bad_action"}, ...]}}}, ...]

A planning pattern becomes a `task` skill (goal as title, description as when to apply), each mistake a `mistake` (bad action
as title, trigger as when to apply), with the memory's id as evidence. The memories themselves, trajectories included, stay in
`Snapshot.origin`: an unchanged bank is written as the identical file, an edited one with the current texts, and for a removed
skill only the advice is dropped. A skill from elsewhere is written as a memory without a trajectory; `tier`, `task_type` and
`how_to_avoid` are extra keys that SkillRL does not have. Statistics, lineage and versions are not written.

`memory_of` converts one of our episodes to a memory: every step unrefined, and no guidelines.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from skill_ttrl.errors import SkillBankError
from skill_ttrl.skills.changes import MAX_ID, TIERS, quote
from skill_ttrl.skills.formats.format import FileFormat
from skill_ttrl.skills.formats.json_layout import laid_out, layout_of
from skill_ttrl.skills.formats.records import SkillFile, origin_of, parsed, skill_from_dict
from skill_ttrl.skills.snapshot import Snapshot
from skill_ttrl.types import Skill, Trajectory

NAME = "skillrl-memory"
_NOT_IN_IDS = re.compile(r"[\s<>\"'&#]|[^\x21-\x7e]")
_THOUGHT = re.compile(r"<think>(.*?)(?:</think>|(\Z))", re.DOTALL)
"""A thought, or one that is never closed: without the second way each opening would look for its end through the whole text."""


def is_memories(content: object) -> bool:
    """True if JSON content is in this format."""
    first = content[0] if isinstance(content, list) and content else None
    return isinstance(first, dict) and "memory_id" in first and isinstance(first.get("content"), dict)


def read_memories(text: str, where: str) -> SkillFile:
    """The skills in a file of memories, in its order.

    Raises:
        SkillBankError: a memory is of another form; nothing is taken then.
    """
    content = parsed(text, where)
    if not isinstance(content, list):
        raise SkillBankError(f"{where} is a list of memories, found {quote(content)}. Nothing was imported.")
    skills: list[Skill] = []
    memories: list[dict[str, Any]] = []
    taken: set[str] = set()
    for place, memory in enumerate(content):
        try:
            found = _skills_of(memory, place, taken)
        except SkillBankError as error:
            raise SkillBankError(f"{where}, [{place}]: {error} Nothing was imported.") from None
        skills += found
        pattern = [skill.id for skill in found if skill.tier != "mistake"]
        mistakes = [skill.id for skill in found if skill.tier == "mistake"]
        memories.append({"memory": memory, "pattern": pattern[0] if pattern else None, "mistakes": mistakes})
    silent = sum(not each["pattern"] and not each["mistakes"] for each in memories)
    notices = (f"{silent} of {len(memories)} memories hold no guidelines and gave no skill",) if silent else ()
    origin = {"format": NAME, "content": memories, "layout": layout_of(text, content)}
    return SkillFile(skills, json.dumps(origin) if memories else "", notices)


def dump_memories(snapshot: Snapshot) -> str:
    """A version's skills as memories."""
    origin = origin_of(snapshot, NAME, list)
    left = dict(snapshot.skills)
    written = []
    for entry in origin.get("content", []):
        if not _fits(entry):
            raise SkillBankError("The bank's origin is damaged: it holds something that is no memory.")
        written.append(_rewritten(entry, left))
    written += [_memory_of_skill(skill) for skill in left.values()]
    return laid_out(written, origin.get("layout", {}))


def dump_trajectories(trajectories: Iterable[Trajectory]) -> tuple[str, int]:
    """Episodes as memories, and how many were left out because nothing was played in them."""
    memories: list[dict[str, Any]] = []
    silent, attempts = 0, dict[str, int]()
    for each in trajectories:
        attempts[each.task.id] = number = attempts.get(each.task.id, 0) + 1
        if each.steps:
            memories.append(memory_of(each, f"{each.task.id}/{number}"))
        else:
            silent += 1
    return laid_out(memories, {}), silent


def memory_of(trajectory: Trajectory, memory_id: str) -> dict[str, Any]:
    """An episode as a memory. What it takes a teacher to say is null or empty: no guidelines, and no step is pruned."""
    task = trajectory.task
    steps = [
        {
            "step_index": number,
            "action": step.action,
            "critical_observation": step.observation,
            "reasoning": " ".join(found[1].strip() for found in _THOUGHT.finditer(step.model_text) if found[2] is None),
        }
        for number, step in enumerate(trajectory.steps, start=1)
    ]
    tags = {"environment": task.env_id, "outcome": "success" if trajectory.is_success else "failure"}
    return {
        "memory_id": memory_id,
        "contextual_description": trajectory.goal,
        "tags": tags | ({"task_type": task.task_type} if task.task_type else {}),
        "content": _content(trajectory.goal, steps, None, []),
    }


def _content(goal: str, steps: Sequence[Any], pattern: str | None, mistakes: Sequence[Any]) -> dict[str, Any]:
    guidelines = {"planning_pattern": pattern, "mistakes_to_avoid": list(mistakes)}
    return {
        "task_meta": {"original_goal": goal},
        "refined_trajectory": list(steps),
        "strategic_guidelines": guidelines,
    }


def _is_memory(memory: object) -> bool:
    return isinstance(memory, dict) and isinstance(memory.get("content"), dict)


def _fits(entry: object) -> bool:
    """True if an entry of an origin has the form that `read_memories` writes: a memory, and an id for each of its skills."""
    if not isinstance(entry, dict) or not _is_memory(entry.get("memory")):
        return False
    pattern, mistakes = _guidelines(entry["memory"])
    ids = entry.get("mistakes")
    same_length = isinstance(ids, list) and len(ids) == len(mistakes)
    return same_length and bool(pattern.strip()) == (entry.get("pattern") is not None)


def _guidelines(memory: Mapping[str, Any]) -> tuple[str, list[Any]]:
    """Pattern and mistakes."""
    found = memory["content"].get("strategic_guidelines") or {}
    pattern, mistakes = found.get("planning_pattern") if isinstance(found, dict) else found, None
    if isinstance(found, dict):
        mistakes = found.get("mistakes_to_avoid")
    if not isinstance(pattern or "", str) or not isinstance(mistakes or [], list):
        raise SkillBankError(
            "'strategic_guidelines' holds a 'planning_pattern' (a text or null) and 'mistakes_to_avoid' (a list), found "
            f"{quote(found)}."
        )
    return pattern or "", mistakes or []


def _skills_of(memory: object, place: int, taken: set[str]) -> list[Skill]:
    if not isinstance(memory, dict) or not _is_memory(memory):
        raise SkillBankError(f"a memory is an object with 'content', found {quote(memory)}.")
    pattern, mistakes = _guidelines(memory)
    tags = memory["tags"] if isinstance(memory.get("tags"), dict) else {}
    said, meta = memory.get("memory_id"), memory["content"].get("task_meta")
    name = _NOT_IN_IDS.sub("_", str(said or f"memory_{place + 1}"))[: MAX_ID - 24]
    kind = tags.get("task_type")
    beside = {
        "evidence": [str(said)] if said is not None else [],
        "task_type": kind if isinstance(kind, str) else "",
        "source": NAME,
    }
    found = []
    if pattern.strip():
        goal = meta.get("original_goal") if isinstance(meta, dict) else None
        when = memory.get("contextual_description")
        tier = tags.get("tier") if tags.get("tier") in ("task", "general") else "task"
        record = {"title": goal or "", "text": pattern, "when_to_apply": when or "", "tier": tier, **beside}
        found.append(skill_from_dict({"id": _free(name, taken), **record}))
    for mistake in mistakes:
        title, when, text = _mistake(mistake)
        record = {"title": title, "text": text, "when_to_apply": when, "tier": TIERS[-1], **beside}
        found.append(skill_from_dict({"id": _free(f"{name}_mistake", taken), **record}))
    return found


def _mistake(mistake: object) -> tuple[str, str, str]:
    """(bad action, trigger, what to do instead) of a mistake, which may be a plain text."""
    parts = {"bad_action": mistake} if isinstance(mistake, str) else mistake
    keys = ("bad_action", "trigger_condition", "how_to_avoid")
    if not isinstance(parts, dict) or not all(isinstance(parts.get(key) or "", str) for key in keys):
        raise SkillBankError(
            f"a mistake is an object with 'trigger_condition' and 'bad_action', found {quote(mistake)}."
        )
    bad, when, instead = (parts.get(key) or "" for key in keys)
    if not (bad.strip() or when.strip() or instead.strip()):
        raise SkillBankError(f"a mistake says neither 'trigger_condition' nor 'bad_action': {quote(mistake)}.")
    return bad, when, instead or _instead(bad, when)


def _instead(bad: str, when: str) -> str:
    """Return advice for a memory that states only what not to do."""
    return f"Do something else when: {when}" if when.strip() else f"Do something else than: {bad}"


def _free(name: str, taken: set[str]) -> str:
    number, found = 1, name
    while found in taken:
        number += 1
        found = f"{name}_{number}"
    taken.add(found)
    return found


def _rewritten(entry: Mapping[str, Any], left: dict[str, Skill]) -> dict[str, Any]:
    """A memory with the present words of its skills, which are taken out of `left`."""
    memory: dict[str, Any] = copy.deepcopy(entry["memory"])
    old = iter(_skills_of(memory, 0, set()))
    if entry.get("pattern") is not None:
        _set_pattern(memory, next(old), left.pop(str(entry["pattern"]), None))
    mistakes = []
    for skill_id, mistake, was in zip(entry["mistakes"], _guidelines(memory)[1], old, strict=True):
        skill = left.pop(str(skill_id), None)
        if skill is not None:
            mistakes.append(_set_mistake(mistake, was, skill))
    if entry["mistakes"]:
        memory["content"]["strategic_guidelines"]["mistakes_to_avoid"] = mistakes
    return memory


def _set_pattern(memory: dict[str, Any], was: Skill, skill: Skill | None) -> None:
    content = memory["content"]
    if skill is None or skill.text != was.text:
        text = None if skill is None else skill.text
        if isinstance(content["strategic_guidelines"], dict):
            content["strategic_guidelines"]["planning_pattern"] = text
        else:  # a memory whose guidelines are one text
            content["strategic_guidelines"] = text
    if skill is not None and skill.title != was.title:
        meta = content.get("task_meta")
        content["task_meta"] = {**(meta if isinstance(meta, dict) else {}), "original_goal": skill.title}
    if skill is not None and skill.when_to_apply != was.when_to_apply:
        memory["contextual_description"] = skill.when_to_apply


def _set_mistake(mistake: Any, was: Skill, skill: Skill) -> Any:
    if (skill.title, skill.when_to_apply, skill.text) == (was.title, was.when_to_apply, was.text):
        return mistake
    return {**(mistake if isinstance(mistake, dict) else {}), **_mistake_record(skill)}


def _mistake_record(skill: Skill) -> dict[str, str]:
    record = {"trigger_condition": skill.when_to_apply, "bad_action": skill.title}
    return (
        record if skill.text == _instead(skill.title, skill.when_to_apply) else {**record, "how_to_avoid": skill.text}
    )


def _memory_of_skill(skill: Skill) -> dict[str, Any]:
    is_mistake = skill.tier == "mistake"
    tags = {"environment": "", "outcome": "failure" if is_mistake else "success"}
    tags |= {"task_type": skill.task_type} if skill.task_type else {}
    tags |= {"tier": skill.tier} if skill.tier == "general" else {}
    mistakes = [_mistake_record(skill)] if is_mistake else []
    return {
        "memory_id": skill.id,
        "contextual_description": skill.when_to_apply,
        "tags": tags,
        "content": _content(skill.title, [], None if is_mistake else skill.text, mistakes),
    }


MEMORIES = FileFormat(NAME, read_memories, dump_memories, recognises=is_memories)

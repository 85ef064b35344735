"""Samples that a bank has learned from: digests in its log, so that the same samples are not counted twice."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable

from skill_ttrl.errors import SkillBankError
from skill_ttrl.types import BankUpdate, Group


def group_digest(group: Group, step: int | None) -> str:
    """16 hexadecimal digits made from the task's id, the step, what was shown and what was written, in any order of samples.

    Args:
        group: the samples of one task.
        step: training step that they were drawn in; None outside of a run.
    """
    written = sorted((each.steps[0].observation if each.steps else "", each.text) for each in group.trajectories)
    content = [step, group.task.id, written]
    return hashlib.blake2b(json.dumps(content).encode(), digest_size=8).hexdigest()


def merged_samples(updates: Iterable[BankUpdate]) -> dict[str, int]:
    """The samples that are in a bank's present version, each with the version that brought it; rolled back ones are not.

    Args:
        updates: the bank's whole history.

    Raises:
        SkillBankError: an update says that it brings back a version which is not before it.
    """
    history = {update.version: update for update in updates}
    found: dict[str, int] = {}
    version = max(history, default=0)
    while update := history.get(version):
        found |= dict.fromkeys(update.samples, version)
        earlier = version - 1 if update.back_to is None else update.back_to
        if not 0 <= earlier < version:
            raise SkillBankError(
                f"The bank's log is damaged: version {version} brings back version {earlier}, which is not before it. Restore "
                "the file from a copy."
            )
        version = earlier
    return found

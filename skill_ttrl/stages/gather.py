"""The phases before anything is learnt: episodes are collected, and skills are distilled from them.

Neither needs weights that learn, so they come before the policy is made: the built-in one takes its words from what was collected.
"""

from __future__ import annotations

from pathlib import Path

from skill_ttrl.config import Phase, SkillTTRLConfig
from skill_ttrl.errors import ConfigError
from skill_ttrl.llm.usage import Ledger
from skill_ttrl.runs.folder import RunFolder
from skill_ttrl.runs.progress import Progress
from skill_ttrl.stages.bank import RunBank, models_of
from skill_ttrl.stages.collect import collect_into
from skill_ttrl.stages.distill import distill_into
from skill_ttrl.stages.episodes import read_episodes

COLLECTED = "collected.jsonl"
"""The episodes that a run has collected, in its folder."""
GATHERING: tuple[Phase, ...] = ("collect", "distill")


def learning_phases(config: SkillTTRLConfig) -> list[Phase]:
    """The phases in which weights change.

    Raises:
        ConfigError: there are none.
    """
    found = [phase for phase in config.phases if phase not in GATHERING]
    if not found:
        raise ConfigError(
            f"A run learns something: phases is {config.phases}. To collect and distill alone there are the commands "
            "skillttrl collect and skillttrl distill."
        )
    return found


def gather(
    config: SkillTTRLConfig,
    folder: RunFolder,
    bank: RunBank | None,
    ledger: Ledger,
    progress: Progress,
    *,
    begun: bool,
) -> SkillTTRLConfig:
    """Do the phases collect and distill, and give the config that knows where the episodes are.

    Args:
        config: the run's.
        folder: the run's, locked.
        bank: the run's skill bank; skills go there.
        ledger: of what language models cost.
        progress: told of both.
        begun: whether the run has a checkpoint, so that both are done.

    Raises:
        SkillTTRLError: episodes cannot be played or read, or a teacher gave no usable answer.
    """
    path = config.demonstrations.trajectories
    if "collect" in config.phases:
        path = str(folder.path / COLLECTED)
        if not begun:
            with ledger.phase("collect"):
                collect_into(Path(path), config, progress)
    if "distill" in config.phases and not begun:
        if path is None:
            raise ConfigError(
                "The phase distill needs episodes: put the phase collect before it, or name a file of them in "
                "demonstrations.trajectories."
            )
        assert bank is not None  # the config's own check
        with ledger.phase("distill"):
            distill_into(bank.bank, read_episodes(path, progress), config, models_of(config), progress)
    demonstrations = config.demonstrations.model_copy(update={"trajectories": path})
    return config.model_copy(update={"demonstrations": demonstrations})

"""The phases before anything is learnt: episodes are collected, and skills are distilled from them.

Neither needs weights that learn, so they come before the policy is made: the built-in one takes its words from what was collected.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from skill_ttrl.commands.collect import collect_into
from skill_ttrl.commands.distill import distill_into, read_with_progress
from skill_ttrl.config import SkillTTRLConfig
from skill_ttrl.data.episodes import paths_of
from skill_ttrl.errors import BudgetError, EndpointError
from skill_ttrl.llm.openai.ledger import AGAIN, SAME, Ledger
from skill_ttrl.progress import Progress
from skill_ttrl.runs.folder import RunFolder
from skill_ttrl.signals import RESUME, Interrupted
from skill_ttrl.train.run_bank import RunBank
from skill_ttrl.train.tasks import ConfigTasks

COLLECTED = "collected.jsonl"
"""The episodes that a run has collected, in its folder; those of further `collect.data` are in `collected-2.jsonl` and so on."""


def with_collected(config: SkillTTRLConfig, folder: RunFolder) -> SkillTTRLConfig:
    """The config that names the episodes which the phase collect writes, where the run has that phase."""
    if "collect" not in config.phases:
        return config
    further = range(2, len(config.collect.data or ()) + 1)
    names = [COLLECTED, *(COLLECTED.replace(".", f"-{number}.") for number in further)]
    files = [str(folder.path / name) for name in names]
    demonstrations = config.demonstrations.model_copy(update={"trajectories": files if further else files[0]})
    return config.model_copy(update={"demonstrations": demonstrations})


def gather(config: SkillTTRLConfig, bank: RunBank | None, ledger: Ledger, progress: Progress) -> dict[str, float]:
    """Run the phases collect and distill of a run that has no checkpoint.

    Args:
        config: the run's (`with_collected`).
        bank: the run's skill bank; skills go there.
        ledger: records the cost of language models.
        progress: reports both phases.

    Returns:
        Wall time in seconds of each of the two phases that ran.

    Raises:
        SkillTTRLError: episodes cannot be played or read, or a teacher gave no usable answer.
        Interrupted: a signal came; finished episodes are stored.
    """
    files = config.demonstrations.trajectories
    spent: dict[str, float] = {}
    if "collect" in config.phases:
        assert files is not None  # see `with_collected`
        began = time.perf_counter()
        with ledger.phase("collect"), _resumed_by_the_run():
            each = [{"data": data} for data in config.collect.data or ()] or [{}]
            for path, own in zip(paths_of(files), each, strict=True):
                env = config.env.model_copy(update={"kwargs": {**config.env.kwargs, **own}})
                collect_into(path, config.model_copy(update={"env": env}), progress)
        spent["collect"] = time.perf_counter() - began
    if "distill" in config.phases:
        assert files is not None  # a rule
        assert bank is not None  # the config's own check
        if "collect" not in config.phases:
            tasks = ConfigTasks(config)
            tasks.episode_leaks(tasks.evaluated() if config.data.held_out else [])
        began = time.perf_counter()
        with ledger.phase("distill"):
            episodes = read_with_progress(files, progress, progress)
            try:
                found = distill_into(bank.bank, episodes, config, progress)
            except EndpointError as error:
                ways = "the same command with --resume auto asks the teacher again; skills.on_failure=skip or heuristic continues without it"
                raise EndpointError(f"{error} The episodes are saved: {ways}.", error.kind) from None
        played = sum(count for counts in found.episodes.values() for count in counts.values())
        progress.notice(f"Distilled {len(found.skills)} skills from {played:,} episodes ({found.teacher}).")
        spent["distill"] = time.perf_counter() - began
    return spent


@contextmanager
def _resumed_by_the_run() -> Iterator[None]:
    """Adapt messages about an early end to a run: the command `collect` resumes by itself, a run needs `--resume auto`."""
    try:
        yield
    except Interrupted as leaving:
        raise Interrupted(str(leaving).replace(SAME, RESUME), leaving.exit_code - 128) from None
    except BudgetError as error:
        raise BudgetError(str(error).removesuffix(AGAIN).rstrip()) from None  # `train` says how it goes on

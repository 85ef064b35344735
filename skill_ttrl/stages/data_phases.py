"""The phases before anything is learnt: episodes are collected, and skills are distilled from them.

Neither needs weights that learn, so they come before the policy is made: the built-in one takes its words from what was collected.
"""

from __future__ import annotations

import time
from pathlib import Path

from skill_ttrl.config import Phase, SkillTTRLConfig
from skill_ttrl.data.episodes import read_episodes
from skill_ttrl.envs import resolve_env
from skill_ttrl.errors import BudgetError, ConfigError, EndpointError
from skill_ttrl.llm.openai.client import make_client
from skill_ttrl.llm.openai.ledger import AGAIN, SAME, Ledger
from skill_ttrl.progress import Progress
from skill_ttrl.runs.folder import RunFolder
from skill_ttrl.signals import Interrupted
from skill_ttrl.skills.merge.extractor import make_extractor
from skill_ttrl.skills.merge.merger import make_merger
from skill_ttrl.skills.querying import OPENAI
from skill_ttrl.skills.retrieval.embed_openai import with_endpoint
from skill_ttrl.skills.teachers.teacher import make_teacher
from skill_ttrl.stages.collect import collect_into
from skill_ttrl.stages.distill import distill_into, told_episodes
from skill_ttrl.stages.setup.build import evaluation_split, source_tasks, training_tasks
from skill_ttrl.stages.setup.leak import foreign_splits, leaked, seen_tasks, settle, training_splits
from skill_ttrl.stages.targets.resolve import is_remote
from skill_ttrl.stages.training.run_bank import RunBank, models_of

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


def check_before(config: SkillTTRLConfig, progress: Progress) -> None:
    """Look at what the later phases name, before episodes are played and a teacher is paid for a run that cannot go on.

    Raises:
        SkillTTRLError: what is wrong; the phases would say the same, only later.
    """
    env_id = resolve_env(config.env.id)
    train = training_tasks(config, env_id, config.data.train, progress)
    if config.data.eval is not None or config.data.train is None:
        source_tasks(config, env_id, config.data.eval, evaluation_split(config), config.env.eval_tasks, progress)
    check_models(config)
    refuse_untold(config)
    if "rl" in config.phases:
        check_enough(config, len(train))


def check_models(config: SkillTTRLConfig) -> None:
    """Look whether the language models that a run asks can be asked: their endpoints, keys and packages. Nothing is sent.

    Raises:
        ConfigError, MissingDependencyError: what is missing.
    """
    models, skills = models_of(config), config.skills
    if "collect" in config.phases and is_remote(config.collect.agent):
        make_client(config.endpoints, "policy").shut()
    if "distill" in config.phases:
        make_teacher(config.distill.teacher, models=models)
    if "sft" in config.phases and config.sft.data is None and config.demonstrations.thought == OPENAI:
        models.asking("teacher")
    if skills is not None and skills.embeds and skills.embedder == OPENAI:
        with_endpoint(config)
        make_client(config.endpoints, "embeddings").shut()
    if "rl" not in config.phases:
        return
    if config.evolve is not None:
        make_teacher(config.evolve.teacher, models=models)
    if skills is not None and skills.update == "merge":
        make_merger(skills.merger, models=models)
        if skills.extract:
            make_extractor(skills.extractor, models=models)


def refuse_untold(config: SkillTTRLConfig) -> None:
    """Raise `ConfigError` where skills are to be distilled from episodes that nothing names."""
    if "distill" in config.phases and "collect" not in config.phases and config.demonstrations.trajectories is None:
        raise ConfigError(
            "The phase distill needs episodes: put the phase collect before it, or name a file of them in "
            "demonstrations.trajectories."
        )


def check_enough(config: SkillTTRLConfig, tasks: int) -> None:
    """Raise `ConfigError` where a step takes more tasks than there are to train on."""
    if config.rl.prompts_per_step > tasks:
        raise ConfigError(
            f"rl.prompts_per_step is {config.rl.prompts_per_step}, but there are {tasks} tasks to train on. "
            "Lower it, or give more tasks."
        )


def gather(
    config: SkillTTRLConfig,
    folder: RunFolder,
    bank: RunBank | None,
    ledger: Ledger,
    progress: Progress,
    warnings: list[str],
    *,
    begun: bool,
) -> tuple[SkillTTRLConfig, dict[str, float]]:
    """Do the phases collect and distill.

    Args:
        config: the run's.
        folder: the run's, locked.
        bank: the run's skill bank; skills go there.
        ledger: of what language models cost.
        progress: told of both.
        warnings: gets what the summary has to say of held-out episodes that skills come from.
        begun: whether the run has a checkpoint, so that both are done.

    Returns:
        The config that knows where the episodes are, and for each of the two that was done now its wall time in seconds.

    Raises:
        SkillTTRLError: episodes cannot be played or read, or a teacher gave no usable answer.
        Interrupted: a signal came; episodes that were played are kept.
    """
    path = config.demonstrations.trajectories
    spent: dict[str, float] = {}
    if not begun and {*config.phases} & {*GATHERING}:
        check_before(config, progress)
    if not begun and "distill" in config.phases and "collect" not in config.phases and path is not None:
        warnings += episode_leaks(config, path)
    if "collect" in config.phases:
        path = str(folder.path / COLLECTED)
        if not begun:
            began = time.perf_counter()
            with ledger.phase("collect"):
                _collect(Path(path), config, progress)
            spent["collect"] = time.perf_counter() - began
    if "distill" in config.phases and not begun:
        assert path is not None  # see `refuse_untold`
        assert bank is not None  # the config's own check
        began = time.perf_counter()
        with ledger.phase("distill"):
            episodes = told_episodes(Path(path), progress, progress)
            try:
                found = distill_into(bank.bank, episodes, config, models_of(config), progress)
            except EndpointError as error:
                ways = "the same command with --resume auto asks again; with skills.on_failure=skip, or heuristic, it gets over it"
                raise EndpointError(f"{error} The episodes are kept: {ways}.", error.kind) from None
        played = sum(count for counts in found.episodes.values() for count in counts.values())
        progress.notice(f"{len(found.skills)} skills were distilled from {played:,} episodes ({found.teacher}).")
        spent["distill"] = time.perf_counter() - began
    demonstrations = config.demonstrations.model_copy(update={"trajectories": path})
    return config.model_copy(update={"demonstrations": demonstrations}), spent


def episode_leaks(config: SkillTTRLConfig, path: str | Path) -> list[str]:
    """Lines to report where skills would come from episodes of held-out tasks.

    Raises:
        DataError: they would, and that is not to be reported but refused.
    """
    what = f"demonstrations.trajectories ({path})"
    found = settle(config, foreign_splits(read_episodes(path), training_splits(config), what))
    if config.data.eval is None and config.data.train is not None:  # it is measured on its training tasks
        return found
    measured = source_tasks(
        config, resolve_env(config.env.id), config.data.eval, evaluation_split(config), config.env.eval_tasks
    )
    seen = seen_tasks(episode.task for episode in read_episodes(path))
    return found + settle(config, leaked(config, measured, seen, what))


def _collect(path: Path, config: SkillTTRLConfig, progress: Progress) -> None:
    """Collect, with what is said to those who leave early: the command `collect` goes on without being told to, a run does not."""
    try:
        collect_into(path, config, progress)
    except Interrupted as leaving:
        raise Interrupted(str(leaving).replace(SAME, _RESUME), leaving.exit_code - 128) from None
    except BudgetError as error:
        raise BudgetError(str(error).removesuffix(AGAIN).rstrip()) from None  # `train` says how it goes on


_RESUME = "Go on with the same command and --resume auto."

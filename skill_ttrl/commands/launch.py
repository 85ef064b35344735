"""From what a user has (a recipe, a skill bank, a model, an environment) to the config and the folder of a run.

`skillttrl train`, `sft` and `rl` are `launch`, `launch_sft` and `launch_rl`, then `commands.train.run` of what they give. What is heavy is imported
inside the functions, so that a mistake in a config is answered at once.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from skill_ttrl.agents.scripted import is_scripted
from skill_ttrl.config import SkillTTRLConfig, load_config, recipe_names
from skill_ttrl.errors import ConfigError
from skill_ttrl.llm.backends import is_frozen
from skill_ttrl.runs.episode_logs import identity_file, read_identity
from skill_ttrl.runs.folder import NO_EFFECT_ON_RESULTS, RunFolder
from skill_ttrl.skills.log import is_bank
from skill_ttrl.train.defaults import load_checked

EPISODES = "trajectories.jsonl"
"""The file that `skillttrl collect` writes in the documentation, in the folder of the bank that is distilled from it."""
Notice = Callable[[str], None]
_SIZES = (
    "sft.steps rl.steps rl.total_epochs rl.eval_steps data.eval.limit env.eval_tasks eval.samples eval.greedy".split()
)
"""Settings of how long a run is and how much it measures."""


@dataclass(frozen=True)
class Options:
    """Settings that the command line has options for. They come after `overrides`."""

    overrides: Sequence[str] = ()
    """As for `--set`."""
    env: str | None = None
    """Another environment, with its own tasks."""
    seed: int | None = None
    nproc: int | None = None
    """Processes that train together."""
    output: Path | None = None
    """Run folder; None: next to the named bank, else `runs/NAME`."""
    resume: str | None = None
    notice: Notice = lambda text: None
    """Called with each default that was chosen and is worth a word."""


@dataclass(frozen=True)
class Launch:
    """A config to run, and where."""

    source: str
    """A recipe's name or a file."""
    overrides: list[str]
    options: Options

    def load(self) -> SkillTTRLConfig:
        """The config.

        Raises:
            ConfigError, EnvError: it is wrong (all mistakes are listed), or belongs to another environment than the one asked for.
            TrustError: see `load_config`.
        """
        config = load_checked(self.source, self.overrides, self.options.notice)
        if self.options.env is not None:
            from skill_ttrl.train.defaults import check_foreign

            check_foreign(self.source, config)
        return config

    def sized_as_shipped(self) -> Launch:
        """The same without overrides that only change how long the run is, how much it measures or what does not touch results."""
        sizes = {*NO_EFFECT_ON_RESULTS, *_SIZES}
        same = [each for each in self.overrides if each.partition("=")[0].strip() not in sizes]
        return replace(self, overrides=same, options=replace(self.options, notice=lambda text: None))

    @property
    def asks_ranks(self) -> bool:
        """True if the number of processes was asked for here, and not by the recipe alone."""
        return any(each.partition("=")[0].strip() in ("runtime", "runtime.nproc") for each in self.overrides)

    def folder(self, name: str) -> Path:
        """The run's folder: `runs/NAME` where none was named, numbered if taken."""
        return self.options.output or free_folder(Path("runs") / name, self.options.resume)


def launch(source: str, options: Options, *, phase: str | None = None) -> Launch:
    """All phases of a recipe, or one of them.

    Raises:
        ConfigError, EnvError: the recipe cannot be read, or there is no such environment.
    """
    own: list[str] = []
    if options.env is not None:
        from skill_ttrl.train.defaults import in_another_env

        # A recipe's tasks are those of its own environment: another one brings its own, unless `--set data...` says more.
        own = ["data.train=null", "data.eval=null", *in_another_env(source, options.env)]
    keys = {
        "env.id": options.env,
        "seed": options.seed,
        "runtime.nproc": options.nproc,
        "phases": f"[{phase}]" if phase else None,
    }
    last = [f"{key}={value}" for key, value in keys.items() if value is not None]
    return Launch(source, [*own, *options.overrides, *last], options)


def launch_sft(
    source: str | None,
    options: Options,
    *,
    model: Path | None = None,
    bank: Path | None = None,
    trajectories: Path | None = None,
    examples: int | None = None,
) -> Launch:
    """The cold start alone: of a recipe, or on collected episodes with a bank's skills in their prompts.

    Args:
        source: recipe; None: the quickstart recipe of the episodes' environment, with their data.
        options: see `Options`.
        model: where the weights are from: a run, a checkpoint, a model folder or a model on the hub; None: the recipe's model.
        bank: skills to begin with.
        trajectories: episodes to imitate; None: those in the bank's folder, or what the bank's run has collected.
        examples: most steps that are imitated.

    Raises:
        ConfigError: neither a recipe nor episodes are named, or there are no episodes.
    """
    given = list(options.overrides)
    if episodes := trajectories or (None if bank is None else _episodes_of(bank)):
        if trajectories is None:
            options.notice(f"Episodes: {episodes} (found next to the bank {bank}). To use others: --trajectories.")
        if source is None:
            source = quickstart_of(episodes)
            options.notice(f"Config: {source} (the default for the environment of the episodes).")
            given = [*_as_collected(episodes, options.notice), *given]
        given += [_setting("demonstrations.trajectories", episodes), "sft.data=null"]
    if bank is not None:
        given.append(_setting("skills.bank", bank))
        options = _beside_bank(options, bank, "sft")
    if examples is not None:
        given.append(f"demonstrations.examples={examples}")
    if source is None:
        raise ConfigError(
            "Name a config (list them: skillttrl configs), or what to learn from: --bank, --trajectories."
        )
    given += [] if model is None else _weights_of(model)
    return launch(source, replace(options, overrides=given), phase="sft")


def launch_rl(source: str | None, options: Options, *, model: Path | None = None, bank: Path | None = None) -> Launch:
    """The rl phase alone, from a recipe's model, a run, a checkpoint or a model folder.

    Args:
        source: recipe; None: that of `model`.
        options: see `Options`.
        model: where the weights are from; None without a recipe: the newest run of `launch_sft` in the bank's folder.
        bank: skills to begin with; None: those of the run that `model` is.

    Raises:
        ConfigError: neither a recipe nor a run is named, or there is none.
        RunFolderError, CheckpointError: see `find_checkpoint`.
    """
    given = list(options.overrides)
    if bank is not None:
        given.append(_setting("skills.bank", bank))
        options = _beside_bank(options, bank, "rl")
        if source is None and model is None:
            model = _sft_run_of(bank)
            options.notice(f"Policy: {model} (found next to the bank {bank}). To use another: --policy.")
    if source is None:
        if model is None:
            raise ConfigError(
                "Name a config (list them: skillttrl configs), or a run of skillttrl sft with --policy; its config is used then."
            )
        if not RunFolder.exists(model):
            raise ConfigError(
                f"There is no run at {model}, whose config would be used. Name a run of skillttrl sft with --policy, or a CONFIG (list "
                "them: skillttrl configs)."
            )
        source = str(model / "config.yaml")
        options.notice(f"Config: {source}.")
    if model is not None:
        given += _weights_of(model)
        given += _bank_of_model(model, source, given, options.notice)
    return launch(source, replace(options, overrides=given), phase="rl")


def _weights_of(policy: Path) -> list[str]:
    """The overrides that start from a policy's weights.

    Raises:
        ConfigError: it has no weights here: a scripted agent, an endpoint or a program.
        RunFolderError, CheckpointError: see `find_checkpoint`.
    """
    from skill_ttrl.commands.resolve import find_checkpoint, is_hub_name

    name = str(policy)
    if is_frozen(name) or is_scripted(name):
        raise ConfigError(
            f"--policy {name} has no weights to train. Name a run, a checkpoint, a model folder or a hub model (OWNER/NAME)."
        )
    if is_hub_name(policy):
        return [f"model.path={json.dumps(name)}", "model.revision=null"]
    weights = find_checkpoint(policy)[1] if RunFolder.exists(policy) else policy
    return [_setting("model.path", weights.resolve())]


def free_folder(first: Path, resume: str | None) -> Path:
    """This folder, or the next free one, `NAME-2`, …; with `resume` the newest of them that there is."""
    taken = [first] if first.exists() else []
    while taken:
        following = first.with_name(f"{first.name}-{len(taken) + 1}")
        if not following.exists():
            return taken[-1] if resume else following
        taken.append(following)
    return first


def quickstart_of(episodes: Path) -> str:
    """The shipped quickstart recipe of the environment that the episodes are of.

    Raises:
        ConfigError: there is none.
    """
    from skill_ttrl.data.episodes import read_episodes
    from skill_ttrl.envs.lookup import SHORT_NAMES

    env_id = next(read_episodes(episodes)).task.env_id
    short = next((name for name, known in SHORT_NAMES.items() if known == env_id), None)
    named = (f"quickstart_skills_{short}", f"quickstart_{short}")  # one with the phases of a skill bank before another
    recipe = next((name for name in named if name in recipe_names()), None)
    if recipe is None:
        raise ConfigError(f"The episodes come from {env_id}, which has no quickstart config. Name a CONFIG.")
    return recipe


def _bank_of_model(model: Path, source: str, given: list[str], notice: Notice) -> list[str]:
    """The override that begins with the bank of the run that the weights are of; none where another is named, or there is none."""
    runs = (model, model.resolve().parent.parent)
    bank = next((run / "bank" for run in runs if RunFolder.exists(run) and is_bank(run / "bank")), None)
    named = any(each.partition("=")[0].strip() in ("skills", "skills.bank") for each in given)
    if bank is None or named:
        return []
    if load_config(source, given).skills is None:
        notice(f"The bank {bank} is not used because the config has no skills section. To use it: --bank {bank}.")
        return []
    notice(f"Skill bank: {bank} (of the run in --policy). To use another: --bank, or --set skills.bank=.")
    return [_setting("skills.bank", bank)]


def _setting(key: str, path: Path) -> str:
    """A path as an override: whatever is in its name, it is text."""
    return f"{key}={json.dumps(str(path), ensure_ascii=False)}"


def _home(bank: Path) -> Path:
    """The folder that a bank is in."""
    return bank.parent if bank.name not in ("", "..") else bank.resolve().parent


def _run_of(bank: Path) -> Path | None:
    """The run whose bank it is; None for a bank of its own."""
    return next((place for place in (bank, _home(bank)) if RunFolder.exists(place)), None)


def _episodes_of(bank: Path) -> Path:
    """The file of episodes that the bank's run has collected, or that is in the bank's folder."""
    from skill_ttrl.runs.episode_logs import COLLECTED

    owner = _run_of(bank)
    found = _home(bank) / EPISODES if owner is None else owner / COLLECTED
    if not found.is_file():
        raise ConfigError(
            f"The bank's folder has no episodes ({found}). Name a file with --trajectories FILE.jsonl, or collect some: skillttrl "
            "collect."
        )
    return found


def _as_collected(episodes: Path, notice: Notice) -> list[str]:
    """Overrides that adapt a quickstart recipe to how the episodes were collected: where games or products are, and what can be
    imitated. Of episodes from elsewhere nothing is known.
    """
    if not identity_file(episodes).is_file():
        return []
    made_with = read_identity(episodes)["made_with"]
    given = [f"env.kwargs.data={json.dumps(made_with.get('kwargs', {}).get('data'))}"]
    if not made_with.get("explore"):
        given.append("demonstrations.label=success")  # advice is recorded only where the agent explored
        notice(
            "The episodes were collected without --epsilon, so the actions of successful ones are imitated "
            "(demonstrations.label=success)."
        )
    return given


def _beside_bank(options: Options, bank: Path, name: str) -> Options:
    """The options with a run folder in the bank's folder where none is named; nothing is put into a run whose bank it is."""
    if options.output is not None or _run_of(bank):
        return options
    return replace(options, output=free_folder(_home(bank) / name, options.resume))


def _sft_run_of(bank: Path) -> Path:
    """The newest run of `launch_sft` in the bank's folder; of a run's bank that run."""
    owner = _run_of(bank)
    if owner is not None:
        return owner
    found = free_folder(_home(bank) / "sft", "auto")
    if not (found / "run.json").is_file():
        raise ConfigError(
            f"The bank's folder has no run of skillttrl sft ({found}). Run it first, or name a CONFIG or --policy."
        )
    return found

"""`skillttrl train`: all phases of a recipe in one resumable run, or one run a seed."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path

from skill_ttrl.answers import persist_cache
from skill_ttrl.commands.collect import collect_into
from skill_ttrl.commands.distill import distill_into, read_with_progress
from skill_ttrl.commands.reports.compare import SEEDS, Seeds, is_seeds, named_seeds, read_seeds
from skill_ttrl.commands.reports.page_data import finish_report
from skill_ttrl.commands.reports.summarize import summarise
from skill_ttrl.config import Phase, SkillTTRLConfig
from skill_ttrl.data.episodes import paths_of
from skill_ttrl.errors import (
    BudgetError,
    ConfigError,
    EndpointError,
    ModelError,
    RankError,
    RunFolderError,
    TrainingError,
)
from skill_ttrl.llm.chat import template_warning
from skill_ttrl.llm.openai.ledger import AGAIN, GO_ON, SAME, USAGE, Ledger, annotate_budget_error, track_usage
from skill_ttrl.progress import SILENT, Progress
from skill_ttrl.rl.device import out_of_memory
from skill_ttrl.rl.parallel.driver import current_driver
from skill_ttrl.rl.parallel.launch import launched
from skill_ttrl.runs.checkpoint import what_is_saved
from skill_ttrl.runs.episode_logs import COLLECTED
from skill_ttrl.runs.folder import EQUIVALENCE_CACHE, MetricsLog, RunFolder, config_differences
from skill_ttrl.runs.reader import read_run
from skill_ttrl.runs.summary import Summary
from skill_ttrl.runs.trackers import open_tracker
from skill_ttrl.signals import RESUME, Interrupted, StopSignal
from skill_ttrl.skills.embedders import with_endpoint
from skill_ttrl.storage.files import wrap_os_errors, write_atomic
from skill_ttrl.train.bank_changes import make_bank_text, make_evolver
from skill_ttrl.train.build import build, make_rewards, open_tasks
from skill_ttrl.train.defaults import with_defaults
from skill_ttrl.train.encode import KEPT, Encoded, encode_demonstrations
from skill_ttrl.train.imitate import COLD_START, LEARN, PLAY, cold_start, imitate_expert, imitate_majority
from skill_ttrl.train.open_run import (
    Resume,
    discard_bank,
    open_folder,
    open_run_bank,
    restore_checkpoint,
    reused_baseline,
)
from skill_ttrl.train.results import NO_SKILLS, read_evaluations
from skill_ttrl.train.rl import reinforce, shown
from skill_ttrl.train.rollout_workers import on_cluster
from skill_ttrl.train.rules import Rules, uncorrected_staleness
from skill_ttrl.train.run import BEFORE, ResumePoint, Run, WarningLog
from skill_ttrl.train.run_bank import RunBank, models_of
from skill_ttrl.train.tasks import ConfigTasks

IMITATING: tuple[Phase, ...] = ("sft", "dagger")
"""Phases that imitate demonstrations."""
DEMONSTRATIONS = "demonstrations"
"""Names the time that reading and tokenising them takes, before the cold start's first step."""


_SMALLER = (
    "Recompute activations (--set model.gradient_checkpointing=true) or use smaller batches (--set {}.micro_batch_size=1): the result "
    "stays the same. Where the weights alone do not fit: adapters (model.lora.r=16), or several GPUs (runtime.parallel=fsdp, --nproc)."
)
OUT_OF_MEMORY = {
    "sample": ("sampling", "Sample fewer rows at once: a lower rollout.max_batch_size."),
    "update": ("update", _SMALLER.format("rl")),
    "sft": ("cold start", _SMALLER.format("sft")),
}
"""Name of the part of a run that had no memory left, and what to change."""


def run(
    config: SkillTTRLConfig,
    output: str | Path,
    *,
    resume: Resume | None = None,
    progress: Progress = SILENT,
    source: str | None = None,
) -> Summary:
    """Run the phases of `config` into the folder `output`.

    Args:
        config: what to do.
        output: run folder; new, or one of the same config with `resume`.
        resume: "auto" continues from the newest checkpoint or starts fresh; None
            refuses a folder that holds a run.
        progress: reports the state of the run.
        source: text of the config file as the user wrote it, stored next to the resolved config.

    Returns:
        The content of `summary.json`.

    Raises:
        SkillTTRLError: something the user can fix, see `errors`; `BudgetError` where the budget is spent, with the last finished
            step saved.
        Interrupted: after a signal.
    """
    if (config.runtime.nproc or 1) > 1 and not launched():  # in Python nothing starts the others
        raise ConfigError(
            f"runtime.nproc is {config.runtime.nproc}, but this process runs alone. Start the run with skillttrl train or torchrun, or "
            "set runtime.nproc=1."
        )
    Rules(config, output=Path(output), resume=resume).check()
    config = with_defaults(config)
    with ExitStack() as stack:
        folder, config = open_folder(config, output, source, progress)
        stack.enter_context(folder)
        ledger = stack.enter_context(track_usage(folder.path / USAGE, config.endpoints))
        if ledger.bounded:  # a run that goes on with a spent budget would do one step and leave
            with annotate_budget_error(GO_ON):
                ledger.check()
        stop = stack.enter_context(StopSignal())
        resumed = restore_checkpoint(folder, config, progress)
        if folder.config.rl.steps != config.rl.steps:
            progress.notice(f"Extending the run: rl.steps was {folder.config.rl.steps}, is now {config.rl.steps}.")
            folder.take_config(config, source)
        run, functions = _prepare(stack, folder, resumed, stop, ledger, progress)
        progress.plan(planned(run))
        saved = f"Everything up to the newest checkpoint is saved in {run.folder.path}. {GO_ON}"
        with _explaining_memory(run.folder.path):
            try:
                for name, phase in functions.items():
                    with run.ledger.phase(name), annotate_budget_error(saved):
                        phase(run)
            except TrainingError as error:
                if run.meter.evaluations:  # else there is nothing to sum up
                    run.folder.write_json("summary.json", asdict(summarise(run, failed=str(error))))
                    finish_report(run.folder.path, progress)
                raise
        if config.phases[-1] in IMITATING:  # the other phases measure themselves
            run.components.worker.update_weights(0)
            run.evaluate("after")
        summary = summarise(run)
        run.folder.write_json("summary.json", asdict(summary))
        finish_report(run.folder.path, progress)
        return summary


def planned(run: Run) -> dict[str, int]:
    """What each phase still has to do, in order, by the name that progress shows; nothing where that shows later. Evaluations between the
    steps count as time of the steps.
    """
    config, done, every, labels = run.config, run.resumed.steps_done, run.evaluation_rollouts, ["after"]
    if "vote_sft" in config.phases:  # it plans its updates once it knows the samples that agree
        return {}
    left = {COLD_START: config.sft.steps - done("sft")} if "sft" in config.phases else {}
    if "dagger" in config.phases:
        learned = done("dagger")
        for number, steps in enumerate(config.dagger.round_steps, start=1):
            left[PLAY.format(number)] = config.dagger.episodes if learned < steps else 0
            left[LEARN.format(number)] = max(0, steps - learned)
            learned = max(0, learned - steps)
    if config.reinforces:
        left[f"evaluate {BEFORE}"] = 0 if run.baseline else every
        left[shown(config.rl)] = config.rl.steps - done("rl")
        labels += [NO_SKILLS] if run.components.bank else []
    left |= {f"evaluate {label}": every for label in labels}
    over = {f"evaluate {label}" for label in run.meter.evaluations}
    return {phase: units for phase, units in left.items() if units and phase not in over}


@contextmanager
def _explaining_memory(run: Path) -> Iterator[None]:
    """Turn an allocation that failed, here or on another rank, into a `ModelError` that names the setting to change."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        where, phase = "", out_of_memory(error)
        if isinstance(error, RankError):
            where, phase = f" on rank {error.rank}", error.out_of_memory
        if phase is None:
            raise
        name, advice = OUT_OF_MEMORY[phase]
        first_line = str(error).strip().partition("\n")[0].rstrip(".")
        raise ModelError(f"Out of memory{where} ({name}): {first_line}. {advice} {what_is_saved(run)}") from error


def _prepare(
    stack: ExitStack, folder: RunFolder, resumed: ResumePoint, stop: StopSignal, ledger: Ledger, progress: Progress
) -> tuple[Run, dict[Phase, Callable[[Run], None]]]:
    """Collect and distill where that is due, and build everything: the run, and the function that runs each phase.

    All that a phase needs is looked up now: a wrong name must not waste the phases before it. Where it fails, a new run leaves only
    what was collected.
    """
    config = resumed.config
    bank: RunBank | None = None
    functions: dict[Phase, Callable[[Run], None]] = {}
    warnings, seconds, checkpoint = list[str](), dict[str, float](), resumed.checkpoint
    driver = current_driver()
    stack.callback(driver.forget)
    try:
        with stop.interruptible("Interrupted before training started; an existing run is unchanged."):
            tasks = open_tasks(config, progress)
            stack.callback(tasks.envs.close)
            state = resumed.state if checkpoint else None
            bank = open_run_bank(with_endpoint(config.skills, config.endpoints), folder, state, models_of(config))
            if bank is not None:
                stack.callback(bank.close)
                for text in bank.notices:
                    progress.notice(text, warning=True)
            # The phases without weights come first: the built-in policy takes its words from what was collected.
            whole = with_collected(config, folder)
            if checkpoint is None:
                kept = f"Collected episodes are saved in {folder.path}. " if "collect" in config.phases else ""
                with annotate_budget_error(f"{kept}{GO_ON}"):
                    seconds |= gather(whole, bank, ledger, progress)
            parts, meter = build(
                whole,
                progress,
                weights=checkpoint.path if checkpoint else None,
                bank=bank,
                stopping=lambda: stop.signum is not None,
                warnings=warnings,
                driver=driver,
                tasks=tasks,
            )
            stack.callback(meter.close)
            stack.callback(parts.close)
            parts = stack.enter_context(on_cluster(parts, meter, progress))
            text_editor, evolution = None, None
            if config.reinforces:
                evolution = make_evolver(parts, resumed.state)
                text_editor = make_bank_text(parts, resumed.state)
                if text_editor is not None:
                    stack.callback(text_editor.close)
            encoded: Encoded = ([], [])
            for name in config.learning_phases:
                with ledger.phase(name), annotate_budget_error(f"Nothing was trained. {KEPT} {GO_ON}"):
                    if resumed.over(name):
                        functions[name] = lambda run: None
                        continue
                    if name in IMITATING and not encoded[0]:
                        began, again = time.perf_counter(), checkpoint is not None
                        encoded = encode_demonstrations(parts, meter, folder, progress, warnings, resumed=again)
                        seconds[DEMONSTRATIONS] = time.perf_counter() - began
                    if name == "sft":
                        functions[name] = partial(cold_start, demonstrations=encoded)
                    elif name == "dagger":
                        functions[name] = partial(imitate_expert, demonstrations=encoded[1])
                    elif name == "vote_sft":
                        functions[name] = imitate_majority
                    else:
                        rewards = make_rewards(parts, meter)
                        functions[name] = partial(reinforce, rewards=rewards, evolution=evolution, text=text_editor)
        stack.enter_context(persist_cache(folder.path / EQUIVALENCE_CACHE))
    except BaseException:
        if checkpoint is None:
            if bank is not None:
                bank.close()
            discard_bank(folder)
        folder.discard_unstarted()  # nothing was trained: the mended config may have this folder
        raise
    tracker = open_tracker(config.run.report_to, folder, config.name, config.model_dump(mode="json"))
    if tracker is not None:
        stack.callback(tracker.close)
    meter.evaluations.update({found.label: found for found in read_evaluations(folder.path)})
    run = Run(
        components=parts,
        meter=meter,
        folder=folder,
        log=MetricsLog(folder, tracker),
        progress=progress,
        stop=stop,
        resumed=resumed,
        ledger=ledger,
        warn=WarningLog(progress, folder, list(resumed.state.get("warnings", []))),
        baseline=None if BEFORE in meter.evaluations else reused_baseline(config),
    )
    unformatted = template_warning(parts.backend, parts.worker.agent.formatter.messages("?"))
    for text in filter(None, (unformatted, uncorrected_staleness(config.rl, config.phases), *warnings)):
        run.warn(text)
    for what, spent in seconds.items():
        run.log.time(what, 0, {"seconds": spent})
    return run, functions


# The phases before anything is learnt need no weights, so they come before the policy is made: the built-in one takes its words from what was
# collected.


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
        each = [{"data": data} for data in config.collect.data or ()] or [{}]
        try:
            with ledger.phase("collect"):
                for path, own in zip(paths_of(files), each, strict=True):
                    env = config.env.model_copy(update={"kwargs": {**config.env.kwargs, **own}})
                    collect_into(path, config.model_copy(update={"env": env}), progress)
        except Interrupted as leaving:  # the command `collect` resumes by itself, a run needs `--resume auto`
            raise Interrupted(str(leaving).replace(SAME, RESUME), leaving.exit_code - 128) from None
        except BudgetError as error:
            raise BudgetError(str(error).removesuffix(AGAIN).rstrip()) from None  # `train` says how it goes on
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


def run_seeds(
    config: SkillTTRLConfig,
    output: str | Path,
    seeds: Sequence[int],
    *,
    resume: Resume | None = None,
    progress: Callable[[Path], Progress] | None = None,
    source: str | None = None,
) -> Seeds:
    """Run `config` once under each seed, one after another, into `output/seed-N`.

    Args:
        config: what to do; its own seed is not looked at.
        output: folder of the runs; new, or one of the same seeds with `resume`.
        seeds: which, each once.
        resume: "auto" continues: seeds that have finished with exactly these settings are skipped. See `commands.train.run`.
        progress: makes the progress of each run, from its folder.
        source: text of the config file, kept with each run.

    Raises:
        ConfigError: no seed, or one twice, was named.
        RunFolderError: `output` holds other seeds or something else.
        SkillTTRLError: see `commands.train.run`; what was done is kept.
    """
    if not seeds or len(set(seeds)) < len(seeds):
        raise ConfigError(f"List each seed once, such as 0,1,2; found {', '.join(map(str, seeds)) or 'none'}.")
    output = Path(output)
    if is_seeds(output):
        before = ", ".join(map(str, named := named_seeds(output)[1]))
        if resume is None:
            raise RunFolderError(
                f"{output} already holds runs with the seeds {before}. Continue them with --resume auto, or choose another --output."
            )
        if named != list(seeds):
            raise RunFolderError(
                f"{output} was started with the seeds {before}, not {', '.join(map(str, seeds))}. Use the same seeds, or choose another "
                "--output."
            )
    elif output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise RunFolderError(f"{output} is not empty and holds no runs of --seeds. Choose another --output.")
    else:
        about = json.dumps({"name": config.name, "seeds": list(seeds)}, indent=2)
        with wrap_os_errors("make", output):
            output.mkdir(parents=True, exist_ok=True)
            write_atomic(output / SEEDS, f"{about}\n".encode())
    for seed in seeds:
        folder = output / f"seed-{seed}"
        mine = config.model_copy(update={"seed": seed}, deep=True)
        ended = resume is not None and (folder / "summary.json").is_file()
        # Other settings lengthen the run or are refused, as they are without `--seeds`.
        if ended and not config_differences(read_run(folder).config, with_defaults(mine)):
            continue
        run(mine, folder, resume=resume, progress=progress(folder) if progress else SILENT, source=source)
    finish_report(output, SILENT)
    return read_seeds(output)

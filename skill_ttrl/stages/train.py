"""`skillttrl train`: all phases of a recipe in one resumable run."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Literal

from skill_ttrl.answers import persist_cache
from skill_ttrl.config import Phase, SkillTTRLConfig, load_config
from skill_ttrl.errors import RunFolderError, TrainingError
from skill_ttrl.llm.chat import template_warning
from skill_ttrl.llm.openai.ledger import GO_ON, USAGE, annotate_budget_error, track_usage
from skill_ttrl.progress import Progress, SilentProgress
from skill_ttrl.runs.checkpoint import Checkpoint, newest, rewind
from skill_ttrl.runs.exposure import Exposure
from skill_ttrl.runs.folder import VERDICTS, RunFolder
from skill_ttrl.runs.identity import config_differences, some
from skill_ttrl.runs.metrics import MetricsLog
from skill_ttrl.runs.summary import Summary
from skill_ttrl.runs.tracker import open_tracker
from skill_ttrl.signals import StopSignal
from skill_ttrl.skills.retrieval.embed_openai import with_endpoint
from skill_ttrl.stages.data_phases import gather
from skill_ttrl.stages.reports.baseline import baseline_lines
from skill_ttrl.stages.reports.run_page import write_report_html
from skill_ttrl.stages.reports.summary_text import write_summary
from skill_ttrl.stages.rl import make_reward, reinforce
from skill_ttrl.stages.setup.build import build
from skill_ttrl.stages.setup.checks import check_enough, check_names, check_ready, learning_phases
from skill_ttrl.stages.setup.env_defaults import with_env_defaults
from skill_ttrl.stages.setup.pin import pin_revisions, take_revisions
from skill_ttrl.stages.setup.rationale import KEPT
from skill_ttrl.stages.sft import cold_start, encode_demonstrations
from skill_ttrl.stages.training.context import Run, TrainingComponents
from skill_ttrl.stages.training.evolve import make_evolver
from skill_ttrl.stages.training.run_bank import RunBank, bank_version, discard_bank, models_of, open_run_bank
from skill_ttrl.stages.training.summarize import read_evaluations, summarise
from skill_ttrl.stages.vote_sft import imitate_majority
from skill_ttrl.voting import needs

Resume = Literal["auto", "last-good"]
DEMONSTRATIONS = "demonstrations"
"""Names the time that reading and tokenising them takes, before the cold start's first step."""


def run(
    config: SkillTTRLConfig,
    output: str | Path,
    *,
    resume: Resume | None = None,
    progress: Progress | None = None,
    source: str | None = None,
) -> Summary:
    """Run the phases of `config` into the folder `output`.

    Args:
        config: what to do.
        output: run folder; new, or one of the same config with `resume`.
        resume: "auto" goes on from the newest checkpoint or starts fresh, "last-good" passes over damaged ones; None
            refuses a folder that holds a run.
        progress: told where the run is.
        source: text of the config file as the user wrote it, kept beside the resolved one.

    Returns:
        What `summary.json` holds.

    Raises:
        SkillTTRLError: something the user can mend, see `errors`; `Interrupted` after a signal; `BudgetError` where what may be
            spent is spent, with the last finished step saved.
    """
    progress = progress or SilentProgress()
    check_ready(config)
    check_names(config)
    config = with_env_defaults(config)
    learning = learning_phases(config)
    with ExitStack() as stack:
        folder, config = _open(config, output, resume, source, progress)
        stack.enter_context(folder)
        ledger = stack.enter_context(track_usage(folder.path / USAGE, config.endpoints))
        with annotate_budget_error(GO_ON):
            ledger.check()  # a run that goes on with a spent budget would do one step and leave
        stop = stack.enter_context(StopSignal())
        checkpoint, state = _go_back(folder, resume or "auto", progress)
        if folder.config.rl.steps != config.rl.steps:
            progress.notice(f"The run is lengthened: rl.steps {folder.config.rl.steps} before, {config.rl.steps} now.")
            folder.take_config(config, source)
        bank: RunBank | None = None
        warnings: list[str] = []
        try:
            version = bank_version(state) if checkpoint else None
            bank = open_run_bank(with_endpoint(config), folder, version, models_of(config))
            if bank is not None:
                stack.callback(bank.close)
                for text in bank.notices:
                    progress.notice(text, warning=True)
            kept = f"What was collected is kept in {folder.path}. " if "collect" in config.phases else ""
            with stop.interruptible("Stopped before anything was trained; a run that was to go on is as it was."):
                with annotate_budget_error(f"{kept}{GO_ON}"):
                    informed, spent = gather(
                        config, folder, bank, ledger, progress, warnings, begun=checkpoint is not None
                    )
                bench = build(
                    informed,
                    progress,
                    weights=checkpoint.path if checkpoint else None,
                    bank=bank,
                    stopping=lambda: stop.signum is not None,
                )
                stack.callback(bench.close)
                if bank is not None and "rl" in config.phases:
                    bank.exposure = Exposure(state.get("exposure"))
                    bank.evolver = make_evolver(bench, state)
                learn = []
                for name in learning:
                    began = time.perf_counter()
                    with ledger.phase(name), annotate_budget_error(f"Nothing was trained. {KEPT} {GO_ON}"):
                        learn.append(_phase(name, bench, folder, checkpoint, progress))
                    if name == "sft":
                        spent[DEMONSTRATIONS] = time.perf_counter() - began
            stack.enter_context(persist_cache(folder.path / VERDICTS))
        except BaseException:
            if checkpoint is None:
                discard_bank(folder, bank)
            folder.discard_unstarted()  # nothing was trained: the mended config may have this folder
            raise
        tracker = open_tracker(config.run.tracker, folder, config.name, config.model_dump(mode="json"))
        if tracker is not None:
            stack.callback(tracker.close)
        run = Run(
            bench=bench,
            folder=folder,
            log=MetricsLog(folder, tracker),
            progress=progress,
            stop=stop,
            resumed=checkpoint,
            resumed_state=state,
            evaluations={found.label: found for found in read_evaluations(folder.path)},
            warnings=list(state.get("warnings", [])),
        )
        if unformatted := template_warning(bench.backend):
            run.warn(unformatted)
        for text in [*warnings, *bench.warnings]:
            run.warn(text)
        for gathered, seconds in spent.items():
            run.log.time(gathered, 0, {"seconds": seconds})
        try:
            for name, phase in zip(learning, learn, strict=True):
                with (
                    ledger.phase(name),
                    annotate_budget_error(f"Everything up to the newest checkpoint is saved in {folder.path}. {GO_ON}"),
                ):
                    phase(run)
        except TrainingError as error:
            if run.evaluations:  # else there is nothing to sum up
                write_summary(folder, summarise(run, failed=str(error)))
            raise
        if learning == ["sft"]:
            bench.backend.sync(0)
            run.evaluate("after")
        summary = summarise(run)
        write_summary(folder, summary, baseline_lines(folder.path))
        write_report_html(folder)
        return summary


def _phase(
    name: Phase, bench: TrainingComponents, folder: RunFolder, checkpoint: Checkpoint | None, progress: Progress
) -> Callable[[Run], None]:
    """What a phase does, with all that it needs looked up now: a wrong name must not cost the phases before it."""
    if name == "sft":
        over = checkpoint is not None and checkpoint.phase != "sft"  # then nothing is imitated any more
        begun = checkpoint is not None
        return partial(
            cold_start, demonstrations=([], []) if over else encode_demonstrations(bench, folder, progress, begun=begun)
        )
    check_enough(bench.config, bench.train_tasks)
    if name == "vote_sft":
        return imitate_majority
    if bench.bank is not None and bench.bank.config.update == "merge":
        _ = bench.bank.merger, bench.bank.config.extract and bench.bank.extractor
    return partial(reinforce, reward=make_reward(bench))


def _open(
    config: SkillTTRLConfig, output: str | Path, resume: Resume | None, source: str | None, progress: Progress
) -> tuple[RunFolder, SkillTTRLConfig]:
    """The locked folder, and the config with its revisions pinned: now, or when the resumed run was started."""
    if not RunFolder.exists(output):
        pinned = pin_revisions(config)
        return RunFolder.create(output, pinned, source=source), pinned
    if resume is None:
        raise RunFolderError(
            f"{output} already holds a run. Go on with it with --resume auto, or choose another --output."
        )
    folder = RunFolder.open(output)
    try:
        if not folder.checkpoints.is_dir():
            return folder, _as_it_is_now(folder, config, source, progress)
        folder.belongs_to(_as_long_as(folder, config))
        if config.model.trust_remote_code:
            load_config(folder.path / "config.yaml")  # its revision says which code that is
        return folder, pin_revisions(take_revisions(config, folder.config))
    except BaseException:
        folder.close()
        raise


def _as_long_as(folder: RunFolder, config: SkillTTRLConfig) -> SkillTTRLConfig:
    """The config with the run's own `rl.steps`, where more of them are asked now and the run can have them.

    Raises:
        RunFolderError: they are more, and the steps that are done depend on how many there were to be.
    """
    done, asked = folder.config.rl.steps, config.rl.steps
    if asked <= done or "rl" not in config.phases:
        return config
    way = (
        f"Train on from what it learned: skillttrl rl {folder.path / 'config.yaml'} --model {folder.path} --set "
        f"rl.steps={asked - done}"
    )
    if config.rl.schedule != "constant":
        raise RunFolderError(
            f"{folder.path} was made for {done} steps and cannot go on to {asked}: rl.schedule={config.rl.schedule} has brought "
            f"its learning rate down over {done}. {way}"
        )
    if "base_share" in needs(config.vote.strategy, config.vote.options):
        raise RunFolderError(
            f"{folder.path} was made for {done} steps and cannot go on to {asked}: vote.strategy={config.vote.strategy} asked the "
            f"policy of its start about the prompts of {done} steps. {way}"
        )
    return config.model_copy(update={"rl": config.rl.model_copy(update={"steps": done})})


def _as_it_is_now(
    folder: RunFolder, config: SkillTTRLConfig, source: str | None, progress: Progress
) -> SkillTTRLConfig:
    """The config of a run without a checkpoint, which starts again: what was wrong with it may have been mended since.

    Episodes that were collected stay where they are of the same tasks, player and settings; others are refused by their file.
    """
    changed = config_differences(folder.config, config)
    if not changed:
        return pin_revisions(take_revisions(config, folder.config))
    pinned = pin_revisions(config)
    folder.take_config(pinned, source)
    progress.notice(f"Nothing was trained here yet, so the config is taken as it is now: {some(changed)}.")
    return pinned


def _go_back(folder: RunFolder, resume: Resume, progress: Progress) -> tuple[Checkpoint | None, dict[str, Any]]:
    """The folder as it was at the checkpoint to go on from, that checkpoint (None: from the start), and its state."""
    checkpoint, skipped = newest(folder, resume)
    for text in skipped:
        progress.notice(f"{text} It was passed over.", warning=True)
    state = rewind(folder, checkpoint)
    if checkpoint is not None:
        progress.notice(f"Going on from {checkpoint.path.name}.")
    return checkpoint, state

"""Cold start: supervised learning on demonstrations; loss on completions, and first on prompts too where `sft.prompt_loss_fraction` says so."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from skill_ttrl.config import SFTConfig
from skill_ttrl.rl.batch import EncodedDemonstration
from skill_ttrl.rl.parallel.driver import sft_learner
from skill_ttrl.rl.sft_learner import batch_selector
from skill_ttrl.stages.setup.encode import Encoded
from skill_ttrl.stages.training.run import Run
from skill_ttrl.stages.training.state import PhaseState, load_learner, save_if_due, skipped_too_often, watch_updates

PHASE, SHOWN = "sft", "cold start"
"""The phase in files, and as progress shows it."""


def cold_start(run: Run, demonstrations: Encoded) -> None:
    """Train on (clean, noisy) demonstrations for `sft.steps` steps; the first `noise_free_fraction` of them see no noise."""
    config = run.config.sft
    clean, noisy = (batch_selector(data, config, run.config.seed) for data in demonstrations)

    def batch_of(step: int) -> list[EncodedDemonstration]:
        batch = (clean if step < config.noise_free_fraction * config.steps else noisy)(step)
        return [whole(each) for each in batch] if step < config.prompt_loss_fraction * config.steps else batch

    fine_tune(run, PHASE, SHOWN, config, batch_of, save_every=config.save_steps)


def fine_tune(
    run: Run,
    phase: str,
    shown: str,
    config: SFTConfig,
    batch_of: Callable[[int], Sequence[EncodedDemonstration]],
    *,
    save_every: int,
    before: int = 0,
) -> None:
    """Take `config.steps` supervised steps, less those of the checkpoint of a resumed run.

    Args:
        run: the run.
        phase: its phase, in files.
        shown: the phase as progress shows it.
        config: of the learner.
        batch_of: gives the demonstrations of a step.
        save_every: steps from one checkpoint to the next.
        before: steps of the phase that come before the first of these.

    Raises:
        TrainingError: see `training.state.skipped_too_often`; the run is saved.
    """
    parts = run.components
    done = max(0, run.resumed.steps_done(phase) - before)
    if done < config.steps:
        state = PhaseState(phase, before + done, learner := sft_learner(parts.driver, config))
        if done:
            load_learner(run)
        run.progress.start(shown, config.steps, "step", done)
        for step in range(done, config.steps):
            began, cpu_began = time.perf_counter(), time.process_time()
            metrics = learner.step(batch_of(step), step, seed=run.config.seed)
            run.log.log(phase, before + step, metrics)
            seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - cpu_began
            run.log.time(phase, before + step, {"seconds": seconds, "cpu_seconds": cpu_seconds})
            run.progress.advance(shown, step + 1, metrics)
            state.step = before + step + 1
            due = step + 1 == config.steps or (step + 1) % save_every == 0
            save_if_due(run, state, due=due, failed=watch_updates(run, state, before + step))
        run.progress.finish(shown)
    if (failed := skipped_too_often(run, phase, ended=True)) is not None:
        raise failed


def whole(demonstration: EncodedDemonstration) -> EncodedDemonstration:
    """Put the loss on the prompt as well, except its first token; the mask of the response stays."""
    prompt, response, mask, labels = demonstration
    learnt = (True,) * len(response) if mask is None else mask
    return EncodedDemonstration(
        prompt[:1],
        (*prompt[1:], *response),
        (*(True,) * (len(prompt) - 1), *learnt),
        None if labels is None else (*prompt[1:], *labels),
    )

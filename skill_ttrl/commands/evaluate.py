"""`skillttrl evaluate`: measure a run, a checkpoint or a plain model, on its own problems, on any file, or on a split of an environment.

On a split of an environment, success is what the environment reports (`Trajectory.success`). A scripted agent is
measured by `commands.collect.run`, which loads nothing of what a model takes.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from skill_ttrl.commands.resolve import (
    EvalDataset,
    EvalTarget,
    env_kwargs,
    in_env,
    resolve_target,
    with_fitting,
    with_limit,
)
from skill_ttrl.commands.sampler import DrawnSamples, draw_samples
from skill_ttrl.envs import check_text_env, env_tasks, make_env, resolve_env
from skill_ttrl.envs.lookup import refuse_split, split_argument
from skill_ttrl.errors import ConfigError
from skill_ttrl.llm.backends import NO_MODEL
from skill_ttrl.progress import OPENING, SILENT, Counting, Progress, telling_warnings
from skill_ttrl.rollout.outcome import TaskSamples
from skill_ttrl.train.measure import evaluate_samples, evaluation_draws
from skill_ttrl.train.results import EVALUATION, Evaluation
from skill_ttrl.train.tasks import ConfigTasks
from skill_ttrl.types import Task, to_json


def run(
    path: str | Path, overrides: Sequence[str] = (), *, use_bank: bool = True, progress: Progress = SILENT
) -> Evaluation:
    """Evaluate the policy of a run or checkpoint on one set of problems.

    Args:
        path: run folder (its newest checkpoint) or checkpoint folder.
        overrides: changes to the run's config, e.g. `eval.samples=64` or `data.eval={path: mine.jsonl}`.
        use_bank: False measures without the run's skill bank.
        progress: reports what was left out.

    Raises:
        ConfigError: the run was trained on some of the problems and not on others, which makes two evaluations.
        SkillTTRLError: there is no such policy, or the problems cannot be read.
    """
    found = run_all(path, overrides, use_bank=use_bank, progress=progress)
    if len(found) > 1:
        parts = " and ".join(f"{each.problems} {exposure(each.transductive)}" for each in found)
        raise ConfigError(
            f"The problems are of several kinds ({parts}) with separate metrics: call run_all, which returns one result for each."
        )
    return found[0]


def run_all(
    source: str | Path,
    overrides: Sequence[str] = (),
    *,
    data: Sequence[str] = (),
    limit: int | None = None,
    config: str | None = None,
    output: str | Path | None = None,
    chunk: int | None = None,
    use_bank: bool = True,
    progress: Progress = SILENT,
) -> tuple[Evaluation, ...]:
    """Evaluate a run, a checkpoint or a model on each of `data`.

    Problems that the run was trained on and others are counted apart: a file with both gives two evaluations, the
    transductive one first.

    Args:
        source: run folder (its newest checkpoint), checkpoint, model folder, or a model on the hub.
        overrides: changes to the config, e.g. `eval.samples=64`; `data.eval.limit=100` holds for each of `data`.
        data: files or data sets (`hf:owner/name`); empty: the run's or recipe's own problems.
        limit: problems of each of `data`; None: all.
        config: a plain model's recipe or config file.
        output: folder that stores samples as they are drawn; an interrupted evaluation resumes from them.
        chunk: problems drawn together, each chunk from a seed of its own; 0: all. None: as many as the backend takes at once
            where there is an `output`, else all.
        use_bank: False measures without the skill bank.
        progress: reports what is drawn and what was left out.

    Raises:
        RunFolderError: `output` belongs to another model, other data or settings.
        SkillTTRLError: there is no such policy, or problems cannot be read.
        Interrupted: a signal came.
    """
    subject = with_fitting(resolve_target(source, overrides, config=config, data=data, use_bank=use_bank))
    problems = with_limit(subject.problems(data), limit)
    return measure_subject(subject, problems, output=output, chunk=chunk, use_bank=use_bank, progress=progress)


def measure_subject(
    subject: EvalTarget,
    problems: Sequence[EvalDataset],
    *,
    output: str | Path | None = None,
    chunk: int | None = None,
    use_bank: bool = True,
    progress: Progress = SILENT,
) -> tuple[Evaluation, ...]:
    """Evaluate what was found on these problems; the rest is as for `run_all`."""
    settings = subject.config
    draws = evaluation_draws(settings.eval, settings.rollout, settings.seed)
    asked: dict[str, Any] = {"output": output, "chunk": chunk, "use_bank": use_bank, "progress": progress}
    with draw_samples(subject, problems, draws, phase="evaluate", controls=True, **asked) as samples:
        found = tuple(each for part in problems for each in _evaluations(subject, part.name, samples))
        if samples.folder is not None:
            samples.folder.write_text(EVALUATION, f"[{', '.join(to_json(each) for each in found)}]\n")
    if samples.known is None and settings.rollout.backend != NO_MODEL:
        progress.notice(f"Contamination unknown: {samples.why_unknown}.")
    return found


def measure_policy(
    source: str | Path,
    env: str,
    *,
    split: str,
    overrides: Sequence[str] = (),
    limit: int | None = None,
    config: str | None = None,
    output: str | Path | None = None,
    chunk: int | None = None,
    use_bank: bool = True,
    progress: Progress = SILENT,
) -> tuple[Evaluation, ...]:
    """Evaluate a policy on every task of a split of `env`, whatever it was trained in.

    A task counts as right where the environment says `won` in its `info`, or, without that entry, its return is above 0. What
    the policy's config does not state, prompts, parser and turns, is as the environment has it (`with_env_defaults`).

    Args:
        source: run folder, checkpoint, model's folder, model on the hub, or `openai:MODEL`; see `run_all`.
        env: short name, Gymnasium id, or `module:EnvId-v0`.
        split: part of the environment's tasks.
        overrides: changes to the config, e.g. `eval.samples=1`; `env.kwargs.NAME=VALUE` is handed to the environment. Where the
            policy was trained in `env`, its arguments are those of the training, with these changes.
        limit: only so many tasks, spread over the split (`envs.lookup.spread`); None: all.
        config: a plain model's recipe or config file.
        output: folder to which samples are written as they are drawn.
        chunk: tasks drawn together; see `run_all`. None: as many as the backend takes at once.
        use_bank: False measures without the skill bank.
        progress: receives the progress of sampling.

    Raises:
        SkillTTRLError: there is no such policy, environment or split, or it cannot be played by such a policy.
    """
    if limit is not None and limit < 1:
        raise ConfigError(f"limit must be at least 1, found {limit}.")
    found = resolve_target(source, overrides, config=config, use_bank=use_bank)
    env_id = resolve_env(env)
    refuse_split(env_kwargs(overrides, env_id))
    arguments = {**env_kwargs(overrides, env_id, found.config.env), **split_argument(env, split)}
    found = in_env(found, env, arguments, overrides)
    found.check(use_bank=use_bank)  # before its tasks are looked for
    with telling_warnings(progress):
        (first,) = env_tasks(env, arguments, split, 1, Counting(progress, OPENING, "item"))
        said = _source(env, arguments, first)
    name = f"{env} {split}" + (f" ({said})" if said else "")
    # One environment an episode is held in memory, so that not all tasks are drawn together, as elsewhere.
    size = max(1, found.config.rollout.max_batch_size // found.config.eval.samples) if chunk is None else chunk
    return measure_subject(
        found, [EvalDataset(name, None, split, limit)], output=output, chunk=size, use_bank=use_bank, progress=progress
    )


def _source(env: str, kwargs: Mapping[str, Any], task: Task) -> str:
    """Source of the environment's tasks (`info["source"]`); empty if the environment does not state one."""
    with closing(make_env(env, **kwargs)) as game:
        check_text_env(game, task)
        _, info = game.reset(seed=task.seed, options=dict(task.options))
    return str(info.get("source", ""))


def exposure(transductive: bool | None) -> str:
    """The word for whether a policy was trained on the problems that it is measured on."""
    return {True: "transductive", False: "held-out", None: "contamination unknown"}[transductive]


def _evaluations(subject: EvalTarget, source: str, samples: DrawnSamples) -> list[Evaluation]:
    rows = [row for row in samples.rows if row.source == source]
    seen = samples.known
    parts: list[tuple[bool | None, list[TaskSamples]]] = [(None, rows)]
    program, own_model = subject.config.program, subject.config.rollout.backend == NO_MODEL
    played = "" if program is None or own_model else f" as {shlex.join(program.argv)}"
    if seen is not None:
        parts = [(side, [row for row in rows if seen[source, row.task.id] is side]) for side in (True, False)]
    return [
        evaluate_samples(
            part,
            label=subject.name + played,
            config=subject.config.eval,
            source=source or ConfigTasks(subject.config).names[1],
            transductive=side,
            controls=samples.controls.of(part),
        )
        for side, part in parts
        if part
    ]

"""`skillttrl collect --agent SOURCE`: a policy plays the tasks of an environment, and every episode is kept as a player's is.

Episodes are played together in chunks, each from a seed of its own, and kept chunk by chunk in the order of the tasks: a collection
that was stopped goes on with the chunk it was at. With the backend `hf` it ends with the same bytes as one that was never stopped.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from skill_ttrl.config import SkillTTRLConfig
from skill_ttrl.envs import resolve_env
from skill_ttrl.envs.lookup import refuse_split, split_argument
from skill_ttrl.errors import ConfigError
from skill_ttrl.llm.backend import Sampling
from skill_ttrl.llm.openai.ledger import USAGE, Ledger, annotate_budget_error, current_ledger, track_usage, when_spent
from skill_ttrl.progress import Progress, SilentProgress
from skill_ttrl.runs.summary import usage_lines
from skill_ttrl.signals import StopSignal
from skill_ttrl.stages.collecting.collection import (
    PHASE,
    Collected,
    Place,
    Tally,
    Unit,
    open_file,
    training_place,
    written,
)
from skill_ttrl.stages.collecting.watch import env_kwargs
from skill_ttrl.stages.evaluation.outcomes import outcome_of
from skill_ttrl.stages.setup.build import build_for_eval
from skill_ttrl.stages.setup.env_defaults import with_env_defaults
from skill_ttrl.stages.targets.draw import decisive
from skill_ttrl.stages.targets.resolve import Subject, is_trained, resolve_target
from skill_ttrl.stages.training.context import TrainingComponents
from skill_ttrl.types import Task, Trajectory, derive_seed

CHUNK = 64
"""Episodes that are played together and kept together, where nobody says otherwise and the backend takes as many at once."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """What is played together."""

    tasks: tuple[Task, ...]
    seed: int
    start: int
    """Place of its first episode among all."""
    episodes: int
    """Those that are kept: of the last task there may be fewer than tries."""


def run_policy(
    source: str | Path,
    env: str,
    *,
    split: str = "train",
    overrides: Sequence[str] = (),
    kwargs: Mapping[str, Any] | None = None,
    types: Sequence[str] = (),
    episodes: int | None = None,
    tries: int = 1,
    chunk: int | None = None,
    seed: int | None = None,
    config: str | None = None,
    use_bank: bool = True,
    output: str | Path | None = None,
    confidence: float = 0.95,
    progress: Progress | None = None,
) -> Collected:
    """Have a policy play the tasks of a split, sampled as its rollouts are, and keep every episode.

    Args:
        source: run folder, checkpoint, model's folder, model on the hub, or `openai:MODEL`; see `subject.resolve_target`.
        env: short name, Gymnasium id, or `module:EnvId-v0`.
        split: part of the environment's tasks.
        overrides: changes to the config, e.g. `rollout.temperature=0.4`; `env.kwargs.NAME=VALUE` is handed to the environment.
            Where the policy was trained in `env`, its arguments are those of the training, with these changes.
        kwargs: further arguments of the environment.
        types: only tasks of these types; empty: all.
        episodes: so many, of tasks spread over the split and its types; None: all.
        tries: episodes of each task, sampled as one group.
        chunk: episodes that are played together; None: `CHUNK`, or as many as the backend takes at once. Another number samples
            other episodes from the same seed.
        seed: of all random choices; None: the config's.
        config: a plain model's recipe or config file.
        use_bank: False plays without the skill bank.
        output: `FILE.jsonl`; what it was made with stands in `FILE.jsonl.json`, what requests cost in `FILE.jsonl.usage.jsonl`.
            None: nothing is kept.
        confidence: level of the intervals, in (0, 1).
        progress: told of episodes, success, tokens and cost.

    Raises:
        SkillTTRLError: there is no such policy, environment, split or type; `output` holds something else; every episode failed;
            or what may be spent is spent (`BudgetError`).
        Interrupted: a signal came; every finished chunk is kept where there is an `output`.
    """
    progress = progress or SilentProgress()
    refuse_split({**env_kwargs(overrides, env_id := resolve_env(env)), **(kwargs or {})})
    found = resolve_target(source, overrides, config=config, use_bank=use_bank)
    arguments = {**env_kwargs(overrides, env_id, found.config), **(kwargs or {})}
    place = Place(env, split, {**arguments, **split_argument(env, split)}, tuple(types), episodes, tries)
    usage = None if output is None else Path(f"{output}.{USAGE}")
    with track_usage(usage, found.config.endpoints) as ledger, ledger.phase("collect"):
        collected = _collect(
            _playing(found, place, overrides), place, output, progress, chunk, seed, use_bank, confidence
        )
    for line in usage_lines(ledger.report()):
        progress.notice(line)
    return collected


def collect_for_run(path: Path, config: SkillTTRLConfig, progress: Progress) -> Collected:
    """The policy that `config.collect.agent` names plays the training tasks of a run; see `collect.collect_into`.

    What it costs stands in the ledger that the run has opened.
    """
    place, own = training_place(config), config.model_dump(mode="json")
    source = config.collect.agent
    if config.collect.explore:
        raise ConfigError(
            f"collect.explore is for a player, but collect.agent={source} is a policy: it samples. Leave it at 0, and raise "
            "rollout.temperature to see more of the tasks."
        )
    found = resolve_target(source) if is_trained(source) else resolve_target(source, config=own)
    return _collect(_playing(found, place, ()), place, path, progress, None, config.seed, True, config.eval.confidence)


def _playing(found: Subject, place: Place, overrides: Sequence[str]) -> Subject:
    """The policy in the environment that is meant, with its defaults where the policy's config is silent."""
    settings = found.config.model_copy(deep=True)
    settings.env.id, settings.env.kwargs = place.env, dict(place.kwargs)
    return replace(found, config=with_env_defaults(settings, playing=overrides))


def _collect(
    found: Subject,
    place: Place,
    output: str | Path | None,
    progress: Progress,
    chunk: int | None,
    seed: int | None,
    use_bank: bool,
    confidence: float,
) -> Collected:
    config = found.config
    if chunk is not None and chunk < 1:
        raise ConfigError(f"chunk must be at least 1, found {chunk}.")
    seed = config.seed if seed is None else seed
    size = chunk or min(CHUNK, config.rollout.max_batch_size)
    units = place.units(progress)
    plan = list(chunks(units, place.tries, size, seed))
    began = time.perf_counter()
    with ExitStack() as stack:
        file = None
        if output is not None:
            more = {"policy": _made_with(found, size, use_bank)}
            file = stack.enter_context(open_file(output, place.made_with(units, found.name, seed, more)))
        tally = Tally(units, file, progress)
        tally.read_kept()
        meter = _Meter(current_ledger())
        if len(tally.outcomes) < len(units):
            bank = found.bank() if use_bank else None
            if bank is not None:
                stack.callback(bank.close)
            tasks = [task for part in plan for task in part.tasks]
            bench, _ = build_for_eval(config, {"": tasks}, progress, weights=found.weights, bank=bank)
            stack.callback(bench.close)
            _play(bench, plan, tally, place.tries, meter)
        seconds = time.perf_counter() - began
        return tally.found(place, found.name, seed, confidence=confidence, seconds=seconds, tokens=meter.tokens)


def chunks(units: Sequence[Unit], tries: int, size: int, seed: int) -> Iterator[Chunk]:
    """What is played together, in order: whole tasks, about `size` episodes.

    Args:
        units: all episodes, the tries at a task after one another.
        tries: of each task but perhaps the last.
        size: episodes of a chunk, of one task at least.
        seed: the first chunk's; each other one has its own.
    """
    step = max(1, size // tries) * tries
    for number, start in enumerate(range(0, len(units), step)):
        part = units[start : start + step]
        own = seed if number == 0 else derive_seed(seed, "chunk", number)
        yield Chunk(tuple(task for task, attempt in part if attempt == 0), own, start, len(part))


def _made_with(found: Subject, chunk: int, use_bank: bool) -> dict[str, Any]:
    rollout = found.config.rollout
    sampling = Sampling(rollout.temperature, rollout.top_p, rollout.top_k, rollout.max_new_tokens)
    return {
        "model": found.fingerprint(),
        "config": {name: value for name, value in decisive(found.config).items() if name != "env"},
        "sampling": asdict(sampling),
        "chunk": chunk,
        "skill_bank": use_bank and found.config.skills is not None,
    }


def _play(bench: TrainingComponents, plan: Sequence[Chunk], tally: Tally, tries: int, meter: _Meter) -> None:
    """Play the chunks that are not whole yet; what was played is kept however it ends."""
    tally.progress.start(PHASE, len(tally.units), "episode", len(tally.outcomes))

    def told(trajectory: Trajectory) -> None:
        meter.add(trajectory)
        tally.show(outcome_of(trajectory), meter.figures())

    with StopSignal() as stop:
        try:
            for chunk in plan:
                there = max(0, len(tally.outcomes) - chunk.start)
                if there >= chunk.episodes:
                    continue
                # Where it was cut off within a chunk, that is played again, and what the file has already is not told twice.
                new = not there and chunk.episodes == len(chunk.tasks) * tries
                leaving = tally.leaving(chunk.episodes - there)
                with stop.interruptible(leaving), annotate_budget_error(when_spent(leaving)):
                    groups = bench.play(
                        chunk.tasks, tries, bench.sampling, chunk.seed, on_episode=told if new else meter.add
                    )
                played = [trajectory for group in groups for trajectory in group.trajectories]
                for trajectory in played[there : chunk.episodes]:
                    line, outcome = written(trajectory)
                    if not new:
                        tally.show(outcome, meter.figures())
                    tally.add(line, outcome)
                if tally.write():
                    current_ledger().settle()
        finally:
            tally.write()
    tally.progress.finish(PHASE)


class _Meter:
    """Tokens and cost while episodes are played."""

    def __init__(self, ledger: Ledger) -> None:
        self.tokens = 0
        """Tokens that the policy has written; of a policy behind an address, in requests that were answered."""
        self._ledger, self._before = ledger, ledger.totals()
        self._began = time.perf_counter()

    def add(self, trajectory: Trajectory) -> None:
        self.tokens += sum(step.completion.sampled for step in trajectory.steps if step.completion is not None)

    def figures(self) -> dict[str, float]:
        spent = self._ledger.totals()
        self.tokens = max(
            self.tokens, spent.tokens_out - self._before.tokens_out
        )  # behind an address there may be no ids
        rate = {"tokens/s": self.tokens / max(time.perf_counter() - self._began, 1e-9)}
        return rate | ({"cost": spent.cost} if spent.cost else {})

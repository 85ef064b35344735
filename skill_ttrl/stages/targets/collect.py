"""`skillttrl collect --policy POLICY`: a policy plays the tasks of an environment, and every episode is stored as a scripted agent's is.

Episodes are played together in chunks, each from a seed of its own, and kept chunk by chunk in the order of the tasks: a collection
that was stopped goes on with the chunk it was at. With the backend `hf` it ends with the same bytes as one that was never stopped.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from dataclasses import asdict
from pathlib import Path

from skill_ttrl.config import SkillTTRLConfig
from skill_ttrl.envs import resolve_env
from skill_ttrl.envs.lookup import refuse_split
from skill_ttrl.errors import ConfigError
from skill_ttrl.llm.backend import Sampling
from skill_ttrl.llm.openai.ledger import USAGE, Ledger, current_ledger, track_usage, usage_lines
from skill_ttrl.progress import Progress, SilentProgress
from skill_ttrl.rollout.outcome import episode_result
from skill_ttrl.rollout.samples import SamplingPass
from skill_ttrl.runs.episode_logs import lines_of
from skill_ttrl.stages.collecting.collection import (
    Collected,
    Collection,
    EpisodeWriter,
    TaskSelection,
    training_selection,
    written,
)
from skill_ttrl.stages.collecting.watch import env_kwargs
from skill_ttrl.stages.targets.draw import decisive
from skill_ttrl.stages.targets.resolve import EvalTarget, in_env, is_trained, resolve_target
from skill_ttrl.stages.targets.sampler import Chunk, Sampler, open_sampler, sample_chunks, split_into_chunks
from skill_ttrl.types import Group, Trajectory

CHUNK = 64
"""Episodes that are played together and kept together, where nobody says otherwise and the backend takes as many at once."""


def run_policy(
    source: str | Path,
    selection: TaskSelection,
    *,
    overrides: Sequence[str] = (),
    config: str | None = None,
    use_bank: bool = True,
    greedy: bool = False,
    chunk: int | None = None,
    seed: int | None = None,
    output: str | Path | None = None,
    progress: Progress | None = None,
) -> Collected:
    """Run a policy on tasks, sampled as its rollouts are, and store every episode.

    Args:
        source: run folder, checkpoint, model's folder, model on the hub, or `openai:MODEL`; see `resolve_target`.
        selection: which tasks. Where the policy was trained in this environment, its arguments are those of the training, with
            these changes. Rollouts of one task are sampled as one group.
        overrides: changes to the config, e.g. `rollout.temperature=0.4`; `env.kwargs.NAME=VALUE` is handed to the environment.
        config: a plain model's recipe or config file.
        use_bank: False plays without the skill bank.
        greedy: take the likeliest tokens, in the place of sampling at `rollout.temperature`.
        chunk: episodes that are played together; None: `CHUNK`, or as many as the backend takes at once. Another number samples
            other episodes from the same seed.
        seed: of all random choices; None: the config's.
        output: `FILE.jsonl`; the settings are stored in `FILE.jsonl.json`, the cost of requests in `FILE.jsonl.usage.jsonl`.
            None: nothing is stored.
        progress: reports episodes, success, tokens and cost.

    Raises:
        SkillTTRLError: there is no such policy, environment, split or type; `output` holds something else; every episode failed;
            or the budget is spent (`BudgetError`).
        Interrupted: a signal came; every finished chunk is stored where there is an `output`.
    """
    progress = progress or SilentProgress()
    env_id = resolve_env(selection.env)
    refuse_split({**env_kwargs(overrides, env_id), **selection.kwargs})
    found = resolve_target(source, overrides, config=config, use_bank=use_bank)
    selection = selection.made({**env_kwargs(overrides, env_id, found.config), **selection.kwargs})
    usage = None if output is None else Path(f"{lines_of(Path(output))}.{USAGE}")
    with track_usage(usage, found.config.endpoints) as ledger, ledger.phase("collect"):
        own = found.config.seed if seed is None else seed
        collection = Collection(selection, found.name, own, output, progress)
        playing = in_env(found, selection.env, selection.kwargs, overrides)
        collected = _collect(playing, collection, _sampling(playing.config, greedy=greedy), chunk, use_bank=use_bank)
    for line in usage_lines(ledger.report()):
        progress.notice(line)
    return collected


def collect_for_run(path: Path, config: SkillTTRLConfig, progress: Progress) -> Collected:
    """The policy that `config.collect.agent` names plays the training tasks of a run; see `collect.collect_into`.

    What it costs stands in the ledger that the run has opened.
    """
    selection, source = training_selection(config), config.collect.agent
    if config.collect.epsilon:
        raise ConfigError(
            f"collect.epsilon works with scripted agents, but collect.agent={source} is a policy. Set it to 0; raise "
            "rollout.temperature for more variety."
        )
    own = None if is_trained(source) else config.model_dump(mode="json")
    found = resolve_target(source, config=own)
    collection = Collection(selection, found.name, config.seed, path, progress)
    playing = in_env(found, selection.env, selection.kwargs)
    return _collect(playing, collection, _sampling(playing.config), None, use_bank=True)


def _sampling(config: SkillTTRLConfig, *, greedy: bool = False) -> Sampling:
    """Sampling of a policy's rollouts, or of the likeliest tokens."""
    return Sampling.of(config.rollout, 0.0 if greedy else None)


def _collect(
    found: EvalTarget, collection: Collection, sampling: Sampling, chunk: int | None, *, use_bank: bool
) -> Collected:
    config, per_task = found.config, collection.selection.rollouts_per_task
    if chunk is not None and chunk < 1:
        raise ConfigError(f"chunk must be at least 1, found {chunk}.")
    size = chunk or min(CHUNK, config.rollout.max_batch_size)
    units = collection.selection.units(collection.progress)
    depends_on = {
        "model": found.fingerprint(),
        "config": {name: value for name, value in decisive(config).items() if name != "env"},
        "sampling": asdict(sampling),
        "chunk": size,
        "skill_bank": use_bank and config.skills is not None,
    }
    tasks = [task for task, attempt in units if attempt == 0]
    draw = SamplingPass("", per_task, sampling, collection.seed)
    plan = list(split_into_chunks(tasks, draw, max(1, size // per_task), lines_per_task=per_task, lines=len(units)))

    def play(writer: EpisodeWriter) -> int:
        meter = _Meter(current_ledger())
        with open_sampler(found, {"": tasks}, collection.progress, use_bank=use_bank, chunks=len(plan)) as sampler:
            _play(sampler, plan, writer, meter)
        return meter.tokens

    return collection.run(units, {"policy": depends_on}, play)


def _play(sampler: Sampler, plan: Sequence[Chunk], writer: EpisodeWriter, meter: _Meter) -> None:
    """Play the chunks that are not whole yet."""

    def on_episode(trajectory: Trajectory) -> None:
        meter.add(trajectory)
        writer.show(episode_result(trajectory), meter.figures())

    def reported(chunk: Chunk, there: int) -> bool:
        """True if each episode is reported as it ends: all of them are new and will be kept."""
        return not there and chunk.lines == len(chunk.tasks) * chunk.draw.rollouts_per_task

    def sample(left: Sequence[tuple[Chunk, int]]) -> Generator[list[Group]]:
        listeners = [on_episode if reported(*each) else meter.add for each in left]
        return sampler.sample([chunk for chunk, _ in left], listeners)

    def take(chunk: Chunk, there: int, groups: list[Group]) -> None:
        played = [trajectory for group in groups for trajectory in group.trajectories]
        for trajectory in played[there : chunk.lines]:
            line, outcome = written(trajectory)
            if not reported(chunk, there):
                writer.show(outcome, meter.figures())
            writer.add(line, outcome)
        if writer.write():
            current_ledger().settle()

    sample_chunks(plan, len(writer.outcomes), sample, take, writer.leaving)


class _Meter:
    """Tokens and cost while episodes are played."""

    def __init__(self, ledger: Ledger) -> None:
        self.tokens = 0
        """Tokens that the policy has written; for a remote policy, in requests that were answered."""
        self._ledger, self._before = ledger, ledger.totals()
        self._began = time.perf_counter()

    def add(self, trajectory: Trajectory) -> None:
        self.tokens += sum(
            step.completion.num_sampled_tokens for step in trajectory.steps if step.completion is not None
        )

    def figures(self) -> dict[str, float]:
        spent = self._ledger.totals()
        self.tokens = max(self.tokens, spent.tokens_out - self._before.tokens_out)  # a remote model may return no ids
        rate = {"tokens/s": self.tokens / max(time.perf_counter() - self._began, 1e-9)}
        return rate | ({"cost": spent.cost} if spent.cost else {})

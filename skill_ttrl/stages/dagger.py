"""The DAgger phase: the policy plays, an expert labels each state with the action it would take, and the policy imitates that.

Episodes of the expert show only states that the expert visits; here the policy decides which states are visited (DAgger, Ross et
al. 2011, arXiv 1011.0686). `dagger.jsonl` stores the episodes of all rounds, with the expert's advice next to every step. The buffer
is built from that file, so a resumed run learns from the episodes of the stopped one.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean

import numpy as np

from skill_ttrl.agents.agent import Agent
from skill_ttrl.agents.scripted import ScriptedAgent, make_scripted_agent
from skill_ttrl.config import SFTConfig, SkillTTRLConfig
from skill_ttrl.data.episodes import read_episodes
from skill_ttrl.envs import resolve_env
from skill_ttrl.errors import DataError
from skill_ttrl.llm.backend import Sampling
from skill_ttrl.rl.batch import EncodedDemonstration
from skill_ttrl.rl.sft_learner import batch_selector
from skill_ttrl.rollout.rollout import refuse_failure
from skill_ttrl.rollout.scripted import ADVICE
from skill_ttrl.stages.inputs.demonstrate import scene_at
from skill_ttrl.stages.setup.encode import agent_of, encode_advised, refuse_too_long
from skill_ttrl.stages.sft import fine_tune
from skill_ttrl.stages.training.metrics import episode_metrics, several_types
from skill_ttrl.stages.training.run import RolloutWorker, Run
from skill_ttrl.stages.training.state import PhaseState, save, stop_if_requested
from skill_ttrl.types import Group, Task, Trajectory, derive_seed, to_json

PHASE = "dagger"
ROUNDS = "dagger_round"
"""Names the figures of the rounds in `metrics.jsonl`; those of the updates are under the phase."""
EPISODES = "dagger.jsonl"
"""The episodes of all rounds, one a line, with the expert's advice in the `info` of each step."""
CHUNK = 128
"""Most episodes that are played together. Another number draws other samples."""
TEMPERATURES = (0.0, 0.7, 0.4)
"""Sampling temperatures, shared out among the episodes of a round; 0 is greedy."""
DEMONSTRATIONS = 0.5
"""Share of a round's examples that are demonstrations of the cold start; the others are of the policy's own episodes."""


def imitate_expert(run: Run, demonstrations: Sequence[EncodedDemonstration]) -> None:
    """Run all rounds, from where a resumed run stopped; `demonstrations` are what the cold start imitates."""
    config, parts = run.config.dagger, run.components
    buffer: list[EncodedDemonstration] | None = None
    before = 0
    for number, steps in enumerate(config.round_steps):
        if run.resumed.steps_done(PHASE) < before + steps:
            if buffer is None:
                buffer = encode(run, played(run))
            buffer += encode(run, play_round(run, number, before))
            parts.backend.sleep()
            own = round_config(run.config, steps)
            if not buffer:
                raise DataError(f"The expert {run.config.collect.agent} advised no possible action in any episode.")
            data = mixed(buffer, demonstrations, own, derive_seed(run.config.seed, PHASE, number))
            batch_of = batch_selector(data, own, derive_seed(run.config.seed, PHASE, "batches", number))
            shown = f"DAgger round {number + 1}: learn"
            fine_tune(run, PHASE, shown, own, batch_of, save_every=own.save_steps, before=before)
        before += steps


def round_config(config: SkillTTRLConfig, steps: int) -> SFTConfig:
    """Settings of the supervised learner in a round: those of the cold start, its schedule over the round's own steps."""
    return config.sft.model_copy(update={"steps": steps, "lr_restart_at": None, "shuffle": True})


def mixed(
    buffer: Sequence[EncodedDemonstration],
    demonstrations: Sequence[EncodedDemonstration],
    config: SFTConfig,
    seed: int,
) -> list[EncodedDemonstration]:
    """The examples of a round: the buffer, as often as its updates come round to it, and so many demonstrations that they are
    `DEMONSTRATIONS` of the whole. Each pass over the buffer has other demonstrations, as long as there are others: few of them, seen
    again and again, would be learnt by heart.
    """
    count = round(len(buffer) * DEMONSTRATIONS / (1 - DEMONSTRATIONS)) if demonstrations else 0
    budget, each, shown = config.steps * config.batch_size, float(len(buffer)), 1.0
    if config.batch_tokens is not None:
        budget, each = config.steps * config.batch_tokens, float(sum(map(_length, buffer)))
        shown = fmean(map(_length, demonstrations)) if demonstrations else 0.0
    passes = max(1, math.ceil(budget / (each + count * shown)))
    rng, drawn = np.random.default_rng(seed), list[int]()
    while len(drawn) < passes * count:
        drawn += rng.permutation(len(demonstrations))[: passes * count - len(drawn)].tolist()
    return [*buffer] * passes + [demonstrations[place] for place in drawn]


def _length(example: EncodedDemonstration) -> int:
    return len(example.prompt_ids) + len(example.response_ids)


def encode(run: Run, trajectories: Sequence[Trajectory]) -> list[EncodedDemonstration]:
    """The episodes as examples of what the expert would have done."""
    parts = run.components
    tagged = run.config.agent.action_parser != "none"
    encoded = encode_advised(parts.policy.tokenizer, agent_of(parts), trajectories, tagged=tagged)
    if encoded:
        refuse_too_long(parts, encoded, "The longest episode")
    return encoded


def played(run: Run) -> list[Trajectory]:
    """The episodes that the run has played so far."""
    path = run.folder.path / EPISODES
    return list(read_episodes(path)) if path.is_file() and path.stat().st_size else []


def count_lines(path: Path) -> int:
    """Lines of a file; 0 where there is none."""
    if not path.is_file():
        return 0
    with path.open("rb") as stream:
        return sum(1 for _ in stream)


@dataclass(frozen=True)
class Chunk:
    """Episodes of a round that are played together."""

    first: int
    """Number of its first episode among those of all rounds."""
    tasks: list[Task]
    temperature: float


def chunks_of_round(config: SkillTTRLConfig, tasks: Sequence[Task], number: int) -> Iterator[Chunk]:
    """The chunks of a round. Each pass over the tasks is one order drawn from the run's seed; rounds go on where the last one ended."""
    count = config.dagger.episodes
    start = number * count
    drawn: list[Task] = []
    while len(drawn) < count:
        epoch, offset = divmod(start + len(drawn), len(tasks))
        order = np.random.default_rng(derive_seed(config.seed, PHASE, "tasks", epoch)).permutation(len(tasks))
        drawn += [tasks[place] for place in order[offset : offset + count - len(drawn)]]
    bounds = [place * count // len(TEMPERATURES) for place in range(len(TEMPERATURES) + 1)]
    for temperature, begin, end in zip(TEMPERATURES, bounds[:-1], bounds[1:], strict=True):
        for first in range(begin, end, CHUNK):
            yield Chunk(start + first, drawn[first : min(first + CHUNK, end)], temperature)


def play_round(run: Run, number: int, before: int) -> list[Trajectory]:
    """Have the policy play what is missing of a round's episodes, and save them; gives the episodes that were played now.

    Raises:
        Interrupted: a signal came; the chunks that are whole are saved.
    """
    config, parts = run.config, run.components
    there = count_lines(run.folder.path / EPISODES)
    left = [chunk for chunk in chunks_of_round(config, parts.train_tasks, number) if chunk.first >= there]
    if not left:
        return []
    shown, state = f"DAgger round {number + 1}: play", PhaseState(PHASE, before)
    parts.worker.update_weights(before)
    adviser = partial(make_scripted_agent, config.collect.agent, resolve_env(config.env.id), config.agent)
    worker = parts.worker.with_bank(parts.bank.view())
    run.progress.start(shown, config.dagger.episodes, "episode", max(0, there - number * config.dagger.episodes))
    began, found = time.perf_counter(), list[Trajectory]()
    for chunk in left:
        found += play_chunk(run, worker, chunk, adviser)
        done = chunk.first + len(chunk.tasks) - number * config.dagger.episodes
        run.progress.advance(shown, done, round_metrics(found, config, agent_of(parts), by_type=False))
        if run.stop.signum is not None:
            save(run, state)
            stop_if_requested(run, state)
    run.progress.finish(shown)
    whole = found if there <= number * config.dagger.episodes else played(run)[number * config.dagger.episodes :]
    run.log.log(ROUNDS, number, round_metrics(whole, config, agent_of(parts), by_type=several_types(parts.train_tasks)))
    run.log.time(ROUNDS, number, {"seconds": time.perf_counter() - began})
    save(run, state)
    return found


def play_chunk(run: Run, worker: RolloutWorker, chunk: Chunk, adviser: partial[ScriptedAgent]) -> list[Trajectory]:
    """Play a chunk, and append its episodes to the buffer's file."""
    sampling = replace(Sampling.of(run.config.rollout), temperature=chunk.temperature)
    seed = derive_seed(run.config.seed, PHASE, "rollout", chunk.first)
    groups = worker.generate_rollouts(chunk.tasks, 1, sampling, seed, adviser=adviser)
    if refuse_failure(groups):
        run.warn(f"Some rollouts failed in {chunk.tasks[0].env_id}; {EPISODES} has each error.")
    episodes = [trajectory for group in groups for trajectory in group.trajectories]
    run.folder.append_jsonl(EPISODES, [to_json(each) for each in episodes])
    return episodes


def round_metrics(
    episodes: Sequence[Trajectory], config: SkillTTRLConfig, agent: Agent, *, by_type: bool
) -> dict[str, float]:
    """Metrics of episodes that the policy played, and how often it did what the expert would have done."""
    metrics = episode_metrics([Group(each.task, (each,)) for each in episodes], config, by_type=by_type)
    metrics["failed_rollouts"] = fmean(each.error is not None for each in episodes)
    advised = [
        (step.action, advised_action(agent, each, place))
        for each in episodes
        for place, step in enumerate(each.steps)
        if ADVICE in step.info
    ]
    if advised:
        metrics["expert_agreement"] = fmean(action == advice for action, advice in advised)
        if agent.writes_form:
            metrics["expert_action_not_written"] = fmean(advice is None for _, advice in advised)
    return metrics


def advised_action(agent: Agent, trajectory: Trajectory, place: int) -> str | None:
    """The action that the expert advised at a step, as the policy could have meant it; None: its form of actions has none."""
    advice = str(trajectory.steps[place].info[ADVICE])
    if not agent.writes_form:
        return advice
    scene = scene_at(trajectory, place, ())
    written = agent.answer(advice, scene)
    return None if written is None else agent.read(written, scene, constrained=True).action

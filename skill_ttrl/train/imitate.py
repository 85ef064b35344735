"""The phases that imitate: the cold start on demonstrations, DAgger, and the baseline that imitates the majority's samples."""

from __future__ import annotations

import math
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from skill_ttrl.agents.scripted import ScriptedAgent, make_scripted_agent
from skill_ttrl.config import SFTConfig
from skill_ttrl.data.episodes import read_episodes
from skill_ttrl.envs import resolve_env
from skill_ttrl.errors import DataError
from skill_ttrl.llm.backend import Sampling
from skill_ttrl.rl.batch import EncodedDemonstration
from skill_ttrl.rl.parallel.driver import make_learner
from skill_ttrl.rl.sft_learner import batch_selector
from skill_ttrl.rollout.episode import ADVICE
from skill_ttrl.rollout.rollout import refuse_failure
from skill_ttrl.runs.episode_logs import DAGGERED
from skill_ttrl.storage.jsonl import parse_json
from skill_ttrl.train.encode import Encoded, agent_of, encode_advised, refuse_too_long, scene_at
from skill_ttrl.train.metrics import answer_metrics, episode_metrics, group_metrics, several_types
from skill_ttrl.train.results import NO_SKILLS
from skill_ttrl.train.run import RolloutWorker, Run, TrainingComponents, warn_of_undecided_answers
from skill_ttrl.train.state import (
    PhaseState,
    StepTimer,
    load_learner,
    record_step,
    save,
    save_if_due,
    skipped_too_often,
    step_tasks,
    stop_if_requested,
    watch_updates,
)
from skill_ttrl.types import Group, Task, Trajectory, VoteResult, derive_seed, to_json
from skill_ttrl.voting import VoteHistory, batch_majority_vote, vote_metrics
from skill_ttrl.voting.rewards import CONTROLS, REWARDS

SFT, DAGGER, VOTE_SFT = "sft", "dagger", "vote_sft"
"""The phases in files."""
COLD_START, PLAY, LEARN = "cold start", "DAgger round {}: play", "DAgger round {}: learn"
"""The first of them, and the parts of a round of the second, as progress shows them."""


def cold_start(run: Run, demonstrations: Encoded) -> None:
    """Train on (clean, noisy) demonstrations for `sft.steps` steps; the first `noise_free_fraction` of them see no noise."""
    config = run.config.sft
    clean, noisy = (batch_selector(data, config, run.config.seed) for data in demonstrations)

    def batch_of(step: int) -> list[EncodedDemonstration]:
        batch = (clean if step < config.noise_free_fraction * config.steps else noisy)(step)
        return [whole(each) for each in batch] if step < config.prompt_loss_fraction * config.steps else batch

    fine_tune(run, SFT, COLD_START, config, batch_of)


def fine_tune(
    run: Run,
    phase: str,
    shown: str,
    config: SFTConfig,
    batch_of: Callable[[int], Sequence[EncodedDemonstration]],
    before: int = 0,
    **options: float,
) -> None:
    """Take `config.steps` supervised steps, less those of the checkpoint of a resumed run.

    Args:
        run: the run.
        phase: its phase, in files.
        shown: the phase as progress shows it.
        config: of the learner.
        batch_of: gives the demonstrations of a step.
        before: steps of the phase that come before the first of these.
        options: of the learner (`SFTLearner`).

    Raises:
        TrainingError: see `training.state.skipped_too_often`; the run is saved.
    """
    parts = run.components
    done = max(0, run.resumed.steps_done(phase) - before)
    if done < config.steps:
        state = PhaseState(phase, before + done, learner := make_learner(parts.driver, config, **options))
        if done:
            load_learner(run)
        run.progress.start(shown, config.steps, "step", done)
        for step in range(done, config.steps):
            run.warn.place = (phase, before + step)
            began, cpu_began = time.perf_counter(), time.process_time()
            metrics = learner.step(batch_of(step), step, seed=run.config.seed)
            run.log.log(phase, before + step, metrics)
            seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - cpu_began
            run.log.time(phase, before + step, {"seconds": seconds, "cpu_seconds": cpu_seconds})
            run.progress.advance(shown, step + 1, metrics)
            state.step = before + step + 1
            due = step + 1 == config.steps or (step + 1) % run.config.sft.save_steps == 0
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


# DAgger: the policy plays, an expert labels each state with the action it would take, and the policy imitates that.
#
# Episodes of the expert show only states that the expert visits; here the policy decides which states are visited (DAgger, Ross et
# al. 2011, arXiv 1011.0686). `dagger.jsonl` stores the episodes of all rounds, with the expert's advice next to every step. The buffer
# is built from that file, so a resumed run learns from the episodes of the stopped one.

ROUNDS = "dagger_round"
"""Names the figures of the rounds in `metrics.jsonl`; those of the updates are under the phase."""
CHUNK = 128
"""Most episodes that are played together. Another number draws other samples."""
TEMPERATURES = (0.0, 0.7, 0.4)
"""Sampling temperatures, shared out among the episodes of a round; 0 is greedy."""


def imitate_expert(run: Run, demonstrations: Sequence[EncodedDemonstration]) -> None:
    """Run all rounds, from where a resumed run stopped; `demonstrations` are what the cold start imitates."""
    config, parts = run.config.dagger, run.components
    buffer: list[EncodedDemonstration] | None = None
    before = 0
    for number, steps in enumerate(config.round_steps):
        if run.resumed.steps_done(DAGGER) < before + steps:
            if buffer is None:
                buffer = encode(run, played(run))
            buffer += encode(run, play_round(run, number, before))
            parts.backend.sleep()
            # The settings of the cold start, with the schedule over the round's own steps.
            own = run.config.sft.model_copy(update={"steps": steps, "lr_restart_at": None, "shuffle": True})
            if not buffer:
                raise DataError(f"The expert {run.config.collect.agent} advised no possible action in any episode.")
            data = mixed(buffer, demonstrations, own, derive_seed(run.config.seed, DAGGER, number))
            batch_of = batch_selector(data, own, derive_seed(run.config.seed, DAGGER, "batches", number))
            fine_tune(run, DAGGER, LEARN.format(number + 1), own, batch_of, before)
        before += steps


def mixed(
    buffer: Sequence[EncodedDemonstration], demonstrations: Sequence[EncodedDemonstration], config: SFTConfig, seed: int
) -> list[EncodedDemonstration]:
    """The examples of a round: the buffer, as often as its updates come round to it, and as many demonstrations. Each pass over the
    buffer has other demonstrations, as long as there are others: few of them, seen again and again, would be learnt by heart.
    """
    count = len(buffer) if demonstrations else 0
    budget, each, shown = config.steps * config.batch_size, float(len(buffer)), 1.0
    if config.batch_tokens is not None:
        budget, each = config.steps * config.batch_tokens, float(sum(example.length for example in buffer))
        shown = fmean(example.length for example in demonstrations) if demonstrations else 0.0
    passes = max(1, math.ceil(budget / (each + count * shown)))
    rng, drawn = np.random.default_rng(seed), list[int]()
    while len(drawn) < passes * count:
        drawn += rng.permutation(len(demonstrations))[: passes * count - len(drawn)].tolist()
    return [*buffer] * passes + [demonstrations[place] for place in drawn]


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
    path = run.folder.path / DAGGERED
    return list(read_episodes(path)) if path.is_file() and path.stat().st_size else []


@dataclass(frozen=True)
class Chunk:
    """Episodes of a round that are played together."""

    first: int
    """Number of its first episode among those of all rounds."""
    tasks: list[Task]
    temperature: float


def chunks_of_round(count: int, seed: int, tasks: Sequence[Task], number: int) -> Iterator[Chunk]:
    """The chunks of a round. Each pass over the tasks is one order drawn from the run's seed; a round continues where the last one ended."""
    start = number * count
    drawn: list[Task] = []
    while len(drawn) < count:
        epoch, offset = divmod(start + len(drawn), len(tasks))
        order = np.random.default_rng(derive_seed(seed, DAGGER, "tasks", epoch)).permutation(len(tasks))
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
    file = run.folder.path / DAGGERED
    there = file.read_bytes().count(b"\n") if file.is_file() else 0
    every = chunks_of_round(config.dagger.episodes, config.seed, parts.train_tasks, number)
    left = [chunk for chunk in every if chunk.first >= there]
    if not left:
        return []
    shown, state = PLAY.format(number + 1), PhaseState(DAGGER, before)
    run.warn.place = (ROUNDS, number)
    parts.worker.update_weights(before)
    adviser = partial(make_scripted_agent, config.collect.agent, resolve_env(config.env.id), config.agent)
    worker = parts.worker.with_bank(parts.bank_view())
    run.progress.start(shown, config.dagger.episodes, "episode", max(0, there - number * config.dagger.episodes))
    began, found = time.perf_counter(), list[Trajectory]()
    for chunk in left:
        found += play_chunk(run, worker, chunk, adviser)
        done = chunk.first + len(chunk.tasks) - number * config.dagger.episodes
        run.progress.advance(shown, done, round_metrics(found, parts, by_type=False))
        if run.stop.signum is not None:
            save(run, state)
            stop_if_requested(run, state)
    run.progress.finish(shown)
    whole = found if there <= number * config.dagger.episodes else played(run)[number * config.dagger.episodes :]
    run.log.log(ROUNDS, number, round_metrics(whole, parts, by_type=several_types(parts.train_tasks)))
    run.log.time(ROUNDS, number, {"seconds": time.perf_counter() - began})
    save(run, state)
    return found


def play_chunk(run: Run, worker: RolloutWorker, chunk: Chunk, adviser: partial[ScriptedAgent]) -> list[Trajectory]:
    """Play a chunk, and append its episodes to the buffer's file."""
    sampling = replace(Sampling.of(run.config.rollout), temperature=chunk.temperature)
    seed = derive_seed(run.config.seed, DAGGER, "rollout", chunk.first)
    groups = worker.generate_rollouts(chunk.tasks, 1, sampling, seed, adviser=adviser)
    if refuse_failure(groups):
        run.warn(f"Some rollouts failed in {chunk.tasks[0].env_id}; {DAGGERED} has each error.")
    episodes = [trajectory for group in groups for trajectory in group.trajectories]
    run.folder.append_jsonl(DAGGERED, [to_json(each) for each in episodes])
    return episodes


def round_metrics(episodes: Sequence[Trajectory], parts: TrainingComponents, *, by_type: bool) -> dict[str, float]:
    """Metrics of episodes that the policy played, and how often it did what the expert would have done."""
    agent, groups = agent_of(parts), [Group(each.task, (each,)) for each in episodes]
    metrics = episode_metrics(groups, parts.config, by_type=by_type, tools=bool(agent.offered))
    metrics["failed_rollouts"] = fmean(each.error is not None for each in episodes)
    advised = list[tuple[str, str | None]]()
    for each in episodes:
        for place, step in enumerate(each.steps):
            if ADVICE in step.info:
                advice: str | None = str(step.info[ADVICE])
                if agent.writes_form:  # as the policy could have meant it; None: its form of actions has none
                    scene = scene_at(each, place, ())
                    written = agent.answer(str(advice), scene)
                    advice = None if written is None else agent.read(written, scene, constrained=True).action
                advised.append((step.action, advice))
    if advised:
        metrics["expert_agreement"] = fmean(action == advice for action, advice in advised)
        if agent.writes_form:
            metrics["expert_action_not_written"] = fmean(advice is None for _, advice in advised)
    return metrics


# The fair baseline of label-free reinforcement: sample as much, vote, and imitate the samples that agree.
#
# That is self-training on the majority's samples (LMSI, Huang et al. 2022, arXiv 2210.11610) at the samples of the rl phase of
# the same config: `rl.steps` rounds over the same prompts in the same order, `rollout.n_votes_per_prompt` samples each, all
# drawn from the policy as it is at the start. What reinforcement gains beyond this is what its fresh samples and its
# negative examples are worth. With `rl.reward=random` or `format` the phase imitates what a coin or the form of the answer
# chooses: its controls.
#
# The steps of the phase are first those rounds, then the optimizer's. What is imitated is read back from
# `trajectories.jsonl`, where each sample that agrees has the reward 1: the ids that were sampled, nothing is tokenised again.

WARMUP_RATIO = 0.03
"""Share of the optimizer's steps."""
SAMPLING, LEARNING = "vote SFT: sample", "vote SFT: learn"


def imitate_majority(run: Run) -> None:
    """Run the whole phase, from where a resumed run stopped, measured before and after as RL training is."""
    backend, worker = run.components.backend, run.components.worker
    worker.update_weights(0)  # a cold start or a checkpoint may have changed the weights
    run.evaluate("before")
    sample_and_vote(run)
    backend.sleep()
    worker.update_weights(learn(run))
    run.evaluate("after")
    if run.components.bank:
        run.evaluate(NO_SKILLS, use_bank=False)


def sample_and_vote(run: Run) -> None:
    """Run the rounds of the phase. The weights stay as they are."""
    config, parts = run.config, run.components
    rounds, done = config.rl.steps, min(run.resumed.steps_done(VOTE_SFT), config.rl.steps)
    history = VoteHistory.from_state(run.resumed.state["votes"]) if 0 < done < rounds else VoteHistory()
    state = VoteRounds(VOTE_SFT, done, history=history)
    roll_out = parts.worker.rollout_fn(config.rollout.n_votes_per_prompt)
    run.progress.start(SAMPLING, rounds, "round", done)
    for step in range(done, rounds):
        run.warn.place = (VOTE_SFT, step)
        clock = StepTimer(run.progress, SAMPLING, parts.accelerator)
        tasks = step_tasks(parts.train_tasks, config.rl.prompts_per_step, step, config.seed)
        with clock("sample"):
            groups = roll_out(tasks, parts.bank_view(), derive_seed(config.seed, "rollout", step))
        if refuse_failure(groups):
            run.warn(f"Some rollouts failed in {tasks[0].env_id}; trajectories.jsonl has each error.")
        with clock("vote"):
            votes = batch_majority_vote(group.answers for group in groups)
        seed = derive_seed(config.seed, "reward", step)
        groups = [g.with_rewards(chosen(config.rl.reward, g, v, seed)) for g, v in zip(groups, votes, strict=True)]
        metrics = history.record({g.task.id: v for g, v in zip(groups, votes, strict=True)})
        metrics |= group_metrics(groups) | answer_metrics(groups, votes) | vote_metrics(votes)
        metrics |= run.meter.label_metrics(groups, votes, config.rollout.n_votes_per_prompt)
        record_step(run, VOTE_SFT, step, groups, votes, metrics, trajectories=True)  # they are what is learned from
        run.progress.advance(SAMPLING, step + 1, metrics)
        warn_of_undecided_answers(run.warn, f"round {step}", groups)
        times = clock.stop()
        run.log.time(VOTE_SFT, step, {name: times[name] for name in ("seconds", "sample_seconds")})
        state.step = step + 1
        save_if_due(run, state, due=state.step == rounds or state.step % config.rl.save_steps == 0)
    run.progress.finish(SAMPLING)


def chosen(reward: str, group: Group, vote: VoteResult, seed: int) -> list[float]:
    """1 for each sample that is imitated: it agrees with its majority, or in a control the control's reward chooses it."""
    if reward in CONTROLS:
        return list(REWARDS.get(reward)(group, vote, seed))
    return [float(match) for match in vote.matches]


@dataclass(kw_only=True)
class VoteRounds(PhaseState):
    """The rounds that are done, and their votes."""

    history: VoteHistory

    def state_dict(self) -> dict[str, Any]:
        """The votes."""
        return {"votes": self.history.state_dict()}


def learn(run: Run) -> int:
    """Fine-tune on the samples that agree; gives the number of optimizer steps."""
    data = list(agreeing(run.folder.path / "trajectories.jsonl"))
    if not data:
        run.warn("No sample gave an answer, so there was nothing to imitate.")
        return 0
    own, rl = run.config.vote_sft, run.config.rl
    steps = math.ceil(own.passes * len(data) / own.batch_size)  # the last one is filled from a further shuffle
    config = SFTConfig(
        steps=steps,
        batch_size=own.batch_size,
        micro_batch_size=rl.micro_batch_size,
        learning_rate=own.learning_rate,
        betas=rl.betas,
        warmup_steps=round(WARMUP_RATIO * steps),
    )
    batch_of = batch_selector(data, config, run.config.seed)
    options = {"weight_decay": rl.weight_decay, "grad_clip": rl.grad_clip}
    labels = ["after", *([NO_SKILLS] if run.components.bank else [])]
    run.progress.plan({LEARNING: steps} | {f"evaluate {label}": run.evaluation_rollouts for label in labels})
    fine_tune(run, VOTE_SFT, LEARNING, config, batch_of, rl.steps, **options)
    return config.steps


def agreeing(trajectories: Path) -> Iterator[EncodedDemonstration]:
    """Each turn of each sample that agreed with its majority, as it was sampled; what was inserted is not learnt."""
    if not trajectories.exists():  # a phase of no rounds
        return
    with trajectories.open("rb") as stream:
        for line in stream:
            tried = parse_json(line)
            if tried["phase"] != VOTE_SFT or tried["reward"] != 1.0:
                continue
            for turn in tried["steps"]:
                done = turn["completion"]
                if done is not None and done["token_ids"]:
                    prompt, sampled = array("l", turn["prompt_ids"]), array("l", done["token_ids"])
                    yield EncodedDemonstration(prompt, sampled, done["completion_mask"])

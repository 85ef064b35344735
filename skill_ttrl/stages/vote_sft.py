"""The fair baseline of label-free reinforcement: sample as much, vote, and imitate the samples that agree.

That is self-training on the majority's samples (LMSI, Huang et al. 2022, arXiv 2210.11610) at the samples of the rl phase of
the same config: `rl.steps` rounds over the same prompts in the same order, `rollout.n_votes_per_prompt` samples each, all
drawn from the policy as it is at the start. What reinforcement gains beyond this is what its fresh samples and its
negative examples are worth.

The steps of the phase are first those rounds, then the optimiser's. What is imitated is read back from
`trajectories.jsonl`, where each sample that agrees has the reward 1: the ids that were sampled, nothing is tokenised again.
"""

from __future__ import annotations

import json
import math
import time
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path

from skill_ttrl.answers import grade_answer
from skill_ttrl.config import SFTConfig, SkillTTRLConfig
from skill_ttrl.rl.batch import EncodedDemonstration
from skill_ttrl.rl.sft_learner import SFTLearner
from skill_ttrl.rollout.rollout import refuse_failure
from skill_ttrl.runs.checkpoint import load_tensors
from skill_ttrl.runs.records import trajectory_lines, vote_line
from skill_ttrl.stages.rl import BANK_OFF, answer_figures, group_figures, label_figures, step_tasks, warn_of_given_up
from skill_ttrl.stages.sft import batch_indices
from skill_ttrl.stages.training.context import Run
from skill_ttrl.stages.training.stopping import skipped_too_often, watch_updates
from skill_ttrl.types import Group, VoteResult, derive_seed
from skill_ttrl.voting import VoteHistory, batch_majority_vote, vote_metrics

PHASE = "vote_sft"
SAMPLING, LEARNING = "vote SFT: sample", "vote SFT: learn"


def imitate_majority(run: Run) -> None:
    """The whole phase, from where a resumed run stopped, measured before and after as the rl phase is."""
    run.bench.backend.sync(0)  # a cold start or a checkpoint may have changed the weights
    run.evaluate("before")
    draw(run)
    run.bench.backend.rest()
    learned = learn(run)
    run.bench.backend.sync(learned)
    run.evaluate("after")
    if run.bench.bank is not None and run.bench.bank.config.use:
        run.evaluate(BANK_OFF, bank_off=True)


def draw(run: Run) -> None:
    """Sample and vote: the rounds of the phase. The weights stay as they are."""
    bench, config = run.bench, run.config
    rounds, done = config.rl.steps, min(run.steps_done(PHASE), config.rl.steps)
    history = VoteHistory.from_state(run.resumed_state["votes"]) if 0 < done < rounds else VoteHistory()
    run.progress.start(SAMPLING, rounds, "round", done)
    for step in range(done, rounds):
        began = time.perf_counter()
        tasks = step_tasks(bench.train_tasks, config.rl.prompts_per_step, step, config.seed)
        run.progress.enter(SAMPLING, "sample")
        seed = derive_seed(config.seed, "rollout", step)
        groups = bench.play(tasks, config.rollout.n_votes_per_prompt, bench.sampling, seed)
        if refuse_failure(groups):
            run.warn(f"Some tries fail in {tasks[0].env_id}: each error is in trajectories.jsonl.")
        sampled = time.perf_counter()
        run.progress.enter(SAMPLING, "vote")
        votes = batch_majority_vote(group.answers for group in groups)
        groups = [g.with_rewards([float(match) for match in v.matches]) for g, v in zip(groups, votes, strict=True)]
        figures = history.record({g.task.id: v for g, v in zip(groups, votes, strict=True)})
        figures |= group_figures(groups) | answer_figures(groups, votes) | vote_metrics(votes)
        figures |= label_figures(groups, votes, bench.references)
        record(run, step, groups, votes, figures)
        warn_of_given_up(run, f"round {step}", groups)
        now = time.perf_counter()
        run.log.time(PHASE, step, {"seconds": now - began, "sample_seconds": sampled - began})
        finished = step + 1
        if finished == rounds or finished % config.rl.checkpoint_every == 0 or run.stop.signum is not None:
            run.checkpoint(PHASE, finished, state={"votes": history.state_dict()}, tensors={})
            run.stop_if_requested(PHASE, finished)
    run.progress.finish(SAMPLING)


def record(
    run: Run, step: int, groups: Sequence[Group], votes: Sequence[VoteResult], figures: dict[str, float]
) -> None:
    """Write a round down and show it. The trajectories are what is learned from: they are always kept."""
    truths = [run.bench.references.get(group.task.id) for group in groups]
    right = [
        None if truth is None else grade_answer(vote.answer, truth)["score"] == 1.0
        for vote, truth in zip(votes, truths, strict=True)
    ]
    lines = [line for group in groups for line in trajectory_lines(PHASE, step, group)]
    run.folder.append_jsonl("trajectories.jsonl", lines)
    run.folder.append_jsonl(
        "votes.jsonl",
        [vote_line(PHASE, step, g.task.id, v, correct=c) for g, v, c in zip(groups, votes, right, strict=True)],
    )
    run.log.log(PHASE, step, figures)
    run.progress.advance(SAMPLING, step + 1, figures)


def learn(run: Run) -> int:
    """Fine-tune on the samples that agree; how many optimiser steps that took."""
    config, rounds = run.config, run.config.rl.steps
    run.folder.check_unchanged("trajectories.jsonl")
    data = list(agreeing(run.folder.path / "trajectories.jsonl"))
    if not data:
        run.warn("No sample agrees with a majority, because none gave an answer: there was nothing to imitate.")
        return 0
    settings = learner_config(config, len(data))
    done = max(0, run.steps_done(PHASE) - rounds)
    learner = SFTLearner(run.bench.policy, settings, run.bench.accelerator)
    if done and run.resumed is not None:
        learner.load_state_dict(load_tensors(run.resumed.path)["learner"])
    run.progress.start(LEARNING, settings.steps, "step", done)
    for step in range(done, settings.steps):
        began = time.perf_counter()
        chosen = [data[place] for place in batch_indices(len(data), settings, step, config.seed)]
        figures = learner.step(chosen, step, seed=config.seed)
        run.log.log(PHASE, rounds + step, figures)
        run.log.time(PHASE, rounds + step, {"seconds": time.perf_counter() - began})
        finished = step + 1
        run.progress.advance(LEARNING, finished, figures)
        last = finished == settings.steps
        failed = watch_updates(run, PHASE, rounds + step, figures)
        if failed or last or finished % config.vote_sft.checkpoint_every == 0 or run.stop.signum is not None:
            run.checkpoint(PHASE, rounds + finished, state={}, tensors={"learner": learner.state_dict()})
            run.stop_if_requested(PHASE, rounds + finished)
        if failed:
            raise failed
    if (failed := skipped_too_often(run, PHASE, ended=True)) is not None:
        raise failed
    run.progress.finish(LEARNING)
    return settings.steps


def learner_config(config: SkillTTRLConfig, samples: int) -> SFTConfig:
    """What the supervised learner is told: `passes` over so many samples, the last step filled from a further shuffle."""
    own, rl = config.vote_sft, config.rl
    steps = math.ceil(own.passes * samples / own.batch_size)
    return SFTConfig(
        steps=steps,
        batch_size=own.batch_size,
        micro_batch_size=rl.micro_batch_size,
        learning_rate=own.learning_rate,
        betas=rl.betas,
        weight_decay=rl.weight_decay,
        warmup_steps=round(own.warmup_ratio * steps),
        schedule=own.schedule,
        min_lr_ratio=own.min_lr_ratio,
        grad_clip=rl.grad_clip,
    )


def agreeing(trajectories: Path) -> Iterator[EncodedDemonstration]:
    """Each turn of each sample that agreed with its majority, as it was sampled; what was inserted is not learnt."""
    if not trajectories.exists():  # a phase of no rounds
        return
    with trajectories.open("rb") as stream:
        for line in stream:
            tried = json.loads(line)
            if tried["phase"] != PHASE or tried["reward"] != 1.0:
                continue
            for turn in tried["steps"]:
                done = turn["completion"]
                if done is not None and done["token_ids"]:
                    prompt, sampled = array("l", turn["prompt_ids"]), array("l", done["token_ids"])
                    yield EncodedDemonstration(prompt, sampled, done["mask"])

"""The fair baseline of label-free reinforcement: sample as much, vote, and imitate the samples that agree.

That is self-training on the majority's samples (LMSI, Huang et al. 2022, arXiv 2210.11610) at the samples of the rl phase of
the same config: `rl.steps` rounds over the same prompts in the same order, `rollout.n_votes_per_prompt` samples each, all
drawn from the policy as it is at the start. What reinforcement gains beyond this is what its fresh samples and its
negative examples are worth. With `rl.reward=random` or `format` the phase imitates what a coin or the form of the answer
chooses: its controls.

The steps of the phase are first those rounds, then the optimizer's. What is imitated is read back from
`trajectories.jsonl`, where each sample that agrees has the reward 1: the ids that were sampled, nothing is tokenised again.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from skill_ttrl.config import SFTConfig, SkillTTRLConfig
from skill_ttrl.rl.batch import EncodedDemonstration
from skill_ttrl.rl.sft_learner import batch_selector
from skill_ttrl.rollout.rollout import refuse_failure
from skill_ttrl.stages.evaluation.results import NO_SKILLS
from skill_ttrl.stages.sft import fine_tune
from skill_ttrl.stages.training.metrics import answer_metrics, group_metrics
from skill_ttrl.stages.training.run import Run, warn_of_undecided_answers
from skill_ttrl.stages.training.sampling import StepTimer, step_tasks
from skill_ttrl.stages.training.state import PhaseState, record_step, save_if_due
from skill_ttrl.storage.jsonl import parse_json
from skill_ttrl.types import Group, VoteResult, derive_seed
from skill_ttrl.voting import VoteHistory, batch_majority_vote, vote_metrics
from skill_ttrl.voting.rewards import CONTROLS, REWARDS

PHASE = "vote_sft"
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
    rounds, done = config.rl.steps, min(run.resumed.steps_done(PHASE), config.rl.steps)
    history = VoteHistory.from_state(run.resumed.state["votes"]) if 0 < done < rounds else VoteHistory()
    state = VoteRounds(PHASE, done, history=history)
    roll_out = parts.worker.rollout_fn(config.rollout.n_votes_per_prompt)
    run.progress.start(SAMPLING, rounds, "round", done)
    for step in range(done, rounds):
        clock = StepTimer(run.progress, SAMPLING, parts.accelerator)
        tasks = step_tasks(parts.train_tasks, config.rl.prompts_per_step, step, config.seed)
        with clock("sample"):
            groups = roll_out(tasks, parts.bank.view(), derive_seed(config.seed, "rollout", step))
        if refuse_failure(groups):
            run.warn(f"Some rollouts failed in {tasks[0].env_id}; trajectories.jsonl has each error.")
        with clock("vote"):
            votes = batch_majority_vote(group.answers for group in groups)
        seed = derive_seed(config.seed, "reward", step)
        groups = [g.with_rewards(chosen(config.rl.reward, g, v, seed)) for g, v in zip(groups, votes, strict=True)]
        metrics = history.record({g.task.id: v for g, v in zip(groups, votes, strict=True)})
        metrics |= group_metrics(groups) | answer_metrics(groups, votes) | vote_metrics(votes)
        metrics |= run.meter.label_metrics(groups, votes, config)
        record_step(run, PHASE, step, groups, votes, metrics, trajectories=True)  # they are what is learned from
        run.progress.advance(SAMPLING, step + 1, metrics)
        warn_of_undecided_answers(run.warn, f"round {step}", groups)
        times = clock.stop()
        run.log.time(PHASE, step, {name: times[name] for name in ("seconds", "sample_seconds")})
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
    run.folder.check_unchanged("trajectories.jsonl")
    data = list(agreeing(run.folder.path / "trajectories.jsonl"))
    if not data:
        run.warn("No sample gave an answer, so there was nothing to imitate.")
        return 0
    config = learner_config(run.config, len(data))
    fine_tune(
        run,
        PHASE,
        LEARNING,
        config,
        batch_selector(data, config, run.config.seed),
        save_every=run.config.sft.save_steps,
        before=run.config.rl.steps,
    )
    return config.steps


def learner_config(config: SkillTTRLConfig, samples: int) -> SFTConfig:
    """Settings of the supervised learner: `passes` over so many samples, the last step filled from a further shuffle."""
    own, rl = config.vote_sft, config.rl
    steps = math.ceil(own.passes * samples / own.batch_size)
    return SFTConfig(
        steps=steps,
        batch_size=own.batch_size,
        micro_batch_size=rl.micro_batch_size,
        learning_rate=own.learning_rate,
        betas=rl.betas,
        warmup_steps=round(WARMUP_RATIO * steps),
    )


def agreeing(trajectories: Path) -> Iterator[EncodedDemonstration]:
    """Each turn of each sample that agreed with its majority, as it was sampled; what was inserted is not learnt."""
    if not trajectories.exists():  # a phase of no rounds
        return
    with trajectories.open("rb") as stream:
        for line in stream:
            tried = parse_json(line)
            if tried["phase"] != PHASE or tried["reward"] != 1.0:
                continue
            for turn in tried["steps"]:
                done = turn["completion"]
                if done is not None and done["token_ids"]:
                    prompt, sampled = array("l", turn["prompt_ids"]), array("l", done["token_ids"])
                    yield EncodedDemonstration(prompt, sampled, done["completion_mask"])

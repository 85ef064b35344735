"""The state of a phase, which a checkpoint holds and a resumed run restores; and what a step leaves in the run's folder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skill_ttrl.errors import BudgetError, EndpointError, SkillTTRLError, TrainingError
from skill_ttrl.llm.backends import backend_facts
from skill_ttrl.rl.learn import UpdateRecord, UpdateRule
from skill_ttrl.rl.learner import Learner
from skill_ttrl.rl.parallel.commands import Objects, call
from skill_ttrl.rl.parallel.learner import DriverLearner, DriverSFTLearner, load_state, save_state
from skill_ttrl.runs.checkpoint import load_tensors, save_checkpoint
from skill_ttrl.runs.model_card import model_card
from skill_ttrl.runs.records import SampleRecord, trajectory_lines, vote_line
from skill_ttrl.signals import RESUME, Interrupted
from skill_ttrl.skills.evolution import Evolver
from skill_ttrl.stages.training.ahead import RolloutsAhead
from skill_ttrl.stages.training.bank_gate import BankGate, make_gate
from skill_ttrl.stages.training.run import Run
from skill_ttrl.stages.training.votes import GreedyBaseline, VoteManager
from skill_ttrl.types import Group, Trajectory, VoteResult

if TYPE_CHECKING:
    from skill_ttrl.stages.optimizing.bank_text import BankText

RL = "rl"


@dataclass
class PhaseState:
    """State of a phase in a checkpoint, apart from the weights, the version of the bank and the warnings."""

    phase: str
    step: int
    """Steps of the phase that are done."""
    learner: Learner | DriverSFTLearner | None = None

    def state_dict(self) -> dict[str, Any]:
        """The part that JSON can hold."""
        return {}


@dataclass(kw_only=True)
class RLState(PhaseState):
    """Learner, votes, evolution, gate and step."""

    learner: Learner
    rule: UpdateRule
    votes: VoteManager
    greedy: GreedyBaseline
    evolution: Evolver | None
    gate: BankGate | None = None
    text: BankText | None = None
    """Editor of the texts in the bank (`optimize.every`)."""
    task_batches: int = 0
    """Batches of tasks that were drawn: the steps, or more where a step draws several (`rl.dynamic_sampling`)."""
    ahead: RolloutsAhead | None = None
    """Rollouts of later steps that are in flight (`rl.max_staleness`)."""

    @classmethod
    def restore(cls, run: Run, evolution: Evolver | None, text: BankText | None = None) -> RLState:
        """The state to start from: that of the checkpoint of a resumed run."""
        config, parts, resumed = run.config, run.components, run.resumed
        step = resumed.steps_done(RL)
        if (config.rl.kl_coef > 0 or config.rl.kl_in_reward) and {"sft", "dagger"} & {*config.phases}:
            # The cold start's policy: without its adapters it would be the bare base.
            parts.driver.run(call, "policy", "refresh_reference")
        whole_episodes = config.agent.context_mode == "episode"
        longest = config.rollout.max_new_tokens * (config.agent.max_turns if whole_episodes else 1)
        learner = DriverLearner(parts.driver, config.rl, total_steps=config.rl.steps, max_response_tokens=longest)
        rule = UpdateRule(config.rl, sampler_is_learner=backend_facts(config).is_learner, join=whole_episodes)
        if step:
            load_learner(run)
            rule.load_state_dict(resumed.state)
        votes = VoteManager(parts, resumed.state if step else {})
        greedy = GreedyBaseline(parts.worker, required="greedy" in rule.requires)
        gate = make_gate(parts, resumed.state if step else {})
        state = cls(
            RL, step, learner=learner, rule=rule, votes=votes, greedy=greedy, evolution=evolution, gate=gate, text=text
        )
        state.task_batches = int(resumed.state.get("task_batches", step)) if step else 0
        return state

    def state_dict(self) -> dict[str, Any]:
        """Update rule, votes, evolution, text edits, gate, and where in the tasks the run is."""
        drawn = {} if self.task_batches == self.step else {"task_batches": self.task_batches}
        evolution = {} if self.evolution is None else {"evolve": self.evolution.state_dict()}
        text = {} if self.text is None else {"optimize": self.text.state_dict()}
        gate = {} if self.gate is None else {"gate": self.gate.state_dict()}
        return {**self.rule.state_dict(), **self.votes.state_dict(), **evolution, **text, **gate, **drawn}


def record_step(
    run: Run,
    phase: str,
    step: int,
    groups: Sequence[Group],
    votes: Sequence[VoteResult],
    metrics: Mapping[str, float],
    *,
    trajectories: bool,
    update: UpdateRecord | None = None,
) -> None:
    """Record a step's votes and metrics, and where asked for its trajectories.

    Args:
        run: Whose folder is written.
        phase: Its phase.
        step: Step of the phase.
        groups: All rollouts of the step, rewarded.
        votes: The vote of each group.
        metrics: Of the step.
        trajectories: Record each rollout, with its scores and advantages.
        update: What the update made of those of the rollouts that were trained on.
    """
    labelled = run.meter.labelled(groups, votes)
    if trajectories:
        records = sample_records(groups, run.meter.original_scores(labelled), update)
        rows = zip(groups, records, strict=True)
        lines = [line for group, row in rows for line in trajectory_lines(phase, step, group, row)]
        run.folder.append_jsonl("trajectories.jsonl", lines)
    right = run.meter.correctness(groups, votes)
    known = [
        None if group.task.labels is None or group.task.labels.ground_truth is None else group.task.labels
        for group in labelled
    ]
    run.folder.append_jsonl(
        "votes.jsonl",
        [
            vote_line(phase, step, group.task.id, vote, correct=correct, labels=labels)
            for group, vote, correct, labels in zip(groups, votes, right, known, strict=True)
        ],
    )
    run.log.log(phase, step, metrics)


def sample_records(
    groups: Sequence[Group],
    originals: Sequence[Sequence[float | None]],
    update: UpdateRecord | None = None,
) -> list[list[SampleRecord]]:
    """Put the pseudo score, the original score and the advantages of each rollout side by side; see `record_step`."""
    trained = () if update is None else update.trajectories
    places = {id(each): place for place, each in enumerate(trained)}

    def record(trajectory: Trajectory, original: float | None) -> SampleRecord:
        place = places.get(id(trajectory))
        if update is None or place is None:
            rescored = update is not None and update.rescored
            return SampleRecord(None if rescored else trajectory.reward, original)
        shares = update.gradient_shares[place] if update.gradient_shares else None
        stopped = update.stopped_tokens[place] if update.stopped_tokens else None
        advantages = update.advantages[place]
        if all(value is None for value in advantages):  # out of the loss
            return SampleRecord(update.scores[place], original, None, shares, stopped)
        return SampleRecord(update.scores[place], original, advantages, shares, stopped)

    return [
        [record(each, original) for each, original in zip(group.trajectories, row, strict=True)]
        for group, row in zip(groups, originals, strict=True)
    ]


def save(run: Run, state: PhaseState) -> None:
    """Save a checkpoint from which `state.phase` continues after `state.step` steps."""
    driver, config = run.components.driver, run.config
    # The newest measurement may be of earlier weights than these: its label goes along.
    measured = list(run.meter.evaluations.values())
    save_checkpoint(
        run.folder,
        state.phase,
        state.step,
        # Every rank writes its part; the driver alone writes the rest, and gives the folder its name.
        write=lambda folder: driver.run(save_state, folder, learner=state.learner is not None),
        state={**state.state_dict(), **run.components.bank.state_dict(), "warnings": run.warn.texts},
        keep=config.run.save_total_limit,
        card=model_card(
            config,
            phase=state.phase,
            step=state.step,
            evaluations=[asdict(found) for found in (*measured[:1], *measured[1:][-1:])],
        ),
    )
    run.ledger.settle()


def load_learner(run: Run) -> None:
    """Restore the learner, on every rank, from the checkpoint that the run resumes from."""
    assert run.resumed.checkpoint is not None
    run.components.driver.run(read_learner, run.resumed.checkpoint.path)


def read_learner(objects: Objects, folder: Path) -> None:
    """Command: restore this rank's learner from a checkpoint."""
    load_state(objects, folder, load_tensors(folder)["learner"])


def save_if_due(run: Run, state: PhaseState, *, due: bool, failed: TrainingError | None = None) -> None:
    """Close a step: save where that is `due`, a signal came or the phase has `failed`; then leave where it is to.

    Raises:
        Interrupted: a signal came.
        TrainingError: `failed`.
    """
    if due or failed is not None or run.stop.signum is not None:
        save(run, state)
        stop_if_requested(run, state)
    if failed is not None:
        raise failed


def stop_if_requested(run: Run, state: PhaseState) -> None:
    """Leave here if a signal asked for it; the caller has just saved a checkpoint.

    Raises:
        Interrupted: with the exit code of the signal.
    """
    if run.stop.signum is not None:
        raise Interrupted(
            f"Interrupted after {state.phase} step {state.step}; saved in {run.folder.path}. {RESUME}",
            run.stop.signum,
        )


@contextmanager
def checkpoint_on_error(run: Run, state: PhaseState, *others: type[SkillTTRLError]) -> Iterator[None]:
    """Save the finished steps where the budget ends, a server no longer answers, or a signal ends an evaluation; then raise.

    `others`: further errors to save on.

    Raises:
        BudgetError, EndpointError, Interrupted: as they came.
    """
    caught: tuple[type[BaseException], ...] = (BudgetError, EndpointError, Interrupted, *others)
    try:
        yield
    except caught:
        if state.step and not (run.folder.checkpoints / f"{state.phase}-{state.step:06d}").is_dir():
            save(run, state)
        if state.step:
            stop_if_requested(run, state)  # then this is why nothing was waited for
        raise

"""The state of a phase, which a checkpoint holds and a resumed run restores; and what a step leaves in the run's folder."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from skill_ttrl.config import RLConfig
from skill_ttrl.errors import BudgetError, EndpointError, RunFolderError, SkillTTRLError, TrainingError
from skill_ttrl.llm.backends import backend_facts
from skill_ttrl.llm.hand_over import LEFT, PLACE
from skill_ttrl.progress import Progress
from skill_ttrl.rl.learner import GpuMemoryMonitor, LocalLearner, UpdateRecord, UpdateRule
from skill_ttrl.rl.parallel.driver import LEARNER, RanksLearner, Replica, make_learner
from skill_ttrl.rl.policy import Policy
from skill_ttrl.rl.sft_learner import SFTLearner
from skill_ttrl.runs.checkpoint import load_tensors, model_card, save_checkpoint
from skill_ttrl.runs.episode_logs import Place
from skill_ttrl.runs.folder import SampleRecord, trajectory_lines, vote_line
from skill_ttrl.signals import RESUME, Interrupted
from skill_ttrl.skills.evolution import Evolver
from skill_ttrl.skills.retrieval import BankView
from skill_ttrl.train.bank_changes import BankGate, BankText, make_gate
from skill_ttrl.train.run import OnRolloutEnd, RolloutFn, Run, TrainingComponents, ignore, stopped_by
from skill_ttrl.types import Group, Task, Trajectory, VoteResult, derive_seed
from skill_ttrl.voting import VoteHistory, ballot_of, batch_majority_vote, batch_vote, requires
from skill_ttrl.voting.strategies import SEQUENTIAL, SequentialTest

if TYPE_CHECKING:
    from accelerate import Accelerator


RL = "rl"


@dataclass
class PhaseState:
    """State of a phase in a checkpoint, apart from the weights, the version of the bank and the warnings."""

    phase: str
    step: int
    """Steps of the phase that are done."""
    learner: LocalLearner | SFTLearner | RanksLearner | None = None

    def state_dict(self) -> dict[str, Any]:
        """The part that JSON can hold."""
        return {}


@dataclass(kw_only=True)
class RLState(PhaseState):
    """Learner, votes, evolution, gate and step."""

    learner: LocalLearner | RanksLearner
    rule: UpdateRule
    votes: VoteManager
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
        referred = config.rl.kl_coef > 0 or config.rl.kl_in_reward
        if (referred and {"sft", "dagger"} & {*config.phases}) or config.rl.stops_collapse:
            # The cold start's policy: without its adapters it would be the bare base. And what `collapse` gives back.
            parts.driver.run(Replica.on_policy, Policy.refresh_reference)
        agent = parts.worker.agent
        whole_episodes = config.agent.whole_episodes or bool(agent.offered) or agent.program is not None
        longest = config.rollout.max_new_tokens * (config.agent.max_turns if whole_episodes else 1)
        learner = make_learner(parts.driver, config.rl, total_steps=config.rl.steps, max_response_tokens=longest)
        rule = UpdateRule(config.rl, sampler_is_learner=backend_facts(config).is_learner, join=whole_episodes)
        if step:
            load_learner(run)
        saved = resumed.state if step else {}
        votes, gate = VoteManager(parts, saved), make_gate(parts, saved)
        state = cls(RL, step, learner=learner, rule=rule, votes=votes, evolution=evolution, gate=gate, text=text)
        state.task_batches = int(saved.get("task_batches", step))
        return state

    def state_dict(self) -> dict[str, Any]:
        """Votes, evolution, text edits, and where in the tasks the run is."""
        drawn = {} if self.task_batches == self.step else {"task_batches": self.task_batches}
        evolution = {} if self.evolution is None else {"evolve": self.evolution.state_dict()}
        text = {} if self.text is None else {"optimize": self.text.state_dict()}
        return {"votes": self.votes.history.state_dict(), **evolution, **text, **drawn}


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
        if run.log.tracker is not None:
            run.log.tracker.show(phase, step, groups[0], records[0])
    right = run.meter.correctness(groups, votes)
    lines = [
        vote_line(phase, step, group.task.id, vote, correct=correct, labels=group.task.labels)
        for group, vote, correct in zip(labelled, votes, right, strict=True)
    ]
    run.folder.append_jsonl("votes.jsonl", lines)
    run.log.log(phase, step, metrics)
    if groups and (last := groups[-1].trajectories):
        run.progress.rollout(Place(phase, step, len(last) - 1).episode(groups[-1].task.id), last[-1])


def sample_records(
    groups: Sequence[Group], originals: Sequence[Sequence[float | None]], update: UpdateRecord | None = None
) -> list[list[SampleRecord]]:
    """Put the pseudo score, the original score and the advantages of each rollout side by side; see `record_step`."""
    trained = () if update is None else update.trajectories
    places = {id(each): place for place, each in enumerate(trained)}

    def record(trajectory: Trajectory, original: float | None) -> SampleRecord:
        place = places.get(id(trajectory))
        if update is None or place is None:
            return SampleRecord(trajectory.reward, original)
        advantages = update.advantages[place]
        out_of_loss = all(value is None for value in advantages)
        return SampleRecord(update.scores[place], original, None if out_of_loss else advantages)

    return [
        [record(each, original) for each, original in zip(group.trajectories, row, strict=True)]
        for group, row in zip(groups, originals, strict=True)
    ]


def save(run: Run, state: PhaseState) -> None:
    """Save a checkpoint from which `state.phase` continues after `state.step` steps."""
    driver, config, bank = run.components.driver, run.config, run.components.bank
    save_checkpoint(
        run.folder,
        state.phase,
        state.step,
        # Every rank writes its part; the driver alone writes the rest, and gives the folder its name.
        write=lambda folder: driver.run(Replica.save, folder, learner=state.learner is not None),
        state={**state.state_dict(), **(bank.state_dict() if bank is not None else {}), "warnings": run.warn.texts},
        keep=config.run.save_total_limit,
        card=model_card(config, phase=state.phase, step=state.step),
    )
    run.ledger.settle()


def load_learner(run: Run) -> None:
    """Restore the learner, on every rank, from the checkpoint that the run resumes from."""
    assert run.resumed.checkpoint is not None
    run.components.driver.run(read_learner, run.resumed.checkpoint.path)


def read_learner(replica: Replica, folder: Path) -> None:
    """Restore this rank's learner from a checkpoint."""
    replica.load_learner(folder, load_tensors(folder)[LEARNER])


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
            f"Interrupted after {state.phase} step {state.step}; saved in {run.folder.path}. {RESUME}", run.stop.signum
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


# Rollouts that run ahead of the learner (`rl.max_staleness`): sampled in threads, taken in order.
#
# A step's rollouts are started while earlier steps are learned from, but never across a checkpoint or an evaluation: there nothing is in flight, so
# that a run which goes on from it does what it would have done.


LEAVE_S = 10.0
"""Longest wait, in seconds, for the turns in flight of a run that leaves."""


@dataclass(frozen=True, slots=True)
class Rollouts:
    """Rollouts of one batch of tasks, before they are rewarded."""

    groups: list[Group]
    seconds: float
    """Wall time of the sampling."""


Prepare = Callable[[int], Callable[[], Rollouts]]
"""Called in the main thread with the number of a step; the function that it gives rolls it out, in another thread."""


def next_barrier(rl: RLConfig, step: int) -> int:
    """Steps that are done at the first checkpoint, evaluation or end of the phase after `step` of them: nothing is in flight there."""
    periods = (rl.save_steps,) if rl.eval_steps is None else (rl.save_steps, rl.eval_steps)
    return min(rl.steps, *((step // period + 1) * period for period in periods))


class RolloutsAhead:
    """The rollouts in flight, by step.

    With `rl.in_flight_updates` all of them are sampled at the same time, else one step after the other. Their threads are daemons: the process
    ends without one whose environment hangs.
    """

    def __init__(self, rl: RLConfig, update_weights: Callable[[int], None], prepare: Prepare) -> None:
        self._rl, self._update_weights, self._prepare = rl, update_weights, prepare
        self._running: dict[int, Future[Rollouts]] = {}
        self._threads: dict[int, threading.Thread] = {}
        self._left = threading.Event()

    def take(self, step: int) -> Rollouts:
        """Wait for the rollouts of a step, after `step` updates; those of the steps that may run ahead are started.

        Raises:
            BaseException: what ended them.
        """
        for later in range(step, min(step + self._rl.max_staleness + 1, next_barrier(self._rl, step))):
            if later not in self._running:
                self._start(later)
        found = self._running[step].result()
        del self._running[step], self._threads[step]
        return found

    def hand_over(self, policy_version: int) -> None:
        """Hand the learner's weights to the sampler: between two turns, or once nothing is in flight (`rl.in_flight_updates`)."""
        if not self._rl.in_flight_updates:
            wait(self._running.values())
        self._update_weights(policy_version)

    def _start(self, step: int) -> None:
        roll_out = self._prepare(step)
        before = None if self._rl.in_flight_updates else self._running.get(step - 1)
        future = self._running[step] = Future[Rollouts]()

        def carry_out() -> None:
            if before is not None:
                wait([before])
            try:
                future.set_result(roll_out())
            except BaseException as error:  # passed on to whoever takes them, also a signal or an exit
                future.set_exception(error)

        context = copy_context()
        context.run(LEFT.set, self._left)
        context.run(PLACE.set, step)
        thread = self._threads[step] = threading.Thread(
            target=context.run, args=(carry_out,), name=f"rollouts-{step}", daemon=True
        )
        thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Drop the rollouts in flight, after an error or a stop rule: they end at their next turn, or are left alone after `LEAVE_S`."""
        self._left.set()
        until = time.monotonic() + LEAVE_S
        for thread in self._threads.values():
            thread.join(max(0.0, until - time.monotonic()))


# A training step: its tasks, and the wall time of its parts.


def step_tasks(tasks: Sequence[Task], count: int, step: int, seed: int) -> list[Task]:
    """The tasks of one step, all different: each epoch is one order drawn from the run's seed, cut into whole steps.

    What does not fill a last step is left to the next epochs' orders.
    """
    epoch, place = divmod(step, len(tasks) // count)
    order = np.random.default_rng(derive_seed(seed, "tasks", epoch)).permutation(len(tasks))
    return [tasks[position] for position in order[place * count : (place + 1) * count]]


class StepTimer:
    """Wall time of the parts of one step, and on a GPU the memory that it took."""

    def __init__(self, progress: Progress, phase: str, accelerator: Accelerator) -> None:
        self._progress, self._phase = progress, phase
        self._memory = GpuMemoryMonitor(accelerator.device)
        self._began, self._cpu_began = time.perf_counter(), time.process_time()
        self._seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, part: str) -> Iterator[None]:
        """Time a part, and show it as what the phase is at. Parts of one name add up."""
        self._memory.sample()
        self._progress.enter(self._phase, part)
        began = time.perf_counter()
        yield
        self._seconds[f"{part}_seconds"] = self._seconds.get(f"{part}_seconds", 0.0) + time.perf_counter() - began

    def add(self, part: str, seconds: float) -> None:
        """Count a part that another thread did, wall time of its own; it does not add up with the others to the whole step."""
        self._seconds[f"{part}_seconds"] = seconds

    def stop(self) -> dict[str, float]:
        """Seconds of each part, `seconds` of the whole step, of all cores together `cpu_seconds`, and GPU memory."""
        self._memory.sample()
        whole = {"seconds": time.perf_counter() - self._began, "cpu_seconds": time.process_time() - self._cpu_began}
        return {**self._seconds, **whole, **self._memory.metrics()}


# Ending the training of a run: stopping rules, and updates that are skipped too often.


LEFT_OUT = "Updates were skipped because the loss or gradient was not finite"
"""Begins the warning of them, which a run gives once."""
MAX_SKIPPED = 20
"""Updates in a row that are not finite, after which a phase ends with an error."""


def remaining_steps(run: Run, state: PhaseState) -> Iterator[int]:
    """The steps to do, up to `rl.steps` or to where a stopping rule ends the run; each has to raise `state.step`."""
    config, first = run.config.rl, 1  # of a resumed run all steps are checked, then each new one
    while state.step < config.steps and stopped_by(run.log.rows(state.phase), config, state.step, first) is None:
        run.warn.place = (state.phase, state.step)
        yield state.step
        first = state.step


def skipped_too_often(run: Run, phase: str, *, ended: bool) -> TrainingError | None:
    """Why `phase` cannot continue: its newest updates were all left out, `MAX_SKIPPED` of them or, where the phase has
    `ended`, all that there were. None: it can.
    """
    rows = [row for row in run.log.rows(phase) if "skipped_updates" in row]
    in_a_row = 0
    for row in reversed(rows):
        if row.get("updates", 1 - row["skipped_updates"]):
            break
        in_a_row += int(row["skipped_updates"])
    every = ended and in_a_row > 0 and in_a_row == sum(row["skipped_updates"] for row in rows)
    if not every and in_a_row < MAX_SKIPPED:
        return None
    found = "All updates" if every else f"The last {in_a_row} updates"
    return TrainingError(
        f"{found} of the phase {phase} were skipped because loss or gradient was not finite, so nothing is learned. Check the "
        f"loss, the learning rate and runtime.precision (docs/learner.md). Everything so far is saved in {run.folder.path}."
    )


def watch_updates(run: Run, state: PhaseState, step: int) -> TrainingError | None:
    """Warn of the first skipped update, and return an error if the phase must stop after this step (`skipped_too_often`)."""
    if state.learner is None:
        return None
    if state.learner.skipped:
        what = f"first in step {step} of {state.phase}: {state.learner.skipped[0]}"
        run.warn(f"{LEFT_OUT}, {what}. Metric: skipped_updates.", once=LEFT_OUT)
    return skipped_too_often(run, state.phase, ended=False)


# Votes in training: the rollouts that vote, and what a step's votes are.


BASE = "votes of the base"


class VoteManager:
    """The votes of a run.

    Args:
        components: what generates the rollouts.
        state: trainer state of a checkpoint to resume from; empty for a new run.
    """

    rollout: RolloutFn
    """Rolls out each task `n_votes_per_prompt` times, or until it is decided."""

    def __init__(self, components: TrainingComponents, state: Mapping[str, Any]) -> None:
        config, worker = components.config, components.worker
        self.history = VoteHistory.from_state(state["votes"]) if "votes" in state else VoteHistory()
        self.chosen = name, options = config.vote.chosen
        self._plain = self.rollout = worker.rollout_fn(config.rollout.n_votes_per_prompt)
        if name == SEQUENTIAL:
            self.rollout = in_rounds(worker.rollout_fn, config.rollout.n_votes_per_prompt, SequentialTest(**options))

    def compute_votes(self, groups: Sequence[Group]) -> list[VoteResult]:
        """Compute one vote per group. Does not update `history`; the caller does when it logs the step."""
        ballots = [ballot_of(group, self.history.base_answers.get(group.task.id)) for group in groups]
        name, options = self.chosen
        return batch_vote(name, ballots, options)

    def ask_base(self, run: Run, steps: Iterable[Sequence[Task]], done: int) -> None:
        """Sample each task's answers from the policy before training, once, where the strategy needs them.

        A run resumed after `done` steps has them in its state.

        Raises:
            RunFolderError: it does not; the policy is another one by now.
        """
        if "base_answers" not in requires(*self.chosen):
            return
        given = self.history.base_answers
        tasks = list({task.id: task for step in steps for task in step if task.id not in given}.values())
        if not tasks:
            return
        if done:
            raise RunFolderError(
                f"{run.folder.path} was begun by an earlier version and lacks the answers before training, which vote.strategy="
                f"{self.chosen[0]} needs. Start again in another --output."
            )
        size, bank = run.config.rl.prompts_per_step, run.components.bank_view()
        run.progress.start(BASE, len(tasks), "prompt")
        leaving = f"Interrupted during the {BASE}, which will start over. {RESUME}"
        for start in range(0, len(tasks), size):
            seed = derive_seed(run.config.seed, "base-votes", start)
            with run.stop.interruptible(leaving):
                groups = self._plain(tasks[start : start + size], bank, seed)
            given |= {group.task.id: list(group.answers) for group in groups}
            run.progress.advance(BASE, len(given), {})
        run.progress.finish(BASE)


def in_rounds(rollout_fn: Callable[[int], RolloutFn], most: int, test: SequentialTest) -> RolloutFn:
    """Roll out each task, at most `most` times, until `test` says that its majority is decided.

    Each round has a seed of its own; a task's environment has the same in all of them.
    """

    def roll_out(
        tasks: Sequence[Task], bank: BankView | None, seed: int, on_rollout_end: OnRolloutEnd = ignore
    ) -> list[Group]:
        groups = [Group(task, ()) for task in tasks]
        places, drawn = list(range(len(tasks))), 0
        for look in test.looks(most):
            undecided_tasks = [_seeded(tasks[place], seed) for place in places]
            found = rollout_fn(look - drawn)(undecided_tasks, bank, derive_seed(seed, "round", drawn), on_rollout_end)
            for place, group in zip(places, found, strict=True):
                groups[place] = replace(groups[place], trajectories=groups[place].trajectories + group.trajectories)
            drawn = look
            votes = batch_majority_vote(groups[place].answers for place in places)
            counts = [[count for _, count in vote.classes] for vote in votes]
            undecided = (not test.decided(row, most - drawn) for row in counts)
            places = [place for place, needed in zip(places, undecided, strict=True) if needed]
            if not places:
                break
        return groups

    return roll_out


def _seeded(task: Task, seed: int) -> Task:
    """The task with a seed for its environment, which is its own where it has one."""
    return task if task.seed is not None else replace(task, seed=derive_seed(seed, "env", task.id))

"""A run in progress: the parts that act, the meter, which alone holds true answers, and what its phases share besides."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from skill_ttrl.agents.agent import Agent, AgentInput
from skill_ttrl.agents.scripted import ScriptedAgent
from skill_ttrl.answers import correct, grade_answer
from skill_ttrl.config import RLConfig, SkillTTRLConfig
from skill_ttrl.errors import DocumentError
from skill_ttrl.llm.backend import Backend, Sampling, wait_for
from skill_ttrl.llm.backends import backend_facts
from skill_ttrl.llm.openai.ledger import Ledger
from skill_ttrl.progress import Progress
from skill_ttrl.rollout.episode import EnvPool
from skill_ttrl.rollout.outcome import TaskSamples
from skill_ttrl.rollout.rollout import RolloutSettings, Schedule, rollout
from skill_ttrl.runs.checkpoint import Checkpoint
from skill_ttrl.runs.episode_logs import EVAL_TRAJECTORIES
from skill_ttrl.runs.folder import WARNINGS, MetricsLog, RunFolder, SampleRecord, Warned, eval_line, trajectory_lines
from skill_ttrl.signals import RESUME, StopSignal
from skill_ttrl.skills.retrieval import BankView
from skill_ttrl.train.measure import correctness, draw_samples, evaluate_samples, evaluation_draws, play_controls
from skill_ttrl.train.metrics import COLLAPSE, TRIPWIRE_RULE, stop_step
from skill_ttrl.train.results import Evaluation
from skill_ttrl.train.run_bank import RunBank
from skill_ttrl.train.tasks import ConfigTasks
from skill_ttrl.types import Group, Task, Trajectory, VoteResult, derive_seed, to_json
from skill_ttrl.voting import apply_original_gt, apply_ttrl_gt, given_up, label_metrics, trained_metrics

if TYPE_CHECKING:
    from accelerate import Accelerator

    from skill_ttrl.rl.parallel.driver import Driver
    from skill_ttrl.rl.policy import Policy
    from skill_ttrl.train.rollout_workers import RayWorkers


OnRolloutEnd = Callable[[Trajectory], None]


def ignore(trajectory: Trajectory) -> None:
    """The `OnRolloutEnd` that does nothing."""


RolloutFn = Callable[..., list[Group]]
"""`f(tasks, bank, seed, on_rollout_end)` rolls out each task several times with the policy as it is now; one group a task, in order. Every
rollout sees the same frozen `bank`, or none; `on_rollout_end` is called with each as it ends."""


@dataclass(frozen=True)
class Batch:
    """Tasks whose rollouts are sampled together."""

    tasks: Sequence[Task]
    n: int
    """Rollouts of each."""
    settings: RolloutSettings


@dataclass(frozen=True)
class RolloutWorker:
    """Generates rollouts: the policy's sampler, its agent and the environments."""

    config: SkillTTRLConfig
    backend: Backend
    agent: Agent
    envs: EnvPool
    others: RayWorkers | None = None
    """Sample in its place, where there are any."""

    @property
    def schedule(self) -> Schedule:
        """The order in which rollouts advance; `rollout.mode: auto` goes by the backend and the number of turns."""
        if self.config.rollout.mode != "auto":
            return self.config.rollout.mode
        return "sync" if self.config.agent.max_turns == 1 or backend_facts(self.config).blocking else "async"

    @property
    def sampling(self) -> Sampling:
        """Sampling parameters of the training."""
        return Sampling.of(self.config.rollout)

    def with_bank(self, bank: BankView | None) -> RolloutWorker:
        """The same with an agent that sees this frozen version of the bank, or none."""
        return replace(self, agent=self.agent.with_bank(bank))

    def with_document(self, document: str) -> RolloutWorker:
        """The same with another skill document at the head of its prompts; empty: without one.

        Raises:
            DocumentError: it leaves a prompt no room for the task; says how long it may be.
        """
        agent = self.agent.with_document(document)
        check_document(agent, self.backend, self.config.data.max_prompt_tokens)
        return replace(self, agent=agent, others=None)  # they do not know the document

    def generate_rollouts(
        self,
        tasks: Sequence[Task],
        n: int,
        sampling: Sampling,
        seed: int,
        *,
        on_rollout_end: OnRolloutEnd = ignore,
        adviser: Callable[[], ScriptedAgent] | None = None,
    ) -> list[Group]:
        """Roll out each task `n` times with the policy as it is now; one group a task, in order. See `RolloutFn`.

        `adviser` makes scripted agents that watch (`RolloutSettings.adviser`).
        """
        settings = RolloutSettings(
            sampling,
            seed,
            max_turns=self.config.agent.max_turns,
            max_prompt_tokens=self.config.data.max_prompt_tokens,
            constrain=self.config.agent.structured_actions,
            adviser=adviser,
            schedule=self.schedule,
            rollout_timeout_s=self.config.rollout.rollout_timeout_s,
        )
        batches = batches_of(tasks, n, settings, self.config.rollout.prompts_per_batch)
        if self.others is not None:
            return self.others.generate_rollouts(batches, self.agent.bank, on_rollout_end)
        return [group for batch in batches for group in self.sample_batch(batch, on_rollout_end)]

    def sample_batch(self, batch: Batch, on_rollout_end: OnRolloutEnd = ignore) -> list[Group]:
        """Roll out one batch in this process."""
        parts: dict[str, Any] = {"envs": self.envs, "agent": self.agent, "backend": self.backend}
        return wait_for(rollout(batch.tasks, batch.n, **parts, settings=batch.settings, on_episode=on_rollout_end))

    def update_weights(self, policy_version: int) -> None:
        """Have whatever samples take over the learner's present weights under this version number; see `Backend.update_weights`."""
        self.backend.update_weights(policy_version)
        if self.others is not None:
            self.others.update_weights(policy_version)

    def rollout_fn(self, n: int) -> RolloutFn:
        """`generate_rollouts` with `n` training samples a task."""

        def roll_out(
            tasks: Sequence[Task], bank: BankView | None, seed: int, on_rollout_end: OnRolloutEnd = ignore
        ) -> list[Group]:
            return self.with_bank(bank).generate_rollouts(tasks, n, self.sampling, seed, on_rollout_end=on_rollout_end)

        return roll_out

    def close(self) -> None:
        """Close the environments and stop what the sampler has started."""
        self.envs.close()
        self.backend.close()


@dataclass(frozen=True)
class GateTasks:
    """Tasks that changes of the bank are tested on; none of them is trained on."""

    tasks: Sequence[Task]
    envs: EnvPool
    """Environments of their own: the tasks may carry true answers, and an environment keeps what it was reset with."""


@dataclass(frozen=True)
class TrainingComponents:
    """The parts of a run that trains, made from its config by `train.build`."""

    worker: RolloutWorker
    driver: Driver
    """The ranks that learn, this process alone or several; its replica is this rank's."""
    train_tasks: Sequence[Task]
    """Without true answers."""
    bank: RunBank | None
    """None: the config has no skills."""
    gate: GateTasks | None = None
    """Tasks that changes of the bank are tested on (`skills.gate`); None: changes are not tested."""

    @property
    def config(self) -> SkillTTRLConfig:
        """The run's config."""
        return self.worker.config

    @property
    def policy(self) -> Policy:
        """The policy that learns, this rank's part of it; the sampler may live elsewhere."""
        return self.driver.replica.policy

    @property
    def accelerator(self) -> Accelerator:
        """Where this rank computes, and how precisely."""
        return self.driver.replica.accelerator

    @property
    def backend(self) -> Backend:
        """The policy's sampler."""
        return self.worker.backend

    def bank_view(self) -> BankView | None:
        """The newest version of the bank, frozen; None where none is used. A step sees it until it ends."""
        return self.bank.view() if self.bank else None

    def close(self) -> None:
        """Close the environments and the sampler."""
        self.worker.close()
        if self.gate is not None:
            self.gate.envs.close()


def batches_of(tasks: Sequence[Task], n: int, settings: RolloutSettings, size: int | None) -> list[Batch]:
    """Divide tasks into batches of `size` (`rollout.prompts_per_batch`), each with a seed of its own; None: one of them all."""
    if size is None:
        return [Batch(tasks, n, settings)]
    return [
        Batch(tasks[start : start + size], n, replace(settings, seed=derive_seed(settings.seed, "batch", start)))
        for start in range(0, len(tasks), size)
    ]


def check_document(agent: Agent, backend: Backend, max_prompt_tokens: int) -> None:
    """Check that an agent's document leaves its prompts room for a task.

    Raises:
        DocumentError: it does not; says how long it may be.
    """
    if not agent.formatter.document.strip():
        return
    # Prompts that show next to nothing of a task.
    unbounded = agent if agent.window is None else replace(agent, window=replace(agent.window, max_tokens=None))
    whole, bare = (
        backend.count(each.prompt(AgentInput("?", task="?")).messages)
        for each in (unbounded, unbounded.with_document(""))
    )
    if whole > max_prompt_tokens:
        raise DocumentError(
            f"The skill document has {whole - bare} tokens, and only {max(0, max_prompt_tokens - bare)} fit: data.max_prompt_tokens "
            f"is {max_prompt_tokens}, and the shortest prompt takes {bare}. Shorten the document, or raise data.max_prompt_tokens."
        )


Chosen = Sequence[tuple[Group, VoteResult]]
"""The samples of each prompt that are trained on, and their vote."""


@dataclass(frozen=True)
class Meter:
    """Holds the true answers and the tasks to be measured on. Nothing of it is fed back."""

    references: Mapping[str, str]
    """True answers of the training tasks, by id."""
    eval_tasks: Sequence[Task]
    """With their true answers, where there are any."""
    envs: EnvPool
    """Where true answers are known, environments of its own: one keeps what it was reset with."""
    transductive: bool
    """True if evaluation runs on the training tasks themselves."""
    evaluations: dict[str, Evaluation] = field(default_factory=dict)
    """By label, oldest first."""

    def label_metrics(self, groups: Sequence[Group], votes: Sequence[VoteResult], size: int) -> dict[str, float]:
        """Accuracy of the votes of groups of this size; empty where a task has no true answer."""
        truths = self._truths(groups)
        if truths is None:
            return {}
        return label_metrics(votes, truths, [group.answers for group in groups], size)

    def trained_metrics(self, chosen: Chosen, size: int) -> dict[str, float]:
        """`label_metrics` of the samples that were trained on (TTRL: `post_`)."""
        truths = self._truths([group for group, _ in chosen])
        if truths is None:
            return {}
        answers = [group.answers for group, _ in chosen]
        return trained_metrics([vote for _, vote in chosen], truths, answers, size)

    def labelled(self, groups: Sequence[Group], votes: Sequence[VoteResult]) -> list[Group]:
        """The groups with the true answer and the voted one as labels, the voted one in force (TTRL: `apply_ttrl_gt`)."""
        tasks = [replace(g.task, ground_truth=self.references.get(g.task.id), labels=None) for g in groups]
        return apply_ttrl_gt([replace(g, task=task) for g, task in zip(groups, tasks, strict=True)], votes)

    def original_scores(self, labelled: Sequence[Group]) -> list[list[float | None]]:
        """Score each rollout of these groups against the true answer (TTRL: `apply_original_gt`, then the reward again).

        None where the true answer is not known.
        """
        originals = apply_original_gt(labelled)
        right = iter(correct([(answer, group.task.ground_truth) for group in originals for answer in group.answers]))
        rows = [[float(next(right)) for _ in group.trajectories] for group in originals]
        return [
            [None if group.task.ground_truth is None else score for score in row]
            for group, row in zip(originals, rows, strict=True)
        ]

    def correctness(self, groups: Sequence[Group], votes: Sequence[VoteResult]) -> list[bool | None]:
        """For each vote whether its winner is the true answer; None where that is not known."""
        truths = [self.references.get(group.task.id) for group in groups]
        return [
            None if truth is None else grade_answer(vote.answer, truth)["score"] == 1.0
            for vote, truth in zip(votes, truths, strict=True)
        ]

    def evaluate(
        self, worker: RolloutWorker, label: str, bank: BankView | None, on_rollout_end: OnRolloutEnd
    ) -> tuple[Evaluation, list[TaskSamples], list[Group]]:
        """Measure the policy as it is now on the evaluation tasks, with this bank or without; for the rest see `draw_samples`."""
        config, worker = worker.config, replace(worker, envs=self.envs).with_bank(bank)
        sample = partial(worker.generate_rollouts, self.eval_tasks, on_rollout_end=on_rollout_end)
        rows, groups = draw_samples(sample, config.eval, config.rollout, config.seed)
        found = evaluate_samples(
            rows,
            label=label,
            config=config.eval,
            source=ConfigTasks(config).names[1],
            transductive=self.transductive,
            controls=play_controls(config, self.eval_tasks, self.envs, worker.agent),
        )
        return found, rows, groups

    def close(self) -> None:
        """Close its environments."""
        self.envs.close()

    def _truths(self, groups: Sequence[Group]) -> list[str] | None:
        if not all(group.task.id in self.references for group in groups):
            return None
        return [self.references[group.task.id] for group in groups]


BEFORE = "before"
"""Label of the evaluation of the policy that votes begin to train."""
GIVEN_UP = "Answers that could not be read"
"""Begins the warning of them, which a run gives once."""


@dataclass
class WarningLog:
    """Warns the user of each thing once, keeps the texts for the summary, and writes them with their place."""

    progress: Progress
    folder: RunFolder
    texts: list[str] = field(default_factory=list)
    place: tuple[str | None, int | None] = (None, None)
    """Phase and step that the run is at."""

    def __call__(self, text: str, *, once: str | None = None, tripwire: bool = False) -> None:
        """Warn, unless the same was said; `once`: unless an earlier text begins so. `tripwire`: see `Warned`."""
        if not any(each.startswith(once) if once else each == text for each in self.texts):
            self.texts.append(text)
            self.folder.append_jsonl(WARNINGS, [to_json(Warned(text, *self.place, tripwire))])
            self.progress.notice(text, warning=True)


def warn_of_undecided_answers(warn: WarningLog, where: str, groups: Sequence[Group]) -> None:
    """Warn once of many undecided answers: votes for them are split although they may be equal."""
    found = given_up(answer for group in groups for answer in group.answers)
    if found.many:
        text = f"{GIVEN_UP} ({where}): {found} Metric: undecided_answers; see docs/answers.md."
        warn(text, once=GIVEN_UP)


@dataclass(frozen=True)
class ResumePoint:
    """Where a run starts: at its checkpoint, or without one at the beginning."""

    config: SkillTTRLConfig
    checkpoint: Checkpoint | None = None
    state: Mapping[str, Any] = field(default_factory=dict)
    """Trainer state of the checkpoint."""

    def over(self, phase: str) -> bool:
        """True where the checkpoint is of a later phase."""
        order: list[str] = list(self.config.phases)
        return self.checkpoint is not None and order.index(phase) < order.index(self.checkpoint.phase)

    def steps_done(self, phase: str) -> int:
        """Steps of `phase` that the checkpoint holds: those it was saved at, or all where it is of a later phase."""
        if self.checkpoint is None:
            return 0
        if self.over(phase):
            config = self.config
            return {"sft": config.sft.steps, "dagger": sum(config.dagger.round_steps)}.get(phase, config.rl.steps)
        return self.checkpoint.step if self.checkpoint.phase == phase else 0


@dataclass(frozen=True)
class Run:
    """A run in progress."""

    components: TrainingComponents
    meter: Meter
    folder: RunFolder
    log: MetricsLog
    progress: Progress
    stop: StopSignal
    resumed: ResumePoint
    ledger: Ledger
    """Cost of its remote models, and the budget."""
    warn: WarningLog
    baseline: Evaluation | None = None
    """The evaluation `before` of another run of the same starting policy; None: this run measures it."""

    @property
    def config(self) -> SkillTTRLConfig:
        """The run's config."""
        return self.components.config

    @property
    def evaluation_rollouts(self) -> int:
        """Rollouts of one evaluation."""
        draws = evaluation_draws(self.config.eval, self.config.rollout, self.config.seed)
        return len(self.meter.eval_tasks) * sum(draw.rollouts_per_task for draw in draws)

    def evaluate(self, label: str, *, use_bank: bool = True) -> Evaluation:
        """Evaluate once under this label; a resumed run reads what it measured before it was stopped."""
        done = self.meter.evaluations
        if label in done:
            if use_bank:
                self.progress.measured(tracked_metrics(done[label]))
            return done[label]
        self.warn.place = ("evaluate", None)
        last = self.config.phases[-1]  # an evaluation before it is at 0
        learned = self.log.steps.get(last, self.resumed.steps_done(last))
        if label == BEFORE and self.baseline is not None:
            found = self.baseline
            self.progress.notice(f"The evaluation {label!r} is that of {found.reused_from} (run.baseline).")
        else:
            found = self._measure(label, use_bank, learned)
        self.folder.append_jsonl("evaluations.jsonl", [to_json(found)])
        place = "evaluate" if use_bank else "evaluate_no_skills"
        self.log.track(place, tracked_metrics(found), learned)
        if use_bank:
            self.progress.measured(tracked_metrics(found))
        done[label] = found
        if found.failed:
            self.warn(f"In the evaluation {label!r}, {found.failed:.1%} of the rollouts failed and count as wrong.")
        return found

    def _measure(self, label: str, use_bank: bool, learned: int) -> Evaluation:
        phase, saves = f"evaluate {label}", self.config.run
        self.progress.start(phase, self.evaluation_rollouts, "rollout")
        leaving = (
            f"Interrupted during the evaluation {label!r}, which will start over; training is saved in "
            f"{self.folder.path}. {RESUME}"
        )
        with self.stop.interruptible(leaving), self.ledger.phase("evaluate"):
            began = time.perf_counter()
            bank = self.components.bank_view() if use_bank else None
            found, rows, groups = self.meter.evaluate(self.components.worker, label, bank, self.count_rollouts(phase))
            right = [correctness(row) for row in rows]
            if saves.save_eval_samples:
                lines = [eval_line(label, row, scores) for row, scores in zip(rows, right, strict=True)]
                self.folder.append_jsonl("eval_samples.jsonl", lines)
            if saves.save_trajectories:
                shown, lines = slice(0, len(groups), -(-len(groups) // SHOWN_TASKS)), list[str]()
                for group, scores in zip(groups[shown], right[shown], strict=True):
                    few = replace(group, trajectories=tuple(map(_without_prompts, group.trajectories[:SHOWN_SAMPLES])))
                    originals = [None if each is None else float(each) for each in scores[:SHOWN_SAMPLES]]
                    records = [SampleRecord(original_score=each) for each in originals]
                    lines += trajectory_lines(label, learned, few, records)
                self.folder.append_jsonl(EVAL_TRAJECTORIES, lines)
        self.log.time("evaluate", len(self.meter.evaluations), {"seconds": time.perf_counter() - began})
        self.progress.finish(phase)
        return found

    def count_rollouts(self, phase: str, part: str = "") -> OnRolloutEnd:
        """Advance the phase with each rollout that ends; with `part`, show under it how many multi-turn rollouts have ended."""
        ended: list[bool] = []
        several = self.config.agent.max_turns > 1

        def count(trajectory: Trajectory) -> None:
            ended.append(trajectory.is_success)
            if not part:
                self.progress.advance(phase, len(ended), {"success": sum(ended) / len(ended)} if several else {})
            elif several:
                self.progress.enter(phase, f"{part}: {len(ended)} episodes, {sum(ended)} won")

        return count


SHOWN_TASKS, SHOWN_SAMPLES = 8, 4
"""Tasks of an evaluation, spread over all, and rollouts of each that `eval_trajectories.jsonl` keeps."""


def _without_prompts(trajectory: Trajectory) -> Trajectory:
    """A rollout without the tokens of its prompts, which are most of it."""
    return replace(trajectory, steps=tuple(replace(step, prompt_ids=()) for step in trajectory.steps))


def tracked_metrics(found: Evaluation) -> dict[str, float]:
    """Metrics of an evaluation for a tracker; those that were not measured are left out."""
    names = ("accuracy", "majority", "greedy", "score", "greedy_score", "majority_ratio", "entropy", "failed")
    measured = {name: getattr(found, name) for name in names}
    if all(result.majority_answer is None for result in found.results):  # no answers, so nothing to agree on
        measured |= {"majority": None, "majority_ratio": None, "entropy": None}
    measured |= {f"pass@{k}": value for k, value in found.pass_at_k.items()}
    measured |= {f"accuracy/{kind or 'other'}": each.accuracy for kind, each in found.by_type.items()}
    return {name: value for name, value in measured.items() if value is not None}


def stopped_by(rows: Sequence[Mapping[str, Any]], config: RLConfig, finished: int, first: int = 1) -> str | None:
    """Why `rl.stop_rule` ends a run with these metrics after `first` to `finished` steps; None: it continues.

    Only the first `finished` steps count, so a resumed run stops where it stopped before. With `first` the steps before it are not checked
    again.
    """
    collapses = config.stops_collapse
    if config.stop_rule is None or (config.stop[0] == COLLAPSE and not collapses):
        return None
    rules = {config.stop[0]: config.stop[1]}
    if config.stop[0] == TRIPWIRE_RULE and config.voted:
        rules[COLLAPSE] = {}
    stops = [stop_step(rows[:finished], *each, first) for each in rules.items()]
    stop = min((each for each in stops if each is not None), default=None)
    if stop is None or (stop == config.steps and not collapses):  # it ended by itself
        return None
    given = " The weights of before RL are given back." if collapses else ""
    return f"The stopping rule {config.stop[0]} ended RL after {stop} of {config.steps} steps.{given}"

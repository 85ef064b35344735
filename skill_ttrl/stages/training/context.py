"""What the phases of a run share: the policy, its sampler, the tasks, and where everything is written."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skill_ttrl.agents.agent import Agent
from skill_ttrl.agents.prompt import sample_messages
from skill_ttrl.config import SkillTTRLConfig
from skill_ttrl.errors import ConfigError
from skill_ttrl.llm.backend import Backend, Sampling, wait_for
from skill_ttrl.llm.backends import backend_facts
from skill_ttrl.llm.openai.ledger import current_ledger
from skill_ttrl.progress import Progress
from skill_ttrl.rollout.env_pool import EnvPool
from skill_ttrl.rollout.rollout import Schedule, rollout
from skill_ttrl.runs.checkpoint import Checkpoint, save_checkpoint
from skill_ttrl.runs.folder import RunFolder
from skill_ttrl.runs.identity import read_run_json
from skill_ttrl.runs.metrics import MetricsLog
from skill_ttrl.runs.model_card import model_card
from skill_ttrl.runs.summary import summary_versions
from skill_ttrl.signals import Interrupted, StopSignal
from skill_ttrl.stages.evaluation.controls import Controls, play_controls
from skill_ttrl.stages.evaluation.measure import control_results, measure
from skill_ttrl.stages.evaluation.results import Evaluation
from skill_ttrl.stages.training.run_bank import RunBank
from skill_ttrl.types import Group, Task, Trajectory, to_json

if TYPE_CHECKING:
    from accelerate import Accelerator

    from skill_ttrl.rl.policy import Policy


@dataclass
class TrainingComponents:
    """The parts that act: made from a config (`stages.build`), used by every stage."""

    config: SkillTTRLConfig
    computes: Accelerator | None
    """Where weights compute; None of a remote model."""
    learns: Policy | None
    """The policy whose weights change; None where it is only measured: the sampler may live elsewhere."""
    backend: Backend
    envs: EnvPool
    agent: Agent
    train_tasks: list[Task]
    """As the trainer is given them: without true answers."""
    references: dict[str, str]
    """True answers of the training tasks by id, for the meters and for the `label` control. No other reward sees them."""
    eval_tasks: list[Task]
    transductive: bool
    """Whether evaluation runs on the very tasks that are trained on."""
    bank: RunBank | None = None
    """The skill bank; None where the config has no skills."""
    warnings: list[str] = field(default_factory=list)
    """Lines for the summary on how the run was made: held-out tasks that are learned from."""
    told: Callable[[Trajectory], None] = lambda trajectory: None
    """Told of every episode as it ends, where `play` is given nobody else."""

    @property
    def policy(self) -> Policy:
        """The policy that learns.

        Raises:
            ConfigError: nothing learns here.
        """
        if self.learns is None:
            raise ConfigError("This policy is only measured: there are no weights to train here.")
        return self.learns

    @property
    def accelerator(self) -> Accelerator:
        """Where the policy that learns computes.

        Raises:
            ConfigError: there are no weights here.
        """
        if self.computes is None:
            raise ConfigError("This policy is a remote model: there are no weights to train here.")
        return self.computes

    def close(self) -> None:
        """Close the environments and stop what the sampler has started."""
        self.envs.close()
        self.backend.close()

    @property
    def sampling(self) -> Sampling:
        """How training samples are drawn."""
        rollout = self.config.rollout
        return Sampling(rollout.temperature, rollout.top_p, rollout.top_k, rollout.max_new_tokens)

    def acting(self, *, bank_off: bool = False) -> Agent:
        """The agent with the bank as it is now; with `bank_off`, or where the config turns it off, without."""
        if self.bank is not None and self.bank.config.use and not bank_off:
            return self.agent.with_bank(self.bank.access())
        return self.agent

    def play(
        self,
        tasks: Sequence[Task],
        tries: int,
        sampling: Sampling,
        seed: int,
        *,
        bank_off: bool = False,
        on_episode: Callable[[Trajectory], None] | None = None,
    ) -> list[Group]:
        """Each task `tries` times with the policy and the bank as they are now; one group a task, in order.

        All tries see the same frozen version of the bank, or none (see `acting`). `on_episode` is called with each as it ends; None:
        `told` is.
        """
        return wait_for(
            rollout(
                tasks,
                tries,
                envs=self.envs,
                agent=self.acting(bank_off=bank_off),
                backend=self.backend,
                sampling=sampling,
                seed=seed,
                max_turns=self.config.agent.max_turns,
                max_prompt_tokens=self.config.data.max_prompt_tokens,
                constrain=self.config.agent.constrain_actions,
                schedule=schedule_of(self.config),
                episode_seconds=self.config.rollout.episode_seconds,
                on_episode=on_episode or self.told,
            )
        )

    def evaluate(self, label: str, *, bank_off: bool = False) -> Evaluation:
        """Measure the policy as it is now on the evaluation tasks, with its bank or without."""
        found = measure(
            partial(self.play, self.eval_tasks, bank_off=bank_off),
            label=label,
            config=self.config.eval,
            max_new_tokens=self.config.rollout.max_new_tokens,
            seed=self.config.seed,
        )
        played = self.play_controls(self.eval_tasks, bank_off=bank_off)
        controls = control_results(played, self.config.eval)
        return replace(found, transductive=self.transductive, controls=controls, no_controls=played.why_none)

    def play_controls(self, tasks: Sequence[Task], *, bank_off: bool = False, source: str = "") -> Controls:
        """Scripted agents on these tasks, under the bank as it is now; see `controls.play_controls`."""
        return play_controls(self.config, tasks, self.envs, self.acting(bank_off=bank_off), source=source)


def tracked(found: Evaluation, *, bank_off: bool = False) -> tuple[str, dict[str, float]]:
    """Where a tracker shows an evaluation, and its figures; those that were not measured are left out."""
    names = ("accuracy", "majority", "greedy", "score", "greedy_score", "agreement", "entropy", "failed")
    measured = {name: getattr(found, name) for name in names}
    if all(result.majority_answer is None for result in found.results):  # no answers, so nothing to agree on
        measured |= {"majority": None, "agreement": None, "entropy": None}
    measured |= {f"pass@{k}": value for k, value in found.pass_at_k.items()}
    measured |= {f"accuracy/{kind or 'other'}": each.accuracy for kind, each in found.by_type.items()}
    place = "evaluate_bank_off" if bank_off else "evaluate"
    return place, {name: value for name, value in measured.items() if value is not None}


def schedule_of(config: SkillTTRLConfig) -> Schedule:
    """How episodes advance, where the config leaves it open (`rollout.schedule: auto`): those of one turn cannot but go together."""
    if config.rollout.schedule != "auto":
        return config.rollout.schedule
    return "lockstep" if backend_facts(config).blocking or config.agent.max_turns == 1 else "free"


@dataclass
class Run:
    """A run in progress."""

    bench: TrainingComponents
    folder: RunFolder
    log: MetricsLog
    progress: Progress
    stop: StopSignal
    resumed: Checkpoint | None = None
    resumed_state: Mapping[str, Any] = field(default_factory=dict)
    evaluations: dict[str, Evaluation] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    @property
    def config(self) -> SkillTTRLConfig:
        """The run's config."""
        return self.bench.config

    def steps_done(self, phase: str) -> int:
        """Steps of `phase` that the checkpoint holds: those it was saved at, or all where it is of a later phase."""
        if self.resumed is None:
            return 0
        order = list(self.config.phases)
        if order.index(phase) < order.index(self.resumed.phase):  # type: ignore[arg-type]  # phases are plain names here
            return self.config.sft.steps if phase == "sft" else self.config.rl.steps
        return self.resumed.step if self.resumed.phase == phase else 0

    def evaluate(self, label: str, *, bank_off: bool = False) -> Evaluation:
        """Evaluate once under this label; a resumed run reads what it measured before it was stopped."""
        if label not in self.evaluations:
            self.progress.start(f"evaluate {label}", 1, "evaluation")
            with (
                self.stop.interruptible(
                    f"Stopped during the evaluation {label!r}, which is done again from its start: go on with the same "
                    f"command and --resume auto. What was trained is saved in {self.folder.path}."
                ),
                current_ledger().phase("evaluate"),
                self.counting(f"evaluate {label}", "play"),
            ):
                began = time.perf_counter()
                found = self.bench.evaluate(label, bank_off=bank_off)
            self.log.time("evaluate", len(self.evaluations), {"seconds": time.perf_counter() - began})
            self.folder.append_jsonl("evaluations.jsonl", [to_json(found)])
            self.log.track(*tracked(found, bank_off=bank_off), self._learned_steps())
            self.evaluations[label] = found
            self.progress.finish(f"evaluate {label}")
            if found.failed:
                self.warn(f"In the evaluation {label!r} {found.failed:.1%} of the tries failed; they count as wrong.")
        return self.evaluations[label]

    def _learned_steps(self) -> int:
        """Steps done of the run's last phase: an evaluation before it is at 0."""
        last = self.config.phases[-1]
        return self.log.steps.get(last, self.steps_done(last))

    @contextmanager
    def counting(self, phase: str, part: str) -> Iterator[None]:
        """While this lasts, `part` of the phase says how many episodes have ended, and how many of them the environment calls won."""
        ended: list[bool] = []

        def told(trajectory: Trajectory) -> None:
            ended.append(trajectory.succeeded)
            self.progress.enter(phase, f"{part}: {len(ended)} episodes, {sum(ended)} won")

        before = self.bench.told
        self.bench.told = told if self.config.agent.max_turns > 1 else before
        try:
            yield
        finally:
            self.bench.told = before

    def warn(self, text: str, *, once: str | None = None) -> None:
        """Tell the user something once, and keep it for the summary; `once` is how an earlier one of its kind begins."""
        if not any(each.startswith(once) if once else each == text for each in self.warnings):
            self.warnings.append(text)
            self.progress.notice(text, warning=True)

    def checkpoint(self, phase: str, step: int, *, state: Mapping[str, Any], tensors: Mapping[str, Any]) -> Path:
        """Save everything that this phase needs to go on after `step` steps."""
        from skill_ttrl.llm.models.load import save_model

        # The newest measurement may be of earlier weights than these: its label goes along.
        measured = list(self.evaluations.values())
        shown = [asdict(found) for found in (*measured[:1], *measured[1:][-1:])]
        asked = sample_messages(self.config.agent)
        has_template = bool(getattr(self.bench.policy.tokenizer, "chat_template", None))
        bank = {} if self.bench.bank is None else self.bench.bank.state_dict()
        saved = save_checkpoint(
            self.folder,
            phase,
            step,
            save_model=partial(save_model, self.bench.policy.model, self.bench.policy.tokenizer),
            state={**state, **bank, "warnings": self.warnings},
            tensors=tensors,
            keep=self.config.run.keep_checkpoints,
            card=model_card(
                self.config,
                phase=phase,
                step=step,
                evaluations=shown,
                messages=[asdict(message) for message in asked] if has_template else (),
                versions=summary_versions(read_run_json(self.folder.path)),
            ),
        )
        current_ledger().settle()
        return saved

    def stop_if_requested(self, phase: str, step: int) -> None:
        """Stop here if a signal asked for it; the caller has just saved a checkpoint.

        Raises:
            Interrupted: with the exit code of the signal.
        """
        if self.stop.signum is not None:
            raise Interrupted(
                f"Stopped by signal {self.stop.signum} after {phase} step {step}; everything is saved in "
                f"{self.folder.path}. Go on with the same command and --resume auto.",
                self.stop.signum,
            )

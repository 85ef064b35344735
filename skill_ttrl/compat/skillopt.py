"""`SkillOptTrainer`: `skillrl`'s trainer over this project's loop, with the same files and the same summary.

What is different is in docs/coming-from.md. In short: a run that was stopped continues exactly, since every finished call is in
`journal.jsonl`; nothing fails silently; and a folder of another run is refused.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import ValidationError

import skill_ttrl
from skill_ttrl.compat.clients import BaseLLMClient
from skill_ttrl.compat.env_rollouts import RAISED, ClientChat, EnvRollouts
from skill_ttrl.compat.skill_env import SkillEnv
from skill_ttrl.compat.skillopt_config import SkillOptConfig
from skill_ttrl.config import OptimizeConfig
from skill_ttrl.config.section import explain_problem
from skill_ttrl.errors import ConfigError, RunFolderError, annotate_error
from skill_ttrl.optimize.calls import JOURNAL, Calls, Journal
from skill_ttrl.optimize.engines import ENGINES
from skill_ttrl.optimize.folder import FolderWatch, write_json
from skill_ttrl.optimize.optimizers import prompt_texts
from skill_ttrl.optimize.record import Optimized, OptimizeState, OptimizeTask, StepRecord
from skill_ttrl.optimize.scores import compute_score, content_hash, skill_hash
from skill_ttrl.optimize.types import RolloutResult
from skill_ttrl.prompts.templates import PLACES, Templates
from skill_ttrl.storage.append_log import AppendLog
from skill_ttrl.storage.files import wrap_os_errors

IDENTITY = "optimize.json"
FREE = ("workers", "verbose", "save_every_step", "eval_test", "out_root", "extras")
"""Keys of the config that a continued run may change: no result depends on them."""
DEFERRED = {"reuse_rollouts": False, "step_buffer": False, "meta_skill": False, "slow_update": {"enabled": False}}
"""Settings of what skillrl 1.0.0 does not do."""
COMMAND_ONLY = {
    "document": "pass its text as initial_skill",
    "selection": "name a split in SkillOptConfig.selection_split",
    "granularity": "it divides a document that is a skill bank",
    "every": "runs of skillttrl train edit the text of their bank by it",
    "place": "the environment puts the document where it belongs",
    "temperature": "the target's client has one (default_temperature)",
    "test_tasks": "the environment decides which items its splits have",
    "show_reference": "the environment decides by reference_text",
}
"""Keys of the config section that mean nothing here, and what to do in their place."""


class SkillOptTrainer:
    """Trains a document of skills while the models stay as they are.

    Args:
        config: the settings.
        env: the task: its items, and one scored rollout.
        optimizer_client: the model that reflects, merges and ranks.
        target_client: the model that acts; handed to the environment.
        initial_skill: the first document; None: the environment's.
        prompt_overrides: texts for `analyst_error`, `analyst_success`, `merge_failure`, `merge_success`, `merge_final`, `ranking`.
        settings: further keys of the config section `optimize`, which skillrl does not have: `{"gate": {"early_stop": True}}`.

    Raises:
        ConfigError: a setting or the name of a prompt is unknown, or a value cannot be used.
    """

    def __init__(
        self,
        *,
        config: SkillOptConfig,
        env: SkillEnv,
        optimizer_client: BaseLLMClient,
        target_client: BaseLLMClient,
        initial_skill: str | None = None,
        prompt_overrides: Mapping[str, str] | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.cfg, self.env = config, env
        self.optimizer_client, self.target_client = optimizer_client, target_client
        self.prompt_overrides = dict(prompt_overrides or {})
        self.settings = dict(settings or {})
        self.initial_skill: str = env.get_initial_skill() if initial_skill is None else initial_skill
        self.current_skill = self.best_skill = self.initial_skill
        self.current_score = self.best_score = -1.0
        self.best_step = self.global_step = 0
        self.history: list[dict[str, Any]] = []
        self._config = section_of(config, self.settings)
        overrides = {
            name: text if PLACES.get(name) else text.replace("$", "$$")  # a text without places is sent as it is
            for name, text in self.prompt_overrides.items()
        }
        self._templates = Templates(self._config.prompts, base="optimize", overrides=overrides)

    def train(self) -> dict[str, Any]:
        """Run all steps, or those that are left in `out_root`, and return the summary.

        Raises:
            DataError, EnvError: a split is empty or cannot be used, or no rollout works.
            EndpointError, BudgetError: a model cannot be used any more; the same call continues.
            RunFolderError: `out_root` holds another run, or cannot be written.
        """
        began = time.monotonic()
        roll_out = EnvRollouts(self.env, self.target_client, self._config.workers)
        task = self._task(roll_out)
        root = Path(self.cfg.out_root)
        with self._opened(root, task) as journal:
            write_json(root / "config.json", self.cfg.to_dict())
            calls = Calls(
                ClientChat(self.optimizer_client),
                roll_out,
                journal,
                self.cfg.seed,
                bool(self._config.reuse_rollouts),
                self._config.on_failure,
                self._config.workers,
            )
            watch = TrainerWatch(self, root)
            engine = ENGINES.get(self._config.engine)
            found = engine(
                task, self.initial_skill, self._config, calls, self._templates, seed=self.cfg.seed, watch=watch
            )
            watch.end(found)
            write_buckets(root, found, self.env.get_task_types())
            summary = self._summary(found, calls, watch.failed, time.monotonic() - began)
            write_json(root / "summary.json", summary)
        self._say(f"best selection score {self.best_score:.4f} (step {self.best_step}); written to {root}")
        return summary

    def _task(self, roll_out: EnvRollouts) -> OptimizeTask:
        test = roll_out.items(self.cfg.test_split) if self.cfg.eval_test else []
        return OptimizeTask(roll_out.items("train"), roll_out.items(self.cfg.selection_split), test, self.env.name)

    @contextmanager
    def _opened(self, root: Path, task: OptimizeTask) -> Iterator[Journal]:
        """The journal in the folder of the run, locked; what it was made with is that of now."""
        with annotate_error(RunFolderError, "(--output is out_root here.)"):
            folder = self._folder(root, task)
        with folder:
            journal = Journal(root / JOURNAL)
            if journal.replayed:
                self._say(f"continues the run in {root}: {journal.replayed} finished calls and rollouts are there")
            try:
                yield journal
            finally:
                if not len(journal):  # nothing was finished: mended settings may begin here
                    (root / IDENTITY).unlink(missing_ok=True)

    def _folder(self, root: Path, task: OptimizeTask) -> SkillOptFolder:
        with wrap_os_errors("create", root):
            root.mkdir(parents=True, exist_ok=True)
        if (root / "runtime_state.json").exists() and not (root / IDENTITY).exists():
            raise RunFolderError(
                f"{root} holds a run of skillrl, which keeps no record of its calls, so it cannot be continued. Choose another "
                "out_root; to go on from its document, pass the text of its best_skill.md as initial_skill."
            )
        config = {key: value for key, value in self.cfg.to_dict().items() if key not in FREE}
        made_with = {
            "config": {**config, **{f"settings.{key}": value for key, value in self.settings.items()}},
            "initial_skill": skill_hash(self.initial_skill),
            "train": content_hash(task.train),
            "selection": content_hash(task.selection),
            "prompts": content_hash(prompt_texts(self._templates)),
        }
        return SkillOptFolder(root, root / JOURNAL, root / IDENTITY, made_with)

    def _summary(self, found: Optimized, calls: Calls, failed: int, seconds: float) -> dict[str, Any]:
        """The report, with skillrl's keys; intervals and calls are ours."""
        actions = [str(row["action"]) for row in found.rows]
        first, best = (_means(results) for results in (found.test_first, found.test_best))
        return {
            "version": f"skill-ttrl-{skill_ttrl.__version__}",
            "config": self.cfg.to_dict(),
            "env": self.env.name,
            "total_steps": len(actions),
            "total_accepts": sum("accept" in action for action in actions),
            "total_rejects": sum(action.startswith("reject") for action in actions),
            "total_skips": sum(action.startswith("skip") for action in actions),
            "best_step": found.state.best_step,
            "best_selection_score": found.state.best_score,
            "current_selection_score": found.state.current_score,
            "baseline_test_hard": first[0],
            "baseline_test_soft": first[1],
            "test_hard": best[0],
            "test_soft": best[1],
            "test_delta_hard": None if first[0] is None or best[0] is None else round(best[0] - first[0], 6),
            "wall_time_s": round(seconds, 2),
            **intervals(found.test_first, found.test_best),
            "calls": {stage: vars(counts) for stage, counts in calls.counts.items()},
            "fallbacks": dict(sum((Counter(row["fallbacks"]) for row in (*found.rows, *found.ends)), Counter[str]())),
            "failed_rollouts": failed,
        }

    def _say(self, text: str) -> None:
        if self.cfg.verbose:
            print(f"[skillopt] {text}", flush=True)


class SkillOptFolder(AppendLog):
    """The folder of a trainer's run: locked, and continued only by the same run."""

    holds = "a run of SkillOptTrainer"
    depends_on = "config, first document, items and prompts"


class TrainerWatch(FolderWatch):
    """Writes the files of each step, keeps the trainer's attributes up to date and says what happens."""

    def __init__(self, trainer: SkillOptTrainer, folder: Path) -> None:
        super().__init__(folder, snapshots=trainer.cfg.save_every_step)
        self._trainer = trainer
        self._steps = 0
        self.failed = 0
        """Rollouts that raised an error."""

    def begin(self, state: OptimizeState, steps: int) -> None:
        """Write the first document, and say what it scores."""
        super().begin(state, steps)
        self._trainer.history = []
        self._steps = steps
        self._count(state.current_evaluation.results)
        self._take(state)
        self._trainer._say(
            f"{self._trainer.env.name}: {steps} steps; the first document scores {state.current_score:.4f}"
        )

    def step(self, record: StepRecord, state: OptimizeState) -> None:
        """Write a step, and say what it did."""
        super().step(record, state)
        row = self.rows[-1]
        self._trainer.history.append(row)
        self._take(state)
        self._count(record.rollouts)
        if record.evaluation is not None and not record.evaluation.cached:
            self._count(record.evaluation.results)
        applied = row.get("apply_report", {"applied": 0})["applied"]
        lost = f", no usable answer: {dict(record.fallbacks)}" if record.fallbacks else ""
        self._trainer._say(
            f"step {record.step}/{self._steps}: {record.action}, {applied} edits, batch {row['rollout_hard']:.4f}, "
            f"current {state.current_score:.4f}, best {state.best_score:.4f}{lost}"
        )

    def end(self, outcome: Optimized) -> None:
        """Write the test rollouts."""
        super().end(outcome)
        self._count([*(outcome.test_first or ()), *(outcome.test_best or ())])

    def _take(self, state: OptimizeState) -> None:
        trainer = self._trainer
        trainer.current_skill, trainer.current_score = state.current, state.current_score
        trainer.best_skill, trainer.best_score, trainer.best_step = state.best, state.best_score, state.best_step
        trainer.global_step = state.step

    def _count(self, results: Sequence[RolloutResult]) -> None:
        self.failed += sum(result.fail_reason.startswith(RAISED) for result in results)


def section_of(config: SkillOptConfig, settings: Mapping[str, Any]) -> OptimizeConfig:
    """The config section that means the same as `config`, with further `settings`.

    A candidate is evaluated on all items, nothing is reused, and what skillrl 1.0.0 deferred is off; `settings` can say otherwise.

    Raises:
        ConfigError: a setting is unknown, cannot be used, or is a key of `config`.
    """
    own = {
        "epochs": config.num_epochs,
        "batch_size": config.batch_size,
        "minibatch_size": config.minibatch_size,
        "merge_batch_size": config.merge_batch_size,
        "edit_budget": config.edit_budget,
        "min_edit_budget": config.min_edit_budget,
        "lr_scheduler": config.lr_scheduler,
        "failure_only": config.failure_only,
        "max_answer_tokens": config.optimizer_max_completion_tokens,
        "workers": max(1, config.workers),
        "test": config.eval_test,
    }
    if unused := sorted(COMMAND_ONLY.keys() & settings.keys()):
        said = "; ".join(f"{key}: {COMMAND_ONLY[key]}" for key in unused)
        raise ConfigError(f"settings has keys that only the command skillttrl optimize uses. {said}.")
    if twice := sorted(own.keys() & settings.keys()):
        raise ConfigError(f"settings has {', '.join(twice)}: that is a key of SkillOptConfig. Set it there.")
    gate = {"metric": config.gate_metric, "mixed_weight": config.gate_mixed_weight, "early_stop": False}
    given = settings.get("gate", {})
    merged = {**gate, **given} if isinstance(given, Mapping) else given
    try:
        return OptimizeConfig.model_validate({**DEFERRED, **own, **settings, "gate": merged})
    except ValidationError as error:
        problem = error.errors()[0]
        place = ".".join(str(part) for part in problem["loc"])
        said = " ".join(explain_problem(problem, OptimizeConfig))
        raise ConfigError(f"SkillOptTrainer(settings=...), {place or 'settings'}: {said}") from None


def intervals(first: Sequence[RolloutResult] | None, best: Sequence[RolloutResult] | None) -> dict[str, Any]:
    """95% intervals of the test results, and of their paired difference; None where there are none."""
    if not first or not best:
        return dict.fromkeys(("baseline_test_hard_interval", "test_hard_interval", "test_delta_hard_interval"))
    from skill_ttrl.statistics import mean_interval, paired_difference  # loads numpy

    before, after = ([result.hard for result in results] for results in (first, best))
    return {
        "baseline_test_hard_interval": list(mean_interval(before)),
        "test_hard_interval": list(mean_interval(after)),
        "test_delta_hard_interval": list(paired_difference(before, after)[1:]),
    }


def write_buckets(root: Path, found: Optimized, task_types: Sequence[str]) -> None:
    """Write the test results by type of task; nothing where the environment has no types."""
    for name, results in (("baseline", found.test_first), ("best", found.test_best)):
        if results is None or not task_types:
            continue
        of_type = {kind: [each for each in results if (each.task_type or "other") == kind] for kind in task_types}
        others = {each.task_type or "other" for each in results} - {*task_types}
        of_type |= {kind: [each for each in results if (each.task_type or "other") == kind] for kind in sorted(others)}
        rows = {
            kind: {"total": len(each), "hard": sum(r.hard for r in each), "soft": sum(r.soft for r in each)}
            for kind, each in {**of_type, "overall": list(results)}.items()
        }
        write_json(root / f"test_eval_{name}" / "buckets.json", rows)


def _means(results: Sequence[RolloutResult] | None) -> tuple[float, float] | tuple[None, None]:
    return compute_score(results) if results else (None, None)

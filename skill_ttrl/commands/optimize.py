"""`skillttrl optimize`: train a skill document while all weights stay frozen (SkillOpt, arXiv 2605.23904).

`prepare` finds who acts, on which tasks, and the first document; `check_start` checks the rest, and `optimize_run` runs the loop of
`skill_ttrl.optimize` in a run folder. A run that was stopped continues with the same call: it replays its journal.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from skill_ttrl.answers import persist_cache
from skill_ttrl.commands.optimize_results import SUMMARY, OptimizeSummary, is_optimization, read_summary, summarize
from skill_ttrl.commands.reports.page_data import finish_report
from skill_ttrl.commands.resolve import EvalTarget, is_trained, resolve_target
from skill_ttrl.config import OptimizeConfig, SkillsConfig, SkillTTRLConfig
from skill_ttrl.config.load import read_source
from skill_ttrl.data.families import QA_ENV_ID
from skill_ttrl.data.tasks import MATH_ENV_ID
from skill_ttrl.errors import ConfigError, DataError, RunFolderError, did_you_mean
from skill_ttrl.llm.backends import REMOTE, backend_facts, is_frozen
from skill_ttrl.llm.chat import template_warning
from skill_ttrl.llm.openai.ledger import SAME, USAGE, Ledger, annotate_budget_error, track_usage, when_spent
from skill_ttrl.optimize.calls import IDENTITY, JOURNAL, Calls, ChatFn, EndpointChat, Journal
from skill_ttrl.optimize.engines import PROMPTS, asks_endpoint, check_optimizer, prompt_texts, run_engine, sizes_of
from skill_ttrl.optimize.loop import check
from skill_ttrl.optimize.record import FolderWatch, OptimizeState, OptimizeTask, StepRecord
from skill_ttrl.optimize.types import content_hash, graded
from skill_ttrl.progress import SILENT, Progress
from skill_ttrl.prompts.templates import read_document
from skill_ttrl.registry import import_attribute
from skill_ttrl.runs.folder import EQUIVALENCE_CACHE, RunFolder
from skill_ttrl.signals import StopSignal
from skill_ttrl.skills.document import skills_of
from skill_ttrl.storage.files import check_made_with, flatten, read_identity
from skill_ttrl.train.build import build_for_eval
from skill_ttrl.train.defaults import load_checked, with_env_defaults
from skill_ttrl.train.document_rollouts import PlaceDocument, PolicyRollouts, as_bank, items_of, true_answer
from skill_ttrl.train.run import RolloutWorker
from skill_ttrl.train.tasks import ConfigTasks, named, pinned_source, task_content
from skill_ttrl.types import Task, derive_seed

Resume = Literal["auto", "never"]
PHASE = "optimize"
TASK_SECTIONS = tuple("name seed env data agent rollout endpoints program eval skills optimize".split())
"""Keys of a config that say something of a policy that was trained already; see `prepare`."""
ABOUT_RUNS = ("verified", "requires")
"""Keys that say something of the runs of a config alone."""


@dataclass(frozen=True)
class Prepared:
    """An optimization before it begins."""

    config: SkillTTRLConfig
    """Resolved; `optimize` is set."""
    target: EvalTarget
    tasks: Mapping[str, Sequence[Task]]
    """By role."""
    document: str
    """The first one."""
    source: str | None = None
    """Text of the config file that the user gave."""

    @property
    def options(self) -> OptimizeConfig:
        """The section `optimize`."""
        assert self.config.optimize is not None
        return self.config.optimize

    def place(self, output: str | Path | None) -> Path:
        """The run's folder."""
        return Path("runs") / f"{self.config.name}-optimize" if output is None else Path(output)

    def made_with(self) -> dict[str, Any]:
        """Inputs, besides the config, that the results depend on, by digest."""
        facts = {
            role: [[task.id, task_content(task), task.ground_truth] for task in tasks]
            for role, tasks in self.tasks.items()
        }
        return {
            "policy": self.target.fingerprint(),
            "document": content_hash(self.document),
            "tasks": {role: content_hash(part) for role, part in facts.items()},
            "prompts": content_hash(prompt_texts(PROMPTS)),
        }

    def check_folder(self, output: str | Path | None, resume: Resume) -> bool:
        """Check that this optimization can begin or continue in its folder; True if it continues. Nothing is written.

        Args:
            output: see `place`.
            resume: `auto` continues what is there; `never` refuses it.

        Raises:
            RunFolderError: it is that of another run (the differences are named), or holds something else.
        """
        path = self.place(output)
        if resume == "never" or not RunFolder.exists(path):
            RunFolder.check_new(path)
            return False
        folder = RunFolder.open(path, lock=False)
        # Without a journal nothing was finished, and another config may start here.
        if is_optimization(path) and (path / JOURNAL).is_file():
            holds = f"{path} holds an optimization"
            there = read_identity(path / IDENTITY, holds)["made_with"]
            folder.belongs_to(self.config)
            check_made_with(there, self.made_with(), holds)
            return True
        if any(folder.sizes().values()) or folder.checkpoints.exists():
            raise RunFolderError(f"{path} holds a run that trains weights, not a document. Choose another --output.")
        return False

    @contextmanager
    def open_folder(self, output: str | Path | None, continues: bool) -> Iterator[RunFolder]:
        """Its folder, new or as it was left, locked inside the block.

        Raises:
            RunFolderError: another process writes to it, or it cannot be written.
        """
        path, config = self.place(output), self.config
        new = not RunFolder.exists(path)
        with RunFolder.create(path, config, source=self.source) if new else RunFolder.open(path) as folder:
            try:
                folder.take_config(config)  # limits may differ
                if not continues:
                    made_with = json.loads(json.dumps(self.made_with()))
                    folder.write_json(IDENTITY, {"schema_version": 1, "made_with": made_with})
                yield folder
            except BaseException:  # leave nothing of an optimization in which nothing was done
                folder.discard_unstarted(IDENTITY)
                raise


def prepare(
    source: str | Path | Mapping[str, Any] | None = None,
    *,
    policy: str | Path | None = None,
    document: str | Path | None = None,
    overrides: Sequence[str] = (),
    progress: Progress = SILENT,
) -> Prepared:
    """Find who acts, the tasks by role, and the first document. Nothing is loaded, sent or written.

    Args:
        source: a recipe, a config file or its content: the tasks, and for a plain model its prompts and lengths. For a run's policy its
            keys override those of the run (`TASK_SECTIONS`).
        policy: who acts: a run, a checkpoint, a model, `openai:MODEL` (see `resolve_target`). None: what the config names.
        document: file with the first document; None: that of `agent.document`, else an empty one.
        overrides: changes to the config, as for `--set`.
        progress: receives notices of the choices made.

    Raises:
        ConfigError: nothing to act is named, or a name or a key is wrong.
        DataError: a task has two roles or no true answer, or there are none.
        SkillTTRLError: no such policy; tasks cannot be read.
    """
    own = [] if document is None else [f"agent.document={json.dumps(str(document))}"]
    target, text = _find_target(source, policy, [*overrides, *own])
    config = with_env_defaults(target.config)
    asked = config.optimize = config.optimize or OptimizeConfig()
    check_optimizer(asked.optimizer)
    place_of(asked, config.skills)
    target = replace(target, config=config)
    target.check(use_bank=asked.place == "bank")
    first = "" if config.agent.document is None else read_document(config.agent.document)
    config.agent.document = None
    tasks = find_tasks(config, progress)
    for role, task in ((role, task) for role, part in tasks.items() for task in part):
        if task.env_id in (MATH_ENV_ID, QA_ENV_ID) and true_answer(task) is None:
            raise DataError(
                f"The {_named(role)} task {named(task)} has no true answer, and {task.env_id} needs one. Give each record its answer "
                "(data.answer_field names its column), or remove such records; test tasks are optional (optimize.test_tasks=0)."
            )
    items = {role: [{"id": task.id} for task in part] for role, part in tasks.items()}
    check(OptimizeTask(items[TRAIN], items[SELECTION], items[TEST], config.env.id))
    return Prepared(config, target, tasks, first, text)


def optimize_run(
    source: str | Path | Mapping[str, Any] | Prepared | None = None,
    *,
    policy: str | Path | None = None,
    document: str | Path | None = None,
    output: str | Path | None = None,
    overrides: Sequence[str] = (),
    resume: Resume = "auto",
    chat: ChatFn | None = None,
    progress: Progress = SILENT,
) -> OptimizeSummary:
    """Train a skill document on the tasks of a config, for a policy whose weights stay as they are.

    Args:
        source: see `prepare`; or what `prepare` gave.
        policy: see `prepare`.
        document: see `prepare`.
        output: the run's folder; None: `runs/NAME-optimize`.
        overrides: see `prepare`.
        resume: `auto` continues a folder that holds this very optimization; `never` refuses it.
        chat: the optimizer's model (`skill_ttrl.optimize.calls.ChatFn`); None: that of the role `optimizer` (`endpoints`).
        progress: receives steps, stages and scores.

    Raises:
        RunFolderError: the folder is that of another run, or cannot be written.
        BudgetError: the budget is spent; the same call continues.
        EndpointError: a server cannot be reached or refuses; the same call continues.
        Interrupted: a signal came; the same call continues.
        SkillTTRLError: as for `prepare`, or the policy cannot be loaded.
    """
    if not isinstance(source, Prepared):
        source = prepare(source, policy=policy, document=document, overrides=overrides, progress=progress)
    run, path = source, source.place(output)
    continues = check_start(run, output, resume=resume, chat=chat)["continues"]
    with run.open_folder(output, continues) as folder:
        if (known := read_summary(path)) is not None:
            progress.notice(f"{path} has finished already.")
            return known
        leaving = f"Stopped; finished work is saved in {path}. {SAME}"
        with StopSignal() as stop, stop.interruptible(leaving), annotate_budget_error(when_spent(leaving)):
            return _run(run, folder, chat, progress)


def check_start(
    run: Prepared, output: str | Path | None = None, *, resume: Resume = "auto", chat: ChatFn | None = None
) -> dict[str, Any]:
    """Check everything that can be checked before an optimization starts: `optimize_run` begins with it, `--dry-run` ends with it.

    No weights are loaded, nothing is sent or written. For the arguments see `optimize_run`.

    Returns:
        Names and sizes as far as they are known. `continues`: the folder holds this optimization already; `steps` and `step_items`
        (training tasks of a step) are None where the engine decides them itself.

    Raises:
        SkillTTRLError: as `optimize_run`.
    """
    config, options = run.config, run.options
    continues = run.check_folder(output, resume)
    if chat is None and asks_endpoint(options, config.endpoints):
        EndpointChat(config.endpoints).close()  # its key, address and package are there
    if backend_facts(config).remote:  # else its weights have to be loaded
        with _rollouts(run, SILENT):
            pass
    steps, step_items = sizes_of(options, len(run.tasks[TRAIN]))
    return {
        "name": config.name,
        "policy": run.target.name,
        "engine": options.engine,
        "optimizer": options.optimizer,
        "folder": str(run.place(output)),
        "continues": continues,
        "items": {role: len(part) for role, part in run.tasks.items()},
        "epochs": options.epochs,
        "steps": steps,
        "step_items": step_items,
    }


def place_of(options: OptimizeConfig, skills: SkillsConfig | None) -> PlaceDocument:
    """How the policy reads a document.

    Raises:
        ConfigError: as a bank, and the config has no skills section in use, or nothing reads the skills of a document.
    """
    if options.place == "prompt":
        return RolloutWorker.with_document
    name = options.granularity
    return as_bank(skills, skills_of if name == "section" else import_attribute(name, "reader of documents"))


def _run(run: Prepared, folder: RunFolder, chat: ChatFn | None, progress: Progress) -> OptimizeSummary:
    """Open the policy and the optimizer's model, and run the loop."""
    config, options = run.config, run.options
    with ExitStack() as stack:
        stack.enter_context(persist_cache(folder.path / EQUIVALENCE_CACHE))
        ledger = stack.enter_context(track_usage(folder.path / USAGE, config.endpoints))
        stack.enter_context(ledger.phase(PHASE))
        rollouts, items = stack.enter_context(_rollouts(run, progress))
        if chat is None and asks_endpoint(options, config.endpoints):
            chat = stack.enter_context(closing(EndpointChat(config.endpoints)))
        calls = Calls(
            chat,
            rollouts,
            Journal(folder.path / JOURNAL),
            seed=config.seed,
            reuse_rollouts=True,  # greedy: the same document gives the same
            progress=progress,
        )
        if calls.journal.replayed:
            progress.notice(f"Continuing after {calls.journal.replayed:,} finished calls and rollouts.")
        task = OptimizeTask(items[TRAIN], items[SELECTION], items.get(TEST, ()), config.env.id)
        watch = ProgressWatch(folder.path, progress, ledger, calls.journal)
        found = run_engine(task, run.document, options, calls, seed=config.seed, watch=watch)
        progress.finish(PHASE)
        watch.end(found)
        ledger.settle()
        counts = {role: len(part) for role, part in items.items()}
        about = {"name": config.name, "seed": config.seed, "environment": config.env.id, "policy": run.target.name}
        summary = summarize(found, options, calls, **about, items=counts, usage=ledger.report())
        folder.write_json(SUMMARY, asdict(summary))
    finish_report(folder.path, progress)
    return summary


class ProgressWatch(FolderWatch):
    """Writes the files of each step, and reports steps, stages and scores.

    Args:
        folder: the run's folder.
        progress: receives the reports.
        ledger: of the run. What a finished step has paid for is in the journal, so the ledger need not save it any longer.
        journal: of the run.
    """

    def __init__(self, folder: Path, progress: Progress, ledger: Ledger, journal: Journal) -> None:
        super().__init__(folder)
        self._progress, self._ledger, self._journal = progress, ledger, journal

    def begin(self, state: OptimizeState, steps: int) -> None:
        """Write the first document, and report its score."""
        super().begin(state, steps)
        self._settle()
        self._progress.notice(f"First document: selection score {state.current_score:.3f}.")
        self._progress.start(PHASE, steps, "step")

    def enter(self, step: int, stage: str) -> None:
        """Report the stage."""
        self._progress.enter(PHASE, stage)

    def step(self, record: StepRecord, state: OptimizeState) -> None:
        """Write the step, and report its scores."""
        super().step(record, state)
        self._settle()
        results, spent = graded(record.rollouts), self._ledger.totals()
        figures = {
            "current": state.current_score,
            "best": state.best_score,
            "success": sum(result.hard for result in results) / len(results) if results else 0.0,
            "accepted": sum(str(row["action"]).startswith("accept") for row in self.rows),
            **({"tokens": spent.tokens} if spent.tokens else {}),
            **({"cost": spent.cost} if spent.cost else {}),
        }
        self._progress.advance(PHASE, record.step, figures)

    def _settle(self) -> None:
        """Forget paid answers. A step that is only replayed leaves those of the one that was interrupted."""
        if len(self._journal) > self._journal.replayed:
            self._ledger.settle()


@contextmanager
def open_rollouts(
    target: EvalTarget, splits: Mapping[str, Sequence[Task]], place: PlaceDocument, progress: Progress
) -> Iterator[tuple[PolicyRollouts, dict[str, list[dict[str, Any]]]]]:
    """Load a policy, and yield its `RollOutFn` and the items of each split; closes the policy at the end.

    Args:
        target: the policy: a run, a checkpoint, a local or a remote model (`resolve_target`).
        splits: tasks by what they are for (`train`, `selection`, `test`). Prompts that are too long are left out.
        place: puts the document in front of the agent: `RolloutWorker.with_document`, or `as_bank(...)`.
        progress: reports what was left out.

    Raises:
        DataError: two tasks have one id.
        SkillTTRLError: a part cannot be made; the message names it.
    """
    worker, fitting = build_for_eval(target.config, splits, progress, weights=target.weights)
    with closing(worker):
        tasks: dict[str, Task] = {}
        for task in (task for part in fitting.values() for task in part):
            if tasks.setdefault(task.id, task) != task:
                raise DataError(f"Two tasks have the id {task.id!r}. Ids must be unique over all splits.")
        config = worker.config
        if backend_facts(config).remote and config.rollout.mode == "auto":  # each is stored once it is paid for
            rollout = config.rollout.model_copy(update={"mode": "async"})
            worker = replace(worker, config=config.model_copy(update={"rollout": rollout}))
        rollouts = PolicyRollouts(worker, tasks, place)
        yield rollouts, {name: items_of(part) for name, part in fitting.items()}


@contextmanager
def _rollouts(run: Prepared, progress: Progress) -> Iterator[tuple[PolicyRollouts, dict[str, list[dict[str, Any]]]]]:
    """The policy, opened to roll out documents, and the items of each role."""
    splits = {role: part for role, part in run.tasks.items() if part}
    with open_rollouts(run.target, splits, place_of(run.options, run.config.skills), progress) as (rollouts, items):
        rollouts.place(rollouts.worker, run.document)  # the first document has to leave prompts their room
        reads = rollouts.place(rollouts.worker, run.document or "- Be brief.").agent
        if warning := template_warning(rollouts.worker.backend, reads.formatter.messages("?")):
            progress.notice(warning, warning=True)
        yield rollouts, items


def _find_target(
    source: str | Path | Mapping[str, Any] | None, policy: str | Path | None, overrides: Sequence[str]
) -> tuple[EvalTarget, str | None]:
    """The policy with its config, and the text of the user's config file."""
    if source is None and policy is None:
        raise ConfigError("Name a config, or a policy with --policy: a run, a checkpoint, a model or openai:MODEL.")
    for given in (source, policy):
        if given is not None and not isinstance(given, Mapping) and is_optimization(given):
            raise ConfigError(
                f"{given} holds an optimization. To continue it, repeat the command that started it; its document is "
                f"{given}/best_skill.md."
            )
    if policy is None and not isinstance(source, Mapping) and is_trained(Path(str(source))):
        source, policy = None, source
    text = None if source is None or isinstance(source, Mapping) else read_source(source)[1]
    if policy is None:
        config = load_checked(source or {}, overrides)
        if not backend_facts(config).remote and "model" not in config.model_fields_set:
            raise ConfigError(
                "There is no policy: the config names no model. Give --policy: a run, a checkpoint, a model, openai:MODEL or "
                "none (with --agent)."
            )
        policy = config.rollout.backend if backend_facts(config).remote else config.model.path
    kind, colon, _ = str(policy).partition(":")
    if colon and kind != REMOTE and not Path(policy).exists():
        raise ConfigError(f"Unknown kind of policy {str(policy)!r}.{did_you_mean(kind, [REMOTE])}")
    if source is not None and is_trained(Path(str(policy))):
        data, _, where = read_source(source)
        data = {key: value for key, value in data.items() if key not in ABOUT_RUNS}
        if foreign := sorted({*data} - {*TASK_SECTIONS}):
            raise ConfigError(
                f"{where} sets {', '.join(foreign)}, but the policy is already trained. With a run, a config may set only "
                f"{', '.join(TASK_SECTIONS)}."
            )
        stated = [f"{key}={json.dumps(value)}" for key, value in flatten(data, lists=False).items() if value != {}]
        found = resolve_target(policy, [*stated, *overrides], use_bank=False)
    else:
        base = str(source) if isinstance(source, Path) else source
        found = resolve_target(policy, overrides, config=base, use_bank=False)
    if backend_facts(found.config).remote and not is_frozen(policy):
        backend = found.config.rollout.backend
        raise ConfigError(
            f"The policy {policy} has its own weights, but rollout.backend={backend} ignores them. Remove --policy, or add --set "
            "rollout.backend=hf."
        )
    return found, text


TRAIN, SELECTION, TEST = "train", "selection", "test"
HELD_OUT = 0.25
"""Share of the training tasks that decide on candidates, if the config does not set it."""
WAYS = (
    "Each task has one role: training tasks are shown to the optimizer, selection tasks decide, test tasks report. Use "
    "others, or remove them from one role."
)


def find_tasks(config: SkillTTRLConfig, progress: Progress) -> dict[str, list[Task]]:
    """The tasks of each role.

    Training tasks are those of `data.train`, or the environment's own. Selection tasks are what `optimize.selection` names, by default a
    share of the training tasks. Test tasks are those of `data.eval`, else `optimize.test_tasks` of the training tasks, else the environment's
    own; none where only `data.train` names tasks, or with `optimize.test_tasks: 0`.

    Raises:
        DataError: a task has two roles, or too few are there to hold some out.
        ConfigError: `optimize.selection` names its tasks twice.
        SkillTTRLError: tasks cannot be read.
    """
    asked = config.optimize or OptimizeConfig()
    own, data, test = asked.selection, config.data, list[Task]()
    if own.tasks is not None and own.data is not None:
        raise ConfigError("optimize.selection: set tasks or data, not both.")
    if asked.test_tasks and data.eval is not None:
        raise ConfigError("optimize.test_tasks and data.eval both name test tasks: set only one.")
    there = ConfigTasks(config, progress)
    train = there.training(pinned=True)
    if asked.test_tasks:
        train, test = hold_out(train, asked.test_tasks, derive_seed(config.seed, TEST), TEST)
    elif asked.test_tasks is None and data.eval is not None:
        test = there.read(pinned_source(config.eval_source), TEST)
    elif asked.test_tasks is None and data.train is None:
        test = there.read(None, config.env.eval_split, config.env.eval_tasks)
    elif asked.test_tasks is None:
        progress.notice(
            "Without data.eval nothing is tested at the end, and the selection score of the best document is optimistic."
        )
    if own.data is not None:
        selection = there.read(pinned_source(data.source(own.data)), SELECTION)
    else:
        train, selection = hold_out(train, own.tasks, derive_seed(config.seed, SELECTION), SELECTION)
    return told_apart({TRAIN: train, SELECTION: selection, TEST: test})


def hold_out(tasks: Sequence[Task], count: int | None, seed: int, role: str) -> tuple[list[Task], list[Task]]:
    """Training tasks, and `count` others drawn from them by `seed`; None: a quarter. Both in their order.

    Tasks that state the same stay together, so that none is in both.

    Raises:
        DataError: too few are left to train on.
    """
    contents = list(dict.fromkeys(map(task_content, tasks)))
    wanted = math.ceil(len(contents) * HELD_OUT) if count is None else count
    if wanted >= len(contents):
        raise DataError(
            f"Holding out {wanted} {role} tasks of {len(contents)} different training tasks leaves none to train on. Lower "
            "optimize.selection.tasks or optimize.test_tasks, or set optimize.selection.data or data.eval."
        )
    held = {*random.Random(seed).sample(contents, wanted)}
    selection: dict[str, Task] = {}
    for task in tasks:
        if (content := task_content(task)) in held:
            selection.setdefault(content, task)
    return [task for task in tasks if task_content(task) not in held], [*selection.values()]


def told_apart(roles: Mapping[str, Sequence[Task]]) -> dict[str, list[Task]]:
    """The same tasks with ids that are unique over all roles.

    An id of two different tasks is no leak where it is a mere number, as files count from 1: such tasks take the name of their role.

    Raises:
        DataError: a task has two roles, by what it states or by its id.
    """
    names: dict[str, str] = {}
    contents: dict[str, str] = {}
    found: dict[str, list[Task]] = {}
    for role, tasks in roles.items():
        found[role] = []
        for task in tasks:
            other, content = names.get(task.id, role), contents.setdefault(task_content(task), role)
            if content != role:
                raise DataError(f"The {role} task {named(task)} is also a {_named(content)} task. {WAYS}")
            if other != role and not task.id.isdigit():
                raise DataError(
                    f"The id {task.id!r} names a {_named(other)} task and another {_named(role)} task. {WAYS}"
                )
            names.setdefault(task.id, role)
            found[role].append(task if other == role else replace(task, id=f"{role}-{task.id}"))
    return found


def _named(role: str) -> str:
    return "training" if role == TRAIN else role

"""`skillrl`'s names (PyPI, 1.0.0) over this project's loop: its clients, its environments, `SkillOptConfig` and `SkillOptTrainer`.

Files and results are the same; what differs is in docs/coming-from.md. In short: a run that was stopped continues exactly, since every
finished call is in `journal.jsonl`; nothing fails silently; and a folder of another run is refused. `OpenAIChatClient` is this project's
own client (`llm/openai`): its retries, its bounds on what an answer may be, its ledger and budget. A request that comes to nothing is an
`EndpointError`, not an empty answer.
"""

from __future__ import annotations

import json
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import ValidationError

import skill_ttrl
from skill_ttrl.answers.grade import matches, token_f1
from skill_ttrl.config import EndpointConfig, OptimizeConfig
from skill_ttrl.config.section import explain_problem
from skill_ttrl.errors import (
    ConfigError,
    EndpointError,
    EnvError,
    RunFolderError,
    SkillTTRLError,
    SplitError,
    annotate_error,
    did_you_mean,
)
from skill_ttrl.llm.backend import wait_for
from skill_ttrl.llm.openai.client import Client
from skill_ttrl.llm.openai.ledger import asked_in
from skill_ttrl.llm.openai.replies import Reply as ClientReply
from skill_ttrl.optimize.calls import IDENTITY, JOURNAL, ONE_REQUEST, Calls, Item, Journal, Reply, in_threads
from skill_ttrl.optimize.engines import prompt_texts
from skill_ttrl.optimize.gate import GateMetric
from skill_ttrl.optimize.llm_optimizer import LLMOptimizer
from skill_ttrl.optimize.loop import Loop, optimize
from skill_ttrl.optimize.record import FolderWatch, Optimized, OptimizeState, OptimizeTask, StepRecord, write_file
from skill_ttrl.optimize.schedule import SchedulerMode
from skill_ttrl.optimize.types import RolloutResult, compute_score, content_hash, skill_hash
from skill_ttrl.prompts.templates import PARTS, Templates, places_of
from skill_ttrl.storage.files import AppendLog, wrap_os_errors
from skill_ttrl.types import Message, first_problem

SENT_PER_RETRY = 3
"""skillrl's SDK sends each of its `retries` attempts up to three times."""
NEW_LIMIT, OLD_LIMIT = "max_completion_tokens", "max_tokens"


class BaseLLMClient(ABC):
    """A language model that is asked for one answer at a time, from several threads at once."""

    model: str = ""
    """Name of the model, for logs."""

    @abstractmethod
    def chat(self, *, system: str, user: str, **options: Any) -> tuple[str, dict[str, Any]]:
        """One answer and what it took.

        Args:
            system: the instructions.
            user: the question.
            options: `max_completion_tokens`, longest answer; `temperature` of the sampling, None: the client's own choice; `stage` that
                asks, `rollout`, `analyst`, `merge` or `ranking`; `retries`, attempts where the connection or the server fails; and
                further fields of the request, where the client knows any.

        Returns:
            The text, perhaps empty, and a dictionary with `prompt_tokens`, `completion_tokens` and `total_tokens`.

        Raises:
            EndpointError: no answer came; the trainer counts it.
        """


class OpenAIChatClient(BaseLLMClient):
    """Chat models behind OpenAI's protocol: OpenAI, Azure, vLLM and any other server of the protocol.

    Args:
        model: name of the model, on Azure of the deployment.
        api_key: the key; None: `OPENAI_API_KEY`, on Azure `AZURE_OPENAI_API_KEY`. Your own server needs none.
        base_url: address of the server; None: `OPENAI_BASE_URL`, else OpenAI's own.
        azure_endpoint: address on Azure; makes this an Azure client.
        api_version: version of Azure's interface.
        default_temperature: temperature where `chat` is given none; None: not sent.
        timeout: seconds for one attempt.

    Raises:
        ConfigError: an address or a value cannot be used, or a key is missing.
        MissingDependencyError: the package openai is not installed.
    """

    def __init__(
        self,
        model: str,
        *,
        api_key: str | None = None,
        base_url: str | None = None,
        azure_endpoint: str | None = None,
        api_version: str | None = None,
        default_temperature: float | None = None,
        timeout: float = 120.0,
    ) -> None:
        self.model, self.default_temperature, self.timeout = model, default_temperature, timeout
        self._key, self._api_version, self._limit_field = api_key, api_version, NEW_LIMIT
        self._lock, self._clients = threading.Lock(), dict[int, Client]()
        try:
            self._config = EndpointConfig(
                model=model,
                provider="azure" if azure_endpoint else "openai",
                base_url=azure_endpoint or base_url,
                temperature=default_temperature,
                timeout=timeout,
                max_concurrency=64,  # the caller's threads are the bound
            )
            self._client(3)  # a missing key is found now
        except ValidationError as error:
            raise ConfigError(f"OpenAIChatClient({model!r}): {first_problem(error)}") from None
        except ConfigError as error:
            raise ConfigError(f"OpenAIChatClient({model!r}): {error} Or pass api_key=, base_url= here.") from None

    def chat(
        self,
        *,
        system: str,
        user: str,
        max_completion_tokens: int = 4096,
        temperature: float | None = None,
        stage: str = "",
        retries: int = 3,
        **kwargs: Any,
    ) -> tuple[str, dict[str, Any]]:
        """One answer and what it took; see `BaseLLMClient`. `kwargs` are sent as fields of the request.

        A server that accepts only the older `max_tokens` gets that from then on.

        Raises:
            EndpointError: no answer came, after the retries; `kind` says why.
            BudgetError: the budget of the ledger in use is spent.
        """
        messages = [Message("system", system or ""), Message("user", user or "")]

        def answer(limit_field: str) -> ClientReply:
            extra = {NEW_LIMIT: None, limit_field: max_completion_tokens, **kwargs}
            with asked_in(stage or "other"):
                return wait_for(self._client(retries).chat(messages, temperature=temperature, extra=extra))

        limit_field = self._limit_field
        try:
            reply = answer(limit_field)
        except EndpointError as error:
            if limit_field != NEW_LIMIT or error.kind != "refused" or NEW_LIMIT not in str(error):
                raise
            reply = answer(OLD_LIMIT)
            self._limit_field = OLD_LIMIT
        prompt, written = reply.usage.tokens_in, reply.usage.tokens_out
        used = {"prompt_tokens": prompt, "completion_tokens": written, "total_tokens": prompt + written}
        return reply.text.strip(), {**used, "calls": 1, "stage": stage}

    def close(self) -> None:
        """End the connections. Safe to call twice."""
        with self._lock:
            clients, self._clients = self._clients, {}
        for client in clients.values():
            client.shut()

    def _client(self, retries: int) -> Client:
        with self._lock:
            if retries not in self._clients:
                config = self._config.model_copy(update={"max_retries": SENT_PER_RETRY * max(1, retries) - 1})
                self._clients[retries] = Client(config, "optimizer", key=self._key, api_version=self._api_version)
            return self._clients[retries]


class SkillEnv(ABC):
    """Items in splits, and how one is rolled out under a document.

    An item is a dictionary of JSON values; `id` names it in records, and where it is missing its place does.
    """

    task_types: Sequence[str] = ()
    """Tags by which the test results are reported."""
    name: str = "skill_env"

    @abstractmethod
    def get_items(self, split: str) -> list[dict[str, Any]]:
        """All items of a split: `train`, `val` or `test`, or as the config names them."""

    @abstractmethod
    def rollout_one(self, *, item: dict[str, Any], skill: str, target_client: BaseLLMClient) -> RolloutResult:
        """Roll out one item under the document `skill`. Called from several threads at once.

        Returns:
            The scored rollout: `hard` 1 or 0, `soft` from 0 to 1; without partial credit `soft = float(hard)`.
        """

    def get_initial_skill(self) -> str:
        """The first document."""
        return ""

    def get_task_types(self) -> list[str]:
        """The tags by which the test results are reported."""
        return list(self.task_types)


NO_SKILL = "You are a helpful assistant. Answer the question concisely."
"""Instructions in the place of an empty document."""


class SimpleQAEnv(SkillEnv):
    """Asks each question once, with the document as the system prompt.

    `hard`: a reference answer stands in the prediction, ignoring case and spacing. `soft`: 1 then, else the best token F1.

    Args:
        train_items: items to train on: `question`, `answers`, and perhaps `id`, `context` and `task_type`.
        val_items: items that the gate decides by.
        test_items: items that the result is reported on.
        max_completion_tokens: longest answer.
        initial_skill: the first document.
    """

    name = "simple_qa"

    def __init__(
        self,
        *,
        train_items: Sequence[dict[str, Any]],
        val_items: Sequence[dict[str, Any]],
        test_items: Sequence[dict[str, Any]],
        max_completion_tokens: int = 512,
        initial_skill: str = "",
    ) -> None:
        self._splits = {"train": list(train_items), "val": list(val_items), "test": list(test_items)}
        self.max_completion_tokens = max_completion_tokens
        self._initial_skill = initial_skill
        types = {str(item["task_type"]) for items in self._splits.values() for item in items if item.get("task_type")}
        self.task_types = sorted(types)

    def get_initial_skill(self) -> str:
        """The first document, as it was handed in."""
        return self._initial_skill

    def get_items(self, split: str) -> list[dict[str, Any]]:
        """The items of a split.

        Raises:
            SplitError: there is no such split.
        """
        if split not in self._splits:
            raise SplitError(f"Unknown split {split!r}.{did_you_mean(split, self._splits)}")
        return self._splits[split]

    def rollout_one(self, *, item: dict[str, Any], skill: str, target_client: BaseLLMClient) -> RolloutResult:
        """Ask the question and score the answer.

        Raises:
            EndpointError: the client got no answer.
        """
        said = {name: str(item.get(name) or "") for name in ("question", "context", "task_type", "task_description")}
        answers = item.get("answers") or []
        answers = [str(each) for each in (answers if isinstance(answers, list | tuple) else [answers])]
        context = [f"Context:\n{said['context']}"] if said["context"] else []
        user = "\n\n".join([*context, f"Question: {said['question']}", "Answer:"])
        messages = {"system": skill or NO_SKILL, "user": user}
        text, _ = target_client.chat(
            **messages, max_completion_tokens=self.max_completion_tokens, stage="rollout", retries=2
        )
        prediction = (text or "").strip()
        hard = int(matches(prediction, answers))
        shown = f"(pred={prediction[:80]!r}, refs={[answer[:60] for answer in answers[:3]]})"
        return RolloutResult(
            id=str(item.get("id", "")),
            hard=hard,
            soft=1.0 if hard else round(token_f1(prediction, answers), 4),
            n_turns=1,
            fail_reason="" if hard else f"prediction does not match any reference answer {shown}",
            task_type=said["task_type"],
            task_description=said["task_description"],
            predicted_answer=prediction,
            question=said["question"],
            reference_text=" | ".join(answers),
            target_system_prompt=messages["system"],
            target_user_prompt=user,
            conversation=[
                {"role": role, "content": content} for role, content in {**messages, "assistant": prediction}.items()
            ],
        )


FREE = ("workers", "verbose", "save_every_step", "eval_test", "out_root", "extras")
"""Keys of the config that a continued run may change: no result depends on them."""
OURS = {
    "num_epochs": "epochs",
    "optimizer_max_completion_tokens": "max_answer_tokens",
    "gate_metric": "gate.metric",
    "gate_mixed_weight": "gate.mixed_weight",
    **{
        name: name
        for name in "batch_size minibatch_size merge_batch_size edit_budget min_edit_budget lr_scheduler failure_only".split()
    },
}
"""Keys of `SkillOptConfig` → keys of the section `optimize`."""


@dataclass
class SkillOptConfig:
    """Settings of a text optimization, with `skillrl`'s keys and defaults (the paper's).

    Raises:
        ConfigError: values that cannot be used; all problems at once.
    """

    num_epochs: int = 4
    """Passes over the training items."""
    batch_size: int = 40
    """Items rolled out a step."""
    minibatch_size: int = 8
    """Rollouts shown to one analyst."""
    merge_batch_size: int = 8
    """Patches merged by one call."""
    edit_budget: int = 4
    """Most edits a step at the start: the textual learning rate."""
    min_edit_budget: int = 2
    """Most edits a step at the end."""
    lr_scheduler: SchedulerMode = "cosine"
    """How the edit budget falls: `constant`, `linear` or `cosine`."""
    gate_metric: GateMetric = "hard"
    """Score that a candidate has to exceed: `hard`, `soft` or `mixed`."""
    gate_mixed_weight: float = 0.5
    """Weight w of the soft score under `mixed`: (1 - w) hard + w soft."""
    failure_only: bool = False
    """Reflect on failures alone."""
    workers: int = 8
    """Concurrent rollouts and calls; 1 or less: one after another."""
    seed: int = 42
    """Seed of batches and minibatches."""
    out_root: str = "outputs/skillrl_run"
    """Folder of the run; a run in it is continued."""
    selection_split: str = "val"
    """Split that the gate decides by."""
    test_split: str = "test"
    """Split that the result is reported on."""
    eval_test: bool = True
    """Roll out the first and the best document on the test split at the end."""
    save_every_step: bool = True
    """Write the document after every step to `skills/`."""
    optimizer_max_completion_tokens: int = 4096
    """Longest answer of an analyst or merger."""
    verbose: bool = True
    """Print progress."""
    extras: dict[str, Any] = field(default_factory=dict)
    """Anything of the user's own; saved with the run."""

    def __post_init__(self) -> None:
        if not self.out_root:
            raise ConfigError("SkillOptConfig: out_root must name a folder.")
        section_of(self)

    def to_dict(self) -> dict[str, Any]:
        """All keys with their values."""
        return asdict(self)


def section_of(config: SkillOptConfig) -> OptimizeConfig:
    """The config section that means the same as `config`; what skillrl 1.0.0 does not do is off.

    Raises:
        ConfigError: a value cannot be used; all problems at once.
    """
    own: dict[str, Any] = {"gate": {}, "slow_update": False}
    for theirs, ours in OURS.items():
        section, _, key = ours.rpartition(".")
        (own[section] if section else own)[key] = getattr(config, theirs)
    try:
        return OptimizeConfig.model_validate(own, strict=True)
    except ValidationError as error:
        named, problems = {ours: theirs for theirs, ours in OURS.items()}, []
        for problem in error.errors():
            place = ".".join(map(str, problem["loc"]))
            problems.append(f"{named.get(place, place)}: {' '.join(explain_problem(problem, OptimizeConfig))}")
        raise ConfigError(f"SkillOptConfig: {'; '.join(problems)}") from None


@dataclass
class EnvRollouts:
    """Rolls out a document on the items of a `SkillEnv`, several at once.

    Args:
        env: the user's environment.
        target_client: handed to it.
        workers: concurrent rollouts; 1 or less: one after another.
    """

    env: SkillEnv
    target_client: BaseLLMClient
    workers: int = 8
    _items: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The environment's items by the name that the loop knows them by."""

    def items(self, split: str) -> list[Item]:
        """The items of a split as the loop has them: a name that is unique, and the content.

        Raises:
            EnvError: the environment has no such split, or returns no list of dictionaries that JSON can hold.
        """
        call = f"{type(self.env).__name__}.get_items({split!r})"
        try:
            named = {f"{split}-{place}": item for place, item in enumerate(self.env.get_items(split))}
            # The type stands in place of what JSON cannot hold: an address in memory differs from run to run.
            text = json.dumps(named, default=lambda value: f"<{type(value).__name__}>")
        except KeyError as error:
            raise SplitError(
                f"{call} raised KeyError: {error}. selection_split and test_split name the splits; training items are those of 'train'."
            ) from error
        except (TypeError, ValueError) as error:  # a key that is no text, or an item that holds itself
            raise EnvError(f"{call} must return a list of dictionaries that JSON can hold: {error}") from None
        self._items |= named
        return [{"id": name, "item": item} for name, item in json.loads(text).items()]

    def __call__(
        self, document: str, items: Sequence[Item], *, seed: int, on_result: Callable[[int, RolloutResult], None]
    ) -> list[RolloutResult]:
        """Roll out all items; see `calls.RollOutFn`. A rollout that raises an error is a failed rollout.

        Raises:
            BudgetError: the budget is spent; rollouts under way are finished and saved.
            EndpointError: the target's model cannot be reached, or serves nobody.
            EnvError: every rollout raised an error, or one returned no result.
        """
        results: dict[int, RolloutResult] = {}
        errors: dict[int, Exception] = {}

        def roll_out(place: int) -> None:
            found = self._one(document, str(items[place]["id"]))
            if isinstance(found, Exception):
                errors[place] = found
            else:
                results[place] = found
                on_result(place, found)

        in_threads([partial(roll_out, place) for place in range(len(items))], self.workers)
        if errors and not results:
            error = errors[min(errors)]
            said = f"All {len(errors)} rollouts of {type(self.env).__name__} failed; the first: {type(error).__name__}: {error}"
            raise (EndpointError(said, error.kind) if isinstance(error, EndpointError) else EnvError(said)) from error
        for place, error in errors.items():  # saved only now: a run in which nothing works has to repeat them
            name = str(items[place]["id"])
            reason = f"rollout_error: {type(error).__name__}: {error}"
            of_item = str(self._items[name].get("id", name))
            results[place] = RolloutResult(of_item, fail_reason=reason, extras={"stop_reason": "error"})
            on_result(place, results[place])
        return [results[place] for place in range(len(items))]

    def _one(self, document: str, name: str) -> RolloutResult | Exception:
        """The result of one rollout, as it will be read from the disk, or the error that the user's code raised: a failed rollout is data.

        Raises:
            EnvError: it is no result, or JSON cannot hold it.
        """
        try:
            found: Any = self.env.rollout_one(item=self._items[name], skill=document, target_client=self.target_client)
        except Exception as error:
            if isinstance(error, SkillTTRLError) and getattr(error, "kind", None) not in ONE_REQUEST:
                raise
            return error
        where = f"{type(self.env).__name__}.rollout_one returned for the item {name!r}"
        row = found if isinstance(found, Mapping) else getattr(found, "to_dict", lambda: None)()
        if not isinstance(row, Mapping):
            raise EnvError(f"{where} {found!r:.200}; expected a RolloutResult, or a dictionary of its fields.")
        try:
            result = RolloutResult.from_dict(json.loads(json.dumps(row)))
        except (TypeError, ValueError) as error:
            raise EnvError(f"{where} a result that cannot be used: {error}") from None
        if row.get("hard", 0) not in (0, 1) or not 0.0 <= result.soft <= 1.0:
            raise EnvError(
                f"{where} hard = {row.get('hard')!r}, soft = {result.soft!r}. hard is 0 or 1, soft from 0 to 1."
            )
        return result


def ask_client(client: BaseLLMClient, system: str, user: str, *, max_tokens: int, stage: str) -> Reply:
    """One answer of a client of `skillrl`'s interface; see `calls.ChatFn`.

    Raises:
        EndpointError: the client raised an error, or reports one in place of an answer.
    """
    who, kind = f"The optimizer's client {type(client).__name__}({client.model!r})", stage.partition("_")[0]
    named = kind if kind in ("analyst", "merge") else stage  # as skillrl names its stages
    try:
        text, used = client.chat(system=system, user=user, max_completion_tokens=max_tokens, stage=named)
        used = dict(used or {})
    except SkillTTRLError:
        raise
    except Exception as error:  # the user's code
        raise EndpointError(f"{who} raised {type(error).__name__}: {error}", "client") from error
    if not isinstance(text, str):
        raise EndpointError(f"{who} returned {text!r:.200}; expected a text.", "malformed")
    if not text and used.get("error"):
        raise EndpointError(f"{who} reports: {used['error']}", "client")
    prompt, answer = (used.get(name) for name in ("prompt_tokens", "completion_tokens"))
    return Reply(text, prompt if isinstance(prompt, int) else 0, answer if isinstance(answer, int) else 0)


class SkillOptTrainer:
    """Trains a document of skills while the models stay as they are.

    Args:
        config: the settings.
        env: the task: its items, and one scored rollout.
        optimizer_client: the model that reflects, merges and ranks.
        target_client: the model that acts; handed to the environment.
        initial_skill: the first document; None: the environment's.
        prompt_overrides: texts for `analyst_error`, `analyst_success`, `merge_failure`, `merge_success`, `merge_final`, `ranking`.

    Raises:
        ConfigError: the name of a prompt is unknown.
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
    ) -> None:
        self.cfg, self.env = config, env
        self.optimizer_client, self.target_client = optimizer_client, target_client
        self.prompt_overrides = dict(prompt_overrides or {})
        self.initial_skill: str = env.get_initial_skill() if initial_skill is None else initial_skill
        self.current_skill = self.best_skill = self.initial_skill
        self.current_score = self.best_score = -1.0
        self.best_step = self.global_step = 0
        self.history: list[dict[str, Any]] = []
        self._config = section_of(config)
        overrides = {
            name: text
            if name in PARTS and places_of(name)
            else text.replace("$", "$$")  # a text without places is sent as it is
            for name, text in self.prompt_overrides.items()
        }
        self._templates = Templates(base="optimize", overrides=overrides)

    def train(self) -> dict[str, Any]:
        """Run all steps, or those that are left in `out_root`, and return the summary.

        Raises:
            DataError, EnvError: a split is empty or cannot be used, or no rollout works.
            EndpointError, BudgetError: a model cannot be used any more; the same call continues.
            RunFolderError: `out_root` holds another run, or cannot be written.
        """
        began, config, cfg = time.monotonic(), self._config, self.cfg
        roll_out = EnvRollouts(self.env, self.target_client, max(1, cfg.workers))
        test = roll_out.items(cfg.test_split) if cfg.eval_test else []
        task = OptimizeTask(roll_out.items("train"), roll_out.items(cfg.selection_split), test, self.env.name)
        root = Path(cfg.out_root)
        with self._opened(root, task) as journal:
            write_file(root / "config.json", cfg.to_dict())
            chat = partial(ask_client, self.optimizer_client)
            calls = Calls(chat, roll_out, journal, cfg.seed, workers=max(1, cfg.workers), early_stop=False)
            watch, optimizer = TrainerWatch(self, root), LLMOptimizer(calls, config, self._templates)
            found = optimize(Loop(task, config, calls, optimizer, cfg.seed, watch), self.initial_skill)
            watch.end(found)
            if types := self.env.get_task_types():
                for name, results in (("baseline", found.test_first), ("best", found.test_best)):
                    if results is not None:
                        write_file(root / f"test_eval_{name}" / "buckets.json", buckets(results, types))
            summary = self._summary(found, calls, time.monotonic() - began)
            write_file(root / "summary.json", summary)
        self.say(f"best selection score {self.best_score:.4f} (step {self.best_step}); written to {root}")
        return summary

    @contextmanager
    def _opened(self, root: Path, task: OptimizeTask) -> Iterator[Journal]:
        """The journal in the folder of the run, locked, after a check that the folder belongs to this run."""
        made_with = {
            "config": {key: value for key, value in self.cfg.to_dict().items() if key not in FREE},
            "initial_skill": skill_hash(self.initial_skill),
            "train": content_hash(task.train),
            "selection": content_hash(task.selection),
            "prompts": content_hash(prompt_texts(self._templates)),
        }
        with annotate_error(RunFolderError, "(--output is out_root here.)"):
            with wrap_os_errors("create", root):
                root.mkdir(parents=True, exist_ok=True)
            if (root / "runtime_state.json").exists() and not (root / IDENTITY).exists():
                raise RunFolderError(
                    f"{root} holds a run of skillrl, which cannot be continued: it has no record of its calls. Choose another out_root; to "
                    "start from its document, pass the text of its best_skill.md as initial_skill."
                )
            folder = SkillOptFolder(root, root / JOURNAL, root / IDENTITY, made_with)
        with folder:
            journal = Journal(root / JOURNAL)
            if journal.replayed:
                self.say(f"continuing the run in {root}: {journal.replayed} finished calls and rollouts")
            try:
                yield journal
            finally:
                if not len(journal):  # nothing was finished: other settings may start here
                    (root / IDENTITY).unlink(missing_ok=True)

    def _summary(self, found: Optimized, calls: Calls, seconds: float) -> dict[str, Any]:
        """The report, with skillrl's keys; calls and fallbacks are ours."""
        actions = [str(row["action"]) for row in found.rows]
        first, best = (
            compute_score(results) if results else (None, None) for results in (found.test_first, found.test_best)
        )
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
            "calls": {stage: vars(counts) for stage, counts in calls.counts.items()},
            "fallbacks": dict(sum((Counter(row["fallbacks"]) for row in (*found.rows, *found.ends)), Counter[str]())),
        }

    def say(self, text: str) -> None:
        """Print a line of progress, where the config wants it."""
        if self.cfg.verbose:
            print(f"[skillopt] {text}", flush=True)


class SkillOptFolder(AppendLog):
    """The folder of a trainer's run: locked, and continued only by the same run."""

    holds = "a run of SkillOptTrainer"


class TrainerWatch(FolderWatch):
    """Writes the files of each step, updates the trainer's attributes and prints progress."""

    def __init__(self, trainer: SkillOptTrainer, folder: Path) -> None:
        super().__init__(folder, snapshots=trainer.cfg.save_every_step)
        self._trainer, self._steps = trainer, 0
        trainer.history = self.rows

    def begin(self, state: OptimizeState, steps: int) -> None:
        """Write the first document, and print its score."""
        super().begin(state, steps)
        self._steps = steps
        self._take(state, f"{steps} steps; the first document scores {state.current_score:.4f}")

    def step(self, record: StepRecord, state: OptimizeState) -> None:
        """Write a step, and print what it did."""
        super().step(record, state)
        row = self.rows[-1]
        applied = row.get("apply_report", {"applied": 0})["applied"]
        scores = f"batch {row['rollout_hard']:.4f}, current {state.current_score:.4f}, best {state.best_score:.4f}"
        lost = f", unusable answers: {dict(record.fallbacks)}" if record.fallbacks else ""
        self._take(state, f"step {record.step}/{self._steps}: {record.action}, {applied} edits, {scores}{lost}")

    def _take(self, state: OptimizeState, said: str) -> None:
        trainer = self._trainer
        trainer.current_skill, trainer.current_score = state.current, state.current_score
        trainer.best_skill, trainer.best_score, trainer.best_step = state.best, state.best_score, state.best_step
        trainer.global_step = state.step
        trainer.say(f"{trainer.env.name}: {said}")


def buckets(results: Sequence[RolloutResult], task_types: Sequence[str]) -> dict[str, dict[str, float]]:
    """Test results by type of task, and overall."""
    kinds = [each.task_type or "other" for each in results]
    names = (*task_types, *sorted({*kinds} - {*task_types}), "overall")
    found = {name: {"total": 0, "hard": 0, "soft": 0.0} for name in names}
    for kind, each in zip(kinds, results, strict=True):
        for bucket in (found[kind], found["overall"]):
            bucket["total"] += 1
            bucket["hard"] += each.hard
            bucket["soft"] += each.soft
    return found

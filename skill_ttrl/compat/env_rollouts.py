"""A `SkillEnv` and its clients as the callables of the loop: rollouts in threads, one answer of the optimizer's model."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextvars import copy_context
from dataclasses import dataclass, field
from typing import Any

from skill_ttrl.compat.clients import BaseLLMClient
from skill_ttrl.compat.skill_env import SkillEnv
from skill_ttrl.errors import EndpointError, EnvError, SkillTTRLError, SplitError
from skill_ttrl.optimize.calls import ONE_REQUEST, Item, Reply
from skill_ttrl.optimize.types import RolloutResult

STAGES = {"analyst": "analyst", "merge": "merge"}
"""Beginnings of our stages' names, and how skillrl calls them to its clients."""
RAISED = "rollout_error: "
"""Begins the reason of a failed rollout that raised an error, as in skillrl."""


@dataclass
class EnvRollouts:
    """Rolls out a document on the items of a `SkillEnv`, several at once.

    Args:
        env: of the user.
        target_client: handed to it.
        workers: rollouts at once; 1 or less: one after another.
    """

    env: SkillEnv
    target_client: BaseLLMClient
    workers: int = 8
    _items: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The environment's items by the name that the loop knows them by."""

    def items(self, split: str) -> list[Item]:
        """The items of a split as the loop has them: a name that is unique, and the content.

        Raises:
            EnvError: the environment has no such split, or what it gives is no list of dictionaries.
        """
        try:
            found = self.env.get_items(split)
        except KeyError as error:
            raise SplitError(
                f"{type(self.env).__name__}.get_items({split!r}) raised KeyError: {error}. The config names the splits: "
                "selection_split and test_split; training items are always those of 'train'."
            ) from error
        if not isinstance(found, Sequence) or not all(isinstance(item, dict) for item in found):
            raise EnvError(
                f"{type(self.env).__name__}.get_items({split!r}) must give a list of dictionaries, found {found!r:.200}."
            )
        named = {f"{split}-{place}": item for place, item in enumerate(found)}
        self._items |= named
        try:
            return [{"id": name, "item": _plain(item)} for name, item in named.items()]
        except (TypeError, ValueError) as error:  # a key that is no text, or an item that holds itself
            raise EnvError(
                f"{type(self.env).__name__}.get_items({split!r}) gives items that are no JSON: {error}"
            ) from None

    def __call__(
        self, document: str, items: Sequence[Item], *, seed: int, on_result: Callable[[int, RolloutResult], None]
    ) -> list[RolloutResult]:
        """Roll out all items; see `calls.RollOutFn`. An error that one raises is a failed rollout.

        Raises:
            BudgetError: the budget is spent; rollouts on their way are finished and saved.
            EndpointError: the target's model cannot be reached, or serves nobody.
            EnvError: every rollout raised an error, or one gave no result.
        """
        results: dict[int, RolloutResult] = {}
        errors: dict[int, Exception] = {}

        def roll_out(place: int) -> None:
            found = self._one(document, items[place])
            if isinstance(found, Exception):
                errors[place] = found
                return
            results[place] = found
            on_result(place, found)

        pool = ThreadPoolExecutor(max_workers=max(1, min(self.workers, len(items))))
        try:
            for future in as_completed(
                [pool.submit(copy_context().run, roll_out, place) for place in range(len(items))]
            ):
                future.result()
        finally:
            pool.shutdown(cancel_futures=True)  # waits for what is on its way: it is paid for
        if errors and not results:
            raise _nothing_works(self.env, errors)
        for place, error in errors.items():  # saved only now: a run in which nothing works is to begin with them again
            reason = f"{RAISED}{type(error).__name__}: {error}"
            item = self._items[str(items[place]["id"])]
            results[place] = RolloutResult(id=str(item.get("id", items[place]["id"])), fail_reason=reason)
            on_result(place, results[place])
        return [results[place] for place in range(len(items))]

    def _one(self, document: str, item: Item) -> RolloutResult | Exception:
        try:
            own = self._items[str(item["id"])]
            found: Any = self.env.rollout_one(item=own, skill=document, target_client=self.target_client)
        except EndpointError as error:
            if error.kind not in ONE_REQUEST:
                raise
            return error
        except SkillTTRLError:
            raise
        except Exception as error:  # the user's code: a failed rollout is data
            return error
        return self._checked(found, str(item["id"]))

    def _checked(self, found: Any, name: str) -> RolloutResult:
        """The result of the environment, as it will be read from the disk.

        Raises:
            EnvError: it is no result, or JSON cannot hold it.
        """
        where = f"{type(self.env).__name__}.rollout_one gave for the item {name!r}"
        row = found if isinstance(found, Mapping) else getattr(found, "to_dict", lambda: None)()
        if not isinstance(row, Mapping):
            raise EnvError(f"{where} {found!r:.200}; a RolloutResult is needed, or a dictionary of its fields.")
        if row.get("hard", 0) not in (0, 1):
            raise EnvError(f"{where} hard = {row['hard']!r}; 1 for solved, else 0. Partial credit is soft.")
        try:
            result = RolloutResult.from_dict(json.loads(json.dumps(row)))
        except (TypeError, ValueError) as error:
            raise EnvError(f"{where} a result that cannot be used: {error}") from None
        if not 0.0 <= result.soft <= 1.0:
            raise EnvError(f"{where} soft = {result.soft!r}; partial credit is from 0 to 1.")
        return result


@dataclass(frozen=True)
class ClientChat:
    """Asks a client of `skillrl`'s interface; see `calls.ChatFn`."""

    client: BaseLLMClient

    def __call__(self, system: str, user: str, *, max_tokens: int, stage: str) -> Reply:
        """One answer.

        Raises:
            EndpointError: the client raised an error, or reports one in place of an answer.
        """
        named = STAGES.get(stage.partition("_")[0], stage)
        try:
            found = self.client.chat(system=system, user=user, max_completion_tokens=max_tokens, stage=named, retries=3)
            text, used = found
            used = dict(used or {})
        except SkillTTRLError:
            raise
        except Exception as error:  # the user's code
            raise EndpointError(f"{self._name} raised {type(error).__name__}: {error}", "client") from error
        if not isinstance(text, str):
            raise EndpointError(f"{self._name} gave {text!r:.200} in place of a text.", "malformed")
        if not text and used.get("error"):
            raise EndpointError(f"{self._name} reports: {used['error']}", "client")
        return Reply(text, _count(used.get("prompt_tokens")), _count(used.get("completion_tokens")))

    @property
    def _name(self) -> str:
        return f"The optimizer's client {type(self.client).__name__}({self.client.model!r})"


def _plain(item: Mapping[str, Any]) -> Any:
    """The item as JSON, with the type in the place of what JSON cannot hold: an address in memory differs from run to run."""
    return json.loads(json.dumps(item, default=lambda value: f"<{type(value).__name__}>"))


def _nothing_works(env: SkillEnv, errors: Mapping[int, Exception]) -> SkillTTRLError:
    """The error of a batch in which every rollout raised one."""
    error = errors[min(errors)]
    said = f"All {len(errors)} rollouts of {type(env).__name__} failed; the first: {type(error).__name__}: {error}"
    kind = EndpointError(said, error.kind) if isinstance(error, EndpointError) else EnvError(said)
    kind.__cause__ = error
    return kind


def _count(value: object) -> int:
    return value if isinstance(value, int) else 0

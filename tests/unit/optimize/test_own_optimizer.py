"""Mistakes in an optimizer or a chat function of the user's own are one sentence that names it and what is expected."""

from __future__ import annotations

import copy
import sys
import types
from collections.abc import Iterator
from typing import Any

import pytest

from skill_ttrl.config import OptimizeConfig
from skill_ttrl.errors import BudgetError, ConfigError, ExtensionError
from skill_ttrl.optimize.calls import Calls, ChatRequest, Reply
from skill_ttrl.optimize.optimizer import Optimizer, StepView
from skill_ttrl.optimize.optimizers import check_optimizer, make_optimizer
from skill_ttrl.optimize.types import Edit, Patch, RawPatch, RolloutResult
from skill_ttrl.prompts.templates import Templates

VIEW = StepView(3, 1, "", (), 4, 0)


class Mine:
    """Returns, or raises, what it is told."""

    answer: Any = None
    writer = "one of its own"

    def __init__(self, calls: Any, config: Any, templates: Any) -> None: ...

    def reflect(self, view: StepView) -> Any:
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer

    def merge(self, view: StepView, patches: Any) -> Any:
        return self.reflect(view)

    def select(self, view: StepView, patch: Any, max_edits: int) -> Any:
        return self.reflect(view)


class Boom:
    """No constructor."""


class Half:
    """Two methods are missing."""

    def __init__(self, calls: Any, config: Any, templates: Any) -> None: ...
    def reflect(self, view: StepView) -> Any: ...


@pytest.fixture(autouse=True)
def module(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    found = types.ModuleType("of_ones_own")
    for each in (Mine, Boom, Half):
        setattr(found, each.__name__, each)
    vars(found).update(text="a text", made=lambda calls, config, templates: 7)
    monkeypatch.setitem(sys.modules, "of_ones_own", found)
    yield
    Mine.answer = None


def never(*arguments: Any, **more: Any) -> list[RolloutResult]:
    raise AssertionError


def made(name: str = "Mine", answer: Any = None) -> Optimizer:
    Mine.answer = answer
    return make_optimizer(f"of_ones_own:{name}", Calls(None, never), OptimizeConfig(), Templates())


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Boom", "of_ones_own:Boom"),
        ("Half", "of_ones_own:Half.*merge.*select"),
        ("text", "of_ones_own:text"),
    ],
)
def test_a_class_that_is_no_optimizer_is_refused_before_anything_is_done(name: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        check_optimizer(f"of_ones_own:{name}")


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (None, "None"),
        (Patch(), "Patch"),
        ([Patch()], "Patch"),
        ([RawPatch(Patch(["a rule"]))], "list of Edit"),  # type: ignore[list-item]
        ([RawPatch({"edits": []})], "list of Edit"),  # type: ignore[arg-type]
    ],
)
def test_patches_of_another_type_are_refused(answer: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        made(answer=answer).reflect(VIEW)


@pytest.mark.parametrize("answer", [None, [], "text"])
def test_merge_and_select_return_one_patch(answer: Any) -> None:
    with pytest.raises(ConfigError, match="'of_ones_own:Mine': merge must return a Patch"):
        made(answer=answer).merge(VIEW, [])
    with pytest.raises(ConfigError, match="'of_ones_own:Mine': select must return a Patch"):
        made(answer=answer).select(VIEW, Patch(), 2)


def test_what_it_raises_names_the_method_and_the_step_and_our_own_errors_pass() -> None:
    with pytest.raises(ExtensionError, match="'of_ones_own:Mine' failed in merge of step 3: KeyError: 'rule'"):
        made(answer=KeyError("rule")).merge(VIEW, [])
    with pytest.raises(BudgetError, match="spent"):
        made(answer=BudgetError("spent")).reflect(VIEW)


def test_a_right_one_is_passed_through_with_its_attributes() -> None:
    patches = [RawPatch(Patch([Edit("append", "- a rule")]))]
    found = made(answer=patches)
    assert found.reflect(VIEW) == patches and getattr(found, "writer") == "one of its own"  # noqa: B009
    assert getattr(found, "state_dict", dict) is dict and copy.copy(found).reflect(VIEW) == patches


# --- the model of one's own ---


def with_dict(system: str, user: str, *, max_tokens: int, stage: str) -> Any:
    return "text", {}


def without_text(system: str, user: str, *, max_tokens: int, stage: str) -> Any:
    return Reply(None)  # type: ignore[arg-type]


@pytest.mark.parametrize(("chat", "words"), [(with_dict, "text"), (without_text, "None")])
def test_an_answer_that_is_no_reply_is_named_with_the_contract(chat: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=rf"{words}.*chat\(system, user, \*, max_tokens, stage\)"):
        Calls(chat, never).ask([ChatRequest("ranking", "s", "u")])

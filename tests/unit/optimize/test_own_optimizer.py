"""Mistakes in an optimizer or a chat function of the user's own name it and what is expected."""

from __future__ import annotations

import sys
import types
from typing import Any

import pytest

from skill_ttrl.config import OptimizeConfig
from skill_ttrl.errors import BudgetError, ConfigError, ExtensionError
from skill_ttrl.optimize.calls import Calls
from skill_ttrl.optimize.engines import check_optimizer, make_optimizer
from skill_ttrl.optimize.types import Edit, Patch, RawPatch, RolloutResult, StepView
from skill_ttrl.prompts.templates import Templates

VIEW = StepView(3, 1, "", (), 4, 0)


class Mine:
    """Returns, or raises, `answer`."""

    answer: Any = None

    def __init__(self, calls: Any, config: Any, templates: Any) -> None: ...

    def reflect(self, view: StepView) -> Any:
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer

    def merge(self, view: StepView, patches: Any) -> Any:
        return self.reflect(view)

    def select(self, view: StepView, patch: Any, max_edits: int) -> Any:
        return self.reflect(view)


class Half:
    """Two methods are missing."""

    def __init__(self, calls: Any, config: Any, templates: Any) -> None: ...
    def reflect(self, view: StepView) -> Any: ...


@pytest.fixture(autouse=True)
def module(monkeypatch: pytest.MonkeyPatch) -> None:
    found = types.ModuleType("of_ones_own")
    vars(found).update(Mine=Mine, Half=Half, Boom=object, text="a text")
    monkeypatch.setitem(sys.modules, "of_ones_own", found)


def never(*arguments: Any, **more: Any) -> list[RolloutResult]:
    raise AssertionError


def made(monkeypatch: pytest.MonkeyPatch, answer: Any) -> Any:
    monkeypatch.setattr(Mine, "answer", answer)
    return make_optimizer("of_ones_own:Mine", Calls(None, never), OptimizeConfig(), Templates())


@pytest.mark.parametrize(("name", "missing"), [("Boom", ""), ("Half", "merge and no select"), ("text", "")])
def test_a_class_that_is_no_optimizer_is_refused_before_anything_is_done(name: str, missing: str) -> None:
    with pytest.raises(ConfigError, match=f"of_ones_own:{name}.*{missing}"):
        check_optimizer(f"of_ones_own:{name}")


@pytest.mark.parametrize(
    ("answer", "wanted"),
    [
        (None, "list of RawPatch"),
        (Patch(), "list of RawPatch"),
        ([Patch()], "list of RawPatch"),
        ([RawPatch(Patch(["a rule"]))], "list of Edit"),  # type: ignore[list-item]
        ([RawPatch({"edits": []})], "list of Edit"),  # type: ignore[arg-type]
    ],
)
def test_patches_of_another_type_are_refused(answer: Any, wanted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    own = made(monkeypatch, answer)
    with pytest.raises(ConfigError, match=f"of_ones_own:Mine.*reflect .*{wanted}"):
        own.reflect(VIEW)
    if not isinstance(answer, Patch):
        for method, further in (("merge", ([],)), ("select", (Patch(), 2))):
            with pytest.raises(ConfigError, match=f"of_ones_own:Mine.*{method} .*Patch"):
                getattr(own, method)(VIEW, *further)


def test_errors_name_the_method_and_the_step_and_a_right_one_is_passed_through(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ExtensionError, match=r"of_ones_own:Mine.* merge of step 3: KeyError: 'rule'"):
        made(monkeypatch, KeyError("rule")).merge(VIEW, [])
    with pytest.raises(BudgetError, match="spent"):
        made(monkeypatch, BudgetError("spent")).reflect(VIEW)
    patches = [RawPatch(Patch([Edit("append", "- a rule")]))]
    found = made(monkeypatch, patches)
    assert found.reflect(VIEW) == patches

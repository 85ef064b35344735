"""Code is imported by a name from data in one place, which refuses what is no name and what a file of others names."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from skill_ttrl.agents.scripted import make_scripted_agent
from skill_ttrl.config import load_config
from skill_ttrl.envs import make_env
from skill_ttrl.errors import ConfigError, EnvError, SkillBankError, TrustError
from skill_ttrl.llm.backends import BACKENDS
from skill_ttrl.optimize.engines import OPTIMIZERS
from skill_ttrl.registry import import_attribute
from skill_ttrl.rl.algorithms.grpo import ALGORITHMS
from skill_ttrl.rl.losses import LOSSES
from skill_ttrl.skills.bank import SkillBank
from skill_ttrl.skills.embedders import EMBEDDERS
from skill_ttrl.skills.log import BankSettings
from skill_ttrl.trust import powers, trusting
from skill_ttrl.voting.rewards import build_reward
from skill_ttrl.voting.strategies import STRATEGIES
from tests.unit.test_trust import become_another, run_of

ROOT = Path(__file__).parents[2]
NAMES = [
    "evil:", "evil: f", "evil:E v0", "evil:-f", "evil::f", "evil:f:g", "evil:f\n", "evil:f\x00", "evil-mod:f", "\tevil:f", "evil.:f",
    ".evil:f", "evil/x:f", "./evil:f", "9evil:f", "\u3000evil:f", "evil\u200b:f", ":f", ":",
]  # fmt: skip
"""Names that are none, and whose module an importer would find that looks at what stands before the colon."""
DOORS: dict[str, Callable[[str], Any]] = {
    "env.id": make_env,
    "rl.reward": lambda name: build_reward(name, {}),
    "rl.loss": LOSSES.get, "rl.algorithm": ALGORITHMS.get, "rollout.backend": BACKENDS.get,
    "vote.strategy": STRATEGIES.get, "skills.embedder": EMBEDDERS.get, "optimize.optimizer": OPTIMIZERS.get,
    "optimize.granularity": lambda name: import_attribute(name, "reader of documents"),
    "collect.agent": lambda name: make_scripted_agent(name, "x"),
}  # fmt: skip


@pytest.fixture
def evil(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], bool]]:
    """Modules `evil` and `evil-mod`, which leave a mark when they are imported; tells whether one was."""
    for name in ("evil.py", "evil-mod.py"):
        (tmp_path / name).write_text(f"open({str(tmp_path / 'mark')!r}, 'w')\nf = E = len\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield (tmp_path / "mark").exists
    sys.modules.pop("evil", None)


@pytest.mark.parametrize("door", DOORS)
def test_what_is_no_name_imports_nothing(door: str, evil: Callable[[], bool]) -> None:
    for name in NAMES:
        with pytest.raises((ConfigError, EnvError, SkillBankError)):
            DOORS[door](name)
        assert not evil(), name


@pytest.mark.parametrize("key", [key for key in DOORS if "." in key])
def test_what_is_imported_is_a_power(key: str, evil: Callable[[], bool]) -> None:
    """Every name that the importer takes is one that a file of others is refused for."""
    section, name = key.split(".", 1)
    for text in ("evil:f", "evil:E-v0", "evil:x/E-v0"):
        assert "import the Python code" in powers({section: {name: text}})[key]
    with suppress(Exception):  # it is imported, and then it is none of what it should be
        DOORS[key]("evil:f")
    assert evil()


def test_what_a_shown_run_names_is_not_imported_however_it_gets_there(
    tmp_path: Path, evil: Callable[[], bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_of(tmp_path / "run", "rl.loss=evil:f")
    become_another(monkeypatch, tmp_path)
    shown = load_config(run, trust=True)
    with pytest.raises(TrustError, match=r"run/config\.yaml names the Python module evil"):
        LOSSES.get(shown.rl.loss["type"])
    assert not evil()
    with trusting():
        load_config(run)
    assert LOSSES.get(shown.rl.loss["type"]) is not None and evil()


def test_the_settings_of_a_foreign_bank_import_nothing_in_another_bank(
    tmp_path: Path, evil: Callable[[], bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    SkillBank(tmp_path / "bank", embedder="evil:E").close()
    del sys.modules["evil"]  # the bank's own user imported it
    (tmp_path / "mark").unlink()
    become_another(monkeypatch, tmp_path)
    with pytest.raises(TrustError, match="evil"):
        SkillBank(None, BankSettings.of_folder(tmp_path / "bank")).search("anything")
    assert not evil()


IMPORTERS = {"import_module", "__import__", "run_path", "run_module", "spec_from_file_location", "exec", "eval", "make"}
OWN = {
    ("skill_ttrl/registry.py", "import_user_module"),  # the door
    ("envs/lookup.py", "make_env"),  # an id without its module, which the door has imported
    ("envs/alfworld/maker.py", "read_ontology"),  # files of the installed package alfworld
}


def test_one_function_imports_by_name() -> None:
    found = set()
    for folder in ("skill_ttrl", "agents", "envs", "cli"):
        for file in (ROOT / folder).rglob("*.py"):
            text = file.read_text(encoding="utf-8")
            nodes = ast.walk(ast.parse(text)) if any(f"{name}(" in text for name in IMPORTERS) else ()
            for function in [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]:
                found |= {
                    (str(file.relative_to(ROOT)), function.name)
                    for node in ast.walk(function)
                    if isinstance(node, ast.Call) and _is_import(node) and not _is_own(node.args[0])
                }
    assert found == OWN


def _is_import(call: ast.Call) -> bool:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    of = getattr(getattr(call.func, "value", None), "id", "")
    return name in IMPORTERS and bool(call.args) and (name != "make" or of == "gymnasium") and of not in ("re", "model")


def _is_own(argument: ast.expr) -> bool:
    """True for a literal, and for a module of the package that asks for it."""
    first = argument.values[0] if isinstance(argument, ast.JoinedStr) else argument
    inner = first.value if isinstance(first, ast.FormattedValue) else first
    return isinstance(argument, ast.Constant) or (inner is not first and getattr(inner, "id", "") == "__name__")

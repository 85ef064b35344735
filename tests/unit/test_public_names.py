"""The public names of the package: all there, none costs anything before it is used."""

from __future__ import annotations

import subprocess
import sys

import pytest

import skill_ttrl

HEAVY = (
    "torch",
    "transformers",
    "accelerate",
    "peft",
    "datasets",
    "pandas",
    "numpy",
    "gymnasium",
    "chromadb",
    "openai",
)


def modules_after(statement: str) -> set[str]:
    """Top-level modules of a fresh interpreter after `statement`."""
    code = f"{statement}\nimport sys; print('MODULES', *{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.rpartition("MODULES")[2].split())


@pytest.mark.parametrize("name", skill_ttrl.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(skill_ttrl, name) is not None
    assert name in dir(skill_ttrl)


def test_version_is_the_distribution_s() -> None:
    import tomllib
    from pathlib import Path

    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert skill_ttrl.__version__ == project["version"]


@pytest.mark.parametrize(
    "statement",
    [
        "import skill_ttrl",
        "from skill_ttrl import SkillTTRLConfig, load_config, VoteResult, majority_vote",
        "from skill_ttrl.optimize import *",
        "import skill_ttrl.registry, skill_ttrl.errors, skill_ttrl.llm.backend, skill_ttrl.stages.doctor.diagnose",
        "import skill_ttrl.cli.main",
        "from typer.testing import CliRunner\n"
        "from skill_ttrl.cli.main import app\n"
        "assert CliRunner().invoke(app, ['--help']).exit_code == 0",
    ],
    ids=["package", "light names", "text optimizer", "light modules", "cli", "help"],
)
def test_light_imports_load_nothing_heavy(statement: str) -> None:
    assert modules_after(statement).isdisjoint(HEAVY)


def test_telemetry_is_off_unless_the_user_says_otherwise() -> None:
    code = "import skill_ttrl, os; print(os.environ['HF_HUB_DISABLE_TELEMETRY'], os.environ['DO_NOT_TRACK'])"
    environment = {"PATH": "/usr/bin", "DO_NOT_TRACK": "0", "PYTHONPATH": ":".join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.split() == ["1", "0"]

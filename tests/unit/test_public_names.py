"""The public names of the package: all there, none costs anything before it is used."""

from __future__ import annotations

import subprocess
import sys

import pytest

import skill_ttrl

HEAVY = frozenset("torch transformers accelerate peft datasets pandas numpy gymnasium chromadb openai".split())
ENVS_NEED_NOT = frozenset(
    "torch transformers datasets pyarrow pandas spacy bm25s scipy bs4 rapidfuzz Stemmer ijson httpx".split()
)
LIGHT = """
import skill_ttrl
from skill_ttrl import SkillTTRLConfig, load_config, VoteResult, majority_vote
from skill_ttrl.optimize import *
import skill_ttrl.registry, skill_ttrl.errors, skill_ttrl.llm.backend, skill_ttrl.commands.doctor
from skill_ttrl.cli.main import app
from typer.testing import CliRunner
assert CliRunner().invoke(app, ['--help']).exit_code == 0
"""
ENVS = "import skill_ttrl.envs, skill_ttrl.envs.math.env, skill_ttrl.data.records; skill_ttrl.envs.list_envs()"


def modules_after(statement: str) -> set[str]:
    """Top-level modules of a fresh interpreter after these statements."""
    code = f"{statement}\nimport sys; print('MODULES', *{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.rpartition("MODULES")[2].split())


def test_every_public_name_is_there() -> None:
    assert {*skill_ttrl.__all__} <= {*dir(skill_ttrl)}
    assert None not in [getattr(skill_ttrl, name) for name in skill_ttrl.__all__]


def test_version_is_the_distribution_s() -> None:
    import tomllib
    from pathlib import Path

    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert skill_ttrl.__version__ == project["version"]


@pytest.mark.parametrize(("statements", "heavy"), [(LIGHT, HEAVY), (ENVS, ENVS_NEED_NOT)], ids=["package", "envs"])
def test_light_imports_load_nothing_heavy(statements: str, heavy: frozenset[str]) -> None:
    assert modules_after(statements) & heavy == set()


def test_telemetry_is_off_unless_the_user_says_otherwise() -> None:
    code = "import skill_ttrl, os; print(os.environ['HF_HUB_DISABLE_TELEMETRY'], os.environ['DO_NOT_TRACK'])"
    environment = {"PATH": "/usr/bin", "DO_NOT_TRACK": "0", "PYTHONPATH": ":".join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.split() == ["1", "0"]

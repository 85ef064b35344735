"""The files of examples/cluster: scripts that bash can read, and resources with KubeRay's own field names."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.main import get_command

from skill_ttrl.cli.main import app
from skill_ttrl.config import load_config

FOLDER = Path(__file__).parents[3] / "examples" / "cluster"


@pytest.mark.parametrize("name", ["ssh.sh", "slurm.sbatch"])
def test_bash_reads_the_scripts(name: str) -> None:
    done = subprocess.run(["bash", "-n", str(FOLDER / name)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "RAY_AUTH_MODE=token" in (FOLDER / name).read_text(encoding="utf-8")


def commands() -> list[list[str]]:
    """Every `skillttrl` command of the files, as words."""
    job = yaml.safe_load((FOLDER / "rayjob.yaml").read_text())
    found = [job["spec"]["entrypoint"]]
    for path in sorted(FOLDER.iterdir()):
        text = re.sub(r"\\\n#?", " ", path.read_text(encoding="utf-8"))
        found += re.findall(r"^.*?(skillttrl (?:collect|evaluate) .+?)(?: &)?$", text, re.MULTILINE)
    return [shlex.split(each)[1:] for each in found]


def test_the_commands_exist_with_their_options() -> None:
    known: Any = get_command(app)
    found = commands()
    assert len(found) >= 4
    for name, *words in found:
        options = {option for each in known.commands[name].params for option in each.opts}
        assert {word for word in words if word.startswith("-")} <= options, words
        settings = [words[place + 1] for place, word in enumerate(words) if word == "--set"]
        assert all("$" in each or load_config({}, [each]) for each in settings)

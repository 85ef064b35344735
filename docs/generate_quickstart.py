"""Put what `make quickstart` ends with into README.md, from a run's `summary.json`. `tests/integration/test_docs.py` holds the two together.

    $ skillttrl train quickstart --output RUN
    $ python docs/generate_quickstart.py RUN

keeps the run's summary beside this file and writes the block; without RUN the block is written from the summary that is kept.
"""

from __future__ import annotations

import contextlib
import io
import shutil
import sys
import tempfile
from pathlib import Path

from rich.console import Console

from skill_ttrl.cli.train import show_outcome
from skill_ttrl.config import load_config
from skill_ttrl.runs.folder import RunFolder
from skill_ttrl.runs.summary import Summary
from skill_ttrl.types import from_json

README = Path(__file__).parents[1] / "README.md"
KEPT = Path(__file__).with_name("quickstart-summary.json")
MARKS = ("<!-- quickstart-output -->\n```text\n", "```\n<!-- /quickstart-output -->")
WIDTH = 80


def with_output(readme: str) -> str:
    """README.md with the block made anew."""
    start, end = readme.index(MARKS[0]) + len(MARKS[0]), readme.index(MARKS[1])
    return readme[:start] + output() + readme[end:]


def output() -> str:
    """Output of the command at the end of the run whose summary is kept."""
    screen = Console(file=io.StringIO(), width=WIDTH, force_terminal=False)
    folder = Path("runs/quickstart")
    with tempfile.TemporaryDirectory() as elsewhere, contextlib.chdir(elsewhere):
        RunFolder.create(folder, load_config("quickstart")).close()
        show_outcome(screen, from_json(Summary, KEPT.read_bytes()), folder)
    assert isinstance(screen.file, io.StringIO)
    return "".join(f"{line.rstrip()}\n" for line in screen.file.getvalue().splitlines())


if __name__ == "__main__":
    if len(sys.argv) > 1:
        shutil.copy(Path(sys.argv[1]) / "summary.json", KEPT)
    README.write_text(with_output(README.read_text(encoding="utf-8")), encoding="utf-8")
    print(README)

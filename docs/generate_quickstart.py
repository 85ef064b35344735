"""Write what `make quickstart` ends with into docs/quickstart.md, and its main rows into README.md, from a run's `summary.json`.

    $ skillttrl train quickstart --output RUN
    $ python docs/generate_quickstart.py RUN

copies the run's summary into this folder and writes both blocks; without RUN they are written from the copy. `tests/integration/test_docs.py` checks them.
"""

from __future__ import annotations

import io
import shutil
import sys
from pathlib import Path

from rich.console import Console

from skill_ttrl.cli.launching import show_outcome
from skill_ttrl.runs.summary import Summary
from skill_ttrl.types import from_json

README = Path(__file__).parents[1] / "README.md"
PAGE = Path(__file__).with_name("quickstart.md")
COPY = Path(__file__).with_name("quickstart-summary.json")
MARKS = ("<!-- quickstart-output -->\n", "<!-- /quickstart-output -->")
WIDTH = 80


def with_result(readme: str) -> str:
    """README.md with its table of the run's main metrics."""
    found = from_json(Summary, COPY.read_bytes())
    rows = [
        ("avg@32: accuracy of single samples", "accuracy"),
        ("maj@32: accuracy of the vote", "majority"),
        ("greedy", "greedy"),
    ]
    lines = ["| metric | before | after | change (95 % interval) |", "|---|---|---|---|"]
    for name, field in rows:
        before, after = (getattr(found, f"{field}_{when}") for when in ("before", "after"))
        low, high = found.intervals[f"{field}_change"]
        lines.append(f"| {name} | {before:.3f} | {after:.3f} | {after - before:+.3f} [{low:+.3f}, {high:+.3f}] |")
    return _between_marks(readme, "\n".join(lines) + "\n")


def with_output(page: str) -> str:
    """docs/quickstart.md with what the command prints."""
    return _between_marks(page, f"```text\n{output()}```\n")


def _between_marks(text: str, block: str) -> str:
    start, end = text.index(MARKS[0]) + len(MARKS[0]), text.index(MARKS[1])
    return text[:start] + block + text[end:]


def output() -> str:
    """Output of the command at the end of the run."""
    screen = Console(file=io.StringIO(), width=WIDTH, force_terminal=False)
    show_outcome(screen, from_json(Summary, COPY.read_bytes()), Path("runs/quickstart"))
    assert isinstance(screen.file, io.StringIO)
    return "".join(f"{line.rstrip()}\n" for line in screen.file.getvalue().splitlines())


if __name__ == "__main__":
    if len(sys.argv) > 1:
        shutil.copy(Path(sys.argv[1]) / "summary.json", COPY)
    for path, change in ((README, with_result), (PAGE, with_output)):
        path.write_text(change(path.read_text(encoding="utf-8")), encoding="utf-8")
        print(path)

"""The page of a run or of an optimization, written where the user wants it; the run may still go on."""

from __future__ import annotations

from pathlib import Path

from skill_ttrl.errors import RunFolderError
from skill_ttrl.runs.folder import RunFolder
from skill_ttrl.runs.reader import read_run
from skill_ttrl.stages.reports.optimize_history import is_optimization, read_history
from skill_ttrl.stages.reports.optimize_page import optimize_html
from skill_ttrl.stages.reports.run_page import report_html
from skill_ttrl.storage.files import wrap_os_errors, write_atomic


def write_page(path: str | Path, file: str | Path) -> Path:
    """Write the page of what a folder holds to `file`.

    Raises:
        RunFolderError: it holds neither a run nor an optimization, cannot be read, or `file` cannot be written.
    """
    path, file = Path(path), Path(file)
    page = page_of(path)
    with wrap_os_errors("write", file, "--html"):
        write_atomic(file, page.encode())
    return file


def page_of(path: Path) -> str:
    """The page of a run (see `run_page`) or of an optimization (see `optimize_page`) as one HTML document.

    Raises:
        RunFolderError: it is neither, or cannot be read.
    """
    if is_optimization(path):
        return optimize_html(read_history(path))
    if RunFolder.exists(path):
        return report_html(read_run(path))
    raise RunFolderError(f"{path} has no page: it is no folder of a run, and none of an optimization that has begun.")

"""Clears up after a run that was killed: `PYTHON strays.py FOLDER` waits until its stdin ends, which is when the run does.

Then it kills what the agent programs with a working folder in FOLDER left running, and removes FOLDER.
"""

from __future__ import annotations

import os
import shutil
import sys
from contextlib import suppress

import psutil


def end_strays(folder: str) -> None:
    """Kill the processes of programs, in whatever session they are: those with a SKILLTTRL_TASK in this folder."""
    for _ in range(50):  # a process may start another between the look at it and its end
        found = False
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.environ().get("SKILLTTRL_TASK", "").startswith(folder + os.sep):
                    process.kill()
                    found = True
        if not found:
            return


if __name__ == "__main__":
    sys.stdin.read()
    end_strays(sys.argv[1])
    shutil.rmtree(sys.argv[1], ignore_errors=True)

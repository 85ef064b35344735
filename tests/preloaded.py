"""A copy of this Python, as it is before its first test, that forks a child for each piece of code that a test wants run on its own.

Starting Python with torch and transformers takes four to eight seconds, a fork none: all modules of the collected tests are loaded.
The children are real processes: they have their own memory, arguments and folder, are waited for and can be killed.
What a test says about *starting* (what an import loads, what a signal does then) needs a Python of its own.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import types
from pathlib import Path
from typing import Any, NoReturn, TextIO

SCRIPT = (
    "import runpy, sys; sys.path[0] = sys.argv[0].rpartition('/')[0]; runpy.run_path(sys.argv[0], run_name='__main__')"
)
_server: tuple[TextIO, TextIO] | None = None
"""Where its orders are written, and where its answers are read."""


def run_code(
    code: str, *arguments: object, name: str = "-c", cwd: Path | None = None, timeout: float = 120
) -> subprocess.CompletedProcess[str]:
    """Like `python -c CODE ARGUMENTS` in this environment; `name` is `sys.argv[0]`.

    Raises:
        subprocess.TimeoutExpired: it took longer than `timeout` seconds, and was killed with all that it had started.
    """
    with tempfile.TemporaryDirectory() as folder:
        out, err = (Path(folder) / each for each in ("out", "err"))
        argv = [name, *map(str, arguments)]
        order = {"code": code, "argv": argv, "cwd": str(cwd or Path.cwd()), "timeout": timeout}
        order |= {"out": str(out), "err": str(err), "environment": dict(os.environ)}
        assert _server is not None, "start() has not been called"
        _server[0].write(json.dumps(order) + "\n")
        _server[0].flush()
        answer = _server[1].readline()
        assert answer, "the preloaded Python has ended"
        status = json.loads(answer)
        if status is None:
            raise subprocess.TimeoutExpired(argv, timeout, out.read_text(), err.read_text())
        return subprocess.CompletedProcess(argv, status, out.read_text(), err.read_text())


def run_script(
    path: Path, *arguments: object, cwd: Path | None = None, timeout: float = 120
) -> subprocess.CompletedProcess[str]:
    """Like `python PATH ARGUMENTS`."""
    return run_code(SCRIPT, *arguments, name=str(path), cwd=cwd, timeout=timeout)


def start() -> None:
    """Fork the Python that forks the others. It ends when this process does."""
    global _server
    (orders, to_server), (answers, from_server) = os.pipe(), os.pipe()
    if os.fork() == 0:
        for number in set(range(3, 1024)) - {
            orders,
            from_server,
        }:  # among them what tells others that a worker has ended
            with contextlib.suppress(OSError):
                os.close(number)
        serve(os.fdopen(orders), os.fdopen(from_server, "w"))
    os.close(orders)
    os.close(from_server)
    _server = os.fdopen(to_server, "w"), os.fdopen(answers)


def serve(orders: TextIO, answers: TextIO) -> NoReturn:
    """Fork for each order; answer with its exit code, or null where it took too long."""
    for line in orders:
        order = json.loads(line)
        child = os.fork()
        if child == 0:
            carry_out(order)
        print(json.dumps(wait(child, order["timeout"])), file=answers, flush=True)
    os._exit(0)


def carry_out(order: dict[str, Any]) -> NoReturn:
    """In the child: become that process."""
    code = 1
    atexit._clear()
    try:
        os.setsid()  # so that it can be killed with all it starts
        os.chdir(order["cwd"])
        os.environ.clear()
        os.environ.update(order["environment"])
        for target, number in ((os.devnull, 0), (order["out"], 1), (order["err"], 2)):
            os.dup2(os.open(target, os.O_RDWR | os.O_CREAT), number)
        sys.stdin = os.fdopen(os.dup(0))
        sys.argv = order["argv"]
        sys.path.insert(0, "")
        signal.signal(signal.SIGINT, signal.default_int_handler)
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(order["code"], "<code>", "exec"), main.__dict__)
        code = 0
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
        if leaving.code is not None and not isinstance(leaving.code, int):
            print(leaving.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def wait(child: int, seconds: float) -> int | None:
    """Exit code as `subprocess` gives it; None where the child was killed because it took longer."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None

"""One Python that has loaded the heavy libraries and forks a child for each piece of code that a test wants run on its own.

Starting Python with torch and transformers takes four to eight seconds, a fork none. The children are real processes: they have
their own memory, arguments and folder, are waited for and can be killed; this package itself is loaded in each of them anew.
What a test says about *starting* (what an import loads, what a signal does then) needs a Python of its own.
"""

from __future__ import annotations

import atexit
import importlib
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
from typing import Any

SCRIPT = (
    "import runpy, sys; sys.path[0] = sys.argv[0].rpartition('/')[0]; runpy.run_path(sys.argv[0], run_name='__main__')"
)
LIBRARIES = "gymnasium jaxtyping torch rich.live rich.progress".split()
_server: subprocess.Popen[str] | None = None


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
        server = _running()
        assert server.stdin is not None and server.stdout is not None
        server.stdin.write(json.dumps(order) + "\n")
        server.stdin.flush()
        answer = server.stdout.readline()
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


def _running() -> subprocess.Popen[str]:
    global _server
    if _server is None:
        _server = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd="/"
        )
        atexit.register(_server.kill)
    return _server


def serve() -> None:
    """Load, then fork for each order on stdin; answer with its exit code, or null where it took too long."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what is printed here is no answer
    load()
    for line in sys.stdin:
        order = json.loads(line)
        child = os.fork()
        if child == 0:
            answers.close()
            carry_out(order)
        print(json.dumps(wait(child, order["timeout"])), file=answers, flush=True)


def load() -> None:
    """What takes long, once. Saving a model fills tables of transformers that are built at the first time."""
    for name in LIBRARIES:
        importlib.import_module(name)
    import transformers

    _ = transformers.PreTrainedTokenizerFast  # loaded when it is named
    tiny = transformers.Qwen2Config(
        hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1, vocab_size=8
    )
    with tempfile.TemporaryDirectory() as folder:
        transformers.Qwen2ForCausalLM(tiny).save_pretrained(folder)


def carry_out(order: dict[str, Any]) -> None:
    """In the child: become that process. Does not return."""
    code = 1
    try:
        os.setsid()  # so that it can be killed with all it starts
        os.chdir(order["cwd"])
        os.environ.clear()
        os.environ.update(order["environment"])
        for target, number in ((os.devnull, 0), (order["out"], 1), (order["err"], 2)):
            os.dup2(os.open(target, os.O_RDWR | os.O_CREAT), number)
        sys.stdin = os.fdopen(os.dup(0))
        sys.argv = order["argv"]
        sys.path[0] = ""
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


if __name__ == "__main__":
    serve()

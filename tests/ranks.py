"""Runs a function of a test in several real processes that are ranks of one run.

They are forked from a Python that has loaded the heavy libraries (`preloaded`), so two of them cost milliseconds and not two starts.
"""

from __future__ import annotations

import json
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.preloaded import run_code

_CREW = """
import importlib, json, os, signal, sys, traceback
module, name, size, port, arguments = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4], json.loads(sys.argv[5])
os.environ |= {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1"}
import torch
import skill_ttrl.cli.main, skill_ttrl.commands.train  # once, and not in each process
function = getattr(importlib.import_module(module), name)
children = []
for rank in range(size):
    reader, writer = os.pipe()
    child = os.fork()
    if child:
        os.close(writer)
        children.append((child, reader))
        continue
    code = 1
    try:
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        torch.set_num_threads(1)
        result = function(*arguments)
        os.write(writer, json.dumps(result).encode())
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)
found, codes = [], []
for child, reader in children:
    text = os.fdopen(reader).read()
    codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    if codes[-1]:
        for other, _ in children:
            try:
                os.kill(other, signal.SIGKILL)
            except ProcessLookupError:
                pass
    found.append(json.loads(text) if text else None)
print(json.dumps([codes, found]))
"""


def run_ranks(
    function: Callable[..., Any],
    size: int,
    *arguments: Any,
    killed: int | None = None,
    may_fail: int | None = None,
    timeout: float = 60,
) -> list[Any]:
    """What a module's own `function` returns on each of `size` ranks; arguments and results are plain data (JSON).

    The function joins the others itself (`skill_ttrl.rl.parallel.ranks.join`). Fails where a rank does; `killed` is one that ends by
    SIGKILL, whereupon those that serve the driver end with exit code 9 or are killed as well; `may_fail` is one that may end with any.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    done = run_code(
        _CREW,
        function.__module__,
        function.__name__,
        size,
        port,
        json.dumps(arguments, default=str),
        cwd=Path(__file__).parent.parent,
        timeout=timeout,
    )
    assert done.returncode == 0 and done.stdout, done.stderr
    codes, found = json.loads(done.stdout.splitlines()[-1])
    allowed = {0} if killed is None else {0, 9, -signal.SIGKILL}
    for rank, code in enumerate(codes):
        assert rank == may_fail or code in ({-signal.SIGKILL} if rank == killed else allowed), (
            f"exit codes {codes}\n{done.stderr}"
        )
    return list(found)

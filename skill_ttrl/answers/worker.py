"""The process in which SymPy runs: `python -m skill_ttrl.answers.worker BYTES`. Trees in, keys out, one JSON object a line.

It imports SymPy once and forks a child that does the work, and another when that one ends: `equivalence.Pool` kills a child at its time
limit, and the next one is ready in milliseconds. A child's memory is limited by the system. POSIX only, as is the rest of the package.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import resource
import signal
import sys
from typing import Any, NoReturn

import psutil

from skill_ttrl.answers.equivalence import Judged
from skill_ttrl.answers.grammar import Tree
from skill_ttrl.answers.keys import Hard, Undecided, key_of

_RECURSION = 3000


def main() -> None:
    """Have a child answer until standard input ends."""
    from skill_ttrl.answers.symbolic import Expressions

    memory_limit = int(sys.argv[1])
    sys.setrecursionlimit(_RECURSION)
    Expressions().value(("add", ("sym", "x"), ("fn", "sqrt", ("num", "2"))))  # what SymPy imports late, it imports now
    gc.freeze()
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # a child that runs out of memory says so there, for nobody
    while True:
        child = os.fork()
        if child == 0:
            _serve(memory_limit)
        if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0:
            return


def _serve(memory_limit: int) -> NoReturn:
    """Main loop of the child process; it exits with 0 when standard input ends."""
    from skill_ttrl.answers.symbolic import Expressions

    asked, said = os.dup(0), os.dup(1)
    limit = psutil.Process().memory_info().vms + memory_limit
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))  # it has nothing to write
    os.dup2(os.open(os.devnull, os.O_RDWR), 0)
    os.dup2(os.open(os.devnull, os.O_RDWR), 1)
    algebra = Expressions()
    # Where the pool is gone, nobody takes what is said: the child exits with 0 then too, or others would be forked for ever.
    with contextlib.suppress(BrokenPipeError), os.fdopen(asked, "rb") as stream:
        os.write(said, json.dumps({"ready": os.getpid()}).encode() + b"\n")
        for line in stream:
            time_limit, tree = json.loads(line)
            # The pool kills a child in time, but not when it was killed itself: then the alarm does.
            signal.setitimer(signal.ITIMER_REAL, 2 * time_limit)
            os.write(said, json.dumps(_judge(tree, algebra)).encode() + b"\n")
            signal.setitimer(signal.ITIMER_REAL, 0)
    os._exit(0)


def _judge(tree: Any, algebra: Any) -> Judged:
    try:
        return {"key": key_of(_as_tree(tree), algebra)}
    except (Undecided, Hard) as error:
        return {"gave_up": "undecided", "why": str(error)}
    except (MemoryError, RecursionError) as error:
        return {"gave_up": "memory", "why": type(error).__name__}
    except Exception as error:  # whatever SymPy raises at a strange expression: it is an answer that cannot be read
        return {"gave_up": "undecided", "why": f"{type(error).__name__}: {error}"[:200]}


def _as_tree(value: Any) -> Tree:
    return tuple(_as_tree(part) if isinstance(part, list) else part for part in value)


if __name__ == "__main__":
    main()

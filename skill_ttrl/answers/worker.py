"""The process in which SymPy runs: `python -m skill_ttrl.answers.worker SECONDS BYTES`. Trees in, keys out, one JSON object a line.

It imports SymPy once and has a forked child do the work, so that a comparison can be killed at its time limit and the next
one starts in milliseconds. A child's memory is limited by the system. POSIX only, as is the rest of the package.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import resource
import signal
import sys
import time
from typing import Any, NoReturn

import psutil

from skill_ttrl.answers.grammar import Tree
from skill_ttrl.answers.keys import Hard, Undecided, key_of
from skill_ttrl.answers.pool import Judged, readable

_RECURSION = 3000
_MOST_TREES = 2000
"""A child works on so many answers, then another takes over: what SymPy remembers does not pile up."""
_NO_MEMORY = b'{"gave_up": "memory"'
_MOST_TIMEOUTS = 10
"""So many answers of one batch may take the whole time limit; those after them have a quarter of it."""


def main() -> None:
    """Answer batches until standard input ends."""
    from skill_ttrl.answers.symbolic import Expressions

    time_limit, memory_limit = float(sys.argv[1]), int(sys.argv[2])
    sys.setrecursionlimit(_RECURSION)
    Expressions().value(("add", ("sym", "x"), ("fn", "sqrt", ("num", "2"))))  # what SymPy imports late, it imports now
    gc.freeze()
    print(json.dumps({"ready": os.getpid()}), flush=True)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # a child that runs out of memory says so there, for nobody
    child: Child | None = None
    for line in sys.stdin:
        timeouts = 0
        for tree in json.loads(line):
            child = child if child is not None and child.fit else Child(memory_limit)
            found = child.judge(tree, time_limit if timeouts < _MOST_TIMEOUTS else time_limit / 4)
            timeouts += b'"timeout"' in found
            with contextlib.suppress(BrokenPipeError):  # the parent has gone: standard input ends
                sys.stdout.buffer.write(found)
                sys.stdout.buffer.flush()  # at once: the parent waits for each verdict
    if child is not None:
        child.kill()


class Child:
    """A forked process that judges one tree after the other until it is killed."""

    def __init__(self, memory_limit: int) -> None:
        asked, self._asking = os.pipe()
        self._hearing, said = os.pipe()
        self._judged = 0
        self.fit = True
        self._pid = os.fork()
        if self._pid == 0:
            os.close(self._asking)
            os.close(self._hearing)
            _serve(asked, said, memory_limit)
        os.close(asked)
        os.close(said)

    def judge(self, tree: Any, time_limit: float) -> bytes:
        """The verdict on one tree, as a line of JSON; the child is killed where there is none in time."""
        deadline = time.monotonic() + time_limit
        why = "crashed"
        with contextlib.suppress(BrokenPipeError):
            os.write(self._asking, json.dumps([time_limit, tree]).encode() + b"\n")
            found = b""
            while not found.endswith(b"\n"):
                if not readable(self._hearing, deadline - time.monotonic()):
                    why = "timeout"
                    break
                chunk = os.read(self._hearing, 1 << 16)
                if not chunk:
                    break
                found += chunk
            else:
                self._judged += 1
                if self._judged >= _MOST_TREES or found.startswith(_NO_MEMORY):
                    self.kill()
                return found
        self.kill()
        shown = f"longer than {time_limit:g} s" if why == "timeout" else "the process ended"
        return json.dumps({"gave_up": why, "why": shown}).encode() + b"\n"

    def kill(self) -> None:
        """End it, whatever it is doing."""
        self.fit = False
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        os.close(self._asking)
        os.close(self._hearing)


def _serve(asked: int, said: int, memory_limit: int) -> NoReturn:
    """Main loop of the child process."""
    from skill_ttrl.answers.symbolic import Expressions

    limit = psutil.Process().memory_info().vms + memory_limit
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))  # it has nothing to write
    os.dup2(os.open(os.devnull, os.O_RDWR), 0)
    os.dup2(os.open(os.devnull, os.O_RDWR), 1)
    algebra = Expressions()
    with os.fdopen(asked, "rb") as stream:
        for line in stream:
            time_limit, tree = json.loads(line)
            # The worker kills a child in time, but not when it was killed itself: then the alarm does.
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

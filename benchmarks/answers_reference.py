r"""math-verify in a process of its own, with a time limit of ours: the reference and the peer of `answers.py`.

    python benchmarks/answers_reference.py       # one JSON request a line in, one JSON reply a line out

It is given answers as its own evaluation does: inside of `\boxed{}`.
"""

from __future__ import annotations

import json
import select
import subprocess
import sys
import time
from typing import Any

SECONDS = 20.0
"""For one pair; its own limit is 5 s for each of its three steps and does not end everything."""


class Reference:
    """Verdicts of math-verify."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._known: dict[tuple[str, str], str] = {}

    def verify(self, gold: str, answer: str) -> str:
        """`same`, `different`, or `timeout` where it had to be killed."""
        if (gold, answer) not in self._known:
            found = self.ask({"pair": [gold, answer]}, SECONDS)
            self._known[gold, answer] = "timeout" if found is None else "same" if found["same"] else "different"
        return self._known[gold, answer]

    def ask(self, request: dict[str, Any], seconds: float) -> dict[str, Any] | None:
        """The reply, or None where there was none in time; the next request then goes to a new process."""
        if self._process is None:
            command = [sys.executable, __file__]
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            self.ask({"pair": ["1", "x+1"]}, 120.0)  # it is imported and warm
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps(request).encode() + b"\n")
        process.stdin.flush()
        if not select.select([process.stdout], [], [], seconds)[0]:
            self.close()
            return None
        line = process.stdout.readline()
        if not line:
            self.close()
            return None
        reply: dict[str, Any] = json.loads(line)
        return reply

    def close(self) -> None:
        """End the process; the next question starts another."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


def main() -> None:
    """Answer requests until standard input ends."""
    import logging

    from math_verify import parse, verify

    logging.disable(logging.CRITICAL)

    known: dict[str, Any] = {}

    def read(answer: str) -> Any:
        """What is written once is parsed once, as long as the process lives."""
        if answer not in known:
            known[answer] = parse(f"\\boxed{{{answer}}}")
        return known[answer]

    def by_representatives(samples: list[str]) -> list[int]:
        """Sizes of the classes: each distinct answer is compared with one of each class so far."""
        counts: dict[str, int] = {}
        for sample in samples:
            counts[sample] = counts.get(sample, 0) + 1
        classes: list[list[Any]] = []
        for answer, count in counts.items():
            parsed = read(answer)
            for one in classes:
                if verify(one[0], parsed):
                    one[1] += count
                    break
            else:
                classes.append([parsed, count])
        return sorted((count for _, count in classes), reverse=True)

    def by_pairs(samples: list[str]) -> list[int]:
        """For each sample, with how many it agrees: every sample is compared with every other."""
        parsed = [read(sample) for sample in samples]
        agreeing = [1] * len(parsed)
        for one, first in enumerate(parsed):
            for other in range(one):
                if verify(first, parsed[other]):
                    agreeing[one] += 1
                    agreeing[other] += 1
        return sorted(agreeing, reverse=True)

    for line in sys.stdin:
        request = json.loads(line)
        began = time.perf_counter()
        if "pair" in request:
            reply: dict[str, Any] = {"same": bool(verify(*map(read, request["pair"])))}
        elif "representatives" in request:
            reply = {"votes": [by_representatives(samples)[:1] for samples in request["representatives"]]}
        else:
            reply = {"votes": [by_pairs(samples)[:1] for samples in request["pairwise"]]}
        print(json.dumps(reply | {"seconds": time.perf_counter() - began}), flush=True)


if __name__ == "__main__":
    main()

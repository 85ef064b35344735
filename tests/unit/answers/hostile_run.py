"""Puts every hostile answer to the grader, in a process and a folder of its own, and prints what happened as JSON.

    python hostile_run.py CASES.json [FAMILY ...]

`CASES.json` holds texts as lists of parts: a text, `[text, n]` for n repetitions, `[text, first, last, joiner]` for the text
with `#` replaced by each number.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

from skill_ttrl.answers import canonical, counters, equivalent, extract, grade_answer, verdict

WATCHED = (
    "os.system", "os.exec", "os.posix_spawn", "subprocess.Popen", "compile", "exec", "open", "socket.connect",
    "ctypes.dlopen",
)  # fmt: skip
ORDINARY = [
    ("x+1", "1+x"),
    (r"\frac{\sqrt{3}}{3}", r"\frac{1}{\sqrt{3}}"),
    ("(a+5)(b+2)", "ab+2a+5b+10"),
    (r"\cot x", r"\frac{\cos x}{\sin x}"),
]
PLACES = ("#", r"so \boxed{#}.", "<answer>#</answer>", "The final answer is #", r"# \boxed{1}")
LONG = 20_000
"""Characters, of which time that grows with their square takes seconds."""
SAMPLE_SECONDS = 0.02
GIVEN_UP = 0.5


def expand(parts: Sequence[Any]) -> str:
    """The text of a case."""
    texts = []
    for part in parts:
        if isinstance(part, str):
            texts.append(part)
        elif len(part) == 2:
            texts.append(part[0] * part[1])
        else:
            text, first, last, joiner = part
            texts.append(joiner.join(text.replace("#", str(number)) for number in range(first, last + 1)))
    return "".join(texts)


def slowest_extraction(text: str, number: int) -> float:
    """Longest time to find the answer in a text that has it in one of the places where answers are looked for.

    Cases take turns in which place has all of a long text; the others have its beginning.
    """
    seconds = []
    for place, form in enumerate(PLACES):
        whole = form.replace("#", text if place == number % len(PLACES) else text[:LONG])
        began = time.perf_counter()
        extract(whole, last_number=True)
        seconds.append(time.perf_counter() - began)
    return max(seconds)


class Memory(threading.Thread):
    """Largest resident memory of this process and all below it, in MB."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.before = self.now()
        self.peak = self.before

    def now(self) -> float:
        total = 0
        me = psutil.Process()
        for process in [me, *me.children(recursive=True)]:
            try:
                total += process.memory_info().rss
            except psutil.Error:  # it ended while it was counted
                continue
        return total / 1e6

    def run(self) -> None:
        while True:
            self.peak = max(self.peak, self.now())
            time.sleep(SAMPLE_SECONDS)


def main() -> None:
    data = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    families = sys.argv[2:] or list(data["cases"])
    grades = [grade_answer(a, b) for a, b in ORDINARY]  # the worker is up, and everything is imported
    one = canonical("1")
    events: list[str] = []
    sys.addaudithook(lambda event, args: events.append(f"{event} {args!r:.200}") if event in WATCHED else None)
    memory = Memory()
    memory.start()
    rows: list[dict[str, Any]] = []
    for family in families:
        for name, parts in data["cases"][family].items():
            text = expand(parts)
            near = data["near"].get(name, text + "+1")
            times = [time.perf_counter()]
            key = canonical(text)
            times.append(time.perf_counter())
            other = canonical(near) if times[1] - times[0] < GIVEN_UP else None  # it would be given up like the case
            times.append(time.perf_counter())
            row = {"family": family, "name": name, "seconds": times[1] - times[0], "near_seconds": times[2] - times[1]}
            row |= {"missing": key is None, "one": equivalent(text, "1"), "near": key is not None and key == other}
            row |= {"itself": equivalent(text, text), "read": any(character.isalnum() for character in text)}
            row |= {"again_seconds": time.perf_counter() - times[2], "one_by_key": key == one}
            said = verdict(text)
            row |= {"rule": said and said.rule, "given_up": said and said.gave_up}
            row["extract_seconds"] = slowest_extraction(text, len(rows))
            rows.append(row)
    evaluated = [event for event in events if not event.startswith("open") or "CANARY" in event]
    after = [grade_answer(f"{a}+17", f"17+{b}") for a, b in ORDINARY]
    report = {"rows": rows, "memory_before": memory.before, "memory_peak": memory.peak, "counters": counters()}
    report |= {"files": sorted(os.listdir()), "events": evaluated, "grades": grades, "after": after}
    report["children"] = len(psutil.Process().children(recursive=True))
    print(json.dumps(report))


if __name__ == "__main__":
    main()

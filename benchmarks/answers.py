r"""The grader beside math-verify: how often they agree, where they do not, and how long each takes.

    python benchmarks/answers.py agreement                        # the first tables of benchmarks/results/answers.md
    python benchmarks/answers.py speed                            # the others
    python benchmarks/answers.py hostile                          # what tests/data/hostile_answers.json does to it
    python benchmarks/answers.py agreement --all --data FILE      # every disagreement, however many, on another file

`agreement` puts every answer of the file beside itself, beside generated other ways to write it (`answers_rewrites.py`), beside
near misses (`answers_misses.py`) and beside answers of other problems. The answer is math-verify's gold. Kinds of pairs in which
math-verify cannot be followed are named, with the reason, and counted apart. math-verify runs in a process of its own with a
time limit (`answers_reference.py`). Nothing is random but what `--seed` draws.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from answers_misses import DIFFERENCES, NEAR_MISSES
from answers_reference import Reference
from answers_rewrites import REWRITES

from skill_ttrl.answers import correct, equivalent

DATA = Path(__file__).parents[1].parent / "shared" / "data" / "math" / "math.json"
TESTS = Path(__file__).parents[1] / "tests"
ANOTHER = "another problem's answer"
OTHERS = 10
"""Answers of other problems that each is compared with."""
SHOWN = 12
"""Disagreements of one kind that are listed without `--all`."""

Said = tuple[str, str, bool, str]
"""An answer, the text beside it, whether we say that they are the same, what math-verify says."""


@dataclass
class Kind:
    """Pairs of one kind and what both said of them."""

    name: str
    graded: bool = True
    """True if our side grades, as math-verify does; False if it decides which answers count as one in a vote."""
    said: Counter[Said] = field(default_factory=Counter)

    def add(self, answer: str, other: str, reference: Reference) -> None:
        same = correct([(other, answer)])[0] if self.graded else equivalent(answer, other)
        self.said[answer, other, same, reference.verify(answer, other)] += 1

    @property
    def pairs(self) -> int:
        return self.said.total()

    def count(self, *, ours: bool | None = None, theirs: bool | None = None) -> int:
        """Pairs that we and math-verify call the same (True), different (False), or whatever (None)."""
        return sum(
            times
            for (_, _, one, two), times in self.said.items()
            if ours in (None, one) and theirs in (None, two == "same")
        )

    def disagreements(self) -> list[tuple[Said, int]]:
        return [(said, times) for said, times in self.said.items() if said[2] != (said[3] == "same")]

    def row(self) -> str:
        only_ours, only_theirs = self.count(ours=True, theirs=False), self.count(ours=False, theirs=True)
        share = 100 * (1 - (only_ours + only_theirs) / self.pairs)
        return f"| {self.name} | {self.pairs} | {share:.2f} % | {only_ours} | {only_theirs} |"


def main() -> None:
    """Run one of the two and print its tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    agreement = commands.add_parser("agreement", help="on whether two texts are the same answer")
    agreement.add_argument("--data", type=Path, default=DATA, help="JSON list of problems with an `answer`")
    agreement.add_argument("--all", action="store_true", help=f"list every disagreement, not {SHOWN} of a kind")
    speed = commands.add_parser("speed", help="of whole votes")
    speed.add_argument("--problems", type=int, default=1000)
    speed.add_argument("--samples", type=int, default=64)
    speed.add_argument("--pairwise", type=int, default=20, help="problems of the full pairwise loop")
    speed.add_argument("--chunks", type=int, default=20, help="the methods take turns so often")
    hostile = commands.add_parser("hostile", help="answers that want to hang, exhaust or enter it")
    for command in (agreement, speed):
        command.add_argument("--seed", type=int, default=0)
    for command in (agreement, speed, hostile):
        command.add_argument("--markdown", type=Path, help="write the tables here as well")
    options = parser.parse_args()
    if options.command == "agreement":
        lines = agree(options.data, options.seed, everything=options.all)
    elif options.command == "hostile":
        lines = withstand()
    else:
        from answers_speed import measure

        lines = measure(options.problems, options.samples, options.pairwise, options.chunks, options.seed)
    text = "\n".join(lines)
    print(text)
    if options.markdown:
        options.markdown.write_text(text + "\n", encoding="utf-8")


def agree(data: Path, seed: int, *, everything: bool) -> list[str]:
    """The tables of agreement as lines of Markdown."""
    answers = [row["answer"] for row in json.loads(data.read_text(encoding="utf-8"))]
    positive = [Kind("itself"), *(Kind(name) for name in REWRITES)]
    negative = [*(Kind(name) for name in NEAR_MISSES), Kind(ANOTHER)]
    named = [Kind(name, graded=name == "units in words") for name in DIFFERENCES]
    by_name = {kind.name: kind for kind in [*positive, *negative, *named]}
    reference = Reference()
    draw = random.Random(seed)
    for number, answer in enumerate(answers):
        print(f"\r{number + 1} of {len(answers)} answers", end="", file=sys.stderr, flush=True)
        others = draw.sample([one for one in answers if one != answer], OTHERS)
        for name, gold, other in [*pairs(answer), *((ANOTHER, answer, other) for other in others)]:
            by_name[name].add(gold, other, reference)
    print(file=sys.stderr)
    reference.close()
    total = Kind("**all of both tables**", said=sum((kind.said for kind in positive + negative), Counter()))
    lines = [f"{len(answers)} answers of `{data.name}`, {len(set(answers))} of them distinct.", ""]
    for title, kinds in (("another way to write it", positive), ("another answer", [*negative, total])):
        lines += [f"| {title} | pairs | agreement | the same for us alone | the same for math-verify alone |"]
        lines += ["|---|---|---|---|---|", *(kind.row() for kind in kinds if kind.pairs), ""]
    lines += disagreements(positive, same=True, everything=everything)
    lines += disagreements(negative, same=False, everything=everything)
    lines += ["| named difference | in truth | pairs | we are right | math-verify is right | why it is not followed |"]
    lines += ["|---|---|---|---|---|---|", *(named_row(kind) for kind in named if kind.pairs)]
    return lines


def withstand() -> list[str]:
    """A line for each family of hostile answers; each family has a process of its own."""
    cases = TESTS / "data" / "hostile_answers.json"
    lines = [
        "| family | cases | decided | as text | given up | slowest s | MB above the start | wrong |",
        "|---|---|---|---|---|---|---|---|",
    ]
    data = json.loads(cases.read_text(encoding="utf-8"))
    for family, texts in data["cases"].items():
        command = [sys.executable, str(TESTS / "unit" / "answers" / "hostile_run.py"), str(cases), family]
        with tempfile.TemporaryDirectory() as folder:
            report = json.loads(subprocess.run(command, check=True, capture_output=True, text=True, cwd=folder).stdout)
        rows = report["rows"]
        wrong = sum(
            row["near"] or row["itself"] == row["missing"] or (row["one"] and row["name"] not in data["worth one"])
            for row in rows
        )
        said = Counter(row["given_up"] or row["rule"] for row in rows)
        decided = said.pop("number", 0) + said.pop("symbolic", 0)
        plain = said.pop("text", 0) + said.pop(None, 0)
        given_up = ", ".join(f"{reason} {times}" for reason, times in sorted(said.items())) or "-"
        slowest = max(row[key] for row in rows for key in row if key.endswith("seconds"))
        memory = report["memory_peak"] - report["memory_before"]
        lines.append(
            f"| {family} | {len(texts)} | {decided} | {plain} | {given_up} | {slowest:.2f} | {memory:.0f} | {wrong} |"
        )
    return lines


def pairs(answer: str) -> Iterator[tuple[str, str, str]]:
    """(kind, answer, text beside it) for everything that is made of one answer."""
    yield "itself", answer, answer
    for name, rewrite in (REWRITES | NEAR_MISSES).items():
        for other in distinct(rewrite(answer), answer):
            yield name, answer, other
    for name, difference in DIFFERENCES.items():
        gold = answer.removeprefix(r"\text{").removesuffix("}") if difference.plain else answer
        for other in distinct(difference.pairs(answer), gold):
            yield name, gold, other


def distinct(texts: Iterator[str], answer: str) -> list[str]:
    """The texts without repetition and without the answer itself."""
    return [text for text in dict.fromkeys(texts) if text != answer]


def disagreements(kinds: list[Kind], *, same: bool, everything: bool) -> list[str]:
    """A table of the pairs on which the two differ; `same` is what pairs of these kinds are in truth."""
    lines = []
    for kind in kinds:
        found = kind.disagreements()
        for (answer, other, ours, theirs), times in found if everything else found[:SHOWN]:
            right = "see below" if kind.name == ANOTHER else "we are" if ours is same else "math-verify is"
            said = "same" if ours else "different"
            lines.append(f"| {kind.name} | {shown(answer)} | {shown(other)} | {said} | {theirs} | {right} | {times} |")
        if len(found) > SHOWN and not everything:
            lines.append(f"| {kind.name} | … | {len(found) - SHOWN} more | | | | |")
    if not lines:
        return []
    header = "| disagreement | answer | other | we say | math-verify says | right | times |"
    return [header, "|---|---|---|---|---|---|---|", *lines, ""]


def named_row(kind: Kind) -> str:
    """A line of the table of named differences, with what we are wrong about."""
    difference = DIFFERENCES[kind.name]
    ours, theirs = kind.count(ours=difference.same), kind.count(theirs=difference.same)
    wrong = [f"{shown(answer)} and {shown(other)}" for answer, other, said, _ in kind.said if said != difference.same]
    why = difference.why + (f"; we are wrong about {', '.join(wrong[:SHOWN])}" if wrong else "")
    truth = "the same" if difference.same else "different"
    return f"| {kind.name} | {truth} | {kind.pairs} | {ours} | {theirs} | {why} |"


def shown(text: str) -> str:
    """An answer in a cell of a table."""
    text = json.dumps(text, ensure_ascii=False)[1:-1].replace("\\\\", "\\").replace("|", "\\|")
    return f"`` {text} ``" if "`" in text else f"`{text}`"


if __name__ == "__main__":
    main()

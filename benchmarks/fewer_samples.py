"""Would `vote.strategy: sequential` have found the same winners with fewer tokens? From runs that drew all samples.

python benchmarks/fewer_samples.py RUN... [--errors 0.01,0.05,0.1] [--first 4,8]
"""

from __future__ import annotations

import argparse
import json
from collections import Counter, defaultdict
from pathlib import Path

from skill_ttrl.answers import equivalent
from skill_ttrl.voting import Ballot, vote
from skill_ttrl.voting.strategies import SequentialTest


def main() -> None:
    """Print a line for each error and first look: tokens that would not have been sampled, and prompts with another winner."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--errors", default="0.01,0.05,0.1")
    parser.add_argument("--first", default="4,8")
    options = parser.parse_args()
    groups: dict[tuple[Path, int, str], list[tuple[str | None, int]]] = defaultdict(list)
    for run in options.runs:
        for line in (run / "trajectories.jsonl").read_text().splitlines():
            row = json.loads(line)
            tokens = sum(len(step["completion"]["token_ids"]) for step in row["steps"])
            groups[run, row["step"], row["task"]["id"]].append((row["answer"], tokens))
    print(
        "| `error` | `first` | prompts | another winner | tokens saved | stopped at (samples: prompts) |\n"
        + "|---" * 6
        + "|"
    )
    for error in map(float, options.errors.split(",")):
        for first in map(int, options.first.split(",")):
            print(line_of(SequentialTest(error, first), list(groups.values())))


def line_of(test: SequentialTest, groups: list[list[tuple[str | None, int]]]) -> str:
    """One line of the table; each group is a prompt's answers and tokens, in the order they were sampled."""
    other = used = 0
    stops: Counter[int] = Counter()
    for group in groups:
        ballot = Ballot(tuple(answer for answer, _ in group))
        full = vote("majority", ballot)
        for look in test.looks(len(group)):
            part = vote("majority", Ballot(ballot.answers[:look]))
            if test.decided([count for _, count in part.classes], len(group) - look):
                break
        stops[look] += 1
        used += sum(tokens for _, tokens in group[:look])
        other += full.answer is not None and not equivalent(part.answer, full.answer)
    share = 1 - used / sum(tokens for group in groups for _, tokens in group)
    where = ", ".join(f"{look}: {count}" for look, count in sorted(stops.items()))
    return f"| {test.error:g} | {test.first} | {len(groups)} | {other} | {share:.0%} | {where} |"


if __name__ == "__main__":
    main()

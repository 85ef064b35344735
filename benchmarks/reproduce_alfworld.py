"""Reproduce the ALFWorld policy of docs/alfworld-results.md with one new seed, and check it against the published interval.

    python benchmarks/reproduce_alfworld.py                         # half an hour at most on 2 cores; ALFWORLD_DATA names the official games
    python benchmarks/reproduce_alfworld.py --seed 7 --json
    python benchmarks/reproduce_alfworld.py --publish RUN RUN RUN   # store the figures of finished runs of the recipe

Exit code 0: what decides agrees; 1: it does not; 3: the games are not there. The decisive figure is chosen beforehand.
"""

from __future__ import annotations

import sys

from reproduction import Benchmark, main

UNSEEN, FREE, SEEN = "valid_unseen", "valid_unseen, free", "valid_seen"
BENCHMARK = Benchmark(
    name="alfworld",
    recipe="alfworld_official",
    data="ALFWORLD_DATA",
    get_data="`alfworld-download` of the package alfworld gets them; the folder is the one that holds json_2.1.1/.",
    tasks=UNSEEN,
    further={
        FREE: ("--set", "agent.structured_actions=false"),
        SEEN: ("--env", "alfworld", "--split", "valid_seen"),
    },
    decides=(f"{UNSEEN}: greedy",),
)

if __name__ == "__main__":
    sys.exit(main(BENCHMARK))

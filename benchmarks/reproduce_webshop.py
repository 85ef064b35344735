"""Reproduce the WebShop policy of docs/webshop-results.md with one new seed, and check it against the published interval.

    python benchmarks/reproduce_webshop.py                         # half an hour at most on 2 cores; WEBSHOP_DATA names the official products
    python benchmarks/reproduce_webshop.py --seed 7 --json
    python benchmarks/reproduce_webshop.py --publish RUN RUN RUN   # store the figures of finished runs of the recipe

Exit code 0: what decides agrees; 1: it does not; 3: the products are not there. The decisive figures are chosen beforehand.
"""

from __future__ import annotations

import sys

from reproduction import Benchmark, main

PRODUCT, FREE, GOAL = "test by product", "test by product, free", "test by goal"
BENCHMARK = Benchmark(
    name="webshop",
    recipe="webshop_official",
    data="WEBSHOP_DATA",
    get_data="docs/environments.md says where the files of the 1,000 products are.",
    tasks=PRODUCT,
    further={
        FREE: ("--set", "agent.structured_actions=false"),
        GOAL: ("--set", "env.kwargs.split_by=goal"),
    },
    decides=(f"{PRODUCT}: greedy", f"{PRODUCT}: greedy, score"),
)

if __name__ == "__main__":
    sys.exit(main(BENCHMARK))

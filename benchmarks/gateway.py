"""Measure the gateway: the throughput of many concurrent agent programs, compared with direct sampling, and the latency that it adds.

    python benchmarks/gateway.py load                          # 64 programs, 2,000 calls; about 4 minutes on 2 cores
    python benchmarks/gateway.py load --rounds 1 --tokens 64   # shorter answers

Programs are threads of other processes, which speak HTTP as an SDK does, over persistent connections. For comparison as many
coroutines in the sampler's event loop request answers to the same messages from the same batching backend. The two take turns, so that what
else the machine does meets both; the share is the median of the rounds. A call is lost if what its program read was not
recorded. On a machine that is busy with other things the rates say little: `tokens_per_cpu_s` (of the process that samples) and
`sampling_share_of_time` are what they are on a quiet one. The model has random weights: what it writes does not matter here.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import multiprocessing
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from multiprocessing.connection import Connection
from typing import Any, cast
from urllib.parse import urlsplit

import torch

from skill_ttrl.config import BuiltinConfig
from skill_ttrl.llm.backend import Backend, Generation, Request, Sampling, wait_for
from skill_ttrl.llm.hand_over import BatchingBackend
from skill_ttrl.llm.hf.backend import HFBackend
from skill_ttrl.llm.models.builtin import build_model, build_tokenizer
from skill_ttrl.rollout.gateway import Gateway
from skill_ttrl.types import Message, derive_seed

SHARE = 0.95
"""Share of the direct rate that the gateway has to reach."""


def main() -> None:
    """Run the command on the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("load",))
    parser.add_argument("--programs", type=int, default=64)
    parser.add_argument("--calls", type=int, default=2000, help="of all programs, in all rounds")
    parser.add_argument("--tokens", type=int, default=256, help="most of an answer")
    parser.add_argument("--hidden", type=int, default=128, help="width of the model, in 4 heads")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--processes", type=int, default=2, help="that hold the programs")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(json.dumps(wait_for(load(options)), indent=2))


def source(options: argparse.Namespace) -> HFBackend:
    """A sampler with random weights."""
    tokenizer = build_tokenizer([f"Compute {first}+{first + 7}. The answer is" for first in range(100)])
    shape = BuiltinConfig(hidden_size=options.hidden, layers=options.layers, heads=4, max_positions=2048)
    return HFBackend(build_model(shape, tokenizer, seed=0), tokenizer)


def question(program: int, call: int) -> str:
    """The message of a program's nth call."""
    return f"Compute {program}+{call}. " * (1 + call % 3)


async def load(options: argparse.Namespace) -> dict[str, Any]:
    """Both sides in turn, then the latency of one call."""
    backend = Timed(source(options))
    batching: Any = BatchingBackend(cast(Backend, backend), lambda: min(options.programs, backend.left))
    sampling = Sampling(max_new_tokens=options.tokens)
    rows: list[dict[str, float]] = []
    lost = 0
    gaps: dict[str, list[float]] = {"direct": [], "gateway": []}
    busy: dict[str, list[float]] = {"direct": [], "gateway": []}
    computed: dict[str, list[float]] = {"direct": [], "gateway": []}
    with workers(options.processes) as pipes:
        await directly(batching, sampling, [1] * options.programs)  # the first batch is slower
        for number in range(options.rounds):
            calls = options.calls // options.rounds
            counts = [len(range(place, calls, options.programs)) for place in range(options.programs)]
            row = {}
            for side in ("direct", "gateway") if number % 2 else ("gateway", "direct"):
                backend.spans.clear()
                backend.left = calls
                began, worked = time.monotonic(), time.process_time()
                if side == "direct":
                    tokens = await directly(batching, sampling, counts)
                else:
                    tokens, missing = await through(batching, sampling, counts, pipes)
                    lost += missing
                seconds = time.monotonic() - began
                row[side] = round(tokens / seconds)
                computed[side].append(tokens / (time.process_time() - worked))
                busy[side].append(sum(end - start for start, end in backend.spans) / seconds)
                gaps[side] += [1000 * (after[0] - before[1]) for before, after in pairwise(backend.spans)]
            print(json.dumps(row), flush=True)
            rows.append(row)
    share = statistics.median(row["gateway"] / row["direct"] for row in rows)
    return {
        "programs": options.programs,
        "calls": options.rounds * calls,
        "lost": lost,
        "tokens_per_s": rows,
        "share": round(share, 3),
        "reached": share >= SHARE,
        "tokens_per_cpu_s": {side: round(statistics.median(each)) for side, each in computed.items()},
        "sampling_share_of_time": {side: round(statistics.median(each), 3) for side, each in busy.items()},
        "between_batches_ms": {side: round(statistics.median(each), 1) for side, each in gaps.items() if each},
        "added_latency_ms": await latency(backend.source),
    }


class Timed:
    """Another backend; records when it sampled, and counts the requests still to come, so that no batch waits for more."""

    def __init__(self, source: HFBackend) -> None:
        self.source = source
        self.spans: list[tuple[float, float]] = []
        self.left = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.source, name)

    async def generate(self, requests: Sequence[Request], sampling: Sampling, *, seed: int) -> list[Generation]:
        """Sample."""
        began = time.monotonic()
        found = await self.source.generate(requests, sampling, seed=seed)
        self.spans.append((began, time.monotonic()))
        self.left -= len(requests)
        return found


async def directly(backend: Any, sampling: Sampling, counts: Sequence[int]) -> int:
    """Tokens of coroutines that ask the backend."""
    tokens = 0

    async def program(place: int) -> None:
        nonlocal tokens
        for call in range(counts[place]):
            ids = backend.encode([Message("user", question(place, call))])
            request, seed = Request(token_ids=ids), derive_seed(place, call)
            (found,) = await backend.generate([request], sampling, seed=seed)
            tokens += len(found.completions[0].token_ids)

    await asyncio.gather(*map(program, range(len(counts))))
    return tokens


async def through(
    backend: Any, sampling: Sampling, counts: Sequence[int], pipes: Sequence[Connection]
) -> tuple[int, int]:
    """Tokens of programs that call the gateway, and the calls that were lost."""
    async with Gateway(backend, sampling) as gateway:
        sessions = [gateway.session(place) for place in range(len(counts))]
        asked = [(each.url, each.key, place, counts[place]) for place, each in enumerate(sessions)]
        for place, pipe in enumerate(pipes):
            pipe.send(asked[place :: len(pipes)])
        found = await asyncio.gather(*(asyncio.to_thread(pipe.recv) for pipe in pipes))
    lost = sum(counts)
    for place, texts in (pair for part in found for pair in part):
        lost -= (Counter(texts) & Counter(call.completion.text for call in sessions[place].calls)).total()
    return sum(len(call.completion.token_ids) for each in sessions for call in each.calls), lost


@contextmanager
def workers(count: int) -> Iterator[list[Connection]]:
    """Processes that run programs."""
    context = multiprocessing.get_context("spawn")
    pipes = []
    for _ in range(count):
        ours, theirs = context.Pipe()
        context.Process(target=programs, args=(theirs,), daemon=True).start()
        ours.recv()
        pipes.append(ours)
    yield pipes
    for pipe in pipes:
        pipe.send([])


def programs(pipe: Connection) -> None:
    """Run programs, each in a thread, and send what they read."""
    pipe.send("ready")
    while part := pipe.recv():
        with ThreadPoolExecutor(len(part)) as pool:
            pipe.send(list(pool.map(lambda each: (each[2], one_program(*each)), part)))


def one_program(url: str, key: str, place: int, count: int) -> list[str | None]:
    """Ask one call after another; gives the texts."""
    address = urlsplit(url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=600)
    return [ask(connection, address.path, key, question(place, call)) for call in range(count)]


def ask(connection: http.client.HTTPConnection, path: str, key: str, text: str) -> str | None:
    """One call; None where it is refused."""
    body = json.dumps({"model": "policy", "messages": [{"role": "user", "content": text}]})
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    connection.request("POST", f"{path}/chat/completions", body, headers)
    answer = connection.getresponse()
    said = json.loads(answer.read())
    if answer.status == 200:
        return str(said["choices"][0]["message"]["content"])
    print(f"{answer.status}: {said}", file=sys.stderr)
    return None


async def latency(backend: Backend, calls: int = 300) -> dict[str, float]:
    """Milliseconds that the gateway adds to one call with an answer of one token, nothing else going on: median and 95th percentile."""
    sampling = Sampling(max_new_tokens=1)
    added = []
    async with Gateway(backend, sampling) as gateway:
        session = gateway.session(0)
        address = urlsplit(session.url)
        connection = http.client.HTTPConnection(address.hostname or "", address.port)
        for number in range(calls + 20):
            text = question(number, number)
            began = time.monotonic()
            ids = backend.encode([Message("user", text)])
            await backend.generate([Request(token_ids=ids)], sampling, seed=number)
            between = time.monotonic()
            await asyncio.to_thread(ask, connection, address.path, session.key, text)
            added.append(1000 * ((time.monotonic() - between) - (between - began)))
    rest = sorted(added[20:])
    return {"median": round(statistics.median(rest), 2), "p95": round(rest[int(0.95 * len(rest))], 2)}


if __name__ == "__main__":
    main()

"""Retrieval over a large bank: time of a whole query, build time and memory, with vectors in memory and in Chroma.

    python benchmarks/retrieval.py                          # 50,000 generated skills, the table of docs/speed-results.md
    python benchmarks/retrieval.py --texts problems.jsonl   # skills made of your own texts (one a line, or JSON objects)
    python benchmarks/retrieval.py --json results.json

Generated skills are lists of words, half of them from the whole vocabulary and half from one of 200 subjects, both by
Zipf's law; the vocabulary is that of the docstrings of Python's standard library. A question has 5 to 12 words of one
skill, 30 % of them exchanged for others of its subject. Every configuration runs in a process of its own.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import resource
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from skill_ttrl.skills.changes import Snapshot
from skill_ttrl.skills.chroma import ChromaIndex
from skill_ttrl.skills.embedders import make_embedder
from skill_ttrl.skills.retrieval import MemoryIndex, Retriever
from skill_ttrl.types import Skill

K = 6
CONFIGURATIONS = ("memory", "chroma")
COLUMNS = (
    "vectors in", "lists equal", "query min ms", "p10 ms", "query p50 ms", "p95 ms", "CPU ms", "of it embedding ms", "build s", "reopen s",
    "peak MB", "disk MB", "load",
)  # fmt: skip


def main() -> None:
    """Run the configurations and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--skills", type=int, default=50_000)
    parser.add_argument("--queries", type=int, default=500)
    parser.add_argument("--embedder", default="hash")
    parser.add_argument("--model", default="sentence-transformers/all-MiniLM-L6-v2")
    parser.add_argument("--mode", default="embedding", choices=["embedding", "hybrid"])
    parser.add_argument("--texts", type=Path, help="file with a text a line, or JSON lines with 'problem' or 'text'")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write the figures here as well")
    parser.add_argument("--only", choices=CONFIGURATIONS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only:
        print(json.dumps(measure(options)))
        return
    with tempfile.TemporaryDirectory() as folder:
        rows = [child(name, folder) for name in CONFIGURATIONS]
    print(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}")
    for row in rows:
        print(f"| {' | '.join(str(row.get(column, '-')) for column in COLUMNS)} |")
    print(f"\n{options.skills} skills, {options.queries} questions, {os.cpu_count()} cores")
    if options.json:
        options.json.write_text(json.dumps({"options": sys.argv[1:], "rows": rows}, indent=1))


def child(name: str, folder: str) -> dict[str, Any]:
    """One configuration in a process of its own, so that its peak memory is its own."""
    print(f"{name} ...", file=sys.stderr, flush=True)
    command = [sys.executable, __file__, *sys.argv[1:], "--only", name, "--folder", folder]
    row: dict[str, Any] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return row


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Figures of one configuration."""
    texts, queries = make_texts(options)
    snapshot = Snapshot.of(1, [Skill(id=f"s{row:06}", title="", text=text) for row, text in enumerate(texts)])
    folder = options.folder / options.only

    def opened() -> Retriever:
        embedder = make_embedder(options.embedder, options.model)
        index = MemoryIndex() if options.only == "memory" else ChromaIndex(embedder.name, folder)
        return Retriever(options.mode, embedder, index)

    started = time.perf_counter()
    retriever = opened()
    retriever.search(snapshot, queries[:1])
    build = time.perf_counter() - started
    row: dict[str, Any] = {"vectors in": options.only, "build s": round(build, 1)}
    if options.only != "memory":
        retriever.close()
        started = time.perf_counter()
        retriever = opened()
        retriever.search(snapshot, queries[:1])
        row["reopen s"] = round(time.perf_counter() - started, 1)
        row["disk MB"] = round(sum(file.stat().st_size for file in folder.rglob("*")) / 1e6)
    embedder = make_embedder(options.embedder, options.model)
    in_memory = Retriever(options.mode, embedder, MemoryIndex())
    truth = [[hit.skill.id for hit in hits] for hits in in_memory.search(snapshot, queries, k=K)]
    in_memory.close()
    found, seconds = [], []
    cpu = time.process_time()
    for query in queries:
        started = time.perf_counter()
        names = [hit.skill.id for hit in retriever.search(snapshot, [query], k=K)[0]]
        seconds.append(time.perf_counter() - started)
        found.append(names)
    row["CPU ms"] = round(
        (time.process_time() - cpu) / len(queries) * 1e3, 2
    )  # other processes slow it less than the clock
    row |= figures(found, truth, seconds)
    started = time.perf_counter()
    for query in queries[:100]:
        embedder.embed([query])
    row["of it embedding ms"] = round((time.perf_counter() - started) * 10, 2)
    row["peak MB"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3)
    row["load"] = round(os.getloadavg()[0], 1)
    retriever.close()
    return row


def figures(found: list[list[str]], truth: list[list[str]], seconds: list[float]) -> dict[str, Any]:
    """Equal lists and times as the table shows them."""
    return {
        "lists equal": f"{np.mean([one == other for one, other in zip(found, truth, strict=True)]):.3f}",
        "query min ms": round(min(seconds) * 1e3, 2),
        "p10 ms": round(float(np.quantile(seconds, 0.1)) * 1e3, 2),
        "query p50 ms": round(float(np.median(seconds)) * 1e3, 2),
        "p95 ms": round(float(np.quantile(seconds, 0.95)) * 1e3, 2),
    }


# --- texts ---


def make_texts(options: argparse.Namespace) -> tuple[list[str], list[str]]:
    """(skills, questions)."""
    rng = np.random.default_rng(options.seed)
    if options.texts is None:
        return generated(options.skills, options.queries, rng)
    lines = [line for line in options.texts.read_text(encoding="utf-8").splitlines() if line.strip()]
    own = [text_of(line) for line in lines]
    # Too few texts are made more by putting halves of different ones together.
    while len(own) < options.skills:
        one, other = own[rng.integers(len(lines))].split(), own[rng.integers(len(lines))].split()
        own.append(" ".join(one[: len(one) // 2] + other[len(other) // 2 :]))
    skills = own[: options.skills]
    asked = []
    for text in rng.choice(np.array(skills, dtype=object), size=options.queries):
        words = text.split()
        start = rng.integers(max(1, len(words) - 8))
        asked.append(" ".join(words[start : start + 10]))
    return skills, asked


def text_of(line: str) -> str:
    """The text of a line, or the problem of a JSON object."""
    if not line.startswith("{"):
        return line
    record = json.loads(line)
    return str(record.get("problem") or record.get("text") or "")


def vocabulary() -> list[str]:
    """The 6,000 most frequent words of the standard library's docstrings, most frequent first."""
    counts: Counter[str] = Counter()
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8", errors="replace"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                counts.update(re.findall(r"\b[a-z]{3,12}\b", ast.get_docstring(node) or ""))
    return [word for word, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:6000]]


def generated(count: int, questions: int, rng: np.random.Generator) -> tuple[list[str], list[str]]:
    """Skills of 25 to 69 words and questions of 5 to 12 (see the top)."""
    words = np.array(vocabulary())
    general, special = zipf(len(words)), zipf(300)
    subjects = [rng.permutation(len(words) - 100)[:300] + 100 for _ in range(200)]
    subject_of = rng.integers(200, size=count)
    skills = []
    for subject in subject_of:
        size = rng.integers(25, 70)
        common = rng.choice(len(words), p=general, size=size)
        own = subjects[subject][rng.choice(300, p=special, size=size)]
        skills.append(" ".join(words[np.where(rng.random(size) < 0.5, common, own)]))
    asked = []
    for row in rng.integers(count, size=questions):
        chosen = rng.choice(skills[row].split(), size=rng.integers(5, 13))
        others = words[subjects[subject_of[row]][rng.choice(300, p=special, size=len(chosen))]]
        asked.append(" ".join(np.where(rng.random(len(chosen)) < 0.3, others, chosen)))
    return skills, asked


def zipf(size: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Probabilities in proportion to 1 / rank."""
    weights = 1.0 / np.arange(1, size + 1)
    return weights / weights.sum()


if __name__ == "__main__":
    main()

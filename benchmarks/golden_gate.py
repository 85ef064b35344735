"""Runs the same commands with the code of two commits and compares the values they write: `make golden BASE=COMMIT`.

A refactoring must change no number. Each workload is a few steps of a recipe, starting from weights that the base trained once and that
both sides load. Metrics, votes, trajectories, evaluations, the bank's log and the weights are compared value by value; times and paths are
not. The base's weights and results stay in the user's cache, so later calls only run the working tree. Numbers differ between CPUs, so
both sides run on this machine, one thread each.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import platformdirs
from safetensors.numpy import load_file

ROOT = Path(__file__).resolve().parent.parent
CLI = "from skill_ttrl.cli.entry import main; main()"

NAMES: dict[str, str | None] = {
    "dropped": None,
    "prompt_variant": None,
    "gradient_shares": None,
    "stopped_tokens": None,
    **dict.fromkeys(f"tripwire/{name}" for name in ("bare_answers", "unreadable", "copied_skills", "top_winner")),
    **dict.fromkeys(
        f"votes.jsonl:{field}" for field in (
            "rewards", "class_ids", "label_weights", "weight", "penalty", "bonus", "skipped", "flags",
        )
    ),
}  # fmt: skip
"""Old name → new name of a field (`accuracy`, or of one file alone `votes.jsonl:weight`) or a file (`votes.jsonl`); None: one side alone has
it. For a commit that only renames."""

IGNORED = {"seconds", "created", "check", "digest", "config_digest", "timing", "source", "policy", "reused_from"}
"""Fields that differ between two equal runs, wherever they stand, as all do that end in `_seconds`, and labels in words. Of `errors`,
sentences for people, the number is compared."""

SKIPPED = {
    "timings.jsonl",
    "equivalence_cache.jsonl",
    "usage.jsonl",
    "answers.jsonl",
    "warnings.jsonl",
    "eval_trajectories.jsonl",
}
"""Line files of times, of what was computed in which order, or of sentences for people."""

# In commands, @out is the workload's folder and @math, @shop … are folders with weights.
COMMITTED = {"operators": "tests/data/operators_base", "entities": "tests/data/alfworld_base"}
"""Weights that stand in the base's tree: the cold starts of `quickstart_skills` and of `quickstart_alfworld`."""

COLD = {
    "math": "sft quickstart --seed 0 --set runtime.threads=1 --set eval.greedy=false --set eval.samples=1",
    "shop": """train quickstart_webshop --seed 0 --set phases=[collect,distill,sft] --set runtime.threads=1 --set collect.episodes=240
        --set demonstrations.examples=1200 --set sft.steps=150 --set env.eval_tasks=4 --set eval.controls=[]""",
    "house": """train quickstart_skills_alfworld --seed 0 --set phases=[collect,distill,sft] --set runtime.threads=1
        --set collect.episodes=96 --set demonstrations.examples=1200 --set sft.steps=150 --set env.eval_tasks=4
        --set eval.controls=[] --set eval.samples=1""",
}
"""Weights that a base trains once: the cold starts of the other recipes, shortened."""

FEW = """--seed 0 --set runtime.threads=1 --set rl.steps=4 --set rl.save_steps=2 --set rl.prompts_per_step=8 --set eval.samples=2
    --set data.eval.limit=40 -o @out/run"""
QUICK = f"rl quickstart --policy @math {FEW}"
NOTES = f"""rl quickstart_notes --policy @operators {FEW} --set skills.update=merge --set skills.extract_from_solutions=true"""
GATE = "data: {path: 'synthetic:operators', split: series-train}, tasks: 10, rollouts_per_task: 2, every: 1"
EPISODES = """--seed 0 --set runtime.threads=1 --set sft.steps=3 --set rl.steps=3 --set evolve.every=1 --set evolve.threshold=1.0
    --set evolve.min_episodes=2 --set demonstrations.examples=200 --set rl.prompts_per_step=4 --set env.eval_tasks=6
    --set eval.samples=1 --set eval.controls=[] -o @out/run"""
KILLED_AT = 2
"""Steps after which the command that begins with `KILL` is killed; it is then run to its end."""

WORKLOADS: dict[str, list[str]] = {
    "quickstart": [QUICK],
    "quickstart_skills": [f"rl quickstart_skills --policy @operators {FEW}"],
    "quickstart_notes": [f'{NOTES} --set "skills.gate={{{GATE}, rule: not_worse, min_effect: 0.3}}"'],
    "gate_refuses": [f'{NOTES} --set rl.steps=2 --set "skills.gate={{{GATE}, rule: better, min_effect: 0.2}}"'],
    "quickstart_webshop": [
        f"train quickstart_webshop --set model.path=@shop --set model.builtin={{}} --set collect.episodes=40 {EPISODES}"
    ],
    "quickstart_skills_alfworld": [
        f"train quickstart_skills_alfworld --set model.path=@house --set model.builtin={{}} --set collect.episodes=24 --set env.kwargs.max_steps=15 {EPISODES}"
    ],
    "quickstart_optimize": [
        """optimize quickstart_optimize --policy @operators --seed 0 --set runtime.threads=1 --set agent.template=plain
        --set agent.prompts=tiny --set data.max_prompt_tokens=64 --set rollout.max_new_tokens=40 --set optimize.epochs=1
        --set optimize.test_tasks=20 -o @out/run"""
    ],
    "nsr": [f'{QUICK} --set "rl.algorithm={{type: grpo_nsr}}" --set rl.kl_coef=0.01 --set "rl.kl_in_reward={{}}"'],
    "critic": [
        f'{QUICK} --set rl.algorithm=gae --set "rl.critic={{}}" --set rl.kl_coef=0.01 --set "rl.kl_in_reward={{}}"'
    ],
    "vote_sft": [f"train quickstart --set model.path=@math --set phases=[vote_sft] {FEW}"],
    "lora": [f'{QUICK} --set "model.lora={{r: 4}}" --set rl.learning_rate=1e-3'],
    "asynchronous": [f"{QUICK} --set rl.max_staleness=1 --set rl.in_flight_updates=false"],
    "ranks": [f"{QUICK} --nproc 2 --set rl.steps=2"],
    "resumed": [f"KILL {QUICK} --set rl.steps=6 --set rl.save_steps=1"],
    "dagger": [
        f"""train quickstart_skills_alfworld --set model.path=@house --set model.builtin={{}} --set collect.episodes=24 {EPISODES}
        --set phases=[collect,distill,sft,dagger] --set dagger.rounds=1 --set dagger.episodes=4 --set dagger.steps=2"""
    ],
    "transcripts": [
        "collect --env alfworld --mock --policy expert --limit 12 --epsilon 0.2 -n 2 --num-workers 1 --seed 0 -o @out/house.jsonl",
        "collect --env webshop --mock --policy careful --limit 12 --epsilon 0.1 --num-workers 1 --seed 0 -o @out/shop.jsonl",
        "distill --trajectories @out/house.jsonl -o @out/bank",
        "evaluate rule --env webshop --env-data generated --limit 8 --num-workers 1 --seed 0 -o @out/rule.jsonl",
        """evaluate @entities --config quickstart_alfworld --set runtime.threads=1 --set env.eval_tasks=4 --set eval.greedy=false
        --seed 0 -o @out/evaluated""",
    ],
}


def run_workload(name: str, commands: list[str], tree: Path, weights: dict[str, Path], folder: Path) -> float:
    """Run its commands with the code of `tree`; the folder is there once all have succeeded. Gives the seconds that took.

    Raises:
        SystemExit: a command failed; what it printed is shown.
    """
    started, out = time.monotonic(), folder.with_name(f"{folder.name}.unfinished")
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    places = {"@out": out} | {f"@{key}": path for key, path in weights.items()}
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    env = os.environ | threads | {"PYTHONPATH": str(tree), "CUDA_VISIBLE_DEVICES": ""}
    for number, command in enumerate(commands):
        words = shlex.split(command)
        for place, path in places.items():
            words = [word.replace(place, str(path)) for word in words]
        killed = words[0] == "KILL"
        argv = [sys.executable, "-c", CLI, *words[killed:]]
        log = out / f"{number}.log"
        if killed:
            _kill(argv, out, env, log)
        with log.open("ab") as stream:
            done = subprocess.run(argv, cwd=out, env=env, stdout=stream, stderr=stream, stdin=subprocess.DEVNULL)
        if done.returncode:
            tail = "\n".join(log.read_text().splitlines()[-15:])
            raise SystemExit(
                f"{name}: `skillttrl {shlex.join(argv[3:])}` with the code of {tree} ended with {done.returncode}:\n{tail}"
            )
    shutil.rmtree(folder, ignore_errors=True)
    out.rename(folder)
    return time.monotonic() - started


def _kill(argv: list[str], out: Path, env: dict[str, str], log: Path) -> None:
    metrics = out / "run" / "metrics.jsonl"
    with log.open("ab") as stream:
        process = subprocess.Popen(argv, cwd=out, env=env, stdout=stream, stderr=stream, start_new_session=True)
    while not metrics.exists() or metrics.read_bytes().count(b"\n") < KILLED_AT:
        if process.poll() is not None:
            raise SystemExit(f"It ended with {process.returncode} before it could be killed: see {log}")
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


class Side:
    """One commit's code with the folder of its results."""

    def __init__(self, tree: Path, results: Path, *, cached: bool) -> None:
        self.tree, self.results, self.cached = tree, results, cached

    def run(self, name: str, weights: dict[str, Path]) -> Path:
        """The folder with the results of a workload, computed where the cache does not have them."""
        folder = self.results / name
        recipe = self.results / f"{name}.txt"
        versions = [
            f"{package} {importlib.metadata.version(package)}" for package in ("numpy", "torch", "transformers")
        ]
        text = "\n".join([*WORKLOADS[name], *(f"{key}={_digest(path)}" for key, path in weights.items()), *versions])
        if not (self.cached and folder.is_dir() and recipe.exists() and recipe.read_text() == text):
            seconds = run_workload(name, WORKLOADS[name], self.tree, weights, folder)
            recipe.write_text(text)
            print(
                f"{name}: ran with {'the base' if self.cached else 'the working tree'} in {seconds:.0f} s", flush=True
            )
        return folder


def _digest(folder: Path) -> str:
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()[:16]


def base_tree(base: str, cache: Path) -> Path:
    """A copy of the base's files in the cache."""
    tree = cache / "tree"
    if not tree.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as unfinished:
            archive = subprocess.run(["git", "-C", ROOT, "archive", base], check=True, stdout=subprocess.PIPE).stdout
            subprocess.run(["tar", "-x", "-C", unfinished], input=archive, check=True)
            shutil.copytree(unfinished, tree, symlinks=True)
    return tree


def base_weights(names: set[str], tree: Path, cache: Path) -> dict[str, Path]:
    """Folders of weights by name; the base trains those that the cache does not have."""
    found = {}
    for name in sorted(names):
        if name in COMMITTED:
            found[name] = tree / COMMITTED[name]
            continue
        folder = cache / "weights" / name
        if not folder.is_dir():
            print(f"{name}: the base trains its weights (once, minutes) ...", flush=True)
            run_workload(name, [f"{COLD[name]} -o @out/run", "export @out/run -o @out/model"], tree, {}, folder)
        found[name] = folder / "model"
    return found


def differences(name: str, base: Path, head: Path) -> Iterator[str]:
    """What differs between two results of a workload, a sentence for each file: its first line or tensor that does."""
    names = {f"{path.relative_to(base)}" for path in base.rglob("*") if _is_compared(path, base)}
    others = {f"{path.relative_to(head)}" for path in head.rglob("*") if _is_compared(path, head)}
    renamed = {each: _renamed_file(each) for each in names}
    for gone in sorted(each for each, now in renamed.items() if now is not None and now not in others):
        yield f"{name}: {gone} is missing now"
    for new in sorted(others - set(renamed.values())):
        yield f"{name}: {new} is new"
    for before, now in sorted(renamed.items()):
        if now in others:
            differ = _tensors_differ if before.endswith(".safetensors") else _lines_differ
            if found := differ(base / before, head / now, base, head):
                yield f"{name}: {before}: {found}"


def _is_compared(path: Path, out: Path) -> bool:
    """Weights of checkpoints, line files with the bank's log, coverage, and what an optimization wrote: its documents and steps."""
    parts = path.relative_to(out).parts
    if path.suffix == ".safetensors" or path.name in ("coverage.json", "history.json", "best_skill.md"):
        return True
    return (path.suffix == ".jsonl" and path.name not in SKIPPED) or (
        "steps" in parts and path.suffix in (".json", ".md")
    )


def _renamed_file(name: str) -> str | None:
    folder, _, last = name.rpartition("/")
    if last not in NAMES:
        return name
    new = NAMES[last]
    return new and f"{folder}/{new}".lstrip("/")


def _tensors_differ(base: Path, head: Path, *_: Path) -> str | None:
    before, now = load_file(base), load_file(head)
    if before.keys() != now.keys():
        return f"tensors differ: {sorted(before.keys() ^ now.keys())[0]}"
    for key, value in before.items():
        if not np.array_equal(value, now[key]):
            return f"{key} differs by up to {np.abs(value.astype(np.float64) - now[key]).max():.3g}"
    return None


def _lines_differ(base: Path, head: Path, out: Path, other: Path) -> str | None:
    for number, (before, now) in enumerate(zip_longest(_lines(base, out), _lines(head, other)), start=1):
        if before is None or now is None:
            return f"line {number}: only {'the working tree' if before is None else 'the base'} has it"
        if found := _first_difference(_mapped(before, base.name), _stripped(now)):
            return f"line {number}: {found}"
    return None


def _lines(path: Path, out: Path) -> Iterator[Any]:
    text = path.read_text().replace(f"{out}.unfinished", "@out")
    if path.suffix == ".jsonl":
        yield from (json.loads(line) for line in text.splitlines())
    else:
        yield json.loads(text) if path.suffix == ".json" else text


def _stripped(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: len(each) if key == "errors" and isinstance(each, list) else _stripped(each)
            for key, each in value.items()
            # A field with the name None in `NAMES` is one that one side alone has: nothing to compare.
            if key not in IGNORED and not key.endswith("_seconds") and NAMES.get(key, key) is not None
        }
    return [_stripped(each) for each in value] if isinstance(value, list) else value


def _mapped(value: Any, file: str) -> Any:
    """A value of a file of the base with the names of today."""
    if isinstance(value, dict):
        names = {key: NAMES.get(f"{file}:{key}", NAMES.get(key, key)) for key in value}
        return _stripped({names[key]: _mapped(each, file) for key, each in value.items() if names[key] is not None})
    return [_mapped(each, file) for each in value] if isinstance(value, list) else value


def _first_difference(before: Any, now: Any, place: str = "") -> str | None:
    if isinstance(before, dict) and isinstance(now, dict):
        for key in sorted(before.keys() | now.keys()):
            if key not in before or key not in now:
                return f"{place}{key} is {'new' if key not in before else 'missing now'}"
            if found := _first_difference(before[key], now[key], f"{place}{key}."):
                return found
        return None
    if isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        found = (
            _first_difference(*pair, f"{place}{number}.") for number, pair in enumerate(zip(before, now, strict=True))
        )
        return next(filter(None, found), None)
    same = (before == now and type(before) is type(now)) or (before != before and now != now)
    return None if same else f"{place.rstrip('.') or 'value'} was {str(before)[:60]!r}, is {str(now)[:60]!r}"


SIGHTS = (
    "skills retrieved", "skills written", "skills merged", "skills evolved", "gate accepted", "gate refused",  "edit refused",
)  # fmt: skip


def sights(folder: Path) -> Counter[str]:
    """How often each of `SIGHTS` happened in a workload's results."""
    seen: Counter[str] = Counter()
    for path in folder.rglob("*.json*"):
        if path.suffix != ".jsonl" and path.name != "history.json":
            continue
        for line in _stripped([*_lines(path, folder)] if path.suffix == ".jsonl" else json.loads(path.read_text())):
            if path.name == "trajectories.jsonl":
                seen["skills retrieved"] += len(line["retrieved"])
                seen["skills written"] += len((line["ops"] or {}).get("generate", ()))
            elif path.name == "log.jsonl" and path.parent.name == "bank":
                seen["skills merged"] += line["reason"] == "merge"
                seen["skills evolved"] += line["reason"] == "evolve"
            elif path.name == "gate.jsonl":
                seen["gate accepted" if line["accepted"] else "gate refused"] += 1
            elif path.name == "history.json":
                seen["edit refused" if line["action"] == "reject" else "edit accepted"] += 1
    return seen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", help="the commit that the working tree is compared with")
    parser.add_argument("--workloads", default="", help=f"some of {', '.join(WORKLOADS)}; default: all")
    parser.add_argument("--jobs", type=int, default=2, help="workloads that run at the same time, one thread each")
    given = parser.parse_args()
    names = given.workloads.split(",") if given.workloads else list(WORKLOADS)
    if unknown := [name for name in names if name not in WORKLOADS]:
        parser.error(f"there is no workload {unknown[0]}; there are {', '.join(WORKLOADS)}")
    base = subprocess.run(
        ["git", "-C", ROOT, "rev-parse", f"{given.base}^{{commit}}"], check=True, stdout=subprocess.PIPE, text=True
    )
    cache = platformdirs.user_cache_path("skill-ttrl") / "golden" / base.stdout.strip()[:12]
    tree = base_tree(base.stdout.strip(), cache)
    sides = [Side(tree, cache / "results", cached=True), Side(ROOT, cache / "working-tree", cached=False)]

    def compare(name: str) -> tuple[list[str], Counter[str]]:
        mine = {key: weights[key] for key in weights if any(f"@{key}" in command for command in WORKLOADS[name])}
        try:
            before, now = [side.run(name, mine) for side in sides]
        except SystemExit as failed:
            return [str(failed)], Counter()
        found = list(differences(name, before, now))
        print(f"{name}: {'DIFFERS' if found else 'equal'}", flush=True)
        return found, sights(now)

    weights = base_weights(
        {key for key in (*COMMITTED, *COLD) for name in names if f"@{key}" in " ".join(WORKLOADS[name])}, tree, cache
    )
    with ThreadPoolExecutor(given.jobs) as pool:
        results = list(pool.map(compare, names))
    seen = sum((each for _, each in results), Counter())
    print("\n".join(f"{what}: {seen[what]}" for what in SIGHTS))
    found = [line for lines, _ in results for line in lines]
    unseen = (
        []
        if given.workloads
        else [f"The gate is blind: no {what} in any workload" for what in SIGHTS if not seen[what]]
    )
    if found or unseen:
        raise SystemExit("\n".join([*found, *unseen]))


if __name__ == "__main__":
    main()

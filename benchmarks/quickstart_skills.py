"""Learning to use a skill bank, over seeds and with controls: the tables of benchmarks/results/quickstart-skills.md.

    python benchmarks/quickstart_skills.py                    # all runs, then the tables (about an hour on 2 cores)
    python benchmarks/quickstart_skills.py --tables-only      # the tables again from finished runs

One cold start a seed; each variant reinforces from it, as a user would with `skillttrl rl RECIPE --policy RUN`. Finished
runs are not repeated. Runs start one after the other, unless `--jobs` says otherwise: then wall times mean little.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import numpy as np

from skill_ttrl.answers import extract
from skill_ttrl.config import load_config
from skill_ttrl.data.families import RULES, Operators, question
from skill_ttrl.llm.backend import Request, Sampling, wait_for
from skill_ttrl.runs.summary import Summary, read_summary
from skill_ttrl.statistics import wilson_interval
from skill_ttrl.train.build import build_policy
from skill_ttrl.types import Skill

SKILLS, NOTES = "quickstart_skills", "quickstart_notes"
KINDS = ("right", "two", "three", "stated", "told", "told two", "wrong", "none")
EPISODES = 600
"""Prompts of each kind: a share near 0.95 is then known to about 0.02."""


@dataclass(frozen=True)
class Variant:
    """One way to reinforce a cold start."""

    name: str
    recipe: str
    settings: tuple[str, ...] = ()


VARIANTS = (
    Variant("majority", SKILLS),
    Variant("notes", NOTES),
    Variant("random", SKILLS, ("rl.reward=random",)),
    Variant("bank off", SKILLS, ("skills.enabled=false",)),
    Variant("shuffled rules", SKILLS, ("skills.bank=synthetic:operators-shuffled",)),
    Variant("notes, random", NOTES, ("rl.reward=random",)),
    Variant("two told", SKILLS, ("skills.retrieval_top_k=2",)),
    Variant("hybrid retrieval", SKILLS, ("skills.retrieval=hybrid",)),
    Variant("label", SKILLS, ("rl.reward=label",)),
)


def main() -> None:
    """Run what is missing and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--output", type=Path, default=Path("runs/benchmark-quickstart-skills"))
    parser.add_argument("--variants", nargs="+", help="only these")
    parser.add_argument("--jobs", type=int, default=1, help="seeds at a time, each on one thread if more than one")
    parser.add_argument("--tables-only", action="store_true")
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    variants = [each for each in VARIANTS if not options.variants or each.name in options.variants]
    if not options.tables_only:
        with ThreadPoolExecutor(options.jobs) as pool:
            list(pool.map(lambda seed: run_seed(seed, variants, options.output, options.jobs), options.seeds))
    print("\n### The cold start, by what it is shown\n")
    print(cold_start_table(options.seeds, options.output))
    for recipe in (SKILLS, NOTES):
        print(f"\n### {recipe}\n")
        print(run_table([each for each in variants if each.recipe == recipe], options.seeds, options.output))


def run_seed(seed: int, variants: list[Variant], output: Path, jobs: int) -> None:
    """The cold start of one seed, what it can do, and every variant from it."""
    threads = ["runtime.threads=1"] if jobs > 1 else []
    cold = output / f"cold-{seed}"
    if not (cold / "summary.json").exists():
        skillttrl("sft", SKILLS, "--seed", seed, "-o", cold, "--resume", "auto", settings=threads)
    if not (output / f"cold-{seed}.json").exists():
        (output / f"cold-{seed}.json").write_text(json.dumps(probe(cold)))
    for variant in variants:
        folder = run_folder(output, variant, seed)
        if not (folder / "summary.json").exists():
            arguments = ("rl", variant.recipe, "--policy", cold, "--seed", seed, "-o", folder, "--resume", "auto")
            skillttrl(*arguments, settings=[*variant.settings, *threads])
        if variant.recipe == SKILLS and not (folder / "trained-names.json").exists():
            settings = ["data.eval=null", "eval.greedy=false", *threads]
            found = skillttrl("evaluate", folder, "--json", settings=settings)
            (folder / "trained-names.json").write_text(found)


def skillttrl(*arguments: object, settings: list[str]) -> str:
    """One command, as a user would give it; what it prints."""
    words = [str(word) for word in arguments] + [word for setting in settings for word in ("--set", setting)]
    print("$ skillttrl", " ".join(words), file=sys.stderr, flush=True)
    command = [sys.executable, "-m", "skill_ttrl.cli.main", *words]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def run_folder(output: Path, variant: Variant, seed: int) -> Path:
    """Where a variant's run is kept."""
    return output / f"{variant.name.replace(' ', '-').replace(',', '')}-{seed}"


def probe(cold: Path) -> dict[str, dict[str, int]]:
    """Right answers out of `EPISODES` by kind of prompt, on fresh rules, for the names of each split."""
    weights = max((cold / "checkpoints").glob("sft-*"))
    parts = build_policy(load_config(cold / "config.yaml", ["runtime.threads=1"]), weights=weights)
    formatter, backend = parts.agent.formatter, parts.backend
    rng = np.random.default_rng(0)
    counts: dict[str, dict[str, int]] = {}
    for split in ("train", "test"):
        names = Operators().names[split]
        for kind in KINDS:
            requests, truths = [], []
            for _ in range(EPISODES):
                chosen = [names[place] for place in rng.choice(len(names), 3, replace=False)]
                rules = [RULES[int(rng.integers(len(RULES)))] for _ in chosen]
                texts = [rule.of(name) for name, rule in zip(chosen, rules, strict=True)]
                x = int(rng.integers(10))
                shown = {"right": texts[:1], "two": texts[:2], "three": texts, "wrong": texts[1:2]}.get(kind, [])
                told = {"told": texts[:1], "told two": texts[:2]}.get(kind, [])
                rng.shuffle(shown)
                rng.shuffle(told)
                asked = question(chosen[0], x)
                asked = f"{texts[0]}. {asked}" if kind == "stated" else asked
                ids = backend.encode(formatter.messages(asked, [Skill("s", "", text) for text in shown]))
                if told:
                    ids += backend.encode_text(f'<skill_ops><retrieve query="{chosen[0]}"></retrieve>')
                    ids += backend.encode_text(formatter.render_retrieved([Skill("s", "", text) for text in told]))
                requests.append(Request(token_ids=ids))
                truths.append(str(rules[0].apply(x)))
            found = wait_for(backend.generate(requests, Sampling(max_new_tokens=40), seed=1))
            right = [extract(done.completions[0].text) == truth for done, truth in zip(found, truths, strict=True)]
            counts.setdefault(split, {})[kind] = sum(right)
    return counts


def cold_start_table(seeds: list[int], output: Path) -> str:
    """One row a seed and split, Markdown."""
    lines = [f"| seed | names | {' | '.join(KINDS)} |", f"|---|---|{'---|' * len(KINDS)}"]
    for seed in seeds:
        counts = json.loads((output / f"cold-{seed}.json").read_text())
        for split, label in (("train", "trained"), ("test", "never seen")):
            cells = [f"{counts[split][kind] / EPISODES:.3f}" for kind in KINDS]
            lines.append(f"| {seed} | {label} | {' | '.join(cells)} |")
    low, high = wilson_interval(round(0.95 * EPISODES), EPISODES)
    return (
        "\n".join(lines)
        + f"\n\nEach share of {EPISODES} samples at T = 1; around 0.95 its interval is [{low:.3f}, {high:.3f}]."
    )


def run_table(variants: list[Variant], seeds: list[int], output: Path) -> str:
    """One row a run, then means over seeds, Markdown."""
    columns = ("variant", "seed", "success before", "success after", "change (95 %)", "trained names after", "asks before → after",
               "writes before → after", "bank off, after", "last votes true", "warned", "s")  # fmt: skip
    lines = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    means = []
    for variant in variants:
        folders = [run_folder(output, variant, seed) for seed in seeds]
        runs = [(folder, read_summary(folder)) for folder in folders if (folder / "summary.json").exists()]
        lines += [row(variant, folder, run) for folder, run in runs]
        if runs:
            before = [run.accuracy_before or 0.0 for _, run in runs]
            after = [run.accuracy_after or 0.0 for _, run in runs]
            means.append(
                f"- {variant.name}: {fmean(before):.3f} → {fmean(after):.3f} "
                f"(after: {min(after):.3f} to {max(after):.3f} over {len(runs)} seed{'s' if len(runs) > 1 else ''})"
            )
    return "\n".join([*lines, "", *means])


def row(variant: Variant, folder: Path, run: Summary) -> str:
    """The cells of one run."""
    low, high = run.intervals["accuracy_change"]
    known = folder / "trained-names.json"
    trained = f"{json.loads(known.read_text())['accuracy']:.3f}" if known.exists() else "-"
    cells = (
        variant.name,
        str(run.seed),
        f"{run.accuracy_before:.3f}",
        f"{run.accuracy_after:.3f}",
        f"{(run.accuracy_after or 0) - (run.accuracy_before or 0):+.3f} [{low:+.3f}, {high:+.3f}]",
        trained,
        _use(run, "retrieve_rate"),
        _use(run, "generate_rate"),
        "-" if run.accuracy_no_skills is None else f"{run.accuracy_no_skills:.3f}",
        "-" if run.label_accuracy is None else f"{run.label_accuracy:.3f}",
        "yes" if run.warnings else "no",
        f"{run.seconds['rl']:.0f}",
    )
    return f"| {' | '.join(cells)} |"


def _use(run: Summary, name: str) -> str:
    before, after = run.skill_use_before.get(name), run.skill_use_after.get(name)
    return "-" if before is None or after is None else f"{before:.3f} → {after:.3f}"


if __name__ == "__main__":
    main()

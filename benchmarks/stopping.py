"""The baseline at equal samples and the label-free stopping rules, over seeds: the tables of docs/evaluate.md.

    python benchmarks/stopping.py                      # all runs, then the tables (about half an hour on one core)
    python benchmarks/stopping.py --tables-only        # the tables again from finished runs
    python benchmarks/stopping.py --sweep 10 11 12 13  # other settings of the quickstart, on seeds of their own

One cold start a seed. From it the reinforcement of the recipe, measured after every step, and SFT on the majority answers
(the phase vote_sft) with as many samples of the same prompts. Finished runs are not repeated. Runs start one after the
other on one thread. benchmarks/quickstart.py adds the controls and reads the same folder.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from skill_ttrl.commands.reports.compare import compare
from skill_ttrl.errors import RunFolderError
from skill_ttrl.runs.folder import metric_rows
from skill_ttrl.runs.reader import read_run
from skill_ttrl.runs.summary import Summary, read_summary
from skill_ttrl.statistics import paired_difference
from skill_ttrl.storage.jsonl import read_jsonl
from skill_ttrl.train.metrics import RULES, stop_step

STEP = "step "
"""Prefix of the label of an evaluation during RL training."""


@dataclass(frozen=True, slots=True)
class Stopping:
    """Where each rule would have ended a run, and what that is worth where it was measured."""

    steps: int
    """Steps that were done."""
    stops: dict[str, int | None]
    """By rule, the steps after which it would have ended the run; None where it never does."""
    accuracy: dict[int, float]
    """avg@k by steps done, where it was measured; 0 is before the training."""

    @property
    def best(self) -> int | None:
        """The best step in hindsight, which needs labels: the first of equals; None where nothing was measured."""
        return max(self.accuracy, key=lambda step: (self.accuracy[step], -step)) if self.accuracy else None

    def reached(self, rule: str) -> int:
        """Steps done where this rule is followed."""
        stop = self.stops[rule]
        return self.steps if stop is None else stop


def look_back(path: str | Path) -> Stopping:
    """Apply every rule, with its defaults, to the run at `path` in hindsight, and the run's own rule with its options.

    Raises:
        RunFolderError: not a run folder, or no step of reinforcement has been done in it.
    """
    run = read_run(path)
    rows = [row for row in metric_rows(run.path) if row["phase"] == "rl"]
    if not rows:
        raise RunFolderError(f"{path} has done no step of the rl phase: there is nothing to stop.")
    own = run.config.rl
    stops = {rule: stop_step(rows, rule) for rule in RULES}
    if own.stop_rule is not None:
        stops[own.stop[0]] = stop_step(rows, *own.stop)
    file = Path(path) / "evaluations.jsonl"
    evaluations = read_jsonl(file)
    return Stopping(len(rows), stops, accuracy_by_step(evaluations, len(rows)))


def accuracy_by_step(evaluations: Sequence[Mapping[str, Any]], steps: int) -> dict[int, float]:
    """avg@k by steps done: that of `before` at 0, of `step N` at N, of `after` at the last."""
    places = {"before": 0, "after": steps}
    found = {}
    for line in evaluations:
        label, accuracy = str(line["label"]), line["accuracy"]
        number = label.removeprefix(STEP)
        place = int(number) if label.startswith(STEP) and number.isdigit() else places.get(label)
        if place is not None and accuracy is not None:
            found[place] = float(accuracy)
    return dict(sorted(found.items()))


RECIPES = ("quickstart", "collapse")
SWEEP = {
    "vote_sft": [
        (f"vote_sft.learning_rate={rate}", f"vote_sft.batch_size={size}", f"vote_sft.passes={passes}")
        for size, rate, passes in (
            (64, "1e-4", 1), (64, "3e-4", 1), (64, "1e-3", 1), (64, "3e-4", 2), (256, "3e-4", 1),
        )
    ],
    "rl": [
        (f"rl.mini_batch_size={prompts}", f"rl.lr_scheduler={schedule}", f"rl.learning_rate={rate}")
        for prompts, schedule, rate in (
            ("null", "constant", "3e-4"), ("8", "cosine", "3e-4"), ("4", "cosine", "3e-4"), ("4", "cosine", "2e-4"),
            ("4", "cosine", "1e-4"),
        )
    ],
}  # fmt: skip
"""Settings of the quickstart by phase. 8 and 4 prompts a mini-batch are 4 and 8 optimizer steps a step in place of one."""
SETTINGS = ("runtime.threads=1", "eval.extra_temperatures=[]")
NEVER = "never fires"
Difference = tuple[float, float, float]
"""(difference, low, high), paired over problems."""


@dataclass(frozen=True)
class Pair:
    """One seed of a recipe: reinforcement and baseline from the same cold start."""

    seed: int
    rl: Summary
    baseline: Summary
    gain: Difference
    """avg@k after reinforcement less avg@k after the baseline."""
    stopping: Stopping
    right: dict[int, list[float]]
    """Share of right samples of each problem, by steps done."""

    def between(self, step: int, other: int) -> Difference:
        """avg@k after `step` steps less avg@k after `other`."""
        return paired_difference(self.right[other], self.right[step])


def main() -> None:
    """Run what is missing and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3])
    parser.add_argument("--output", type=Path, default=Path("runs/benchmark-quickstart"))
    parser.add_argument("--recipes", nargs="+", choices=RECIPES, default=list(RECIPES))
    parser.add_argument("--validate-every", type=int, default=1, help="steps between evaluations")
    parser.add_argument("--tables-only", action="store_true")
    parser.add_argument(
        "--sweep", type=int, nargs="+", metavar="SEED", help="other settings of the quickstart, on these seeds"
    )
    parser.add_argument("--phases", nargs="+", choices=SWEEP, default=list(SWEEP), help="of the sweep")
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    if options.sweep is not None:
        print(f"\n### quickstart: other settings\n\n{sweep(options.sweep, options.phases, options.output)}")
        return
    found: dict[str, list[Pair]] = {}
    for recipe in options.recipes:
        for seed in options.seeds:
            if not options.tables_only:
                run_seed(recipe, seed, options.output, options.validate_every)
            folder = options.output / f"{recipe}-{seed}"
            if all((each / "summary.json").exists() for each in (folder, baseline_of(folder))):
                found.setdefault(recipe, []).append(read_pair(seed, folder))
    for recipe, pairs in found.items():
        print(
            f"\n### {recipe}: reinforcement beside its baseline\n\n{baseline_table(pairs)}\n\n{baseline_means(pairs)}"
        )
        print(f"\n### {recipe}: where each rule would have stopped\n\n{rule_table(pairs)}\n\n{rule_means(pairs)}")
    print(f"\n### The rules over {' and '.join(found)}\n\n{verdicts(found)}")


def run_seed(recipe: str, seed: int, output: Path, validate_every: int) -> None:
    """Cold start, reinforcement and baseline of one seed."""
    folder = output / f"{recipe}-{seed}"
    baseline = baseline_of(folder)
    start = cold_start(recipe, seed, output)
    if not (folder / "summary.json").exists():
        skillttrl("rl", recipe, seed, folder, [start, f"rl.eval_steps={validate_every}"])
    if not (baseline / "summary.json").exists():
        skillttrl("train", recipe, seed, baseline, [start, "phases=[vote_sft]"])


def cold_start(recipe: str, seed: int, output: Path) -> str:
    """The setting that starts from the cold start of this seed."""
    cold = output / f"{recipe}-{seed}-cold"
    if not (cold / "summary.json").exists():
        skillttrl("sft", recipe, seed, cold, [])
    return f"model.path={max((cold / 'checkpoints').glob('sft-*')).resolve()}"


def sweep(seeds: list[int], phases: list[str], output: Path) -> str:
    """Both phases of the quickstart with other settings: one row a kind of run, avg@16 after of each seed, Markdown."""
    lines = [f"| phase | settings | {' | '.join(f'seed {seed}' for seed in seeds)} | mean | greedy after |"]
    lines.append(f"|{'---|' * (len(seeds) + 4)}")
    for phase in phases:
        for settings in SWEEP[phase]:
            values = [setting.partition("=")[2] for setting in settings]
            runs = []
            for seed in seeds:
                folder = output / f"quickstart-{seed}-sweep-{phase}-{'-'.join(values)}"
                if not (folder / "summary.json").exists():
                    start = cold_start("quickstart", seed, output)
                    skillttrl(
                        "train", "quickstart", seed, folder, [start, f"phases=[{phase}]", "eval.samples=16", *settings]
                    )
                runs.append(read_summary(folder))
            shown = ", ".join(setting.removeprefix(f"{phase}.").replace("=", " ") for setting in settings)
            after = [run.accuracy_after or 0.0 for run in runs]
            greedy = ", ".join(f"{run.greedy_after:.3f}" for run in runs)
            figures = " | ".join(f"{figure:.3f}" for figure in (*after, fmean(after)))
            lines.append(f"| {phase} | {shown} | {figures} | {greedy} |")
    return "\n".join(lines)


def skillttrl(command: str, recipe: str, seed: int, folder: Path, settings: list[str]) -> None:
    """One command, as a user would give it."""
    words = [command, recipe, "--seed", str(seed), "--output", str(folder), "--resume", "auto"]
    words += [word for setting in (*settings, *SETTINGS) for word in ("--set", setting)]
    print("$ skillttrl", " ".join(words), file=sys.stderr, flush=True)
    subprocess.run([sys.executable, "-m", "skill_ttrl.cli.main", *words], check=True, stdout=subprocess.DEVNULL)


def baseline_of(folder: Path) -> Path:
    """Where the baseline of the RL run in a folder is."""
    return folder.with_name(f"{folder.name}-vote_sft")


def read_pair(seed: int, folder: Path) -> Pair:
    """The finished runs of one seed."""
    change = compare([baseline_of(folder), folder])[0].figures["accuracy"]
    steps = look_back(folder)
    right = {}
    for line in read_jsonl(folder / "evaluations.jsonl"):
        step = {"before": 0, "after": steps.steps}.get(line["label"])
        step = int(line["label"].removeprefix("step ")) if step is None else step
        right[step] = [result["correct"] / result["samples"] for result in line["results"]]
    difference = (change.difference, *change.interval)
    return Pair(seed, read_summary(folder), read_summary(baseline_of(folder)), difference, steps, right)


def baseline_table(pairs: list[Pair]) -> str:
    """One row a seed, Markdown."""
    columns = ("seed", "avg@32 before", "maj@32 of the base", "vote_sft after", "rl after", "rl less vote_sft (95 %)",
               "maj@32 after: vote_sft, rl", "rl, best step in hindsight", "vote_sft s", "rl s")  # fmt: skip
    lines = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    for pair in pairs:
        best = pair.stopping.best
        cells = (
            str(pair.seed),
            f"{pair.rl.accuracy_before:.3f}",
            f"{pair.rl.majority_before:.3f}",
            f"{pair.baseline.accuracy_after:.3f}",
            f"{pair.rl.accuracy_after:.3f}",
            signed(pair.gain),
            f"{pair.baseline.majority_after:.3f}, {pair.rl.majority_after:.3f}",
            "-" if best is None else f"{pair.stopping.accuracy[best]:.3f} (step {best})",
            f"{pair.baseline.seconds['vote_sft']:.0f}",
            f"{pair.rl.seconds['rl']:.0f}",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def baseline_means(pairs: list[Pair]) -> str:
    """Mean and range over seeds, and what that says."""
    gains = [pair.gain[0] for pair in pairs]
    sides = (("vote_sft after", [p.baseline.accuracy_after or 0.0 for p in pairs]),
             ("rl after", [p.rl.accuracy_after or 0.0 for p in pairs]))  # fmt: skip
    lines = [f"- {name}: {spread(values)}" for name, values in sides]
    sides = (("of a policy that does not change (the rounds of vote_sft)", [p.baseline.flip_rate or 0.0 for p in pairs]),
             ("of the reinforcement", [p.rl.flip_rate or 0.0 for p in pairs]))  # fmt: skip
    lines += [f"- flip rate {name}: {spread(values)}" for name, values in sides]
    return "\n".join(
        [*lines, f"- rl less vote_sft: {spread(gains, sign=True)}: {judged([pair.gain for pair in pairs])}"]
    )


def rule_table(pairs: list[Pair]) -> str:
    """One row a seed and rule, Markdown."""
    columns = ("seed", "rule", "stops after", "avg@32 there", "lost to the best step", "gained on no rule (95 %)")
    lines = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    for pair in pairs:
        found = pair.stopping
        for rule, stop in [*found.stops.items(), ("no rule", found.steps)]:
            step = found.steps if stop is None else stop
            cells = (
                str(pair.seed),
                rule,
                "never" if stop is None else str(stop),
                f"{found.accuracy[step]:.3f}",
                f"{regret(pair, step):.3f}",
                signed(pair.between(step, found.steps)) if step < found.steps else "the same",
            )
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def rule_means(pairs: list[Pair]) -> str:
    """Each rule over seeds: where it stops, what it loses, whether it is better than none and than no training."""
    lines = []
    for rule in (*pairs[0].stopping.stops, "no rule", "no training"):
        steps = [{"no rule": p.stopping.steps, "no training": 0}.get(rule) for p in pairs]
        reached = [p.stopping.reached(rule) if step is None else step for p, step in zip(pairs, steps, strict=True)]
        lost = [regret(pair, step) for pair, step in zip(pairs, reached, strict=True)]
        line = f"- {rule}: ends after {min(reached)} to {max(reached)} steps, lost to the best step {spread(lost)}"
        if rule != "no rule":
            line += f"; against no rule {judgement(rule, pairs)}"
        if rule == "no rule" or (rule != "no training" and judgement(rule, pairs) != NEVER):
            line += f"; against no training {told([pair.between(step, 0) for pair, step in zip(pairs, reached, strict=True)])}"
        lines.append(line)
    return "\n".join(lines)


def verdicts(found: dict[str, list[Pair]]) -> str:
    """One row a rule, over all recipes, Markdown."""
    rules = next(iter(found.values()))[0].stopping.stops
    lines = [f"| rule | {' | '.join(found)} |", f"|---|{'---|' * len(found)}"]
    for rule in rules:
        lines.append(f"| {rule} | {' | '.join(judgement(rule, pairs) for pairs in found.values())} |")
    return "\n".join(lines)


def judgement(rule: str, pairs: list[Pair]) -> str:
    """Whether ending by a rule is better or worse than ending after all steps."""
    if rule in pairs[0].stopping.stops and all(pair.stopping.stops[rule] is None for pair in pairs):
        return NEVER
    reached = [0 if rule == "no training" else pair.stopping.reached(rule) for pair in pairs]
    return told([pair.between(step, pair.stopping.steps) for pair, step in zip(pairs, reached, strict=True)])


def told(differences: list[Difference]) -> str:
    """Mean and range over seeds, and what the intervals say."""
    return f"{spread([difference for difference, *_ in differences], sign=True)}, {judged(differences)}"


def judged(differences: list[Difference]) -> str:
    """What the intervals over problems say, seed by seed; noise is an interval that holds 0."""
    better = sum(low > 0 for _, low, _ in differences)
    worse = sum(high < 0 for *_, high in differences)
    seeds = len(differences)
    for word, count in (("better", better), ("worse", worse), ("noise", seeds - better - worse)):
        if count == seeds:
            return f"{word} on every seed"
    return f"better on {better}, worse on {worse}, noise on {seeds - better - worse} of {seeds} seeds"


def regret(pair: Pair, step: int) -> float:
    """avg@k that is lost against the best step in hindsight, which needs labels."""
    return max(pair.stopping.accuracy.values()) - pair.stopping.accuracy[step]


def spread(values: list[float], *, sign: bool = False) -> str:
    """Mean, lowest and highest over seeds."""
    shape = "+.3f" if sign else ".3f"
    return f"{fmean(values):{shape}} ({min(values):{shape}} to {max(values):{shape}} over {len(values)} seeds)"


def signed(difference: Difference) -> str:
    """A difference with its interval."""
    value, low, high = difference
    return f"{value:+.3f} [{low:+.3f}, {high:+.3f}]"


if __name__ == "__main__":
    main()

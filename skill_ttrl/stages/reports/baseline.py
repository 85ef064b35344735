"""A label-free run and its baseline: RL at `NAME`, SFT on the majority answers at `NAME-vote_sft`.

The two are a pair where their configs differ only in how the policy learns, not in what is sampled. Whichever ends second, and
`skillttrl inspect` at any time, shows both.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from skill_ttrl.config import SkillTTRLConfig, load_config
from skill_ttrl.runs.folder import RunFolder
from skill_ttrl.runs.identity import config_differences
from skill_ttrl.runs.summary import Summary, read_summary
from skill_ttrl.statistics import PAIRED_TEST, paired_difference, verdict
from skill_ttrl.storage.jsonl import read_jsonl
from skill_ttrl.voting.rewards import CONTROLS

BASELINE, REINFORCED = "vote_sft", "rl"
SUFFIX = f"-{BASELINE}"
SAMPLED_ALIKE = ("rl.steps", "rl.prompts_per_step")
"""Of the `rl` section, what says how much is sampled; the rest of it says how the policy learns."""


@dataclass(frozen=True, slots=True)
class BaselineComparison:
    """The other run of a pair."""

    path: Path
    learned: str
    """How it learned: "rl" or "vote_sft"."""
    summary: Summary
    difference: tuple[float, float, float] | None
    """avg@k after RL less avg@k after the baseline, paired over problems: (difference, low, high); None without labels."""


def find_baseline(path: str | Path) -> BaselineComparison | None:
    """The other run of the pair that the run at `path` belongs to; None where there is none that has ended.

    Raises:
        RunFolderError: one of the two cannot be read.
    """
    path = Path(path)
    config = load_config(path / "config.yaml", trust=True)
    learned, name = config.phases[-1], path.resolve().name
    other = path.parent / (f"{name}{SUFFIX}" if learned == REINFORCED else name.removesuffix(SUFFIX))
    if other.name == name or not RunFolder.exists(other) or not (other / "summary.json").is_file():
        return None
    theirs = load_config(other / "config.yaml", trust=True)
    by_phase: dict[str, SkillTTRLConfig] = {learned: config, theirs.phases[-1]: theirs}
    if set(by_phase) != {BASELINE, REINFORCED} or not _sampled_alike(config, theirs):
        return None
    if by_phase[BASELINE].rl.reward in CONTROLS:  # it imitates no votes
        return None
    rl, sft = map(_shares, (path, other) if learned == REINFORCED else (other, path))
    difference = None
    if rl and list(rl) == list(sft):
        difference = paired_difference(list(sft.values()), list(rl.values()), confidence=config.eval.confidence)
    return BaselineComparison(other, theirs.phases[-1], read_summary(other), difference)


def baseline_command(path: str | Path, config: SkillTTRLConfig) -> str:
    """The command that makes the baseline of the RL run at `path`."""
    phases = ", ".join(BASELINE if phase == REINFORCED else phase for phase in config.phases)
    words = ["train", str(Path(path) / "config.yaml"), "--set", f"phases=[{phases}]", "-o", f"{Path(path)}{SUFFIX}"]
    return f"skillttrl {shlex.join(words)}"


def baseline_lines(path: str | Path) -> list[str]:
    """Return a report's lines on the baseline of the run at `path`, or on how to make it. Empty for a run without votes."""
    config = load_config(Path(path) / "config.yaml", trust=True)
    found = find_baseline(path)
    if found is None:
        if config.phases[-1] != REINFORCED or config.rl.reward != "majority":
            return []
        return [f"Baseline not run: SFT on the same majority answers. Run it with: {baseline_command(path, config)}"]
    names = {BASELINE: "SFT on the majority answers at equal samples", REINFORCED: "reinforcement"}
    other, k = found.summary, found.summary.samples
    before, after = (
        "not measured" if value is None else f"{value:.3f}" for value in (other.majority_before, other.accuracy_after)
    )
    lines = [f"Baseline: maj@{k} of the base {before}; {names[found.learned]} ({found.path}): avg@{k} after {after}."]
    if found.difference is not None:
        difference, low, high = found.difference
        lines.append(
            f"RL − SFT on the majority answers: {difference:+.3f} [{low:+.3f}, {high:+.3f}], paired by problem: "
            f"{verdict((low, high))} ({PAIRED_TEST})."
        )
    return lines


def _sampled_alike(one: SkillTTRLConfig, other: SkillTTRLConfig) -> bool:
    learning = ("vote_sft.", "vote.", "runtime.", "rl.")
    keys = [difference.partition(" ")[0] for difference in config_differences(one, other)]
    return all(key == "phases" or (key.startswith(learning) and key not in SAMPLED_ALIKE) for key in keys)


def _shares(path: Path) -> dict[str, float]:
    """Share of right samples by problem after training; empty without labels."""
    found: list[dict[str, Any]] = read_jsonl(path / "evaluations.jsonl")
    after: list[dict[str, Any]] = next((line["results"] for line in found if line["label"] == "after"), [])
    if any(result["correct"] is None for result in after):
        return {}
    return {result["task"]: result["correct"] / result["samples"] for result in after}

"""The result of a voting comparison on one set of samples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from skill_ttrl.stages.evaluation.vote_comparison import Replayed
from skill_ttrl.stages.evaluation.vote_figures import Settings
from skill_ttrl.voting import UndecidedAnswers

TITLES: Mapping[str, str] = {
    "label_accuracy": "label accuracy",
    "decided_accuracy": "label accuracy where decided",
    "reward_accuracy": "reward accuracy",
    "false_consensus": "false consensus",
    "majority_ratio": "majority ratio",
    "abstained": "abstained",
    "flip_rate": "flip rate",
}
"""Titles of the figures."""


@dataclass(frozen=True, slots=True)
class VoteLab:
    """Result of comparing strategies on one set of samples."""

    source: str
    problems: int
    samples: tuple[int, int]
    """Fewest and most samples of a problem at one visit."""
    visits: int
    """1 for samples drawn once; more for the steps of a run, in which problems come round again."""
    labelled: int
    """Problems whose true answer is known."""
    trained_on: int | None
    """Problems that the policy was trained on; None where that is not known."""
    settings: Settings
    strategies: tuple[Replayed, ...]
    """The majority first; the others as they were asked for."""
    notes: tuple[str, ...] = ()
    """Notes on omitted or missing samples."""
    undecided_answers: UndecidedAnswers = field(default_factory=UndecidedAnswers)
    """Of the different answers of all samples, those that are compared as texts only, and why."""


def describe_samples(lab: VoteLab) -> str:
    """The samples that were voted on, in one sentence."""
    few, many = lab.samples
    samples = f"{few}" if few == many else f"{few} to {many}"
    text = f"{lab.problems} problems, {samples} samples each"
    if lab.visits > 1:
        text += f", {lab.visits} visits"
    if lab.trained_on is not None:
        some = {0: "held-out", lab.problems: "transductive"}
        text += ", " + some.get(lab.trained_on, f"{lab.trained_on} of them transductive")
    if lab.labelled < lab.problems:
        text += f"; {lab.labelled or 'none'} of them with a true answer"
    return text + "."

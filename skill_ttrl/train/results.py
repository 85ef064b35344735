"""The result of an evaluation: metrics overall, by problem, by type of task and of the controls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from skill_ttrl.runs.summary import SampleCount
from skill_ttrl.statistics import PAIRED_TEST, Interval, Verdict
from skill_ttrl.storage.jsonl import leaving_out, parsed, whole_lines

EVALUATION = "evaluation.json"
"""The file of an evaluation, in the folder of its samples."""
NO_SKILLS = "after_no_skills"
"""Label of the evaluation of the trained policy without its skills: the difference is what they are worth."""


@dataclass(frozen=True, slots=True)
class ProblemResult:
    """One problem of an evaluation."""

    task: str
    correct: int | None
    """Right samples; None where nothing says what is right."""
    samples: int
    majority_answer: str | None
    majority_ratio: float
    majority_correct: bool | None
    greedy_correct: bool | None
    score: float | None = None
    """Mean score of its samples, see `Evaluation.score`."""


@dataclass(frozen=True, slots=True)
class TypeResult:
    """The problems of one type of task, or the episodes of one control."""

    problems: int
    accuracy: float
    """avg@k: mean share of right samples."""
    interval: Interval
    """Of the mean over problems (`statistics.mean_interval`: Wilson's for one sample a problem)."""
    score: float | None = None
    """Mean score, as `Evaluation.score`."""
    score_interval: Interval | None = None
    policy: Verdict | None = None
    """Of a control: the policy against it, paired over the problems."""


@dataclass(frozen=True, slots=True)
class SamplingResult:
    """All problems under one way of sampling."""

    accuracy: float
    """Mean share of right samples."""
    interval: Interval
    by_type: dict[str, TypeResult] = field(default_factory=dict)
    """By type of task; empty where there is only one type."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Figures of one evaluation. Those that need true answers are None where a problem has none."""

    label: str
    """When it was taken: "before", "after", "step 10"."""
    split: str
    problems: int
    samples: int
    temperature: float
    accuracy: float | None
    """avg@k: mean share of right samples."""
    accuracy_interval: Interval | None
    """Of the mean over problems, as all intervals here: `statistics.mean_interval`."""
    pass_at_k: dict[SampleCount, float]
    """Unbiased estimate (Chen et al. 2021, eq. 1) for k = 1, 2, 4, … up to `samples`, keyed by k."""
    majority: float | None
    """maj@k: share of problems whose most frequent answer is right; None where there are no answers, see `majority_ratio`."""
    majority_interval: Interval | None
    greedy: float | None
    greedy_interval: Interval | None
    by_temperature: dict[str, float]
    """avg@k at the extra temperatures, keyed by temperature."""
    majority_ratio: float | None
    """Mean share of the votes that the most frequent answer has. None, as is all that is of votes, where nothing gives an answer:
    no task has a true one, and neither the environment nor a text says one."""
    entropy: float | None
    """Mean entropy (nats) of the answers' distribution."""
    results: tuple[ProblemResult, ...]
    failed: float = 0.0
    """Share of rollouts in which the environment failed; they count as wrong."""
    skill_use: dict[str, float] = field(default_factory=dict)
    """Shares of rollouts that queried the skill bank, got skills, wrote a skill; empty without a bank."""
    pass_at_k_intervals: dict[str, Interval] = field(default_factory=dict)
    """Keyed by k."""
    source: str = ""
    """File or data set that was measured on, as it was asked for; of the policy's own problems their name in the config."""
    transductive: bool | None = None
    """The policy was trained on these very problems, as TTRL does. False: held-out. None: not known."""
    undecided_answers: int | None = None
    """Number of distinct undecided answers over all ways of sampling (`voting.given_up`). None: measured by an older version."""
    by_type: dict[str, TypeResult] = field(default_factory=dict)
    """By type of task; empty where there is only one type, or a problem has no true answer."""
    score: float | None = None
    """Mean over problems of how near their samples came to a perfect one, in [0, 1], failed ones counted as 0, where the
    environment says so (`Trajectory.score`): what is right in part counts in part. None elsewhere."""
    score_interval: Interval | None = None
    greedy_score: float | None = None
    greedy_score_interval: Interval | None = None
    exploit_rate: float | None = None
    """Share of the samples in which the agent tried a way around the task; None where the environment does not count that."""
    controls: dict[str, TypeResult] = field(default_factory=dict)
    """Scripted agents on the same problems, one episode each, by name (`eval.controls`); empty where none was played."""
    by_sampling: dict[str, SamplingResult] = field(default_factory=dict)
    """Each other way of sampling, with intervals and by type: `greedy`, and the extra temperatures as "0.4". The main one's are
    `accuracy` and `by_type`."""
    no_controls: str = ""
    """Why none was played in an environment that judges; else empty."""
    copied_winners: float | None = None
    """Share of the most frequent answers that stand in their question (`voting.copied_winners`). It needs no true answers."""
    reused_from: str = ""
    """The run that measured this (`run.baseline`); empty: the run itself."""


def control_warning(evaluations: Mapping[str, Evaluation]) -> str | None:
    """One sentence on all evaluations, by label, in which the policy is not better than a scripted agent; None where it is everywhere."""
    found = []
    for label, each in evaluations.items():
        level = {name: control for name, control in each.controls.items() if control.policy in ("unclear", "worse")}
        if level:
            agents = ", ".join(f"{name} {control.accuracy:.3f}" for name, control in level.items())
            found.append(f"{label} {each.accuracy:.3f} ({agents})")
    if not found:
        return None
    return (
        f"Success is not clearly above that of scripted agents, which read nothing ({PAIRED_TEST}): {'; '.join(found)}."
    )


def read_evaluations(path: Path, notes: list[str] | None = None) -> list[Evaluation]:
    """The evaluations of a run, of its `evaluations.jsonl`, or of the `evaluation.json` of `skillttrl evaluate`, oldest first.

    Raises:
        DataError: the file is damaged, or without `notes` a line of it; with them it is left out and noted.
    """
    file = path / "evaluations.jsonl" if path.is_dir() else path
    if file.name == EVALUATION:
        return [*parsed(str(file), file.read_bytes(), tuple[Evaluation, ...])]
    found: list[Evaluation] = []
    for line in whole_lines(file, [] if notes is None else notes) if file.is_file() else ():
        with leaving_out(notes):
            found.append(parsed(*line, Evaluation))
    return found

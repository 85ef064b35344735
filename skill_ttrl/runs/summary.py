"""The outcome of a run, as `summary.json` has it; `commands.reports.summary_text` puts it into words."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import Field, ValidationError

from skill_ttrl.errors import RunFolderError
from skill_ttrl.llm.openai.ledger import usage_lines
from skill_ttrl.runs.folder import SCHEMA_VERSION
from skill_ttrl.types import first_problem, from_json

SampleCount = Annotated[str, Field(pattern=r"^[1-9]\d{0,8}$")]
Seconds = Annotated[float, Field(ge=0, lt=1e10)]


@dataclass(frozen=True, slots=True)
class Summary:
    """Results of a run. Shares lie in [0, 1]; None means not measured (no labels, or the phase was not run)."""

    name: str
    seed: int
    reward: str
    """Reward of the reinforcement phase ("majority", or a control); the phases that were run are the keys of `steps`."""
    transductive: bool
    """True: measured on the tasks it trained on, as TTRL does. False: on held-out ones."""
    problems: int
    """Problems measured on."""
    samples: int
    """Samples of each (the k of avg@k and maj@k)."""
    temperature: float
    """Temperature of those samples."""
    trained_on: str = ""
    """Name of the tasks that it trained on."""
    measured_on: str = ""
    """Name of the tasks that all metrics are of."""
    vote: str = "majority"
    """Voting strategy (`vote.strategy`)."""
    algorithm: str = ""
    """Of the reinforcement phase (`rl.algorithm`); empty where there was none."""
    loss: str = ""
    accuracy_before: float | None = None
    """avg@k: mean accuracy of single samples, before the reinforcement phase."""
    accuracy_after: float | None = None
    majority_before: float | None = None
    """maj@k: share of problems whose most frequent answer is right."""
    majority_after: float | None = None
    greedy_before: float | None = None
    greedy_after: float | None = None
    score_before: float | None = None
    """Mean of how near to perfect the samples came, where the environment says so (`Evaluation.score`)."""
    score_after: float | None = None
    pass_at_k_before: dict[SampleCount, float] = field(default_factory=dict)
    """Unbiased pass@k by k (as text)."""
    pass_at_k_after: dict[SampleCount, float] = field(default_factory=dict)
    accuracy_by_temperature_before: dict[str, float] = field(default_factory=dict)
    """avg@k at further temperatures (as text)."""
    accuracy_by_temperature_after: dict[str, float] = field(default_factory=dict)
    intervals: dict[str, tuple[float, float]] = field(default_factory=dict)
    """(low, high) of the figure named; paired differences are `accuracy_change`, `majority_change`, `greedy_change` and
    `score_change`, after - before, and, of avg@k and
    maj@k, `skill_gain` and `majority_gain`, after - without skills."""
    confidence: float = 0.95
    """Level of the intervals."""
    label_accuracy: float | None = None
    """Share of the training votes whose winner is the true answer (measured only), in the last step."""
    majority_ratio: float | None = None
    """Mean share of samples that agree with the winner, in the last step."""
    mean_label_accuracy: float | None = None
    """`label_accuracy` as the mean over all steps."""
    mean_majority_ratio: float | None = None
    """`majority_ratio` as the mean over all steps."""
    vote_steps: int = 0
    """Steps that held votes."""
    entropy_before: float | None = None
    """Mean entropy (nats) of the answers to a problem, over the problems measured on."""
    entropy_after: float | None = None
    flip_rate: float | None = None
    """Share of prompts that came round again whose vote had another winner than before; mean over the steps."""
    by_type_before: dict[str, float] = field(default_factory=dict)
    """avg@k by type of task; empty where there is only one."""
    by_type_after: dict[str, float] = field(default_factory=dict)
    controls_before: dict[str, float] = field(default_factory=dict)
    """Success of scripted agents on the same tasks, by name (`eval.controls`); the order of listed actions, and so `first`, may
    depend on the skill bank as it was then."""
    controls_after: dict[str, float] = field(default_factory=dict)
    no_controls: str = ""
    """Why no scripted agent played, where the environment judges; else empty."""
    accuracy_no_skills: float | None = None
    """avg@k of the trained policy without its skill bank; None where it has none."""
    bank_skills: int | None = None
    """Skills in the bank at the end."""
    bank_version: int | None = None
    bank_votes: dict[str, float] = field(default_factory=dict)
    """The trained policy's votes on the problems measured on, with its bank and without: `majority_ratio`, `majority` (maj@k), the same with
    `_no_skills`, and `other_winners`, the share of problems with another winner. Empty without votes or bank."""
    skill_use_before: dict[str, float] = field(default_factory=dict)
    """Shares of the evaluation's rollouts that queried the bank, got skills, wrote a skill."""
    skill_use_after: dict[str, float] = field(default_factory=dict)
    steps: dict[str, int] = field(default_factory=dict)
    """Steps done in each phase."""
    seconds: dict[str, Seconds] = field(default_factory=dict)
    """Wall time of each phase in seconds; resumed parts are added up."""
    warnings: list[str] = field(default_factory=list)
    """Warnings that the run gave."""
    stopped: str | None = None
    """The reason why training ended early: a stopping rule and after how many steps, or updates that were all left out because loss or
    gradient was not finite. None where all steps were done."""
    usage: dict[str, Any] = field(default_factory=dict)
    """Requests, tokens and cost of remote models, and under `by` those of each phase and role; empty if no remote model was called.
    Counts everything spent on the run, including steps that were repeated after a resume."""
    versions: dict[str, str] = field(default_factory=dict)
    """Of skill-ttrl, python and the libraries."""
    schema_version: int = SCHEMA_VERSION


def read_summary(path: str | Path) -> Summary:
    """The summary in a run folder. Raises as `read_outcome`."""
    return read_outcome(path, Summary)


S = TypeVar("S", bound=Any)


def read_outcome(path: str | Path, kind: type[S]) -> S:
    """The `summary.json` in the folder of a run of any sort.

    Raises:
        RunFolderError: there is none (the run has not ended), or it cannot be read.
    """
    file = Path(path) / "summary.json"
    try:
        found = from_json(kind, file.read_bytes())
        usage_lines(found.usage)  # the type leaves the content open
        return found
    except FileNotFoundError:
        raise RunFolderError(
            f"{path} has no summary.json: the run has not ended. Continue it with --resume auto."
        ) from None
    except ValidationError as error:
        problem = first_problem(error)
    except (OSError, AttributeError, KeyError, TypeError, ValueError) as error:
        problem = str(error) if isinstance(error, OSError) else f"usage: {error!r}"
    raise RunFolderError(f"Cannot read {file}: {problem}. The run's command with --resume auto writes it again.")

"""The outcome of a run: `summary.json` for machines, `summary.md` for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from skill_ttrl.errors import RunFolderError
from skill_ttrl.runs.exposure import exposure_line
from skill_ttrl.runs.folder import RunFolder
from skill_ttrl.runs.identity import SCHEMA_VERSION
from skill_ttrl.types import from_json

SKILL_USE = {
    "retrieve_rate": "tries that ask the skill bank",
    "answered_rate": "tries that are told a skill",
    "generate_rate": "tries that write a skill",
    "evolve_rate": "tries that rewrite a skill",
}
ASKED = "asked of models behind addresses"
"""Begins the line that says what they cost."""
CONTROL = "control: {}"
"""Names the row of a scripted agent."""
_UNITS = (("avg@k", "accuracy"), ("maj@k", "majority"), ("greedy", "greedy"), ("score", "score"))


@dataclass(frozen=True, slots=True)
class Summary:
    """What a run achieved. Shares lie in [0, 1]; None means not measured (no labels, or the phase was not run)."""

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
    vote: str = "majority"
    """Voting strategy (`vote.strategy`)."""
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
    pass_at_k_before: dict[str, float] = field(default_factory=dict)
    """Unbiased pass@k by k (as text)."""
    pass_at_k_after: dict[str, float] = field(default_factory=dict)
    accuracy_by_temperature_before: dict[str, float] = field(default_factory=dict)
    """avg@k at further temperatures (as text)."""
    accuracy_by_temperature_after: dict[str, float] = field(default_factory=dict)
    intervals: dict[str, tuple[float, float]] = field(default_factory=dict)
    """(low, high) of the figure named; paired differences are `accuracy_change`, `majority_change`, `greedy_change` and
    `score_change`, after - before, and, of avg@k and
    maj@k, `bank_worth` and `bank_majority`, after - bank off."""
    confidence: float = 0.95
    """Level of the intervals."""
    label_accuracy: float | None = None
    """Share of the training votes whose winner is the true answer (measured only), in the last step."""
    agreement: float | None = None
    """Mean share of samples that agree with the winner, in the last step."""
    mean_label_accuracy: float | None = None
    """`label_accuracy` as the mean over all steps."""
    mean_agreement: float | None = None
    """`agreement` as the mean over all steps."""
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
    accuracy_bank_off: float | None = None
    """avg@k of the trained policy without its skill bank; None where it has none."""
    bank_skills: int | None = None
    """Skills in the bank at the end."""
    bank_version: int | None = None
    bank_votes: dict[str, float] = field(default_factory=dict)
    """The trained policy's votes on the problems measured on, with its bank and without: `agreement`, `majority` (maj@k), the same with
    `_bank_off`, and `other_winners`, the share of problems with another winner. Empty without votes or bank."""
    skill_rollouts: int = 0
    """Rollouts of the reinforcement phase that skills could be given to."""
    skill_exposure: dict[str, tuple[int, int]] = field(default_factory=dict)
    """By skill id: rollouts that it was given to, in the prompt or because they asked, and those of them that won."""
    skills_never_given: int = 0
    """Skills in the bank at the end that no rollout was given."""
    skill_use_before: dict[str, float] = field(default_factory=dict)
    """Shares of the evaluation's tries that asked the bank, were answered, wrote a skill."""
    skill_use_after: dict[str, float] = field(default_factory=dict)
    steps: dict[str, int] = field(default_factory=dict)
    """Steps done in each phase."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Wall time of each phase in seconds; resumed parts are added up."""
    warnings: list[str] = field(default_factory=list)
    """What the run warned of, in its words."""
    stopped: str | None = None
    """The reason why training ended early: a stopping rule and after how many steps, or updates that were all left out because loss or
    gradient was not finite. None where all steps were done."""
    usage: dict[str, Any] = field(default_factory=dict)
    """Requests, tokens and cost of models behind addresses, and under `by` those of each phase and role; empty where none was
    asked. It counts all that was spent on the run, steps that a resumed run did again included."""
    versions: dict[str, str] = field(default_factory=dict)
    """Of skill-ttrl, python and the libraries."""
    schema_version: int = SCHEMA_VERSION


def write_summary(folder: RunFolder, summary: Summary, beside: Sequence[str] = ()) -> None:
    """Write `summary.json` and `summary.md`; `beside` is what the text says of the run's baseline.

    Raises:
        RunFolderError: the folder cannot be written.
    """
    folder.write_json("summary.json", asdict(summary))
    folder.write_text("summary.md", summary_markdown(summary, beside))


def learned_by(summary: Summary) -> str:
    """How the policy learned, in a few words for a title."""
    if "rl" in summary.steps:
        voted = f" by {summary.vote}" if summary.vote != summary.reward == "majority" else ""
        return f"reward {summary.reward}{voted}"
    return "SFT on the majority answers" if "vote_sft" in summary.steps else "cold start only"


def read_summary(path: str | Path) -> Summary:
    """The summary in a run folder.

    Raises:
        RunFolderError: there is none (the run has not ended), or it cannot be read.
    """
    file = Path(path) / "summary.json"
    try:
        return from_json(Summary, file.read_bytes())
    except FileNotFoundError:
        raise RunFolderError(
            f"{path} has no summary.json: the run has not ended. Go on with it with --resume auto."
        ) from None
    except (OSError, ValidationError) as error:
        raise RunFolderError(f"Cannot read {file}: {' '.join(str(error).split())}") from None


def summary_rows(summary: Summary) -> list[tuple[str, float | None, float | None]]:
    """The table of a report: (figure, before, after), those left out that were measured neither time."""
    rows: list[tuple[str, float | None, float | None]] = [
        (
            label.replace("@k", f"@{summary.samples}"),
            getattr(summary, f"{key}_before"),
            getattr(summary, f"{key}_after"),
        )
        for label, key in _UNITS
    ]
    rows += _by_key("pass@{}", summary.pass_at_k_before, summary.pass_at_k_after)
    rows += _by_key(
        f"avg@{summary.samples}, T = {{}}",
        summary.accuracy_by_temperature_before,
        summary.accuracy_by_temperature_after,
    )
    rows.append(("entropy of the answers (nats)", summary.entropy_before, summary.entropy_after))
    rows += _by_key(f"avg@{summary.samples}, {{}}", summary.by_type_before, summary.by_type_after)
    rows.append((f"avg@{summary.samples}, skill bank off", None, summary.accuracy_bank_off))
    rows += _by_key(CONTROL, summary.controls_before, summary.controls_after)
    before, after = summary.skill_use_before, summary.skill_use_after
    asked = [key for key in SKILL_USE if before.get(key) or after.get(key)]
    rows += [(SKILL_USE[key], before.get(key), after.get(key)) for key in asked]
    return [row for row in rows if row[1] is not None or row[2] is not None]


def summary_intervals(summary: Summary) -> dict[tuple[str, str], tuple[float, float]]:
    """Intervals of the rows of a report's table, by (figure, "before" or "after")."""
    return {
        (label.replace("@k", f"@{summary.samples}"), when): summary.intervals[f"{key}_{when}"]
        for label, key in _UNITS
        for when in ("before", "after")
        if f"{key}_{when}" in summary.intervals
    }


def change_lines(summary: Summary) -> list[str]:
    """The paired change of each headline figure, called worse where its interval lies below 0; a line that warns, where one is."""
    lines, worse = [], []
    for label, key in _UNITS:
        bounds = summary.intervals.get(f"{key}_change")
        before, after = getattr(summary, f"{key}_before"), getattr(summary, f"{key}_after")
        if bounds is None or before is None or after is None:
            continue
        name, (low, high) = label.replace("@k", f"@{summary.samples}"), bounds
        worse += [name] if high < 0 else []
        found = ": worse" if high < 0 else ""
        lines.append(f"Change of {name}: {after - before:+.3f} [{low:+.3f}, {high:+.3f}], paired over problems{found}.")
    if worse:
        lines.append(f"Warning: the training made the policy worse on these problems: {', '.join(worse)} fell.")
    return lines


def vote_line(summary: Summary) -> str | None:
    """Describe the training's votes, over all steps and in the last; None where none were held."""
    if summary.mean_agreement is None or summary.agreement is None:
        return None
    text = f"Votes, mean over {summary.vote_steps} steps (last step): agreement {summary.mean_agreement:.3f} ({summary.agreement:.3f})"
    if summary.mean_label_accuracy is not None and summary.label_accuracy is not None:
        share = f"{summary.mean_label_accuracy:.3f} ({summary.label_accuracy:.3f})"
        text += f", true in {share} of the cases (measured, never used)"
    if summary.flip_rate is not None:
        text += f"; winners that changed from visit to visit: {summary.flip_rate:.3f}"
    return f"{text}."


def skill_lines(summary: Summary) -> list[str]:
    """Lines on the votes without the bank, and on the skills that the rollouts were given."""
    lines, votes = [], summary.bank_votes
    if votes:
        text = f"Votes with the skill bank (without it): agreement {votes['agreement']:.3f} ({votes['agreement_bank_off']:.3f})"
        if "majority" in votes:
            text += f", maj@{summary.samples} {votes['majority']:.3f} ({votes['majority_bank_off']:.3f})"
        lines.append(f"{text}; another winner in {votes['other_winners']:.0%} of the problems.")
    exposed = exposure_line(summary.skill_rollouts, summary.skill_exposure, summary.skills_never_given)
    return [*lines, *([] if exposed is None else [exposed])]


def sentence(text: str) -> str:
    """`text` with a capital first letter, the rest as it is."""
    return text[:1].upper() + text[1:]


def summary_markdown(summary: Summary, beside: Sequence[str] = ()) -> str:
    """The summary as Markdown: what was done, the table, the signs without labels, the baseline, the warnings."""
    held = "the tasks it trained on (transductive)" if summary.transductive else "held-out tasks"
    lines = [
        f"# {summary.name}",
        "",
        f"{sentence(learned_by(summary))}, seed {summary.seed}. Measured on {summary.problems} problems, {held}, "
        f"{summary.samples} samples each at T = {summary.temperature:g}.",
        "",
        "| figure | before | after |",
        "|---|---:|---:|",
        *(f"| {label} | {_number(before)} | {_number(after)} |" for label, before, after in summary_rows(summary)),
        "",
    ]
    for name, (low, high) in summary.intervals.items():
        if name.endswith("_change"):
            continue
        lines.append(f"- {name.replace('_', ' ')}: {summary.confidence:.0%} interval {low:.3f} to {high:.3f}")
    lines += [
        f"- {text}" for text in (*change_lines(summary), vote_line(summary), *skill_lines(summary)) if text is not None
    ]
    lines += [f"- controls: {summary.no_controls}"] if summary.no_controls else []
    if summary.seconds:
        lines.append("- wall time: " + ", ".join(f"{phase} {value:.1f} s" for phase, value in summary.seconds.items()))
    lines += [f"- {text}" for text in usage_lines(summary.usage)]
    lines += [f"- {summary.stopped}"] if summary.stopped else []
    lines += [f"- {text}" for text in beside]
    if summary.warnings:
        lines += ["", "## Warnings", "", *(f"- {text}" for text in summary.warnings)]
    if summary.versions:
        lines += ["", "Versions: " + ", ".join(f"{name} {version}" for name, version in summary.versions.items()) + "."]
    return "\n".join(lines) + "\n"


def usage_lines(usage: Mapping[str, Any]) -> list[str]:
    """What was asked of models behind addresses, in a line for all and, where there are several, one for each phase and role."""
    if not usage:
        return []
    parts = {f"{phase}, {role}": each for phase, roles in usage["by"].items() for role, each in roles.items()}
    whole = f"{ASKED}: {_asked(usage)}"
    return [whole, *(f"{name}: {_asked(each)}" for name, each in parts.items() if len(parts) > 1)]


def _asked(totals: Mapping[str, Any]) -> str:
    beside = {"failed": totals["failed"], "from the disk": totals["cached"]}
    shown = "".join(f", {count} {name}" for name, count in beside.items() if count)
    sent = totals["requests"] - totals["cached"]
    return (
        f"{totals['requests']} requests{shown}; {totals['tokens_in']:,} tokens in, {totals['tokens_out']:,} out; "
        f"{cost_text(totals['cost'], totals.get('unpriced', 0), sent)}"
    )


def cost_text(cost: float | None, unpriced: int, requests: int) -> str:
    """`cost 0.5`, or what is known of it: of `requests`, so many have no price."""
    if not unpriced:
        return f"cost {cost or 0.0:.4g}"
    return (
        f"cost at least {cost:.4g} ({unpriced:,} of {requests:,} requests have no price)"
        if cost
        else "cost unknown (no price is set)"
    )


def summary_versions(run_json: Mapping[str, object]) -> dict[str, str]:
    """The `versions` of a summary from what `run.json` holds."""
    own = {"skill-ttrl": str(run_json["skill_ttrl"]), "python": str(run_json["python"])}
    libraries = run_json["libraries"]
    return own | ({str(key): str(value) for key, value in libraries.items()} if isinstance(libraries, Mapping) else {})


def _by_key(
    label: str, before: Mapping[str, float], after: Mapping[str, float]
) -> list[tuple[str, float | None, float | None]]:
    return [(label.format(key), before.get(key), after.get(key)) for key in (dict(before) | dict(after))]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"

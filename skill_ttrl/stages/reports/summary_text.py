"""The outcome of a run in words: `summary.md`, and the tables and lines that reports share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict

from skill_ttrl.llm.openai.ledger import usage_lines
from skill_ttrl.runs.exposure import exposure_line
from skill_ttrl.runs.folder import RunFolder
from skill_ttrl.runs.summary import Summary
from skill_ttrl.statistics import PAIRED_TEST, verdict
from skill_ttrl.voting.rewards import CONTROLS

SKILL_USE = {
    "retrieve_rate": "rollouts that query the skill bank",
    "retrieval_hit_rate": "rollouts that retrieve a skill",
    "generate_rate": "rollouts that write a skill",
    "evolve_rate": "rollouts that rewrite a skill",
}
CONTROL = "control: {}"
"""Names the row of a scripted agent."""
_UNITS = (("avg@k", "accuracy"), ("maj@k", "majority"), ("greedy", "greedy"), ("score", "score"))


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
    if "vote_sft" in summary.steps:
        return f"SFT by the control {summary.reward}" if summary.reward in CONTROLS else "SFT on the majority answers"
    return "cold start only"


def measured_line(summary: Summary) -> str:
    """Names the tasks that were trained on, and those that the table is of."""
    if summary.transductive:
        return f"Trained and measured on {summary.trained_on or 'the same tasks'} (transductive)."
    return f"Trained on {summary.trained_on or 'other tasks'}, measured on {summary.measured_on or 'held-out tasks'} (held-out)."


def algorithm_lines(summary: Summary) -> list[str]:
    """Names the algorithm and the loss of the reinforcement phase; empty where there was none."""
    return [f"Algorithm {summary.algorithm}, loss {summary.loss}."] if summary.algorithm else []


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
    rows.append((f"avg@{summary.samples}, skill bank off", None, summary.accuracy_no_skills))
    rows += _by_key(CONTROL, summary.controls_before, summary.controls_after)
    before, after = summary.skill_use_before, summary.skill_use_after
    asked = [key for key in SKILL_USE if before.get(key) or after.get(key)]
    rows += [(SKILL_USE[key], before.get(key), after.get(key)) for key in asked]
    return [row for row in rows if row[1] is not None or row[2] is not None]


def distinct_rows(summary: Summary) -> list[tuple[str, float | None, float | None]]:
    """The rows of `summary_rows` without those that repeat another: pass@1 is avg@k, and of one sample per problem so is maj@1."""
    return [row for row in summary_rows(summary) if row[0] not in ("pass@1", "maj@1")]


def summary_intervals(summary: Summary) -> dict[tuple[str, str], tuple[float, float]]:
    """Intervals of the rows of a report's table, by (figure, "before" or "after")."""
    return {
        (label.replace("@k", f"@{summary.samples}"), when): summary.intervals[f"{key}_{when}"]
        for label, key in _UNITS
        for when in ("before", "after")
        if f"{key}_{when}" in summary.intervals
    }


def summary_changes(summary: Summary) -> dict[str, tuple[float, tuple[float, float]]]:
    """The paired change of each headline metric, after less before, with its interval, by the name of its row."""
    found = {}
    for label, key in _UNITS:
        before, after = getattr(summary, f"{key}_before"), getattr(summary, f"{key}_after")
        bounds = summary.intervals.get(f"{key}_change")
        if bounds is not None and before is not None and after is not None:
            found[label.replace("@k", f"@{summary.samples}")] = (after - before, bounds)
    return found


def main_rows(summary: Summary) -> list[str]:
    """Names of the rows that matter most, in the order of `distinct_rows`: the headline metrics, the largest pass@k, the run without its
    skills, and the controls.
    """
    names = [label.replace("@k", f"@{summary.samples}") for label, _ in _UNITS]
    known = [label for label, _, _ in distinct_rows(summary)]
    largest = max((int(key) for key in {**summary.pass_at_k_before, **summary.pass_at_k_after}), default=1)
    names += [f"pass@{largest}"] if largest > 1 else []
    names += [label for label in known if label.endswith("skill bank off") or label.startswith(CONTROL.format(""))]
    return [label for label in known if label in names]


def change_lines(summary: Summary) -> list[str]:
    """The paired change of each headline figure with its verdict, and a warning where one fell. Only the first of them, avg@k where it
    was measured, says that the policy is worse: of several figures one falls by chance more easily.
    """
    changes = summary_changes(summary)
    lines = [
        f"Change of {name}: {change:+.3f} [{low:+.3f}, {high:+.3f}], paired by problem: {verdict((low, high))}."
        for name, (change, (low, high)) in changes.items()
    ]
    worse = [name for name, (_, bounds) in changes.items() if verdict(bounds) == "worse"]
    if worse:
        main = next(iter(changes))
        what = (
            f"training made the policy worse on these problems: {', '.join(worse)} fell"
            if main in worse
            else f"{', '.join(worse)} fell on these problems; {main} is {verdict(changes[main][1])}"
        )
        lines.append(f"Warning: {what} ({PAIRED_TEST}).")
    return lines


def vote_line(summary: Summary) -> str | None:
    """Describe the training's votes, over all steps and in the last; None where none were held."""
    if summary.mean_majority_ratio is None or summary.majority_ratio is None:
        return None
    steps = f"{summary.vote_steps} step{'s' * (summary.vote_steps != 1)}"
    text = f"Votes, mean over {steps} (last step): majority ratio {summary.mean_majority_ratio:.3f} ({summary.majority_ratio:.3f})"
    if summary.mean_label_accuracy is not None and summary.label_accuracy is not None:
        share = f"{summary.mean_label_accuracy:.3f} ({summary.label_accuracy:.3f})"
        use = "this is the reward" if summary.reward == "label" else "diagnostic only"
        text += f"; majority correct: {share} ({use})"
    if summary.flip_rate is not None:
        text += f"; majority changed on revisit: {summary.flip_rate:.3f}"
    return f"{text}."


def skill_lines(summary: Summary) -> list[str]:
    """Lines on the votes without the bank, and on the skills that the rollouts were given."""
    lines, votes = [], summary.bank_votes
    if votes:
        text = f"Votes with the skill bank (without it): majority ratio {votes['majority_ratio']:.3f} ({votes['majority_ratio_no_skills']:.3f})"
        if "majority" in votes:
            text += f", maj@{summary.samples} {votes['majority']:.3f} ({votes['majority_no_skills']:.3f})"
        lines.append(f"{text}; another winner in {votes['other_winners']:.0%} of the problems.")
    exposed = exposure_line(summary.skill_rollouts, summary.skill_exposure, summary.skills_never_given)
    return [*lines, *([] if exposed is None else [exposed])]


def sentence(text: str) -> str:
    """`text` with a capital first letter, the rest as it is."""
    return text[:1].upper() + text[1:]


def summary_markdown(summary: Summary, beside: Sequence[str] = ()) -> str:
    """The summary as Markdown: what was done, the table, the signs without labels, the baseline, the warnings."""
    lines = [
        f"# {summary.name}",
        "",
        f"{sentence(learned_by(summary))}, seed {summary.seed}. {measured_line(summary)} {summary.problems} problems, "
        f"{summary.samples} samples each at T = {summary.temperature:g}.",
        "",
        "| metric | before | after |",
        "|---|---:|---:|",
        *(f"| {label} | {_number(before)} | {_number(after)} |" for label, before, after in summary_rows(summary)),
        "",
    ]
    for name, (low, high) in summary.intervals.items():
        if name.endswith("_change"):
            continue
        lines.append(f"- {name.replace('_', ' ')}: {summary.confidence:.0%} interval {low:.3f} to {high:.3f}")
    lines += [
        f"- {text}"
        for text in (*algorithm_lines(summary), *change_lines(summary), vote_line(summary), *skill_lines(summary))
        if text is not None
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


def _by_key(
    label: str, before: Mapping[str, float], after: Mapping[str, float]
) -> list[tuple[str, float | None, float | None]]:
    return [(label.format(key), before.get(key), after.get(key)) for key in (dict(before) | dict(after))]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:z.3f}"

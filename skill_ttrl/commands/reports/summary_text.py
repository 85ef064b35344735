"""The outcome of a run in words: one table and one list of lines for the command line, `inspect` and `report.html`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from skill_ttrl.llm.openai.ledger import usage_lines
from skill_ttrl.metrics import UnhealthyMetric
from skill_ttrl.runs.summary import Summary
from skill_ttrl.statistics import PAIRED_TEST, POWER, Interval, times_as_many, verdict
from skill_ttrl.train.results import Evaluation
from skill_ttrl.types import Skill, Step, Trajectory, split_thought
from skill_ttrl.voting.rewards import CONTROLS

SKILL_USE = {
    "retrieve_rate": "rollouts that query the skill bank",
    "retrieval_hit_rate": "rollouts that retrieve a skill",
    "generate_rate": "rollouts that write a skill",
    "evolve_rate": "rollouts that rewrite a skill",
}
CONTROL_LINE = (
    "The reward {!r} is a control: it knows neither votes nor answers, so a change here is no effect of voting."
)
VOTED = {"rl", "vote_sft"}
"""Phases that learn from rewarded votes, or from a control in their place."""
CONTROL = "control: {}"
"""Names the row of a scripted agent."""
NO_BANK = "skill bank off"
"""Ends the name of the row of the policy without its bank."""
Row = tuple[str, float | None, float | None]
Metric = tuple[str, float | None, Interval | None]


class Table(NamedTuple):
    """The metrics of a run before and after, the main ones first."""

    columns: tuple[str, ...]
    rows: list[tuple[str | None, ...]]
    main: int
    """Number of main rows: the headline metrics, the largest pass@k, the run without its skills, and the controls."""


def summary_title(summary: Summary) -> str:
    """The run's name, its evaluation tasks, its reward and its seed."""
    tasks = "training tasks (transductive)" if summary.transductive else "held-out tasks"
    where = f" of {summary.measured_on}" if summary.measured_on else ""
    trained = f", trained on {summary.trained_on}" if summary.trained_on != summary.measured_on else ""
    how = "cold start only"
    if "rl" in summary.steps:
        voted = f" by {summary.vote}" if summary.vote != summary.reward == "majority" else ""
        how = f"reward {summary.reward}{voted}"
    elif "vote_sft" in summary.steps:
        by_control = summary.reward in CONTROLS
        how = f"SFT by the control {summary.reward}" if by_control else "SFT on the majority answers"
    return f"{summary.name}: {summary.problems} {tasks}{where}{trained}; {how}, seed {summary.seed}"


def summary_rows(summary: Summary) -> list[Row]:
    """(metric, before, after) of all that was measured. pass@1 is left out, which is avg@k."""
    avg = f"avg@{summary.samples}"
    rows: list[Row] = [
        (label, getattr(summary, f"{key}_before"), getattr(summary, f"{key}_after"))
        for label, key in _headlines(summary).items()
    ]
    rows += _by_key("pass@{}", summary.pass_at_k_before, summary.pass_at_k_after)
    heats = summary.accuracy_by_temperature_before, summary.accuracy_by_temperature_after
    rows += _by_key(f"{avg}, T = {{}}", *heats)
    rows.append(("entropy of the answers (nats)", summary.entropy_before, summary.entropy_after))
    rows += _by_key(f"{avg}, {{}}", summary.by_type_before, summary.by_type_after)
    rows.append((f"{avg}, {NO_BANK}", None, summary.accuracy_no_skills))
    rows += _by_key(CONTROL, summary.controls_before, summary.controls_after)
    before, after = summary.skill_use_before, summary.skill_use_after
    used = [key for key in SKILL_USE if before.get(key) or after.get(key)]
    rows += [(SKILL_USE[key], before.get(key), after.get(key)) for key in used]
    known = [row for row in rows if row[1] is not None or row[2] is not None]
    return [row for row in known if row[0] not in ("pass@1", "maj@1")]


def summary_table(summary: Summary, *, full: bool = False) -> Table:
    """Before and after, the paired change with its interval and verdict; `full`: every metric, with intervals."""
    headlines, changes, rows = _headlines(summary), _changes(summary), summary_rows(summary)
    largest = max(map(int, {**summary.pass_at_k_before, **summary.pass_at_k_after}), default=1)
    named, control = (*headlines, f"pass@{largest}"), CONTROL.format("")
    keys = {row[0]: f"control_{row[0].removeprefix(control)}" for row in rows} | headlines
    main = [row for row in rows if row[0] in named or row[0].endswith(NO_BANK) or row[0].startswith(control)]
    table: list[tuple[str | None, ...]] = []
    for label, *values in [*main, *(row for row in rows if row not in main)] if full else main:
        cells: list[str | None] = [label]
        for when, value in zip(("before", "after"), values, strict=True):
            bounds = summary.intervals.get(f"{keys.get(label)}_{when}")
            cells.append(with_interval(value, bounds if full or not changes else None))
        if changes:
            change = changes.get(label)
            cells += [None, None] if change is None else [with_interval(*change, "+"), verdict(change[1])]
        table.append(tuple(cells))
    columns = ("metric", "before", "after", *(("change", "verdict") if changes else ()))
    return Table(columns, table, len(main))


def closing_lines(summary: Summary, *, full: bool = False) -> list[str]:
    """Lines under the table: the gain of the skills, the vote, wall times, cost, warnings."""
    lines = [CONTROL_LINE.format(summary.reward)] if summary.reward in CONTROLS and set(summary.steps) & VOTED else []
    lines += [f"Algorithm {summary.algorithm}, loss {summary.loss}."] if full and summary.algorithm else []
    if _changes(summary):
        level = f"{summary.confidence:.0%}"
        lines.append(
            f"Change = after − before, paired by problem, with {level} intervals over problems; {PAIRED_TEST}. Verdicts hold for "
            f"training seed {summary.seed} alone; for more: --seeds."
        )
    gain = summary.intervals.get("skill_gain")
    if gain and summary.accuracy_after is not None and summary.accuracy_no_skills is not None:
        difference = with_interval(summary.accuracy_after - summary.accuracy_no_skills, gain, "+")
        lines.append(f"Gain of the skill bank: {difference}, paired by problem: {verdict(gain)}.")
    lines += [text for text in (_decline(summary), vote_line(summary)) if text is not None]
    if full and {"majority_ratio", "majority_ratio_no_skills", "other_winners"} <= (votes := summary.bank_votes).keys():
        text = f"Votes with the skill bank (without it): majority ratio {votes['majority_ratio']:.3f} ({votes['majority_ratio_no_skills']:.3f})"
        if {"majority", "majority_no_skills"} <= votes.keys():
            text += f", maj@{summary.samples} {votes['majority']:.3f} ({votes['majority_no_skills']:.3f})"
        lines.append(f"{text}; another winner in {votes['other_winners']:.0%} of the problems.")
    lines += [f"Controls: {summary.no_controls}."] if summary.no_controls else []
    lines += [summary.stopped] if summary.stopped else []
    phases = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in summary.seconds.items() if "." not in name)
    lines += [f"Wall time: {phases}."] if phases else []
    lines += [f"{text[0].upper()}{text[1:]}." for text in usage_lines(summary.usage)]
    return [*lines, *(f"Warning: {text}" for text in summary.warnings)]


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


def _headlines(summary: Summary) -> dict[str, str]:
    """Fields of the headline metrics by the names of their rows."""
    k = summary.samples
    return {f"avg@{k}": "accuracy", f"maj@{k}": "majority", "greedy": "greedy", "score": "score"}


def _changes(summary: Summary) -> dict[str, tuple[float, Interval]]:
    """The paired change of each headline metric, after less before, with its interval, by the name of its row."""
    found = {}
    for label, key in _headlines(summary).items():
        before, after = getattr(summary, f"{key}_before"), getattr(summary, f"{key}_after")
        bounds = summary.intervals.get(f"{key}_change")
        if bounds is not None and before is not None and after is not None:
            found[label] = (after - before, bounds)
    return found


def _decline(summary: Summary) -> str | None:
    """A warning where a headline metric fell. Only the first of them, avg@k where it was measured, says that the policy is worse:
    of several metrics one falls by chance more easily.
    """
    changes = _changes(summary)
    worse = [name for name, (_, bounds) in changes.items() if verdict(bounds) == "worse"]
    if not worse:
        return None
    main = next(iter(changes))
    if main in worse:
        return f"Warning: Training made the policy worse on these problems: {', '.join(worse)} fell."
    return f"Warning: {', '.join(worse)} fell on these problems; {main} is {verdict(changes[main][1])}."


def _by_key(label: str, before: Mapping[str, float], after: Mapping[str, float]) -> list[Row]:
    return [(label.format(key), before.get(key), after.get(key)) for key in (dict(before) | dict(after))]


# Evaluations.


def evaluation_table(found: Sequence[Evaluation]) -> Table:
    """The metrics of evaluations, a column for each, the main ones first; what none of them measured is left out."""
    rows: dict[str, list[str | None]] = {}
    counts = []
    for metrics in (_main_metrics, _further_metrics):
        for place, each in enumerate(found):
            for label, value, bounds in metrics(each):
                if value is not None:
                    rows.setdefault(label, [None] * len(found))[place] = with_interval(float(value), bounds)
        counts.append(len(rows))
    return Table(
        ("metric", *(each.label for each in found)), [(label, *cells) for label, cells in rows.items()], counts[0]
    )


def _main_metrics(found: Evaluation) -> Iterator[Metric]:
    """The score, the headline metrics, the largest pass@k, failures, and the controls. With one sample maj@1 and pass@1 are avg@1."""
    several, heat = found.samples > 1, f", T = {found.temperature:g}"
    yield f"score{heat}", found.score, found.score_interval
    yield f"avg@{found.samples}{heat}", found.accuracy, found.accuracy_interval
    yield f"maj@{found.samples}", found.majority if several else None, found.majority_interval
    yield "greedy", found.greedy, found.greedy_interval
    if several and found.pass_at_k:
        largest = max(found.pass_at_k, key=int)
        yield f"pass@{largest}", found.pass_at_k[largest], found.pass_at_k_intervals.get(largest)
    yield "failed rollouts, counted as wrong", found.failed or None, None
    yield "rollouts with an attempted exploit", found.exploit_rate or None, None
    for name, each in found.controls.items():
        yield CONTROL.format(name), each.accuracy, each.interval


def _further_metrics(found: Evaluation) -> Iterator[Metric]:
    yield "score, greedy", found.greedy_score, found.greedy_score_interval
    largest = max(map(int, found.pass_at_k), default=1)
    for key in found.pass_at_k:
        if 1 < int(key) < largest:
            yield f"pass@{key}", found.pass_at_k[key], found.pass_at_k_intervals.get(key)
    yield "majority ratio", found.majority_ratio, None
    yield "answer entropy (nats)", found.entropy, None
    yield "winners that copy the question", found.copied_winners, None
    for name, each in found.controls.items():
        yield f"score, {CONTROL.format(name)}", each.score, each.score_interval
    for key, label in SKILL_USE.items():
        yield label, found.skill_use.get(key), None
    avg = f"avg@{found.samples}"
    sampled = {"": found.by_type, **{name: each.by_type for name, each in found.by_sampling.items()}}
    for name, other in found.by_sampling.items():
        if name != "greedy":
            yield f"{avg}, T = {name}", other.accuracy, other.interval
    for name, types in sampled.items():
        how = name if name in ("", "greedy") else f"T = {name}"
        for kind, each in types.items():
            where = f"of {kind or 'other'} ({each.problems})"
            yield f"{how}, {where}" if how else f"{avg} {where}", each.accuracy, each.interval
            yield f"score {where}", each.score if not how else None, each.score_interval


MAX_CELL = 80
"""Longest text of a cell in characters."""


@dataclass(frozen=True, slots=True)
class Inspection:
    """Findings at a path."""

    kind: str
    """run, runs, seeds, optimization, checkpoint, samples, evaluation, records; of a skill bank: bank, history or search; skills of a file."""
    path: str
    facts: dict[str, Any] = field(default_factory=dict)
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[Any]] = ()
    notes: Sequence[str] = ()
    skills: Sequence[Skill] = ()
    """Of a bank, a search or a file of skills: all of them, whole; the first `len(rows)` are those to show."""
    main_rows: int | None = None
    """Number of rows that matter most, which come first; None: all."""
    unhealthy: Sequence[UnhealthyMetric] = ()
    """Of a run: metrics of its latest step that are outside of their healthy ranges."""
    parts: Sequence[Inspection] = ()
    """Further tables, shown under it."""


def short(value: Any) -> Any:
    """A value as a cell: three decimals, and a long text cut."""
    if isinstance(value, float):
        return f"{value:z.3f}"
    text = str(value) if value is not None else None
    return text if text is None or len(text) <= MAX_CELL else text[: MAX_CELL - 1] + "…"


def turn_parts(step: Step) -> tuple[str, str, list[tuple[str, str]]]:
    """(thought, content, tool calls with their results) of a turn; a call that is not JSON is shown as it was written."""
    written = (f"{each.name}({each.arguments})" if each.name else each.arguments for each in step.calls)
    calls = list(zip(written, (each.result or "" for each in step.calls), strict=True))
    return *split_thought(step.model_text if step.completion or not calls else ""), calls


def transcript(trajectory: Trajectory) -> Iterator[str]:
    """Yield the turns of an episode as lines to read: the length of the thought, the text, then each call and its result."""
    for step in trajectory.steps:
        thought, said, calls = turn_parts(step)
        if thought:
            yield f"[thought: {len(thought):,} characters]"
        if said.strip():
            yield said.strip()
        for called, result in calls:
            yield from (f"> {called}", f"< {result}")


def with_interval(value: Any, bounds: Interval | None = None, sign: str = "") -> Any:
    """A metric with its interval, where it has one; `sign` "+": a difference."""
    if not isinstance(value, float) or not bounds:
        return short(value)
    return f"{value:{sign}.3f} [{bounds[0]:{sign}.3f}, {bounds[1]:{sign}.3f}]"


FAR = 100
"""A difference that would need more than this many times the problems is said to be out of reach."""


def difference_in_words(
    metric: str, subject: str, difference: float, bounds: Interval, count: int, unit: str = "tasks"
) -> str:
    """Say in a sentence what a difference and its 95% interval allow, of a metric where more is better.

    `subject` is what is better or worse, such as "after training"; `unit` is what the interval is over, `count` of them: "seeds" are
    repetitions of the whole experiment.
    """
    over = f"over {count:,} {unit}"
    found = verdict(bounds)
    if found != "unclear":
        low, high = sorted(map(abs, bounds))
        return f"{metric}: {subject} is {found} by {with_interval(abs(difference), (low, high))} {over}: unlikely to be chance."
    text = f"{metric}: the difference of {with_interval(difference, bounds, '+')} {over} is within noise."
    if abs(difference) < 0.0005:  # it is shown as 0
        return text
    times = times_as_many(difference, bounds, count if unit == "seeds" else None)
    many = f"more than {FAR}" if times > FAR else f"about {max(2, round(times))}"
    return f"{text} To see one of this size in {POWER:.0%} of comparisons takes {many} times as many {unit}."

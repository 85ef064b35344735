"""Tables of the commands that show one thing: an evaluation, a reply, an inspection, a diagnosis."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from skill_ttrl.cli.display.fitted import FittedTable
from skill_ttrl.cli.display.views import interval, number
from skill_ttrl.sanitize import escape_terminal, one_line

if TYPE_CHECKING:
    from skill_ttrl.metrics import UnhealthyMetric
    from skill_ttrl.stages.doctor.diagnose import Diagnosis
    from skill_ttrl.stages.doctor.plan import PhasePlan, Plan
    from skill_ttrl.stages.evaluation.results import Evaluation
    from skill_ttrl.stages.inspecting.inspection import Inspection
    from skill_ttrl.stages.targets.trained import Reply
    from skill_ttrl.types import Skill

STATUS_STYLES = {"ok": "green", "warn": "yellow", "fail": "red"}
MAX_TEXT = 1000
"""Characters of a skill's text that are shown; `--json` has all."""
INDENT = (0, 0, 0, 2)


def evaluation_table(found: Evaluation, *, full: bool = False) -> FittedTable:
    """Accuracy figures with intervals; the title says whether the policy was trained on these problems."""
    from skill_ttrl.stages.evaluate import exposure
    from skill_ttrl.stages.reports.summary_text import CONTROL, SKILL_USE

    avg, heat = f"avg@{found.samples}", f"T = {found.temperature:g}"
    bounds = {name: each.interval for name, each in found.by_sampling.items()}
    controls = {CONTROL.format(name): each for name, each in found.controls.items()}
    types = {f"{kind or 'other'} ({each.problems})": each for kind, each in found.by_type.items()}
    rows = [
        *_known(f"score, {heat}", found.score, found.score_interval),
        *_known("score, greedy", found.greedy_score, found.greedy_score_interval),
        _row(f"{avg}, {heat}", found.accuracy, found.accuracy_interval),
        *(
            [_row(f"maj@{found.samples}", found.majority, found.majority_interval)]
            if found.agreement is not None
            else []
        ),
        _row("greedy", found.greedy, found.greedy_interval),
        *(_row(f"pass@{k}", value, found.pass_at_k_intervals.get(k)) for k, value in found.pass_at_k.items()),
        *(_row(f"{avg}, T = {other}", value, bounds.get(other)) for other, value in found.by_temperature.items()),
        *_known("agreement", found.agreement),
        *_known("entropy of the answers (nats)", found.entropy),
        *_known("failed tries, counted as wrong", found.failed or None),
        *_known("tries that sought a way around the task", found.exploit_rate or None),
        *(_row(name, each.accuracy, each.interval) for name, each in controls.items()),
        *(row for name, each in controls.items() for row in _known(f"score, {name}", each.score, each.score_interval)),
        *([("controls", found.no_controls)] if found.no_controls else []),
        *(_row(label, found.skill_use[key]) for key, label in SKILL_USE.items() if key in found.skill_use),
        *(_row(f"{avg} of {kind}", each.accuracy, each.interval) for kind, each in types.items()),
        *(row for kind, each in types.items() for row in _known(f"score of {kind}", each.score, each.score_interval)),
        *(
            _row(
                f"{name if name == 'greedy' else f'{avg}, T = {name}'}, of {kind or 'other'} ({each.problems})",
                each.accuracy,
                each.interval,
            )
            for name, other in found.by_sampling.items()
            for kind, each in other.by_type.items()
        ),
    ]
    where = f" of {found.source}" if found.source else f" ({found.split})"
    title = f"{found.label}: {found.problems} problems{where}, {exposure(found.transductive)}"
    return FittedTable(title, ("figure", "value"), rows)


def _row(label: str, value: float | None, bounds: tuple[float, float] | None = None) -> tuple[str, str]:
    return label, number(value) + interval(bounds)


def _known(label: str, value: float | None, bounds: tuple[float, float] | None = None) -> list[tuple[str, str]]:
    return [] if value is None else [_row(label, value, bounds)]


def reply_view(reply: Reply) -> RenderableType:
    """The answers as plain text without control characters, and the vote where there is more than one."""
    lines: list[RenderableType] = [Text(escape_terminal(text)) for text in reply.texts]
    lines += [Text(warning, "yellow") for warning in reply.warnings]
    told = sorted({skill_id for found in reply.retrieved for skill_id in found})
    if told:
        lines.append(Text(f"Told by the skill bank: {', '.join(told)}", "dim"))
    if len(reply.texts) > 1:
        vote = reply.vote
        counts = ", ".join(f"{answer} ×{votes}" for answer, votes in vote.classes)
        said = f"Vote: {vote.answer} (agreement {vote.agreement:.2f}; {counts})"
        lines.append(Text(escape_terminal(said), "bold"))
    return Group(*lines)


def inspection_view(found: Inspection, *, full: bool = False) -> RenderableType:
    """Facts, then the table, notes, and what the latest step shows."""
    parts: list[RenderableType] = [Text(escape_terminal(f"{found.kind}: {found.path}"), "bold")]
    parts += [Text(escape_terminal(f"  {name}: {value}")) for name, value in found.facts.items()]
    if found.skills:
        scores = [row[0] for row in found.rows] if found.kind == "search" else [None] * len(found.rows)
        parts += [*map(skill_view, found.skills, scores), Text()]
    elif found.rows:
        parts.append(FittedTable("", found.columns, found.rows))
    parts += [Text(escape_terminal(f"  {note}"), "yellow") for note in found.notes]
    parts += [Text(escape_terminal(f"  {_sign(each)}"), "yellow") for each in found.unhealthy]
    return Group(*parts)


def _sign(found: UnhealthyMetric) -> str:
    """A metric outside of its healthy range: its meaning, the trouble and what to change."""
    return (
        f"{found.phase} step {found.step}: {found.name} is {found.value:.4g}, healthy {found.healthy}: {found.meaning}. "
        f"Trouble: {found.trouble}. Change: {found.change}."
    ).replace("`", "")


def skill_view(skill: Skill, score: object = None) -> RenderableType:
    """A skill with its metrics, title and text, wrapped to the terminal; control characters are pictures."""
    stats, rate = skill.stats, skill.stats.success_rate
    figures = [
        f"score {score}" if score is not None else "",
        f"{skill.tier}: {skill.task_type}" if skill.task_type else skill.tier,
        f"{stats.successes} successes in {stats.uses} uses ({rate:.2f})" if rate is not None else "not used",
        f"version {skill.version}" if skill.version > 1 else "",
        f"parents {', '.join(skill.parents)}" if skill.parents else "",
        f"flags: {', '.join(skill.flags)}" if skill.flags else "",
    ]
    head = Text.assemble((escape_terminal(skill.id), "bold"), "  ", (one_line(", ".join(filter(None, figures))), "dim"))
    parts: list[RenderableType] = [Text(), head]
    if skill.title.strip():
        parts.append(Padding(Text(one_line(skill.title), "italic"), INDENT, expand=False))
    if skill.when_to_apply.strip():
        parts.append(Padding(Text(f"When: {one_line(skill.when_to_apply)}"), INDENT, expand=False))
    rest = len(skill.text) - MAX_TEXT
    more = f" … {rest:,} more characters; --json has all" if rest > 0 else ""
    return Group(*parts, Padding(Text(escape_terminal(skill.text[:MAX_TEXT]).strip() + more), INDENT, expand=False))


def diagnosis_view(found: Diagnosis) -> RenderableType:
    """Show a row for each check: its status, its finding and what to do."""
    table = Table(title="skillttrl doctor")
    for column in ("", "check", "found", "what to do"):
        table.add_column(column, overflow="fold")
    for check in found.checks:
        status = Text(check.status, STATUS_STYLES[check.status])
        table.add_row(status, Text(check.name), Text(check.found), Text(check.advice))
    return table


def plan_view(found: Plan) -> RenderableType:
    """Show what a run would take: a row for each phase and what it does, then memory, speed, assumptions and obstacles."""
    table = Table(title=f"{found.name}: what a run would take", box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("phase")
    tokens = [f"{what}\ntokens" for what in ("prompt", "answer", "learnt")]
    for column in ("epi-\nsodes", *tokens, "time,\nat most", "time,\nusual", "ques-\ntions", "cost"):
        table.add_column(column, justify="right")
    for each in found.phases:
        table.add_row(*_plan_row(each))
    total = ["all", *[""] * 4, _hours(found.hours), _hours(found.usual_hours), "", _money(found.cost)]
    table.add_row(*total, style="bold")
    parts = ", ".join(f"{name} {size / 1e9:.2f}" for name, size in found.memory.items() if size >= 5e6)
    lines: list[RenderableType] = [
        table,
        Text(),
        *(Text(f"{each.phase}: {each.what}") for each in found.phases),
        Text(),
        Text(f"Model: {found.model}, {found.parameters:,} parameters, of which {found.trainable:,} learn."),
        Text(
            f"Memory{_of_ranks(found)}: {found.peak / 1e9:.1f} GB at the peak, of {found.available / 1e9:.1f} GB. "
            f"Parts in GB{' of one rank' if found.ranks > 1 else ''}: {parts}."
        ),
    ]
    if found.speed is not None:
        speed, how = found.speed, "measured" if found.speed.measured else "reckoned"
        cache = "" if speed.cached is None else f", {speed.cached / 1e6:,.0f}M cached tokens/s"
        of_all = f"{speed.gpus} x {speed.device}" if speed.gpus > 1 else speed.device
        lines.append(
            Text(
                f"Speed of {of_all} ({how}): {speed.training:,.0f} tokens/s learnt, {speed.reading:,.0f} read, "
                f"{speed.rounds:,.0f} decoding steps/s{cache}."
            )
        )
    lines += [Text(f"- {text}") for text in found.assumptions]
    lines += [Text(f"Not yet: {text}.", "red") for text in found.obstacles]
    return Group(*lines)


def _of_ranks(found: Plan) -> str:
    if found.ranks == 1:
        return ""
    where = f"each of {found.ranks} GPUs" if found.speed is not None and found.speed.gpus else f"{found.ranks} ranks"
    return f" of {where} ({found.parallel})"


def _plan_row(each: PhasePlan) -> list[str]:
    counts = (each.episodes, each.prompt_tokens, each.answer_tokens, each.trained_tokens)
    return [
        each.phase,
        *map(_count, counts),
        _hours(each.hours),
        _hours(each.usual_hours),
        f"{each.requests:,}" if each.requests else "",
        _money(each.cost),
    ]


def _count(count: int) -> str:
    if count < 1e6:
        return f"{count:,}" if count else ""
    return f"{count / 1e6:.1f}M" if count < 1e9 else f"{count / 1e9:.2f}B"


def _hours(hours: float | None) -> str:
    if hours is None:
        return ""
    minutes = hours * 60
    return f"{hours:.1f} h" if minutes >= 60 else f"{minutes:.0f} min" if minutes >= 10 else f"{minutes:.1f} min"


def _money(cost: float | None) -> str:
    return "" if cost is None else f"{cost:.2f}"

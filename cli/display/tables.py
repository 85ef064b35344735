"""Views of the commands that show one thing: a reply, an inspection, an evaluation, a diagnosis, a dry run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from skill_ttrl.cli.display.output import text_table
from skill_ttrl.sanitize import escape_terminal, one_line
from skill_ttrl.types.thoughts import split_thought

if TYPE_CHECKING:
    from skill_ttrl.metrics import UnhealthyMetric
    from skill_ttrl.stages.doctor.diagnose import Diagnosis
    from skill_ttrl.stages.doctor.dry_run import DryRun
    from skill_ttrl.stages.evaluation.results import Evaluation
    from skill_ttrl.stages.reports.summary_text import Inspection
    from skill_ttrl.stages.targets.play import Reply
    from skill_ttrl.types import Skill

STATUS_STYLES = {"ok": "green", "warn": "yellow", "fail": "red"}
MAX_TEXT = 1000
"""Characters of a skill's text that are shown; `--json` has all."""
INDENT = (0, 0, 0, 2)


def reply_view(reply: Reply) -> RenderableType:
    """The answers as plain text without control characters, and the vote where there is more than one."""
    lines: list[RenderableType] = []
    for number, text in enumerate(reply.texts, start=1):
        if len(reply.texts) > 1:
            lines.append(Rule(f"sample {number} of {len(reply.texts)}", align="left", style="dim"))
        thought, said = split_thought(text)
        if thought:
            lines.append(Text(f"thought: {len(thought):,} characters (--json shows it)", "dim"))
        lines.append(Text(escape_terminal(said).strip() or "(empty)"))
    if len(reply.texts) > 1:
        lines.append(Rule(style="dim"))
    lines += [Text(warning, "yellow") for warning in reply.warnings]
    retrieved = sorted({skill_id for found in reply.retrieved for skill_id in found})
    if retrieved:
        lines.append(Text(f"Retrieved skills: {', '.join(retrieved)}", "dim"))
    if not any(reply.answers):
        count = f"{len(reply.texts)} responses" if len(reply.texts) > 1 else "response"
        lines.append(Text(f"No answer in the {count}: expected \\boxed{{...}} or <answer>...</answer>.", "yellow"))
    elif len(reply.texts) > 1:
        vote = reply.vote
        counts = ", ".join(f"{answer} ×{votes}" for answer, votes in vote.classes)
        said = f"Vote: {vote.answer} (majority ratio {vote.agreement:.2f}; {counts})"
        lines.append(Text(escape_terminal(said), "bold"))
    return Group(*lines)


def inspection_view(found: Inspection, *, full: bool = False) -> RenderableType:
    """Facts, then the table, notes, and unhealthy metrics; without `full` the rows that matter most."""
    parts: list[RenderableType] = [Text(escape_terminal(f"{found.kind}: {found.path}"), "bold")]
    rows = found.rows if full or found.main_rows is None else found.rows[: found.main_rows]
    parts += [Text(escape_terminal(f"  {name}: {value}")) for name, value in found.facts.items()]
    if found.skills:
        scores = [row[0] for row in found.rows] if found.kind == "search" else [None] * len(found.rows)
        parts += [*map(skill_view, found.skills, scores), Text()]
    elif rows:
        parts.append(text_table("", found.columns, rows))
    parts += [Text(escape_terminal(f"  {note}"), "yellow") for note in found.notes]
    parts += [Text(escape_terminal(f"  {_sign(each)}"), "yellow") for each in found.unhealthy]
    if hidden := len(found.rows) - len(rows):
        parts.append(Text(f"  {hidden} more rows: --full", "dim"))
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
        "fallback" if score == "fallback" else f"score {score}" if score is not None else "",
        f"{skill.tier}: {skill.task_type}" if skill.task_type else skill.tier,
        f"successes/uses {stats.successes}/{stats.uses} ({rate:.2f})" if rate is not None else "not used",
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


def evaluation_view(found: Evaluation, *, full: bool = False) -> RenderableType:
    """The metrics that matter most, or with `full` all of them, with intervals; the title says if the policy was trained on these
    problems.
    """
    from skill_ttrl.stages.evaluate import exposure
    from skill_ttrl.stages.reports.summary_text import evaluation_table

    where = f" of {found.source}" if found.source else f" ({found.split})"
    title = f"{found.label}: {found.problems} problems{where}, {exposure(found.transductive)}"
    _, rows, main = evaluation_table([found])
    notes = [f"Controls: {found.no_controls}."] if found.no_controls else []
    notes += [] if full or main == len(rows) else [f"{len(rows) - main} more rows: --full"]
    shown = rows if full else rows[:main]
    return Group(text_table(title, ("metric", "value"), shown), *(Text(note, "dim") for note in notes))


def diagnosis_view(found: Diagnosis) -> RenderableType:
    """Show a row for each check: its status, its finding and what to do."""
    table = Table(title="skillttrl doctor")
    for column in ("", "check", "found", "what to do"):
        table.add_column(column, overflow="fold")
    for check in found.checks:
        status = Text(check.status, STATUS_STYLES[check.status])
        table.add_row(status, Text(check.name), Text(check.found), Text(check.advice))
    return table


def dry_run_view(found: DryRun) -> RenderableType:
    """Show the sizes of a run, a row for each phase, then its memory and notes; of a run that is refused only why."""
    if found.obstacles:
        return Group(*(Text(f"Cannot start: {text}.", "red") for text in found.obstacles))
    rows = [
        (each.phase, *(None if size is None else f"{size:,}" for size in (each.steps, each.prompts, each.samples)))
        for each in found.phases
    ]
    table = text_table(f"{found.name}: checked, not run", ("phase", "steps", "prompts", "samples"), rows)
    lines = [f"Tasks: {found.tasks}.", *([f"Model: {found.model}."] if found.model else [])]
    lines += [f"- {text}" for text in found.notes]
    return Group(table, Text(), *map(Text, lines), Text("Ready to start."))

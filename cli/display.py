"""How commands show things: JSON alone on stdout, or views and lines; tables; and the live view of a run."""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, redirect_stdout
from dataclasses import asdict, is_dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from rich import progress as bars
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.padding import Padding
from rich.panel import Panel
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from skill_ttrl.cli.keys import Keys
from skill_ttrl.progress import Progress
from skill_ttrl.sanitize import escape_json, escape_terminal, one_line
from skill_ttrl.types import split_thought

if TYPE_CHECKING:
    from skill_ttrl.commands.doctor import Diagnosis
    from skill_ttrl.commands.dry_run import DryRun
    from skill_ttrl.commands.play import Reply
    from skill_ttrl.commands.reports.rollouts import Transcript
    from skill_ttrl.commands.reports.summary_text import Inspection
    from skill_ttrl.train.results import Evaluation
    from skill_ttrl.types import Skill, Trajectory

T = TypeVar("T")


def show(
    found: T,
    as_json: bool,
    view: Callable[[T], RenderableType] | None = None,
    lines: Iterable[str] | Callable[[T], Iterable[str]] = (),
) -> None:
    """Print a result: as JSON, or its view and the lines that stand under it."""
    if as_json:
        print_json(found)
        return
    if view is not None:
        Console().print(view(found), crop=False)
    say(*(lines(found) if callable(lines) else lines))


def say(*lines: str, screen: Console | None = None, style: str | None = None, soft_wrap: bool = True) -> None:
    """Print plain texts: nothing in them is markup or acts on the terminal, and with `soft_wrap` no path is broken into lines."""
    screen = screen or Console()
    for line in lines:
        screen.print(escape_terminal(line), style=style, markup=False, highlight=False, soft_wrap=soft_wrap)


def print_json(value: Any) -> None:
    """Print plain data or dataclasses, alone or in a list."""

    def plain(item: Any) -> Any:
        if is_dataclass(item) and not isinstance(item, type):
            return asdict(item)
        return [plain(each) for each in item] if isinstance(item, list | tuple) else item

    print(escape_json(json.dumps(plain(value), indent=2, ensure_ascii=False, default=str)))


def write_text(text: str) -> None:
    """Write a file's text to stdout as it is; to a terminal without characters that act on it."""
    sys.stdout.write(escape_terminal(text) if sys.stdout.isatty() else text)


def prints_aside() -> AbstractContextManager[object]:
    """Send what code of the user's prints to stderr (an environment, a tool, a voter): stdout is for the result, which may be JSON."""
    return redirect_stdout(sys.stderr)


WHOLE_NAME = 36
"""Texts of the first column up to this width, in cells of the terminal, are cut last: names that people type."""


class WholeTable(Table):
    """A table that is as wide as its texts where its lines go to a file or a pipe, so that nothing of them is cut.

    Print it with `crop=False`. The variable `COLUMNS` sets another width.
    """

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if not console.is_terminal and "COLUMNS" not in os.environ:
            options = options.update(max_width=sys.maxsize)
        return super().__rich_console__(console, options)


def text_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Table:
    """Texts in columns. They wrap between words, and a longer word is cut, but not in the first column, whose names people type; nothing
    in them is markup or acts on the terminal.
    """
    texts = [["-" if cell is None else escape_terminal(str(cell)) for cell in row] for row in rows]
    made = WholeTable(title=Text(escape_terminal(title), "table.title") if title else None)
    for place, column in enumerate(columns):
        whole = place == 0 and max((cell_len(text[0]) for text in texts), default=0) <= WHOLE_NAME
        head = Text(escape_terminal(column), "table.header")
        made.add_column(head, overflow="ellipsis" if place else "fold", no_wrap=whole)
    for text in texts:
        made.add_row(*map(Text, text))
    return made


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
    signs = (f"{each.phase} step {each.step}: {each.in_words()}" for each in found.unhealthy)
    parts += [Text(escape_terminal(f"  {sign}"), "yellow") for sign in signs]
    if hidden := len(found.rows) - len(rows):
        parts.append(Text(f"  {hidden} more rows: --full", "dim"))
    for part in found.parts:
        parts += [Text(), inspection_view(part, full=full)]
    return Group(*parts)


def transcript_view(found: Transcript) -> RenderableType:
    """A record to be read: its title, then each section under a rule, names left of the texts."""
    parts: list[RenderableType] = [Text(escape_terminal(found.title), "bold")]
    for title, rows in found.sections:
        if title:
            parts.append(Rule(escape_terminal(title), align="left", style="dim"))
        table = Table.grid(padding=(0, 2, 0, 0))
        table.add_column(style="dim", no_wrap=True, max_width=WHOLE_NAME)
        table.add_column(overflow="fold")
        for name, text in rows:
            if text:
                table.add_row(Text(one_line(name)), Text(escape_terminal(text)))
        parts.append(table)
    return Group(*parts)


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
    from skill_ttrl.commands.evaluate import exposure
    from skill_ttrl.commands.reports.summary_text import evaluation_table

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
    """Show the sizes of a run, a row for each phase, then its tasks, model and notes; of a run that is refused only why."""
    if found.obstacles:
        return Group(*(Text(f"Cannot start: {text}.", "red") for text in found.obstacles))
    rows = [
        (each.phase, *(None if size is None else f"{size:,}" for size in (each.steps, each.prompts, each.samples)))
        for each in found.phases
    ]
    table = text_table(f"{found.name}: checked, not run", ("phase", "steps", "prompts", "samples"), rows)
    lines = [f"Tasks: {found.tasks}.", *_data_lines(found), *([f"Model: {found.model}."] if found.model else [])]
    lines += [f"- {text}" for text in found.notes]
    return Group(table, Text(), *map(Text, lines), Text("Ready to start."))


def _data_lines(found: DryRun) -> Iterator[str]:
    """Lines on the problems, the samples and the memory of a run."""
    for each in found.data:
        kinds = ", ".join(f"{count:,} as {kind}" for kind, count in each.kinds.items())
        yield f"- {each.use}: {each.problems:,} problems, {each.answers:,} with an answer{kinds and f' ({kinds})'}."
        for places, said in (each.missing, "without an answer"), (each.unread, 'not recognized after "The answer is"'):
            if places:
                yield f"  {len(places):,} {said}: {'; '.join(places[:3])}{'; …' * (len(places) > 3)}."
        if each.prompt_tokens:
            least, middle, most = each.prompt_tokens
            left_out = f", {each.too_long:,} have more and are left out" if each.too_long else ""
            yield f"  Prompts: {least:,} to {most:,} tokens, median {middle:,}; at most {found.prompt_limit:,}{left_out}."
    if found.positions:
        yield f"The model takes {found.positions:,} tokens, prompt and answer together."
    yield f"Samples: {found.samples:,} in all, with every evaluation."
    if found.memory is not None:
        yield f"Memory: {found.memory}."


SHOWN = ("loss", "reward", "success", "score", "invalid_actions", "majority_ratio", "label_accuracy", "retrieve_rate",
         "generate_rate", "bank_skills", "answer_entropy", "flip_rate", "entropy", "grad_norm", "kl", "current", "best",
         "tokens/s", "cost")  # fmt: skip
"""Metrics of the live view, in this order, where there are any; else the first one that comes."""
PLAIN_LINES = 10
"""Lines that a phase prints where there is no terminal to draw on."""


SPARKS = 12
"""Latest steps of a figure that are drawn."""
MAX_LABEL = 18


def sparkline(values: Sequence[float]) -> str:
    """A bar for each value, between the least and the largest of them."""
    low, high = min(values), max(values)
    return "".join("▁▂▃▄▅▆▇█"[round(7 * (value - low) / (high - low))] if high > low else "▄" for value in values)


def _kind(phase: str) -> str:
    """Phases of one kind have one speed: evaluations, and each part of the rounds of DAgger."""
    return phase.partition(" ")[0] + phase.partition(":")[2]


class RunView(Progress):
    """A `Progress` that draws a run while it goes: its phases, the part at work, the six figures that matter and the time left.

    If the console is not a terminal, it prints a line now and then instead. With `transient` nothing is drawn before a phase begins,
    and nothing stays. The first phase prints `opening` as a warning, so that it does not precede an error that makes it moot. On a console of
    stderr, what a user's code prints goes there too (`prints_aside`). Once there is a rollout, the key `r` shows the newest one, and hides
    it again.
    """

    def __init__(self, console: Console, title: str, *, transient: bool = False, opening: str = "") -> None:
        self._console, self._title, self._transient, self._opening = console, title, transient, opening
        self._began = time.perf_counter()
        self._planned: dict[str, int] = {}
        self._rates: dict[str, float] = {}  # units a second, of each kind of phase
        self._bars = bars.Progress(
            bars.TextColumn("{task.description:<16}"),
            bars.BarColumn(bar_width=9),
            bars.MofNCompleteColumn(),
            bars.TextColumn("{task.fields[speed]}  elapsed"),
            bars.TimeElapsedColumn(),
            bars.TextColumn("{task.fields[left]}"),
            console=console,
        )
        self._at: dict[str, bars.TaskID] = {}
        self._part = ""
        self._metrics = ""
        self._latest: dict[str, list[float]] = {}  # of each figure of the phase that reported last
        self._accuracy: list[float] = []
        self._reported = ""
        self._rollout: tuple[str, Trajectory] | None = None
        self._reading = False
        self._keys = Keys()
        self._live = Live(self, console=console, refresh_per_second=8, transient=True)
        self._aside = prints_aside() if console.stderr else nullcontext()

    def __enter__(self) -> RunView:
        self._aside.__enter__()
        if self._console.is_terminal and not self._transient:
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._console.is_terminal:
            try:
                self._live.stop()
            finally:
                self._keys.close()
            if not self._transient and self._at:
                self._console.print(self._bars.get_renderable())
                self._console.print(self._total(), highlight=False)
        self._aside.__exit__(None, None, None)

    def __rich__(self) -> Panel:
        if self._keys.read().count("r") % 2:
            self._reading = not self._reading
        for phase, at in self._at.items():
            self._bars.update(at, left=self._left(phase))
        left = self._left_in_all()
        total = [Text(self._total(left))] if len(self._at) > 1 or left is not None else []
        lines: list[RenderableType] = [self._bars, *total]
        if figures := self._figures():
            lines += [Text(), figures]
        lines += [Text(line, "dim") for line in (self._part, self._metrics) if line]
        if self._rollout is not None:
            lines += self._newest(*self._rollout) if self._reading else [Text("r: show the newest rollout", "dim")]
        return Panel(Group(*lines), title=Text(escape_terminal(self._title)))

    def _total(self, left: float | None = None) -> str:
        """The time of all phases so far, and what is left of all."""
        text = f"{len(self._at)} phase{'s' * (len(self._at) != 1)}, total elapsed {timedelta(seconds=round(time.perf_counter() - self._began))}"
        return text if left is None else f"{text}, of all phases left about {timedelta(seconds=round(left))}"

    def _seconds_left(self, phase: str) -> float | None:
        """Seconds that a phase still takes at the speed of its kind; None: that is not known yet."""
        rate, units, elapsed = self._rates.get(_kind(phase)), self._planned.get(phase, 0), 0.0
        if phase in self._at:
            task = self._bars.tasks[self._at[phase]]
            units, elapsed = int(task.total or 0) - task.fields["before"], task.elapsed or 0.0
        return max(0.0, units / rate - elapsed) if rate else None

    def _left(self, phase: str) -> str:
        """The time that a started phase still takes, in words; empty where it has ended, or that is not known yet."""
        seconds = self._seconds_left(phase)
        if seconds is None or self._bars.tasks[self._at[phase]].finished:
            return ""
        return f"left {timedelta(seconds=round(seconds))}"

    def _left_in_all(self) -> float | None:
        """Seconds until the last planned phase ends; None without a plan, or while the speed of one of them is not known."""
        begun = (place for place, phase in enumerate(self._planned) if phase in self._at)
        left = [self._seconds_left(phase) for phase in [*self._planned][max(begun, default=0) :]]
        known = [each for each in left if each is not None]
        return sum(known) if known and len(known) == len(left) else None

    def _figures(self) -> Table | None:
        """The six figures, two that are read together in a row, each with its latest steps."""
        from skill_ttrl.commands.reports.page_charts import figure, six_figures

        latest = {**self._latest, **({"accuracy": self._accuracy} if self._accuracy else {})}
        if not (rows := six_figures(latest)):
            return None
        table = Table.grid(padding=(0, 1))
        for row in rows:
            for first in range(0, len(row), 2):  # the types of success go on in further rows
                pair = row[first : first + 2]
                cells = [(label, figure(latest[name][-1]), sparkline(latest[name])) for name, label in pair]
                table.add_row(*(Text(one_line(cell, MAX_LABEL)) for each in cells for cell in each))
        return table

    def _newest(self, episode: str, played: Trajectory) -> list[RenderableType]:
        from skill_ttrl.commands.reports.rollouts import Transcript, sections_of

        head, *turns = sections_of(played, most=300)
        shown = Transcript(f"{episode} (r: hide)", [head, *turns[-3:]], {})
        return [Text(), transcript_view(shown)]

    def plan(self, phases: Mapping[str, int]) -> None:
        """Take in the phases to come, for the time left."""
        self._planned = dict(phases)

    def start(self, phase: str, total: int, unit: str, done: int = 0) -> None:
        """Add a bar for the phase, and show it live on a terminal; elsewhere, print one line."""
        if self._opening and not self._at:
            self.notice(self._opening, warning=True)
        self._at[phase] = self._bars.add_task(
            phase, total=total, completed=done, speed="", left="", unit=unit, before=done, shown=done
        )
        if self._console.is_terminal:
            self._live.start()  # does nothing where it was
        else:
            self._console.print(f"{phase}: {total} {unit}{'s' if total != 1 else ''}", highlight=False, soft_wrap=True)

    def enter(self, phase: str, part: str) -> None:
        """Show which part of the phase is running."""
        self._part = f"{phase}: {part}"

    def rollout(self, episode: str, played: Trajectory) -> None:
        """Keep the newest rollout, which the key `r` shows."""
        self._rollout = episode, played
        if self._live.is_started:
            self._keys.open()

    def measured(self, metrics: Mapping[str, float]) -> None:
        """Show the accuracy of an evaluation among the figures."""
        self._accuracy = [*self._accuracy, *(metrics[name] for name in ("accuracy",) if name in metrics)][-SPARKS:]

    def advance(self, phase: str, done: int, metrics: Mapping[str, float]) -> None:
        """Update the phase's bar, its speed and the metrics; without a terminal, print a line now and then."""
        from skill_ttrl.commands.reports.page_charts import figure, six_figures

        at = self._bars.tasks[self._at[phase]]
        total, unit = int(at.total or 0), at.fields["unit"]
        rate = (done - at.fields["before"]) / max(at.elapsed or 0.0, 1e-9)
        many = rate >= 0.5 or not rate
        speed = f"{rate:.1f} {unit}s/s" if many else f"{1 / rate:.0f} s/{unit}"
        self._bars.update(at.id, completed=done, speed=f"{rate:.1f}/s" if many else f"{1 / rate:.0f} s each")
        if unit != "rollout" or done == total:  # a batch of rollouts ends together: what has ended tells no speed
            self._rates[_kind(phase)] = rate
        names = [name for name in SHOWN if name in metrics] or [*metrics][:1]
        six = {name for row in six_figures(metrics) for name, _ in row}
        if six and phase != self._reported:
            self._latest, self._reported = {}, phase
        for name in filter(lambda name: math.isfinite(metrics[name]), six):
            self._latest[name] = [*self._latest.get(name, []), metrics[name]][-SPARKS:]

        def line_of(names: Iterable[str]) -> str:
            return escape_terminal("  ".join(f"{name} {figure(metrics[name])}" for name in names))

        self._metrics = line_of(name for name in names if name not in six)
        a_line = max(1, total // PLAIN_LINES)
        if not self._console.is_terminal and (done // a_line > at.fields["shown"] // a_line or done == total):
            at.fields["shown"] = done
            parts = (f"{phase} {done}/{total} {unit}s done", speed, self._left(phase), line_of(names))
            self._console.print("  ".join(filter(None, parts)), highlight=False, markup=False, soft_wrap=True)

    def finish(self, phase: str) -> None:
        """Fill the phase's bar and clear the name of the running part."""
        self._bars.update(self._at[phase], completed=self._bars.tasks[self._at[phase]].total)
        self._part = ""

    def notice(self, text: str, *, warning: bool = False) -> None:
        """Show a notice to the user (`Progress.notice`)."""
        shown = Text(escape_terminal(("Warning: " if warning else "") + text), "yellow" if warning else "")
        self._console.print(shown, soft_wrap=not self._console.is_terminal)  # elsewhere a path stays whole

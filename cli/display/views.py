"""Views of the command line: a live view of a run, tables for everything else. Rendering with rich only, no decisions."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from skill_ttrl.sanitize import escape_terminal

SHOWN = ("loss", "reward", "success", "score", "invalid_actions", "majority_ratio", "label_accuracy",
         "retrieve_rate", "generate_rate", "bank_skills", "answer_entropy", "flip_rate", "entropy", "grad_norm", "kl")  # fmt: skip
"""Metrics of the live view, in this order, where a step has them."""
LOOP = ("sample", "vote", "reward", "update")
LOOP_TITLES = {"sample": "sample", "vote": "vote", "reward": "reward", "skills": "merge"}
BY_TYPE = "success/"
"""Begins the figures of single types of task: a line of their own, on a terminal, each as it was when it last came."""
PLAIN_LINES = 10
"""Lines that a phase prints where there is no terminal to draw on."""
OVERALL = ("current", "best", "success", "score", "tokens/s", "cost")
"""Metrics of such a line, where there are some; else the first one."""


@dataclass(slots=True)
class _Phase:
    bar: TaskID
    total: int
    unit: str
    before: int
    """Units that were done when it began."""
    shown: int
    """Units that were done when a line last said so."""
    began: float = field(default_factory=time.perf_counter)


class RunView:
    """Draws a run while it goes: its phases, the part of the loop at work, speed and newest figures.

    Where the console is no terminal, it prints a line now and then instead. `loop` False leaves the parts of a training step
    out, and shows all figures that come; `parts` are shown in their place. With `waits` nothing is drawn before a phase begins, and nothing stays.
    `first` is a warning for when the first phase begins: a run that is refused before does not show it.
    """

    def __init__(
        self,
        console: Console,
        title: str,
        *,
        loop: bool = True,
        parts: Sequence[str] = (),
        waits: bool = False,
        first: str = "",
    ) -> None:
        self._console = console
        self._first = first
        self._began = time.perf_counter()
        self._parts = parts
        self._waits = waits
        self._title = title
        self._with_loop = loop
        self._bars = Progress(
            TextColumn("{task.description:<16}"),
            BarColumn(bar_width=12),
            MofNCompleteColumn(),
            TextColumn("{task.fields[speed]}  elapsed"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
        )
        self._at: dict[str, _Phase] = {}
        self._phase = ""
        self._part: str | None = None
        self._figures: Mapping[str, float] = {}
        self._by_type: dict[str, float] = {}
        self._live = Live(self, console=console, refresh_per_second=8, transient=True)

    def __enter__(self) -> RunView:
        if self._console.is_terminal and not self._waits:
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._console.is_terminal:
            self._live.stop()
            if not self._waits and self._at:
                self._console.print(self._bars.get_renderable())
                self._console.print(self._total(), highlight=False)

    def __rich__(self) -> Panel:
        if not self._with_loop:
            figures = [Text(line, "dim")] if (line := self._figures_line()) else []
            parts = [self._loop(self._parts)] if self._parts else []
            return Panel(Group(*parts, self._bars, *figures), title=Text(escape_terminal(self._title)))
        types = [Text(line, "dim")] if (line := self._types_line()) else []
        total = [Text(self._total())] if len(self._at) > 1 else []
        figures = [Text(self._figures_line(), "dim"), *types]
        return Panel(Group(self._loop(), self._bars, *total, *figures), title=Text(escape_terminal(self._title)))

    def _total(self) -> str:
        """The time of all phases so far."""
        return f"{len(self._at)} phases, total elapsed {timedelta(seconds=round(time.perf_counter() - self._began))}"

    def start(self, phase: str, total: int, unit: str, done: int = 0) -> None:
        """See `Progress.start`."""
        if self._console.is_terminal:
            self._live.start()  # does nothing where it was
        if self._first:
            self.notice(self._first, warning=True)
            self._first = ""
        self._phase, self._part = phase, None
        bar = self._bars.add_task(phase, total=total, completed=done, speed="")
        self._at[phase] = _Phase(bar, total, unit, before=done, shown=done)
        if not self._console.is_terminal:
            self._console.print(f"{phase}: {total} {unit}{'s' if total != 1 else ''}", highlight=False)

    def enter(self, phase: str, part: str) -> None:
        """See `Progress.enter`."""
        self._part = part

    def advance(self, phase: str, done: int, metrics: Mapping[str, float]) -> None:
        """See `Progress.advance`."""
        at = self._at[phase]
        rate = (done - at.before) / max(time.perf_counter() - at.began, 1e-9)
        speed = f"{rate:.1f} {at.unit}s/s"
        self._bars.update(at.bar, completed=done, speed=speed)
        self._figures = metrics
        self._by_type |= {name: value for name, value in metrics.items() if name.startswith(BY_TYPE)}
        left = f"  left {timedelta(seconds=round((at.total - done) / rate))}" if rate > 0 and done < at.total else ""
        a_line = max(1, at.total // PLAIN_LINES)
        due = done // a_line > at.shown // a_line or done == at.total
        if due and not self._console.is_terminal:
            at.shown = done
            figures = self._figures_line(overall=not self._with_loop)
            self._console.print(
                f"{phase} {done}/{at.total} {at.unit}s done  {speed}{left}  {figures}", highlight=False, markup=False
            )

    def finish(self, phase: str) -> None:
        """See `Progress.finish`."""
        self._bars.update(self._at[phase].bar, completed=self._at[phase].total)
        self._part = None

    def notice(self, text: str, *, warning: bool = False) -> None:
        """See `Progress.notice`."""
        said = Text(escape_terminal(("Warning: " if warning else "") + text), "yellow" if warning else "")
        self._console.print(said, soft_wrap=not self._console.is_terminal)  # elsewhere a path stays whole

    def _loop(self, parts: Sequence[str] = ()) -> Text:
        line = Text()
        names = parts or ["cold start", *LOOP, *(["skills"] if "bank_skills" in self._figures else [])]
        at = "cold start" if self._phase == "cold start" else self._part
        for place, name in enumerate(names):
            if place:
                line.append(" → ", "dim")
            line.append(LOOP_TITLES.get(name, name), "bold green" if name == at else "dim")
        return line

    def _figures_line(self, *, overall: bool = False) -> str:
        names: Sequence[str] = SHOWN if self._with_loop else list(self._figures)
        if overall:
            names = [name for name in OVERALL if name in self._figures] or names[:1]
        return escape_terminal(
            "  ".join(f"{name} {live_number(self._figures[name])}" for name in names if name in self._figures)
        )

    def _types_line(self) -> str:
        """Success by type: a step has few tasks of each, and of some none."""
        found = sorted(self._by_type.items())
        shown = "  ".join(f"{name.removeprefix(BY_TYPE)} {value:.2f}" for name, value in found)
        return escape_terminal(f"success by type: {shown}") if found else ""


def number(value: float | None) -> str:
    """Three decimals, or a dash for what was not measured."""
    return "-" if value is None else f"{value:z.3f}"


def live_number(value: float) -> str:
    """Three decimals, or two digits of what these would hide: the KL of a LoRA run."""
    return f"{value:.2g}" if 1e-9 < abs(value) < 1e-2 else f"{value:z.3f}"


def signed(value: float | None, bounds: tuple[float, float] | None = None) -> str:
    """A difference with its sign and, where there is one, its interval; a dash where it was not measured."""
    if value is None:
        return "-"
    return f"{value:+.3f}" + ("" if bounds is None else f" [{bounds[0]:+.3f}, {bounds[1]:+.3f}]")


def interval(bounds: tuple[float, float] | None) -> str:
    """` [low, high]`, or nothing."""
    return "" if bounds is None else f" [{bounds[0]:.3f}, {bounds[1]:.3f}]"

"""The live view of a run. Rendering with rich only, no decisions."""

from __future__ import annotations

import time
from collections.abc import Mapping
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

SHOWN = ("loss", "reward", "success", "score", "invalid_actions", "majority_ratio", "label_accuracy", "retrieve_rate",
         "generate_rate", "bank_skills", "answer_entropy", "flip_rate", "entropy", "grad_norm", "kl", "current", "best",
         "tokens/s", "cost")  # fmt: skip
"""Metrics of the live view, in this order, where there are any; else the first one that comes."""
PLAIN_LINES = 10
"""Lines that a phase prints where there is no terminal to draw on."""


class RunView:
    """A `Progress` that draws a run while it goes: its phases, the part at work, speed and the newest metrics.

    If the console is not a terminal, it prints a line now and then instead. With `transient` nothing is drawn before a phase begins,
    and nothing stays. The first phase prints `opening` as a warning, so that it does not precede an error that makes it moot.
    """

    def __init__(self, console: Console, title: str, *, transient: bool = False, opening: str = "") -> None:
        self._console, self._title, self._transient, self._opening = console, title, transient, opening
        self._began = time.perf_counter()
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
        self._at: dict[str, TaskID] = {}
        self._part = ""
        self._metrics = ""
        self._live = Live(self, console=console, refresh_per_second=8, transient=True)

    def __enter__(self) -> RunView:
        if self._console.is_terminal and not self._transient:
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._console.is_terminal:
            self._live.stop()
            if not self._transient and self._at:
                self._console.print(self._bars.get_renderable())
                self._console.print(self._total(), highlight=False)

    def __rich__(self) -> Panel:
        lines = [Text(line, "dim") for line in (self._part, self._metrics) if line]
        total = [Text(self._total())] if len(self._at) > 1 else []
        return Panel(Group(self._bars, *total, *lines), title=Text(escape_terminal(self._title)))

    def _total(self) -> str:
        """The time of all phases so far."""
        return f"{len(self._at)} phases, total elapsed {timedelta(seconds=round(time.perf_counter() - self._began))}"

    def start(self, phase: str, total: int, unit: str, done: int = 0) -> None:
        """Add a bar for the phase, and show it live on a terminal; elsewhere, print one line."""
        if self._opening and not self._at:
            self.notice(self._opening, warning=True)
        self._at[phase] = self._bars.add_task(
            phase, total=total, completed=done, speed="", unit=unit, before=done, shown=done
        )
        if self._console.is_terminal:
            self._live.start()  # does nothing where it was
        else:
            self._console.print(f"{phase}: {total} {unit}{'s' if total != 1 else ''}", highlight=False)

    def enter(self, phase: str, part: str) -> None:
        """Show which part of the phase is running."""
        self._part = f"{phase}: {part}"

    def advance(self, phase: str, done: int, metrics: Mapping[str, float]) -> None:
        """Update the phase's bar, its speed and the metrics; without a terminal, print a line now and then."""
        at = self._bars.tasks[self._at[phase]]
        total, unit = int(at.total or 0), at.fields["unit"]
        rate = (done - at.fields["before"]) / max(at.elapsed or 0.0, 1e-9)
        speed = f"{rate:.1f} {unit}s/s" if rate >= 0.5 or not rate else f"{1 / rate:.0f} s/{unit}"
        self._bars.update(at.id, completed=done, speed=speed)
        names = [name for name in SHOWN if name in metrics] or [*metrics][:1]
        self._metrics = escape_terminal("  ".join(f"{name} {live_number(metrics[name])}" for name in names))
        a_line = max(1, total // PLAIN_LINES)
        if not self._console.is_terminal and (done // a_line > at.fields["shown"] // a_line or done == total):
            at.fields["shown"] = done
            left = f"  left {timedelta(seconds=round((total - done) / rate))}" if rate > 0 and done < total else ""
            line = f"{phase} {done}/{total} {unit}s done  {speed}{left}  {self._metrics}"
            self._console.print(line, highlight=False, markup=False)

    def finish(self, phase: str) -> None:
        """Fill the phase's bar and clear the name of the running part."""
        self._bars.update(self._at[phase], completed=self._bars.tasks[self._at[phase]].total)
        self._part = ""

    def notice(self, text: str, *, warning: bool = False) -> None:
        """Show a notice to the user (`Progress.notice`)."""
        shown = Text(escape_terminal(("Warning: " if warning else "") + text), "yellow" if warning else "")
        self._console.print(shown, soft_wrap=not self._console.is_terminal)  # elsewhere a path stays whole


def live_number(value: float) -> str:
    """Three decimals, or two digits of what these would hide: the KL of a LoRA run."""
    return f"{value:.2g}" if 1e-9 < abs(value) < 1e-2 else f"{value:z.3f}"

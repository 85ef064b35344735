"""View of `skillttrl inspect RUN --loss`."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from skill_ttrl.cli.display.fitted import FittedTable
from skill_ttrl.sanitize import escape_terminal
from skill_ttrl.stages.inspecting.inspect_loss import LossInspection, SampleGradient
from skill_ttrl.stages.inspecting.inspection import short

COLUMNS = ("share", "", "sample", "answer", "reward", "true", "adv", "tok", "why")
BAR_WIDTH = 6
_EIGHTHS = " ▏▎▍▌▋▊▉"


def loss_view(found: LossInspection, limit: int) -> RenderableType:
    """Show the figures of the step, and the samples with the largest shares of its gradient."""
    figures = ", ".join(f"{name} {_number(value)}" for name, value in found.figures.items())
    largest = max((each.gradient_share for each in found.samples), default=0.0) or 1.0
    rows = [_row(each, each.gradient_share / largest) for each in found.samples[:limit]]
    count = len(found.samples)
    carried = f"{found.half} carried half of the gradient" if found.half else "none of them carried a gradient"
    return Group(
        Text(escape_terminal(f"{found.path}, step {found.step} (0 is the first)"), "bold"),
        Text(f"  {figures}"),
        FittedTable("", COLUMNS, rows),
        Text(f"  showing {len(rows)} of {count} samples; {carried}", "yellow"),
    )


def _row(each: SampleGradient, filled: float) -> list[object]:
    return [
        f"{each.gradient_share:.1%}",
        bar(filled),
        f"{each.task}#{each.sample}",
        short(each.answer),
        _number(each.reward),
        _number(each.original_score),
        None if each.advantage is None else f"{each.advantage:+.2f}",
        each.tokens,
        each.why.partition(":")[0],
    ]


def bar(filled: float) -> str:
    """A bar of `BAR_WIDTH` cells, of which this share in [0, 1] is filled, to an eighth of a cell."""
    eighths = round(filled * BAR_WIDTH * 8)
    return ("█" * (eighths // 8) + _EIGHTHS[eighths % 8]).strip() or "-"


def _number(value: float | None) -> str | None:
    return None if value is None else f"{value:.4g}"

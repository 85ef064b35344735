"""Text for the totals of a ledger: requests to models behind addresses with their cost, and programs that were started."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from skill_ttrl.llm.openai.budget import cost_text

ASKED = "asked of models behind addresses"
"""Begins the line that says what they cost."""
PROGRAM = "command"
"""Role of a program that takes a model's place: a request in the ledger, without tokens or a price."""
STARTED = "programs started"
BEYOND = "billed beyond what they could take"


def usage_lines(usage: Mapping[str, Any]) -> list[str]:
    """A line for all requests to models and, where there are several, one for each phase and role; then one for programs.

    Args:
        usage: see `Ledger.report`.
    """
    if not usage:
        return []
    parts = [(phase, role, each) for phase, roles in usage["by"].items() for role, each in roles.items()]
    models = {f"{phase}, {role}": each for phase, role, each in parts if role != PROGRAM}
    programs = [each for _, role, each in parts if role == PROGRAM]
    lines = []
    if models:
        lines.append(f"{ASKED}: {_asked(_sum([*models.values()]) if programs else usage)}")
        lines += [f"{name}: {_asked(each)}" for name, each in models.items() if len(models) > 1]
    if programs:
        total = _sum(programs)
        lines.append(f"{STARTED}: {total['requests']:,}" + (f", {total['failed']:,} failed" if total["failed"] else ""))
    return lines


def _asked(totals: Mapping[str, Any]) -> str:
    others = {"failed": totals["failed"], "from the disk": totals["cached"], BEYOND: totals.get("over_bound", 0)}
    shown = "".join(f", {count} {name}" for name, count in others.items() if count)
    sent = totals["requests"] - totals["cached"]
    return (
        f"{totals['requests']} requests{shown}; {totals['tokens_in']:,} tokens in, {totals['tokens_out']:,} out; "
        f"{cost_text(totals['cost'], totals.get('unpriced', 0), sent)}"
    )


def _sum(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Sums of the figures of several parts; a cost that is not known counts as 0, and `unpriced` says so."""
    names = {name for part in parts for name in part}
    return {name: sum(part.get(name) or 0 for part in parts) for name in names}

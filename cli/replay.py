"""`skillttrl replay`: recorded rollouts of a run, played again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from skill_ttrl.cli.display import RunView, show
from skill_ttrl.cli.options import AsJson
from skill_ttrl.errors import ConfigError, EnvError
from skill_ttrl.progress import SILENT

if TYPE_CHECKING:
    from skill_ttrl.commands.replay import Replays

MOST = 10
"""Rollouts that are shown; `--json` has all that differ."""


def replay(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder. Nothing is written into it.")],
    episode: Annotated[
        str | None,
        typer.Option(metavar="ID", help="Replay one rollout, e.g. `rl:12:TASK:3` (phase, step, task, sample)."),
    ] = None,
    step: Annotated[int | None, typer.Option(metavar="N", min=0, help="Replay all rollouts of this step.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Replay all rollouts of the run.")] = False,
    tokens: Annotated[
        bool,
        typer.Option(
            "--tokens",
            help="Also build the prompts again, and score the recorded tokens with the checkpoint that sampled them.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Play recorded rollouts again, and name the first difference: environment, answer, vote, reward, or log-probs.

    Exit code 3 if there is one. No MCP server is started: what its tools answered is taken from the record.

    Example: `skillttrl replay runs/quickstart --episode rl:0:add-18-62:3 --tokens`
    """
    from skill_ttrl.commands.replay import replay as play

    if (episode is not None) + (step is not None) + every != 1:
        raise ConfigError("Name what to replay: --episode ID, --step N or --all, one of them.")
    with RunView(Console(stderr=True), str(run), transient=True) as view:
        found = play(run, episode=episode, step=step, tokens=tokens, progress=SILENT if episode else view)
    show(found, as_json, lines=_lines)
    if found.different:
        raise typer.Exit(EnvError.exit_code)


def _lines(found: Replays) -> Iterator[str]:
    for each in found.differences[:MOST]:
        yield f"{each.episode}: {'' if each.turn is None else f'turn {each.turn}, '}{each.what} differs"
        for name, text in (("recorded:", each.recorded), ("now:     ", each.now)):
            yield f"  {name} {text}".replace("\n", "\\n")
    if len(found.differences) > MOST:
        yield f"… {len(found.differences) - MOST:,} more: --json"
    many = f"{found.replayed:,} rollouts, " if found.replayed > 1 else ""
    kinds = ", ".join(f"{what} {count:,}" for what, count in found.different.items())
    outcome = f"{len(found.differences):,} with a difference ({kinds})" if kinds else "no difference"
    yield f"Replayed {many}{found.turns:,} turn{'s' * (found.turns != 1)}: {outcome}."
    if found.largest is not None:
        yield f"Scored {found.scored:,} tokens: log-probs differ by at most {found.largest:.1e}."
    if found.changed:
        yield f"Changed since the run: {'; '.join(found.changed)}."
    yield from found.notes

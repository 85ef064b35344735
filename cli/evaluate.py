"""`skillttrl evaluate`: accuracy of a run, a checkpoint or a plain model, on its own problems or on any file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

Subject = Annotated[
    str,
    typer.Argument(
        metavar="SOURCE",
        help="A run, one checkpoint of it, a model's folder, a model of the hub, or `openai:MODEL` for `endpoints.policy`.",
    ),
]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override one key, e.g. eval.samples=64.")
]
Data = Annotated[
    list[str] | None,
    typer.Option(
        metavar="FILE",
        help="Problems: JSON, JSONL, Parquet or `hf:owner/name`; may be given more than once. Default: those of the run.",
    ),
]
Recipe = Annotated[
    str | None, typer.Option("--config", metavar="RECIPE", help="Template and lengths for a plain model.")
]
Output = Annotated[
    Path | None,
    typer.Option("--output", "-o", help="Keep samples here as they are drawn; the same command goes on from them."),
]
Chunk = Annotated[
    int | None,
    typer.Option(
        min=0,
        help="Problems drawn together, each chunk from a seed of its own; 0: all. Default: what the backend takes at once with "
        "--output, else all.",
    ),
]
NoBank = Annotated[bool, typer.Option("--no-bank", help="Without the skill bank: what are the skills worth?")]
AsJson = Annotated[
    bool, typer.Option("--json", help="Print JSON on stdout, nothing else: a list where there are several.")
]


def evaluate(
    path: Subject,
    overrides: Overrides = None,
    data: Data = None,
    config: Recipe = None,
    output: Output = None,
    chunk: Chunk = None,
    no_bank: NoBank = False,
    as_json: AsJson = False,
) -> None:
    """Measure avg@k, pass@k, maj@k and greedy, every problem exactly once, with intervals; one table a file."""
    from skill_ttrl.cli.output import print_json
    from skill_ttrl.cli.tables import evaluation_table
    from skill_ttrl.cli.views import RunView
    from skill_ttrl.stages.evaluate import run_all

    with RunView(Console(stderr=True), f"evaluate {path}", loop=False) as view:
        found = run_all(
            path,
            overrides or (),
            data=data or (),
            config=config,
            output=output,
            chunk=chunk,
            use_bank=not no_bank,
            progress=view,
        )
    if as_json:
        print_json(found[0] if len(found) == 1 else found)
        return
    for each in found:
        Console().print(evaluation_table(each))

"""`skillttrl vote`: draw samples or read stored ones, and compare voting strategies on them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from skill_ttrl.cli.display.output import show
from skill_ttrl.cli.display.views import RunView
from skill_ttrl.cli.display.vote_tables import lab_view
from skill_ttrl.cli.evaluate import Chunk, Data, NoBank, Overrides, Recipe
from skill_ttrl.cli.options import AsJson, words
from skill_ttrl.errors import ConfigError

Source = Annotated[
    str,
    typer.Argument(
        metavar="SOURCE",
        help="Stored samples (the `--output` of `evaluate` or `vote`, a run's `trajectories.jsonl`, records with `problem` "
        "and `responses`), or a run, checkpoint or model to sample.",
    ),
]
Strategies = Annotated[
    str,
    typer.Option(
        metavar="NAMES",
        help="`all`, or names with commas between; `module:function` is one of your own, and is called.",
    ),
]
StrategyOption = Annotated[
    list[str] | None,
    typer.Option("--option", metavar="NAME.KEY=VALUE", help="An option of a strategy, e.g. gated.threshold=0.6."),
]
Threshold = Annotated[
    float, typer.Option(min=0.0, max=1.0, help="Agreement from which a wrong winner is a false consensus.")
]
Splits = Annotated[int, typer.Option(min=1, help="Random halvings of the samples behind the flip rate.")]
Samples = Annotated[
    int | None,
    typer.Option("--samples", "-n", min=1, help="Samples to draw of each problem. Default: as training does."),
]
Paraphrase = Annotated[
    bool,
    typer.Option("--paraphrase", help="Half of the samples answer a paraphrase (vote.paraphrase says by whom)."),
]
Output = Annotated[
    Path | None,
    typer.Option("--output", "-o", help="Folder for votes.jsonl; drawn samples are kept there too, and gone on with."),
]
Plot = Annotated[Path | None, typer.Option(metavar="FILE.html", help="Write the charts here.")]


def vote(
    path: Source,
    strategies: Strategies = "majority",
    option: StrategyOption = None,
    threshold: Threshold = 0.5,
    splits: Splits = 10,
    data: Data = None,
    samples: Samples = None,
    paraphrase: Paraphrase = False,
    overrides: Overrides = None,
    config: Recipe = None,
    output: Output = None,
    chunk: Chunk = None,
    plot: Plot = None,
    no_bank: NoBank = False,
    as_json: AsJson = False,
) -> None:
    """Vote on the same samples under one strategy or all, side by side, with intervals; what is noise is called so."""
    from skill_ttrl.stages.vote import Drawing, run

    with RunView(Console(stderr=True), f"vote {path}", loop=False) as view:
        found = run(
            path,
            strategies=words([strategies]),
            options=strategy_options(option or []),
            threshold=threshold,
            splits=splits,
            output=output,
            plot=plot,
            overrides=overrides or (),
            drawing=Drawing(data or (), samples, config, chunk, use_bank=not no_bank, both_wordings=paraphrase),
            progress=view,
        )
    written = {"Votes": output and output / "votes.jsonl", "Charts": plot}
    show(found, as_json, lab_view, [f"{name}: {file}" for name, file in written.items() if file])


def strategy_options(given: Sequence[str]) -> dict[str, dict[str, Any]]:
    """`gated.threshold=0.6` as {"gated": {"threshold": 0.6}}.

    Raises:
        ConfigError: a word is not written so.
    """
    from skill_ttrl.config.yaml_text import read_value

    found: dict[str, dict[str, Any]] = {}
    for word in given:
        place, equals, value = word.partition("=")
        name, dot, key = place.strip().rpartition(".")
        if not (equals and dot and name and key):
            raise ConfigError(
                f"Cannot read the option {word!r}. It is written NAME.KEY=VALUE, e.g. gated.threshold=0.6."
            )
        found.setdefault(name, {})[key] = read_value(value.strip())
    return found

"""`skillttrl vote`: compare voting strategies on stored samples, or on samples drawn from a policy."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from skill_ttrl.cli.display.output import show
from skill_ttrl.cli.display.views import RunView
from skill_ttrl.cli.display.vote_tables import lab_view
from skill_ttrl.cli.evaluate import BatchSize, Limit, Overrides
from skill_ttrl.cli.options import (
    POLICIES,
    AsJson,
    Data,
    Full,
    NoSkills,
    Resume,
    Samples,
    check_model,
    check_resume,
    config_option,
    policy_option,
    with_seed,
    words,
)
from skill_ttrl.errors import ConfigError

Stored = Annotated[
    str | None,
    typer.Argument(
        metavar="SAMPLES",
        help="Stored samples: the `--output` of `evaluate` or `vote`, a run's `trajectories.jsonl`, or records with `problem` and "
        "`responses`. Give these, or --policy.",
    ),
]
Policy = Annotated[str | None, policy_option(f"Policy to draw samples from: {POLICIES}.")]
Strategies = Annotated[
    str,
    typer.Option(
        metavar="NAMES",
        help="`all`, or names separated by commas. Your own is `module:function`, which runs your code.",
    ),
]
StrategyArg = Annotated[
    list[str] | None,
    typer.Option(
        "--strategy-arg",
        metavar="ARG",
        help="Argument of a strategy as NAME.KEY=VALUE, e.g. gated.threshold=0.6. Can be repeated.",
    ),
]
Paraphrase = Annotated[
    bool,
    typer.Option(
        "--paraphrase", help="Let half of the samples answer a paraphrase; vote.paraphrase names the paraphraser."
    ),
]
Config = Annotated[str | None, config_option("Chat template, lengths and problems of a plain model.")]
Seed = Annotated[
    int | None,
    typer.Option(metavar="N", min=0, help="Seed of every random choice. Default: the config's, else 0."),
]
Output = Annotated[
    Path | None,
    typer.Option("--output", "-o", help="Folder for votes.jsonl, vote.json and the samples that are drawn."),
]


def vote(
    stored: Stored = None,
    policy: Policy = None,
    strategies: Strategies = "majority",
    strategy_arg: StrategyArg = None,
    data: Data = None,
    limit: Limit = None,
    samples: Samples = None,
    paraphrase: Paraphrase = False,
    overrides: Overrides = None,
    config: Config = None,
    seed: Seed = None,
    output: Output = None,
    resume: Resume = "auto",
    batch_size: BatchSize = None,
    no_skills: NoSkills = False,
    full: Full = False,
    as_json: AsJson = False,
) -> None:
    """Compare voting strategies on the same samples, with intervals. Differences that a paired test does not confirm are marked as unclear.

    Example: `skillttrl vote runs/quickstart/trajectories.jsonl --strategies all`
    """
    from skill_ttrl.stages.vote import Drawing, run

    check_resume(resume, output)
    source = _source(stored, policy)
    drawing = Drawing(
        data or (), samples, config, batch_size, use_bank=not no_skills, both_wordings=paraphrase, limit=limit
    )
    with RunView(Console(stderr=True), f"vote {source}") as view:
        found = run(
            source,
            strategies=words([strategies]),
            options=strategy_options(strategy_arg or []),
            output=output,
            overrides=with_seed(overrides, seed),
            drawing=drawing,
            progress=view,
        )
    written = [] if output is None else [f"Votes: {output / 'votes.jsonl'}"]
    show(found, as_json, partial(lab_view, full=full), written)


def _source(stored: str | None, policy: str | None) -> str:
    """Return what to vote on.

    Raises:
        ConfigError: not exactly one is named, or a policy as stored samples, or the reverse.
    """
    from skill_ttrl.stages.targets.stored import is_stored

    ways = "Give either stored samples (skillttrl vote SAMPLES) or a policy to sample from (skillttrl vote --policy POLICY)"
    if (stored is None) == (policy is None):
        raise ConfigError(f"{ways}, not both." if policy else f"{ways}.")
    source = str(stored or policy)
    if is_stored(source) != (policy is None):
        raise ConfigError(f"{ways}; {source} holds {'no ' if policy is None else ''}stored samples.")
    if policy is not None:
        check_model(policy, "drawing samples")
    return source


def strategy_options(given: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Parse `gated.threshold=0.6` to {"gated": {"threshold": 0.6}}.

    Raises:
        ConfigError: an argument is not written so.
    """
    from skill_ttrl.config.yaml_text import read_value

    found: dict[str, dict[str, Any]] = {}
    for word in given:
        place, equals, value = word.partition("=")
        name, dot, key = place.strip().rpartition(".")
        if not (equals and dot and name and key):
            raise ConfigError(
                f"Cannot read --strategy-arg {word!r}. It is written NAME.KEY=VALUE, e.g. gated.threshold=0.6."
            )
        found.setdefault(name, {})[key] = read_value(value.strip())
    return found

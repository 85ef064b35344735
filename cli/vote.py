"""`skillttrl vote`: compare voting strategies on stored samples, or on samples drawn from a policy."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console, Group, RenderableType
from rich.text import Text

from skill_ttrl.cli import options
from skill_ttrl.cli.display import RunView, show, text_table
from skill_ttrl.cli.evaluate import BatchSize
from skill_ttrl.errors import ConfigError
from skill_ttrl.sanitize import escape_terminal, one_line

if TYPE_CHECKING:
    from skill_ttrl.commands.vote import Replayed, VoteLab

MAX_NAME = 24
"""Longest name in a table in characters."""

Stored = Annotated[
    str | None,
    typer.Argument(
        metavar="SAMPLES",
        help="Stored samples: the `--output` of `evaluate` or `vote`, a run's `trajectories.jsonl`, or records with `problem` and "
        "`responses`. Give these, or --policy.",
    ),
]
Policy = Annotated[str | None, options.policy_option(f"Policy to draw samples from: {options.POLICIES}.")]
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
        metavar="ARG", help="Argument of a strategy, NAME.KEY=VALUE, e.g. anchored.weight=0.6. Can be repeated."
    ),
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
    data: options.Data = None,
    limit: options.Limit = None,
    samples: options.Samples = None,
    overrides: options.Overrides = None,
    config: options.PlainConfig = None,
    seed: options.Seed = None,
    output: Output = None,
    resume: options.Resume = "auto",
    batch_size: BatchSize = None,
    no_skills: options.NoSkills = False,
    as_json: options.AsJson = False,
) -> None:
    """Compare voting strategies on the same samples, with intervals. Differences that a paired test does not confirm are marked as unclear.

    Example: `skillttrl vote runs/quickstart/trajectories.jsonl --strategies all`
    """
    from skill_ttrl.commands.vote import run

    options.check_resume(resume, output)
    source = _source(stored, policy)
    with RunView(Console(stderr=True), f"vote {source}") as view:
        found = run(
            source,
            strategies=options.words([strategies]),
            options=strategy_options(strategy_arg or []),
            output=output,
            overrides=options.with_short(overrides, {"seed": seed}),
            progress=view,
            data=data or (),
            samples=samples,
            config=config,
            limit=limit,
            chunk=batch_size,
            no_skills=no_skills,
        )
    written = [] if output is None else [f"Votes: {output / 'votes.jsonl'}"]
    show(found, as_json, lab_view, written)


def _source(stored: str | None, policy: str | None) -> str:
    """Return what to vote on.

    Raises:
        ConfigError: not exactly one is named, or a policy as stored samples, or the reverse.
    """
    from skill_ttrl.commands.resolve import is_stored

    ways = "Give either stored samples (skillttrl vote SAMPLES) or a policy to sample from (skillttrl vote --policy POLICY)"
    if (stored is None) == (policy is None):
        raise ConfigError(f"{ways}, not both." if policy else f"{ways}.")
    source = str(stored or policy)
    if is_stored(source) != (policy is None):
        raise ConfigError(f"{ways}; {source} holds {'no ' if policy is None else ''}stored samples.")
    if policy is not None:
        options.check_model(policy, "drawing samples")
    return source


def strategy_options(given: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Parse `anchored.weight=0.6` to {"anchored": {"weight": 0.6}}.

    Raises:
        ConfigError: an argument is not written so.
    """
    from skill_ttrl.config.section import read_value

    found: dict[str, dict[str, Any]] = {}
    for word in given:
        place, equals, value = word.partition("=")
        name, dot, key = place.strip().rpartition(".")
        if not (equals and dot and name and key):
            raise ConfigError(
                f"Cannot read --strategy-arg {word!r}. It is written NAME.KEY=VALUE, e.g. anchored.weight=0.6."
            )
        found.setdefault(name, {})[key] = read_value(value.strip())
    return found


def lab_view(lab: VoteLab) -> RenderableType:
    """The main metric of every strategy, with the difference from the majority and its verdict."""
    from skill_ttrl.commands.vote import TITLES
    from skill_ttrl.statistics import PAIRED_TEST

    judged = [each for each in lab.strategies if each.requires is None]
    names = [name for name in TITLES if any(name in each.figures for each in judged)]
    parts: list[RenderableType] = [Text(escape_terminal(f"{lab.source}: {lab.describe_samples()}"), "bold")]
    rows = [_row(each, names[0]) for each in judged]
    columns = ("strategy", TITLES[names[0]], "minus majority", "verdict")[: 4 if len(judged) > 1 else 2]
    parts.append(text_table("", columns, [row[: len(columns)] for row in rows]))
    others = (f"{TITLES[name]} {judged[0].figures[name].value:.3f}" for name in names[1:] if name in judged[0].figures)
    parts.append(Text(f"{judged[0].strategy}: {', '.join(others)}. Every strategy: --json"))
    if len(judged) > 1:
        parts.append(Text(f"Differences are paired by problem, with 95% intervals; {PAIRED_TEST}."))
    lines = [f"{one_line(each.strategy, MAX_NAME)} needs {each.requires}" for each in lab.strategies if each.requires]
    lines += [str(lab.undecided_answers)] if lab.undecided_answers.count else []
    return Group(*parts, *(Text(escape_terminal(line), "yellow") for line in lines))


def _row(each: Replayed, name: str) -> Sequence[str | None]:
    """A strategy's metric, its difference from the majority, and the verdict."""
    from skill_ttrl.commands.reports.summary_text import with_interval

    label, figure, difference = one_line(each.strategy, MAX_NAME), each.figures.get(name), each.differences.get(name)
    value = None if figure is None else with_interval(figure.value, figure.interval)
    if difference is None:
        return label, value, None, None
    above, below = ("better", "worse") if name == "label_accuracy" else ("higher", "lower")
    judged = {"unclear": "unclear", "better": above, "worse": below}[difference.verdict]
    return label, value, with_interval(difference.value, difference.interval, "+"), judged

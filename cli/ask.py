"""`skillttrl ask` and `export`: the answers of a policy, its weights and its rollouts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from skill_ttrl.cli import options
from skill_ttrl.cli.display import prints_aside, reply_view, say, show
from skill_ttrl.errors import ConfigError


def ask(
    policy: Annotated[str, options.policy_argument(f"{options.POLICIES[0].upper()}{options.POLICIES[1:]}.")],
    question: Annotated[str, typer.Argument(help="A task, worded as in the training data, e.g. 'Compute 47+38.'")],
    samples: Annotated[
        int,
        typer.Option("--samples", "-n", min=1, help="Answers to sample. With more than one they are put to the vote."),
    ] = 1,
    temperature: Annotated[
        float | None, typer.Option(min=0.0, help="Sampling temperature. Default: 0 for one answer, else 1.")
    ] = None,
    seed: options.Seed = None,
    overrides: options.Overrides = None,
    config: options.PlainConfig = None,
    no_skills: options.NoSkills = False,
    as_json: options.AsJson = False,
) -> None:
    """Ask a policy a question.

    Example: `skillttrl ask runs/quickstart 'Compute 47+38.' -n 8`
    """
    from skill_ttrl.commands.play import ask as put
    from skill_ttrl.commands.play import find_asked

    options.check_model(policy, "`skillttrl ask`")
    asked = find_asked(policy, options.with_short(overrides, {"seed": seed}), config=config, use_bank=not no_skills)
    if note := getattr(asked, "note", ""):
        say(note, screen=Console(stderr=True))
    with prints_aside():
        reply = put(asked, question, samples=samples, temperature=temperature, use_bank=not no_skills)
    show(reply, as_json, reply_view)


def export(
    policy: Annotated[
        Path, options.policy_argument("A run, or a checkpoint of one; with --format a run, or a file of trajectories.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder or file to make.")],
    merge_lora: Annotated[
        bool, typer.Option("--merge-lora/--no-merge-lora", help="Merge LoRA adapters into the base model's weights.")
    ] = False,
    form: Annotated[
        Literal["inspect", "parquet"] | None,
        typer.Option(
            "--format",
            help="Write rollouts instead of the policy: `parquet`, a table with a row for each; `inspect`, a folder of logs for `inspect view`.",
        ),
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Write a trained policy as a plain Hugging Face model folder, or with `--format` the rollouts of its training.

    Example: `skillttrl export runs/quickstart -o my-model`
    """
    from skill_ttrl.commands.export import export_rollouts
    from skill_ttrl.commands.play import export as write
    from skill_ttrl.commands.resolve import find_trained

    options.check_model(str(policy), "`skillttrl export`")
    if form is not None:
        if merge_lora:
            raise ConfigError(f"--merge-lora is about weights, and --format {form} writes rollouts. Leave one out.")
        count, notes = export_rollouts(policy, output, form)
        result = {"output": str(output), "rollouts": count, "notes": notes}
        show(result, as_json, lines=[f"{output}: {count:,} rollouts", *notes])
        return
    found = find_trained(policy)
    written = write(found, output, merged=merge_lora)
    show({"output": str(written), "policy": str(found.weights)}, as_json, lines=[str(written)])

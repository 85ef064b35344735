"""Options that several commands share, and how a command refuses one that would have no effect."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from skill_ttrl.errors import ConfigError, RunFolderError

ENV_RULE = (
    "short name (`math`), Gymnasium id (`SkillTTRL/Math-v0`), `module:EnvId-v0` of your own, or `reasoning_gym:NAME`, `verifiers:NAME`, "
    "`openenv:URL`"
)
POLICIES = "a run, a checkpoint, a model folder, a hub model (OWNER/NAME), `openai:MODEL` (`endpoints`), or `none` where --agent brings its own"
SCRIPTED = (
    "a scripted agent: `expert`, `random`, `first`, `constant:TEXT`, `walkthrough`, one of the environment (`rule`, `careful` and "
    "`brief` of `webshop`), or your own as `module:attribute`"
)
CONFIG_HELP = "A shipped config by name (`skillttrl configs`), or a YAML file."
GENERATED = "generated"
"""Value of `--env-data` that `--mock` stands for."""


def set_option(text: str) -> Any:
    """`--set KEY=VALUE` with its help."""
    return typer.Option("--set", metavar="KEY=VALUE", help=f"{text} Can be repeated.")


def config_option(text: str) -> Any:
    """`--config CONFIG` with its help."""
    return typer.Option("--config", metavar="CONFIG", help=f"Config, by name or file. {text}")


def policy_option(text: str) -> Any:
    """`--policy POLICY` with its help."""
    return typer.Option("--policy", metavar="POLICY", help=text)


def policy_argument(text: str) -> Any:
    """The argument POLICY with its help."""
    return typer.Argument(metavar="POLICY", help=text)


AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON value on stdout, and nothing else there.")]
EnvData = Annotated[
    str | None,
    typer.Option(
        metavar="PATH",
        help="Games, products or questions of the environment: a folder (ALFWorld: with `json_2.1.1/`; WebShop: the official "
        "files), a file (`qa`), `generated`, or the address of a WebShop server. Short for env.kwargs.data.",
    ),
]
Mock = Annotated[bool, typer.Option("--mock", help="Short for --env-data generated (alfworld, webshop).")]
Overrides = Annotated[list[str] | None, set_option("Override one config key, e.g. rollout.temperature=0.4.")]
Seed = Annotated[
    int | None, typer.Option(metavar="N", min=0, help="Seed of every random choice. Default: the config's.")
]
Limit = Annotated[int | None, typer.Option(metavar="N", min=1, help="Number of tasks. Default: all.")]
PlainConfig = Annotated[str | None, config_option("Chat template, lengths, endpoints and problems of a plain model.")]
Program = Annotated[
    str | None,
    typer.Option(
        "--agent",
        metavar="COMMAND",
        help='Your agent program plays: it calls the policy at OPENAI_BASE_URL, e.g. "python my_agent.py". Short for --set program.argv=COMMAND. Policy of collect and evaluate, unless named: `none`.',
    ),
]
NumWorkers = Annotated[
    int | None,
    typer.Option(
        metavar="N", min=1, help="Processes that run a scripted agent, with the same results. Default: one per core."
    ),
]
Full = Annotated[bool, typer.Option("--full", help="Show every row, not only those that matter most.")]
NoSkills = Annotated[bool, typer.Option("--no-skills", help="Leave out the policy's skill bank.")]
Data = Annotated[
    list[str] | None,
    typer.Option(
        metavar="FILE",
        help="Problems: JSON, JSONL, Parquet or `hf:owner/name`. Can be repeated. Default: the config's.",
    ),
]
Samples = Annotated[
    int | None, typer.Option("--samples", "-n", metavar="N", min=1, help="Samples per task. Default: the config's.")
]
Resume = Annotated[
    Literal["auto", "never"],
    typer.Option(help="`auto`: continue what the same command left in --output. `never`: fail if --output exists."),
]


def generated_data(data: str | None, mock: bool) -> str | None:
    """Return the data that `--env-data` or `--mock` names.

    Raises:
        ConfigError: both are given.
    """
    if mock and data is not None:
        raise ConfigError(
            f"--mock means --env-data {GENERATED}, but --env-data {data} is set too. Use only one of them."
        )
    return GENERATED if mock else data


def check_resume(resume: str, *outputs: Path | None) -> None:
    """Check `--resume` of a command that continues its own output.

    Raises:
        RunFolderError: it is `never`, and one of the outputs exists; an empty folder does not count.
    """
    for path in outputs if resume == "never" else ():
        if path is not None and (path.is_file() or (path.is_dir() and any(path.iterdir()))):
            raise RunFolderError(f"{path} already exists. Continue it with --resume auto, or choose another --output.")


def check_model(policy: str, use: str) -> None:
    """Refuse a scripted agent where a model is needed.

    Args:
        policy: as given.
        use: for what it is needed, such as "`skillttrl ask`".

    Raises:
        ConfigError: it is a scripted agent.
    """
    from skill_ttrl.agents.scripted import is_scripted

    if is_scripted(policy):
        raise ConfigError(f"{policy} is a scripted agent, but {use} needs a model: {POLICIES}.".replace("`", ""))


def with_short(overrides: Sequence[str] | None, given: Mapping[str, str | int | None]) -> list[str]:
    """The overrides of a config, and after them the options that are short for one, by its key; None: the option is not given."""
    return [*(overrides or ()), *(f"{key}={json.dumps(value)}" for key, value in given.items() if value is not None)]


def words(given: Sequence[str] | None) -> list[str]:
    """Split names that were given with commas between, or one after another."""
    return [word.strip() for each in given or () for word in each.split(",") if word.strip()]


def refuse(given: Mapping[str, object], why: str) -> None:
    """Refuse options that would have no effect: those in `given` that are neither None nor False.

    Raises:
        ConfigError: one of them is given.
    """
    for name, value in given.items():
        if value is not None and value is not False:
            raise ConfigError(f"{name} {why}.")


def refuse_foreign(
    policy: str, scripted: bool, of_scripted: Mapping[str, object], of_model: Mapping[str, object]
) -> None:
    """Refuse options of the other kind of policy: `scripted` says if it is a scripted agent.

    Raises:
        ConfigError: one of them is given.
    """
    if scripted:
        refuse(of_model, f"needs a model, but {policy} is a scripted agent")
    else:
        refuse(of_scripted, f"needs a scripted agent, but {policy} is a model")

"""`skillttrl plan`: a run's RL phase on GPUs that are not here, before any is rented."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from skill_ttrl.cli.display.output import print_json, say
from skill_ttrl.cli.display.plan_view import cluster_view
from skill_ttrl.cli.options import CONFIG_HELP, AsJson, Full, set_option

Config = Annotated[str, typer.Argument(metavar="CONFIG", help=CONFIG_HELP)]
Gpus = Annotated[int, typer.Option("--gpus", metavar="N", help="GPUs in all.")]
Nodes = Annotated[int, typer.Option("--nodes", metavar="N", help="Machines that they are in.")]
Gpu = Annotated[
    str | None,
    typer.Option(
        help="Kind of GPU: `h100`, `h200`, `b200`, `a100`, `l40s`, `4090`, or `cpu`. Default: the GPU of this machine; `cpu` where the "
        "config asks for one; else `h100`."
    ),
]
RolloutGpus = Annotated[
    int | None,
    typer.Option(
        "--rollout-gpus",
        metavar="N",
        help="GPUs that generate alone, with vLLM servers. Default: as many as `vllm.servers` takes; without servers the learner's GPUs "
        "generate too.",
    ),
]
Price = Annotated[float | None, typer.Option(metavar="MONEY", help="Price of a GPU and hour, for the cost.")]
EnvSeconds = Annotated[
    float | None,
    typer.Option("--env-seconds", metavar="S", help="Seconds of an environment step. Default: measured here."),
]
SlowFraction = Annotated[
    float, typer.Option("--slow-fraction", metavar="SHARE", help="Share of rollouts whose environment is slow.")
]
SlowFactor = Annotated[
    float, typer.Option("--slow-factor", metavar="X", help="Times as long as a slow environment takes.")
]
MaxStaleness = Annotated[
    int | None,
    typer.Option(
        "--max-staleness",
        metavar="N",
        help="Steps that generation may be ahead of the learner, with --rollout-gpus. Default: `rl.max_staleness`, or 0.",
    ),
]
Tokens = Annotated[
    float | None,
    typer.Option(metavar="N", help="Mean tokens of a response. Default: those of --calibrate, else the limit."),
]
Turns = Annotated[
    float | None,
    typer.Option(metavar="N", help="Mean turns of a rollout. Default: those of --calibrate, else the limit."),
]
Calibrate = Annotated[
    Path | None,
    typer.Option(metavar="RUN", help="Run whose times and lengths replace computed ones, on the same kind of device."),
]
Svg = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Also draw the throughput from 1 to 1,000 GPUs, which takes longer."),
]
Overrides = Annotated[list[str] | None, set_option("Override one config key, e.g. rollout.backend=vllm.")]


def plan(
    config: Config,
    gpus: Gpus = 1,
    nodes: Nodes = 1,
    gpu: Gpu = None,
    rollout_gpus: RolloutGpus = None,
    price: Price = None,
    env_seconds: EnvSeconds = None,
    slow_fraction: SlowFraction = 0.0,
    slow_factor: SlowFactor = 1.0,
    max_staleness: MaxStaleness = None,
    tokens: Tokens = None,
    turns: Turns = None,
    calibrate: Calibrate = None,
    svg: Svg = None,
    overrides: Overrides = None,
    full: Full = False,
    as_json: AsJson = False,
) -> None:
    """Plan the RL phase of a config for a cluster: step time, hours, cost, memory by rank, the bottleneck and what moves it.

    Nothing is run, and nothing downloaded but the `config.json` of a model on the hub. Exits with 2 where the GPUs cannot be shared out, and with 5 where the model's sizes are not known or it
    does not fit.

    Example: `skillttrl plan ttrl_qwen2.5_math_7b --gpus 8 --nodes 2 --price 2.5`
    """
    from skill_ttrl.stages.plan import PlanOptions, run
    from skill_ttrl.stages.setup.checks import load_checked

    options = PlanOptions(
        gpus=gpus,
        nodes=nodes,
        gpu=gpu,
        rollout_gpus=rollout_gpus,
        price=price,
        env_seconds=env_seconds,
        slow_fraction=slow_fraction,
        slow_factor=slow_factor,
        max_staleness=max_staleness,
        tokens=tokens,
        turns=turns,
        calibrate=calibrate,
    )
    found = run(load_checked(config, overrides or []), options, svg)
    if as_json:
        print_json(asdict(found))
        return
    Console().print(cluster_view(found, full=full))
    if svg is not None:
        say(f"Throughput from 1 to 1,000 GPUs: {svg}")

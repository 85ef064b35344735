"""`skillttrl serve`: a vLLM server for a model, in the foreground."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from skill_ttrl.cli.launching import notice
from skill_ttrl.cli.options import check_model, config_option, policy_argument, set_option

Policy = Annotated[
    str | None,
    policy_argument("A run, a checkpoint, a model folder or a hub model (OWNER/NAME). Default: the model of --config."),
]
Config = Annotated[str | None, config_option("Sets the model, the lengths and the section `vllm`.")]
Overrides = Annotated[list[str] | None, set_option("Override one key of the config, e.g. vllm.max_num_seqs=64.")]
Port = Annotated[int, typer.Option(metavar="N", min=1, max=65535, help="Port to listen on.")]
Host = Annotated[str, typer.Option(help="Address to listen on. Any address but localhost needs a key.")]
Python = Annotated[
    str | None, typer.Option(help="Interpreter of the environment in which vLLM is installed. Default: this one.")
]
Output = Annotated[
    Path,
    typer.Option(
        "--output", "-o", metavar="FOLDER", help="With the built-in model of --config: folder to write it to."
    ),
]


def serve(
    policy: Policy = None,
    port: Port = 8000,
    host: Host = "127.0.0.1",
    python: Python = None,
    output: Output = Path("runs/serve/model"),
    config: Config = None,
    overrides: Overrides = None,
) -> None:
    """Run a vLLM server for `rollout.backend=vllm` with `vllm.mode=server`, until Ctrl-C or a signal.

    Example: `skillttrl serve runs/quickstart --port 8000 --set vllm.max_model_len=2048`
    """
    from skill_ttrl.commands.serve import plan, run

    if policy is not None:
        check_model(policy, "`skillttrl serve`")
    command = plan(policy, config, overrides or (), output=output, host=host, port=port, python=python)
    run(command, host, port, notice)

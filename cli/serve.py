"""`skillttrl serve`: a vLLM server for a model, in the foreground."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from skill_ttrl.cli.launching import notice
from skill_ttrl.cli.options import check_model, config_option, policy_argument, set_option
from skill_ttrl.errors import ConfigError

Policy = Annotated[
    str | None,
    policy_argument("A run, a checkpoint, a model folder or a hub model (OWNER/NAME). Default: the model of --config."),
]
Config = Annotated[str | None, config_option("Sets the model, the lengths and the section `vllm`.")]
Overrides = Annotated[list[str] | None, set_option("With --config: override one key, e.g. vllm.max_num_seqs=64.")]
Port = Annotated[int, typer.Option(metavar="N", min=1, max=65535, help="Port to listen on.")]
Host = Annotated[str, typer.Option(help="Address to listen on. Any address but localhost needs a key.")]
Python = Annotated[
    str | None, typer.Option(help="Interpreter of the environment in which vLLM is installed. Default: this one.")
]
Dtype = Annotated[str | None, typer.Option(help="Type of the weights: `float32`, `bfloat16`, `float16` or `auto`.")]
MaxModelLen = Annotated[
    int | None, typer.Option(metavar="N", min=16, help="Most tokens of a prompt and its completion together.")
]
MaxNumSeqs = Annotated[int | None, typer.Option(metavar="N", min=1, help="Most sequences that are decoded at once.")]
GpuMemory = Annotated[
    float | None,
    typer.Option(
        "--gpu-memory-utilization", metavar="SHARE", help="Share of a GPU's memory that a server uses, in [0.01, 1]."
    ),
]
MaxLoraRank = Annotated[
    int | None,
    typer.Option("--max-lora-rank", min=1, metavar="RANK", help="Accept LoRA adapters of at most this rank."),
]
Sleep = Annotated[
    bool,
    typer.Option(
        "--enable-sleep-mode", help="Allow the learner to free the server's GPU memory (vllm.enable_sleep_mode)."
    ),
]
Output = Annotated[
    Path,
    typer.Option(
        "--output", "-o", metavar="FOLDER", help="With the built-in model of --config: folder to write it to."
    ),
]
TransferDir = Annotated[
    Path | None,
    typer.Option(
        "--weight-transfer-dir",
        help="Folder for handing over weights. Default: vllm.weight_transfer_dir, else shared memory.",
    ),
]


def serve(
    policy: Policy = None,
    port: Port = 8000,
    host: Host = "127.0.0.1",
    python: Python = None,
    dtype: Dtype = None,
    max_model_len: MaxModelLen = None,
    max_num_seqs: MaxNumSeqs = None,
    gpu_memory_utilization: GpuMemory = None,
    max_lora_rank: MaxLoraRank = None,
    enable_sleep_mode: Sleep = False,
    output: Output = Path("runs/serve/model"),
    weight_transfer_dir: TransferDir = None,
    config: Config = None,
    overrides: Overrides = None,
) -> None:
    """Run a vLLM server for `rollout.backend=vllm` with `vllm.mode=server`, until Ctrl-C or a signal.

    Example: `skillttrl serve runs/quickstart --port 8000`
    """
    from skill_ttrl.stages.serve import run, serving_of

    if policy is not None:
        check_model(policy, "`skillttrl serve`")
    if gpu_memory_utilization is not None and not 0.01 <= gpu_memory_utilization <= 1:
        raise ConfigError(f"--gpu-memory-utilization lies between 0.01 and 1, found {gpu_memory_utilization}.")
    serving = serving_of(
        policy,
        config,
        overrides or (),
        output=output,
        port=port,
        host=host,
        python=python,
        dtype=dtype,
        max_model_len=max_model_len,
        max_num_seqs=max_num_seqs,
        gpu_memory_utilization=gpu_memory_utilization,
        lora=max_lora_rank,
        sleep=enable_sleep_mode or None,
        transfer=None if weight_transfer_dir is None else str(weight_transfer_dir),
    )
    run(serving, notice)

"""`skillttrl serve`: start, monitor and stop vLLM servers for a model together."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer
from rich.console import Console, RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from skill_ttrl.cli.display.output import print_json, say
from skill_ttrl.cli.options import check_model, config_option, policy_argument, set_option
from skill_ttrl.errors import ConfigError
from skill_ttrl.sanitize import escape_terminal

if TYPE_CHECKING:
    from skill_ttrl.llm.vllm.servers.supervise import Watched

STYLES = {"starting": "yellow", "ready": "green", "waiting": "red", "stopped": "dim"}

Policy = Annotated[
    str | None,
    policy_argument("A run, a checkpoint, a model folder or a hub model (OWNER/NAME). Default: the model of --config."),
]
Config = Annotated[str | None, config_option("Sets the model, the lengths and the section `vllm`.")]
Overrides = Annotated[list[str] | None, set_option("With --config: override one key, e.g. vllm.start_timeout=900.")]
Replicas = Annotated[int, typer.Option(metavar="N", min=1, help="Number of servers, each with its own port and GPU.")]
Port = Annotated[
    int, typer.Option(metavar="N", min=1, max=65535, help="Port of the first server; the others take the next ones.")
]
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
Gpus = Annotated[
    list[str] | None,
    typer.Option("--gpu", metavar="ID", help="GPU to use. Can be repeated. Default: all, starting with the first."),
]
LogDir = Annotated[Path, typer.Option(help="Folder for the logs and servers.json.")]
TransferDir = Annotated[
    Path | None,
    typer.Option(
        "--weight-transfer-dir",
        help="Folder through which weights are handed over (vllm.weight_transfer_dir). Default: shared memory.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON value on stdout when all servers are ready.")]
StartTimeout = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS", min=1, help="Seconds until a server must be ready. Default: the config's, else 600."
    ),
]


def serve(
    policy: Policy = None,
    replicas: Replicas = 1,
    port: Port = 8000,
    host: Host = "127.0.0.1",
    python: Python = None,
    dtype: Dtype = None,
    max_model_len: MaxModelLen = None,
    max_num_seqs: MaxNumSeqs = None,
    gpu_memory_utilization: GpuMemory = None,
    max_lora_rank: MaxLoraRank = None,
    enable_sleep_mode: Sleep = False,
    gpu: Gpus = None,
    log_dir: LogDir = Path("runs/serve"),
    weight_transfer_dir: TransferDir = None,
    start_timeout: StartTimeout = None,
    config: Config = None,
    overrides: Overrides = None,
    as_json: Json = False,
) -> None:
    """Start vLLM servers for `rollout.backend=vllm` with `vllm.mode=server`, and run them until Ctrl-C or a signal.

    Example: `skillttrl serve runs/quickstart --replicas 2`
    """
    from skill_ttrl.llm.vllm.servers.supervise import STATE_FILE, Patience, Supervisor
    from skill_ttrl.stages.serve import keyed, plan, serving_of

    if policy is not None:
        check_model(policy, "`skillttrl serve`")
    if gpu_memory_utilization is not None and not 0.01 <= gpu_memory_utilization <= 1:
        raise ConfigError(f"--gpu-memory-utilization lies between 0.01 and 1, found {gpu_memory_utilization}.")
    serving = serving_of(
        policy,
        config,
        overrides or (),
        log_dir=log_dir,
        replicas=replicas,
        port=port,
        host=host,
        python=python,
        dtype=dtype,
        max_model_len=max_model_len,
        max_num_seqs=max_num_seqs,
        gpu_memory_utilization=gpu_memory_utilization,
        lora=max_lora_rank,
        sleep=enable_sleep_mode or None,
        start_timeout=start_timeout,
        gpus=tuple(gpu or ()) or None,
        transfer=None if weight_transfer_dir is None else str(weight_transfer_dir),
    )
    view = ServeView(Console(stderr=True), as_json=as_json, state=log_dir / STATE_FILE)
    with keyed(plan(serving)) as jobs, view:
        patience = Patience(start=serving.start_timeout)
        Supervisor(jobs, log_dir, patience=patience, changed=view.show, notice=view.notice).run()


class ServeView:
    """Shows the servers: a table that is drawn anew, or lines where there is no terminal."""

    def __init__(self, console: Console, *, as_json: bool, state: Path) -> None:
        self._console, self._as_json, self._state = console, as_json, state
        self._watched: Sequence[Watched] = ()
        draw = lambda: servers_table(self._watched)  # noqa: E731
        self._live = Live(console=console, refresh_per_second=4, get_renderable=draw) if console.is_terminal else None
        self._phases: dict[str, str] = {}
        self._announced = False

    def __enter__(self) -> ServeView:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, watched: Sequence[Watched]) -> None:
        """Draw their state; print once, when all are ready, how to use them."""
        self._watched = watched
        if self._live is not None:
            self._live.refresh()
        else:
            for each in watched:
                if self._phases.get(each.job.address) != each.phase:
                    say(f"{each.job.address}: {each.phase}", screen=self._console)
                self._phases[each.job.address] = each.phase
        if not self._announced and all(each.phase == "ready" for each in watched):
            self._announced = True
            if self._as_json:
                print_json({"servers": [each.as_json() for each in watched], "state": str(self._state)})
                sys.stdout.flush()  # who reads it waits for it; this process stays
            addresses = ",".join(each.job.address for each in watched)
            say(
                "Ready. Use them from another terminal with: --set rollout.backend=vllm --set vllm.mode=server "
                f"--set 'vllm.servers=[{addresses}]'. Ctrl-C stops them.{_about_key(watched)}",
                screen=self._console,
            )

    def notice(self, text: str) -> None:
        """Print a line above the table."""
        say(text, screen=self._console, style="yellow")


def _about_key(watched: Sequence[Watched]) -> str:
    """Return where other clients find the key; nothing if the user set it in the environment."""
    from skill_ttrl.llm.server_key import given_key, key_file

    if given_key():
        return ""
    first = key_file(urlsplit(watched[0].job.address).port or 0)
    return f" They require a key. Skill-TTRL finds it by itself; for other clients it is in {first}."


def servers_table(watched: Sequence[Watched]) -> Table:
    """One line a server."""
    table = Table("address", "state", "process", "GPU", "restarts", "log")
    for each in watched:
        process = each.process.pid if each.process is not None else ""
        state: RenderableType = Text(each.phase, style=STYLES[each.phase])
        if each.phase == "starting":
            state = Spinner("dots", Text(f"starting, {time.monotonic() - each.since:.0f} s", style=STYLES[each.phase]))
        log = escape_terminal(str(each.job.log))
        table.add_row(each.job.address, state, str(process), each.job.gpus, str(each.restarts), log)
    return table

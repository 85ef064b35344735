"""`skillttrl serve`: vLLM servers for a model, started, watched and ended together."""

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
from skill_ttrl.cli.options import recipe_option, set_option
from skill_ttrl.sanitize import escape_terminal

if TYPE_CHECKING:
    from skill_ttrl.llm.vllm.servers.supervise import Watched

STYLES = {"starting": "yellow", "ready": "green", "waiting": "red", "stopped": "dim"}

Model = Annotated[
    str | None,
    typer.Argument(
        metavar="MODEL",
        help="A model's folder, a run, a checkpoint, or a model of the hub (OWNER/NAME). Default: that of --config.",
    ),
]
Recipe = Annotated[str | None, recipe_option("Take model, lengths and the section `vllm` from it.")]
Overrides = Annotated[list[str] | None, set_option("With --config: override one key.")]
Gpus = Annotated[
    list[str] | None,
    typer.Option("--gpu", metavar="ID", help="A GPU to use; once for each. Default: from the first on."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON on stdout once all are ready, nothing else.")]
StartTimeout = Annotated[
    float | None,
    typer.Option(min=1.0, help="Seconds in which a server must be ready. Default: 600, or the recipe's."),
]


def serve(
    model: Model = None,
    replicas: Annotated[int, typer.Option(min=1, help="Servers to start, each on a port and a GPU of its own.")] = 1,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port of the first server; the others follow.")] = 8000,
    host: Annotated[
        str, typer.Option(help="Address to listen on; any but this machine's own needs a key.")
    ] = "127.0.0.1",
    python: Annotated[
        str | None, typer.Option(help="Interpreter of the environment that has vLLM. Default: this one.")
    ] = None,
    dtype: Annotated[
        str | None, typer.Option(help="Of the weights: `float32`, `bfloat16`, `float16` or `auto`.")
    ] = None,
    max_model_len: Annotated[int | None, typer.Option(min=16, help="Longest prompt and completion, in tokens.")] = None,
    max_num_seqs: Annotated[int | None, typer.Option(min=1, help="Most sequences decoded at once.")] = None,
    gpu_memory: Annotated[
        float | None, typer.Option(min=0.01, max=1.0, help="Share of a GPU's memory that a server takes.")
    ] = None,
    lora: Annotated[int | None, typer.Option(min=1, metavar="RANK", help="Take adapters of up to this rank.")] = None,
    sleep: Annotated[
        bool, typer.Option("--sleep", help="Can give its GPU memory back (vllm.enable_sleep_mode).")
    ] = False,
    gpu: Gpus = None,
    log_dir: Annotated[Path, typer.Option(help="Folder of the logs and of servers.json.")] = Path("runs/serve"),
    weight_transfer_dir: Annotated[
        Path | None, typer.Option(help="Where weights pass (vllm.weight_transfer_dir). Default: shared memory.")
    ] = None,
    start_timeout: StartTimeout = None,
    config: Recipe = None,
    overrides: Overrides = None,
    as_json: Json = False,
) -> None:
    """Start vLLM servers for `rollout.backend=vllm` with `vllm.mode=server`, and keep them running until a signal."""
    from skill_ttrl.llm.vllm.servers.supervise import STATE_FILE, Patience, Supervisor
    from skill_ttrl.stages.serve import keyed, plan, serving_of

    serving = serving_of(
        model,
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
        gpu_memory_utilization=gpu_memory,
        lora=lora,
        sleep=sleep or None,
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
        self._told = False

    def __enter__(self) -> ServeView:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, watched: Sequence[Watched]) -> None:
        """Draw their state; say once when all are ready how they are used."""
        self._watched = watched
        if self._live is not None:
            self._live.refresh()
        else:
            for each in watched:
                if self._phases.get(each.job.address) != each.phase:
                    say(f"{each.job.address}: {each.phase}", screen=self._console)
                self._phases[each.job.address] = each.phase
        if not self._told and all(each.phase == "ready" for each in watched):
            self._told = True
            if self._as_json:
                print_json({"servers": [each.as_json() for each in watched], "state": str(self._state)})
                sys.stdout.flush()  # who reads it waits for it; this process stays
            addresses = ",".join(each.job.address for each in watched)
            say(
                "Ready. Use them from another terminal with: --set rollout.backend=vllm --set vllm.mode=server "
                f"--set 'vllm.servers=[{addresses}]'. Ctrl-C ends them.{_about_key(watched)}",
                screen=self._console,
            )

    def notice(self, text: str) -> None:
        """Say something above the table."""
        say(text, screen=self._console, style="yellow")


def _about_key(watched: Sequence[Watched]) -> str:
    """Where other clients find the key; nothing where it is in the environment, as the user knows."""
    from skill_ttrl.llm.server_key import given_key, key_file

    if given_key():
        return ""
    first = key_file(urlsplit(watched[0].job.address).port or 0)
    return f" They ask for a key, which Skill-TTRL finds by itself; for other clients it is in {first}."


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

"""`skillttrl envs serve`: an environment over HTTP."""

from __future__ import annotations

import json
import os
import signal
import sys
from types import FrameType
from typing import Annotated

import typer
from rich.console import Console

from skill_ttrl.cli.display.output import prints_aside, say
from skill_ttrl.cli.display.views import RunView
from skill_ttrl.cli.options import ENV_RULE, EnvData, set_option
from skill_ttrl.errors import ConfigError
from skill_ttrl.signals import Interrupted

PORTS = {"webshop": 3001, "SkillTTRL/WebShop-v0": 3001, "alfworld": 3000, "SkillTTRL/ALFWorld-v0": 3000}
"""Default ports: those at which the clients of SkillRL in Rust look for these environments."""
OTHER_PORT = 3000
MIN_TOKEN = 16
"""Fewest characters of a token."""

Env = Annotated[str, typer.Argument(metavar="ENV", help=f"Environment: {ENV_RULE}.")]
Port = Annotated[
    int | None,
    typer.Option(min=0, max=65535, help="Port to listen on; 0: any free one. Default: 3001 for `webshop`, else 3000."),
]
Host = Annotated[
    str, typer.Option(help="Address to listen on. Any address but localhost needs a token in $SKILLTTRL_ENV_TOKEN.")
]
SessionTimeout = Annotated[
    float, typer.Option("--session-timeout", min=0.1, help="Seconds without a request after which a session ends.")
]
MaxSessions = Annotated[int, typer.Option("--max-sessions", min=1, max=900, help="Sessions at once; more must wait.")]
Overrides = Annotated[list[str] | None, set_option("Set an argument of the environment, e.g. env.kwargs.max_steps=20.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one line of JSON on stdout, and nothing else there.")]


def serve(
    env: Env,
    env_data: EnvData = None,
    overrides: Overrides = None,
    port: Port = None,
    host: Host = "127.0.0.1",
    session_timeout: SessionTimeout = 600.0,
    max_sessions: MaxSessions = 256,
    as_json: AsJson = False,
) -> None:
    """Serve an environment over HTTP, until Ctrl-C: other machines and processes play in it with `--set env.kwargs.url=http://HOST:PORT`.

    Example: `skillttrl envs serve alfworld --env-data generated`
    """
    from skill_ttrl.cli.collect import environment_arguments
    from skill_ttrl.envs import prepare_env
    from skill_ttrl.envs.remote.server import EnvServer, Service
    from skill_ttrl.progress import OPENING, Counting

    def leave(signum: int, frame: FrameType | None) -> None:
        raise Interrupted("The environment is closed.", signum)

    port, token = PORTS.get(env, OTHER_PORT) if port is None else port, find_token(host)
    kwargs = environment_arguments(overrides or [], env_data)
    with prints_aside(), RunView(Console(stderr=True), f"serve {env}", transient=True) as view:
        prepare_env(env, kwargs, Counting(view, OPENING, "item"))
        service = Service(env, kwargs, session_timeout=session_timeout, max_sessions=max_sessions)
    try:
        with EnvServer(service, host, port, token) as server:
            for signum in (signal.SIGINT, signal.SIGTERM):
                signal.signal(signum, leave)
            reached = f"http://HOST:{server.server_address[1]}" if host in ("0.0.0.0", "::") else server.address
            served = {"address": server.address, "env": service.description.env, "token": token is not None}
            if as_json:
                print(json.dumps(served))
            else:
                say(
                    f"{service.description.env} is served at {server.address} ({'with a token' if token else 'this machine only'}). Ctrl-C "
                    f"closes it. Play there: --env {env} --set env.kwargs.url={reached}"
                )
            sys.stdout.flush()
            with prints_aside():
                server.serve_forever()
    except Interrupted as leaving:
        Console(stderr=True).print(str(leaving))
        raise typer.Exit(leaving.exit_code) from None
    finally:
        service.close()


def find_token(host: str) -> str | None:
    """Return the token that clients must send, from the environment variable `TOKEN_ENV`; None: none is needed.

    Raises:
        ConfigError: the token is too short, or other machines would need none.
    """
    from skill_ttrl.envs.remote.env import TOKEN_ENV
    from skill_ttrl.llm.server_key import is_localhost

    token = os.environ.get(TOKEN_ENV, "").strip()
    set_it = f"Set one here and where the agents run: export {TOKEN_ENV}=$(openssl rand -hex 32)"
    if token and (len(token) < MIN_TOKEN or not token.isascii()):
        raise ConfigError(f"The token in ${TOKEN_ENV} must be ASCII text of at least {MIN_TOKEN} characters. {set_it}")
    if not token and not is_localhost(host):
        raise ConfigError(f"--host {host[:60]} accepts other machines, which needs a token. {set_it}")
    return token or None

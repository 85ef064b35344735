"""`skillttrl envs`: list the environments, play in one, serve one over HTTP."""

from __future__ import annotations

import contextlib
import io
import json
import os
import secrets
import signal
import sys
import time
from collections.abc import Mapping
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from skill_ttrl.cli import options
from skill_ttrl.cli.collect import environment_arguments
from skill_ttrl.cli.display import RunView, prints_aside, say, show, text_table
from skill_ttrl.errors import ConfigError
from skill_ttrl.sanitize import escape_json
from skill_ttrl.signals import Interrupted

if TYPE_CHECKING:
    from skill_ttrl.commands.play import Scene


class Person:
    """Reads actions from the terminal or a pipe: a `ScriptedAgent`."""

    def __init__(self, screen: Console) -> None:
        self._screen = screen
        self._prompt = "" if screen.stderr else "> "

    def start(self, observation: str, info: Mapping[str, Any], seed: int) -> None:
        """Say how to play."""
        if isinstance(sys.stdin, io.TextIOWrapper):
            sys.stdin.reconfigure(errors="replace")  # an episode must be text
        say("Type an action or its number; ? lists the possible actions, quit or Ctrl-D exits.", screen=self._screen)

    def act(self, observation: str, info: Mapping[str, Any]) -> str:
        """Read an action; raises `Stopped` when the user leaves or the input ends."""
        from skill_ttrl.rollout.episode import Stopped, admissible_actions

        listed = admissible_actions(info)
        while True:
            try:
                word = input(self._prompt).strip()
            except (EOFError, RuntimeError):  # the end of the input, or no input at all
                raise Stopped from None
            except KeyboardInterrupt:
                raise Interrupted("Left.", signal.SIGINT) from None
            if word == "quit":
                raise Stopped
            if word == "?":
                say(*(f"{number:>3} {action}" for number, action in enumerate(listed, 1)), screen=self._screen)
            elif word.isdecimal() and 1 <= int(word[:9]) <= len(listed):
                return listed[int(word) - 1]
            elif word:
                return word


def play(
    env: Annotated[str, typer.Argument(metavar="ENV", help=f"Environment: {options.ENV_RULE}.")],
    task: Annotated[
        str | None, typer.Option("--task", metavar="ID", help="Task to play: its id, or a part that no other id has.")
    ] = None,
    split: Annotated[str | None, typer.Option(help="Split to draw the task from.")] = None,
    env_data: options.EnvData = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of the task and the episode. Default: random.")] = None,
    overrides: Annotated[
        list[str] | None, options.set_option("Set env.kwargs.NAME, or with a model any key of its config.")
    ] = None,
    policy: Annotated[
        str | None,
        options.policy_option(f"Watch this policy play: {options.POLICIES}; or {options.SCRIPTED}. Default: you play."),
    ] = None,
    no_skills: options.NoSkills = False,
    delay: Annotated[float, typer.Option(min=0.0, help="Seconds to wait before each step of a policy.")] = 0.0,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the trajectory as JSON instead of the episode.")
    ] = False,
) -> None:
    """Play an episode by typing actions, or watch a policy play one.

    Example: `skillttrl envs play alfworld --env-data generated --policy expert`
    """
    from skill_ttrl.agents.scripted import find_scripted_agent
    from skill_ttrl.commands import play as command
    from skill_ttrl.envs import resolve_env
    from skill_ttrl.envs.lookup import find_task
    from skill_ttrl.types import to_json

    env_id, given = resolve_env(env), list(overrides or [])
    screen = Console(stderr=as_json)
    agent = Person(screen) if policy is None else find_scripted_agent(policy, env_id)
    model = None if agent or policy is None else command.find_policy(policy, env_id, given, use_bank=not no_skills)
    if model is None:
        options.refuse({"--no-skills": no_skills}, "needs a model; name one with --policy, or leave it out")
        kwargs = environment_arguments(given, env_data)
    else:
        kwargs = model.config.env.kwargs | ({} if env_data is None else {"data": env_data})

    def watch(scene: Scene) -> None:
        if scene.action is None:
            limit = "no limit" if scene.limit is None else f"at most {scene.limit}"
            say(f"{chosen.env_id}: {chosen.id}. Steps: {limit}.", screen=screen, style="bold")
        else:
            say(
                f"[{scene.step}{f'/{scene.limit}' if scene.limit else ''}] > {scene.action}",
                screen=screen,
                style="bold",
            )
        say(scene.observation, screen=screen)
        time.sleep(0 if scene.over else delay)

    drawn = secrets.randbelow(2**31) if seed is None else seed
    with RunView(Console(stderr=True), f"play {env}", transient=True) as view:
        game = command.open_env(env_id, kwargs, split, view, name=task)
    with contextlib.closing(game):
        chosen = find_task(game, env_id, name=task, split=split, seed=drawn)
        player = agent or model
        assert player is not None
        played = command.play(game, chosen, player, seed=drawn, watch=watch, use_bank=not no_skills)
    if as_json:
        print(escape_json(to_json(played)))
    command.refuse_error(played)
    ended = {"terminated": "ended", "truncated": "ended at a limit", "max_turns": "left"}[played.stop_reason]
    won = {None: "", True: ", won", False: ", not won"}[played.won]
    steps = len(played.steps)
    say(f"Episode {ended} after {steps} step{'s' * (steps != 1)}{won}, reward {played.env_return:g}.", screen=screen)


PORTS = {"webshop": 3001, "SkillTTRL/WebShop-v0": 3001, "alfworld": 3000, "SkillTTRL/ALFWorld-v0": 3000}
"""Default ports: those at which the clients of SkillRL in Rust look for these environments."""
OTHER_PORT = 3000
MIN_TOKEN = 16
"""Fewest characters of a token."""

Env = Annotated[str, typer.Argument(metavar="ENV", help=f"Environment: {options.ENV_RULE}.")]
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
Overrides = Annotated[
    list[str] | None, options.set_option("Set an argument of the environment, e.g. env.kwargs.max_steps=20.")
]
OneLine = Annotated[bool, typer.Option("--json", help="Print one line of JSON on stdout, and nothing else there.")]


def serve(
    env: Env,
    env_data: options.EnvData = None,
    overrides: Overrides = None,
    port: Port = None,
    host: Host = "127.0.0.1",
    session_timeout: SessionTimeout = 600.0,
    max_sessions: MaxSessions = 256,
    as_json: OneLine = False,
) -> None:
    """Serve an environment over HTTP, until Ctrl-C: other machines and processes play in it with `--set env.kwargs.url=http://HOST:PORT`.

    Example: `skillttrl envs serve alfworld --env-data generated`
    """
    from skill_ttrl.envs import prepare_env
    from skill_ttrl.envs.remote.server import EnvServer
    from skill_ttrl.progress import OPENING, Counting

    def leave(signum: int, frame: FrameType | None) -> None:
        raise Interrupted("The environment is closed.", signum)

    port, token = PORTS.get(env, OTHER_PORT) if port is None else port, find_token(host)
    kwargs = environment_arguments(overrides or [], env_data)
    with RunView(Console(stderr=True), f"serve {env}", transient=True) as view:
        prepare_env(env, kwargs, Counting(view, OPENING, "item"))
        server = EnvServer(env, kwargs, host, port, token, session_timeout=session_timeout, max_sessions=max_sessions)
    with server:
        for signum in (signal.SIGINT, signal.SIGTERM):
            signal.signal(signum, leave)
        served = server.description.env
        if as_json:
            print(json.dumps({"address": server.address, "env": served, "token": token is not None}))
        else:
            reached = f"http://HOST:{server.server_port}" if host in ("0.0.0.0", "::") else server.address
            say(
                f"{served} is served at {server.address} ({'with a token' if token else 'this machine only'}). Ctrl-C "
                f"closes it. Play there: --env {env} --set env.kwargs.url={reached}"
            )
        sys.stdout.flush()
        with prints_aside():
            server.serve_forever()


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


envs_app = typer.Typer(rich_markup_mode="markdown")


@envs_app.callback(invoke_without_command=True)
def envs(context: typer.Context, as_json: options.AsJson = False) -> None:
    """List the environments that `--env` and `env.id` can name, or play in one.

    Example: `skillttrl envs`
    """
    if context.invoked_subcommand is not None:
        if as_json:
            raise ConfigError(
                f"--json comes after the command: skillttrl envs {context.invoked_subcommand} ... --json."
            )
        return
    _list(as_json)


def _list(as_json: bool) -> None:
    from skill_ttrl.envs import list_envs

    found = list_envs()
    rows = [(info.short_name, info.id, info.description) for info in found]
    lines = [f"{info.short_name} needs an extra: {info.install}" for info in found if info.install]
    play_or_write = "Play in it: skillttrl envs play math. Write one of your own: skillttrl init my_env"
    lines.append(f"Name one by {options.ENV_RULE}. {play_or_write}")
    show(found, as_json, lambda _: text_table("Environments", ("short name", "id", "description"), rows), lines)


@envs_app.command("list")
def list_command(as_json: options.AsJson = False) -> None:
    """List the environments that `--env` and `env.id` can name, and how to install what one lacks.

    Example: `skillttrl envs list --json`
    """
    _list(as_json)


envs_app.command()(play)


envs_app.command()(serve)

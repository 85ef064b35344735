"""`skillttrl envs play`: one episode in the terminal, played by you, a scripted agent or a model."""

from __future__ import annotations

import contextlib
import io
import secrets
import signal
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from skill_ttrl.cli.collect import environment_arguments
from skill_ttrl.cli.display.output import say
from skill_ttrl.cli.display.views import RunView
from skill_ttrl.cli.options import ENV_RULE, POLICIES, SCRIPTED, EnvData, NoSkills, policy_option, refuse, set_option
from skill_ttrl.sanitize import escape_json
from skill_ttrl.signals import Interrupted

if TYPE_CHECKING:
    from skill_ttrl.stages.targets.play import Scene


class Person:
    """Reads actions from the terminal or a pipe: a `ScriptedAgent`."""

    def __init__(self, screen: Console) -> None:
        self._screen = screen
        self._prompt = "" if screen.stderr else "> "

    def start(self, observation: str, info: Mapping[str, Any], seed: int) -> None:
        """See `ScriptedAgent.start`."""
        if isinstance(sys.stdin, io.TextIOWrapper):
            sys.stdin.reconfigure(errors="replace")  # an episode must be text
        say(
            "Type an action or its number; ? lists the possible actions, quit or Ctrl-D exits.",
            screen=self._screen,
        )

    def act(self, observation: str, info: Mapping[str, Any]) -> str:
        """See `ScriptedAgent.act`; raises `Stopped` when the user leaves or the input ends."""
        from skill_ttrl.rollout.episode import Stopped
        from skill_ttrl.rollout.info import admissible_actions

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
    env: Annotated[str, typer.Argument(metavar="ENV", help=f"Environment: {ENV_RULE}.")],
    task: Annotated[
        str | None, typer.Option("--task", metavar="ID", help="Task to play: its id, or a part that no other id has.")
    ] = None,
    split: Annotated[str | None, typer.Option(help="Split to draw the task from.")] = None,
    env_data: EnvData = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of the task and the episode. Default: random.")] = None,
    overrides: Annotated[
        list[str] | None, set_option("Set env.kwargs.NAME, or with a model any key of its config.")
    ] = None,
    policy: Annotated[
        str | None, policy_option(f"Watch this policy play: {POLICIES}; or {SCRIPTED}. Default: you play.")
    ] = None,
    no_skills: NoSkills = False,
    delay: Annotated[float, typer.Option(min=0.0, help="Seconds to wait before each step of a policy.")] = 0.0,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the trajectory as JSON instead of the episode.")
    ] = False,
) -> None:
    """Play an episode by typing actions, or watch a policy play one.

    Example: `skillttrl envs play alfworld --env-data generated --policy expert`
    """
    from skill_ttrl.agents.scripted import find_scripted_agent
    from skill_ttrl.envs import resolve_env
    from skill_ttrl.envs.tasks import find_task
    from skill_ttrl.stages.targets import play as stage
    from skill_ttrl.types import to_json

    env_id, given = resolve_env(env), list(overrides or [])
    screen = Console(stderr=as_json)
    agent = Person(screen) if policy is None else find_scripted_agent(policy, env_id)
    model = None if agent or policy is None else stage.find_policy(policy, env_id, given, use_bank=not no_skills)
    if model is None:
        refuse({"--no-skills": no_skills}, "needs a model; name one with --policy, or leave it out")
        kwargs = environment_arguments(given, env_data)
    else:
        kwargs = model.config.env.kwargs | ({} if env_data is None else {"data": env_data})

    def show(scene: Scene) -> None:
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
        game = stage.open_env(env_id, kwargs, split, view, name=task)
    with contextlib.closing(game):
        chosen = find_task(game, env_id, name=task, split=split, seed=drawn)
        player = agent or model
        assert player is not None
        played = stage.play(game, chosen, player, seed=drawn, watch=show, use_bank=not no_skills)
    if as_json:
        print(escape_json(to_json(played)))
    stage.refuse_error(played)
    ended = {"terminated": "ended", "truncated": "ended at a limit", "max_turns": "left"}[played.stop_reason]
    won = {None: "", True: ", won", False: ", not won"}[played.won]
    steps = len(played.steps)
    say(f"Episode {ended} after {steps} step{'s' * (steps != 1)}{won}, reward {played.env_return:g}.", screen=screen)

"""`skillttrl envs play`: one episode in the terminal, played by you, a scripted agent or a model."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from skill_ttrl.cli.display.views import RunView
from skill_ttrl.cli.games.screen import Keyboard, Screen, completion
from skill_ttrl.cli.games.shop_screen import Shopper, ShopScreen
from skill_ttrl.cli.options import (
    ENV_RULE,
    POLICIES,
    SCRIPTED,
    EnvData,
    NoSkills,
    config_option,
    policy_option,
    refuse,
    set_option,
    words,
)
from skill_ttrl.errors import ConfigError

if TYPE_CHECKING:
    from skill_ttrl.stages.collecting.watch import TextEnvironment
    from skill_ttrl.types import Trajectory

INTERRUPTED = 130
"""Exit code after Ctrl-C: 128 plus the signal's number."""
SEATS: Mapping[str, tuple[type[Keyboard], type[Screen]]] = {"SkillTTRL/WebShop-v0": (Shopper, ShopScreen)}
"""Environment id → how it is typed and shown, where not as every other."""

Env = Annotated[str, typer.Argument(metavar="ENV", help=f"Environment: {ENV_RULE}.")]
TaskId = Annotated[
    str | None,
    typer.Option("--task", metavar="ID", help="Play this task: its id, or a part that no other id contains."),
]
Split = Annotated[str | None, typer.Option(help="Split to draw the task from. Default: the environment's.")]
Types = Annotated[
    list[str] | None, typer.Option(help="Task types to draw from, separated by commas or repeated. Default: all.")
]
Engine = Annotated[str | None, typer.Option(help="ALFWorld: `fast` or `official`. Short for env.kwargs.engine.")]
Seed = Annotated[
    int | None, typer.Option(min=0, help="Seed of the task and of every random event. Default: a new one each time.")
]
Overrides = Annotated[
    list[str] | None,
    set_option(
        "Set an argument of the environment, e.g. env.kwargs.max_steps=20, or with a model any key of its config."
    ),
]
Walkthrough = Annotated[
    bool,
    typer.Option(
        "--walkthrough", help="Watch the walkthrough that comes with the game. Short for --policy walkthrough."
    ),
]
Policy = Annotated[str | None, policy_option(f"Watch this policy play: {POLICIES}; or {SCRIPTED}. Default: you play.")]
Config = Annotated[str | None, config_option("Chat template and lengths of a plain model.")]
Structured = Annotated[
    bool,
    typer.Option("--structured-outputs", help="Model: restrict its output to the listed actions, if the backend can."),
]
Temperature = Annotated[float, typer.Option(min=0.0, help="Model: sampling temperature; 0 is greedy.")]
Delay = Annotated[float, typer.Option(min=0.0, help="Seconds to wait before each step of a policy.")]
AsJson = Annotated[
    bool,
    typer.Option("--json", help="Print the trajectory as one JSON object on stdout, and the game on stderr."),
]


def _refuse_for_scripted(of_model: Mapping[str, object], settings: Sequence[str]) -> None:
    """Refuse options of a model, and settings other than those of the environment."""
    others = {f"--set {each}": each for each in settings if not each.startswith("env.kwargs")}
    refuse({**of_model, **others}, "needs a model; name one with --policy, or leave it out")


def play(
    env: Env,
    task: TaskId = None,
    split: Split = None,
    types: Types = None,
    env_data: EnvData = None,
    engine: Engine = None,
    seed: Seed = None,
    overrides: Overrides = None,
    walkthrough: Walkthrough = False,
    policy: Policy = None,
    config: Config = None,
    structured_outputs: Structured = False,
    temperature: Temperature = 0.0,
    no_skills: NoSkills = False,
    delay: Delay = 0.0,
    as_json: AsJson = False,
) -> None:
    """Play an episode by typing actions, or watch a policy play one.

    `?` lists the possible actions, a number picks one from that list, Tab completes, `quit` or Ctrl-D leaves. Without a terminal the
    actions are read from stdin, one per line.

    Example: `skillttrl envs play alfworld --env-data generated --policy expert`
    """
    from skill_ttrl.envs import resolve_env
    from skill_ttrl.envs.tasks import find_task
    from skill_ttrl.stages.collecting import watch as stage

    if walkthrough and policy is not None:
        raise ConfigError("--walkthrough and --policy each name a policy to watch: give one of them.")
    name, console = "walkthrough" if walkthrough else policy, Console(stderr=as_json)
    keyboard, screen = _seat(env, console, by_hand=name is None, delay=delay)
    with _leaving(screen):
        env_id, given = resolve_env(env), list(overrides or [])
        scripted = keyboard or stage.find_scripted_agent(name or "", env_id)
        model = None
        if scripted is None:
            from skill_ttrl.stages.targets.play import find_policy, play_policy

            settings = [*given, *(["agent.structured_actions=true"] if structured_outputs else [])]
            model = find_policy(name or "", env_id, settings, config=config, use_bank=not no_skills)
        else:
            heat = temperature or None
            of_model = {"--config": config, "--structured-outputs": structured_outputs, "--no-skills": no_skills}
            _refuse_for_scripted({**of_model, "--temperature": heat}, given)
        kwargs = dict(model.config.env.kwargs if model is not None else stage.env_kwargs(given, env_id))
        kwargs |= {key: value for key, value in (("data", env_data), ("engine", engine)) if value is not None}
        drawn = secrets.randbelow(2**31) if seed is None else seed
        with contextlib.closing(_open(env, env_id, kwargs, split, task)) as game, completion(keyboard):
            screen.task = find_task(game, env_id, name=task, split=split, types=words(types), seed=drawn)
            if model is not None:
                played = play_policy(
                    game, screen.task, model, seed=drawn, watch=screen, temperature=temperature, use_bank=not no_skills
                )
            elif scripted is not None:
                played = stage.play(game, screen.task, scripted, seed=drawn, watch=screen)
    _show(played, screen, model.config.data.max_prompt_tokens if model is not None else None, as_json)


def _show(played: Trajectory, screen: Screen, max_prompt_tokens: int | None, as_json: bool) -> None:
    """Print the end of an episode, and with `as_json` its trajectory; raises what went wrong in it."""
    from skill_ttrl.sanitize import escape_json
    from skill_ttrl.stages.collecting.watch import refuse_error
    from skill_ttrl.types import to_json

    if as_json:
        print(escape_json(to_json(played)))
    refuse_error(played)
    screen.end(played, max_prompt_tokens)


def _seat(env: str, console: Console, *, by_hand: bool, delay: float) -> tuple[Keyboard | None, Screen]:
    """Return the keyboard, None where a policy plays, and the screen: those of the environment where it has its own."""
    from skill_ttrl.envs.lookup import SHORT_NAMES

    person, view_of = SEATS.get(SHORT_NAMES.get(env, env), (Keyboard, Screen))
    keyboard = person(console, edits_lines=not console.stderr) if by_hand else None
    return keyboard, view_of(console, keyboard, delay)


def _open(env: str, env_id: str, kwargs: Mapping[str, Any], split: str | None, task: str | None) -> TextEnvironment:
    """Open the environment, with a progress bar where that takes long."""
    from skill_ttrl.stages.collecting.watch import open_env

    with RunView(Console(stderr=True), f"play {env}", loop=False, waits=True) as view:
        return open_env(env_id, kwargs, split, view, name=task)


@contextlib.contextmanager
def _leaving(screen: Screen) -> Iterator[None]:
    """End a game that Ctrl-C interrupts with a message and its exit code."""
    try:
        yield
    except KeyboardInterrupt:
        screen.leave()
        raise typer.Exit(INTERRUPTED) from None

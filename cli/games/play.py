"""`skillttrl envs play`: one episode in the terminal, played by the person at the keyboard, a player or a policy."""

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
from skill_ttrl.cli.options import GameData, recipe_option, refuse, set_option, words
from skill_ttrl.errors import ConfigError

if TYPE_CHECKING:
    from skill_ttrl.stages.collecting.watch import TextEnvironment

INTERRUPTED = 130
"""Exit code after Ctrl-C: 128 plus the signal's number."""
SEATS: Mapping[str, tuple[type[Keyboard], type[Screen]]] = {"SkillTTRL/WebShop-v0": (Shopper, ShopScreen)}
"""Environment id → how it is typed and shown, where not as every other."""

Env = Annotated[
    str,
    typer.Argument(
        metavar="ENV", help="Short name (`alfworld`, `webshop`, `math`), Gymnasium id, or `module:EnvId-v0`."
    ),
]
TaskId = Annotated[
    str | None, typer.Option("--task", metavar="ID", help="Play this task: its id, or a part that no other id has.")
]
Split = Annotated[str | None, typer.Option(help="Draw from this split. Default: the environment's own.")]
Types = Annotated[
    list[str] | None, typer.Option(help="Draw from these types of task only; several with commas, or given again.")
]
Engine = Annotated[str | None, typer.Option(help="Of ALFWorld: `fast` or `official`. Short for env.kwargs.engine.")]
Seed = Annotated[
    int | None, typer.Option(min=0, help="Draws the task, and what happens by chance. Default: another each time.")
]
Overrides = Annotated[
    list[str] | None,
    set_option("An argument of the environment (env.kwargs.max_steps=20), or any key of a policy."),
]
Expert = Annotated[bool, typer.Option("--expert", help="Watch the walkthrough that comes with the game.")]
Agent = Annotated[
    str | None,
    typer.Option(
        metavar="WHO",
        help="Watch this one: `expert`, `random`, another of the environment's own (`rule` of `webshop`), `module:attribute`; or "
        "a policy: a run, a checkpoint, a model, `openai:MODEL`.",
    ),
]
Recipe = Annotated[str | None, recipe_option("Template and lengths for a plain model.")]
Constrain = Annotated[
    bool, typer.Option("--constrain", help="A policy can write nothing but a listed action, where its backend can.")
]
Temperature = Annotated[float, typer.Option(min=0.0, help="Of a policy; 0 is greedy.")]
NoBank = Annotated[bool, typer.Option("--no-bank", help="A run plays without its skill bank.")]
Delay = Annotated[float, typer.Option(min=0.0, help="Seconds to wait before each step of an agent.")]
AsJson = Annotated[
    bool,
    typer.Option(
        "--json", help="Print the trajectory as one JSON object on stdout, nothing else; the game goes to stderr."
    ),
]


def _refuse_for_player(of_policy: Mapping[str, object], settings: Sequence[str]) -> None:
    """Refuse options of a policy, and settings but those of the environment, where a player without a model plays."""
    others = {f"--set {each}": each for each in settings if not each.startswith("env.kwargs")}
    refuse({**of_policy, **others}, "is for a policy; give one as --agent, or leave it out")


def play(
    env: Env,
    task: TaskId = None,
    split: Split = None,
    types: Types = None,
    data: GameData = None,
    engine: Engine = None,
    seed: Seed = None,
    overrides: Overrides = None,
    expert: Expert = False,
    agent: Agent = None,
    config: Recipe = None,
    constrain: Constrain = False,
    temperature: Temperature = 0.0,
    no_bank: NoBank = False,
    delay: Delay = 0.0,
    as_json: AsJson = False,
) -> None:
    """Play a game by typing actions, or watch the walkthrough, an agent or a policy play it.

    `?` lists what can be done, a number picks from that list, Tab completes, `quit` or Ctrl-D leaves. Without a terminal the
    actions are the lines of stdin.
    """
    from skill_ttrl.envs import resolve_env
    from skill_ttrl.envs.tasks import find_task
    from skill_ttrl.stages.collecting import watch as stage
    from skill_ttrl.types import to_json

    if expert and agent is not None:
        raise ConfigError("--expert watches the walkthrough, --agent somebody else: give one of them.")
    name, console = "walkthrough" if expert else agent, Console(stderr=as_json)
    keyboard, screen = _seat(env, console, by_hand=name is None, delay=delay)
    with _leaving(screen):
        env_id, given = resolve_env(env), list(overrides or [])
        player = keyboard or stage.find_player(name or "", env_id)
        policy = None
        if player is None:
            from skill_ttrl.stages.targets.play import find_policy, play_policy

            settings = [*given, *(["agent.structured_actions=true"] if constrain else [])]
            policy = find_policy(name or "", env_id, settings, config=config, use_bank=not no_bank)
        else:
            heat = temperature or None
            of_policy = {"--config": config, "--constrain": constrain, "--no-bank": no_bank, "--temperature": heat}
            _refuse_for_player(of_policy, given)
        kwargs = dict(policy.config.env.kwargs if policy is not None else stage.env_kwargs(given, env_id))
        kwargs |= {key: value for key, value in (("data", data), ("engine", engine)) if value is not None}
        drawn = secrets.randbelow(2**31) if seed is None else seed
        with contextlib.closing(_open(env, env_id, kwargs, split, task)) as game, completion(keyboard):
            screen.task = find_task(game, env_id, name=task, split=split, types=words(types), seed=drawn)
            if policy is not None:
                played = play_policy(
                    game, screen.task, policy, seed=drawn, watch=screen, temperature=temperature, use_bank=not no_bank
                )
            elif player is not None:
                played = stage.play(game, screen.task, player, seed=drawn, watch=screen)
    if as_json:
        print(to_json(played))
    stage.refuse_error(played)
    screen.end(played, policy.config.data.max_prompt_tokens if policy is not None else None)


def _seat(env: str, console: Console, *, by_hand: bool, delay: float) -> tuple[Keyboard | None, Screen]:
    """The person at the keyboard, None where somebody else plays, and the screen: those of the environment where it has some."""
    from skill_ttrl.envs.lookup import SHORT_NAMES

    person, view_of = SEATS.get(SHORT_NAMES.get(env, env), (Keyboard, Screen))
    keyboard = person(console, edits_lines=not console.stderr) if by_hand else None
    return keyboard, view_of(console, keyboard, delay)


def _open(env: str, env_id: str, kwargs: Mapping[str, Any], split: str | None, task: str | None) -> TextEnvironment:
    """Open the environment, and show how far it is where that takes long."""
    from skill_ttrl.stages.collecting.watch import open_env

    with RunView(Console(stderr=True), f"play {env}", loop=False, waits=True) as view:
        return open_env(env_id, kwargs, split, view, name=task)


@contextlib.contextmanager
def _leaving(screen: Screen) -> Iterator[None]:
    """End a game that Ctrl-C stops, with a word and its exit code."""
    try:
        yield
    except KeyboardInterrupt:
        screen.leave()
        raise typer.Exit(INTERRUPTED) from None

"""A text game in the terminal: the screen, and the person who types."""

from __future__ import annotations

import contextlib
import io
import sys
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from rich.columns import Columns
from rich.console import Console
from rich.text import Text

from skill_ttrl.sanitize import escape_terminal

if TYPE_CHECKING:
    from skill_ttrl.stages.collecting.watch import Scene
    from skill_ttrl.types import Task, Trajectory


class Keyboard:
    """The person at the terminal, or the lines of a pipe: a `ScriptedAgent`.

    Args:
        console: where the prompt is shown.
        edits_lines: whether stdout is free for the prompt, so that readline can complete.
    """

    greeting = ""
    """Text shown at a terminal before the first action; empty: the text for any environment."""
    lists_at_start = True
    """True if the possible actions are listed before the first action."""

    def __init__(self, console: Console, *, edits_lines: bool) -> None:
        self._console = console
        if isinstance(sys.stdin, io.TextIOWrapper):
            sys.stdin.reconfigure(errors="replace")  # what is no text is no command either, and an episode must be text
        self.at_terminal = sys.stdin is not None and sys.stdin.isatty()
        self.edits_lines = edits_lines and self.at_terminal and sys.stdout.isatty()
        self.prompt = ""
        """Text printed before the next action."""
        self.listed: dict[str, str] = {}
        """The actions that are possible now, by how they are shown."""

    def start(self, observation: str, info: Mapping[str, Any], seed: int) -> None:
        """See `ScriptedAgent.start`."""
        if self.at_terminal:
            lists = "? lists what can be done, a number picks from the list, " if _listed(info) else ""
            said = self.greeting or f"Type an action. {lists}quit leaves."
            self._console.print(said, style="dim", markup=False, highlight=False)
        self.listed = _listed(info)
        if self.lists_at_start:
            self.show_list()

    def act(self, observation: str, info: Mapping[str, Any]) -> str:
        """The next line that is an action.

        Raises:
            Stopped: the user leaves, or stdin ends.
        """
        from skill_ttrl.stages.collecting.watch import Stopped

        self.listed = _listed(info)
        while (line := self._read()) is not None:
            word = line.strip()
            if word in self.listed:
                line = self.listed[word]
            elif word == "quit":
                break
            elif word == "?":
                self.show_list()
                continue
            elif self.listed and word.isdecimal():
                if not 1 <= int(word[:9]) <= len(self.listed):
                    self.tell(f"The list goes from 1 to {len(self.listed)}.")
                    continue
                line = list(self.listed.values())[int(word) - 1]
            if word and (action := self.understand(line, info)) is not None:
                return action
        raise Stopped

    def understand(self, line: str, info: Mapping[str, Any]) -> str | None:
        """The action that a line means, as it is here; None where it means none, which is said."""
        return line

    def completions(self) -> list[str]:
        """Return the completions of a line: the possible actions, as they are shown."""
        return list(self.listed)

    def tell(self, text: str) -> None:
        """Say something that is no part of the game."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=not self._console.is_terminal)

    def show_list(self) -> None:
        """The possible actions with their numbers; in columns where there is a screen."""
        rows = [Text(f"{number:>3} {shown}") for number, shown in enumerate(self.listed, 1)]
        if not rows:
            return
        if self._console.is_terminal:
            self._console.print(Columns(rows, column_first=True, padding=(0, 2)), style="dim")
        else:
            for row in rows:
                self._console.print(row, soft_wrap=True)

    def _read(self) -> str | None:
        """A line without its end; None where there are no more."""
        if sys.stdin is None:
            return None
        if self.edits_lines:
            try:
                return input(self.prompt)
            except EOFError:
                self._console.print()
                return None
        if self.at_terminal:
            self._console.print(self.prompt, end="", markup=False, highlight=False)
        line = sys.stdin.readline()
        return line.rstrip("\r\n") if line else None


class Screen:
    """Shows every scene of an episode as it comes.

    Args:
        console: where.
        keyboard: whose prompt is set to the step; None: somebody else plays.
        delay: seconds before each step of somebody else.
    """

    tells_task = True
    """True if the task is stated in words before the first scene."""

    def __init__(self, console: Console, keyboard: Keyboard | None, delay: float) -> None:
        self._console, self._keyboard, self._delay = console, keyboard, delay
        self.task: Task | None = None
        self.seen: Scene | None = None

    def __call__(self, scene: Scene) -> None:
        """See `collecting.watch.Watch`."""
        self.seen = scene
        if scene.action is None:
            self._begin(scene)
        elif self._keyboard is None or not self._keyboard.at_terminal:  # else it stands there as it was typed
            self._say(f"{_label(scene.step, scene.limit)} {scene.action}", "bold")
        self.show(scene)
        if self._keyboard is not None:
            self._keyboard.prompt = f"{_label(scene.step + 1, scene.limit)} "
        elif not scene.over:
            time.sleep(self._delay)

    def show(self, scene: Scene) -> None:
        """Show a scene: the observation as it is."""
        self._say(scene.observation)

    def name_of_task(self, scene: Scene) -> str:
        """How the task is called before it is played."""
        assert self.task is not None
        return self.task.id

    def explain(self, played: Trajectory, info: Mapping[str, Any]) -> None:
        """Explain a finished episode before its last line; this class prints nothing."""

    @property
    def width(self) -> int:
        """Characters of a line; as many as one likes where there is no screen."""
        return self._console.width if self._console.is_terminal else sys.maxsize

    def leave(self) -> None:
        """After Ctrl-C."""
        steps = "" if self.seen is None else f" after {_steps(self.seen.step)}"
        self._console.print()
        self._say(f"Left{steps}.")

    def end(self, played: Trajectory, max_prompt_tokens: int | None) -> None:
        """The last line: won or not, steps, reward, where the game comes from; and why there was no further step."""
        assert self.seen is not None
        last, info = played.steps[-1] if played.steps else None, self.seen.info
        over = last is not None and (last.terminated or last.truncated)
        won = info.get("won")
        verdict = "The end" if won is None else "Won" if won else "Not won"
        source = f" ({info['source']})" if isinstance(info.get("source"), str) else ""
        self.explain(played, info)
        closing = f"{verdict if over or won else 'Left'} after {_steps(len(played.steps))}, reward {self.seen.earned:g}{source}."
        self._say(closing, "green" if won else "bold")
        if max_prompt_tokens is not None and not over:
            why = {
                "truncated": f"The conversation has grown past data.max_prompt_tokens={max_prompt_tokens}.",
                "max_turns": f"The policy plays agent.max_turns={len(played.steps)} steps.",
            }
            self._say(f"{why[played.stop_reason]} Raise it with --set.")

    def _begin(self, scene: Scene) -> None:
        assert self.task is not None
        facts = [self.task.task_type, scene.info.get("source")]
        about = ", ".join(fact for fact in facts if isinstance(fact, str) and fact)
        self._say(f"{self.task.env_id}: {self.name_of_task(scene)}" + (f" ({about})" if about else ""), "bold")
        if self.tells_task and isinstance(scene.info.get("task"), str):
            self._say(f"Task: {scene.info['task']}")
        self._say(f"Steps: {scene.limit} at most" if scene.limit is not None else "Steps: no limit")
        self._say("")

    def indented(self, text: str) -> list[Text]:
        """A text as lines that stand four characters in."""
        whole = Text(escape_terminal(text))
        lines = whole.wrap(self._console, self.width - 4) if self._console.is_terminal else [whole]
        return [Text.assemble("    ", line) for line in lines]

    def _say(self, text: str, style: str = "") -> None:
        """Text of an environment or a model: nothing in it is markup, and nothing acts on the terminal."""
        self.say(Text(escape_terminal(text), style))

    def say(self, text: Text) -> None:
        """Text in which nothing acts on the terminal any more (`escape_terminal`)."""
        wraps = self._console.is_terminal  # elsewhere a line stays one line
        self._console.print(text, soft_wrap=not wraps)


@contextlib.contextmanager
def completion(keyboard: Keyboard | None) -> Iterator[None]:
    """Tab completes what can be done now, where the terminal has line editing."""
    if keyboard is None or not keyboard.edits_lines:
        yield
        return
    try:
        import readline
    except ImportError:  # Windows, or a Python built without it: lines are typed out
        yield
        return

    def complete(text: str, state: int) -> str | None:
        found = [each for each in keyboard.completions() if each.lower().startswith(text.lower())]
        return found[state] if state < len(found) else None

    completer, delimiters = readline.get_completer(), readline.get_completer_delims()
    readline.set_completer(complete)
    readline.set_completer_delims("\n")  # an action is a whole line
    by_editline = "libedit" in (readline.__doc__ or "")
    readline.parse_and_bind("bind ^I rl_complete" if by_editline else "tab: complete")
    try:
        yield
    finally:
        readline.set_completer(completer)
        readline.set_completer_delims(delimiters)


def _listed(info: Mapping[str, Any]) -> dict[str, str]:
    from skill_ttrl.rollout.info import admissible_actions

    return {escape_terminal(action): action for action in admissible_actions(info)}


def _label(step: int, limit: int | None) -> str:
    return f"[{step}] >" if limit is None else f"[{step}/{limit}] >"


def _steps(count: int) -> str:
    return f"{count} step{'' if count == 1 else 's'}"

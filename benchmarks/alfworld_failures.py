"""Why ALFWorld games were lost: each lost game of a file of trajectories in one class, counts by class and type, examples.

    skillttrl collect --env alfworld --split valid_unseen --policy POLICY --greedy -o greedy.jsonl
    python benchmarks/alfworld_failures.py greedy.jsonl                  # counts, and one example a class
    python benchmarks/alfworld_failures.py greedy.jsonl --examples 50    # up to 50 a class, to be read

A game is judged by what its texts show, which is what the policy saw: the admissible commands, which also name what lies within reach
at the same spot, are not looked at. The class is the first that fits, in the order of `CLASSES`; what was missing at the end stands beside it.
"""

from __future__ import annotations

import argparse
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from skill_ttrl.envs.alfworld.expert import Goal, kind, read_goal
from skill_ttrl.sanitize import escape_terminal
from skill_ttrl.statistics import wilson_interval

CLASSES = {
    "failed": "the environment or the policy failed",
    "absent receptacle": "at the end it goes, again and again, to a receptacle that the room does not have",
    "wrong object": "it holds, or at the end tries to take, a thing of another kind than the task's",
    "loop": "the last commands are a few, repeated, and show nothing new",
    "never found": "a thing that the task needs was never in view, and receptacles were left that were not looked into",
    "forgot": "what it needed had been in view, and it was not there in the end",
    "step limit": "none of these: it was on its way when the steps ran out",
}
TAIL, FEW = 10, 3
"""A loop: of the last `TAIL` commands at most `FEW` differ, and none showed anything new."""

_ROOM = re.compile(r"you see (.*?)(?:\n|$)")
_THING = re.compile(r"[a-z]+ \d+")
_COMMAND = re.compile(
    r"(go to|open|close|examine|use|take|move|put|clean|heat|cool) (.+?)(?: (?:from|to|with|in/on) (.+))?"
)


@dataclass
class Play:
    """All that a game's texts have shown up to some step."""

    room: set[str]
    """Receptacles."""
    at: str = ""
    held: str = ""
    seen: dict[str, str] = field(default_factory=dict)
    """Thing → receptacle at which it was last in view, or into which it was put."""
    ever: set[str] = field(default_factory=set)
    """Things that were in view at some time."""
    looked_into: set[str] = field(default_factory=set)
    useless: int = 0
    """Commands of which nothing happened."""

    def take(self, command: str, said: str) -> bool:
        """Take note of a command and of what was said to it; True if that was new."""
        if said.strip().startswith("Nothing happens"):
            self.useless += 1
            return False
        verb, thing, place = found.groups() if (found := _COMMAND.fullmatch(command)) else ("", "", None)
        before = (len(self.ever), len(self.looked_into), self.held, tuple(sorted(self.seen.items())))
        if verb == "go to":
            self.at = thing
        if verb == "take":
            self.held = thing
            self.seen.pop(thing, None)
            self.ever.add(thing)
        elif verb in ("move", "put") and self.held == thing:
            self.held = ""
            self.seen[thing] = place or self.at
        elif verb in ("go to", "open", "examine") and (shown := _ROOM.search(said)):
            where = thing if thing in self.room else self.at
            self.seen = {each: spot for each, spot in self.seen.items() if spot != where}
            self.seen |= dict.fromkeys(_THING.findall(shown[1]), where)
            self.ever |= self.seen.keys()
            self.looked_into.add(where)
        treats = verb in ("clean", "heat", "cool", "use")
        return treats or before != (len(self.ever), len(self.looked_into), self.held, tuple(sorted(self.seen.items())))


@dataclass(frozen=True)
class Loss:
    """One lost game."""

    task: str
    task_type: str
    goal: str
    name: str
    """Its class."""
    missing: str
    """The state of the thing that the task still needed: `never in view`, `in view before`, `in hand`, `unknown`."""
    steps: int
    useless: int
    not_looked_into: int
    """Receptacles whose content was never in view."""
    commands: tuple[str, ...]
    last: str
    """The last thing that was said."""


def losses(trajectories: Iterable[Mapping[str, Any]]) -> Iterator[Loss]:
    """The lost games among them."""
    for trajectory in trajectories:
        if not any(step["info"].get("won") for step in trajectory["steps"]):
            yield classify(trajectory)


def classify(trajectory: Mapping[str, Any]) -> Loss:
    """Class of a lost game."""
    steps, task = trajectory["steps"], trajectory["task"]
    first = steps[0]["observation"] if steps else ""
    shown = _ROOM.search(first)
    play = Play(set(_THING.findall(shown[1])) if shown else set())
    commands = [" ".join(str(step["action"] or "").split()) for step in steps]
    said = [*(step["observation"] for step in steps[1:]), trajectory.get("final_obs") or ""]
    news = [play.take(command, text) for command, text in zip(commands, said, strict=False)]
    goal = read_goal(first)
    missing = _missing(goal, play)
    tail = commands[-TAIL:]
    return Loss(
        task=task["id"],
        task_type=task.get("task_type") or "other",
        goal=str(trajectory.get("goal") or ""),
        name="failed" if trajectory.get("error") else _class(goal, play, tail, news[-TAIL:], missing),
        missing=missing,
        steps=len(steps),
        useless=play.useless,
        not_looked_into=len(play.room - play.looked_into),
        commands=tuple(commands),
        last=said[-1].strip() if steps else "",
    )


def _class(goal: Goal | None, play: Play, tail: Sequence[str], news: Sequence[bool], missing: str) -> str:
    found = [match.groups() for command in tail if (match := _COMMAND.fullmatch(command))]
    absent = [thing for verb, thing, _ in found if verb == "go to" and thing not in play.room]
    if len(absent) >= FEW:
        return "absent receptacle"
    if goal is not None:
        grasped = [thing for verb, thing, _ in found if verb == "take" and kind(thing) != goal.wanted]
        if len(grasped) >= FEW or (play.held and kind(play.held) != goal.wanted):
            return "wrong object"
    if len(tail) == TAIL and len(set(tail)) <= FEW and not any(news):
        return "loop"
    if missing == "never in view":
        return "never found"
    return "forgot" if missing == "in view before" else "step limit"


def _missing(goal: Goal | None, play: Play) -> str:
    """Of what the task still needs, what is farthest away."""
    if goal is None:
        return "unknown"
    mine = {thing for thing in play.ever if kind(thing) == goal.wanted}
    holds = bool(play.held) and kind(play.held) == goal.wanted
    if goal.how == "light" and holds:
        lamps = {thing for thing in play.ever if kind(thing) == goal.target}
        there = any(play.seen.get(lamp) == play.at for lamp in lamps)
        return "never in view" if not lamps else "in hand" if there else "in view before"
    brought = {thing for thing in mine if kind(play.seen.get(thing, "")) == goal.target} if goal.how == "two" else set()
    if holds:
        return "in hand"
    return "in view before" if mine - brought else "never in view"


def table(found: Sequence[Loss], games: Mapping[str, int]) -> str:
    """Lost games by class and type, in Markdown."""
    types = sorted(games)
    count = Counter((loss.name, loss.task_type) for loss in found)
    lines = [f"| class | lost | {' | '.join(types)} | never in view | in view before | in hand |"]
    lines.append("|---" * (len(types) + 5) + "|")
    for name in CLASSES:
        own = [loss for loss in found if loss.name == name]
        missing = Counter(loss.missing for loss in own)
        cells = [
            *(count[name, each] for each in types),
            *(missing[each] for each in ("never in view", "in view before", "in hand")),
        ]
        if own:
            lines.append(f"| {name} | {len(own)} | {' | '.join(map(str, cells))} |")
    lost = Counter(loss.task_type for loss in found)
    lines.append(f"| all | {len(found)} | {' | '.join(f'{lost[each]} of {games[each]}' for each in types)} | | | |")
    return "\n".join(lines)


def story(loss: Loss, *, commands: int = 24) -> str:
    """A lost game to be read: the goal, the last commands with repeats counted, the last word."""
    runs: list[tuple[str, int]] = []
    for command in loss.commands:
        if runs and runs[-1][0] == command:
            runs[-1] = (command, runs[-1][1] + 1)
        else:
            runs.append((command, 1))
    shown = [f"{command} x{times}" if times > 1 else command for command, times in runs]
    path = "; ".join((["..."] if len(shown) > commands else []) + shown[-commands:])
    return escape_terminal(
        f"[{loss.name}; {loss.missing}] {loss.task_type}: {loss.goal}\n"
        f"  {loss.steps} steps, {loss.useless} without effect, {loss.not_looked_into} receptacles not looked into\n"
        f"  {path}\n  last: {loss.last}\n  ({loss.task})"
    )


def read(files: Iterable[Path]) -> Iterator[dict[str, Any]]:
    """The trajectories of all files."""
    for file in files:
        with file.open(encoding="utf-8") as lines:
            yield from (json.loads(line) for line in lines)


def main() -> None:
    """Print the table and the examples."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trajectories", nargs="+", type=Path, metavar="FILE.jsonl")
    parser.add_argument(
        "--examples", type=int, default=1, metavar="N", help="lost games shown of each class (default: 1)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="every lost game with its class, a JSON list")
    options = parser.parse_args()
    games: Counter[str] = Counter()
    found: list[Loss] = []
    for trajectory in read(options.trajectories):
        games[trajectory["task"].get("task_type") or "other"] += 1
        found += losses([trajectory])
    total = sum(games.values())
    low, high = wilson_interval(total - len(found), total)
    print(
        f"Won {total - len(found)} of {total}: {1 - len(found) / total:.3f} [{low:.3f}, {high:.3f}]\n\n{table(found, games)}\n"
    )
    for name, meaning in CLASSES.items():
        own = [loss for loss in found if loss.name == name][: options.examples]
        if own:
            print(f"{name}: {meaning}\n" + "\n".join(map(story, own)) + "\n")
    if options.json:
        options.json.write_text(json.dumps([asdict(loss) for loss in found], indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

"""Rollouts: order, one request a prompt, several turns, and failures that are data."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from skill_ttrl.agents.action_parser import project
from skill_ttrl.envs import TextEnv
from skill_ttrl.errors import ExtensionError
from skill_ttrl.llm.backend import Generation, Request, Sampling
from skill_ttrl.rollout.rollout import Schedule
from skill_ttrl.signals import Interrupted, StopSignal
from skill_ttrl.types import Completion, Task, Trajectory, from_json, to_json
from tests.rollouts import AGENT, play
from tests.scripted_backend import RecordingBackend


class Guess(TextEnv):
    """Higher or lower; the number is the task's, the episode ends when it is found."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self.options = options or {}
        if self.options.get("broken") == "reset":
            raise OSError("no such game")
        return f"Guess up to {self.options['most']}.", {}

    def step(self, action: str) -> tuple[str, Any, Any, bool, Any]:
        broken = self.options.get("broken")
        if broken == "step" and action == "2":
            raise RuntimeError("the game broke")
        if broken == "exit":
            raise SystemExit("enough")
        if broken == "ctrl-c":
            signal.raise_signal(signal.SIGINT)
        if broken == "half":
            return "seen \ud800", 0.0, False, False, {"answer": "\udfff", "admissible_commands": ["\ud800"]}
        if broken == "stop":
            raise Interrupted("a signal came while the game was at work", 15)
        found = action == str(self.options["number"])
        rewards = {"nan": float("nan"), "none": None, "text": "1", "huge": 1e300}
        reward: Any = rewards.get(str(broken), float(found))
        info: Any = {"answer": int(action) if broken == "int" else action, "extra": object(), "turn": 1}
        return "no, again", reward, found, False, None if broken == "info" else info


class Echo(TextEnv):
    """One turn, and no answer of its own."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        return f"seed {seed}, truth {(options or {}).get('ground_truth')}", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        return "", 0.0, False, True, {}


def guess(number: int, **more: Any) -> Task:
    return Task(f"g{number}", "Guess-v0", {"number": number, "most": 9, **more})


def test_several_turns_go_on_only_for_the_living() -> None:
    backend = RecordingBackend(["1", "2", "3", "3", "2", "9"])
    (group,) = play(Guess, [guess(2)], 3, backend, max_turns=3)
    assert [[request.n for request in turn] for turn in backend.asked] == [[3], [1, 1], [1]]
    assert [[step.action for step in t.steps] for t in group.trajectories] == [["1", "3", "9"], ["2"], ["3", "2"]]
    assert [t.stop_reason for t in group.trajectories] == ["max_turns", "terminated", "terminated"]
    last = bytes(backend.asked[2][0].token_ids or ()).decode()
    assert last.endswith("Guess up to 9.\n1\nno, again\n3\nno, again")
    for t in group.trajectories:
        assert from_json(Trajectory, to_json(t)).steps == t.steps
        for step in t.steps:
            assert step.completion is not None and bytes(step.completion.token_ids).decode() == step.action
            assert "extra" not in step.info and step.info["turn"] == 1


class Told(Guess):
    """Says with every step what it said at the start: where the game is from, and whether it is won."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        observation, _ = super().reset(seed=seed, options=options)
        return observation, {"file": "/home/me/game", "source": "mine", "won": False, "near": "no", "answer": None}

    def step(self, action: str) -> tuple[str, Any, Any, bool, Any]:
        seen, reward, found, truncated, _ = super().step(action)
        near = "yes" if abs(int(action) - self.options["number"]) < 2 else "no"
        return seen, reward, found, truncated, {**self.reset(options=self.options)[1], "won": found, "near": near}


def test_what_an_environment_says_again_with_every_step_is_kept_once() -> None:
    (group,) = play(Told, [guess(2)], 1, RecordingBackend(["7", "1", "2"]), max_turns=3)
    (played,) = group.trajectories
    assert [step.info for step in played.steps] == [
        {"won": False, "answer": None},
        {"won": False, "answer": None, "near": "yes"},
        {"won": True, "answer": None, "near": "yes"},
    ]
    assert played.source == "mine" and "/home/me" not in to_json(played)
    (untold,) = play(Guess, [guess(2)], 1, RecordingBackend(["2"]))[0].trajectories
    assert untold.source == "" and untold.steps[0].info == {"answer": "2", "turn": 1}


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        ("reset", "OSError: no such game"),
        ("nan", "ValueError: .*nan"),
        ("none", "TypeError"),
        ("text", "ValueError: the environment's reward is '1', a text"),
        ("huge", r"ValueError: the environment's reward is 1e\+300"),
        ("info", "AttributeError"),
        ("exit", "SystemExit: enough"),
    ],
)
@pytest.mark.parametrize("schedule", ["sync", "async"])
def test_an_environments_failure_is_the_outcome_of_its_try(broken: str, said: str, schedule: Schedule) -> None:
    tasks = [guess(1), guess(2, broken=broken)]
    good, bad = play(Guess, tasks, 1, RecordingBackend(["1", "2"]), schedule=schedule)
    (failed,) = bad.trajectories
    assert failed.stop_reason == "error" and failed.answer is None and failed.steps == ()
    assert failed.error is not None and re.match(said, failed.error)
    assert good.trajectories[0].stop_reason == "terminated"


def test_a_second_ctrl_c_ends_the_run_although_an_environment_is_at_work() -> None:
    with StopSignal():
        signal.raise_signal(signal.SIGINT)  # remembered: the step would end first
        with pytest.raises(KeyboardInterrupt):
            play(Guess, [guess(2, broken="ctrl-c")], 1, RecordingBackend(["2"]))


class Halving(RecordingBackend):
    """Says half a character."""

    async def generate(self, requests: Sequence[Request], sampling: Sampling, *, seed: int) -> list[Generation]:
        made = await super().generate(requests, sampling, seed=seed)
        return [replace(g, completions=tuple(replace(c, text="\ud800") for c in g.completions)) for g in made]


def test_half_a_character_from_outside_is_replaced_before_a_prompt_or_a_file_meets_it() -> None:
    (group,) = play(Guess, [guess(2, broken="half")], 1, Halving(["?"]), max_turns=2)
    (played,) = group.trajectories
    assert from_json(Trajectory, to_json(played)) == played and played.error is None
    first, second = played.steps
    assert first.action == "\ufffd" and first.info == {"answer": "\ufffd"}
    assert second.observation == "seen \ufffd" and second.admissible_actions == ("\ufffd",)


class Scoring(RecordingBackend):
    """Gives the tokens of its first answer a log-prob of one's choice."""

    def __init__(self, logprob: float) -> None:
        super().__init__(["1"])
        self._logprob: float | None = logprob

    def _completion(self, text: str) -> Completion:
        made = super()._completion(text)
        logprobs = made.logprobs if self._logprob is None else (self._logprob,)
        self._logprob = None
        return replace(made, logprobs=logprobs)


@pytest.mark.parametrize("logprob", [0.5, float("-inf"), float("nan"), float("inf")])
def test_a_log_prob_that_is_none_is_the_failure_of_its_try(logprob: float) -> None:
    (group,) = play(Guess, [guess(1)], 2, Scoring(logprob))
    failed, fine = group.trajectories
    assert failed.stop_reason == "no_answer" and failed.answer is None and failed.steps == ()
    assert failed.error == f"The backend gave token 0 the log-prob {logprob:g}: a log-prob is finite and at most 0."
    assert fine.error is None and from_json(Trajectory, to_json(failed)) == failed


class Failing(RecordingBackend):
    """A backend of somebody's own, with a fault."""

    async def generate(self, requests: Sequence[Request], sampling: Sampling, *, seed: int) -> list[Generation]:
        raise RuntimeError("out of tea")


@pytest.mark.parametrize("schedule", ["sync", "async"])
def test_a_backend_of_ones_own_that_raises_is_named_with_its_tasks(schedule: Schedule) -> None:
    words = r"The backend .*test_rollout:Failing failed on task 'g[12]'.*: RuntimeError: out of tea"
    with pytest.raises(ExtensionError, match=words):
        play(Guess, [guess(1), guess(2)], 2, Failing(["1"]), schedule=schedule)


def test_a_failure_in_a_later_turn_keeps_the_earlier_ones() -> None:
    (group,) = play(Guess, [guess(3, broken="step")], 2, RecordingBackend(["1", "1", "2", "3"]), max_turns=2)
    failed, fine = group.trajectories
    assert failed.stop_reason == "error" and [step.action for step in failed.steps] == ["1"]
    assert failed.error == "RuntimeError: the game broke"
    assert fine.stop_reason == "terminated"


def test_a_task_without_a_seed_is_given_one_that_all_its_tries_share() -> None:
    tasks = [Task("a", "Echo-v0"), Task("b", "Echo-v0"), Task("c", "Echo-v0", seed=3)]

    def shown() -> list[set[str]]:
        return [{t.steps[0].observation for t in g.trajectories} for g in play(Echo, tasks, 3, RecordingBackend(["x"]))]

    first = shown()
    assert [len(group) for group in first] == [1, 1, 1] and first[0] != first[1]
    assert not any("seed None" in text for group in first for text in group) and "seed 3," in first[2].pop()
    assert shown()[:2] == first[:2]


def test_a_conversation_that_outgrows_the_limit_ends_there() -> None:
    backend = RecordingBackend(["1", "2", "3"])
    (trajectory,) = play(Guess, [guess(3)], 1, backend, max_turns=3, max_prompt_tokens=30)[0].trajectories
    assert [step.action for step in trajectory.steps] == ["1", "2"]
    assert (trajectory.stop_reason, trajectory.error, trajectory.answer) == ("truncated", None, "2")


class Rooms(TextEnv):
    """Lists what can be done; the list changes with each step, and there is none at the end."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self.left = [["go east", "look"], ("open box",), None]
        return "a hall", {"admissible_commands": self.left.pop(0)}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        listed = self.left.pop(0)
        return "a room", 0.0, False, False, {} if listed is None else {"admissible_commands": listed}


@pytest.mark.parametrize("constrain", [True, False])
def test_the_model_is_kept_to_the_actions_that_are_listed_now_where_that_is_asked(constrain: bool) -> None:
    backend = RecordingBackend(["look"])
    play(Rooms, [Task("r", "Rooms-v0")], 2, backend, max_turns=3, constrain=constrain)
    asked = [turn[0].choice for turn in backend.asked]
    assert asked == ([("go east", "look"), ("open box",), ()] if constrain else [(), (), ()])


@pytest.mark.parametrize(("constrain", "verdicts"), [(True, ["valid", "repaired"]), (False, ["repaired", "repaired"])])
def test_an_action_that_the_model_was_held_to_needs_no_tags(constrain: bool, verdicts: list[str]) -> None:
    tagged, backend = replace(AGENT, project=project), RecordingBackend(["go east", "Open box."])
    (group,) = play(Rooms, [Task("r", "Rooms-v0")], 1, backend, tagged, max_turns=2, constrain=constrain)
    assert [step.action_status for step in group.trajectories[0].steps] == verdicts

"""One rule for `--env`, tasks of an environment, and the text contract; with environments of a user's own in files."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import pytest

from skill_ttrl.envs import TextEnv, check_text_env, env_tasks, list_envs, make_env, prepare_env, resolve_env
from skill_ttrl.errors import EnvError
from skill_ttrl.types import Task

PLAIN = '''
import gymnasium
from skill_ttrl.envs import TextSpace

class Guess(gymnasium.Env):
    """Guess a digit."""

    def __init__(self, digits=10):
        self.observation_space = self.action_space = TextSpace()
        self.digits = digits

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.secret = str(self.np_random.integers(self.digits))
        return "Guess a digit.", {}

    def step(self, action):
        return "", float(action == self.secret), True, False, {}


gymnasium.register("LookupGuess-v0", entry_point=f"{__name__}:Guess")
'''


@pytest.fixture
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working directory of a user's own; what is imported and registered from it is forgotten afterwards."""
    modules, registered, path = set(sys.modules), set(gymnasium.registry), list(sys.path)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]
    for env_id in set(gymnasium.registry) - registered:
        del gymnasium.registry[env_id]


def test_short_names_and_ids() -> None:
    assert resolve_env("math") == resolve_env("SkillTTRL/Math-v0") == "SkillTTRL/Math-v0"
    assert resolve_env("CartPole-v1") == "CartPole-v1"
    with pytest.raises(EnvError, match=r"Unknown environment 'maht'\. Did you mean 'math'\?.*module:EnvId-v0"):
        resolve_env("maht")
    with pytest.raises(EnvError, match=r"Did you mean 'SkillTTRL/Math-v0'\?"):
        resolve_env("SkillTTRL/Maht-v0")


def test_a_module_in_the_working_directory(own_module: Path) -> None:
    (own_module / "lookup_plain.py").write_text(PLAIN)
    name = "lookup_plain:LookupGuess-v0"
    assert resolve_env(name) == name
    env = make_env(name, digits=1)
    check_text_env(env)
    env.reset(seed=0)
    assert env.step("0")[1] == 1.0
    infos = {info.id: info for info in list_envs()}
    assert infos["LookupGuess-v0"].description == "Guess a digit."
    assert (infos["LookupGuess-v0"].module, infos["LookupGuess-v0"].short_name) == ("lookup_plain", "")
    with pytest.raises(EnvError, match=r"registers no environment 'Guess-v0'\. Did you mean 'LookupGuess-v0'\?"):
        resolve_env("lookup_plain:Guess-v0")


def test_modules_that_do_not_work(own_module: Path) -> None:
    (own_module / "lookup_empty.py").write_text("x = 1\n")
    (own_module / "lookup_broken.py").write_text("import lookup_not_there\n")
    with pytest.raises(EnvError, match=r"'lookup_empty' was imported but registers no environment\. It must call"):
        resolve_env("lookup_empty:X-v0")
    with pytest.raises(EnvError, match=r"Cannot import 'lookup_missing' for the environment"):
        resolve_env("lookup_missing:X-v0")
    with pytest.raises(EnvError, match=r"module 'lookup_broken' failed while it was imported: .*'lookup_not_there'"):
        resolve_env("lookup_broken:X-v0")
    for path in ("lookup_empty.py:X-v0", "./lookup_empty:X-v0", "../x:X-v0", ":X-v0"):
        with pytest.raises(EnvError, match="cannot name the environment"):
            resolve_env(path)


SLOW = PLAIN.replace("LookupGuess", "LookupSlow").replace(
    "    def reset",
    """    @classmethod
    def prepare(cls, progress, digits=10):
        for number in range(digits):
            progress(number + 1, digits)
        assert digits < 9, "too many"

    def reset""",
)


def test_what_an_environment_prepares_is_told_before_it_is_made(own_module: Path) -> None:
    (own_module / "lookup_slow.py").write_text(SLOW)
    heard: list[tuple[int, int]] = []
    prepare_env("lookup_slow:LookupSlow-v0", {"digits": 3}, lambda done, total: heard.append((done, total)))
    assert heard == [(1, 3), (2, 3), (3, 3)]
    assert len(
        env_tasks("lookup_slow:LookupSlow-v0", {"digits": 2}, count=4, progress=lambda *told: heard.append(told))
    )
    assert heard[3:] == [(1, 2), (2, 2)]
    prepare_env("math", {}, lambda done, total: heard.append((done, total)))
    assert len(heard) == 5, "nothing takes long there"
    with pytest.raises(EnvError, match=r"LookupSlow-v0 has no argument 'digit'\. Did you mean 'digits'\?"):
        prepare_env("lookup_slow:LookupSlow-v0", {"digit": 3}, lambda done, total: heard.append((done, total)))
    assert len(heard) == 5, "a misspelt argument is told before what takes long"
    assert make_env("math", max_episode_steps=3).spec.max_episode_steps == 3  # type: ignore[union-attr]
    with pytest.raises(EnvError, match=r"Cannot make lookup_slow:LookupSlow-v0 with .*: AssertionError: too many"):
        prepare_env("lookup_slow:LookupSlow-v0", {"digits": 9}, lambda done, total: None)


def test_seeds_are_the_tasks_of_a_plain_environment(own_module: Path) -> None:
    (own_module / "lookup_plain.py").write_text(PLAIN)
    name = "lookup_plain:LookupGuess-v0"
    tasks = env_tasks(name, {}, "train", 3)
    assert tasks == [Task(id=f"seed-{seed}", env_id=name, seed=seed) for seed in range(3)]
    splits = ["train", "validation", "test", "other"]
    seeds = [{task.seed for task in env_tasks(name, {}, split)} for split in splits]
    assert [len(part) for part in seeds] == [256] * 4 and len(set.union(*seeds)) == 4 * 256
    with pytest.raises(EnvError, match="at most 1,000,000"):
        env_tasks(name, {}, "train", 1_000_001)
    broken = PLAIN.replace("LookupGuess", "LookupListless") + "Guess.tasks = property(lambda self: 1 / 0)\n"
    (own_module / "lookup_listless.py").write_text(broken)
    with pytest.raises(EnvError, match=r"tasks\('train'\) raised ZeroDivisionError: division by zero\."):
        env_tasks("lookup_listless:LookupListless-v0", {}, "train")


class Faulty(TextEnv):
    """Breaks the contract in one place."""

    def __init__(self, fault: str = "") -> None:
        super().__init__()
        self.fault = fault

    def tasks(self, split: str | None = None) -> list[Task]:
        return []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        values = {"reset-number": 7, "reset-list": (["a"], {}), "reset-info": ("a", None), "reset-raises": None}
        if self.fault == "reset-raises":
            raise KeyError("word")
        return values.get(self.fault, ("a", {}))

    def step(self, action: str) -> Any:
        if self.fault == "step-raises":
            return int(action)
        good = {"o": "", "r": 1, "d": True, "t": False, "i": {"x": 1}}
        if self.fault == "step-four":
            return "", 1.0, True, {}
        key, value = {
            "step-observation": ("o", 3),
            "step-reward": ("r", float("nan")),
            "step-reward-text": ("r", "good"),
            "step-flag": ("d", 1),
            "step-info": ("i", {"x": {1, 2}}),
        }.get(self.fault, ("r", 1))
        return tuple({**good, key: value}.values())


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("reset-number", r"Faulty\.reset must return \(observation, info\), found int"),
        ("reset-list", r"Faulty\.reset must return a str as observation, found list"),
        ("reset-info", r"Faulty\.reset must return a dict as info, found NoneType"),
        ("reset-raises", r"Faulty\.reset\(seed=0, options=None\) raised KeyError: 'word'"),
        ("step-raises", r"raised ValueError: invalid literal.*must take any text"),
        ("step-four", r"must return \(observation, reward, terminated, truncated, info\), found 4 values"),
        ("step-observation", r"Faulty\.step must return a str as observation, found int"),
        ("step-reward", r"finite number as reward, found nan"),
        ("step-reward-text", r"finite number as reward, found 'good'"),
        ("step-flag", r"bool as terminated, found int"),
        ("step-info", r"info that JSON can write: .*set"),
    ],
)
def test_the_contract_names_what_is_wrong(fault: str, message: str) -> None:
    check_text_env(Faulty())
    with pytest.raises(EnvError, match=message):
        check_text_env(Faulty(fault))

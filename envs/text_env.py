"""Text environments: the space of all strings, and the contract that every environment here follows.

`gymnasium.spaces.Text` refuses ordinary text (its default characters hold no space) and fails in asynchronous vectors;
`TextSpace` takes any `str`. The contract, in Gymnasium's words:

- observations and actions are `str`; **any** action is accepted, since a model may write anything: one that makes no sense
  earns no reward and raises no error;
- `reset(seed=s)` followed by the same actions gives the same episode; `reset(options=...)` plays one given task;
- rewards are finite numbers; `info` holds plain data that JSON can write;
- the true answer never appears in an observation or in `info`.

Optional entries of `info`:

- `admissible_commands`: list of actions;
- `source`: origin of the tasks;
- `won`: True if the episode has succeeded; without it, a return above 0 counts as success;
- `score`: from 0 to 1, 1 for a perfect episode, if this is finer than `won`;
- `exploits`: how often the agent has tried to bypass the task so far;
- `state`: digest of the exact state (`state_digest`), from `reset` and from every `step`. Two states have the same digest if and only
  if the same actions lead to the same rewards and observations from there. Algorithms that compare steps from one state need it
  (`graphgpo`).

A plain `gymnasium.Env` that follows the contract needs nothing from this module; its tasks are seeds. An environment with a list of
tasks has a method `tasks(split)`, as in `TextEnv`. `skill_ttrl.envs.check_text_env` checks the contract.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar

import gymnasium
import numpy as np

from skill_ttrl.types import Task

# Printable ASCII, white space, two- to four-byte UTF-8: what an environment must stand.
_SAMPLE_CHARACTERS = [chr(code) for code in range(32, 127)] + ["\n", "\t", "ä", "ß", "→", "数", "😀"]


def state_digest(*parts: Any) -> str:
    """Compute 16 hexadecimal digits for `info["state"]` from the parts of a state: plain data whose `repr` is its value, sets sorted."""
    return hashlib.blake2b(repr(parts).encode(), digest_size=8).hexdigest()


class TextSpace(gymnasium.Space[str]):
    """Every `str`, the empty one and any length included.

    In a vector its batch is a tuple of strings, which is what Gymnasium does with every space that it does not know. An
    `AsyncVectorEnv` needs `shared_memory=False`.

    Args:
        sample_length: longest text that `sample` draws, in characters. It does not bound what the space contains.
        seed: of `sample`.
    """

    def __init__(self, sample_length: int = 32, seed: int | np.random.Generator | None = None) -> None:
        self.sample_length = sample_length
        super().__init__(seed=seed)

    @property
    def is_np_flattenable(self) -> bool:
        """False: text has no fixed size."""
        return False

    def sample(self, mask: None = None, probability: None = None) -> str:
        """A random text of 0 to `sample_length` characters; masks have no meaning here."""
        if mask is not None or probability is not None:
            raise ValueError("A TextSpace cannot be sampled with a mask or with probabilities.")
        length = int(self.np_random.integers(self.sample_length + 1))
        indices = self.np_random.integers(len(_SAMPLE_CHARACTERS), size=length)
        return "".join(_SAMPLE_CHARACTERS[index] for index in indices)

    def contains(self, x: Any) -> bool:
        """True if `x` is a `str`."""
        return isinstance(x, str)

    def __repr__(self) -> str:
        return f"TextSpace(sample_length={self.sample_length})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TextSpace) and self.sample_length == other.sample_length

    def __hash__(self) -> int:
        return hash((TextSpace, self.sample_length))


class TextEnv(gymnasium.Env[str, str]):
    """Base of the environments here: both spaces are text, and it may bring its own tasks.

    A subclass calls `super().__init__()`, writes Gymnasium's `reset` and `step`, and `tasks` where it knows its tasks.
    """

    splits: tuple[str, ...] = ()
    """Names of the parts that `tasks` knows, for an environment whose ids do not begin with them."""
    config_defaults: ClassVar[Mapping[str, Any]] = {}
    """Defaults for config keys that are not set in this environment: `{"agent.template": "episode", "agent.context_mode": "window",
    "agent.action_parser": "action", "agent.max_turns": 20}`. Read from the class, before an instance exists."""
    fixed_actions: ClassVar[Collection[str]] = ()
    """Actions with an argument that is part of their name, as `click[buy now]`: reports count each of them by itself."""
    question_option: ClassVar[str | None] = None
    """Option of `reset` that takes any question in place of a task, for `skillttrl ask`; None: there is none."""
    expensive: bool = False
    """True if steps are slow or go to a server of others. Only the requested episodes are played then: no controls (`eval.controls`)."""

    def __init__(self) -> None:
        self.observation_space = TextSpace()
        self.action_space = TextSpace()

    def tasks(self, split: str | None = None) -> Sequence[Task] | None:
        """The tasks of one part of the data, each to be played by `reset(seed=task.seed, options=task.options)`.

        Args:
            split: name of the part ("train", "test"); None for all.

        Returns:
            Tasks in a fixed order, the parts disjoint. None: every seed is a task.
        """
        return None

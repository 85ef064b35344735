"""Votes and environments for TRL's `GRPOTrainer`: a reward function that needs no labels, and an `environment_factory`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium

from skill_ttrl.answers import extract
from skill_ttrl.envs import env_tasks, make_env
from skill_ttrl.envs.lookup import split_argument
from skill_ttrl.integrations.votes import vote_in_groups
from skill_ttrl.rollout.episode import reset_options
from skill_ttrl.types import Task
from skill_ttrl.voting import check_strategy

OVER = "The episode is over."


def vote_reward(strategy: str = "majority", *, last_number: bool = False, **options: Any) -> Callable[..., list[float]]:
    """A reward function for `GRPOTrainer(reward_funcs=...)`: 1 for agreeing with the vote among a prompt's completions, else 0.

    A process of TRL sees its own slice of a batch, which may begin or end in the middle of a group. So the processes exchange their
    answers, and all of a prompt's completions vote, wherever they were sampled. Every process must call the function, as TRL does.
    The mean agreement is logged as `majority_ratio`.

    Args:
        strategy: `majority`, `sequential`, `anchored` (the data set needs a column `base_answers`, a list for each prompt), or
            `module:function`. TRL passes no log-probabilities, so `confidence` is refused.
        last_number: take the last number of a text that gives no answer in any other way.
        options: of the strategy.

    Raises:
        ConfigError: there is no such strategy or option.
    """
    check_strategy(strategy, options)

    def reward(
        prompts: Sequence[Any],
        completions: Sequence[Any],
        environments: Sequence[Any] | None = None,
        base_answers: Sequence[Any] | None = None,
        log_metric: Callable[[str, float], None] | None = None,
        **columns: Any,
    ) -> list[float]:
        from accelerate import PartialState
        from accelerate.utils import gather_object

        played = environments if environments is not None else [None] * len(prompts)
        answers = [
            place.answer if isinstance(place, Environment) else extract(last_text(said), last_number=last_number)
            for said, place in zip(completions, played, strict=True)
        ]
        base = base_answers if base_answers is not None else [None] * len(prompts)
        parts = gather_object([list(zip(map(repr, prompts), answers, base, strict=True))])
        names, given, before = zip(*(row for part in parts for row in part), strict=True)
        rewards, votes = vote_in_groups(names, given, strategy, options, before)
        if log_metric is not None:
            log_metric("majority_ratio", sum(vote.majority_ratio for vote in votes) / len(votes))
        first = sum(map(len, parts[: PartialState().process_index]))
        return rewards[first : first + len(prompts)]

    reward.__name__ = f"{strategy}_vote_reward"  # TRL logs it by this name
    return reward


majority_vote_reward = vote_reward()
"""The reward function of TTRL: `GRPOTrainer(reward_funcs=majority_vote_reward, ...)`."""


def last_text(completion: Any) -> str:
    """The text of a completion, or the last text of the assistant if it is a list of messages."""
    if isinstance(completion, str):
        return completion
    said = [message.get("content") for message in completion if message["role"] == "assistant"]
    found = next((each for each in reversed(said) if each), "")
    return found if isinstance(found, str) else "".join(part.get("text", "") for part in found)


def environment_reward(environments: Sequence[Environment], **columns: Any) -> list[float | None]:
    """A reward function for `GRPOTrainer(reward_funcs=...)`: the returns of the environments; None without a true answer to grade with."""
    return [environment.reward for environment in environments]


class Environment:
    """An episode as `GRPOTrainer` plays it: it calls `reset` with a row of the data set, and the model calls the other methods as tools."""

    def __init__(self, env: gymnasium.Env[str, str], tasks: Mapping[str, Task]) -> None:
        self._env, self._tasks, self._over = env, tasks, True
        self.reward: float | None = 0.0
        """The sum of the rewards so far; None: the environment has no true answer to grade with."""
        self.answer: str | None = None
        """The answer that was given, in environments of questions."""

    def reset(self, task: str, **columns: Any) -> str:
        """Begin the episode of a task. Returns the first observation, which TRL appends to the prompt."""
        chosen = self._tasks[task]
        seen, _ = self._env.reset(seed=chosen.seed, options=reset_options(chosen))
        self.reward, self.answer, self._over = 0.0, None, False
        return seen

    def _act(self, action: str) -> str:
        if self._over:
            return OVER
        seen, reward, terminated, truncated, info = self._env.step(action)
        self.reward = None if info.get("graded") is False else (self.reward or 0.0) + float(reward)
        self.answer, self._over = info.get("answer"), terminated or truncated
        return f"{seen}\n{OVER}".strip() if self._over else seen


class ALFWorldTools(Environment):
    """A household task."""

    def act(self, command: str) -> str:
        """Carry out one command in the house and return what happens.

        Args:
            command: One of: look; inventory; go to RECEPTACLE; open RECEPTACLE; close RECEPTACLE; take OBJECT from RECEPTACLE; move OBJECT to RECEPTACLE; examine THING; use OBJECT; heat OBJECT with RECEPTACLE; clean OBJECT with RECEPTACLE; cool OBJECT with RECEPTACLE; slice OBJECT with OBJECT. Names have a number, such as "mug 1".
        """
        return self._act(command)


class WebShopTools(Environment):
    """A purchase."""

    def search(self, keywords: str) -> str:
        """Search the shop and return the page of results. Only pages with a search bar can search.

        Args:
            keywords: What to look for.
        """
        return self._act(f"search[{keywords}]")

    def click(self, target: str) -> str:
        """Click on something that the page shows and return the next page.

        Args:
            target: Its text: a product's code, an option, "Next >", "< Prev", "Back to Search", or "Buy Now", which ends the episode.
        """
        return self._act(f"click[{target}]")


class MathTools(Environment):
    """A math problem."""

    def submit(self, answer: str) -> str:
        r"""Hand in the final answer to the problem.

        Args:
            answer: The answer alone, such as 42 or \frac{1}{2}.
        """
        return self._act(f"<answer>{answer}</answer>")


class Environments:
    """An `environment_factory` of `GRPOTrainer`, and the rows of its tasks.

    The prompts of a group must begin the same episode, so each row of the data set names a task: pass `dataset()` as `train_dataset`.

    Args:
        tools: the environment's class.
        env: any name of the environment (`--env`).
        prompt: text before the first observation.
        split: of its tasks.
        count: so many tasks, spread over their types; None: all.
        kwargs: arguments of the environment.

    Raises:
        EnvError: there is no such split, or the environment cannot be made with these arguments.
    """

    def __init__(
        self, tools: type[Environment], env: str, prompt: str, split: str, count: int | None, kwargs: Mapping[str, Any]
    ) -> None:
        self._tools, self._env, self._prompt = tools, env, prompt
        self._kwargs = {**kwargs, **split_argument(env, split)}
        self.tasks = {task.id: task for task in env_tasks(env, kwargs, split, count)}

    def __call__(self) -> Environment:
        """An environment for one rollout at a time."""
        return self._tools(make_env(self._env, **self._kwargs), self.tasks)

    def dataset(self) -> Any:
        """The tasks as a `datasets.Dataset` with the columns `prompt` and `task`."""
        from datasets import Dataset

        prompt = [{"role": "user", "content": f"{self._prompt}\n\n"}]
        return Dataset.from_list([{"prompt": prompt, "task": name} for name in self.tasks])


def alfworld(split: str = "train", count: int | None = None, **kwargs: Any) -> Environments:
    """Household tasks of ALFWorld, with the tool `act`. The reward is 1 for a task that is done; see `Environments`."""
    prompt = "You act in a household. Call the tool `act` with one command at a time until your task is done."
    return Environments(ALFWorldTools, "alfworld", prompt, split, count, kwargs)


def webshop(split: str = "train", count: int | None = None, **kwargs: Any) -> Environments:
    """Purchases of WebShop, with the tools `search` and `click`. The reward is the purchase's score in [0, 1]; see `Environments`."""
    prompt = "You shop on a web site. Use the tools `search` and `click` to find and buy what the instruction asks for."
    return Environments(WebShopTools, "webshop", prompt, split, count, kwargs)


def math(split: str = "train", count: int | None = None, **kwargs: Any) -> Environments:
    """Math problems, with the tool `submit`. Reward it with `majority_vote_reward`; `environment_reward` needs true answers; see `Environments`."""
    return Environments(MathTools, "math", "Solve the problem and call the tool `submit`.", split, count, kwargs)

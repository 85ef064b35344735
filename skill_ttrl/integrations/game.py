"""One of our environments as a game of texts: prompts out, a model's answers in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from skill_ttrl.agents.action_parser import projection
from skill_ttrl.envs import env_defaults, make_env
from skill_ttrl.envs.lookup import split_argument
from skill_ttrl.prompts.templates import Templates
from skill_ttrl.rollout.episode import admissible_actions, stated


class TextGame:
    """An environment with the prompts and the action parser that a run of ours has by default.

    The first prompt is in the environment's template and says how to answer; the others are an observation and the possible actions.

    Args:
        env: any name of an environment (`--env`).
        split: of its tasks.
        kwargs: arguments of the environment.

    Raises:
        EnvError: there is no such environment, or it cannot be made with these arguments.
    """

    def __init__(self, env: str, split: str = "train", **kwargs: Any) -> None:
        self.env = make_env(env, **{**kwargs, **split_argument(env, split)})
        defaults = {"agent.template": "boxed", "agent.action_parser": "none", "agent.max_turns": 1, **env_defaults(env)}
        self.max_turns: int = kwargs.get("max_steps", defaults["agent.max_turns"])
        self.info: Mapping[str, Any] = {}
        """The environment's last `info`."""
        self._project = projection(defaults["agent.action_parser"])
        self._templates, self._template = Templates(), str(defaults["agent.template"])
        self._of_a_turn = defaults.get("agent.context_mode") == "window"
        self._templates.get(self._template, of_a_turn=self._of_a_turn)

    def reset(self, options: Mapping[str, Any] | None = None, seed: int | None = None) -> str:
        """Begin an episode. Returns the first prompt."""
        seen, self.info = self.env.reset(seed=seed, options=dict(options or {}))
        if not self._of_a_turn:
            return self._templates.render(self._template, question=seen)
        actions = "\n".join(admissible_actions(self.info))
        places = dict.fromkeys(("experience", "history", "skill_ops"), "")
        task = stated(self.info, "task")
        return self._templates.render(self._template, task=task, step="1", observation=seen, actions=actions, **places)

    def step(self, answer: str) -> tuple[str, float, bool]:
        """Play the action in a model's answer. Returns the next prompt, the reward, and whether the episode is over."""
        action = self._project(answer, admissible_actions(self.info)).action
        seen, reward, terminated, truncated, self.info = self.env.step(action)
        actions = "\n".join(admissible_actions(self.info))
        prompt = f"{seen}\n\nYou can do exactly one of these now:\n{actions}" if actions else seen
        return prompt, float(reward), bool(terminated or truncated)

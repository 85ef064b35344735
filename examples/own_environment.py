"""An environment of one's own: higher or lower, in several turns. Its reward replaces the vote, so no answer is needed.

Run it: python examples/own_environment.py. A command takes it as `--env own_environment:Guess-v0`; `skillttrl init` writes a project.
"""

from __future__ import annotations

from typing import Any

import gymnasium

from skill_ttrl.envs import TextEnv, check_text_env, make_env


class Guess(TextEnv):
    """Guess a number from 1 to 8 in three turns; halving always wins."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self._number, self._turns = int(self.np_random.integers(1, 9)), 0
        return "I think of a number from 1 to 8.", {"admissible_commands": [str(n) for n in range(1, 9)]}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self._turns += 1
        guess = int(action) if action.strip() in set("12345678") else 0  # any text is accepted: it is a model's
        won = guess == self._number
        hint = "right" if won else "higher" if guess < self._number else "lower"
        return hint, float(won), won, self._turns == 3, {"won": won}


gymnasium.register("Guess-v0", entry_point=Guess)

if __name__ == "__main__":
    env = make_env("Guess-v0")
    check_text_env(env)
    print(env.reset(seed=5)[0], env.step("4")[0], env.step("6")[:2])

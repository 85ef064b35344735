"""The edit budget of each step: SkillOpt's learning rate, with its schedules.

`edit_budget_at` is the truth. The classes around it have `torch`'s manner, as `skillrl`'s do.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

from skill_ttrl.config import OptimizeConfig
from skill_ttrl.errors import ConfigError, did_you_mean

SchedulerMode = Literal["constant", "linear", "cosine"]


def edit_budget_at(step: int, mode: str, max_lr: int, min_lr: int, total_steps: int) -> int:
    """The most edits of a step, counted from 1. The first step is decayed already; the last one and later ones get `min_lr`.

    A run of one step gets `max_lr`. Halves round to the even number, as in `skillrl` and SkillOpt.
    """
    if mode == "constant" or total_steps <= 1:
        return max_lr
    done = min(step, total_steps) / total_steps
    if mode == "linear":
        budget = max_lr + (min_lr - max_lr) * done
    else:
        budget = min_lr + 0.5 * (max_lr - min_lr) * (1 + math.cos(math.pi * done))
    return max(min_lr, round(budget))


def budget_of(config: OptimizeConfig, update: int, total_steps: int) -> int:
    """The most edits of an update under a config."""
    return edit_budget_at(update, config.lr_scheduler, config.edit_budget, config.min_edit_budget, total_steps)


class LRScheduler:
    """Counts steps and gives each its edit budget.

    Args:
        max_lr: budget at the start.
        min_lr: budget at the end.
        total_steps: of the whole training; at least 1.
    """

    mode: SchedulerMode

    def __init__(self, max_lr: int, min_lr: int, total_steps: int) -> None:
        self.max_lr, self.min_lr, self.total_steps = int(max_lr), int(min_lr), max(int(total_steps), 1)
        self._current_step = 0

    def step(self) -> int:
        """Go to the next step and return its budget."""
        self._current_step += 1
        return self.get_lr(self._current_step)

    def get_lr(self, step: int) -> int:
        """The budget of a step, counted from 1."""
        return edit_budget_at(step, self.mode, self.max_lr, self.min_lr, self.total_steps)

    def state_dict(self) -> dict[str, int]:
        """The step that it stands at."""
        return {"current_step": self._current_step}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Return to the step of a `state_dict`."""
        self._current_step = int(state.get("current_step") or 0)


class ConstantScheduler(LRScheduler):
    """The same budget at every step."""

    mode = "constant"


class LinearScheduler(LRScheduler):
    """Goes down from `max_lr` to `min_lr` by equal parts."""

    mode = "linear"


class CosineScheduler(LRScheduler):
    """Goes down from `max_lr` to `min_lr` along half a cosine."""

    mode = "cosine"


def build_scheduler(mode: str = "cosine", max_lr: int = 4, min_lr: int = 2, total_steps: int = 8) -> LRScheduler:
    """A scheduler by name.

    Raises:
        ConfigError: there is no such schedule.
    """
    known = {"constant": ConstantScheduler, "linear": LinearScheduler, "cosine": CosineScheduler}
    if mode not in known:
        raise ConfigError(f"Unknown scheduler mode {mode!r}.{did_you_mean(str(mode), known)}")
    return known[mode](max_lr, min_lr, total_steps)

"""`SkillOptConfig`: the settings of `SkillOptTrainer`, with `skillrl`'s keys and defaults (the paper's)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, Self

from skill_ttrl.errors import ConfigError, did_you_mean
from skill_ttrl.optimize.gating.gate import GATE_METRICS, GateMetric
from skill_ttrl.optimize.schedule import SchedulerMode

SCHEDULES: tuple[SchedulerMode, ...] = ("constant", "linear", "cosine")


@dataclass
class SkillOptConfig:
    """Settings of a text optimization.

    Raises:
        ConfigError: an unknown key or a value that cannot be used; all problems at once.
    """

    num_epochs: int = 4
    """Passes over the training items."""
    batch_size: int = 40
    """Items rolled out a step."""
    minibatch_size: int = 8
    """Rollouts shown to one analyst."""
    merge_batch_size: int = 8
    """Patches merged by one call."""
    edit_budget: int = 4
    """Most edits a step at the start: the textual learning rate."""
    min_edit_budget: int = 2
    """Most edits a step at the end."""
    lr_scheduler: SchedulerMode = "cosine"
    """How the edit budget falls: `constant`, `linear` or `cosine`."""
    gate_metric: GateMetric = "hard"
    """Score that a candidate has to exceed: `hard`, `soft` or `mixed`."""
    gate_mixed_weight: float = 0.5
    """Weight w of the soft score under `mixed`: (1 - w) hard + w soft."""
    failure_only: bool = False
    """Reflect on failures alone."""
    workers: int = 8
    """Rollouts and calls on their way at once; 1 or less: one after another."""
    seed: int = 42
    """Of batches and minibatches."""
    out_root: str = "outputs/skillrl_run"
    """Folder of the run; one that was begun there is continued."""
    selection_split: str = "val"
    """Split that the gate decides by."""
    test_split: str = "test"
    """Split that the result is reported on."""
    eval_test: bool = True
    """Roll out the first and the best document on the test split at the end."""
    save_every_step: bool = True
    """Write the document after every step to `skills/`."""
    optimizer_max_completion_tokens: int = 4096
    """Longest answer of an analyst or merger."""
    verbose: bool = True
    """Print what happens."""
    extras: dict[str, Any] = field(default_factory=dict)
    """Anything of the user's own; saved with the run."""

    def __new__(cls, *args: Any, **given: Any) -> Self:
        """Check the names of the keys.

        Raises:
            ConfigError: one is unknown.
        """
        known = [each.name for each in fields(cls)]
        for name in given:
            if name not in known:
                raise ConfigError(f"SkillOptConfig: unknown key {name!r}.{did_you_mean(name, known)}")
        return super().__new__(cls)

    def __post_init__(self) -> None:
        problems = list(self._problems())
        if problems:
            raise ConfigError(f"SkillOptConfig: {'; '.join(problems)}.")

    def to_dict(self) -> dict[str, Any]:
        """All keys with their values."""
        return asdict(self)

    def _problems(self) -> Iterator[str]:
        """A clause for each value that cannot be used."""
        wrong = {name: problem for name, kind in _KINDS.items() if (problem := _unfit(getattr(self, name), kind))}
        yield from (f"{name} must be {problem}, got {getattr(self, name)!r}" for name, problem in wrong.items())
        for name, least in _LEAST.items():
            if name not in wrong and getattr(self, name) < least:
                bound = "> 0" if least == 1 else f">= {least}"
                yield f"{name} must be {bound}, got {getattr(self, name)}"
        if not {"edit_budget", "min_edit_budget"} & {*wrong} and not 0 < self.min_edit_budget <= self.edit_budget:
            found = f"{self.min_edit_budget} (edit_budget={self.edit_budget})"
            yield f"min_edit_budget must be in (0, edit_budget], got {found}"
        for name, known in (("lr_scheduler", SCHEDULES), ("gate_metric", GATE_METRICS)):
            if (value := getattr(self, name)) not in known:
                closest = did_you_mean(str(value), known).rstrip(".")
                yield f"{name} must be one of {'/'.join(known)}, got {value!r}.{closest}"
        if "gate_mixed_weight" not in wrong and not 0.0 <= self.gate_mixed_weight <= 1.0:
            yield f"gate_mixed_weight must be in [0, 1], got {self.gate_mixed_weight}"


Kind = Literal["integer", "number", "flag", "text", "mapping"]
_KINDS: dict[str, Kind] = {
    **dict.fromkeys(
        "num_epochs batch_size minibatch_size merge_batch_size edit_budget min_edit_budget workers seed "
        "optimizer_max_completion_tokens".split(),
        "integer",
    ),
    "gate_mixed_weight": "number",
    **dict.fromkeys(("failure_only", "eval_test", "save_every_step", "verbose"), "flag"),
    **dict.fromkeys(("out_root", "selection_split", "test_split"), "text"),
    "extras": "mapping",
}
_LEAST = {
    **dict.fromkeys(
        "num_epochs batch_size minibatch_size edit_budget optimizer_max_completion_tokens".split(),
        1,
    ),
    "merge_batch_size": 2,
}


def _unfit(value: Any, kind: Kind) -> str:
    """A phrase for the value that is needed; empty where `value` is one."""
    if kind == "integer":
        return "" if isinstance(value, int) and not isinstance(value, bool) else "a whole number"
    if kind == "number":
        fits = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        return "" if fits else "a number"
    if kind == "flag":
        return "" if isinstance(value, bool) else "True or False"
    if kind == "text":
        return "" if isinstance(value, str) and value.strip() else "a text that is not empty"
    return "" if isinstance(value, dict) else "a dictionary"

"""One optimization in the scripted world of tests/rule_follower.py, by either engine. For tests and benchmarks only."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from skill_ttrl.config import OptimizeConfig
from skill_ttrl.optimize.calls import Calls, ChatFn, Journal
from skill_ttrl.optimize.engines import run_engine
from skill_ttrl.optimize.record import Optimized, OptimizeState, OptimizeTask, StepRecord, Watch
from tests.rule_follower import ScriptedTarget, make_items
from tests.rule_optimizer import ScriptedOptimizer

SPLITS = ("train", "val", "test")


@dataclass
class Trace(Watch):
    """The state after each step: what is there when a budget ends in the middle."""

    states: list[OptimizeState] = field(default_factory=list)

    def begin(self, state: OptimizeState, steps: int) -> None:
        self.states.append(state)

    def step(self, record: StepRecord, state: OptimizeState) -> None:
        self.states.append(state)


@dataclass
class RuleRun:
    """One optimization, ready to start; its parts say what it cost.

    Args:
        engine: by name.
        seed: of the items, both scripted models, and the engine.
        sizes: training, selection and test items.
        journal: the file of finished work; None: in memory.
    """

    engine: str = "skillopt"
    seed: int = 0
    sizes: tuple[int, int, int] = (40, 20, 20)
    journal: Path | None = None
    optimizer: ChatFn | None = None
    target: Any = None
    workers: int = 1
    reuse_rollouts: bool = False
    trace: Trace = field(default_factory=Trace)

    @property
    def task(self) -> OptimizeTask:
        train, val, test = (
            make_items(count, split, seed=self.seed) for count, split in zip(self.sizes, SPLITS, strict=True)
        )
        return OptimizeTask(train, val, test, name="rules")

    def __call__(self, document: str = "", **config: Any) -> Optimized:
        """Run it; settings of the config by name."""
        settings = OptimizeConfig.model_validate({"engine": self.engine, **config})
        self.optimizer = self.optimizer or ScriptedOptimizer(seed=self.seed)
        self.target = self.target or ScriptedTarget(seed=self.seed)
        self.calls = Calls(
            self.optimizer,
            self.target,
            Journal(self.journal),
            seed=self.seed,
            reuse_rollouts=self.reuse_rollouts,
            workers=self.workers,
        )
        return run_engine(self.task, document, settings, self.calls, seed=self.seed, watch=self.trace)

    @property
    def rollouts(self) -> int:
        """Rollouts that were paid for."""
        return len(self.target.calls)

    @property
    def requests(self) -> int:
        """Requests to the optimizer's model that were paid for."""
        return len(self.optimizer.calls)  # type: ignore[union-attr]  # a scripted one

"""`skillttrl evaluate`: measure a trained policy again, on the run's problems or on others."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from skill_ttrl.runs.progress import Progress, SilentProgress
from skill_ttrl.stages.build import build
from skill_ttrl.stages.measure import Evaluation
from skill_ttrl.stages.pin import pin_revisions
from skill_ttrl.stages.trained import find_trained


def run(
    path: str | Path, overrides: Sequence[str] = (), *, use_bank: bool = True, progress: Progress | None = None
) -> Evaluation:
    """Evaluate the policy of a run or checkpoint.

    Args:
        path: run folder (its newest checkpoint) or checkpoint folder.
        overrides: changes to the run's config, e.g. `eval.samples=64` or `data.eval={path: mine.jsonl}`.
        use_bank: False measures without the run's skill bank.
        progress: told of what was left out.

    Raises:
        SkillTTRLError: there is no such policy, or the problems cannot be read.
    """
    trained = find_trained(path, overrides)
    config = pin_revisions(trained.config)  # a file that has changed since the run is refused
    with ExitStack() as stack:
        bank = trained.bank() if use_bank else None
        if bank is not None:
            stack.callback(bank.close)
        bench = build(config, progress or SilentProgress(), weights=trained.weights, bank=bank)
        stack.callback(bench.envs.close)
        return bench.evaluate(trained.weights.name)

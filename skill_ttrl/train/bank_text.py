"""The run's side of text edits: every `optimize.every` steps of the rl phase one step of SkillOpt on the run's own bank.

The bank is written as a document, the rollouts of the step are reflected on, and what the edits changed becomes one update of the bank. So one
bank has two optimizers: weights learn to use it, and edits change what it says. Success is what the learner is rewarded for, or what
the environment says; true answers are shown only where they are the reward. With a gate (`skills.gate`) the update waits for its decision
as every other one does.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from skill_ttrl.config import OptimizeConfig
from skill_ttrl.errors import BudgetError, CheckpointError, SkillBankError
from skill_ttrl.optimize.calls import Calls, EndpointChat
from skill_ttrl.optimize.documents import apply_patch_outside
from skill_ttrl.optimize.engines import asks_endpoint, make_optimizer
from skill_ttrl.optimize.schedule import budget_of
from skill_ttrl.optimize.types import Optimizer, Patch, RolloutResult, StepView, unwrapped
from skill_ttrl.skills.document import document_changes, document_of
from skill_ttrl.train.document_rollouts import as_result
from skill_ttrl.train.run import Run, TrainingComponents
from skill_ttrl.types import Change, Group, derive_seed

SOURCE = "optimize"
"""Source of the skills, and reason of the updates."""
OPTIMIZE_LOG = "optimize.jsonl"
"""In a run's folder: each step of text edits, and what came of it."""
UNPAID = "The budget for language models is spent: text edits have ended."
REFUSED = "Some text edits could not become skills"
"""Begin the warnings of these; each is given once."""


@dataclass
class BankText:
    """The text optimizer of a run that also trains weights."""

    config: OptimizeConfig
    optimizer: Optimizer
    total: int
    """Steps with text edits in the whole run."""
    updates: int = 0
    """Those that had edits to select from: the scheduler counts these."""
    close: Callable[[], None] = lambda: None
    """Ends the connections to the optimizer's model."""

    def due(self, step: int) -> bool:
        """True if step `step` (from 0) ends with text edits."""
        return self.config.every is not None and (step + 1) % self.config.every == 0

    def state_dict(self) -> dict[str, Any]:
        """JSON-able state for a checkpoint; that of the optimizer too, where it has any."""
        own: dict[str, Any] = getattr(unwrapped(self.optimizer), "state_dict", dict)()
        return {"updates": self.updates, "optimizer": own}

    def propose(self, document: str, rollouts: Sequence[RolloutResult], number: int, seed: int) -> Patch:
        """The edits of one step, at most as many as the schedule allows: reflect, aggregate, select."""
        view = StepView(number, 1, document, rollouts, self.config.edit_budget, seed)
        patches = self.optimizer.reflect(view)
        merged = self.optimizer.merge(view, patches) if patches else Patch()
        if not merged.edits:
            return merged
        self.updates += 1
        most = budget_of(self.config, self.updates, self.total)
        return merged if len(merged.edits) <= most else self.optimizer.select(view, merged, most)


def make_bank_text(components: TrainingComponents, state: Mapping[str, Any]) -> BankText | None:
    """The text optimizer of a run, restored from a checkpoint's state; None where `optimize.every` is not set.

    Raises:
        ConfigError: the optimizer cannot be made.
        CheckpointError: that state is damaged.
    """
    config = components.config.optimize
    if config is None or config.every is None:
        return None
    endpoints = components.config.endpoints
    chat = EndpointChat(endpoints) if asks_endpoint(config, endpoints) else None
    calls = Calls(chat, lambda *_, **__: [])  # the run's own rollouts are reflected on
    optimizer = make_optimizer(calls, config)
    close = (lambda: None) if chat is None else chat.close
    found = BankText(config, optimizer, components.config.rl.steps // config.every, close=close)
    if (saved := state.get(SOURCE)) is not None:
        try:
            found.updates = int(saved["updates"])
            if saved["optimizer"]:
                unwrapped(optimizer).load_state_dict(saved["optimizer"])
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"What the checkpoint holds of optimize cannot be read ({error}). It is damaged."
            ) from None
    return found


def edit_text(run: Run, text: BankText | None, groups: Sequence[Group], step: int) -> dict[str, float]:
    """Let a step's rollouts edit the text of the bank, where that is due. Returns the metrics.

    Args:
        run: its bank changes by one update or not at all.
        text: the text optimizer; None: nothing edits the bank.
        groups: the step's rollouts, rewarded.
        step: its number.

    Raises:
        EndpointError: a language model cannot be reached.
    """
    bank = run.components.bank
    if text is None or not bank or not text.due(step):
        return {}
    shows = run.config.rl.reward == "label"
    before, rollouts = bank.target.snapshot(), rollouts_of(groups, text.config.batch_size, show_reference=shows)
    document, number = document_of(before), (step + 1) // (text.config.every or 1)
    report: Sequence[Mapping[str, Any]] = []
    changes: tuple[Change, ...] = ()
    try:
        patch = text.propose(document, rollouts, number, derive_seed(run.config.seed, SOURCE, step))
        candidate, report = apply_patch_outside(document, patch)
        changes, origin = document_changes(before, candidate, source=SOURCE, round=step)
        if changes:
            evidence = tuple(dict.fromkeys(result.id for result in rollouts if not result.hard))
            bank.apply(changes, reason=SOURCE, evidence=evidence, round=step, origin=origin)
    except BudgetError as error:
        run.warn(f"{UNPAID} {error}", once=UNPAID)
    except SkillBankError as error:
        changes = ()
        run.warn(f"{REFUSED}, first in step {step}: {error}", once=REFUSED)
    failures = sum(not result.hard for result in rollouts)
    applied = sum(str(each["status"]).startswith("applied") for each in report)
    record = {
        "phase": "rl",
        "step": step,
        "rollouts": len(rollouts),
        "failures": failures,
        "edits": len(report),
        "applied": applied,
        "changed": len(changes),
        "report": [dict(each) for each in report],
        "changes": [{"kind": change.kind, "id": change.skill.id} for change in changes],
    }
    run.folder.append_jsonl(OPTIMIZE_LOG, [json.dumps(record, ensure_ascii=False)])
    run.progress.notice(
        f"optimize: step {step + 1}: {applied} of {len(report)} edits applied ({failures} of {len(rollouts)} rollouts failed), {len(changes)} "
        "skills changed."
    )
    return {
        "optimize/failures": float(failures),
        "optimize/edits": float(applied),
        "optimize/changes": float(len(changes)),
        **bank.metrics(),
    }


def rollouts_of(groups: Sequence[Group], most: int, *, show_reference: bool) -> list[RolloutResult]:
    """At most `most` rollouts of the groups: the first of each, then the second of each, and so on.

    A rollout succeeded where the environment says so, and where it does not grade, where it was rewarded.
    """
    rounds = zip_longest(*(group.trajectories for group in groups))
    found = []
    for each in [trajectory for one in rounds for trajectory in one if trajectory is not None][:most]:
        said, rewarded = each.success, each.error is None and (each.reward or 0.0) > 0
        success = rewarded if said is None else said
        found.append(as_result(each, show_reference=show_reference, success=success))
    return found

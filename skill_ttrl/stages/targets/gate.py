"""The gate for changes of a bank outside of a run: a policy rolls out both versions on its held-out training tasks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from skill_ttrl.config import GateConfig
from skill_ttrl.envs import resolve_env
from skill_ttrl.errors import ConfigError
from skill_ttrl.optimize.paired import GateOutcome
from skill_ttrl.progress import Progress, SilentProgress
from skill_ttrl.skills.bank.bank import SkillBank
from skill_ttrl.skills.settings import BankSettings
from skill_ttrl.skills.snapshot import Snapshot
from skill_ttrl.stages.inputs.tasks import own_training_tasks, source_tasks, split_tasks
from skill_ttrl.stages.setup.build import build_for_eval, check_graded
from skill_ttrl.stages.targets.resolve import EvalTarget, resolve_target
from skill_ttrl.stages.training.bank_gate import BankGate, TestChange
from skill_ttrl.stages.training.run_bank import RunBank
from skill_ttrl.types import Task, derive_seed


@contextmanager
def open_gate(
    policy: str,
    overrides: Sequence[str] = (),
    *,
    config: str | None = None,
    progress: Progress | None = None,
) -> Iterator[TestChange]:
    """Load a policy, and yield the test of bank changes that `merge` and `distill` take. Its `skills.gate` sets how the test decides.

    Args:
        policy: a run, a checkpoint, a model, or `openai` (`resolve_target`). Its `skills` section says how prompts show skills.
        overrides: changes to its config, such as `skills.gate.alpha=0.01`.
        config: a plain model's recipe.
        progress: reports what was left out.

    Raises:
        ConfigError: the policy has no `skills` section, too few tasks, or an environment that cannot grade them.
        SkillTTRLError: a part cannot be made; the message names it.
    """
    progress = progress or SilentProgress()
    target = resolve_target(policy, overrides, config=config)
    skills = target.config.skills
    if skills is None:
        raise ConfigError(
            f"{policy} uses no skills (its config has no skills section), so it cannot test the bank. Name another policy, or add "
            "the section, e.g. --gate-set skills.embedder=hash."
        )
    gate = skills.gate or GateConfig()
    with ExitStack() as stack:
        chosen = _tasks(target, gate)
        worker, tasks_of = build_for_eval(target.config, {"gate": chosen}, progress, weights=target.weights)
        stack.callback(worker.close)
        instead = "Name tasks with true answers: --gate-set skills.gate.data.path=FILE."
        check_graded(tasks_of["gate"][0], worker.envs, "The change is to pass a gate", instead)
        bank = stack.enter_context(SkillBank(None, BankSettings.from_config(skills)))
        opened, seed = RunBank(skills, bank), derive_seed(target.config.seed, "gate")
        tested = BankGate(gate, tasks_of["gate"], worker)

        def test(before: Snapshot, after: Snapshot) -> GateOutcome:
            return tested.test(opened, before, after, seed)

        yield test


def _tasks(target: EvalTarget, gate: GateConfig) -> list[Task]:
    """The tasks that a run of this config holds out for its gate."""
    config = target.config
    if gate.data is None:
        return split_tasks(own_training_tasks(config), gate.tasks, config.seed)[1]
    return source_tasks(config, resolve_env(config.env.id), gate.data, "train")[: gate.tasks]

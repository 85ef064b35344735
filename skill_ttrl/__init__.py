"""Skill-TTRL: an agent that becomes better without labels.

The public names of the library, loaded when they are first used: `import skill_ttrl` itself is cheap and loads no
torch. Everything that the command line does is here too (`skill_ttrl.commands`).
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from skill_ttrl.agents.agent import PromptFormatter
    from skill_ttrl.answers import compute_reward, grade_answer
    from skill_ttrl.compat.skillrl import (
        BaseLLMClient,
        OpenAIChatClient,
        SimpleQAEnv,
        SkillEnv,
        SkillOptConfig,
        SkillOptTrainer,
    )
    from skill_ttrl.compat.trainer import RolloutEngine, SkillTTRLTrainer
    from skill_ttrl.config import SkillTTRLConfig, load_config
    from skill_ttrl.optimize.types import Edit, GateAction, GateResult, Patch, RawPatch, RolloutResult
    from skill_ttrl.rl.algorithms import (
        compute_gae_advantage,
        compute_grpo_advantage,
        compute_grpo_nsr_outcome_advantage,
        whiten_advantages,
    )
    from skill_ttrl.rl.losses import compute_entropy_bonus, compute_kl_penalty, compute_policy_loss
    from skill_ttrl.runs.reader import read_run
    from skill_ttrl.skills.bank import SkillBank
    from skill_ttrl.skills.mergers import SkillMerger
    from skill_ttrl.skills.ops import OutputParser
    from skill_ttrl.trust import trusting
    from skill_ttrl.types import BankUpdate, Completion, Group, Skill, SkillOps, Step, Task, Trajectory, VoteResult
    from skill_ttrl.voting import (
        apply_original_gt,
        apply_pseudo_labels,
        apply_ttrl_gt,
        batch_majority_vote,
        compute_ttrl_metrics,
        compute_voting_rewards,
        majority_vote,
        restore_labels,
    )
    from skill_ttrl.voting.rewards import RewardManager

__version__ = "0.1.0"

# This library reports nothing to anybody, and neither do those it loads, unless the user has said otherwise.
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
os.environ.setdefault("ANONYMIZED_TELEMETRY", "False")
os.environ.setdefault("DO_NOT_TRACK", "1")

# Waiting OpenMP threads go to sleep sooner than GNU's default. On cores that other work shares, spinning threads hold up
# the very ones they wait for, and small steps take many times as long; on idle cores it costs a few per cent.
# Must be set before torch is loaded.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")

__all__ = [
    "BankUpdate",
    "BaseLLMClient",
    "Completion",
    "Edit",
    "GateAction",
    "GateResult",
    "Group",
    "OpenAIChatClient",
    "OutputParser",
    "Patch",
    "PromptFormatter",
    "RawPatch",
    "RewardManager",
    "RolloutEngine",
    "RolloutResult",
    "SimpleQAEnv",
    "Skill",
    "SkillBank",
    "SkillEnv",
    "SkillMerger",
    "SkillOps",
    "SkillOptConfig",
    "SkillOptTrainer",
    "SkillTTRLConfig",
    "SkillTTRLTrainer",
    "Step",
    "Task",
    "Trajectory",
    "VoteResult",
    "__version__",
    "apply_original_gt",
    "apply_pseudo_labels",
    "apply_ttrl_gt",
    "batch_majority_vote",
    "compute_entropy_bonus",
    "compute_gae_advantage",
    "compute_grpo_advantage",
    "compute_grpo_nsr_outcome_advantage",
    "compute_kl_penalty",
    "compute_policy_loss",
    "compute_reward",
    "compute_ttrl_metrics",
    "compute_voting_rewards",
    "grade_answer",
    "load_config",
    "majority_vote",
    "read_run",
    "restore_labels",
    "trusting",
    "whiten_advantages",
]

_HOME = {
    name: module
    for module, names in {
        "agents.agent": "PromptFormatter",
        "answers": "compute_reward grade_answer",
        "config": "SkillTTRLConfig load_config",
        "compat.skillrl": "BaseLLMClient OpenAIChatClient SimpleQAEnv SkillEnv SkillOptConfig SkillOptTrainer",
        "optimize.types": "Edit GateAction GateResult Patch RawPatch RolloutResult",
        "rl.algorithms": "compute_gae_advantage compute_grpo_advantage compute_grpo_nsr_outcome_advantage whiten_advantages",
        "rl.losses": "compute_entropy_bonus compute_kl_penalty compute_policy_loss",
        "runs.reader": "read_run",
        "skills.bank": "SkillBank",
        "skills.mergers": "SkillMerger",
        "skills.ops": "OutputParser",
        "compat.trainer": "RolloutEngine SkillTTRLTrainer",
        "trust": "trusting",
        "types": "BankUpdate Completion Group Skill SkillOps Step Task Trajectory VoteResult",
        "voting": "apply_original_gt apply_pseudo_labels apply_ttrl_gt batch_majority_vote compute_ttrl_metrics "
        "compute_voting_rewards majority_vote restore_labels",
        "voting.rewards": "RewardManager",
    }.items()
    for name in names.split()
}
"""The module of each public name, below `skill_ttrl`."""


def __getattr__(name: str) -> Any:
    """Import the module of a public name when the name is first asked for, and keep what it gives."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from skill_ttrl.errors import naming_extra

    with naming_extra(f"{__name__}.{name}"):
        value = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

"""The text optimizer (SkillOpt): trains a document of skills while the weights stay frozen.

Public names are PyPI `skillrl` 1.0.0's and behave the same (docs/coming-from.md).
This room knows no environment, agent or run: rollouts and calls of models are handed in as callables.
"""

from skill_ttrl.optimize.documents import (
    apply_edit,
    apply_edit_with_report,
    apply_patch,
    apply_patch_with_report,
    extract_json,
)
from skill_ttrl.optimize.gate import evaluate_gate, select_gate_score
from skill_ttrl.optimize.schedule import (
    ConstantScheduler,
    CosineScheduler,
    LinearScheduler,
    LRScheduler,
    build_scheduler,
)
from skill_ttrl.optimize.types import (
    Edit,
    GateAction,
    GateResult,
    Patch,
    RawPatch,
    RolloutResult,
    compute_score,
    skill_hash,
)

__all__ = [
    "ConstantScheduler",
    "CosineScheduler",
    "Edit",
    "GateAction",
    "GateResult",
    "LRScheduler",
    "LinearScheduler",
    "Patch",
    "RawPatch",
    "RolloutResult",
    "apply_edit",
    "apply_edit_with_report",
    "apply_patch",
    "apply_patch_with_report",
    "build_scheduler",
    "compute_score",
    "evaluate_gate",
    "extract_json",
    "select_gate_score",
    "skill_hash",
]

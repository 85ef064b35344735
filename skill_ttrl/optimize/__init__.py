"""The text optimizer (SkillOpt): trains a document of skills while the weights stay frozen.

Public names are PyPI `skillrl` 1.0.0's and behave the same (docs/coming-from.md); they are loaded when first used.
This room knows no environment, agent or run: rollouts and calls of models are handed in as callables.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from skill_ttrl.optimize.documents import (
        apply_edit,
        apply_edit_with_report,
        apply_patch,
        apply_patch_with_report,
    )
    from skill_ttrl.optimize.schedule import (
        ConstantScheduler,
        CosineScheduler,
        LinearScheduler,
        LRScheduler,
        build_scheduler,
    )
    from skill_ttrl.optimize.scores import compute_score, evaluate_gate, select_gate_score, skill_hash
    from skill_ttrl.optimize.transcript import extract_json
    from skill_ttrl.optimize.types import Edit, GateAction, GateResult, Patch, RawPatch, RolloutResult

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

_HOME = {
    name: module
    for module, names in {
        "documents": "apply_edit apply_edit_with_report apply_patch apply_patch_with_report",
        "schedule": "ConstantScheduler CosineScheduler LRScheduler LinearScheduler build_scheduler",
        "scores": "compute_score evaluate_gate select_gate_score skill_hash",
        "transcript": "extract_json",
        "types": "Edit GateAction GateResult Patch RawPatch RolloutResult",
    }.items()
    for name in names.split()
}
"""The module of each public name, in this room."""


def __getattr__(name: str) -> Any:
    """Import the module of a public name when the name is first used."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

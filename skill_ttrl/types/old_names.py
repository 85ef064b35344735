"""Former names of the fields of stored data, with the present ones: what earlier runs wrote is read under the present names."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

_STEP = {
    "verdict": "action_status",
    "complaint": "parse_error",
    "left_out": "truncated_parts",
    "admissible": "admissible_actions",
    "mask": "completion_mask",  # of its completion
    "inserted": "inserted_spans",
}
_TASK = {"reference": "ground_truth", "true": "ground_truth"}
_STATS = {"created_round": "created_step", "last_used_round": "last_used_step"}
FIELDS: Mapping[str, Mapping[str, str]] = {
    "Trajectory": {**_STEP, **_TASK, "view": "prompt_variant", "last_observation": "final_obs"},
    "Case": {**_STEP, "last_observation": "final_obs"},
    "Task": _TASK,
    "TaskSamples": {
        **_TASK,
        "right": "is_correct",
        "cut_off": "truncated",
        "view": "prompt_variant",
        "answered_rate": "retrieval_hit_rate",
        "ops_errors": "skill_op_parse_errors",
        "inserted_tokens": "retrieved_tokens",
    },
    "VoteResult": {"agreement": "majority_ratio", "membership": "class_ids"},
    "Identity": {"tries": "rollouts_per_task"},
    "Skill": _STATS,
    "BankUpdate": {**_STATS, "round": "step"},
    "BankSettings": {"stale_after": "stale_after_steps"},
    "Evaluation": {"agreement": "majority_ratio", "answers_given_up": "undecided_answers"},
    "Summary": {
        "agreement": "majority_ratio",
        "mean_agreement": "mean_majority_ratio",
        "accuracy_bank_off": "accuracy_no_skills",
        "agreement_bank_off": "majority_ratio_no_skills",
        "majority_bank_off": "majority_no_skills",
        "bank_worth": "skill_gain",
        "bank_majority": "majority_gain",
        "answered_rate": "retrieval_hit_rate",
    },
}
"""Type → former field, of it or of a part of it → present field."""
LABELS = {"after, bank off": "after_no_skills"}
"""Former label of an evaluation → present one."""
_FREE = ("options", "extra", "rewards", "kwargs", "config")
"""Fields whose content is the user's."""
INFO = {"advice": "expert_action"}
"""Former entry of a step's `info` → present one; the others are the environment's."""
_PATTERNS = {
    kind: re.compile("|".join([*(f'"{name}"' for name in (*names, *INFO)), *map(re.escape, LABELS)]).encode())
    for kind, names in FIELDS.items()
}


def has_old_names(kind: str, text: str | bytes) -> bool:
    """Tell whether a stored value of a type may hold former names; a quick look at its text."""
    pattern = _PATTERNS.get(kind)
    return pattern is not None and pattern.search(text.encode() if isinstance(text, str) else text) is not None


def with_current_names(kind: str, value: Any) -> Any:
    """A stored value of a type, as JSON holds it, under the present names."""
    names = FIELDS.get(kind, {})
    if isinstance(value, list):
        return [with_current_names(kind, each) for each in value]
    if not isinstance(value, dict):
        return value
    return {
        names.get(name, name): (
            {INFO.get(key, key): said for key, said in each.items()}
            if name == "info" and isinstance(each, dict)
            else each
            if name in _FREE
            else LABELS.get(each, each)
            if name == "label" and isinstance(each, str)
            else with_current_names(kind, each)
        )
        for name, each in value.items()
    }


def current_text(kind: str, text: str | bytes) -> str | bytes:
    """The JSON of a stored value under the present names; the text itself where it has no former name, or is no JSON."""
    if not has_old_names(kind, text):
        return text
    try:
        return json.dumps(with_current_names(kind, json.loads(text)))
    except ValueError:
        return text

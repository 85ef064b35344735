"""The data of SkillOpt's stages, in PyPI `skillrl`'s names: edits, patches, scored rollouts, verdicts of the gate; and the protocol of an optimizer.

`LLMOptimizer` uses a language model (`llm_optimizer.py`). One of the user's own is a class with the three methods of `Optimizer`, named as
`optimize.optimizer: module:attribute`.

The data round-trip through `from_dict` and `to_dict`, with `skillrl` 1.0.0's keys, so its files can be read and ours be read by
it. The dataclasses are mutable as there. `from_dict` of an edit or a patch reads a model's JSON and never raises: what
is no edit becomes one of an unknown operation, which the editor skips and reports. A rollout comes from an environment's
code: a score that is no number is an error.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal, Protocol

from skill_ttrl.errors import DataError
from skill_ttrl.sanitize import replace_surrogates

SourceType = Literal["failure", "success"]
GateAction = Literal["accept_new_best", "accept", "reject"]


@dataclass
class Edit:
    """One change of the document."""

    op: str
    """`append`, `insert_after`, `replace` or `delete`; anything else is skipped by the editor."""
    content: str = ""
    """New text; unused by `delete`."""
    target: str = ""
    """Text in the document where the change is made; unused by `append`."""
    support_count: int | None = None
    """Rollouts that support the change."""
    source_type: SourceType | None = None
    """The analyst that asked for it."""
    merge_level: int | None = None
    """Level of the merge that made it, 1 the first; None: as the analyst wrote it."""

    @classmethod
    def from_dict(cls, d: Any) -> Edit:
        """Read an edit as a model wrote it; where it is none, one of an unknown operation that holds what was written."""
        if not isinstance(d, Mapping) or any(isinstance(d.get(key), Mapping | list) for key in ("content", "target")):
            return Edit("", as_text(d))
        source: Any = d.get("source_type")
        return Edit(
            as_text(d.get("op", "append")),
            as_text(d.get("content") or ""),
            as_text(d.get("target") or ""),
            _count(d.get("support_count")),
            source if source in ("failure", "success") else None,
            _count(d.get("merge_level")),
        )

    def to_dict(self) -> dict[str, Any]:
        """The edit as JSON; what is empty is left out."""
        own = {"op": self.op, "content": self.content, "target": self.target or None}
        origin = {name: getattr(self, name) for name in ("support_count", "source_type", "merge_level")}
        return {name: value for name, value in (own | origin).items() if value is not None}


@dataclass
class Patch:
    """A set of edits with its reasons."""

    edits: list[Edit] = field(default_factory=list)
    reasoning: str = ""
    ranking_details: dict[str, Any] | None = None
    """The ranking model's answer, once the edits are cut to the budget."""

    @classmethod
    def from_dict(cls, d: Mapping[str, Any]) -> Patch:
        """Read a patch as a model wrote it. A single edit in place of a list is a list of one."""
        edits, details = d.get("edits") or [], d.get("ranking_details")
        return cls(
            [each if isinstance(each, Edit) else Edit.from_dict(each) for each in _listed(edits)],
            as_text(d.get("reasoning") or ""),
            dict(details) if isinstance(details, Mapping) else None,
        )

    def to_dict(self) -> dict[str, Any]:
        """The patch as JSON."""
        details = {} if self.ranking_details is None else {"ranking_details": self.ranking_details}
        return {"reasoning": self.reasoning, "edits": [edit.to_dict() for edit in self.edits], **details}


@dataclass
class RawPatch:
    """An analyst's patch and the mini-batch it is from."""

    patch: Patch
    source_type: SourceType = "failure"
    batch_size: int = 0
    """Rollouts that the analyst saw."""
    failure_summary: list[dict[str, Any]] = field(default_factory=list)
    """Kinds of failures as the analyst named them: `failure_type`, `count`, `description`."""

    @classmethod
    def from_dict(cls, d: Any) -> RawPatch | None:
        """Read an analyst's patch, with its metadata around it or next to its keys; None where there is none."""
        inner = d.get("patch", d) if isinstance(d, Mapping) else None
        if not isinstance(inner, Mapping):
            return None
        return cls(
            Patch.from_dict(inner),
            "success" if d.get("source_type") == "success" else "failure",
            _count(d.get("batch_size")) or 0,
            failures_in(d),
        )

    def to_dict(self) -> dict[str, Any]:
        """The patch with its metadata as JSON; what an analyst did not add is left out."""
        own = {"patch": self.patch.to_dict(), "source_type": self.source_type, "batch_size": self.batch_size}
        return own | ({"failure_summary": self.failure_summary} if self.failure_summary else {})


@dataclass
class RolloutResult:
    """A scored rollout: what was asked, what was said, what it was worth."""

    id: str
    hard: int = 0
    """1 where the task is solved, else 0."""
    soft: float = 0.0
    """Partial credit, from 0 to 1."""
    n_turns: int = 0
    fail_reason: str = ""
    task_type: str = ""
    task_description: str = ""
    predicted_answer: str = ""
    question: str = ""
    reference_text: str = ""
    target_system_prompt: str = ""
    target_user_prompt: str = ""
    conversation: list[dict[str, Any]] = field(default_factory=list)
    """The messages, each with a `role` and a `content`."""
    extras: dict[str, Any] = field(default_factory=dict)
    """Further keys of the environment; in JSON they stand among the others."""

    @property
    def ungraded(self) -> bool:
        """True where nothing tells success: such a rollout is neither a success nor a failure."""
        return bool(self.extras.get("ungraded"))

    @classmethod
    def from_dict(cls, d: Mapping[str, Any]) -> RolloutResult:
        """Read a rollout; unknown keys become `extras`.

        Raises:
            DataError: a score or the number of turns is no number.
        """
        known, given = {each.name for each in fields(cls)}, d.get("extras")
        extras = {key: value for key, value in d.items() if key not in known}
        return cls(
            id=str(d.get("id", "")),
            hard=int(_number(d, "hard")),
            soft=_number(d, "soft"),
            n_turns=int(_number(d, "n_turns")),
            conversation=list(d.get("conversation") or []),
            extras={**extras, **(given if isinstance(given, Mapping) else {})},
            **{name: str(d.get(name) or "") for name in _TEXTS},
        )

    def to_dict(self) -> dict[str, Any]:
        """The rollout as JSON; what is empty is left out, and `extras` stand among the fields, which have precedence."""
        present = {name: getattr(self, name) for name in ("n_turns", *_TEXTS, "conversation") if getattr(self, name)}
        own = {"id": self.id, "hard": self.hard, "soft": self.soft, **present}
        return {**own, **{key: value for key, value in self.extras.items() if key not in own}}


_TEXTS = tuple(each.name for each in fields(RolloutResult) if each.type == "str" and each.name != "id")


@dataclass
class GateResult:
    """A decision of the gate, with the state after it."""

    action: GateAction
    current_skill: str
    current_score: float
    best_skill: str
    best_score: float
    best_step: int


@dataclass(frozen=True)
class StepView:
    """Facts of one step that an optimizer may use."""

    step: int
    """Number of the step, from 1."""
    epoch: int
    document: str
    """The present document."""
    rollouts: Sequence[RolloutResult]
    """Rollouts of the present document on this step's training items."""
    max_edits: int
    """Most edits of one patch."""
    seed: int
    fallbacks: Counter[str] = field(default_factory=Counter)
    """An optimizer counts here, by stage, where it had no usable answer and a rule or nothing stood in for it."""


class Optimizer(Protocol):
    """Proposes edits. Everything it draws at random comes from `view.seed`."""

    def reflect(self, view: StepView) -> list[RawPatch]:
        """Patches that the rollouts suggest, from failures and from successes."""

    def merge(self, view: StepView, patches: Sequence[RawPatch]) -> Patch:
        """One patch for several."""

    def select(self, view: StepView, patch: Patch, max_edits: int) -> Patch:
        """The `max_edits` most important edits of a patch; called where it has more."""


def unwrapped(optimizer: Optimizer) -> Any:
    """The optimizer itself, where it is a user's own (`engines.OwnOptimizer`)."""
    return getattr(optimizer, "own", optimizer)


def _listed(edits: Any) -> list[Any]:
    return list(edits) if isinstance(edits, list | tuple) else [edits]


def failures_in(answer: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The kinds of failures that an analyst's answer names."""
    return [dict(each) for each in _listed(answer.get("failure_summary")) if isinstance(each, Mapping)]


def as_text(value: Any) -> str:
    """A value of a model's JSON as text that a file can hold."""
    if isinstance(value, Mapping | list):
        value = json.dumps(value, ensure_ascii=False, default=str)
    return "" if value is None else replace_surrogates(str(value))


def _count(value: Any) -> int | None:
    """A whole number, also one written as text; None for anything else."""
    if isinstance(value, str) and value.strip().isdecimal() and len(value) < 10:
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _number(d: Mapping[str, Any], key: str) -> float:
    value = d.get(key)
    try:
        number = float(value or 0)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise DataError(
            f"The rollout {d.get('id', '')!r} has {key} = {value!r}; a number is needed (hard: 1 for solved)."
        )
    return number


def compute_score(results: Iterable[RolloutResult | Mapping[str, Any]]) -> tuple[float, float]:
    """Means of `hard` and `soft`; (0, 0) of nothing."""
    rows = [each if isinstance(each, Mapping) else vars(each) for each in results]
    hard = soft = 0.0  # added in turn: `sum` compensates from Python 3.12 on, and scores are compared to the last digit
    for row in rows:
        hard += float(row.get("hard") or 0)
        soft += float(row.get("soft") or 0)
    return (hard / len(rows), soft / len(rows)) if rows else (0.0, 0.0)


def graded(results: Iterable[RolloutResult]) -> list[RolloutResult]:
    """The results whose success is known: only these are lessons."""
    return [result for result in results if not result.ungraded]


def skill_hash(content: str) -> str:
    """16 hexadecimal digits of the document's SHA-256: the key of its evaluations."""
    return hashlib.sha256((content or "").encode("utf-8", "surrogatepass")).hexdigest()[:16]


def content_hash(*content: Any) -> str:
    """24 hexadecimal digits that are the same for the same JSON content."""
    text = json.dumps(content, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()

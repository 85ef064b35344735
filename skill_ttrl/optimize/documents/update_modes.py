"""Update modes: what analysts propose, and so what is merged, ranked and carried out.

`patch` (edits of the document), `rewrite_from_suggestions` (suggestions, from which one call writes the whole document) and
`full_rewrite_minibatch` (each analyst writes a whole document, and merging makes one of them).

A suggestion and a candidate are edits of another form: merging, ranking and records treat all three alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Literal

from skill_ttrl.optimize.replies import extract_json
from skill_ttrl.optimize.transcript import unescape_tags
from skill_ttrl.optimize.types import Edit, Patch
from skill_ttrl.sanitize import replace_surrogates

ModeName = Literal["patch", "rewrite_from_suggestions", "full_rewrite_minibatch"]


@dataclass
class Suggestion(Edit):
    """A change of the document in words: `op` is its type, `target` its title, `content` what to do."""

    payload_key: ClassVar[str] = "revise_suggestions"
    motivation: str = ""
    priority_hint: str = ""

    @classmethod
    def from_dict(cls, d: Any) -> Suggestion:
        """Read a suggestion as a model wrote it; a plain text is what to do."""
        given = d if isinstance(d, Mapping) else {"instruction": d}
        names = {
            "op": given.get("type") or "clarify",
            "content": given.get("instruction"),
            "target": given.get("title"),
        }
        found = cls(**asdict(Edit.from_dict({**given, **names})))
        found.motivation, found.priority_hint = _text(given.get("motivation")), _text(given.get("priority_hint"))
        return found

    def to_dict(self) -> dict[str, Any]:
        """The suggestion as JSON; what is empty is left out."""
        words = {"motivation": self.motivation, "instruction": self.content, "priority_hint": self.priority_hint}
        return {"type": self.op, "title": self.target, **{k: v for k, v in words.items() if v}, **_origin(self)}


@dataclass
class Candidate(Edit):
    """A whole document: `content` is its text, `target` a title."""

    payload_key: ClassVar[str] = "skill_candidates"
    change_summary: list[str] = field(default_factory=list)

    @classmethod
    def from_dict(cls, d: Any) -> Candidate:
        """Read a candidate as a model wrote it; a plain text is the document."""
        given = d if isinstance(d, Mapping) else {"new_skill": d}
        names = {"op": "rewrite", "content": given.get("new_skill"), "target": given.get("title")}
        summary = given.get("change_summary")
        lines = [_text(line) for line in summary] if isinstance(summary, list) else []
        return cls(**asdict(Edit.from_dict({**given, **names})), change_summary=lines)

    def to_dict(self) -> dict[str, Any]:
        """The candidate as JSON."""
        own = {"title": self.target, "change_summary": list(self.change_summary), "new_skill": self.content}
        return {**own, **_origin(self)}


@dataclass(frozen=True, slots=True)
class UpdateMode:
    """A form of proposals and the prompts that ask for it."""

    name: ModeName
    item: type[Edit]
    suffix: str = ""
    """Behind the name of a prompt: `analyst_error` + `_rewrite`."""

    @property
    def key(self) -> str:
        """The list of proposals in an answer and in a patch's file."""
        return self.item.payload_key

    @property
    def ranks(self) -> bool:
        """True if proposals are counted against the edit budget: whole documents are not."""
        return self.item is not Candidate

    def read(self, answer: str | None) -> Patch | None:
        """The patch in an answer; None where there is none."""
        return self.patch_in(extract_json(unescape_tags(answer or "")) or {})

    def patch_in(self, found: Mapping[str, Any]) -> Patch | None:
        """The patch in an answer that has been read, also where it stands under `patch`; None where there is none."""
        inner = found if self.key in found else found.get("patch")
        if not isinstance(inner, Mapping) or not isinstance(inner.get(self.key), list):
            return None
        if self.item is Edit:
            return Patch.from_dict(inner)
        items = [self.item.from_dict(each) for each in inner[self.key]]
        return Patch([item for item in items if item.content.strip()], _text(inner.get("reasoning")))


MODES: Mapping[ModeName, UpdateMode] = {
    mode.name: mode
    for mode in (
        UpdateMode("patch", Edit),
        UpdateMode("rewrite_from_suggestions", Suggestion, "_rewrite"),
        UpdateMode("full_rewrite_minibatch", Candidate, "_full_rewrite"),
    )
}


def _origin(item: Edit) -> dict[str, Any]:
    found = {"support_count": item.support_count, "source_type": item.source_type, "merge_level": item.merge_level}
    return {name: value for name, value in found.items() if value is not None}


def _text(value: Any) -> str:
    return "" if value is None else replace_surrogates(str(value))

"""The memory of an optimization besides its documents: notes on the steps of this epoch, and lessons of earlier epochs."""

from __future__ import annotations

from dataclasses import dataclass, replace

from skill_ttrl.optimize.lessons import buffer, meta_skill
from skill_ttrl.optimize.lessons.buffer import StepNote


@dataclass(frozen=True, slots=True)
class Memory:
    """Facts that later steps read. All of it follows from the journal, so none of it is stored."""

    meta_skill: str = ""
    """Lessons on editing this document; empty in the first two epochs."""
    notes: tuple[StepNote, ...] = ()
    """Of the steps of this epoch."""
    epoch_document: str | None = None
    """The document at the end of the last epoch; None in the first one."""

    def context(self) -> dict[str, str]:
        """Sections of the optimizer's prompts, by heading."""
        return {
            meta_skill.HEADING: meta_skill.show_memory(self.meta_skill),
            buffer.HEADING: buffer.show_notes(self.notes),
        }

    def with_note(self, note: StepNote) -> Memory:
        """The same with a further step."""
        return replace(self, notes=(*self.notes, note))

    def after_epoch(self, document: str, lessons: str | None) -> Memory:
        """The memory with which the next epoch begins; None keeps the lessons that are there."""
        return Memory(self.meta_skill if lessons is None else lessons, (), document)

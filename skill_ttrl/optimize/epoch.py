"""The end of an epoch: the same items under this epoch's document and the last's, and what is written from that.

The slow update writes the guidance block of the document, the meta-skill the memory of the optimizer; both read one comparison.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from skill_ttrl.config import OptimizeConfig
from skill_ttrl.errors import ConfigError
from skill_ttrl.optimize.calls import Calls, Item
from skill_ttrl.optimize.gating.selection import Evaluation
from skill_ttrl.optimize.lessons import Memory, Pair, compare, count_changes, with_guidance
from skill_ttrl.optimize.record import OptimizeState, StepRecord
from skill_ttrl.optimize.reflection.writer import LLMWriter
from skill_ttrl.optimize.scores import compute_score, skill_hash

STAGE = "comparison"
"""Rollouts of a comparison are counted under this name."""


@dataclass
class EpochRecord:
    """The record of an epoch's end: comparison, guidance, memory, decision."""

    epoch: int
    step: int
    """Steps behind it."""
    before: str
    """The document at the end of the last epoch."""
    after: str
    """The document at the end of this one."""
    pairs: Sequence[Pair] = ()
    guidance: str | None = None
    """New text of the guidance block."""
    meta_skill: str | None = None
    """New memory of the optimizer."""
    candidate: str | None = None
    """The document with the new guidance."""
    action: str = "no_content"
    """`force_accept`, one of the gate's, `no_pairs` (nothing to compare) or `no_content` (no guidance was written)."""
    reason: str = ""
    evaluation: Evaluation | None = None
    candidate_score: float | None = None
    fallbacks: Counter[str] = field(default_factory=Counter)

    def row(self) -> dict[str, Any]:
        """The record as JSON, with SkillOpt's names."""
        row: dict[str, Any] = {
            "epoch": self.epoch,
            "step": self.step,
            "action": self.action,
            "reason": self.reason,
            "changes": count_changes(self.pairs),
            "prev_hard": compute_score([pair.before for pair in self.pairs])[0] if self.pairs else None,
            "curr_hard": compute_score([pair.after for pair in self.pairs])[0] if self.pairs else None,
            "slow_update_content": self.guidance,
            "fallbacks": dict(self.fallbacks),
        }
        if self.candidate is not None:
            row["candidate_hash"] = skill_hash(self.candidate)
        if self.candidate_score is not None:
            row["candidate_gate_score"] = self.candidate_score
        return row


@dataclass(frozen=True)
class Features:
    """Features that are on, given the optimizer."""

    slow_update: bool
    meta_skill: bool

    @classmethod
    def of(cls, config: OptimizeConfig, writer: LLMWriter | None) -> Features:
        """Resolve the settings that are None.

        Raises:
            ConfigError: a feature is on that asks a language model, and the optimizer has none.
        """
        asked = {
            "slow_update.enabled": config.slow_update.enabled,
            "meta_skill": config.meta_skill,
            "lr_control_mode: autonomous": config.lr_control_mode == "autonomous",
            "update_mode: rewrite_from_suggestions": config.update_mode == "rewrite_from_suggestions",
            "skill_aware.consolidate_threshold": config.skill_aware.enabled
            and config.skill_aware.consolidate_threshold > 0,
        }
        if writer is None and (named := [name for name, on in asked.items() if on]):
            raise ConfigError(
                f"optimize.{named[0]} asks a language model, and optimize.optimizer: {config.optimizer} has none "
                "(no attribute `writer`). Turn it off, or take the optimizer 'openai'."
            )
        has = writer is not None
        slow, meta = config.slow_update.enabled, config.meta_skill
        return cls(has if slow is None else slow, has if meta is None else meta)

    def compares(self, epoch: int, epochs: int) -> bool:
        """True if the end of this epoch compares documents: from the second on, and in the last one for the guidance alone."""
        return epoch > 1 and (self.slow_update or (self.meta_skill and epoch < epochs))


def look_back(
    record: EpochRecord,
    memory: Memory,
    features: Features,
    calls: Calls,
    config: OptimizeConfig,
    items: Sequence[Item],
    writer: LLMWriter,
) -> None:
    """Compare the record's two documents on the training `items`, in their order, and write guidance and memory from that."""
    slow = config.slow_update

    def roll_out(document: str, chunk: Sequence[Item]) -> Sequence[Any]:
        return calls.roll_out(STAGE, document, chunk)

    documents = record.before, record.after
    record.pairs = compare(roll_out, documents, items, slow.samples, slow.pair_policy)
    if not record.pairs:
        record.action = "no_pairs"
        return
    if features.slow_update:
        record.guidance = writer.write_guidance(*documents, record.pairs, record.fallbacks)
        if record.guidance is not None:
            record.candidate = with_guidance(record.after, record.guidance)
    if features.meta_skill and record.epoch < config.epochs:
        record.meta_skill = writer.write_memory(*documents, memory.meta_skill, record.pairs, record.fallbacks)


class Watch(Protocol):
    """A listener to the loop; where it overrides nothing it does nothing."""

    def begin(self, state: OptimizeState, steps: int) -> None:
        """The first document is evaluated, and `steps` steps follow."""
        return

    def enter(self, step: int, stage: str) -> None:
        """A stage of a step begins."""
        return

    def step(self, record: StepRecord, state: OptimizeState) -> None:
        """A step is finished. May raise to leave."""
        return

    def epoch(self, record: EpochRecord, state: OptimizeState) -> None:
        """Two epochs were compared, at the end of the later one."""
        return


class Silent(Watch):
    """Listens and does nothing."""

"""The merger that counts, for `skills.merger: heuristic`; it needs no language model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from skill_ttrl.skills.changes import quote
from skill_ttrl.skills.merge.types import Draft, Merged, Rewrite, rewrites_by_base, titles
from skill_ttrl.skills.ops import ParsedOutput
from skill_ttrl.skills.similarity import Similarity, clusters, consensus_text
from skill_ttrl.skills.snapshot import Snapshot


class HeuristicMerger:
    """Fuses by counting: texts that say the same are one, competing rewrites of a skill are voted on (`consensus_text`).

    Args:
        similarity: compares texts whose words differ (`embedding_similarity`); None: only texts that differ in nothing but case,
            punctuation and fillers are fused.
        threshold: least similarity of texts that are fused.
    """

    def __init__(self, *, similarity: Similarity | None = None, threshold: float = 0.95) -> None:
        self.similarity = similarity
        self.threshold = threshold

    def merge(
        self,
        outputs: Sequence[ParsedOutput],
        *,
        retrieved: Sequence[Sequence[str]] = (),
        snapshot: Snapshot | None = None,
    ) -> Merged:
        """See `Merger.merge`. The texts of rewritten skills come from the snapshot, where there is one."""
        rewrites, skipped = self._rewrites(outputs, snapshot)
        return Merged(self._drafts(outputs), useful_ids(retrieved), rewrites, skipped)

    def _drafts(self, outputs: Sequence[ParsedOutput]) -> tuple[Draft, ...]:
        written = [
            (place, text, title)
            for place, output in enumerate(outputs)
            for text, title in zip(output.skill_ops.generate, titles(output.skill_ops), strict=True)
        ]
        found = clusters([text for _, text, _ in written], self.similarity, self.threshold)
        return tuple(
            Draft(
                cluster.text,
                _most_frequent([written[member][2] for member in cluster.members]),
                tuple(sorted({written[member][0] for member in cluster.members})),
            )
            for cluster in found
        )

    def _rewrites(
        self, outputs: Sequence[ParsedOutput], snapshot: Snapshot | None
    ) -> tuple[tuple[Rewrite, ...], tuple[str, ...]]:
        """One rewrite for each skill, and which skills stay as they are, with the reason."""
        found, skipped = list[Rewrite](), list[str]()
        for base, written in rewrites_by_base(outputs).items():
            skill = snapshot.get(base) if snapshot is not None else None
            known = skill.text if skill is not None else None
            best = consensus_text([text for _, text in written], self.similarity, self.threshold, base=known)
            if best.members:
                found.append(Rewrite(base, best.text, tuple(written[member][0] for member in best.members)))
            else:
                skipped.append(
                    f"evolve of {quote(base)}: its {len(written)} rewrites differ, and none says more than the skill does"
                )
        return tuple(found), tuple(skipped)


def _most_frequent(texts: Sequence[str]) -> str:
    counts = Counter(text for text in texts if text)
    return min(counts, key=lambda text: (-counts[text], len(text), text), default="")


def useful_ids(retrieved: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """Ids that stand in more than one list (or in the only list), most frequent first."""
    counts = Counter(skill_id for given in retrieved for skill_id in set(given))
    least = min(2, len(retrieved))
    return tuple(sorted((name for name in counts if counts[name] >= least), key=lambda name: (-counts[name], name)))

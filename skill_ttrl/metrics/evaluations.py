"""Metrics of evaluations, which go to the tracker and stand in `evaluations.jsonl` with everything else that was measured."""

from __future__ import annotations

from skill_ttrl.metrics.metric import NATS, SHARE, Metric, Section

EVALUATE = "evaluate/"
"""Begins the names, as in a tracker: `entropy` of a step is another metric than that of an evaluation."""
TRUE = "where every problem has a true answer, or the environment judges"
ANSWERS = "where there are answers"
SCORED = "where the environment rewards in part"

EVALUATIONS = Section(
    "Evaluations",
    "A tracker has these at the steps of the last phase that were done, without the skill bank as `evaluate_no_skills/…`. `evaluations.jsonl` has "
    "the same numbers, with intervals and problem by problem ([evaluate.md](evaluate.md)).",
    (
        Metric(f"{EVALUATE}accuracy", *SHARE, "avg@k: mean share of right samples", TRUE),
        Metric(f"{EVALUATE}accuracy/<type>", *SHARE, "avg@k of one type of task", "where there are several types"),
        Metric(
            f"{EVALUATE}majority",
            *SHARE,
            "maj@k: share of problems whose most frequent answer is right",
            f"{TRUE}; {ANSWERS}",
        ),
        Metric(f"{EVALUATE}greedy", *SHARE, "share of problems solved by the greedy sample", TRUE),
        Metric(f"{EVALUATE}pass@<k>", *SHARE, "estimated share of problems solved by any of k samples", TRUE),
        Metric(
            f"{EVALUATE}score",
            *SHARE,
            "mean over problems of how near their samples came to a perfect one, failed ones counted as 0",
            SCORED,
        ),
        Metric(f"{EVALUATE}greedy_score", *SHARE, "`evaluate/score` of the greedy samples", SCORED),
        Metric(
            f"{EVALUATE}majority_ratio", *SHARE, "mean share of the votes that the most frequent answer has", ANSWERS
        ),
        Metric(f"{EVALUATE}entropy", *NATS, "mean entropy of the answers to a problem", ANSWERS),
        Metric(
            f"{EVALUATE}failed",
            *SHARE,
            "share of rollouts in which the environment failed; they count as wrong",
            healthy="[0, 0]",
            trouble="above 0: the run warns",
        ),
    ),
)

"""Stopping rules on rows made by hand: where each fires, where it does not, and what it may look at."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.stopping import look_back
from skill_ttrl.config import SkillTTRLConfig, load_config
from skill_ttrl.runs.folder import RunFolder, figures_line, metric_rows
from skill_ttrl.train.metrics import RULES, stop_step
from skill_ttrl.train.run import stopped_by

Figures = dict[str, list[float | None]]

HEALTHY: Figures = {
    "majority_ratio": [0.5, 0.6, 0.7, 0.8, 0.8, 0.8, 0.8, 0.8],
    "answer_entropy": [2.0, 1.6, 1.4, 1.2, 1.1, 1.0, 0.9, 0.9],
    "flip_rate": [None, None, None, 0.0, 0.1, 0.0, 0.0, 0.1],
}


def rows(changes: Figures | None = None) -> list[dict[str, Any]]:
    figures = {**HEALTHY, **(changes or {})}
    steps = max(map(len, figures.values()))
    return [
        {"phase": "rl", "step": step}
        | {name: values[step] for name, values in figures.items() if step < len(values) and values[step] is not None}
        for step in range(steps)
    ]


@pytest.mark.parametrize("rule", list(RULES))
def test_a_healthy_run_is_left_alone(rule: str) -> None:
    assert stop_step(rows(), rule) is None and stop_step([], rule) is None


@pytest.mark.parametrize(
    ("rule", "changes", "options", "stop"),
    [
        # (0.2 + 0.3 + 0.3) / 3 is below 0.3; what comes later changes nothing
        ("collapse", {"majority_ratio": [0.2, 0.3, 0.3, 0.6, 0.8]}, {}, 3),
        ("collapse", {"majority_ratio": [0.3, 0.3, 0.3, 0.1]}, {}, None),
        ("collapse", {"majority_ratio": [0.5, 0.5, 0.5]}, {"agreement": 0.6}, 3),
        ("collapse", {"majority_ratio": [0.1, 0.1]}, {}, None),  # too few steps to say
        (
            "collapse",
            {"majority_ratio": [0.1] * 3, "abstained": [0.9] * 3},
            {},
            None,
        ),  # nobody answers: another warning
        # one rate is not enough; (0.3 + 0.2) / 2 is above 0.2; a step without a rate in between changes nothing
        ("collapse", {"flip_rate": [None, None, 0.3, 0.2]}, {}, 4),
        ("collapse", {"flip_rate": [None, None, 0.2, 0.2]}, {}, None),
        ("collapse", {"flip_rate": [None, 0.3, None, 0.3]}, {"flips": 0.3}, None),
        ("collapse", {"copied_winners": [0.5, 0.6, 0.6]}, {}, 3),
        ("collapse", {"copied_winners": [1.0, 0.1, 1.0]}, {}, None),
        ("collapse", {"copied_winners": [1.0, 1.0]}, {"copied": 2}, None),
        ("collapse", {"distinct_winners": [1.0] * 3 + [0.4] * 3, "winners": [4.0] * 6}, {}, 6),
        ("collapse", {"distinct_winners": [1.0] * 3 + [0.5] * 3, "winners": [8.0] * 6}, {}, None),
        (
            "collapse",
            {"distinct_winners": [0.1] * 6, "winners": [8.0] * 6},
            {},
            None,
        ),  # multiple choice has few answers from the start
        ("collapse", {"distinct_winners": [1.0] * 3 + [0.1] * 2, "winners": [8.0] * 5}, {}, None),
        ("collapse", {"distinct_winners": [1.0] * 3 + [0.3] * 3, "winners": [3.0] * 6}, {}, None),  # three say nothing
        # of a sample that abstains nothing is known: 0.2 of all samples is 0.4 of the answers
        ("collapse", {"majority_ratio": [0.2] * 3, "abstained": [0.5] * 3}, {}, None),
        ("collapse", {"majority_ratio": [0.2] * 3, "abstained": [0.2] * 3}, {}, 3),
        ("tripwires", {"completions/mean_length": [10.0] * 3 + [30.0, 40.0, 51.0]}, {}, 6),
        ("tripwires", {"completions/mean_length": [10.0] * 3 + [30.0, 40.0, 49.0]}, {}, None),
        ("tripwires", {"completions/mean_length": [10.0] * 3 + [5.0] * 3}, {"length": 2}, 6),
        ("tripwires", {"tripwire/bare_answers": [0.2] * 3 + [0.5] * 3}, {}, 6),
        ("tripwires", {"tripwire/bare_answers": [1.0] * 9}, {}, None),  # no reasoning is needed here
        ("tripwires", {"tripwire/bare_answers": [0.2] + [1.0] * 5}, {}, 6),  # one update is enough to learn it
        ("tripwires", {"tripwire/copied_skills": [0.3] * 3 + [0.5] * 3}, {}, None),  # a rise of 0.2
        ("tripwires", {"tripwire/top_winner": [0.1] * 3 + [1.0] * 3, "winners": [4.0] * 5 + [3.0]}, {}, None),
        ("tripwires", {"tripwire/unreadable": [0.9, 0.0, 0.5, 1.0]}, {}, 4),
        # rewards that stop to differ after having differed
        ("tripwires", {"frac_reward_zero_std": [0.5] * 3 + [1.0] * 6, "reward": [0.5] * 9}, {}, 8),
        # first three: mean 2; a quarter of that is 0.5, and (0.6 + 0.4 + 0.4) / 3 is the first mean below it
        ("entropy", {"answer_entropy": [2.0, 2.0, 2.0, 1.0, 0.6, 0.4, 0.4]}, {}, 7),
        ("entropy", {"answer_entropy": [2.0, 2.0, 2.0, 1.0, 0.6, 0.4, 0.4]}, {"share": 0.5}, 6),
        ("entropy", {"answer_entropy": [2.0, 2.0, 2.0]}, {"share": 0.9}, None),
        ("entropy", {"answer_entropy": [0.0, 0.0, 0.0, 0.0, 0.0]}, {}, None),  # nothing to spend
    ],
)
def test_where_a_rule_fires(rule: str, changes: Figures, options: dict[str, Any], stop: int | None) -> None:
    assert stop_step(rows({name: [] for name in HEALTHY} | changes), rule, options) == stop


@given(
    shares=st.lists(st.floats(0, 1), max_size=12),
    entropies=st.lists(st.floats(0, 4), max_size=12),
    flips=st.lists(st.none() | st.floats(0, 1), max_size=12),
    cut=st.integers(0, 12),
)
def test_what_comes_later_moves_no_stop_and_labels_are_not_looked_at(
    shares: list[float | None], entropies: list[float | None], flips: list[float | None], cut: int
) -> None:
    made = rows({"majority_ratio": shares, "answer_entropy": entropies, "flip_rate": flips, "copied_winners": shares})
    labelled = [row | {"label_accuracy": 0.5, "ground_truth_ratio": 0.1} for row in made]
    for rule in RULES:
        stop = stop_step(made, rule)
        assert stop_step(labelled, rule) == stop
        early = stop_step(made[:cut], rule)
        assert early == (stop if stop is not None and stop <= cut else None)
        ends = [done for done in range(1, len(made) + 1) if stop_step(made[:done], rule, first=done)]
        assert stop == (ends[0] if ends else None), "each step alone, as training checks them"


def made_run(folder: Path, config: SkillTTRLConfig, accuracies: Sequence[tuple[str, float | None]]) -> Path:
    with RunFolder.create(folder, config) as run:
        collapsing = rows({"flip_rate": [None, None, None, 0.5, 0.5, 0.6, 0.6, 0.6]})
        lines = [figures_line("sft", 0, {"loss": 1.0})]
        lines += [figures_line(row.pop("phase"), row.pop("step"), row) for row in collapsing]
        run.append_jsonl("metrics.jsonl", lines)
        found = [f'{{"label": "{label}", "accuracy": {"null" if a is None else a}}}' for label, a in accuracies]
        run.append_jsonl("evaluations.jsonl", found)
    return folder


def test_looking_back_at_a_run(tmp_path: Path) -> None:
    measured = [("before", 0.4), ("step 2", 0.5), ("step 5", 0.3), ("after", 0.1), ("after_no_skills", 0.9)]
    path = made_run(tmp_path / "run", SkillTTRLConfig(), measured)
    found = look_back(path)
    assert found.stops == {"collapse": 5, "tripwires": None, "entropy": None} and found.steps == 8
    assert found.accuracy == {0: 0.4, 2: 0.5, 5: 0.3, 8: 0.1} and found.best == 2


def test_a_run_is_stopped_by_its_own_rule_and_options_only(tmp_path: Path) -> None:
    assert load_config({"rl": {"stop_rule": {"flips": 0.5}}}).rl.stop == ("collapse", {"flips": 0.5})
    assert load_config({"rl": {"stop_rule": {}}}).rl.stop == ("collapse", {})
    config = load_config({"rl": {"stop_rule": {"type": "collapse", "flips": 0.5}, "steps": 20}})
    path = made_run(tmp_path / "run", config, [])
    assert look_back(path).stops["collapse"] == 6
    rows = [row for row in metric_rows(path) if row["phase"] == "rl"]
    assert stopped_by(rows, config.rl, 5) is None
    told = stopped_by(rows, config.rl, 6)
    assert told is not None and "collapse" in told and "given back" in told and "after 6 of 20 steps" in told
    assert stopped_by(rows, config.rl, 20) == told, "a resumed run is told what it was told before"
    assert stopped_by(rows, SkillTTRLConfig().rl, 20) is None
    assert stopped_by(rows, config.rl.model_copy(update={"steps": 6}), 6), (
        "the weights are given back after the last step too"
    )
    assert stopped_by(rows, config.rl.model_copy(update={"reward": "random"}), 6) is None

"""The registry of metrics: each name stands once, intervals are well-formed, settings and thresholds are those of the code."""

from __future__ import annotations

import re
from itertools import combinations

import pytest

from skill_ttrl.config import SkillTTRLConfig
from skill_ttrl.config.section import section_at
from skill_ttrl.llm.vllm.probe import MAX_LOGPROB_DIFF
from skill_ttrl.metrics import METRICS, SECTIONS, Metric, contains, find, find_tracked, unhealthy, unregistered
from skill_ttrl.stages.training import signs
from skill_ttrl.voting import history

FREE = ("rl.algorithm.", "rl.loss.", "vote.options.")
"""Settings whose keys are those of an algorithm, a loss or a strategy."""


def sample(metric: Metric) -> str:
    """A name that the metric stands for."""
    return re.sub(r"<\w+>", "x", metric.name)


def test_each_metric_stands_once() -> None:
    names = [metric.name for metric in METRICS]
    assert len(names) == len(set(names)) > 150
    assert len({section.title for section in SECTIONS}) == len(SECTIONS)


def test_each_name_is_found_under_its_own_metric() -> None:
    assert [metric.name for metric in METRICS if find(sample(metric)) is not metric] == []


def test_no_two_patterns_overlap() -> None:
    patterns = [metric for metric in METRICS if "<" in metric.name]
    assert [(a.name, b.name) for a, b in combinations(patterns, 2) if a.pattern.fullmatch(sample(b))] == []
    assert [(b.name, a.name) for a, b in combinations(patterns, 2) if b.pattern.fullmatch(sample(a))] == []
    # An exact name wins over a pattern.
    exact = {m.name for m in METRICS if m not in patterns and any(p.pattern.fullmatch(m.name) for p in patterns)}
    assert exact == {"vote_weight", "vote_penalty", "vote_bonus", "vote_skipped", "vote_seconds"}


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_statistics_and_placeholders_are_well_formed(metric: Metric) -> None:
    assert re.fullmatch(r"(\w|/|@|<\w+>)+", metric.name) and metric.meaning and metric.logged
    contains(metric.range, 0.0)
    if metric.healthy:
        low, high = metric.healthy[1:-1].split(", ")
        for bound, bracket in ((low, metric.healthy[0]), (high, metric.healthy[-1])):
            assert bracket in "()" if "∞" in bound else contains(metric.range, float(bound)), "not within the range"
        assert metric.trouble, "a bound without a meaning"
    for text in (metric.meaning, metric.logged, metric.trouble, metric.change):
        assert not text.endswith(".") and text.count("`") % 2 == 0


def test_settings_that_are_named_are_those_of_the_config() -> None:
    text = " ".join(f"{metric.meaning} {metric.logged} {metric.trouble} {metric.change}" for metric in METRICS)
    named = {name for name in re.findall(r"`((?:\w+\.)+\w+)(?:: [^`]+)?`", text) if not name.endswith(("jsonl", "md"))}
    assert len(named) > 30
    for name in sorted(name for name in named if not name.startswith(FREE)):
        *place, key = name.split(".")
        section = section_at(SkillTTRLConfig, place)
        assert section is not None and key in section.model_fields, f"there is no setting {name}"


def test_bounds_are_the_thresholds_of_the_code() -> None:
    bounds = {
        "majority_ratio": f"[{history.WEAK_AGREEMENT:g}, 1]",
        "flip_rate": f"[0, {history.HIGH_FLIP_RATE:g}]",
        "invalid_actions": f"[0, {signs.INVALID:g})",
        "completions/clipped_ratio": f"[0, {signs.CUT_OFF:g})",
        "sampling/logp_difference/mean": f"[0, {max(MAX_LOGPROB_DIFF.values()):g}]",
    }
    assert {name: metric.healthy for name in bounds if (metric := find(name))} == bounds


@pytest.mark.parametrize(
    ("interval", "inside", "outside"),
    [
        ("[0, 1]", (0.0, 0.5, 1.0), (-0.1, 1.1)),
        ("[0, 1)", (0.0, 0.9), (1.0,)),
        ("(0, ∞)", (0.1, 1e9), (0.0,)),
        ("[-1, ∞)", (-1.0,), (-1.1,)),
        ("(-∞, 1]", (-1e9, 1.0), (1.1,)),
        ("[0, 0]", (0.0,), (0.1, -0.1)),
    ],
)
def test_brackets_say_whether_a_bound_belongs_to_the_interval(
    interval: str, inside: tuple[float, ...], outside: tuple[float, ...]
) -> None:
    assert all(contains(interval, value) for value in inside)
    assert not any(contains(interval, value) for value in outside)


def test_a_text_that_is_no_interval_is_an_error() -> None:
    with pytest.raises(ValueError, match="is no interval"):
        contains("0..1", 0.5)


def test_names_that_are_not_there_are_named() -> None:
    assert unregistered(["reward", "rewards/format/mean", "pass@4", "vote_gated", "prompt_truncated/skills"]) == []
    assert unregistered(["rewardz", "rewards/mean", "a/b"]) == ["a/b", "rewards/mean", "rewardz"]


def test_an_evaluation_in_a_tracker_has_metrics_of_its_own() -> None:
    assert (step := find_tracked("rl/entropy")) is not None and step.name == "entropy"
    for place in ("evaluate", "evaluate_no_skills"):
        assert (measured := find_tracked(f"{place}/entropy")) is not None and measured.name == "evaluate/entropy"
        assert find_tracked(f"{place}/pass@8") is not None and find_tracked(f"{place}/accuracy/heat") is not None
    assert (seconds := find_tracked("evaluate/seconds")) is not None and seconds.name == "seconds"


def test_values_outside_of_the_healthy_range_are_found() -> None:
    row = {
        "phase": "rl",
        "step": 3,
        "skipped_updates": 1.0,
        "flip_rate": 0.5,
        "completions/clipped_ratio": 0.1,
        "own": 7.0,
        "kl": None,
    }
    first, second = unhealthy(row)
    assert (first.phase, first.step, first.name, first.value, first.healthy) == ("rl", 3, "flip_rate", 0.5, "[0, 0.2]")
    assert "winner changed" in first.meaning and "stop" in first.change and second.name == "skipped_updates"

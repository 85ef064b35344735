"""The registry of metrics: each name stands once, intervals are well-formed, settings and thresholds are those of the code."""

from __future__ import annotations

import re
from inspect import signature

import pytest

from skill_ttrl.config import SkillTTRLConfig
from skill_ttrl.config.section import section_at
from skill_ttrl.llm.vllm.checks import MAX_LOGPROB_DIFF
from skill_ttrl.metrics import METRICS, SECTIONS, Metric, contains, find
from skill_ttrl.train import metrics as signs
from skill_ttrl.train.metrics import collapse_signs

FREE = ("rl.algorithm.", "rl.loss.", "vote.strategy.")
"""Settings whose keys are those of an algorithm, a loss or a strategy."""


def test_each_metric_stands_once() -> None:
    names = [metric.name for metric in METRICS]
    assert len(names) == len(set(names)) > 150
    assert len({section.title for section in SECTIONS}) == len(SECTIONS)


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
    default = {name: option.default for name, option in signature(collapse_signs).parameters.items()}
    bounds = {
        "majority_ratio": f"[{default['agreement']:g}, 1]",
        "flip_rate": f"[0, {default['flips']:g}]",
        "copied_winners": f"[0, {default['copied']:g})",
        "invalid_actions": f"[0, {signs.INVALID:g})",
        "tripwire/unreadable": f"[0, {signs.SHARE:g})",
        "completions/clipped_ratio": f"[0, {signs.CUT_OFF:g})",
        "sampling/logp_difference/mean": f"[0, {max(MAX_LOGPROB_DIFF.values()):g}]",
    }
    assert {name: metric.healthy for name in bounds if (metric := find(name))} == bounds

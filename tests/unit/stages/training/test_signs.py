"""What a run warns of at its end, and what it calls worse."""

from __future__ import annotations

from dataclasses import replace

import pytest

from skill_ttrl.runs.summary import Summary
from skill_ttrl.stages.reports.summary_text import closing_lines, summary_markdown, summary_table, vote_line
from skill_ttrl.stages.training.signs import early_signs, late_signs


def course(**figures: list[float]) -> list[dict[str, float]]:
    return [dict(zip(figures, values, strict=True)) for values in zip(*figures.values(), strict=True)]


@pytest.mark.parametrize(("reward", "words"), [(0.0, "The cold start is too weak"), (1.0, "gets all of this reward")])
def test_rewards_that_never_differ_are_warned_of(reward: float, words: str) -> None:
    rows = course(frac_reward_zero_std=[1.0] * 4, reward=[reward] * 4)
    (text,) = early_signs(rows).values()
    assert text.startswith("No reward differed within any group in 4 steps (mean reward") and words in text
    assert early_signs([*rows, {"frac_reward_zero_std": 0.9, "reward": 0.1}]) == {}
    assert early_signs([*rows, {"frac_reward_zero_std": 1.0, "reward": 0.1, "advantage/max": 1.0}]) == {}, (
        "it was learned from"
    )


def test_where_nearly_all_abstain_that_is_the_one_warning() -> None:
    silent = course(frac_reward_zero_std=[1.0] * 3, reward=[0.0] * 3, abstained=[1.0, 0.97, 0.94])
    (text,) = early_signs(silent).values()
    assert text.startswith("Nearly no sample gave an answer (97% abstained over 3 steps).")
    assert r"\boxed{63} or <answer>63</answer>" in text
    assert late_signs(silent) == early_signs(silent)
    cut = course(abstained=[1.0], **{"completions/clipped_ratio": [0.9]})
    assert "raise rollout.max_new_tokens" in next(iter(early_signs(cut).values()))
    assert early_signs(course(abstained=[0.8])) == {} == early_signs(course(abstained=[1.0]), answers=False)


def test_updates_that_change_nothing_are_warned_of() -> None:
    idle: dict[str, list[float]] = {"updates": [0] * 3, "skipped_updates": [0] * 3, "learning_rate": [0.1] * 3}
    (text,) = early_signs(course(**idle, frac_reward_zero_std=[0.5] * 3)).values()
    assert text.startswith("No step changed the weights in 3 steps: rewards differed, but every advantage was 0")
    (text,) = late_signs(course(**idle, filtered_overlong=[1.0] * 3)).values()
    assert "rl.overlong.filter" in text
    assert early_signs([*course(**idle), {"updates": 1, "skipped_updates": 0, "learning_rate": 0.1}]) == {}
    warming_up = {name: values for name, values in idle.items() if name != "learning_rate"}
    assert early_signs(course(**warming_up)) == {}


def test_actions_that_are_nearly_all_invalid_are_warned_of() -> None:
    (text,) = early_signs(course(invalid_actions=[1.0, 0.9])).values()
    assert text.startswith("Nearly all actions were invalid (95% over 2 steps)")
    assert early_signs(course(invalid_actions=[1.0, 0.7])) == {}


def test_agreement_that_rises_on_wrong_answers_is_warned_of() -> None:
    rising, wrong = [0.43, 0.45, 0.5, 0.6, 0.66, 0.7], [0.0] * 6
    (text,) = late_signs(course(majority_ratio=rising, label_accuracy=wrong)).values()
    assert text.startswith("Agreement rose from 0.44 to 0.68, but only 0.0% of the latest votes were correct")
    assert late_signs(course(majority_ratio=rising, label_accuracy=[0.2] * 6)) == {}
    assert late_signs(course(majority_ratio=[0.5] * 6, label_accuracy=wrong)) == {}
    assert late_signs(course(majority_ratio=rising)) == {} == late_signs([]), "without labels nothing can be said"


SUMMARY = Summary(
    name="x",
    seed=0,
    reward="majority",
    transductive=False,
    problems=64,
    samples=8,
    temperature=1.0,
    accuracy_before=0.5,
    accuracy_after=0.52,
    majority_before=0.8,
    majority_after=0.71,
    greedy_before=0.9,
    greedy_after=0.81,
    intervals={
        "accuracy_change": (0.01, 0.03),
        "majority_change": (-0.15, -0.03),
        "greedy_change": (-0.19, 0.01),
        "accuracy_after": (0.4, 0.6),
    },
    majority_ratio=0.96,
    mean_majority_ratio=0.7,
    label_accuracy=1.0,
    mean_label_accuracy=0.82,
    vote_steps=20,
)


def test_every_headline_has_its_paired_change_and_worse_is_called_worse() -> None:
    table = summary_table(SUMMARY)
    assert [(row[0], *row[3:]) for row in table.rows] == [
        ("avg@8", "+0.020 [+0.010, +0.030]", "better"),
        ("maj@8", "-0.090 [-0.150, -0.030]", "worse"),
        ("greedy", "-0.090 [-0.190, +0.010]", "unclear"),
    ]
    assert any(line.startswith("Warning: maj@8 fell") for line in closing_lines(SUMMARY))
    fell = replace(SUMMARY, intervals=SUMMARY.intervals | {"accuracy_change": (-0.1, -0.01)})
    assert any("worse on these problems: avg@8, maj@8 fell" in line for line in closing_lines(fell))
    assert "0.520 [0.400, 0.600]" in summary_markdown(SUMMARY)
    alone = replace(SUMMARY, intervals={})
    assert len(summary_table(alone).columns) == 3 and not any("fell" in line for line in closing_lines(alone))


def test_the_votes_are_shown_over_all_steps_beside_the_last() -> None:
    assert vote_line(SUMMARY) == (
        "Votes, mean over 20 steps (last step): majority ratio 0.700 (0.960); majority correct: 0.820 (1.000) "
        "(diagnostic only)."
    )
    assert vote_line(replace(SUMMARY, majority_ratio=None, mean_majority_ratio=None)) is None
    labelled = str(vote_line(replace(SUMMARY, reward="label", vote_steps=1)))
    assert "mean over 1 step (last" in labelled and labelled.endswith("(this is the reward).")

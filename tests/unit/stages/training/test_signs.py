"""What a run warns of at its end, and what it calls worse."""

from __future__ import annotations

import pytest

from skill_ttrl.stages.training.metrics import early_signs, late_signs


def course(**figures: list[float]) -> list[dict[str, float]]:
    return [dict(zip(figures, values, strict=True)) for values in zip(*figures.values(), strict=True)]


IDLE: dict[str, list[float]] = {"updates": [0] * 3, "skipped_updates": [0] * 3, "learning_rate": [0.1] * 3}
RISING, WRONG = [0.43, 0.45, 0.5, 0.6, 0.66, 0.7], [0.0] * 6


@pytest.mark.parametrize(
    ("figures", "named"),
    [
        ({"frac_reward_zero_std": [1.0] * 4, "reward": [0.0] * 4}, "The cold start is too weak"),
        ({"frac_reward_zero_std": [1.0] * 4, "reward": [1.0] * 4}, "gets all of this reward"),
        ({"frac_reward_zero_std": [0.9] * 4, "reward": [0.1] * 4}, ""),
        ({"frac_reward_zero_std": [1.0] * 4, "reward": [0.1] * 4, "advantage/max": [1.0] * 4}, ""),
        ({"frac_reward_zero_std": [1.0] * 3, "reward": [0.0] * 3, "abstained": [1.0, 0.97, 0.94]}, "97% abstained"),
        ({"abstained": [1.0], "completions/clipped_ratio": [0.9]}, "rollout.max_new_tokens"),
        ({"abstained": [0.8]}, ""),
        ({**IDLE, "frac_reward_zero_std": [0.5] * 3}, "No step changed the weights"),
        ({"updates": [0] * 3, "skipped_updates": [0] * 3}, ""),
        ({"invalid_actions": [1.0, 0.9]}, "95%"),
        ({"invalid_actions": [1.0, 0.7]}, ""),
    ],
)
def test_signs_of_trouble_are_warned_of_once_and_their_absence_is_not(
    figures: dict[str, list[float]], named: str
) -> None:
    said = list(early_signs(course(**figures)).values())
    assert len(said) == bool(named) and named in "".join(said)
    assert not named or late_signs(course(**figures)) == early_signs(course(**figures))


def test_agreement_that_rises_on_wrong_answers_is_warned_of() -> None:
    (text,) = late_signs(course(majority_ratio=RISING, label_accuracy=WRONG)).values()
    assert "0.44 to 0.68" in text
    assert late_signs(course(majority_ratio=RISING, label_accuracy=[0.2] * 6)) == {}
    assert late_signs(course(majority_ratio=[0.5] * 6, label_accuracy=WRONG)) == {}
    assert late_signs(course(majority_ratio=RISING)) == {} == late_signs([]), "without labels nothing can be said"

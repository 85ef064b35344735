"""Faults of published label-free trainers that must not come back here, one test each.

They were read in the first published code of TTRL (arXiv 2504.16084): its vote counted raw strings, its reward compared values.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from skill_ttrl.config import load_config
from skill_ttrl.errors import ConfigError, ExtensionError
from skill_ttrl.rl.batch import RolloutBatch
from skill_ttrl.rl.pack import pack, with_advantages
from skill_ttrl.stages import train
from skill_ttrl.types import Completion, Group, Step, Task, Trajectory
from skill_ttrl.voting import STRATEGIES, Ballot, PromptHistory, vote
from skill_ttrl.voting.rewards import RewardManager, build_reward

TASK = Task("t", "Env-v0")


def per_item(batch: RolloutBatch) -> list[float]:
    """Advantage of the first token of each item."""
    values: list[float] = batch.advantages_F[batch.starts_N + batch.prompt_lengths_N].tolist()
    return values


def ballot(*answers: str | None) -> Ballot:
    size = len(answers)
    return Ballot(
        answers,
        logprobs=(-1.0,) * size,
        lengths=(2,) * size,
        views=tuple(place % 2 for place in range(size)),
        history=PromptHistory(),
        base_majority_ratio=0.5,
        seed=0,
    )


@pytest.mark.parametrize("name", list(STRATEGIES))
def test_an_empty_answer_wins_no_vote(name: str) -> None:
    """There a text without an answer gave "", "" could win, and every text without an answer was then rewarded."""
    found = vote(name, ballot("", "", "", "", None, "  ", "7", "7"))
    assert found.answer in ("7", None) and found.sample_rewards[:6] == (0.0,) * 6
    texts = ["I do not know."] * 6 + [r"\boxed{7}"] * 2
    manager = RewardManager().compute_majority_rewards(texts, n_per_prompt=8)
    assert manager == {"rewards": [0.0] * 6 + [1.0] * 2, "majority_answers": ["7"], "agreement_ratios": [0.25]}


@pytest.mark.parametrize("name", list(STRATEGIES))
@pytest.mark.parametrize("answers", [(None, None, None, None), ()])
def test_a_multiple_choice_group_without_answers_is_no_error(name: str, answers: tuple[None, ...]) -> None:
    """There the most common of no answers was looked up: IndexError on GPQA when no text named a letter."""
    found = vote(name, ballot(*answers))
    assert (found.answer, found.majority_ratio, found.classes) == (None, 0.0, ()) and not any(found.sample_rewards)
    silent = ["Option three, I think.", "No idea"]
    assert RewardManager().compute_majority_rewards(silent, n_per_prompt=2)["majority_answers"] == [None]


@pytest.mark.parametrize("name", [name for name in STRATEGIES if name != "soft"])
def test_what_votes_together_is_rewarded_together(name: str) -> None:
    """There 1/2 and 0.5 split their votes, so 3 won; and a reward by value was given to samples that had not voted for it."""
    found = vote(name, ballot("1/2", "0.5", r"\frac{1}{2}", "0.50", "3", "3", "3.0", None))
    assert found.answer == "1/2" and found.majority_ratio == 0.5
    assert sum(found.sample_rewards) / len(found.sample_rewards) == found.majority_ratio, (
        "the mean reward is the majority's share"
    )
    assert [earned > 0 for earned in found.sample_rewards] == list(found.matches) == [True] * 4 + [False] * 4


def test_each_sample_is_rewarded_over_its_own_length() -> None:
    """There the reward of every sample of a group was put at the last token of the group's last sample."""
    lengths = (3, 1, 5, 2)
    tries = tuple(
        Trajectory(
            TASK,
            (Step("?", "", 0.0, True, False, (7, 8), Completion("", tuple(range(n)), (-0.5,) * n, "stop")),),
            "1",
            "terminated",
        )
        for n in lengths
    )
    groups = [Group(TASK, tries)]
    batch = with_advantages(pack(groups), groups, [0.1, 0.2, 0.3, 0.4])
    assert batch.response_lengths_N.tolist() == list(lengths) == batch.trained_tokens_N.tolist()
    assert per_item(batch) == pytest.approx([0.1, 0.2, 0.3, 0.4])
    for micro_batch in batch.micro_batches(batch.prompt_index_N.new_tensor([0, 1, 2, 3]), 2, pad_id=0):
        found = dict(
            zip(micro_batch.advantages_N_R[:, 0].tolist(), micro_batch.response_mask_N_R.sum(1).tolist(), strict=True)
        )
        for advantage, tokens in found.items():
            assert tokens == lengths[round(advantage * 10) - 1]


def test_an_error_in_a_reward_ends_the_run(tiny_yaml: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There an error in the reward function was caught, and the function was called a second time."""
    (tmp_path / "own_faults_under_test.py").write_text(
        "calls = []\ndef broken(group):\n    calls.append(group.task.id)\n    raise RuntimeError('the grader is gone')\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    config = load_config(tiny_yaml, ["phases=[rl]", "rl.steps=1", "rl.reward=own_faults_under_test:broken"])
    with pytest.raises(ExtensionError, match="the grader is gone"):
        train.run(config, tmp_path / "run")
    import own_faults_under_test  # type: ignore[import-not-found]

    assert len(own_faults_under_test.calls) == 1
    rows = tmp_path / "run" / "metrics.jsonl"
    assert not rows.exists() or not rows.read_text(), "nothing was learned from"


def test_a_reward_that_is_no_number_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_numbers_under_test.py").write_text("def nan(group): return [float('nan')]\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    references: Mapping[str, Any] = {}
    group = Group(TASK, (Trajectory(TASK, (), "1", "terminated"),))
    with pytest.raises(ConfigError, match="must return one finite number"):
        build_reward("own_numbers_under_test:nan", references)(group, vote("majority", Ballot(("1",))), 0)

"""Trip-wires on real small runs: a reward that pays for a shortcut is warned of, and ends the run where the rule asks for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from skill_ttrl.commands import train
from skill_ttrl.config import load_config
from skill_ttrl.runs.reader import read_run, warnings_of
from skill_ttrl.train import metrics
from skill_ttrl.types import Group
from tests.integration.test_imitation import CONFIG

BASE = Path(__file__).parents[1] / "data" / "operators_base"
SHORT = [
    "phases=[rl]", "rl.stop_rule=tripwires", "rl.prompts_per_step=6", "rl.learning_rate=3e-3", "rl.warmup_steps=0",
    "rl.lr_scheduler=constant", "rl.save_steps=100", "rollout.n_votes_per_prompt=16", "rollout.n_samples_per_prompt=16",
    "rollout.max_new_tokens=12", "eval.samples=1", "data.eval.limit=2", "runtime.threads=1",
]  # fmt: skip


def pays_silence(group: Group) -> list[float]:
    return [float(answer is None) for answer in group.answers]


def pays_guesses(group: Group) -> list[float]:
    return [-20.0 if each.answer is None else -float(each.text.find("<answer>")) for each in group.trajectories]


def pays_short(group: Group) -> list[float]:
    return [-float(len(each.text)) for each in group.trajectories]


def pays_long(group: Group) -> list[float]:
    return [0.0 if each.answer is None else float(len(each.text)) for each in group.trajectories]


def pays_answers(group: Group) -> list[float]:
    """After some steps every rollout has one, and the reward does not differ any more."""
    return [float(answer is not None) for answer in group.answers]


def pays_askers(group: Group) -> list[float]:
    """Half of the others too, so that what is rewarded changes as more of them ask."""
    return [float(bool(each.retrieved) or place % 2) for place, each in enumerate(group.trajectories)]


BARE, UNREADABLE, COPIED = (
    "Rewarded answers come without reasoning",
    "Rewarded rollouts are empty",
    "Rewarded rollouts repeat",
)
ONE_ANSWER, SHORTER, LONGER, EQUAL, INVALID = (
    "One answer wins",
    "Responses became much shorter",
    "Responses became much longer",
    "No reward differed",
    "Nearly all actions",
)
EIGHT = ["rollout.n_votes_per_prompt=8", "rollout.n_samples_per_prompt=8"]
LENGTH = "rl.stop_rule={type: tripwires, length: 1.5, share: 1.1}"
NO_ANSWER = "Almost no sample contained an answer"


@pytest.mark.parametrize(
    ("reward", "settings", "sign"),
    [
        ("pays_silence", [], UNREADABLE),
        ("pays_guesses", ["rl.prompts_per_step=3"], BARE),
        ("pays_guesses", [], ONE_ANSWER),  # from the second step on
        ("pays_short", [LENGTH], SHORTER),
        ("pays_long", [LENGTH, "rollout.max_new_tokens=30", "data.max_prompt_tokens=34"], LONGER),
        ("pays_answers", [LENGTH, *EIGHT, "rollout.temperature=0.6"], EQUAL),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_a_shortcut_that_pays_trips_its_wire_alone_and_ends_the_run(
    answering: Path, tiny_yaml: Path, tmp_path: Path, reward: str, settings: list[str], sign: str
) -> None:
    given = [*SHORT, f"model.path={answering}", "rl.steps=14", f"rl.reward={__name__}:{reward}", *settings]
    summary = train.run(load_config(tiny_yaml, given), tmp_path / "run")
    found = [each for each in warnings_of(read_run(tmp_path / "run")) if each.tripwire]
    (tripped,) = [each for each in found if not each.text.startswith(NO_ANSWER)]  # no wire of its own
    assert tripped.text.startswith(sign) and tripped.phase == "rl" and tripped.step == summary.steps["rl"] - 1
    assert summary.stopped == f"The stopping rule tripwires ended RL after {summary.steps['rl']} of 14 steps."
    assert tripped.text in summary.warnings
    assert read_run(tmp_path / "run").metrics["frac_reward_zero_std"].iloc[0] < 1, "the reward differed at first"


def test_a_reward_that_pays_for_answers_trips_none_while_they_stay_as_they_are(
    answering: Path, tiny_yaml: Path, tmp_path: Path
) -> None:
    given = [*SHORT, f"model.path={answering}", "rl.steps=8", "rl.reward=format", "rl.learning_rate=1e-7"]
    summary = train.run(load_config(tiny_yaml, given), tmp_path / "run")
    assert warnings_of(read_run(tmp_path / "run")) == [] and summary.stopped is None and summary.steps == {"rl": 8}
    row = read_run(tmp_path / "run").metrics.iloc[-1]
    assert row["tripwire/unreadable"] == 0 == row["tripwire/bare_answers"] and row["tripwire/top_winner"] < 0.5


def test_actions_that_are_invalid(tmp_path: Path) -> None:
    given = ["rl.steps=7", f"rl.reward={__name__}:pays_short", "rl.stop_rule={type: tripwires, share: 1.1}"]
    summary = train.run(load_config(CONFIG, given), tmp_path / "run")  # an untrained policy
    found = [each for each in warnings_of(read_run(tmp_path / "run")) if each.tripwire]
    assert [each.text.startswith(INVALID) and each.step for each in found] == [4] and summary.steps == {"rl": 5}


def test_skills_that_are_copied_for_the_reward(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "COPIED_WORDS", 2)  # a rule of this bank has two
    given = [
        *SHORT, *EIGHT, f"model.path={BASE}", "data.train.limit=32", "rl.prompts_per_step=8", "rl.learning_rate=1e-3",
        "rl.steps=14", "rollout.max_new_tokens=40", f"rl.reward={__name__}:pays_askers",
    ]  # fmt: skip
    train.run(load_config("quickstart_skills", given), tmp_path / "run")
    (tripped,) = [each for each in warnings_of(read_run(tmp_path / "run")) if each.tripwire]
    assert tripped.text.startswith(COPIED)
    shares = read_run(tmp_path / "run").metrics["tripwire/copied_skills"]
    assert shares.iloc[:3].mean() < 0.7 < shares.iloc[-3:].mean()

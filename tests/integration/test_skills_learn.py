"""The skill bank is used and its use is learned, by a small real policy that was cold-started once.

tests/data/operators_base is the cold start of `quickstart_skills`, made by tests/data/build_operators_base.sh.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from skill_ttrl.commands import train
from skill_ttrl.config import SkillTTRLConfig, load_config
from skill_ttrl.progress import SilentProgress
from skill_ttrl.rollout.outcome import drawn
from skill_ttrl.runs.reader import read_run
from skill_ttrl.skills.bank import SkillBank
from skill_ttrl.train.build import build
from skill_ttrl.train.measure import correctness
from skill_ttrl.train.open_run import starting_skills
from skill_ttrl.train.run import Meter, TrainingComponents
from skill_ttrl.train.run_bank import RunBank
from skill_ttrl.types import Group, Trajectory

Built = tuple[TrainingComponents, Meter]
BASE = Path(__file__).parents[1] / "data" / "operators_base"
SMALL = [
    "phases=[rl]", f"model.path={BASE}", "data.eval.limit=60", "eval.samples=4", "eval.greedy=false",
    "runtime.threads=1", "run.save_trajectories=false",
]  # fmt: skip


def is_correct(trajectory: Trajectory) -> bool | None:
    return correctness(drawn(Group(trajectory.task, (trajectory,))))[0]


def built(config: SkillTTRLConfig) -> Built:
    assert config.skills is not None
    bank = SkillBank.from_config(config.skills.model_copy(update={"index": "memory"}))
    bank.import_skills(starting_skills(config.skills))
    return build(config, SilentProgress(), bank=RunBank(config.skills, bank))


def tries(made: Built, count: int = 8) -> Iterator[Trajectory]:
    parts, meter = made
    worker = parts.worker.with_bank(parts.bank_view())
    for group in worker.generate_rollouts(meter.eval_tasks, count, worker.sampling, seed=1):
        yield from group.trajectories


def share(found: list[bool | None]) -> float:
    return sum(bool(right) for right in found) / len(found)


def test_who_asks_is_told_and_uses_it_on_names_never_seen() -> None:
    made = built(load_config("quickstart_skills", SMALL))
    found = list(tries(made))
    asked = [trajectory for trajectory in found if trajectory.retrieved]
    silent = [trajectory for trajectory in found if not trajectory.ops]
    assert 0.15 < len(asked) / len(found) < 0.45
    named = [f"op-{trajectory.task.id.rpartition('-')[0]}" in trajectory.retrieved for trajectory in asked]
    assert share(list(named)) > 0.95  # the right skill, by its vector, out of 80
    assert share([is_correct(trajectory) for trajectory in asked]) > 0.85
    assert share([is_correct(trajectory) for trajectory in silent]) < 0.25  # ten answers to guess among
    for trajectory in asked:
        (step,) = trajectory.steps
        assert step.completion is not None and step.completion.completion_mask is not None
        told = [
            token
            for token, own in zip(step.completion.token_ids, step.completion.completion_mask, strict=True)
            if not own
        ]
        assert made[0].policy.tokenizer.decode(told).startswith("<skill>")


def test_a_rule_in_the_prompt_is_followed_and_a_wrong_one_is_no_help() -> None:
    settings = ["skills.prompt_top_k=1", "skills.prompt_max_tokens=32", "skills.max_retrievals=0"]
    right = built(load_config("quickstart_skills", [*SMALL, *settings]))
    wrong = built(load_config("quickstart_skills", [*SMALL, *settings, "skills.bank=synthetic:operators-shuffled"]))
    answered = [[is_correct(trajectory) for trajectory in tries(made) if not trajectory.ops] for made in (right, wrong)]
    assert share(answered[0]) > 0.85 and share(answered[1]) < 0.3


@pytest.mark.slow
def test_bank_off_leaves_questions_unanswered() -> None:
    made = built(load_config("quickstart_skills", [*SMALL, "skills.enabled=false"]))
    found = list(tries(made))
    assert all(trajectory.retrieved == () and trajectory.bank_version is None for trajectory in found)
    assert share([is_correct(trajectory) for trajectory in found]) < 0.25


@pytest.mark.slow
def test_a_note_of_the_first_problem_is_found_in_the_second() -> None:
    made = built(load_config("quickstart_notes", SMALL))
    found = [trajectory for trajectory in tries(made, 16) if trajectory.ops]
    noted = [trajectory for trajectory in found if trajectory.ops and trajectory.ops.generate and trajectory.retrieved]
    lost = [t for t in found if t.ops and not t.ops.generate and '<retrieve query="' in t.steps[-1].action]
    assert len(noted) > 40 and len(lost) > 40
    assert share([is_correct(trajectory) for trajectory in noted]) > 0.8
    assert share([is_correct(trajectory) for trajectory in lost]) < 0.3  # nothing to be told: names are in no bank


@pytest.mark.slow
def test_a_few_steps_without_labels_teach_it_to_ask(tmp_path: Path) -> None:
    """Asking pays because those who ask agree; ten steps are enough to see it on names never seen."""
    settings = [*SMALL, "data.eval.limit=40", "rl.steps=8", "rl.learning_rate=4e-4", "rl.prompts_per_step=24"]
    summary = train.run(load_config("quickstart_skills", settings), tmp_path / "run")
    metrics = read_run(tmp_path / "run").metrics
    rates = metrics[metrics["phase"] == "rl"]["retrieve_rate"].tolist()
    assert rates[0] < 0.45 and rates[-1] > rates[0] + 0.2
    assert summary.accuracy_before is not None and summary.accuracy_after is not None
    assert summary.accuracy_after > summary.accuracy_before + 0.15
    assert summary.accuracy_no_skills is not None and summary.accuracy_no_skills < 0.25

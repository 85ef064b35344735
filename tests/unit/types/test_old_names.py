"""Data of earlier versions is read under the present names of its fields."""

from __future__ import annotations

import json
from pathlib import Path

from skill_ttrl.metrics.registry import find
from skill_ttrl.metrics.renamed import PREFIXES, RENAMED, current_name
from skill_ttrl.runs.lines import read_lines
from skill_ttrl.types import BankUpdate, Task, Trajectory, VoteResult, from_json, to_json

FORMER = Path(__file__).parent / "former"
"""Files as 0.1.0 of 26 November 2026 wrote them, a line each."""


def line(name: str) -> str:
    return (FORMER / name).read_text(encoding="utf-8").strip()


def test_a_trajectory() -> None:
    found = from_json(Trajectory, line("trajectories.jsonl"))
    assert found.task.ground_truth == "7" and found.final_obs == "Done." and found.prompt_variant == 1
    (step,) = found.steps
    assert (step.action_status, step.parse_error) == ("repaired", "no tag")
    assert step.truncated_parts == {"turns": 2} and step.admissible_actions == ("look", "go")
    assert step.info == {"expert_action": "go", "view": 3}
    assert step.completion is not None
    assert step.completion.completion_mask == (True, False) and step.completion.inserted_spans == ((1, 2),)
    assert from_json(Trajectory, to_json(found)) == found


def test_a_vote_and_a_change_of_a_bank() -> None:
    vote = from_json(VoteResult, line("votes.jsonl"))
    assert (vote.majority_ratio, vote.class_ids) == (0.75, (0, 0, 1, 0))
    update = from_json(BankUpdate, line("updates.jsonl"))
    after = update.changes[0].after
    assert update.step == 4 and after is not None and after.stats.created_step == 4 == after.stats.last_used_step


def test_lines_of_a_run() -> None:
    (vote,) = read_lines(FORMER / "votes.jsonl")
    assert vote["majority_ratio"] == 0.75 and "agreement" not in vote
    (row,) = read_lines(FORMER / "metrics.jsonl")
    assert row == {
        "completions/clipped_ratio": 0.1, "frac_reward_zero_std": 0.5, "prompt_truncated/turns": 0.2, "phase": "rl", "step": 0
    }  # fmt: skip


def test_what_has_only_present_names_is_left_as_it_is() -> None:
    task = Task("a", "e", {"question": 'the "reference" of a "view"', "true": 1}, ground_truth="1")
    assert from_json(Task, to_json(task)) == task == from_json(Task, json.dumps(json.loads(to_json(task))))


def test_each_former_metric_leads_to_one_of_the_registry() -> None:
    for name in RENAMED:
        assert find(name) is None and find(current_name(name)) is not None, name
    for former in PREFIXES:
        assert find(current_name(f"{former}turns")) is not None

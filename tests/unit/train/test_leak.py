"""What is learned from is not measured on: the same task is found however it is written, and in every command that learns."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skill_ttrl.commands import merge, train
from skill_ttrl.config import load_config
from skill_ttrl.envs import env_tasks
from skill_ttrl.envs.lookup import spread
from skill_ttrl.errors import DataError
from skill_ttrl.train.tasks import (
    ConfigTasks,
    Seen,
    first_words,
    of_training,
    plain,
    seen_prompts,
    seen_tasks,
)
from skill_ttrl.types import Step, Task, Trajectory, to_json
from tests.doors import DOORS

QUESTION = "Compute 12 + 34."
DISGUISED = {
    "trailing space": "Compute 12 + 34. ", "case": "COMPUTE 12 + 34.",
    "full-width digits": "Compute \uff11\uff12 + \uff13\uff14.",
    "zero-width": "Com\u200bpute 12\u2060 + 34.\ufeff",
    "soft hyphen": "Com\u00adpute 12 + 34.", "line breaks": "Compute\r\n12 +\u00a034.", "no spaces": "Compute 12+34.",
    "ligature": "Compute 12 \ufe62 34.",
}  # fmt: skip


@pytest.mark.parametrize("disguise", DISGUISED)
def test_a_disguised_problem_is_the_same(disguise: str) -> None:
    assert plain(DISGUISED[disguise]) == plain(QUESTION)
    one, other = (
        Task(name, "E-v0", {"question": text}) for name, text in (("a", QUESTION), ("b", DISGUISED[disguise]))
    )
    assert seen_tasks([one]).holds(other, lambda task: None)
    assert seen_prompts([DISGUISED[disguise]]).holds(one, lambda task: None)


def test_other_problems_stay_other_problems() -> None:
    texts = [QUESTION, "Compute 12 - 34.", "Compute 1 2 + 34.", "Compute 12 + 3 4.", "Compute 12 + 35."]
    assert len({plain(text) for text in texts}) == len(texts)
    by_seed = [Task("t", "E-v0", {}, seed=seed) for seed in (1, 2)]
    assert not seen_tasks(by_seed[:1]).holds(by_seed[1], lambda task: None)


def test_tasks_of_an_environment_are_known_by_what_it_shows_first() -> None:
    config = load_config({}, [f"env.id={DOORS}"])
    tasks = [Task(f"test/{number}", DOORS, {"door": number}, split="test") for number in (0, 1)]
    with first_words(config.env, config.seed) as first:
        shown = [first(task) for task in tasks]
    assert all(shown) and shown[0] != shown[1]
    with pytest.raises(
        DataError, match=r"^1 of the 2 tasks of env.eval_split \(test\) are also in sft.data, first 'test/1'\."
    ):
        ConfigTasks(config).keep_apart(tasks, seen_prompts([f" {str(shown[1]).upper()} "]), "sft.data")
    assert not ConfigTasks(config).keep_apart(tasks, Seen(), "sft.data")


def test_a_leak_is_named_by_the_beginning_of_its_prompt() -> None:
    tasks = ConfigTasks(load_config({"data": {"train": "own.jsonl"}}))  # measured on its training tasks

    def said(text: str) -> str:
        task = Task("abc1d638e065c657", "E-v0", {"question": text})
        (line,) = tasks.keep_apart([task], seen_tasks([task]), "sft.data")
        return line

    assert "first \"Compute 12 + 34.\" (task 'abc1d638e065c657'). They are training" in said("Compute\n12 + 34.")
    long = said("\x1b[31m" + "x" * 100)
    assert "\x1b" not in long and "x" * 40 in long and "x" * 60 not in long and "…" in long


def episode(split: str) -> Trajectory:
    task = Task(f"{split}/1", "E-v0", {"door": 1}, split=split)
    step = Step("seen", "<skill_ops><generate>Add the tens first.</generate></skill_ops> open", 1.0, True, False)
    return Trajectory(task, (step,), "open", "terminated", reward=1.0)


def test_episodes_of_other_splits_than_those_of_training_are_named() -> None:
    splits = load_config({}, ["env.train_split=demos"]).training_splits
    assert len([*of_training([episode("train"), episode("demos")], splits, "x.jsonl")]) == 2
    with pytest.raises(DataError, match=r"x.jsonl holds .* 2 of the split 'test' \(first: task 'test/1'\)"):
        [*of_training([episode("train"), episode("test"), episode("test")], splits, "x.jsonl")]


def test_merge_takes_no_trajectories_of_held_out_tasks(tmp_path: Path) -> None:
    source, bank = tmp_path / "trajectories.jsonl", tmp_path / "bank"
    source.write_text(f"{to_json(episode('test'))}\n")
    with pytest.raises(DataError, match="1 of the split 'test'"):
        merge.run(source, bank)
    assert not bank.exists()


def tiny(tiny_yaml: Path, *more: str) -> Any:
    return load_config(tiny_yaml, ["sft.steps=1", "phases=[sft]", "sft.batch_size=2", *more])


def test_the_evaluation_s_own_problems_are_no_demonstrations(tiny_yaml: Path, tmp_path: Path) -> None:
    rows = [{"prompt": f"compute 1{n}+2{n} .\u200b", "response": f"<answer>{30 + 2 * n}</answer>"} for n in range(3)]
    demos, problems = tmp_path / "demos.jsonl", tmp_path / "problems.jsonl"
    demos.write_text("".join(json.dumps(row) + "\n" for row in rows))
    problems.write_text("".join(json.dumps({"prompt": f"Compute 1{n}+2{n}.", "answer": 1}) + "\n" for n in (1, 2, 5)))
    settings = [f"sft.data={{path: {demos}}}", f"data.eval={{path: {problems}}}"]
    with pytest.raises(DataError, match=r"2 of the 3 tasks of data\.eval are also in sft\.data"):
        train.run(tiny(tiny_yaml, *settings), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_episodes_of_held_out_tasks_are_not_imitated(tiny_yaml: Path, tmp_path: Path) -> None:
    file = tmp_path / "episodes.jsonl"
    file.write_text(f"{to_json(episode('test'))}\n{to_json(episode('train'))}\n")
    settings = ["sft.data=null", f"demonstrations.trajectories={file}", "demonstrations.label=success"]
    with pytest.raises(DataError, match=r"demonstrations\.trajectories .*1 of the split 'test'"):
        train.run(tiny(tiny_yaml, *settings), tmp_path / "run")
    held = replace(episode("train"), task=Task("other name", "E-v0", {"question": "Compute 3+4."}, split="train"))
    file.write_text(f"{to_json(held)}\n")
    problems = tmp_path / "problems.jsonl"
    problems.write_text(json.dumps({"prompt": "Compute 3 + 4.", "answer": 7}) + "\n")
    with pytest.raises(DataError, match=r"1 of the 1 tasks of data\.eval are also in demonstrations\.trajectories"):
        train.run(tiny(tiny_yaml, *settings, f"data.eval={{path: {problems}}}"), tmp_path / "run")


KINDS = st.lists(st.sampled_from(["clean", "heat", "pick", ""]), min_size=1, max_size=40)


def of_types(kinds: list[str]) -> list[Task]:
    return [Task(str(number), DOORS, task_type=kind) for number, kind in enumerate(kinds)]


@given(KINDS, st.integers(1, 50))
def test_every_type_is_among_them_wherever_there_is_room_and_none_has_more_than_its_share(
    kinds: list[str], count: int
) -> None:
    tasks = of_types(kinds)
    found = spread(tasks, count)
    assert len(found) == min(count, len(tasks)) == len({task.id for task in found})
    assert found == [task for task in tasks if task in found], "their order"
    all_of, taken = Counter(kinds), Counter(task.task_type for task in found)
    assert len(taken) == min(count, len(all_of))
    for kind, many in all_of.items():
        assert taken[kind] <= many * count / len(tasks) + 1 or taken[kind] == 1


def test_tasks_of_one_type_are_taken_at_even_distances() -> None:
    assert [task.id for task in spread(of_types(["pick"] * 100), 4)] == ["0", "25", "50", "75"]


def test_types_that_take_turns_are_not_passed_over() -> None:
    """Every second task would be of one type only."""
    assert Counter(task.task_type for task in spread(of_types(["heat", "cool"] * 15), 10)) == {"heat": 5, "cool": 5}


def test_a_limit_of_an_environments_tasks_is_spread() -> None:
    assert [task.id for task in env_tasks(DOORS, {}, "train", 4)] == ["train/0", "train/1", "train/14", "train/15"]


def test_a_run_trains_on_so_many_tasks_and_is_measured_on_so_many(tmp_path: Path) -> None:
    own = {"env": {"id": DOORS, "train_split": "train", "eval_split": "test", "train_tasks": 6, "eval_tasks": 2}}
    config = load_config(own)
    tasks = ConfigTasks(config).training()
    assert len(tasks) == 6 and Counter(task.task_type for task in tasks) == {"left": 3, "right": 3}
    assert len(ConfigTasks(config).evaluated()) == 2


ADD, OWN = {"path": "synthetic:add"}, {"path": "own.jsonl"}


@pytest.mark.parametrize(
    ("data", "names"),
    [
        ({"train": OWN, "eval": ADD}, ("own.jsonl", "synthetic:add (test)")),
        (
            {"train": ADD, "eval": {"path": "synthetic:next"}},
            ("synthetic:add (train)", "synthetic:next (test)"),
        ),
        ({"train": ADD, "eval": ADD}, ("synthetic:add (train)", "synthetic:add (test)")),
        ({"train": OWN, "eval": {"path": "test.jsonl"}}, ("own.jsonl", "test.jsonl")),
        ({"train": OWN}, ("own.jsonl", "own.jsonl")),
        ({}, ("math (train)", "math (test)")),
    ],
)
def test_what_is_trained_on_and_measured_on_has_a_name(data: dict[str, Any], names: tuple[str, str]) -> None:
    config = load_config({"env": {"id": "math"}, "data": data})
    assert ConfigTasks(config).names == names

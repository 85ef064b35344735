"""Success and score of episodes that can be right in part, what is kept of a try, and figures of both counted by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from skill_ttrl.commands.sampler import SampleChunks, plan_samples, run_sampling_plan
from skill_ttrl.config import EvalConfig
from skill_ttrl.llm.backend import Sampling
from skill_ttrl.progress import SilentProgress
from skill_ttrl.rollout.outcome import (
    GREEDY,
    SAMPLE,
    EpisodeResult,
    Sample,
    SamplingPass,
    TaskSamples,
    count_by_type,
    count_success,
    drawn,
    episode_result,
    sample_of,
    winning,
)
from skill_ttrl.runs.episode_logs import SAMPLES, SampleFolder
from skill_ttrl.statistics import mean_interval, wilson_interval
from skill_ttrl.train.measure import correctness, evaluate_samples
from skill_ttrl.types import Completion, Group, SkillOps, Step, Task, ToolCall, Trajectory, to_json

TASK = Task("t", "Shop-v0", task_type="fashion")


def is_correct(trajectory: Trajectory) -> bool | None:
    return correctness(drawn(Group(trajectory.task, (trajectory,))))[0]


def bought(score: float, *, task: Task = TASK, pays: float = 1.0, reward: float | None = None) -> Trajectory:
    """An episode of two steps that ends with a purchase worth `score`."""
    steps = (
        Step("a shop", "search[x]", 0.0, False, False, info={"won": False, "score": 0.0}),
        Step("a page", "click[buy now]", score * pays, True, False, info={"won": score == 1, "score": score}),
    )
    return Trajectory(task, steps, None, "terminated", reward=reward)


def ended(reward: float, **info: Any) -> Trajectory:
    return Trajectory(TASK, (Step("o", "a", reward, True, False, info=info),), None, "terminated")


def broken(task: Task = TASK) -> Trajectory:
    step = Step("o", "a", 0.5, False, False, info={"won": True, "score": 0.5})
    return Trajectory(task, (step,), None, "error", error="the till is stuck")


def test_what_the_environment_says_of_winning_decides_before_what_it_pays() -> None:
    assert ended(0.67, won=False).success is False and ended(0.0, won=True).success is True
    assert ended(0.67).success is True and ended(0.0).success is False, "where it says nothing, the return does"
    assert ended(0.67, won="no").success is True, "a text is no truth value"
    assert ended(1.0, won=True, graded=False).success is None
    assert is_correct(bought(0.67)) is False and is_correct(bought(1.0, pays=10)) is True
    assert episode_result(broken()).success is False


@pytest.mark.parametrize("score", [True, "0.5", None, float("nan"), 350, -1])
def test_only_a_number_from_0_to_1_is_a_score(score: object) -> None:
    assert ended(1.0, score=score).score is None


def outcome(task: str, score: float | None, kind: str = "fashion", error: str | None = None) -> EpisodeResult:
    return EpisodeResult(task, kind, score == 1, 3, error, "", score)


def test_score_and_success_of_episodes_counted_by_hand() -> None:
    found = count_success([outcome("a", 1.0), outcome("b", 0.5), outcome("c", 0.0), outcome("d", None, error="stuck")])
    assert found.success == 0.25 and found.interval == pytest.approx(wilson_interval(1, 4))
    assert found.score == (1 + 0.5) / 4, "an episode that failed scores nothing"
    assert found.score_interval == mean_interval([1.0, 0.5, 0.0, 0.0])
    kinds = count_by_type([outcome("a", 1.0), outcome("b", 0.5), outcome("c", 0.25, "garden")])
    assert {kind: each.score for kind, each in kinds.items()} == {"fashion": 0.75, "garden": 0.25}


def test_an_evaluation_has_score_and_success_and_both_by_type() -> None:
    garden = Task("u", "Shop-v0", task_type="garden")
    rows = [
        drawn(Group(TASK, (bought(1.0), bought(0.5)))),
        drawn(Group(garden, (bought(0.2, task=garden), broken(garden)))),
        drawn(Group(TASK, (bought(1.0),)), draw=GREEDY),
        drawn(Group(garden, (bought(0.4, task=garden),)), draw=GREEDY),
    ]
    found = evaluate_samples(rows, label="x", config=EvalConfig(samples=2))
    assert found.accuracy == 0.25 and found.greedy == 0.5 and found.failed == 0.25
    assert found.score == pytest.approx((0.75 + 0.1) / 2) and found.greedy_score == pytest.approx(0.7)
    assert found.score_interval == mean_interval([0.75, 0.1])
    assert [result.score for result in found.results] == [0.75, 0.1]
    assert found.by_type["garden"].score == 0.1 and found.by_type["garden"].accuracy == 0


def test_the_best_of_purchases_that_are_all_wrong_in_part_has_not_won() -> None:
    partly = Group(TASK, (bought(0.67, reward=0.67), bought(0.1, reward=0.1)))
    assert winning(partly) == [False, False]
    assert winning(Group(TASK, (bought(0.67, reward=0.67), bought(1.0, reward=1.0)))) == [False, True]
    assert winning(Group(TASK, (bought(1.0, pays=10, reward=10.0), bought(0.0, reward=0.0)))) == [True, False]


def test_a_reward_of_another_kind_never_sees_what_the_environment_says() -> None:
    voted = Group(TASK, (bought(0.67, reward=1.0), bought(1.0, reward=0.0), bought(0.0, reward=1.0)))
    assert winning(voted) == [True, False, True]
    silent = Group(TASK, (Trajectory(TASK, (Step("o", "a", 0.5, True, False),), None, "terminated", reward=0.5),))
    assert winning(silent) == [True], "an environment that says nothing of winning: the best won, as ever"


def test_who_seeks_a_way_around_the_task_is_counted() -> None:
    tried = [ended(1.0, exploits=3), ended(0.0, exploits=0), ended(0.0, exploits=1), ended(0.0)]
    assert count_success([episode_result(each) for each in tried]).exploits == 2
    rows = [drawn(Group(TASK, tuple(tried[:3])))]
    config = EvalConfig(samples=3, greedy=False)
    assert evaluate_samples(rows, label="x", config=config).exploit_rate == pytest.approx(2 / 3)
    silent = [drawn(Group(TASK, (ended(1.0), ended(0.0), ended(0.0))))]
    assert evaluate_samples(silent, label="x", config=config).exploit_rate is None


SUM = Task("t", "E-v0", {"question": "6 times 7?"}, ground_truth="42")
OPEN = Task("o", "E-v0", {"question": "?"})


def trajectory(task: Task = SUM, answer: str | None = "42", reward: float = 1.0, **more: object) -> Trajectory:
    done = Completion(
        "a b", (1, 2, 3), (-0.5, -0.25, 0.0), "length", completion_mask=(True, True, False), inserted_spans=((1, 2),)
    )
    step = Step("q", "ab", reward, True, False, (9,), done)
    return Trajectory(task, (step, step), answer, "terminated", **more)  # type: ignore[arg-type]


def test_what_is_kept_of_a_try() -> None:
    found = sample_of(trajectory())
    assert found == Sample("ab\nab", "42", -1.5, 4, truncated=True)  # inserted tokens are not the model's own
    assert (
        sample_of(trajectory(OPEN)).is_correct is True and sample_of(trajectory(OPEN, reward=0.0)).is_correct is False
    )
    failed = Trajectory(OPEN, (), None, "error", error="broken")
    assert sample_of(failed) == Sample("", None, is_correct=False, error="broken")
    call = ToolCall("calculator", '{"expression": "6*7"}', result="42")
    asked = replace(failed, steps=(Step("6*7?", "", 0.0, False, False, calls=(call,)),))
    assert sample_of(asked).calls == (call,) and '"calls":[' in to_json(drawn(Group(OPEN, (asked,))))
    assert '"calls"' not in to_json(drawn(Group(OPEN, (failed,))))
    told = sample_of(trajectory(ops=SkillOps(retrieve=("q",), errors=("e",)), retrieved=("parity",)))
    assert told.skills == {
        "retrieve_rate": 1,
        "generate_rate": 0,
        "evolve_rate": 0,
        "retrieval_hit_rate": 1,
        "skill_op_parse_errors": 1,
        "retrieved_tokens": 2,
    }


def test_true_answers_decide_before_the_environment() -> None:
    assert is_correct(trajectory(reward=0.0)) is True and is_correct(trajectory(answer="41", reward=1.0)) is False
    assert correctness(drawn(Group(OPEN, (trajectory(OPEN, "x"), trajectory(OPEN, "x", 0.0))))) == [True, False]
    ungraded = Trajectory(OPEN, (Step("q", "a", 0.0, True, False, info={"graded": False}),), "x", "terminated")
    assert is_correct(ungraded) is None


def answered(name: str, answers: Sequence[str | None], draw: str = SAMPLE) -> TaskSamples:
    return TaskSamples("", draw, Task(name, "E-v0", ground_truth="42"), tuple(Sample("", answer) for answer in answers))


ROWS = [
    answered("most", ["42", "42.0", "7", "42"]),
    answered("few", ["7", "42", "7", None]),
    answered("most", ["42"], GREEDY),
    answered("few", ["7"], GREEDY),
]
CONFIG = EvalConfig(samples=4)


def test_figures_counted_by_hand() -> None:
    found = evaluate_samples(ROWS, label="x", config=CONFIG, source="f.json", transductive=True)
    assert found.accuracy == (3 / 4 + 1 / 4) / 2
    # pass@2 = 1 - C(4-c, 2) / C(4, 2): with 3 right 1 - 0/6, with 1 right 1 - 3/6.
    assert found.pass_at_k == {"1": 0.5, "2": (1 + 0.5) / 2, "4": 1.0}
    assert found.majority == 0.5 and found.majority_interval == wilson_interval(1, 2, 0.95)
    assert found.greedy == 0.5 and found.majority_ratio == (3 / 4 + 2 / 4) / 2
    assert [(result.correct, result.majority_answer, result.greedy_correct) for result in found.results] == [
        (3, "42", True),
        (1, "7", False),
    ]
    assert (found.source, found.transductive, found.problems, found.samples) == ("f.json", True, 2, 4)
    assert found.pass_at_k_intervals["2"] == mean_interval([1.0, 0.5])
    assert found.pass_at_k_intervals["4"] == wilson_interval(2, 2)
    assert evaluate_samples(ROWS, label="x", config=CONFIG, source="f.json", transductive=True) == found


PROBLEMS = {"a": [Task(str(n), "E-v0") for n in range(5)], "b": [Task("x", "E-v0")]}
DRAWS = [SamplingPass(SAMPLE, 4, Sampling(), 7), SamplingPass(GREEDY, 1, Sampling(temperature=0.0), 8)]


def test_chunks_hold_each_problem_once_in_order() -> None:
    plan = plan_samples(PROBLEMS, DRAWS, 2, 1024)
    assert [(c.source, c.draw.name, [task.id for task in c.tasks]) for c in plan] == [
        ("a", SAMPLE, ["0", "1"]),
        ("a", SAMPLE, ["2", "3"]),
        ("a", SAMPLE, ["4"]),
        ("a", GREEDY, ["0", "1"]),
        ("a", GREEDY, ["2", "3"]),
        ("a", GREEDY, ["4"]),
        ("b", SAMPLE, ["x"]),
        ("b", GREEDY, ["x"]),
    ]
    assert plan[0].seed == 7 and plan[3].seed == 8  # the first chunk is drawn as it would be in one go
    assert len({chunk.seed for chunk in plan[:6]}) == 6
    assert [len(c.tasks) for c in plan_samples(PROBLEMS, DRAWS, 0, 1024)] == [5, 5, 1, 1]
    # As many as the backend decodes at once: 8 rows are 2 problems of 4 samples, and 5 of 1.
    assert [len(c.tasks) for c in plan_samples(PROBLEMS, DRAWS, None, 8)] == [2, 2, 1, 5, 1, 1]


def by_chunk(play: Callable[..., list[Group]]) -> SampleChunks:
    """Chunks are sampled here, each when its groups are asked for."""
    return lambda chunks: (play(c.tasks, c.draw.rollouts_per_task, c.draw.sampling, c.seed) for c in chunks)


@pytest.mark.parametrize(("there", "sampled"), [(0, 12), (1, 12), (2, 10), (3, 10), (11, 1), (12, 0)])
def test_a_part_of_a_chunk_is_completed(tmp_path: Path, there: int, sampled: int) -> None:
    """Chunks have 2, 2, 1, 2, 2, 1, 1 and 1 lines. A chunk is sampled whole, and what the folder holds of it stays."""
    asked: list[Task] = []

    def play(tasks: Sequence[Task], tries: int, sampling: Sampling, seed: int) -> list[Group]:
        asked.extend(tasks)
        return [Group(task, (trajectory(task, answer=str(seed)),) * tries) for task in tasks]

    def draw(folder: SampleFolder) -> list[TaskSamples]:
        asked.clear()
        return run_sampling_plan(plan_samples(PROBLEMS, DRAWS, 2, 1024), by_chunk(play), folder, SilentProgress())

    with SampleFolder(tmp_path, {"model": "m"}) as folder:
        rows = draw(folder)
    whole = (tmp_path / SAMPLES).read_bytes()
    (tmp_path / SAMPLES).write_bytes(b"".join(whole.splitlines(keepends=True)[:there]) + b"{"[: there % 2])
    with SampleFolder(tmp_path, {"model": "m"}) as folder:
        assert draw(folder) == rows and len(asked) == sampled and folder.complete
    assert (tmp_path / SAMPLES).read_bytes() == whole

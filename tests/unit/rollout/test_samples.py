"""What is kept of a try, and an evaluation as a function of what is kept: figures counted by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from skill_ttrl.commands.sampler import SampleChunks, plan_samples, run_sampling_plan
from skill_ttrl.config import EvalConfig
from skill_ttrl.llm.backend import Sampling
from skill_ttrl.progress import SilentProgress
from skill_ttrl.rollout.outcome import GREEDY, SAMPLE, Sample, SamplingPass, TaskSamples, drawn, sample_of
from skill_ttrl.runs.episode_logs import SAMPLES, SampleFolder
from skill_ttrl.statistics import mean_interval, wilson_interval
from skill_ttrl.train.measure import correctness, evaluate_samples
from skill_ttrl.types import Completion, Group, SkillOps, Step, Task, Trajectory

TASK = Task("t", "E-v0", {"question": "6 times 7?"}, ground_truth="42")
OPEN = Task("o", "E-v0", {"question": "?"})


def is_correct(trajectory: Trajectory) -> bool | None:
    return correctness(drawn(Group(trajectory.task, (trajectory,))))[0]


def trajectory(task: Task = TASK, answer: str | None = "42", reward: float = 1.0, **more: object) -> Trajectory:
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

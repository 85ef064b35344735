"""`skillttrl evaluate` on runs, checkpoints and plain models: the same figures wherever the samples come from, whatever stops it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from skill_ttrl.commands import evaluate
from skill_ttrl.commands.evaluate import measure_policy
from skill_ttrl.commands.resolve import resolve_target
from skill_ttrl.config import load_config
from skill_ttrl.errors import ConfigError, RunFolderError
from skill_ttrl.runs.episode_logs import IDENTITY
from skill_ttrl.statistics import wilson_interval
from skill_ttrl.types import Trajectory, from_json
from tests.doors import DOORS, opens
from tests.faulty_server import FaultyServer, at
from tests.integration.test_cli_commands import refused, skillttrl
from tests.preloaded import run_code


@pytest.fixture(scope="module")
def run(tiny_yaml: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One run that all tests here look at and none changes."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    done = skillttrl("train", tiny_yaml, "-o", folder)
    assert done.code == 0, done
    return folder


@pytest.fixture(scope="module")
def model(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run's policy as a plain model."""
    folder = tmp_path_factory.mktemp("models") / "plain"
    assert skillttrl("export", run, "-o", folder).code == 0
    return folder


def problems(path: Path, *questions: str) -> Path:
    """A file of sums with their true answers."""
    rows = [
        {"id": n, "prompt": f"Compute {q}.", "answer": sum(map(int, q.split("+")))} for n, q in enumerate(questions)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def trained_on(run: Path) -> list[str]:
    """Questions of the run's training problems, without their words."""
    from skill_ttrl.data.tasks import load_tasks

    source = load_config(run / "config.yaml").train_source
    assert source is not None
    return [task.options["question"].removeprefix("Compute ").rstrip(".") for task in load_tasks(source)]


def test_a_plain_model_gives_what_its_run_gave(run: Path, model: Path, tiny_yaml: Path) -> None:
    own = skillttrl("evaluate", run, "--json").json
    assert own["transductive"] is False and own["source"] == "synthetic:add (test)"
    plain = skillttrl("evaluate", model, "--config", tiny_yaml, "--json")
    sampling = json.loads((model / "generation_config.json").read_text())
    assert (sampling["do_sample"], sampling["temperature"], sampling["top_k"]) == (True, 1.0, 0)
    assert plain.code == 0 and plain.json["transductive"] is None and plain.json["label"] == "plain"
    assert "Contamination unknown" in plain.err
    assert {**plain.json, "label": own["label"], "transductive": False} == own
    shown = " ".join(skillttrl("evaluate", model, "--config", tiny_yaml).out.split())
    assert "plain: 4 problems of synthetic:add (test), contamination unknown" in shown and "pass@2" in shown


@pytest.mark.slow
def test_trained_on_and_held_out_are_counted_apart(run: Path, tmp_path: Path) -> None:
    seen, new = trained_on(run)[:2], ["11+11", "90+9", "13+80"]
    mixed = problems(tmp_path / "mixed.jsonl", seen[0], new[0], seen[1], *new[1:])
    found = skillttrl("evaluate", run, "--data", mixed, "--json").json
    assert [(each["transductive"], each["problems"]) for each in found] == [(True, 2), (False, 3)]
    assert [[result["task"] for result in each["results"]] for each in found] == [["0", "2"], ["1", "3", "4"]]
    shown = skillttrl("evaluate", run, "--data", mixed).out
    assert "2 problems" in shown and "transductive" in shown and "3 problems" in shown and "held-out" in shown
    only = skillttrl("evaluate", run, "--data", problems(tmp_path / "seen.jsonl", *seen), "--json").json
    assert only["transductive"] is True and only["problems"] == 2
    itself = skillttrl(
        "evaluate", run, "--set", "data.eval=null", "--json"
    ).json  # the training problems, as TTRL measures
    assert itself["transductive"] is True and itself["problems"] == 6 and itself["split"] == "train"
    with pytest.raises(ConfigError, match="2 transductive and 3 held-out"):
        evaluate.run(run, [f"data.eval={{path: {mixed}}}"])


def test_what_the_run_before_was_trained_on_counts(tiny_yaml: Path, tmp_path: Path) -> None:
    """`rl --policy RUN` goes on from another run's weights, which have seen that run's demonstrations."""
    demos = tmp_path / "demos.jsonl"
    demos.write_text('{"prompt": "Compute 48+49.", "response": "<answer>97</answer>"}\n')
    first = ("--set", f"sft.data={{path: {demos}}}", "--set", "sft.steps=1")
    assert skillttrl("sft", tiny_yaml, "-o", tmp_path / "first", *first).code == 0
    again = ("rl", tiny_yaml, "--policy", tmp_path / "first", "-o", tmp_path / "second", "--set", "rl.steps=1")
    assert skillttrl(*again).code == 0
    file = problems(tmp_path / "two.jsonl", "48+49", "97+98")
    found = skillttrl("evaluate", tmp_path / "second", "--data", file, "--json").json
    assert [(each["transductive"], each["problems"]) for each in found] == [(True, 1), (False, 1)]


def test_kept_samples_are_the_evaluation(run: Path, tmp_path: Path) -> None:
    asked = ("evaluate", run, "--output", tmp_path / "kept")
    first = skillttrl(*asked, "--json")
    assert first.code == 0 and first.json == skillttrl("evaluate", run, "--json").json  # 4 problems are one chunk
    lines = [json.loads(line) for line in (tmp_path / "kept" / "samples.jsonl").read_text().splitlines()]
    assert [line["draw"] for line in lines] == ["sample"] * 4 + ["greedy"] * 4
    assert [len(line["samples"]) for line in lines] == [2] * 4 + [1] * 4
    right = [[sample["is_correct"] for sample in line["samples"]] for line in lines]
    assert [sum(row) for row in right[:4]] == [each["correct"] for each in first.json["results"]]
    assert json.loads((tmp_path / "kept" / "evaluation.json").read_text()) == [first.json]
    before = (tmp_path / "kept" / "samples.jsonl").read_bytes()
    again = skillttrl(*asked, "--json")
    assert "All samples are in" in again.err and again.json == first.json
    assert (tmp_path / "kept" / "samples.jsonl").read_bytes() == before


def test_a_folder_of_something_else_is_refused(run: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    assert skillttrl("evaluate", run, "-o", kept).code == 0
    before = {entry.name: entry.read_bytes() for entry in kept.iterdir()}
    other = problems(tmp_path / "other.jsonl", "11+11")
    into = ("-o", kept)
    something = "holds samples of something else"
    for words, named in (
        (("evaluate", run, "--set", "eval.samples=3"), "draws.sample.rollouts_per_task 2 there, 3 here"),
        (("evaluate", run, "--set", "seed=1"), "config.seed 0 there, 1 here"),
        (("evaluate", run, "--data", other), "data.0.name"),
        (("evaluate", run / "checkpoints" / "sft-000012"), "model"),
        (("vote", "--policy", run), "draws."),
    ):
        refused(skillttrl(*words, *into), 4, something, named)
    refused(skillttrl("evaluate", run, "-o", run), 4, "not empty and holds no samples")
    assert {entry.name: entry.read_bytes() for entry in kept.iterdir()} == before
    measured = tmp_path / "measured"
    assert skillttrl("evaluate", run, "--data", other, "-o", measured).code == 0
    problems(other, "11+12")
    refused(skillttrl("evaluate", run, "--data", other, "-o", measured), 4, something, "data.0.revision")


def test_sources_that_are_none(run: Path, model: Path, tmp_path: Path) -> None:
    refused(skillttrl("evaluate", model), 2, "--data FILE")
    refused(skillttrl("evaluate", run, "--config", "quickstart"), 2, "--config")
    refused(skillttrl("evaluate", ""), 2, "Name the policy")
    refused(skillttrl("evaluate"), 2)
    refused(skillttrl("evaluate", "random"), 2, "--env")
    refused(skillttrl("evaluate", "somewhere", "--split", "test"), 2, "--split needs --env")
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / IDENTITY).write_text("{}")
    refused(skillttrl("evaluate", tmp_path / "kept"), 4, "neither a run folder")
    refused(skillttrl("evaluate", f"{run.parent}/rnu"), 4, "(it does not exist)")
    refused(skillttrl("evaluate", "nobody/nothing", "--config", "quickstart"), 5, "nobody/nothing")
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "adapter_config.json").write_text("[]")
    with pytest.raises(RunFolderError, match=r"adapter_config\.json"):
        resolve_target(tmp_path / "adapter")


@pytest.mark.slow
def test_a_run_whose_training_data_is_gone_is_measured_and_says_what_it_cannot_say(
    tiny_yaml: Path, tmp_path: Path
) -> None:
    train, test = (
        problems(tmp_path / "train.jsonl", "11+11", "12+12", "13+13"),
        problems(tmp_path / "test.jsonl", "20+30"),
    )
    sources = ("--set", f"data.train={{path: {train}}}", "--set", f"data.eval={{path: {test}}}", "--set", "rl.steps=1")
    assert skillttrl("train", tiny_yaml, "-o", tmp_path / "run", *sources).code == 0
    assert skillttrl("evaluate", tmp_path / "run", "--json").json["transductive"] is False
    train.unlink()
    found = skillttrl("evaluate", tmp_path / "run", "--json")
    assert found.code == 0 and found.json["transductive"] is None
    assert "Contamination unknown" in found.err and "train.jsonl" in found.err
    problems(test, "20+31")
    refused(skillttrl("evaluate", tmp_path / "run"), 3, "has changed since this run started")


HARNESS = '''
import json, os, random, signal, sys, time
import skill_ttrl.commands.evaluate, transformers.models.qwen2.modeling_qwen2, accelerate, peft
from skill_ttrl.cli.main import main

run, data, folder, chunks = sys.argv[1:]


def start(output):
    child = os.fork()
    if child:
        return child
    with open(output + ".log", "a") as log:
        os.dup2(log.fileno(), 1), os.dup2(log.fileno(), 2)
    sys.argv = ["skillttrl", "evaluate", run, "--data", data, "--batch-size", "2", "--output", output]
    code = 0
    try:
        main()
    except SystemExit as leaving:
        code = leaving.code
    finally:
        sys.stdout.flush()
        os._exit(code or 0)


def size(output):
    try:
        return os.path.getsize(output + "/samples.jsonl")
    except FileNotFoundError:
        return 0


def stop_after(output, grown, delay, signum):
    """Signal a new attempt `delay` seconds after its samples have grown so many times; its exit status, and the size."""
    child, times, before = start(output), 0, size(output)
    while times < grown:
        if os.waitpid(child, os.WNOHANG)[0]:
            raise SystemExit("an attempt ended by itself")
        now = size(output)
        times += now > before
        before = now
        time.sleep(0.0005)
    time.sleep(delay)
    os.kill(child, signum)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), size(output)


def finish(output):
    return os.waitstatus_to_exitcode(os.waitpid(start(output), 0)[1])


rng = random.Random(5)
found = {"whole": finish(folder + "-whole"), "kills": [], "signals": []}
for attempt in range(2):
    found["kills"].append(stop_after(folder, 2, rng.uniform(0.0, 0.01), signal.SIGKILL))
found["signals"].append(stop_after(folder, 1, 0.0, signal.SIGINT))
with open(folder + "/samples.jsonl", "rb+") as samples:  # a kill in the middle of a write
    samples.truncate(os.path.getsize(folder + "/samples.jsonl") - 10)
found["end"] = finish(folder)
print(json.dumps(found))
'''


@pytest.mark.slow
def test_killed_and_stopped_it_ends_with_the_same_bytes(run: Path, tmp_path: Path) -> None:
    data = problems(tmp_path / "data.jsonl", *(f"{n}+{n + 3}" for n in range(10, 50)))
    done = run_code(HARNESS, run, data, tmp_path / "kept", 2, timeout=240)
    log = tmp_path / "kept.log"
    told = log.read_text() if log.exists() else ""
    assert done.returncode == 0, done.stderr + told
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["whole"] == 0 and found["end"] == 0
    assert [status for status, _ in found["kills"]] == [-9] * 2
    sizes = [size for _, size in found["kills"]]
    whole = (tmp_path / "kept-whole" / "samples.jsonl").read_bytes()
    assert sizes == sorted(sizes) and 0 < sizes[0] < sizes[-1] < len(whole)  # each went on where the last had been
    assert [status for status, _ in found["signals"]] == [128 + 2]
    assert "lines of samples are saved" in told and told.count("Continuing after") == 3
    assert "Traceback" not in told
    for name in ("samples.jsonl", "samples.json", "evaluation.json"):
        assert (tmp_path / "kept" / name).read_bytes() == (tmp_path / "kept-whole" / name).read_bytes(), name
    assert len(whole.splitlines()) == 80


@pytest.mark.usefixtures("no_words_around")
def test_a_policy_is_measured_on_each_task_of_the_split_and_by_type(tmp_path: Path) -> None:
    command = ("evaluate", "openai:opener", "--env", DOORS, "--set", "eval.samples=1", "--set", "agent.template=plain")
    with FaultyServer(answer=opens, faults=()) as server:
        done = skillttrl(*command, "-o", tmp_path / "kept", "--json", *at(server))
        assert done.code == 0, done
        asked = len(server.asked)
        again = skillttrl(*command, "--full", "-o", tmp_path / "kept", *at(server))
        assert len(server.asked) == asked and again.code == 0
    found = done.json
    assert [result["task"] for result in found["results"]] == [f"test/{number}" for number in range(6)]
    assert [result["correct"] for result in found["results"]] == [1, 1, 1, 1, 1, 0]
    assert found["source"] == f"{DOORS} test (joinery)" and found["split"] == "test"
    unscored = {"score": None, "score_interval": None, "policy": None}  # these doors are open or not
    assert found["by_type"] == {
        "left": {"problems": 3, "accuracy": 1.0, "interval": list(wilson_interval(3, 3)), **unscored},
        "right": {"problems": 3, "accuracy": 2 / 3, "interval": list(wilson_interval(2, 3)), **unscored},
    }
    assert found["score"] is None and found["greedy_score"] is None
    assert found["controls"]["first"] == {
        "problems": 6,
        "accuracy": 0.5,
        "interval": list(wilson_interval(3, 6)),
        **unscored | {"policy": "unclear"},
    }
    assert (found["majority_ratio"], found["entropy"], found["majority"]) == (None, None, None)  # a door has no answer
    shown = " ".join(again.out.split())
    assert "control: first │ 0.500 [0.188, 0.812]" in shown
    assert "agreement" not in shown and "maj@" not in shown and "entropy" not in shown
    assert "joinery" in shown and "avg@1 of right (3) │ 0.667 [0.208, 0.939]" in shown


@pytest.fixture
def no_words_around(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables as wide as they want."""
    monkeypatch.setenv("COLUMNS", "200")


def test_several_samples_of_a_task_are_no_several_tasks() -> None:
    with FaultyServer(answer=opens, faults=()) as server:
        settings = [word for word in at(server, "eval.samples=4", "agent.template=plain") if word != "--set"]
        (found,) = measure_policy("openai:opener", DOORS, split="train", limit=4, overrides=settings)
        assert found.problems == 4 and found.by_type["right"].interval == wilson_interval(2, 2)
        (short,) = measure_policy(
            "openai:opener", DOORS, split="train", limit=4, overrides=[*settings, "agent.max_turns=1"]
        )
        assert short.accuracy == 0, "it waits in the first turn"
        (turned,) = measure_policy(
            "openai:opener", DOORS, split="train", limit=2, overrides=[*settings, "env.kwargs.broken=[1]"]
        )
        assert turned.failed == 0.5 and turned.by_type["right"].accuracy == 0


def test_a_player_is_measured_once_on_each_task(tmp_path: Path) -> None:
    file = tmp_path / "out.jsonl"
    command = ("evaluate", "tests.doors:Opener", "--env", DOORS)
    done = skillttrl(*command, "-o", file, "--json")
    assert done.code == 0, done
    assert done.json["split"] == "test" and done.json["overall"]["episodes"] == 6
    assert done.json["by_type"]["left"]["interval"] == list(wilson_interval(3, 3))
    lines = [from_json(Trajectory, line) for line in file.read_bytes().splitlines()]
    assert [line.task.id for line in lines] == [f"test/{number}" for number in range(6)]
    shown = skillttrl(*command, "--split", "train", "--limit", 3).out
    assert "train: 3 episodes" in " ".join(shown.split()) and "Source: joinery." in shown

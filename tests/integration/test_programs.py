"""Commands with an agent program, end to end: a small real model behind the gateway, or none at all."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from skill_ttrl.runs.checkpoint import MANIFEST
from skill_ttrl.storage.jsonl import read_jsonl
from tests.integration.test_cli_commands import refused, skillttrl

EXAMPLE = Path(__file__).parents[2] / "examples" / "agent_program.py"
AGENT = ["--agent", f"{sys.executable} {EXAMPLE}"]
RULES = ["--agent", f"{sys.executable} {EXAMPLE.with_name('rules_program.py')}"]
SMALL = [
    *("phases=[rl]", "rl.prompts_per_step=2", "data.eval.limit=1", "eval.samples=1", "eval.greedy=false"),
    *("rollout.n_votes_per_prompt=3", "rollout.n_samples_per_prompt=3", "rl.reward=random"),
]


def sets(*settings: str) -> list[str]:
    return [word for each in settings for word in ("--set", each)]


def test_training_with_a_program_changes_the_weights_by_what_the_program_sampled(
    tiny_yaml: Path, answering: Path, tmp_path: Path
) -> None:
    given = sets(*SMALL, f"model.path={answering}", "rl.steps=2")
    done = skillttrl("train", tiny_yaml, *AGENT, "-o", tmp_path / "run", *given)
    assert done.code == 0, done
    lines = read_jsonl(tmp_path / "run" / "trajectories.jsonl")
    assert len(lines) == 12 and {line["step"] for line in lines} == {0, 1}
    for line in lines:
        assert line["error"] is None, line["error"]
        for step in line["steps"]:
            said = step["completion"]
            assert step["prompt_ids"] and len(said["token_ids"]) == len(said["logprobs"]) > 0
            assert said["policy_version"] == line["step"]
    (metrics, *_) = read_jsonl(tmp_path / "run" / "metrics.jsonl")
    assert metrics["grad_norm"] > 0 and metrics["failed_rollouts"] == 0
    before, after = (folder / "model.safetensors" for folder in (answering, tmp_path / "run/checkpoints/rl-000002"))
    assert before.read_bytes() != after.read_bytes()


def test_a_run_whose_program_crashes_says_so_with_the_end_of_its_stderr(
    tiny_yaml: Path, answering: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_OF_THE_RUN", "sk-not-for-you")
    (tmp_path / "crashes.py").write_text("import os; raise SystemExit(f'{sorted(os.environ)} and no more')")
    given = sets(*SMALL, f"model.path={answering}")
    done = skillttrl(
        "train", tiny_yaml, "--agent", f"{sys.executable} {tmp_path}/crashes.py", "-o", tmp_path / "r", *given
    )
    refused(done, 3, "rollouts failed", "ended with exit code 1", "SKILLTTRL_TASK", "and no more")
    assert "SECRET_OF_THE_RUN" not in done.err


@pytest.mark.slow
def test_a_killed_run_goes_on_with_its_program(tiny_yaml: Path, answering: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    given = ["train", tiny_yaml, *AGENT, "-o", run, *sets(*SMALL, f"model.path={answering}", "rl.steps=6")]
    process = subprocess.Popen(
        [sys.executable, "-m", "skill_ttrl.cli.main", *map(str, given)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    while process.poll() is None and len(read_jsonl(run / "metrics.jsonl")) < 2:
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    done = skillttrl(*given, "--resume", "auto")
    assert done.code == 0, done
    lines = read_jsonl(run / "trajectories.jsonl")
    assert sorted({line["step"] for line in lines}) == [*range(6)] and len(lines) == 36
    assert all(line["error"] is None for line in lines)


def test_a_run_and_a_model_are_measured_with_a_program(answering: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(answering, model)
    (model / MANIFEST).unlink()
    (tmp_path / "data.jsonl").write_text('{"prompt": "Compute 1+1.", "answer": "2"}\n')
    prompts = ["agent.template=plain", "data.max_prompt_tokens=48", "rollout.max_new_tokens=10", "rollout.stop=[]"]
    for policy, more, out in ((answering.parent.parent, [], "of-run"), (model, sets(*prompts), "of-model")):
        given = ["evaluate", policy, *AGENT, "--data", tmp_path / "data.jsonl", "-n", 2, "--json", *more]
        done = skillttrl(*given, "-o", tmp_path / out)
        assert done.code == 0, done
        assert done.json["problems"] == 1 and done.json["failed"] == 0.0 and "agent_program.py" in done.json["label"]
        (row, *_) = read_jsonl(tmp_path / out / "samples.jsonl")
        assert len(row["samples"]) == 2
    refused(skillttrl("evaluate", model, *RULES, *given[4:], "-o", tmp_path / "of-model"), 4, "rules_program.py")


def test_without_a_model_a_program_is_collected_from_and_distilled(tmp_path: Path) -> None:
    episodes = tmp_path / "episodes.jsonl"
    given = ["collect", "--env", "qa", *RULES, "--limit", 6, "-o", episodes]
    done = skillttrl(*given, "--json")
    assert done.code == 0 and done.json["overall"]["failed"] == 0, done
    assert all(line["steps"][0]["completion"]["text"] for line in read_jsonl(episodes))
    scripted = ["collect", "--env", "qa", "--policy", "random", *RULES, "-o", tmp_path / "x.jsonl"]
    refused(skillttrl(*scripted), 2, "--agent needs a model, but random is a scripted agent")
    learn = ["distill", "--trajectories", episodes, "--teacher", "tests.integration.test_distill_command:Own"]
    done = skillttrl(*learn, "-o", tmp_path / "bank")
    assert done.code == 0 and "My own words" in done.out, done
    (tmp_path / "rules.md").write_text("- Write dates as YYYY-MM-DD.\n- Write durations in whole minutes.\n")
    measured = ["evaluate", "none", *RULES, "--env", "qa", "--split", "val", "--limit", 16, "--json"]
    plain, ruled = (skillttrl(*measured, *more).json for more in ([], ["--document", tmp_path / "rules.md"]))
    assert plain["accuracy"] == 0 < ruled["accuracy"]
    assert plain["samples"] == 1 and plain["greedy"] is None, "a run of a program may cost money"
    refused(skillttrl("evaluate", "none", *RULES, "--env", "alfworld", "--split", "no"), 2, "agent.max_turns=1")
    refused(skillttrl(*measured, *sets("data={eval: problems.jsonl}")), 2, "own tasks are played")

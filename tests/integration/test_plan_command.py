"""`skillttrl plan` through its entry point: what it prints, how it refuses, and a plan calibrated on a run that was just made."""

from __future__ import annotations

import contextlib
import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from skill_ttrl.cli.main import main

NAME = "ttrl_qwen2.5_math_7b"


def skillttrl(*arguments: object) -> tuple[int, str, str]:
    """(exit code, stdout, stderr) of a command in this process."""
    before, out, err = sys.argv, io.StringIO(), io.StringIO()
    sys.argv, code = ["skillttrl", *map(str, arguments)], 0
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                main()
            except SystemExit as leaving:
                code = int(leaving.code or 0)
    finally:
        sys.argv = before
    return code, out.getvalue(), err.getvalue()


def planned(*arguments: object) -> Any:
    code, out, err = skillttrl("plan", *arguments, "--json")
    assert code == 0, err
    return json.loads(out)


def test_the_five_rows_come_first_and_full_has_the_rest() -> None:
    command = ("plan", NAME, "--gpus", 8, "--nodes", 2, "--env-seconds", 0, "--price", 2)
    code, out, err = skillttrl(*command)
    assert code == 0, err
    first = [line.split()[0] for line in out.split("\n\n")[1].splitlines() if not line.startswith(" ")]
    assert first == ["step", "throughput", "time", "GPU", "bottleneck"]
    assert "cost" in out and "fits" in out and "--full" in out and "rollout.backend=vllm" in out
    _, more, _ = skillttrl(*command, "--full")
    assert "one setting changed" in more and "mean staleness" in more and "more rows" not in more
    _, free, _ = skillttrl(*command[:-2])
    assert "cost" not in free


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--gpus", 0], 2, "at least 1"),
        (["--gpus", 8, "--nodes", 3], 2, "does not divide"),
        (["--gpus", 8, "--rollout-gpus", 8], 2, "at most 7"),
        (["--gpu", "abacus"], 2, "not in the table"),
        (["--gpus", 1], 5, "does not fit"),
        (["--gpus", 8, "--set", "model.path=nobody/knows"], 5, "Cannot read the config of the model"),
        (["--gpus", 8, "--set", "rollout.backend=openai"], 2, "cannot be trained"),
        (["--gpus", 8, "--calibrate", "no-such-run"], 4, "no-such-run"),
        (["--gpus", 8, "--tokens", 10**5], 2, "rollout.max_new_tokens is 3072"),
    ],
)
def test_mistakes_are_one_message_before_anything_runs(arguments: list[Any], code: int, words: str) -> None:
    found, out, err = skillttrl("plan", NAME, "--env-seconds", 0, *arguments)
    assert (found, out) == (code, ""), err
    assert words in err and "Traceback" not in err


def test_a_recipe_that_optimizes_a_text_names_its_command() -> None:
    code, _, err = skillttrl("plan", "quickstart_optimize", "--gpus", 8)
    assert code == 2 and "skillttrl optimize quickstart_optimize --dry-run" in err


def test_a_plan_calibrated_on_a_run_predicts_that_run(tiny_yaml: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    settings = ["--set", "phases=[rl]", "--set", "rl.steps=4"]
    code, _, err = skillttrl("train", tiny_yaml, *settings, "-o", run, "--json")
    assert code == 0, err
    rows = [json.loads(line) for line in (run / "timings.jsonl").read_text().splitlines()]
    middle = sorted(row["seconds"] for row in rows if row["phase"] == "rl" and row["step"])[1]
    own = planned(run / "config.yaml", "--gpu", "cpu", "--calibrate", run)
    assert own["step_seconds"] == pytest.approx(middle, rel=0.5)  # medians of parts, lengths drawn again
    more = planned(
        run / "config.yaml", "--gpu", "cpu", "--calibrate", run, "--set", "rl.prompts_per_step=64", "--env-seconds", 1
    )
    assert more["bottleneck"] == "environment" and more["step_seconds"] > 64
    code, _, err = skillttrl("plan", NAME, "--gpus", 8, "--env-seconds", 0, "--calibrate", run)
    assert code == 2 and "ran on a CPU" in err
    on_gpu = [json.dumps(row | {"gpu_peak_bytes": 1e9}) + "\n" for row in rows]
    (run / "timings.jsonl").write_text("".join(on_gpu))
    code, _, err = skillttrl("plan", run / "config.yaml", "--gpu", "cpu", "--calibrate", run)
    assert code == 2 and "ran on a GPU" in err
    settings_file = run / "config.yaml"
    settings_file.write_text(settings_file.read_text().replace("max_staleness: 0", "max_staleness: 1"))
    code, _, err = skillttrl("plan", settings_file, "--gpu", "cpu", "--calibrate", run)
    assert code == 3 and "--set rl.max_staleness=0" in err


@pytest.mark.slow
def test_the_curve_is_an_image_and_part_of_the_json(tmp_path: Path) -> None:
    image = tmp_path / "curve.svg"
    found = planned("quickstart", "--gpus", 8, "--gpu", "h100", "--env-seconds", 0, "--svg", image)
    assert image.read_text().startswith("<svg") and len(found["curve"]) == 3
    assert [point["gpus"] for point in found["curve"]["as configured"]][-1] == 1000

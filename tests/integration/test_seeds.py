"""Several seeds by one command, and the commands that look at several runs."""

from __future__ import annotations

from pathlib import Path

from tests.integration.test_cli_commands import refused, skillttrl


def test_seeds_are_run_resumed_listed_compared_and_inspected(tiny_yaml: Path, tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "seeds"
    small = ("--set", "sft.steps=1", "--set", "rl.steps=1", "--set", "eval.samples=1")
    command = ("train", tiny_yaml, *small, "--seeds", "0, 1", "-o", folder)
    done = skillttrl(*command, "--json")
    assert done.code == 0, done
    assert done.json["seeds"] == done.json["ended"] == [0, 1] and len(done.json["after"]["avg@1"]["values"]) == 2
    refused(skillttrl(*command, "--resume", "never"), 4, "already holds runs with the seeds 0, 1")
    before = (folder / "seed-0" / "summary.json").stat().st_mtime_ns
    assert skillttrl(*command, "--resume", "auto").code == 0
    assert (folder / "seed-0" / "summary.json").stat().st_mtime_ns == before, "what has ended is left as it is"
    refused(
        skillttrl(*command, "--resume", "auto", "--set", "rl.learning_rate=1"),
        4,
        "rl.learning_rate 0.001 there, 1.0 here",
    )
    refused(skillttrl("train", tiny_yaml, "--seeds", "a", "-o", tmp_path / "x"), 2, "such as 0,1,2")
    refused(skillttrl("train", tiny_yaml, "--seeds", "0", "--seed", "1"), 2, "give one of them")

    listed = skillttrl("inspect", tmp_path / "runs", "--json").json
    assert [(row[1], row[3]) for row in listed["rows"]] == [(0, "yes"), (1, "yes")]
    (folder / "seed-1" / "run.json").write_text("{")
    assert "damaged" in skillttrl("inspect", tmp_path / "runs").out

    (found,) = skillttrl("inspect", folder / "seed-0", folder / "seed-0", "--json").json
    assert found["figures"]["accuracy"]["difference"] == 0
    assert found["figures"]["accuracy"]["interval"][0] < 0 < found["figures"]["accuracy"]["interval"][1]
    seen = skillttrl("inspect", folder)
    assert "seeds: " in seen.out and "avg@1" in seen.out

    steps = skillttrl("inspect", folder / "seed-0" / "metrics.jsonl", "--json").json
    assert {"loss", "reward", "majority_ratio"} <= {row[0] for row in steps["rows"]}
    rows = skillttrl("inspect", folder / "seed-0" / "evaluations.jsonl", "--json").json["rows"]
    assert next(row for row in rows if row[0].startswith("avg@1"))[1].count("[") == 1
    shown = skillttrl("inspect", folder / "seed-0", "--json").json
    assert "[" in shown["rows"][0][1] and "change" in shown["columns"]

"""`skillttrl vote` on what a run has sampled, on a run, on a model and on files of texts."""

from __future__ import annotations

import json
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from skill_ttrl.answers import canonical
from skill_ttrl.voting import STRATEGIES
from tests.integration.test_cli_commands import refused, skillttrl

ALL = ("--strategies", "all")


@pytest.fixture(scope="module")
def run(tiny_yaml: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in which every problem comes round again: three problems, three a step."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    settings = ("data.train.limit=3", "rl.steps=3", "sft.steps=80", "sft.save_steps=80")
    done = skillttrl("train", tiny_yaml, "-o", folder, *[word for each in settings for word in ("--set", each)])
    assert done.code == 0, done
    return folder


def lines(folder: Path, name: str = "votes.jsonl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def strategies(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {each["strategy"]: each for each in found["strategies"]}


@pytest.mark.slow
def test_a_run_s_steps_are_replayed_with_its_true_answers(run: Path, tmp_path: Path) -> None:
    found = skillttrl("vote", run / "trajectories.jsonl", *ALL, "-o", tmp_path / "lab", "--json")
    assert found.code == 0, found
    assert [found.json[name] for name in ("problems", "visits", "labelled", "trained_on")] == [3, 3, 3, 3]
    each = strategies(found.json)
    assert set(each) == set(STRATEGIES) and next(iter(each)) == "majority"
    assert not any(each[name]["requires"] for name in each)
    # The majority of the laboratory is the run's own: winner by winner, and whether it was true.
    held = [(row["task_id"], row["answer"], row["majority_ratio"], row["correct"]) for row in lines(run)]
    mine = [row for row in lines(tmp_path / "lab") if row["strategy"] == "majority"]
    assert [(row["task_id"], row["answer"], row["majority_ratio"], row["correct"]) for row in mine] == held
    winners: dict[str, list[str]] = defaultdict(list)
    for row in held:
        if (key := canonical(row[1])) is not None:
            winners[row[0]].append(key)
    flips = [
        sum(one != two for one, two in pairwise(keys)) / (len(keys) - 1) for keys in winners.values() if len(keys) > 1
    ]
    assert flips and each["majority"]["figures"]["flip_rate"]["value"] == pytest.approx(sum(flips) / len(flips))
    assert len(lines(tmp_path / "lab")) == 9 * len(each)


def test_drawn_samples_are_kept_and_voted_on_again(run: Path, tmp_path: Path) -> None:
    asked = ("vote", "--policy", run, "-n", 6, "-o", tmp_path / "lab")
    first = skillttrl(*asked, "--json")
    assert first.code == 0 and (first.json["problems"], first.json["samples"], first.json["trained_on"]) == (
        4,
        [6, 6],
        0,
    )
    rows = lines(tmp_path / "lab", "samples.jsonl")
    assert [len(row["samples"]) for row in rows] == [6] * 4 and {row["draw"] for row in rows} == {"sample"}
    samples = (tmp_path / "lab" / "samples.jsonl").read_bytes()
    every = skillttrl(*asked, *ALL, "--json")
    assert "All samples are in" in every.err and (tmp_path / "lab" / "samples.jsonl").read_bytes() == samples
    stored = skillttrl("vote", tmp_path / "lab", *ALL, "--json").json
    assert strategies(stored) == strategies(every.json) and stored["trained_on"] == 0
    assert (
        skillttrl("vote", tmp_path / "lab" / "samples.jsonl", *ALL, "--json").json["strategies"] == stored["strategies"]
    )
    assert strategies(stored)["majority"]["figures"] == strategies(first.json)["majority"]["figures"]
    assert json.loads((tmp_path / "lab" / "vote.json").read_text())["strategies"] == stored["strategies"]
    looked = skillttrl("inspect", tmp_path / "lab", "--json").json
    assert (
        looked["kind"] == "samples" and looked["facts"]["complete"] == "yes" and looked["rows"][0][:2] == ["sample", 6]
    )
    assert "strategy" in skillttrl("inspect", tmp_path / "lab" / "votes.jsonl", "--json").json["columns"]
    shown, full = (skillttrl("vote", tmp_path / "lab", *ALL, *more).out for more in ((), ("--full",)))
    assert "unclear" in shown and "verdict" in shown and "--full" in shown
    assert "unclear" in full and "false consensus" in full
    assert max(len(line) for line in (shown + full).splitlines()) <= 80


HOSTILE = "[red]\x1b[2J</title><script>x</script>"


def test_texts_of_one_s_own(tmp_path: Path) -> None:
    rows = [
        {
            "problem": "6 times 7?",
            "answer": "42",
            "task_type": HOSTILE,
            "responses": [r"\boxed{42}", "answer is 41", "42!"],
        },
        {"problem": "open", "answer": None, "responses": [rf"\boxed{{{HOSTILE}}}"] * 3},
    ]
    file = tmp_path / f"{HOSTILE.replace('/', '')}.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = skillttrl("vote", file, *ALL, "-o", tmp_path / "lab")
    assert done.code == 0 and "\x1b" not in done.out and "[red]" in done.out and "confidence needs logprobs" in done.out
    assert "1 of them with a true answer" in " ".join(done.out.split())
    found = [row for row in lines(tmp_path / "lab") if row["strategy"] == "majority"]
    assert next((row["answer"], row["correct"], row["abstained"]) for row in found) == ("42", True, 1)
    assert "given up" not in done.out
    hard = tmp_path / "hard.json"
    hard.write_text(
        json.dumps([{"problem": "a", "responses": ["answer is 1", r"\boxed{9^{9^{9^9}}}", r"\boxed{1.0}"]}])
    )
    told = skillttrl("vote", hard, "-o", tmp_path / "hard")
    assert "1 of 3 different answers could not be normalized (undecided 1)" in " ".join(told.out.split()), told
    counted = json.loads((tmp_path / "hard" / "vote.json").read_text())["undecided_answers"]
    assert counted == {"count": 1, "distinct": 3, "reasons": {"undecided": 1}}
    unlabelled = tmp_path / "open.json"
    unlabelled.write_text(json.dumps([{"problem": "a", "responses": ["answer is 1"] * 4}]))
    found_open = skillttrl("vote", unlabelled)
    assert (
        "label accuracy" not in found_open.out and "false" not in found_open.out and "majority ratio" in found_open.out
    )


def test_mistakes(run: Path, tmp_path: Path) -> None:
    file = tmp_path / "s.jsonl"
    file.write_text(json.dumps({"problem": "a", "responses": ["answer is 1"]}) + "\n")
    refused(skillttrl("vote", file, "--strategies", "majorty"), 2, "Did you mean 'majority'")
    refused(skillttrl("vote", file, "--strategy-arg", "anchored.weight=0.6"), 2, "not among the chosen strategies")
    refused(skillttrl("vote", file, *ALL, "--strategy-arg", "anchored.weight=7"), 2, "weight")
    refused(skillttrl("vote", file, "-n", 4, "--data", file), 2, "nothing is sampled", "--policy")
    refused(skillttrl("vote", tmp_path / "none.jsonl"), 3, "No file")
    refused(skillttrl("vote"), 2)
    refused(skillttrl("vote", "--policy", file), 2, "stored samples")
    refused(skillttrl("vote", file, "--policy", run), 2, "not both")
    refused(skillttrl("vote", file, "--strategies", "os:system"), 2, "'os:system'")
    refused(skillttrl("vote", run / "metrics.jsonl"), 3, "metrics.jsonl")
    before = (run / "votes.jsonl").read_bytes()
    refused(skillttrl("vote", run / "trajectories.jsonl", "-o", run), 4, "holds something other than votes")
    assert (run / "votes.jsonl").read_bytes() == before
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_bytes(b"")
    refused(skillttrl("vote", file, "-o", tmp_path / "photos"), 4, "holds something other than votes")
    assert [entry.name for entry in (tmp_path / "photos").iterdir()] == ["cat.jpg"]

"""Episodes as a JSON array, and `--mock`, as SkillRL in Rust has them; `configs --convert` from the shell."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from skill_ttrl.data.episodes import read_episodes
from skill_ttrl.errors import DataError
from skill_ttrl.runs.episode_logs import read_identity
from tests.integration.test_cli_commands import refused, skillttrl

COLLECT = ("collect", "--env", "alfworld", "--mock", "--limit", "4")


def test_episodes_are_collected_into_an_array_and_read_from_it(tmp_path: Path) -> None:
    array = tmp_path / "trajectories.json"
    done = skillttrl(*COLLECT, "-o", str(array), "--json")
    assert done.code == 0 and json.loads(done.out)["output"] == str(array)
    assert json.loads(done.out)["source"] == "alfworld-generated"
    items, lines = json.loads(array.read_text()), (tmp_path / "trajectories.jsonl").read_text().splitlines()
    assert items == [json.loads(line) for line in lines] and len(items) == 4
    assert [*read_episodes(array)] == [*read_episodes(tmp_path / "trajectories.jsonl")]
    assert read_identity(array)["made_with"]["episodes"] == 4
    again = skillttrl(*COLLECT, "-o", str(array))
    assert again.code == 0 and "episodes are in" in again.err and json.loads(array.read_text()) == items


@pytest.mark.parametrize(
    ("text", "problem"),
    [("[]", "found an empty list"), ("{}", "found dict"), ("[", "is not JSON"), ("[{}]", "entry 1 is not an episode")],
)
def test_an_array_that_holds_no_episodes(text: str, problem: str, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(DataError, match=problem):
        list(read_episodes(tmp_path / "a.json"))


def test_mock_and_data_are_one_choice(tmp_path: Path) -> None:
    both = skillttrl(*COLLECT, "--env-data", "official", "-o", tmp_path / "a.jsonl")
    refused(both, 2, "--mock means --env-data generated, but --env-data official is set too")
    done = skillttrl("train", "quickstart_alfworld", "--mock", "--dry-run", "--json")
    assert done.code == 0


def test_convert_prints_writes_and_names_keys(tmp_path: Path) -> None:
    (tmp_path / "default.yaml").write_text(
        "data: {train_files: [a.json]}\nskill_bank: {retrieval_mode: keyword}\ntrainer: {log_freq: 1}\n"
    )
    ours, theirs = str(tmp_path / "ours.yaml"), str(tmp_path / "default.yaml")
    printed = skillttrl("configs", theirs, "--convert")
    assert printed.code == 0 and "# No counterpart: trainer.log_freq. Every step is logged.\n" in printed.out
    done = skillttrl("configs", theirs, "--convert", "-o", ours)
    assert done.code == 0 and "No counterpart: trainer.log_freq." in done.out
    assert Path(ours).read_text() == printed.out
    found = json.loads(skillttrl("configs", theirs, "--convert", "--json").out)
    assert found["output"] is None and found["config"]["skills"]["retrieval"] == "keyword"
    assert [*found["without_counterpart"]] == ["trainer.log_freq"] and found["different"] == {}
    refused(skillttrl("configs", theirs, "--convert", "-o", ours), 4, "exists already")

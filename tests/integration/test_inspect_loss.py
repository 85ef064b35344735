"""`skillttrl inspect RUN --loss` on a run that was made: shares, reasons, and what it has not recorded."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from skill_ttrl.cli.display.loss_view import bar
from skill_ttrl.cli.main import app, main
from skill_ttrl.config import load_config
from skill_ttrl.errors import RunFolderError
from skill_ttrl.runs.reader import read_run
from skill_ttrl.stages import train
from skill_ttrl.stages.inspecting.inspect_loss import inspect_loss


@pytest.fixture(scope="module")
def made(tiny_yaml: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two steps, of which half of the rollouts are trained on; one optimizer step each, so that the ratio is 1."""
    path = tmp_path_factory.mktemp("loss") / "run"
    given = [
        "rl.reward=random",
        "rl.mini_batch_size=null",
        "rollout.n_votes_per_prompt=8",
        "rollout.n_samples_per_prompt=4",
    ]
    train.run(load_config(tiny_yaml, given), path)
    return path


def test_shares_are_those_of_the_advantages(made: Path) -> None:
    found = inspect_loss(made)
    rows = read_run(made).trajectories
    last = rows[(rows["phase"] == "rl") & (rows["step"] == rows["step"].max())]
    assert found.step == last["step"].iloc[0] and len(found.samples) == len(last)
    shares = [each.gradient_share for each in found.samples]
    assert shares == sorted(shares, reverse=True) and sum(shares) == pytest.approx(1.0)
    # Token-mean at a ratio of 1: a token's share is that of its |A|.
    pulls = [abs(each.advantage or 0.0) * each.tokens for each in found.samples]
    assert shares == pytest.approx([pull / sum(pulls) for pull in pulls], abs=1e-5)
    assert found.half == next(n for n in range(1, 99) if sum(shares[:n]) >= 0.5)
    assert found.figures["updates"] == 1 and set(found.figures) >= {"policy_loss", "grad_norm", "clip_fraction"}


def test_every_sample_says_why(made: Path) -> None:
    found = inspect_loss(made, step=0)
    for each in found.samples:
        way = each.why.partition(":")[0]
        if each.advantage is None:
            assert way == "only voted" and each.gradient_share == 0
        elif each.advantage == 0:
            assert way == "no advantage" and each.gradient_share == 0
        else:
            assert way == ("raised" if each.advantage > 0 else "lowered") and each.gradient_share > 0
        assert each.original_score in (0.0, 1.0) and each.reward in (0.0, 1.0)
    trained = [each for each in found.samples if each.advantage is not None]
    assert len(trained) == len(found.samples) // 2, "half of the rollouts only vote"


def test_the_command_shows_a_table_and_json(made: Path) -> None:
    shown = CliRunner().invoke(app, ["inspect", str(made), "--loss", "--rows", "3"], env={"COLUMNS": "200"})
    assert shown.exit_code == 0, shown.output
    assert "carried half of the gradient" in shown.output and "█" in shown.output and "showing 3 of" in shown.output
    found = json.loads(CliRunner().invoke(app, ["inspect", str(made), "--step", "0", "--json"]).output)
    assert found["step"] == 0 and found["samples"][0]["gradient_share"] >= found["samples"][1]["gradient_share"]
    assert [bar(0.0), bar(0.5), bar(1.0)] == ["-", "███", "██████"]


def test_what_was_not_recorded_is_said(made: Path, tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="has no step 9 of the phase rl: the last one is 1"):
        inspect_loss(made, step=9)
    other = tmp_path / "run"
    shutil.copytree(made, other)
    lines = [json.loads(line) for line in (other / "trajectories.jsonl").read_text().splitlines()]
    still = [line | {"gradient_shares": [0.0] * len(line["steps"])} for line in lines]
    (other / "trajectories.jsonl").write_text("".join(json.dumps(line) + "\n" for line in still))
    assert inspect_loss(other).half == 0
    assert "none of them carried a gradient" in CliRunner().invoke(app, ["inspect", str(other), "--loss"]).output
    (other / "trajectories.jsonl").unlink()
    with pytest.raises(RunFolderError, match=r"run\.save_trajectories=false"):
        inspect_loss(other)
    (other / "trajectories.jsonl").write_text("")
    with pytest.raises(RunFolderError, match="has no step of the phase rl"):
        inspect_loss(other)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--step", "0", "--stopping"], "give one of them"),
        (["--loss", "--html", "x.html"], "give one of them"),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    made: Path, capsys: Any, monkeypatch: Any, arguments: Any, words: str
) -> None:
    monkeypatch.setattr(sys, "argv", ["skillttrl", "inspect", str(made), *arguments])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 2 and words in capsys.readouterr().err

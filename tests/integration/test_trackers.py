"""Whole runs with trackers: what they hold afterwards, and that nothing leaves the machine."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from skill_ttrl.runs.trackers import SHOWN
from tests.integration.test_cli_commands import skillttrl


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Addresses that were asked for, with the credentials of a user at hand."""
    asked: list[Any] = []
    connect = socket.socket.connect

    def watched(self: socket.socket, address: Any) -> None:
        if self.family != socket.AF_UNIX and address[0] not in ("127.0.0.1", "::1"):  # W&B's own service
            asked.append(address)
            raise OSError("no network")
        connect(self, address)

    def resolved(host: Any, *rest: Any, **more: Any) -> Any:
        asked.append(host)
        raise OSError("no network")

    monkeypatch.setattr(socket.socket, "connect", watched)
    monkeypatch.setattr(socket, "getaddrinfo", resolved)
    monkeypatch.setenv("HF_TOKEN", "hf_" + "x" * 34)
    return asked


def test_trackio_holds_figures_and_rollouts(tiny_yaml: Path, tmp_path: Path, offline: list[Any]) -> None:
    pytest.importorskip("trackio")
    for seed in (1, 2):  # trackio reads once where it writes
        run = tmp_path / f"run-{seed}"
        done = skillttrl("train", tiny_yaml, "-o", run, "--set", "run.report_to=trackio", "--seed", seed, "--json")
        assert done.code == 0 and json.loads(done.out)["seed"] == seed, done
        from trackio.sqlite_storage import SQLiteStorage

        (name,) = SQLiteStorage.get_runs("skill-ttrl")
        assert name == f"tiny-{json.loads((run / 'run.json').read_text())['id']}"
        logged = SQLiteStorage.get_logs("skill-ttrl", name)
        for line in map(json.loads, (run / "metrics.jsonl").read_text().splitlines()):
            key = f"{line['phase']}/reward" if "reward" in line else f"{line['phase']}/loss"
            assert line[key.partition("/")[2]] in [each[key] for each in logged if each["step"] == line["step"] and key in each]  # fmt: skip
        assert SQLiteStorage.get_run_config("skill-ttrl", name)["seed"] == seed
        kept = [json.loads(line) for line in (run / "trajectories.jsonl").read_text().splitlines()]
        first = [each for each in kept if each["step"] == 0 and each["task"]["id"] == kept[0]["task"]["id"]]
        traces = {each["metadata"]["id"]: each for each in SQLiteStorage.get_traces("skill-ttrl", name)}
        assert len(first[:SHOWN]) * 2 == len(traces)  # of two steps
        for each in first[:SHOWN]:
            trace = traces[f"rl:0:{each['task']['id']}:{each['sample']}"]
            assert trace["messages"][-1]["content"] == each["steps"][-1]["completion"]["text"]
            assert {key: trace["metadata"][key] for key in ("reward", "stop_reason", "advantages")} == {
                key: each[key] for key in ("reward", "stop_reason", "advantages")
            }
    assert not offline


def test_wandb_stays_offline(
    tiny_yaml: Path, tmp_path: Path, offline: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb", reason="needs the extra trackers")
    for name in ("WANDB_MODE", "WANDB_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    done = skillttrl("train", tiny_yaml, "-o", tmp_path / "run", "--set", "run.report_to=wandb", "--json")
    assert done.code == 0 and json.loads(done.out)["name"] == "tiny", done
    (events,) = (tmp_path / "run" / "tracker" / "wandb").glob("offline-run-*/*.wandb")
    assert b"rl/reward" in events.read_bytes() and b"evaluate/accuracy" in events.read_bytes()
    assert not offline

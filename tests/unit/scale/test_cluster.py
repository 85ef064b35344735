"""What a worker answers, how many there is room for, and what a look at the nodes says."""

from __future__ import annotations

import functools
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from skill_ttrl.config import ScaleConfig, load_config, settings_digest
from skill_ttrl.errors import EndpointError, MissingDependencyError, WorkerError
from skill_ttrl.scale.cluster import connected, places
from skill_ttrl.trust import powers
from skill_ttrl.workers import attempt, portable


class Crooked(Exception):
    """Takes two arguments and names one: it cannot be unpickled."""

    def __init__(self, one: str, two: str) -> None:
        super().__init__(one)


def test_an_exception_keeps_its_type_and_message() -> None:
    def fails(error: Exception) -> Any:
        def call() -> None:
            raise error

        return attempt(call)[1]

    found = fails(EndpointError("no answer", "timeout"))
    assert type(found) is EndpointError and str(found) == "no answer" and found.kind == "timeout"
    bug = fails(KeyError("door"))
    assert type(bug) is KeyError and "in call" in bug.__notes__[0]
    assert str(portable(Crooked("one", "two"))) == "Crooked: one" and type(portable(Crooked("1", "2"))) is WorkerError


def test_as_many_workers_as_the_living_nodes_have_room_for() -> None:
    nodes = [
        {"Alive": True, "Resources": {"CPU": 4.0, "GPU": 1.0}},
        {"Alive": True, "Resources": {"CPU": 3.0}},
        {"Alive": False, "Resources": {"CPU": 64.0, "GPU": 8.0}},
    ]
    assert places(nodes, ScaleConfig()) == 7
    assert places(nodes, ScaleConfig(cpus_per_worker=2)) == 3
    assert places(nodes, ScaleConfig(gpus_per_worker=0.5)) == 2
    assert places(nodes, ScaleConfig(gpus_per_worker=2)) == 0
    assert places([{"Alive": True, "Resources": {"CPU": 0.3}}], ScaleConfig(cpus_per_worker=0.1)) == 3


def test_where_episodes_run_is_no_part_of_what_they_are_but_a_foreign_cluster_is_a_power() -> None:
    here, there = load_config({}), load_config({}, ["scale.address=evil.example:6379"])
    assert settings_digest(here) == settings_digest(there)
    assert list(powers(there.stated())) == ["scale.address"]
    assert not powers(load_config({}, ["scale.address=local"]).stated())


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingDependencyError, match=r"pip install -e '\.\[ray\]'"), connected(ScaleConfig()):
        pass


@pytest.mark.parametrize("where", ["address file", "RAY_ADDRESS", "scale.address"])
def test_an_address_where_nothing_listens_is_named(where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    services = pytest.importorskip("ray._private.services")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.setattr(services, "find_gcs_addresses", functools.cache(set))  # clusters of other tests on this machine
    (tmp_path / "ray").mkdir()
    if where == "address file":
        (tmp_path / "ray" / "ray_current_cluster").write_text("127.0.0.1:1")
    elif where == "RAY_ADDRESS":
        monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    settings = ScaleConfig(address="127.0.0.1:1" if where == "scale.address" else "auto")
    began = time.monotonic()
    with pytest.raises(WorkerError, match=r"Nothing answers at \S+=[\d.]+:1 ") as refused, connected(settings):
        pass
    assert time.monotonic() - began < 20  # Ray alone: minutes
    assert "scale.address=local" in str(refused.value) and ("ray stop" in str(refused.value)) == (
        where == "address file"
    )

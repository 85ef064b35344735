"""A Ray cluster that is gone is said so within seconds, before Ray begins to wait for it."""

from __future__ import annotations

import functools
import time
from pathlib import Path

import pytest

from skill_ttrl.config import ScaleConfig
from skill_ttrl.errors import WorkerError
from skill_ttrl.scale.cluster import connected

services = pytest.importorskip("ray._private.services")


@pytest.mark.parametrize("where", ["address file", "RAY_ADDRESS", "scale.address"])
def test_an_address_where_nothing_listens_is_named(where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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

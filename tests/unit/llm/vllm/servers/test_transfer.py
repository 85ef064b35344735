"""The folder in which weights pass to servers: its owner's alone, with room, and left as it was found."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from safetensors.torch import load_file

from skill_ttrl.errors import ConfigError, WeightSyncError
from skill_ttrl.llm.models.weights import full_weights
from skill_ttrl.llm.vllm.servers import http as vllm_transfer
from skill_ttrl.llm.vllm.servers.http import STALE, remove_leftovers, weight_transfer_dir, weights_file


def test_learner_and_servers_find_the_same_folder_without_being_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vllm_transfer, "SHARED_MEMORY", tmp_path)
    found = weight_transfer_dir(None)
    assert found == weight_transfer_dir(None) == tmp_path / f"skillttrl-{os.getuid()}"
    assert found.stat().st_mode & 0o777 == 0o700


def test_a_folder_that_others_can_write_to_is_refused(tmp_path: Path) -> None:
    shared, link = tmp_path / "shared", tmp_path / "link"
    shared.mkdir()
    shared.chmod(0o777)
    with pytest.raises(ConfigError, match="chmod 700"):
        weight_transfer_dir(str(shared))
    shared.chmod(0o700)
    assert weight_transfer_dir(str(shared)) == shared
    link.symlink_to(shared)
    with pytest.raises(ConfigError, match="no folder that only this user"):
        weight_transfer_dir(str(link))
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"cannot be made|no folder"):
        weight_transfer_dir(str(tmp_path / "file"))


def test_weights_are_there_for_as_long_as_they_are_needed(tmp_path: Path, tiny_model: tuple[Any, Any]) -> None:
    model, _ = tiny_model
    with weights_file(tmp_path, "a", full_weights(model)) as path:
        written = load_file(path)
        own = dict(model.named_parameters())
        assert written.keys() == own.keys()
        assert all(torch.equal(written[name], own[name]) for name in own)
    assert list(tmp_path.iterdir()) == []


def test_weights_that_do_not_fit_are_said_before_they_are_written(
    tmp_path: Path, tiny_model: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Usage(NamedTuple):
        free: int

    monkeypatch.setattr("shutil.disk_usage", lambda folder: Usage(1000))
    with pytest.raises(WeightSyncError, match=r"GB left.*vllm\.weight_transfer_dir"):
        weights_file(tmp_path, "a", full_weights(tiny_model[0])).__enter__()
    assert list(tmp_path.iterdir()) == []


def test_only_what_the_dead_have_left_long_ago_is_removed(tmp_path: Path) -> None:
    gone, old = 2**22 + 1, time.time() - 2 * STALE  # above the most that Linux numbers processes
    for name in (f"{gone}-old", f"{gone}-new", f"{os.getpid()}-old", "mine-old"):
        (tmp_path / name).write_text("")
        if name.endswith("old"):
            os.utime(tmp_path / name, (old, old))
    (tmp_path / f"{gone}-folder").mkdir()
    os.utime(tmp_path / f"{gone}-folder", (old, old))
    remove_leftovers(tmp_path)
    assert {each.name for each in tmp_path.iterdir()} == {f"{gone}-new", f"{os.getpid()}-old", "mine-old"}

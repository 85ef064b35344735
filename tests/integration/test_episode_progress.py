"""While episodes are played, a listener hears how many have ended and how many were won."""

from __future__ import annotations

import json
import re
from pathlib import Path

from skill_ttrl.config import load_config
from skill_ttrl.progress import SilentProgress
from skill_ttrl.stages.train import run
from tests.integration.test_episode_run import CONFIG


class Listener(SilentProgress):
    """Keeps which part of a phase it was told of."""

    def __init__(self) -> None:
        self.heard: dict[str, list[str]] = {}

    def enter(self, phase: str, part: str) -> None:
        self.heard.setdefault(phase, []).append(part)


def test_episodes_are_counted_as_they_end(tmp_path: Path) -> None:
    listener = Listener()
    run(load_config(CONFIG), tmp_path / "run", progress=listener)
    for phase, part, most in (
        ("grpo", "sample", 16),
        ("evaluate before", "play", None),
        ("evaluate after", "play", None),
    ):
        told = [re.fullmatch(rf"{part}: (\d+) episodes, (\d+) won", each) for each in listener.heard[phase]]
        numbers = [(int(each[1]), int(each[2])) for each in told if each]
        assert [ended for ended, _ in numbers] == list(range(1, len(numbers) + 1))
        assert all(won <= ended for ended, won in numbers) and (most is None or len(numbers) == most)
        if part == "sample":
            row = json.loads((tmp_path / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()[0])
            assert numbers[-1][1] == round(row["success"] * 16)

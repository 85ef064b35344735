"""One real vLLM server under `skillttrl serve`, which a test starts, ends, kills and starts again. For tests only."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
import psutil
import torch

from skill_ttrl.llm.backend import Generation
from skill_ttrl.types import Completion

CLOSE = 1e-4
"""Largest difference of log-probs in float32 that is rounding, nats."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class VLLMServer:
    """Runs while it is entered, and answers.

    Args:
        words: of `skillttrl serve`, without the port.
        log: where it writes.
    """

    def __init__(self, *words: object, log: Path) -> None:
        self.port, self.log = free_port(), log
        self.address = f"http://127.0.0.1:{self.port}"
        self._words = [*map(str, words), "--port", str(self.port)]

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.send_signal(signal.SIGTERM)
        code = self._process.wait(60)
        assert error is not None or code == 0

    @property
    def pid(self) -> int:
        """Process id of vLLM itself."""
        return int(psutil.Process(self._process.pid).children()[0].pid)

    def start(self) -> None:
        """Start it, as a supervisor does, and wait until it answers."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "skill_ttrl.cli.main", "serve", *self._words]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        while self._process.poll() is None:
            try:
                if httpx.get(f"{self.address}/health", trust_env=False).status_code == 200:
                    return
            except httpx.TransportError:
                time.sleep(0.2)
        raise AssertionError(f"It ended with {self._process.returncode}: {self.log.read_text()[-3000:]}")

    def kill_and_start_again(self) -> None:
        """Kill vLLM: `skillttrl serve` ends with it, and is started again."""
        os.kill(self.pid, signal.SIGKILL)
        assert self._process.wait(60) == 5
        self.start()


def versions_of(run: Path) -> list[set[int]]:
    """The versions that sampled each step."""
    found: dict[int, set[int]] = {}
    for line in map(json.loads, (run / "trajectories.jsonl").read_text().splitlines()):
        turns = [turn["completion"] for turn in line["steps"]]
        found.setdefault(line["step"], set()).update(done["policy_version"] for done in turns)
    return [found[step] for step in sorted(found)]


def learners(loaded: Any, prompt: Sequence[int], done: Completion, temperature: float = 1.0) -> list[float]:
    """What the learner computes for the very tokens."""
    model: Any = loaded.model
    tokens = torch.tensor([[*prompt, *done.token_ids]])
    with torch.no_grad():
        logits = model(input_ids=tokens).logits[0, len(prompt) - 1 : -1].float()
    scores = torch.log_softmax(logits / temperature, -1).gather(1, tokens[0, len(prompt) :, None])
    return scores.squeeze(1).tolist()


def worst_gap(loaded: Any, found: Sequence[Generation], temperature: float = 1.0) -> float:
    """Largest difference between the log-probs of what was sampled and those of the learner for the same tokens, nats."""
    return max(
        abs(own - other)
        for generation in found
        for done in generation.completions
        for own, other in zip(done.logprobs, learners(loaded, generation.prompt_ids, done, temperature), strict=True)
    )

"""kill -9 in the middle of a loop that saves checkpoints: only whole ones are left, and the run goes on exactly."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.preloaded import run_code

# One process forks the writers it kills, so that a round costs milliseconds.
_DRIVER = """
import json, os, random, signal, sys, time
from pathlib import Path
import torch
from skill_ttrl.config import SkillTTRLConfig
from skill_ttrl.runs.checkpoint import list_checkpoints, load_tensors, newest, restore_to_checkpoint, save_checkpoint, verify
from skill_ttrl.runs.folder import RunFolder

torch.set_num_threads(1)
path, rounds, last_step = Path(sys.argv[1]), int(sys.argv[2]), 10_000


def write() -> None:
    folder = RunFolder.open(path)
    checkpoint = newest(folder)
    start = restore_to_checkpoint(folder, checkpoint).get("done", 0)
    weights = load_tensors(checkpoint.path)["weights"] if checkpoint else torch.zeros(50_000)
    for step in range(start + 1, last_step):
        weights = weights + step
        folder.append_jsonl("metrics.jsonl", [json.dumps({"step": step, "pad": "x" * 5000})])
        if step % 2 == 0:
            save_checkpoint(folder, "rl", step, write=lambda p: torch.save(weights, p / "model.bin") or {"weights": weights},
                            state={"done": step}, keep=2)


RunFolder.create(path, SkillTTRLConfig()).close()
random.seed(0)
reached, leftovers = 0, 0
for _ in range(rounds):
    child = os.fork()
    if child == 0:
        write()
        os._exit(0)
    time.sleep(random.uniform(0.05, 0.25))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    leftovers += len(list(path.glob("checkpoints/.*")))
    folder = RunFolder.open(path)  # the lock died with its holder
    for checkpoint in list_checkpoints(folder):
        verify(checkpoint.path)
    checkpoint = newest(folder)
    if checkpoint:
        assert checkpoint.step >= reached, "a checkpoint was lost"
        reached = checkpoint.step
        restore_to_checkpoint(folder, checkpoint)
        lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
        assert [line["step"] for line in lines] == list(range(1, reached + 1))
        total = reached * (reached + 1) / 2
        assert torch.equal(load_tensors(checkpoint.path)["weights"], torch.full((50_000,), total))
        assert not list(path.glob("checkpoints/.*"))
    folder.close()
print(reached, leftovers)
"""


@pytest.mark.slow
def test_only_whole_checkpoints_survive_kills(tmp_path: Path) -> None:
    done = run_code(_DRIVER, tmp_path / "run", 9)
    assert done.returncode == 0, done.stderr
    reached, leftovers = map(int, done.stdout.split())
    assert reached > 0, "no round lived long enough to save anything"
    assert leftovers > 0, "no kill fell into a save, so the test showed nothing"

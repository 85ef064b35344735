"""`init` writes a project that works as it is, and never touches what is not its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from skill_ttrl.commands.dry_run import dry_run
from skill_ttrl.config import load_config
from skill_ttrl.envs.scaffold import init_problems, init_project
from skill_ttrl.errors import ConfigError, RunFolderError

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "custom_env"


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True, timeout=600
    )


def test_the_example_is_what_init_writes(tmp_path: Path) -> None:
    written = init_project("my_env", tmp_path)
    assert [path.name for path in written] == ["my_env.py", "my_env.yaml", "test_my_env.py", "my_env_demos.jsonl"]
    for path in written:
        assert (EXAMPLE / path.name).read_bytes() == path.read_bytes(), "run: skillttrl init my_env examples/custom_env"
    assert sorted(entry.name for entry in tmp_path.iterdir()) == sorted(path.name for path in written)


@pytest.mark.parametrize(
    ("turns", "passed"), [(False, "3 passed"), pytest.param(True, "4 passed", marks=pytest.mark.slow)]
)
def test_what_is_written_passes_its_own_test(turns: bool, passed: str, tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    init_project("key_game", folder, turns=turns)
    done = run(folder, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error", "test_key_game.py")
    assert done.returncode == 0 and passed in done.stdout, done.stdout + done.stderr


@pytest.mark.slow
def test_what_is_written_trains_without_labels(tmp_path: Path) -> None:
    init_project("my_env", tmp_path)
    script = (
        "from skill_ttrl.config import load_config; from skill_ttrl.commands.train import run;"
        "s = run(load_config('my_env.yaml', ['runtime.threads=1']), 'run');"
        "print(s.reward, s.accuracy_before, s.accuracy_after, s.greedy_after)"
    )
    done = run(tmp_path, "-c", script)
    assert done.returncode == 0, done.stderr
    reward, before, after, greedy = done.stdout.split()
    assert reward == "majority" and 0.35 < float(before) < 0.7
    assert float(after) > float(before) + 0.2 and float(greedy) > 0.9


@pytest.mark.slow
def test_what_is_written_for_several_turns_learns_from_the_reward(tmp_path: Path) -> None:
    init_project("key_game", tmp_path, turns=True)
    script = (
        "from skill_ttrl.config import load_config; from skill_ttrl.commands.train import run;"
        "s = run(load_config('key_game.yaml', ['runtime.threads=1']), 'run');"
        "print(s.accuracy_before, s.accuracy_after, s.intervals['accuracy_change'][0])"
    )
    done = run(tmp_path, "-c", script)
    assert done.returncode == 0, done.stderr
    before, after, least = map(float, done.stdout.split())
    assert 0.2 < before < 0.7 and after > before + 0.2 and least > 0.1


BUILTIN = ["model={path: builtin, builtin: {max_positions: 1024}}", "data.max_prompt_tokens=900"]


def test_problems_are_written_once_and_their_config_would_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = [path.name for path in init_problems()]
    assert names == ["README.md", "examples.md", "held_out.jsonl", "problems.jsonl", "problems.yaml"]
    found = dry_run(load_config("problems.yaml", BUILTIN))
    assert (found.exit_code, found.train_tasks, found.evaluated_tasks) == (0, 64, 32), found.obstacles
    train, evaluated = found.data
    assert train.answers == 0 and evaluated.answers == 32 and not evaluated.unread
    assert found.samples == 12 * 8 * 16 + 2 * 32 * 17
    examples = tmp_path / "examples.md"
    examples.write_text(examples.read_text().replace("plural of ox?", "plural of foot?"))
    assert any(
        "stand among the examples" in each and "foot" in each
        for each in dry_run(load_config("problems.yaml", BUILTIN)).notes
    )
    with pytest.raises(RunFolderError, match=r"already has README\.md.*--output"):
        init_problems()
    assert len(list(tmp_path.iterdir())) == 5


@pytest.mark.slow
def test_the_estimate_of_the_memory_is_the_measured_peak_within_a_half(tmp_path: Path) -> None:
    """Weights, gradients and moments are most of it: 77M parameters."""
    init_problems(tmp_path)
    shape = "{hidden_size: 768, layers: 8, heads: 12, max_positions: 1024}"
    changes = [f"model={{path: builtin, builtin: {shape}}}", "data.max_prompt_tokens=900", "data.eval.limit=4"]
    changes += ["rl.steps=1", "rl.stop_rule=null", "runtime.device=cpu"]
    script = (
        "import resource; from skill_ttrl.config import load_config; from skill_ttrl.commands.dry_run import dry_run;"
        "from skill_ttrl.commands.train import run;"
        f"c = load_config('problems.yaml', {changes!r}); m = dry_run(c).memory; run(c, 'run');"
        "print(m.peak, 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    )
    done = run(tmp_path, "-c", script)
    estimated, measured = map(int, done.stdout.split())
    assert measured / 1.5 < estimated < measured * 1.5, done.stdout


@pytest.mark.parametrize(
    "name", ["../escape", "my-env", "1st", "", "class", "ümlaut", "__main__", "task", "any", "json", "skill_ttrl"]
)
def test_a_name_that_is_no_module_name_or_hides_a_module(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError):
        init_project(name, tmp_path / "inside")
    assert not list(tmp_path.iterdir())


def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    write_text = Path.write_text

    def fail_at_the_third(self: Path, text: str, encoding: str | None = None) -> int:
        written.append(self.name)
        if len(written) == 3:
            raise OSError(28, "No space left on device")
        return write_text(self, text, encoding=encoding)

    monkeypatch.setattr(Path, "write_text", fail_at_the_third)
    with pytest.raises(RunFolderError, match=r"No space left on device\. No file was changed"):
        init_project("my_env", tmp_path)
    assert not list(tmp_path.iterdir())

"""The launcher, with small programs for ranks: environment, exit codes, signals, and ranks that die."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

LAUNCHER = """
import sys
import skill_ttrl.rl.parallel.launch as module
module.LINGER_S, module.GRACE_S = 2.0, 10.0
say = lambda text: print(text, file=sys.stderr)
sys.exit(module.launch([sys.executable, "-c", sys.argv[1]], int(sys.argv[2]), notice=say, saved=lambda: "Rerun."))
"""
WAIT = "import os, signal, sys, time; rank = int(os.environ['RANK']); "
ENDS = WAIT + "signal.signal(signal.SIGINT, lambda *_: sys.exit(130)); open(f'ready{rank}', 'w'); time.sleep(60)"


def start(program: str, folder: Path, ranks: int = 2) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", LAUNCHER, textwrap.dedent(program), str(ranks)]
    environment = os.environ | {"PYTHONPATH": str(Path.cwd())}
    return subprocess.Popen(command, cwd=folder, env=environment, stdout=-1, stderr=-1, text=True)


def run(program: str, folder: Path, ranks: int = 2) -> tuple[int, str, str]:
    process = start(program, folder, ranks)
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def ready(folder: Path, ranks: int = 2) -> None:
    until = time.monotonic() + 30
    while not all((folder / f"ready{rank}").exists() for rank in range(ranks)):
        assert time.monotonic() < until
        time.sleep(0.02)


def test_each_rank_is_told_its_place_and_rank_0_has_the_terminal(tmp_path: Path) -> None:
    names = "RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT OMP_NUM_THREADS"
    code, out, err = run(
        f"import os, time; rank = os.environ['RANK']; found = [os.environ[each] for each in '{names}'.split()]\n"
        "open(f'seen{rank}', 'w').write(' '.join(found)); print('rank', rank)\n"
        "while rank == '0' and not all(os.path.exists(f'seen{each}') for each in '12'): time.sleep(0.01)",
        tmp_path,
        3,
    )
    assert (code, out, err) == (0, "rank 0\n", "")
    seen = [(tmp_path / f"seen{rank}").read_text().split() for rank in range(3)]
    assert [each[:5] for each in seen] == [[str(rank), str(rank), "3", "3", "127.0.0.1"] for rank in range(3)]
    assert len({each[5] for each in seen}) == 1 and {each[6] for each in seen} == {os.environ["OMP_NUM_THREADS"]}


@pytest.mark.parametrize("code", [2, 8, 130])
def test_the_exit_code_is_rank_0s(code: int, tmp_path: Path) -> None:
    found = run(WAIT + f"sys.exit({code}) if rank == 0 else time.sleep(0.2)", tmp_path)
    assert found == (code, "", "")


def test_a_rank_that_is_killed_ends_all_and_is_named(tmp_path: Path) -> None:
    code, _, err = run(WAIT + "os.kill(os.getpid(), 9) if rank == 1 else (time.sleep(0.5), sys.exit(9))", tmp_path)
    assert code == 9
    assert "Rank 1 of 2 was killed by SIGKILL" in err and err.endswith("and the run ended with it. Rerun.\n")


@pytest.mark.parametrize(
    ("other", "driver", "said"),
    [
        ("os.kill(os.getpid(), 9)", 9, "Rank 1 of 2 was killed by SIGKILL"),
        ("sys.exit(5)", 9, "Rank 1 of 2 ended with exit code 5"),
        ("sys.exit('my traceback')", 1, "rank 1: my traceback"),
        ("os.kill(os.getpid(), 6)", 7, ""),
    ],
)
def test_an_end_that_rank_0_cannot_explain_is_explained(other: str, driver: int, said: str, tmp_path: Path) -> None:
    code, _, err = run(WAIT + f"{other} if rank else (time.sleep(0.5), sys.exit({driver}))", tmp_path)
    assert code == driver and (said in err if said else not err)


@pytest.mark.slow
def test_one_that_ends_before_they_have_met_is_not_waited_for(tmp_path: Path) -> None:
    began = time.monotonic()
    code, _, err = run(WAIT + "os.kill(os.getpid(), 9) if rank == 1 else time.sleep(600)", tmp_path)
    assert code == 9 and err.count("Rank") == 1 and time.monotonic() - began < 20


def test_a_signal_reaches_rank_0_alone(tmp_path: Path) -> None:
    process = start(ENDS.replace("sys.exit(130)", "(open(f'got{rank}', 'w'), sys.exit(130))"), tmp_path)
    ready(tmp_path)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode == 130
    assert (tmp_path / "got0").exists() and not (tmp_path / "got1").exists()


@pytest.mark.parametrize("signum", [signal.SIGTERM])
def test_a_signal_before_rank_0_listens_is_the_exit_code(signum: signal.Signals, tmp_path: Path) -> None:
    process = start(WAIT + "open(f'ready{rank}', 'w'); time.sleep(60)", tmp_path)
    ready(tmp_path)
    process.send_signal(signum)
    _, err = process.communicate(timeout=30)
    assert (process.returncode, "Rank" in err) == (128 + signum, False)


@pytest.mark.slow
def test_a_second_ctrl_c_ends_what_does_not_listen(tmp_path: Path) -> None:
    process = start(ENDS.replace("sys.exit(130)", "None"), tmp_path)
    ready(tmp_path)
    for _ in range(2):
        process.send_signal(signal.SIGINT)
        time.sleep(0.2)
    process.communicate(timeout=30)
    assert process.returncode == 130


@pytest.mark.slow
def test_rank_0_follows_a_launcher_that_is_gone(tmp_path: Path) -> None:
    program = WAIT + (
        "from skill_ttrl.rl.parallel.launch import following_launcher\n"
        "def stop(*_): open(f'stopped{rank}', 'w'); os._exit(0)\n"
        "signal.signal(signal.SIGTERM, stop)\n"
        "with following_launcher():\n    open(f'ready{rank}', 'w'); time.sleep(60)"
    )
    process = start(program, tmp_path)
    ready(tmp_path)
    process.kill()
    process.wait()
    until = time.monotonic() + 20
    while not (tmp_path / "stopped0").exists() and time.monotonic() < until:
        time.sleep(0.05)
    assert (tmp_path / "stopped0").exists()

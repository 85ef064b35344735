"""A signal that asks to stop finds nothing half made."""

from __future__ import annotations

import asyncio
import gc
import signal
import subprocess
import sys
import warnings
from types import FrameType

import pytest

from skill_ttrl.llm.backend import wait_for
from skill_ttrl.signals import Interrupted, StopSignal, signals_held


def test_a_signal_waits_for_the_end_of_a_moment_and_is_handled_then() -> None:
    done: list[str] = []

    def handle(signum: int, frame: FrameType | None) -> None:
        done.append("handled")

    before = signal.signal(signal.SIGUSR1, handle)
    try:
        with signals_held():
            signal.raise_signal(signal.SIGUSR1)
            done.append("moment")
        assert done == ["moment", "handled"] and signal.getsignal(signal.SIGUSR1) is handle
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_signal_is_acknowledged_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    with StopSignal() as stop:
        signal.raise_signal(signal.SIGINT)
        assert stop.signum == signal.SIGINT and "stopping after this step" in capsys.readouterr().err


@pytest.mark.parametrize("place", ["__init__", "close"])
def test_a_signal_while_the_loop_is_made_or_closed_leaves_nothing_open(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends the work with its own error; no loop is left half made, and no coroutine that was never begun."""
    real = getattr(asyncio.SelectorEventLoop, place)
    begun: list[str] = []

    def interrupted(loop: asyncio.SelectorEventLoop) -> None:
        signal.raise_signal(signal.SIGTERM)
        real(loop)

    async def work() -> None:
        begun.append("work")

    monkeypatch.setattr(asyncio.SelectorEventLoop, place, interrupted)
    with warnings.catch_warnings(record=True) as seen, StopSignal() as stop:
        warnings.simplefilter("always")
        with pytest.raises(Interrupted, match="stop here"), stop.interruptible("stop here"):
            wait_for(work())
        gc.collect()
    assert not [str(each.message) for each in seen]
    assert begun == (["work"] if place == "close" else [])


def test_ctrl_c_while_the_command_line_is_loaded_leaves_quietly() -> None:
    program = """if True:
        import os, signal, sys
        signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the tests run in the background of a shell
        class Stop:  # Ctrl-C at the moment when the heavy part of the command line is looked for
            @staticmethod
            def find_spec(name, path=None, target=None):
                if name == "skill_ttrl.cli.main":
                    os.kill(os.getpid(), signal.SIGINT)
        sys.meta_path.insert(0, Stop)
        from skill_ttrl.cli.entry import main
        main()
    """
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")

"""kill -9 at every write of the ledger: an answer that was counted is there, is given to the next process, and is paid once."""

from __future__ import annotations

import json
import signal
from collections import Counter
from pathlib import Path

import pytest

from skill_ttrl.llm.openai.ledger import Ledger
from tests.faulty_server import FaultyServer, requests_in
from tests.preloaded import run_code

QUESTIONS = 4
ASKS = """
import os, signal, sys
from pathlib import Path
from skill_ttrl.config import EndpointConfig, EndpointsConfig
from skill_ttrl.llm.backend import wait_for
from skill_ttrl.llm.openai.client import Client
from skill_ttrl.llm.openai.ledger import track_usage
from skill_ttrl.types import Message

folder, url, kill_at = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
opened = 0

def watch(event, args):
    global opened
    if event == "open" and str(args[0]).startswith(str(folder)) and args[2] & (os.O_WRONLY | os.O_RDWR):
        opened += 1
        if opened == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(watch)
with track_usage(folder / "usage.jsonl", EndpointsConfig(max_requests=100)) as ledger:
    client = Client(EndpointConfig(model="m", base_url=url), "policy")
    for number in range(4):
        wait_for(client.chat([Message("user", f"question {number}")], seed=number))
    client.shut()
    ledger.settle()
"""


@pytest.mark.parametrize("kill_at", [2, pytest.param(5, marks=pytest.mark.slow)])
def test_an_answer_that_was_counted_is_never_paid_again(kill_at: int, tmp_path: Path) -> None:
    usage = tmp_path / "usage.jsonl"
    with FaultyServer([]) as server:

        def run(kill_at: int) -> int:
            return run_code(ASKS, tmp_path, server.url, kill_at).returncode

        ended = run(kill_at)
        counted = Ledger(usage).totals().attempts
        asked = len(server.asked)
        assert ended in (0, -signal.SIGKILL) and asked - 1 <= counted <= asked  # one may be on its way
        if ended:
            assert run(0) == 0
        times = Counter(json.dumps(each["body"], sort_keys=True) for each in server.asked)
    assert len(times) == QUESTIONS and len(server.asked) - QUESTIONS == (asked - counted if ended else 0)
    sent = [line for line in requests_in(usage) if line["attempts"]]
    assert len(sent) == QUESTIONS

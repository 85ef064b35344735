"""A score of a running shop is taken for nothing but the purchase that was made, of the goal that was played, once."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from skill_ttrl.envs.webshop.live.client import LiveClient
from skill_ttrl.envs.webshop.live.live import LiveVisit
from skill_ttrl.errors import EnvError
from tests.web_shop_server import Misbehaving, started_shop

GOLDEN = Path(__file__).parents[1] / "golden" / "webshop_episodes"


@pytest.fixture(scope="module")
def shop() -> Iterator[str]:
    with started_shop("--env-data", str(GOLDEN), "--goals", "synthetic", "--nouns", "rule") as address:
        yield address


@pytest.fixture
def server(shop: str) -> Iterator[Misbehaving]:
    server = Misbehaving(shop)
    yield server
    server.close()


def at_a_product(address: str) -> LiveVisit:
    visit = LiveVisit(address, timeout=5.0, attempts=3, pause=0.01)
    visit.start(0)
    visit.act("search[lamp]")
    assert "buy now" in visit.act("click[b0lamp0001]").clickables
    return visit


def receipt(asin: str, instruction: str) -> str:
    return (
        f'<h4 id="asin">asin<pre>{asin}</pre></h4><h4 id="goal-instruction-text">instuction text<pre>{instruction}</pre></h4>'
        '<h3 id="reward">Your score (min 0.0, max 1.0)<pre>1.0</pre></h3>'
    )


@pytest.mark.parametrize("asin", ["B0LAMP0001", "None", ""])
@pytest.mark.parametrize("instruction", ["as before", "None", ""])
def test_a_receipt_for_the_purchase_is_believed_whether_it_says_what_was_bought_or_not(
    asin: str, instruction: str, server: Misbehaving
) -> None:
    visit = at_a_product(server.address)
    wish, _ = LiveVisit(server.address).start(0)
    server.faults = [receipt(asin, wish if instruction == "as before" else instruction)]
    assert visit.act("click[buy now]").score == 1.0


def test_a_receipt_for_another_product_is_no_reward(server: Misbehaving) -> None:
    visit = at_a_product(server.address)
    server.faults = [receipt("B0LAMP0002", "")]
    with pytest.raises(EnvError, match="it is of a purchase of 'B0LAMP0002', and 'B0LAMP0001' was bought"):
        visit.act("click[buy now]")


def test_a_receipt_for_another_goal_is_no_reward(server: Misbehaving) -> None:
    """The server was started again with other goals while the product was looked at."""
    visit = at_a_product(server.address)
    wish, _ = LiveVisit(server.address).start(1)
    server.faults = [receipt("B0LAMP0001", wish)]
    with pytest.raises(EnvError, match="its goal is another one than before: was the server started again"):
        visit.act("click[buy now]")


class _Recording(ThreadingHTTPServer):
    """Notes method, path and the client's port of every request; `/leads-on` redirects, and then nobody listens any more."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, int]] = []
        super().__init__(("127.0.0.1", 0), _Handler)
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()
        self.address = f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: _Recording
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.server.asked.append((self.command, self.path, self.client_address[1]))
        leads_on = self.path == "/leads-on"
        if leads_on:
            self.close_connection = True
            self.server.shutdown()  # else who waits for connections keeps the port for as long
            self.server.server_close()
        self.send_response(302 if leads_on else 200)
        if leads_on:
            self.send_header("Location", "/after")
            self.send_header("Connection", "close")
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_POST = do_GET

    def log_message(self, format: str, *args: object) -> None: ...


def test_a_purchase_that_led_on_to_a_page_that_did_not_come_is_not_repeated() -> None:
    server = _Recording()
    client = LiveClient(server.address, timeout=5.0, attempts=3, pause=0.01)
    with pytest.raises(EnvError, match="was not asked again, because the server may have taken it"):
        client.ask("POST", "/leads-on", "a purchase", again=False)
    assert [each[:2] for each in server.asked] == [("POST", "/leads-on")]


FORKING = """
import os, sys
from skill_ttrl.envs.webshop.live.client import LiveClient
client = LiveClient(sys.argv[1], 5.0, 1, 0.0)
client.ask("GET", "/parent", "a page")
child = os.fork()
if not child:
    client.ask("GET", "/child", "a page")
    client.close()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
client.ask("GET", "/parent-again", "a page")
"""


def test_a_forked_process_has_a_connection_of_its_own() -> None:
    """Two processes on one connection would read each other's pages."""
    server = _Recording()
    done = subprocess.run([sys.executable, "-c", FORKING, server.address], capture_output=True, text=True, timeout=60)
    server.shutdown()
    server.server_close()
    assert done.returncode == 0, done.stderr
    ports = {path: port for _, path, port in server.asked}
    assert list(ports) == ["/parent", "/child", "/parent-again"]
    assert ports["/child"] != ports["/parent"] == ports["/parent-again"]

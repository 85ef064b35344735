"""Servers for tests: a shop at the addresses of the official one, and one scripted to misbehave, which is no shop at all."""

from __future__ import annotations

import threading
import time
from ast import literal_eval
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote

import httpx

from skill_ttrl.envs.webshop.catalogue.catalogue import open_catalogue
from skill_ttrl.envs.webshop.goals import price_of
from skill_ttrl.envs.webshop.reward import purchase_reward
from skill_ttrl.envs.webshop.shop import State, shared_shop
from tests.webshop_html import page_html, page_path


@contextmanager
def started_shop(folder: Path, **settings: Any) -> Iterator[str]:
    """A server with the routes and pages of princeton-nlp/WebShop (`web_agent_site/app.py`) on a free port; gives its address."""
    catalogue = open_catalogue(folder)
    goals = catalogue.goals(settings.get("goals", "auto"))
    shop = shared_shop(catalogue.store, "rule", False, False)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
            kind, *parts = [unquote(part) for part in self.path.removeprefix("/").split("/")]
            session = parts[0] if parts else kind
            number = int(session.rpartition("_")[2])
            if number >= len(goals):
                self.send(404, "")
                return
            query = parse_qs(body, keep_blank_values=True).get("search_query")
            if query and not parts:
                found = State("results", tuple(query[0].lower().split(" ")))
                self.send(302, "", Location=page_path(session, found))
                return
            state = State()
            if kind == "search_results":
                state = State("results", tuple(literal_eval(parts[1])), int(parts[2]))
            elif kind == "item_page":
                state = State(
                    "item", tuple(literal_eval(parts[2])), int(parts[3]), parts[1], options=literal_eval(parts[4])
                )
            elif kind == "item_sub_page":
                options = literal_eval(parts[5])
                state = State(
                    "sub", tuple(literal_eval(parts[2])), int(parts[3]), parts[1], options=options, sub=parts[4]
                )
            elif kind == "done":
                state, product = State("done", asin=parts[1], options=literal_eval(parts[2])), shop.product(parts[1])
                bought = purchase_reward(product, goals[number], price_of(product), state.options, shop.nouns)
                state = replace(state, bought=bought)
            self.send(200, page_html(shop, goals[number], session, state))

        do_POST = do_GET

        def send(self, status: int, text: str, **headers: str) -> None:
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(text.encode()))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, format: str, *args: object) -> None: ...

    server = _Quiet(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


class _Quiet(ThreadingHTTPServer):
    def handle_error(self, request: object, client_address: object) -> None:
        """Clients that leave early are what is tried here."""


class Misbehaving:
    """A server on a free port that passes requests on to a real shop, but for those that a fault is set for.

    Args:
        shop: address of the real one.
        faults: for the next requests, one each: "" passes on, "500", "hang up", "slow", "drip", "garbage", "elsewhere",
            "circle", "huge", or HTML to answer with.
    """

    def __init__(self, shop: str, faults: Sequence[str] = ()) -> None:
        self.shop, self.faults = shop, list(faults)
        self.always = ""
        """Fault of every request for which none is left in `faults`."""
        self.edit = ("", "")
        """What is replaced in pages that are passed on, by what."""
        self.asked: list[tuple[str, str, str]] = []
        """(method, path, body) of every request."""
        self.client = httpx.Client(trust_env=False, verify=False)
        self._server = _Quiet(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        self.address = f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self.client.close()

    def _handler(outer) -> type[BaseHTTPRequestHandler]:
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            timeout = 5

            def do_GET(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                outer.asked.append((self.command, self.path, body.decode()))
                fault = outer.faults.pop(0) if outer.faults else outer.always
                if fault == "500":
                    self.send(500, b"<h1>Internal Server Error</h1><script>no()</script>")
                elif fault == "hang up":
                    self.close_connection = True
                elif fault == "slow":
                    time.sleep(0.8)
                    self.close_connection = True
                elif fault == "drip":
                    self.drip()
                elif fault == "garbage":
                    self.send(200, bytes(range(256)) * 9)
                elif fault == "elsewhere":
                    self.send(302, b"", location="http://127.0.0.2:9/fixed_0")
                elif fault == "circle":
                    self.send(302, b"", location=self.path)
                elif fault == "huge":
                    self.send(200, b"<p>" * (6 << 20))
                elif fault:
                    self.send(200, fault.encode())
                else:
                    self.pass_on(body)

            do_POST = do_GET

            def pass_on(self, body: bytes) -> None:
                headers = {"Content-Type": self.headers.get("Content-Type", "text/html")}
                got = httpx.request(
                    self.command, outer.shop + self.path, content=body, headers=headers, trust_env=False
                )
                page = got.text.replace(*outer.edit) if outer.edit[0] else got.text
                self.send(got.status_code, page.encode(), location=got.headers.get("Location", ""))

            def drip(self) -> None:
                self.send_response(200)
                self.send_header("Content-Length", "1000")
                self.end_headers()
                for _ in range(16):
                    self.wfile.write(b".")
                    time.sleep(0.05)
                self.close_connection = True

            def send(self, status: int, body: bytes, location: str = "") -> None:
                self.send_response(status)
                if location:
                    self.send_header("Location", location)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None: ...

        return Handler

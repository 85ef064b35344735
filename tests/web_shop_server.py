"""A server for tests: a shop at the addresses of the official one."""

from __future__ import annotations

import threading
from ast import literal_eval
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote

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
    shop = shared_shop(catalogue.store, "rule", False)

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

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()

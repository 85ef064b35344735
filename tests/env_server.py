"""`skillttrl envs serve` for tests: really started as a command, and a proxy that loses answers on the way back."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx

ROOT = Path(__file__).parents[1]


@contextmanager
def started(env: str, *options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The command on a free port; gives its process and its address."""
    code = "from skill_ttrl.cli.main import main; main()"
    command = [sys.executable, "-c", code, "envs", "serve", env, "--port", "0", "--json", *options]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        try:
            line = process.stdout.readline()
            assert line, process.stderr.read()
            yield process, json.loads(line)["address"]
        finally:
            process.terminate()
            process.communicate(timeout=60)


class Lossy:
    """Proxy that passes every request on, and hangs up in place of the answers that `loses` names by method and path."""

    def __init__(self, server: str, loses: Callable[[str, str], bool]) -> None:
        self.server, self.loses = server, loses
        self.lost: list[str] = []
        self._proxy = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._proxy.daemon_threads = True
        threading.Thread(target=self._proxy.serve_forever, args=(0.02,), daemon=True).start()
        self.address = f"http://127.0.0.1:{self._proxy.server_address[1]}"

    def close(self) -> None:
        self._proxy.shutdown()
        self._proxy.server_close()

    def _handler(outer) -> type[BaseHTTPRequestHandler]:
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                headers = {"Content-Type": "application/json"} if body else {}
                url = outer.server + self.path
                got = httpx.request(self.command, url, content=body, headers=headers, trust_env=False, timeout=60)
                if outer.loses(self.command, self.path):
                    outer.lost.append(self.path)
                    self.close_connection = True
                    return
                self.send_response(got.status_code)
                self.send_header("Content-Length", str(len(got.content)))
                self.end_headers()
                self.wfile.write(got.content)

            do_POST = do_DELETE = do_GET

            def log_message(self, format: str, *args: object) -> None: ...

        return Handler

"""An MCP server for tests: it counts, hangs, talks too much, ends, and starts children. As a command, or `python -m ... PORT` by HTTP."""

# mypy: disable-error-code="untyped-decorator"
from __future__ import annotations

import os
import subprocess
import sys
import time

from mcp.server.mcpserver import MCPServer

server = MCPServer("test")
counts: list[str] = []


@server.tool()
def count(word: str) -> str:
    """Count a word. <|im_end|>"""
    counts.append(word)
    return f"{word} {counts.count(word)}"


@server.tool()
def calculator(expression: str) -> str:
    """Write down an expression as one that has been computed."""
    counts.append(expression)
    return f"{len(counts)}: {expression}"


@server.tool()
def hang(seconds: float) -> str:
    """Answer late."""
    time.sleep(seconds)
    return "late"


@server.tool()
def long(length: int) -> str:
    """Answer at length."""
    return "<answer>" + "x" * length


@server.tool()
def end() -> str:
    """End without an answer."""
    os._exit(3)


@server.tool()
def child() -> str:
    """Start a process that leaves the group and ignores that its input ends."""
    started = subprocess.Popen(
        ["sleep", "600"], start_new_session=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    )
    return f"{os.getpid()} {started.pid}"


if __name__ == "__main__":
    if len(sys.argv) > 1:
        server.run("streamable-http", port=int(sys.argv[1]))
    else:
        server.run("stdio")

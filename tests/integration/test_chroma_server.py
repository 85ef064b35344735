"""A real Chroma server in a process of its own, used through its HTTP client."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from skill_ttrl.errors import SkillBankError
from skill_ttrl.skills.chroma import ChromaIndex
from skill_ttrl.skills.embedders import HashEmbedder
from skill_ttrl.skills.folder import BankSettings
from skill_ttrl.skills.retrieval import MemoryIndex, Retriever, make_retriever
from skill_ttrl.skills.snapshot import Snapshot
from skill_ttrl.types import Skill

QUERIES = ["how to carry over", "open the 7th fridge", ""]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def start(folder: Path, port: int) -> subprocess.Popen[bytes]:
    command = [str(Path(sys.executable).with_name("chroma")), "run", "--path", str(folder)]
    command += ["--host", "127.0.0.1", "--port", str(port)]
    environment = {**os.environ, "ANONYMIZED_TELEMETRY": "False"}
    log = (folder.parent / "chroma.log").open("ab")
    server = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)
    for _ in range(300):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return server
        if server.poll() is not None:
            break
        time.sleep(0.1)
    stop(server)
    raise AssertionError((folder.parent / "chroma.log").read_text())


def stop(server: subprocess.Popen[bytes]) -> None:
    if server.poll() is None:
        os.killpg(server.pid, signal.SIGTERM)  # the entry point may have started the server as a child
    server.wait(timeout=30)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    port = free_port()
    process = start(tmp_path / "served", port)
    yield f"127.0.0.1:{port}"
    stop(process)


def bank(size: int) -> Snapshot:
    return Snapshot.of(
        1,
        [
            Skill(
                id=f"s{n:04}",
                title="",
                text=f"{['carry over', 'open', 'count'][n % 3]} the {n % 91}th {'mug' * (n % 2)}",
            )
            for n in range(size)
        ],
    )


@pytest.mark.slow
def test_a_server_gives_the_lists_of_the_embedded_one_and_serves_several(server: str, tmp_path: Path) -> None:
    snapshot = bank(700)
    expected = Retriever("embedding", HashEmbedder(), MemoryIndex()).search(snapshot, QUERIES)
    assert [len(hits) for hits in expected] == [6, 6, 0]
    name = HashEmbedder().name
    first = Retriever("embedding", HashEmbedder(), ChromaIndex(name, server=server))
    second = Retriever("embedding", HashEmbedder(), ChromaIndex(name, server=server))
    assert first.search(snapshot, QUERIES) == expected
    assert second.search(snapshot, QUERIES) == expected

    class NeverAgain(HashEmbedder):
        def embed(self, texts):  # type: ignore[no-untyped-def]
            assert set(texts) <= set(QUERIES), "the server holds the skills' vectors"
            return super().embed(texts)

    third = Retriever("embedding", NeverAgain(), ChromaIndex(name, server=server))
    assert third.search(snapshot, QUERIES) == expected
    for retriever in (first, second, third):
        retriever.close()
    embedded = Retriever("embedding", HashEmbedder(), ChromaIndex(name, folder=tmp_path))
    assert embedded.search(snapshot, QUERIES) == expected
    embedded.close()


@pytest.mark.slow
def test_no_server_and_a_server_that_dies(tmp_path: Path) -> None:
    port = free_port()
    with pytest.raises(SkillBankError, match=rf"The Chroma server 127\.0\.0\.1:{port} .*skills\.chroma_server"):
        make_retriever(BankSettings(chroma_server=f"127.0.0.1:{port}"))
    process = start(tmp_path / "served", port)
    retriever = make_retriever(BankSettings(chroma_server=f"127.0.0.1:{port}"))
    try:
        retriever.search(bank(20), QUERIES)
    finally:
        stop(process)
    with pytest.raises(SkillBankError, match="does not serve the skills' vectors"):
        retriever.search(bank(21), QUERIES)
    retriever.close()

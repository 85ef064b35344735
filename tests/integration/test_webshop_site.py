"""`skillttrl envs serve webshop --pages`: the command, and what its server answers to good and to bad requests."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import httpx
import pytest
from bs4 import BeautifulSoup

from skill_ttrl.cli.main import main
from skill_ttrl.envs.webshop.address import page_path
from skill_ttrl.envs.webshop.catalogue.catalogue import open_catalogue
from skill_ttrl.envs.webshop.catalogue.nouns import find_nouns
from skill_ttrl.envs.webshop.live.pages import read_page
from skill_ttrl.envs.webshop.shop import Shop, State
from skill_ttrl.envs.webshop.site.site import LONGEST_FORM, Site, SiteServer
from tests.web_shop_server import started_shop

GOLDEN = Path(__file__).parents[1] / "golden" / "webshop_episodes"


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with started_shop("--env-data", str(GOLDEN), "--goals", "synthetic", "--nouns", "rule") as address:
        yield address


@pytest.fixture(scope="module")
def site() -> Site:
    catalogue = open_catalogue(GOLDEN)
    return Site(Shop(catalogue.store, find_nouns("rule")), catalogue.goals("synthetic"), catalogue.source)


def ask(address: str, path: str, method: str = "GET", **more: Any) -> httpx.Response:
    return httpx.request(method, address + path, trust_env=False, **more)


def raw(address: str, request: bytes) -> bytes:
    """What the server answers to these bytes."""
    parts = urlsplit(address)
    with socket.create_connection((parts.hostname, parts.port), timeout=5) as connection:
        connection.sendall(request)
        connection.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: connection.recv(65536), b""))


def test_a_visit_goes_from_the_goal_to_the_score_by_official_requests(address: str) -> None:
    """Without options, a POST each, as the forms of the official pages send them."""
    found = ask(address, "/fixed_me_0", "POST", data={"search_query": "Desk LAMP"})
    assert (found.status_code, found.headers["location"]) == (302, "/search_results/fixed_me_0/desk%20lamp/1")
    results = read_page(ask(address, found.headers["location"]).text)
    product = results.target("b0lamp0001")
    assert product is not None
    item = read_page(ask(address, product.to).text)
    for name in ("description", "features", "reviews", "< prev", "back to search"):
        target = item.target(name)
        assert target is not None and target.method == "POST"
        assert read_page(ask(address, target.to, "POST").text).instruction == results.instruction
    buy = item.target("buy now")
    assert buy is not None
    done = read_page(ask(address, buy.to, "POST").text)
    assert done.place == "done" and done.score is not None
    assert set(done.parts) >= {"r_type", "r_att", "w_att", "r_price", "w_price", "title_score", "query_match"}


def test_no_page_before_a_purchase_tells_the_goal(site: Site) -> None:
    number = next(n for n, goal in enumerate(site.goals) if goal.options)
    goal = site.goals[number]
    elsewhere = next(product for product in site.shop.store if product.asin != goal.asin)
    at = State("item", ("zzz",), 1, elsewhere.asin)
    for state in (State(), State("results", ("zzz",)), at):
        page = site.answer(page_path(f"fixed_{number}", state)).body
        assert goal.asin not in page and goal.title not in page
    bought = site.answer(page_path(f"fixed_{number}", State("done", asin=elsewhere.asin))).body
    assert goal.asin in bought


def test_a_purchase_shows_what_was_matched_of_what_was_wanted(site: Site) -> None:
    number = next(n for n, goal in enumerate(site.goals) if goal.options)
    goal = site.goals[number]
    assert isinstance(goal.options, dict)
    right = page_path(f"fixed_{number}", State("done", asin=goal.asin, options=goal.options))
    wrong = page_path(f"fixed_{number}", State("done", asin=goal.asin))
    for path, won, options in ((right, "true", "yes"), (wrong, "false", "no")):
        page = BeautifulSoup(site.answer(path).body, "html.parser")
        assert page.select_one(f'.score[data-won="{won}"]') is not None
        rows = {str(row.th.get_text()): row for row in page.select(".parts tbody tr") if row.th is not None}
        assert list(rows) == ["Kind of thing", "Attributes", "Options", "Price"]
        marks = [li.get("class") for li in rows["Options"].find_all("li")]
        assert marks == [[options]] * len(goal.options)
        shown = page.select_one(".sum")
        assert shown is not None and shown.get_text().endswith(f"= {read_page(str(page)).score:.4g}")


def test_a_name_decides_the_goal_of_a_visit(site: Site) -> None:
    assert site.goal_of("fixed_3") is site.goal_of("fixed_any_thing_3") is site.goals[3]
    drawn = {site.goal_of(f"visitor-{number}").id for number in range(300)}
    assert site.goal_of("abc") == site.goal_of("abc") and len(drawn) > len(site.goals) / 2
    for name in ("fixed", "fixed_", "fixed_x", "fixed_99999", "fixed_-1", "fixed_1.0", "fixed_٣"):
        assert site.answer(f"/{quote(name)}").status == 404


def test_the_start_page_leads_to_goals(site: Site) -> None:
    page = BeautifulSoup(site.answer("/").body, "html.parser")
    assert [link["href"] for link in page.select("a.goal")][:3] == ["/fixed_0", "/fixed_1", "/fixed_2"]
    assert "/fixed_8" in site.answer("/?from=8").body
    assert site.answer("/?goal=7").location == "/fixed_7"
    assert re.fullmatch(r"/fixed_\d+", site.answer("/?goal=random").location)
    for query in ("goal=99999", "goal=", "from=x", "goal=../etc", "from=-8"):
        answer = site.answer(f"/?{query}")
        assert answer.status in (200, 404) and (query == "goal=" or answer.status == 404)


@pytest.mark.parametrize(
    ("path", "status", "said"),
    [
        ("/item_page/abc/NOSUCH/lamp/1/{}", 404, "no product 'NOSUCH'"),
        ("/done/abc/NOSUCH/{}", 404, "no product"),
        ("/item_page/abc/B0LAMP0001/lamp/1/{'color':'gold'}", 400, "no option 'color' with the value 'gold'"),
        ("/done/abc/B0LAMP0001/%7B%22x%22:%22red%22%7D", 400, "no option 'x'"),
        ("/done/abc/B0LAMP0001/__import__('os').system('x')", 400, "a JSON object"),
        ("/item_sub_page/abc/B0LAMP0001/lamp/1/Attributes/{}", 404, "does not show attributes"),
        ("/search_results/abc/lamp/0", 400, "numbered from 1"),
        ("/no/such/address", 404, "no such address"),
        ("/static/../site.py", 404, "no such address"),
        ("/static/site.py", 404, "no such address"),
        ("/<script>alert(1)</script>", 404, "no such address"),
        ("//evil.example", 404, "no such address"),
        ("/favicon.ico", 404, "no such address"),
    ],
)
def test_a_bad_address_gets_a_page_that_says_what_is_wrong(path: str, status: int, said: str, site: Site) -> None:
    answer = site.answer(path)
    text = BeautifulSoup(answer.body, "html.parser").get_text()
    assert (
        answer.status == status and said in text and "Traceback" not in answer.body and "<script>a" not in answer.body
    )


def test_a_page_after_the_last_is_empty_and_its_words_are_escaped(site: Site) -> None:
    page = read_page(site.answer("/search_results/abc/lamp/900000").body)
    assert page.place == "results" and not any(text.kind == "product" for text in page.texts)
    words = quote('"><img src=x onerror=alert(1)>', safe="")
    assert "<img" not in site.answer(f"/search_results/{words}/{words}/1").body


def test_an_error_of_ours_is_a_page_and_its_traceback_stays_here(
    site: Site, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site, "goal_of", lambda session: 1 / 0)
    answer = site.answer("/abc")
    assert answer.status == 500 and "ZeroDivisionError" not in answer.body
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_odd_requests_are_refused_in_time_and_the_server_stays(address: str) -> None:
    post = b"POST /abc HTTP/1.1\r\nHost: x\r\n"
    assert b" 413 " in raw(address, post + f"Content-Length: {LONGEST_FORM + 1}\r\n\r\n".encode()).splitlines()[0]
    assert b" 411 " in raw(address, post + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n").splitlines()[0]
    assert b" 411 " in raw(address, post + b"Content-Length: -5\r\n\r\n").splitlines()[0]
    form = b"&".join(b"a=1" for _ in range(50))
    assert b" 400 " in raw(address, post + f"Content-Length: {len(form)}\r\n\r\n".encode() + form).splitlines()[0]
    assert b" 501 " in raw(address, b"DELETE /abc HTTP/1.1\r\nHost: x\r\n\r\n").splitlines()[0]
    assert b" 414 " in raw(address, b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n").splitlines()[0]
    raw(address, b"\x16\x03\x01 this is no HTTP\r\n\r\n")
    head = ask(address, "/abc", "HEAD")
    assert head.status_code == 200 and not head.content and int(head.headers["content-length"]) > 500
    assert "script-src 'self'" in head.headers["content-security-policy"]
    assert ask(address, "/static/site.css").headers["content-type"].startswith("text/css")


def serve(*options: str) -> subprocess.Popen[str]:
    command = [
        sys.executable,
        "-m",
        "skill_ttrl.cli.main",
        "envs",
        "serve",
        "webshop",
        "--pages",
        "--env-data",
        str(GOLDEN),
        *options,
    ]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@contextmanager
def open_site(site: Site) -> Iterator[SiteServer]:
    with SiteServer(site, port=0) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("start", [b"GET / HTTP/1.1\r\n", b"POST /a HTTP/1.1\r\nContent-Length: 60000\r\n\r\n", b""])
def test_a_visitor_who_sends_a_byte_now_and_then_is_sent_away(
    start: bytes, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skill_ttrl.envs.http_server.REQUEST_SECONDS", 0.2)
    monkeypatch.setattr("skill_ttrl.envs.http_server.IDLE_SECONDS", 30.0)
    with open_site(site) as server, socket.create_connection(("127.0.0.1", server.server_port)) as visitor:
        visitor.sendall(start)
        visitor.settimeout(0.02)
        for _ in range(1000):  # many times as long as a request may take
            try:
                visitor.sendall(b"X")
                if visitor.recv(1) == b"":
                    return
            except TimeoutError:
                continue
            except ConnectionError:
                return
        pytest.fail("the visitor holds a thread still")


def test_a_visitor_who_asks_nothing_is_sent_away(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skill_ttrl.envs.http_server.IDLE_SECONDS", 0.05)
    with open_site(site) as server, socket.create_connection(("127.0.0.1", server.server_port), timeout=20) as visitor:
        assert visitor.recv(1) == b""


def test_there_is_a_bound_on_visitors_and_a_place_is_free_again(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skill_ttrl.envs.http_server.MAX_CONNECTIONS", 1)
    with open_site(site) as server:
        with httpx.Client(base_url=server.address, trust_env=False) as first:
            assert first.get("/").status_code == 200  # and its connection stays open
            assert ask(server.address, "/").status_code == 503
            assert first.get("/").status_code == 200
        for _ in range(1000):  # its thread ends soon after
            if (status := ask(server.address, "/").status_code) != 503:
                break
            time.sleep(0.01)
        assert status == 200


def test_the_command_says_where_and_ends_cleanly() -> None:
    with serve("--port", "0") as process:
        assert process.stdout is not None
        said = process.stdout.readline()
        found = re.search(r"http://127\.0\.0\.1:\d+", said)
        assert found is not None and "Ctrl-C closes it" in said
        assert ask(found[0], "/fixed_0").status_code == 200
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=20)
    assert process.returncode == 130 and errors == "The shop is closed.\n" and out == ""


def test_json_is_one_line_and_a_taken_port_is_named() -> None:
    with serve("--port", "0", "--json") as first:
        assert first.stdout is not None
        said = json.loads(first.stdout.readline())
        assert set(said) == {"address", "source", "goals"}
        port = said["address"].rpartition(":")[2]
        with serve("--port", port) as second:
            _, errors = second.communicate(timeout=20)
        assert second.returncode == 3 and f"Port {port} of 127.0.0.1 is taken" in errors and "--port 0" in errors
        first.send_signal(signal.SIGTERM)
        out, _ = first.communicate(timeout=20)
    assert first.returncode == 143 and out == ""


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["webshop"], 2, "--pages, the shop as web pages, or --api"),
        (["webshop", "--env-data", str(GOLDEN), "--open"], 2, "Say how webshop is served"),
        (["webshop", "--pages", "--api"], 2, "two forms of serving"),
        (["webshop", "--pages", "--host", "0.0.0.0"], 2, "--host 0.0.0.0 accepts other machines"),
        (["webshop", "--pages", "--host", "example.org"], 2, "accepts other machines"),
        (["webshop", "--pages", "--workers", "2"], 2, "--workers is of --api"),
        (["alfworld", "--pages"], 2, "'alfworld' has no pages to serve"),
        (["alfworld", "--goals", "human"], 2, "--goals is of --pages"),
        (["webshop", "--pages", "--env-data", "/nowhere/at/all"], 3, "/nowhere/at/all"),
        (["webshop", "--pages", "--env-data", str(GOLDEN), "--goals", "odd"], 3, "no goals of a kind 'odd'"),
    ],
)
def test_a_mistake_on_the_command_line_is_one_message(
    arguments: list[str], code: int, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["skillttrl", "envs", "serve", *arguments])
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == code and said in " ".join(capsys.readouterr().err.split())

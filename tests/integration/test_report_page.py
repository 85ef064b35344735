"""The report's page: what it escapes, and (marker `browser`) what it does in a real Chromium, opened from disk."""

from __future__ import annotations

import json
import os
import shutil
from base64 import b64encode
from collections.abc import Iterator
from functools import cache
from hashlib import sha256
from html.parser import HTMLParser
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from skill_ttrl.commands.reports.page import render

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
SCRIPT = "</script><script>window.hit=1</script><img src=x onerror=window.hit=1><svg onload=window.hit=1>"
HOSTILE = {
    "markup": [SCRIPT, "<!--<script>", "--></style></title></pre></textarea>" + SCRIPT, '"><b onclick=window.hit=1>'],
    "templates and addresses": [
        *("javascript:window.hit=1", "{{7*7}}{% raw %}", "${window.hit=1}", "&lt;script&gt;", "__proto__"),
        *("constructor", "data:text/html," + SCRIPT, "%", "x'; window.hit=1; '", "#rollout=%E0%A4%A", "hasOwnProperty"),
    ],
    "characters": [
        *("\x1b[31mred\x1b[0m", "\u202egnp.exe\u2066", "\x00\x07\x08", "\u2028\u2029", "\ud800", "\r\n\t", "", " ") * 3,
        *("long " * 200_000, "a\u0301" * 3000),
    ],
}


def a_page(tasks: int = 3, steps: int = 2, group: int = 4, text: Any = lambda plain: plain) -> dict[str, Any]:
    """A page of one run; `text` makes each text that a run, a model or a bank could have written."""
    names = [text(f"task-{number}") for number in range(tasks)]
    texts = [text("Compute 18+62."), text("carry the one"), text("8;<answer>80</answer>"), text("look"), text("80")]
    tokens = {"pieces": [text("8"), text(";"), text("80")], "own": "101", "logp": [-0.1, 0.0, -2.5]}
    items, cells = list[dict[str, Any]](), dict[int, list[dict[str, Any]]]()
    for step in range(steps):
        for task, name in enumerate(names):
            at = len(items)
            for sample in range(group):
                turn = {
                    **{"obs": 0, "thought": 1, "said": 2, "action": 3, "calls": [[text("search"), 3, 4, text("late")]]},
                    **{"reward": 1.0, "status": text("odd"), "why": text("no tag"), "inserted": [[2, 8]]},
                    "tokens": tokens,
                }
                place = {"phase": text("rl"), "step": step, "task": name, "type": text("sum"), "sample": sample}
                items.append(
                    {
                        **{"id": f"rl:{step}:{name}:{sample}", **place, "reward": float(sample % 2), "true": 1.0},
                        **{"advantage": [0.5 - sample % 2], "stop": text("terminated"), "answer": text("80")},
                        **{"error": text("broke") if sample == 3 else None, "skills": [text("sk-1")]},
                        **{"retrieved": [text("sk-2")], "bank": 1, "turns": [turn, turn] if sample < 3 else None},
                    }
                )
            cells.setdefault(task, []).append(
                {
                    **{"step": step, "share": 0.75, "winner": text("80"), "flip": step > 0, "correct": step > 0},
                    **{"classes": [[text("80"), 3], [text("79"), 1]], "abstained": 1, "tie": False},
                    **{"rule": text("equal as numbers"), "rollouts": [*range(at, len(items))]},
                }
            )
    votes = [{"id": name, "prompt": text("Compute"), "cells": cells[at]} for at, name in enumerate(names)]
    skill = {
        **{"id": text("sk-1"), "title": text("Carry"), "text": text("Carry the one."), "when": text("sums")},
        **{"tier": "task", "type": text("sum"), "uses": 8, "successes": 6, "interval": [0.4, 0.9], "version": 1},
        **{"parents": [text("sk-0")], "flags": [text("our-tags")], "evidence": names[:2]},
    }
    change = {"kind": "evolve", "id": text("sk-1"), "before": "a\nb\nc", "after": text("a\nB\nc")}
    version = {"version": 1, "step": 1, "reason": text("lesson"), "writer": text("teacher"), "evidence": names[:1]}
    line = {"run": 0, "label": text("reward"), "x": [0, 1, 2], "y": [0.1, None, 0.9], "low": None, "high": None}
    chart = {
        **{"id": text("reward"), "title": text("Reward"), "note": text("mean reward"), "unit": text("share")},
        **{"range": [0, 1], "right": {"unit": text("nats"), "range": [0, None]}, "search": text("reward")},
        "lines": [
            {**line, "style": "solid", "low": [0.0, 0.1, 0.8], "high": [0.2, 0.3, 1.0]},
            {**line, "style": "points", "low": [0.0, 0.1, 0.8], "high": [0.2, 0.3, 1.0], "right": True},
            {**line, "style": "dashed", "y": [1e-9, -1e-9, 0.0]},
        ],
        "shaded": [{"from": 1, "to": 2, "why": text("they part")}],
    }
    warning = {"text": text("entropy fell"), "phase": text("rl"), "step": 3, "tripwire": True}
    verdict = {
        **{
            "name": text("demo"),
            "sentence": text("A model was trained without labels."),
            "more": text("One seed."),
            "warnings": [warning],
        },
        "table": {
            "columns": ["metric", "before", "after", "change", "verdict"],
            "main": 1,
            "rows": [
                ["avg@4", "0.500 [0.400, 0.600]", "0.900 [0.800, 1.000]", "+0.400 [+0.300, +0.500]", "better"],
                [text("pass@4"), None, text("1.000"), None, text("unclear")],
            ],
        },
        "controls": [
            {"name": text("random"), "value": None, "words": text("knows nothing"), "command": text("skillttrl train")},
            {"name": text("scripted"), "value": "0.1 [0.0, 0.2]", "words": "", "command": None},
        ],
        **{"facts": [[text("seed"), text("0")]], "lines": [text("Algorithm grpo.")], "config": text("name: demo")},
    }
    run = {
        **{"name": text("demo"), "left_out": [text("nothing")]},
        "votes": {"steps": [*range(steps)], "tasks": votes, "left_out": text("none")},
        "rollouts": {"texts": texts, "items": items, "left_out": "", "phases": ["rl"]},
        "skills": {"versions": [{**version, "changes": [change]}], "now": [skill], "left_out": ""},
    }
    empty = {"name": text("bare"), "votes": None, "rollouts": None, "skills": None, "left_out": []}
    return {
        **{"title": text("demo, seed 0"), "made": "2026-11-29 23:40 UTC", "version": "0.1.0", "verdicts": [verdict]},
        "compared": [
            {"title": text("a, b"), "columns": ["x", text("y")], "rows": [["1", None]], "words": [text("no")]}
        ],
        "runs": [run, empty],
        "charts": {
            "main": [chart, {**chart, "lines": []}],
            "rest": [chart],
            "constant": [[text("lr"), "0.1", text("rate")]],
        },
    }


def hostile_page(kind: str) -> dict[str, Any]:
    payloads = cycle(HOSTILE[kind])
    return a_page(text=cache(lambda _: next(payloads)))


class Parsed(HTMLParser):
    """The elements of a page and the texts of its scripts, as a browser would find them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements, self.scripts, self.policy = list[tuple[str, dict[str, str | None]]](), list[str](), ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if dict(attrs).get("http-equiv") == "Content-Security-Policy":
            self.policy = dict(attrs)["content"] or ""
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data: str) -> None:
        if self.cdata_elem == "script":
            self.scripts[-1] += data


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_texts_are_escaped_and_only_our_two_scripts_may_run(kind: str) -> None:
    text = render(hostile_page(kind))
    text.encode()  # no half characters
    parsed = Parsed(text)
    data, *scripts = parsed.scripts
    assert len(scripts) == 2 and all(
        f"'sha256-{b64encode(sha256(each.encode()).digest()).decode()}'" in parsed.policy for each in scripts
    )
    assert parsed.policy.startswith("default-src 'none';") and "'unsafe-inline'; script-src 'sha256-" in parsed.policy
    tags, plain = ([tag for tag, _ in each.elements] for each in (parsed, Parsed(render(a_page()))))
    assert tags == plain or kind == "characters"  # of which some are empty
    assert not any(name.startswith("on") or name == "src" for _, attrs in parsed.elements for name in attrs)
    assert all((attrs.get("href") or "#").startswith("#") for _, attrs in parsed.elements)
    assert (
        "hit" not in "".join(scripts)
        and "<" not in data
        and "\x1b" not in text
        and "\u202e" not in text.split("{", 1)[0]
    )
    assert len(json.loads(data)["runs"][0]["rollouts"]["items"]) == 24


def test_numbers_that_json_lacks_are_null() -> None:
    page = a_page()
    page["charts"]["main"][0]["lines"][0]["y"] = [float("nan"), float("inf"), 1.0]
    assert json.loads(Parsed(render(page)).scripts[0])["charts"]["main"][0]["lines"][0]["y"] == [None, None, 1.0]


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    api = pytest.importorskip("playwright.sync_api", reason="the browser extra is not installed")
    with api.sync_playwright() as playwright:
        found = (shutil.which(name) for name in ("chromium", "chromium-browser", "google-chrome"))
        path = next(filter(None, found), playwright.chromium.executable_path)
        if not os.path.exists(path):
            pytest.skip("no Chromium: apt-get install chromium, or python -m playwright install chromium")
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def opened(chromium: Any, tmp_path: Path) -> Iterator[Any]:
    """A function that writes a page's data as a file and opens it; afterwards nothing was complained of and nothing asked for."""
    faults, asked = list[str](), list[str]()
    context = chromium.new_context(viewport={"width": 1280, "height": 900})

    def open_page(page: dict[str, Any], hash: str = "") -> Any:
        file = tmp_path / "report.html"
        file.write_text(render(page), encoding="utf-8")
        tab = context.new_page()
        tab.on("console", lambda message: faults.append(message.text) if message.type != "log" else None)
        tab.on("pageerror", lambda error: faults.append(str(error)))
        tab.on("dialog", lambda dialog: faults.append(dialog.message))
        tab.on("request", lambda request: asked.append(request.url))
        tab.goto(f"{file.as_uri()}{hash}")
        tab.wait_for_selector("html[data-ready]", state="attached")
        return tab

    yield open_page
    assert not faults
    assert all(url.startswith(tmp_path.as_uri()) for url in asked)
    context.close()


def use_everything(tab: Any) -> None:
    """Open every view, choose each option, search, press every switch."""
    for link in tab.query_selector_all("#bar nav a"):
        link.click()
        tab.wait_for_timeout(120)
    for summary in tab.query_selector_all("summary"):
        if summary.is_visible():
            summary.click()
    tab.locator("#rest input").fill("zzz")
    tab.get_by_text("No metric has this").wait_for()
    tab.locator("#rest input").fill("")
    tab.locator("#curves .plot").first.press("ArrowLeft")
    tab.locator("#curves .info").first.hover()
    tab.locator("#curves .legend button").first.click()
    for name in ("votes", "rollouts", "skills"):
        for place in range(tab.locator(f"#{name} select").count()):
            for option in range(tab.locator(f"#{name} select").nth(place).locator("option").count()):
                tab.locator(f"#{name} select").nth(place).select_option(index=option)
            tab.locator(f"#{name} select").nth(place).select_option(index=0)
        tab.locator(f"#{name} input").first.fill("a")
        tab.locator(f"#{name} input").first.fill("")
    tab.wait_for_timeout(250)
    grid = tab.locator("#votes .grid")
    grid.press("ArrowRight")
    grid.press("ArrowDown")
    grid.locator("canvas").click(position={"x": 20, "y": 25})
    tab.locator("#votes .hist").wait_for()
    tab.locator("#votes .detail .chip").first.click()
    tab.locator("dialog[open]").wait_for()
    tab.locator("dialog").get_by_text("Tokens: mask").click()
    tab.locator("dialog .tokens").first.wait_for()
    tab.locator("dialog").get_by_label("Next sample").click()
    tab.locator("dialog").get_by_text("Close").click()
    tab.locator("#skills .skills button").first.click()
    tab.locator("#skills .skills tr.open").wait_for()
    for _ in range(3):
        tab.locator("#theme").click()
    for run in (1, 0):
        tab.locator("#run-choice select").select_option(index=run)
    assert tab.get_by_text("This page has no rollout").count() == 0
    tab.set_viewport_size({"width": 360, "height": 740})
    tab.wait_for_timeout(150)
    tab.pdf()


@pytest.mark.browser
def test_every_view_works(opened: Any) -> None:
    tab = opened(a_page())
    use_everything(tab)
    assert tab.evaluate("document.documentElement.scrollWidth") <= 360
    printed = tab.locator("#rollouts .printed").text_content()
    assert printed == "On paper: 8 rollouts of the chosen task, and the open one. Left out: 16 rollouts of the page."
    tab.set_viewport_size({"width": 1280, "height": 900})
    tab.locator("#rollouts input").fill("task-2")
    tab.get_by_text("8 of 24 rollouts, 1 task").wait_for()
    tab.locator("#run-choice select").select_option(index=1)
    for why in ("No votes: ", "No rollouts: ", "No skill bank: "):
        tab.get_by_text(why).wait_for()


@pytest.mark.browser
@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_run_runs_nothing_and_breaks_nothing(opened: Any, kind: str) -> None:
    page = hostile_page(kind)
    tab = opened(page)
    use_everything(tab)
    assert tab.evaluate("window.hit === undefined && ({}).hit === undefined")
    assert tab.locator("img, iframe, script[src], [onerror], [onclick]").count() == 0
    assert tab.get_by_text("could not be drawn").count() == 0 and tab.get_by_text("{{7*7}}").count() * 49 != 49


@pytest.mark.browser
def test_an_address_leads_to_a_rollout(opened: Any) -> None:
    assert "rl:1:task-2:1" in opened(a_page(), "#rollout=rl%3A1%3Atask-2%3A1").locator("dialog[open] .top").inner_text()
    tab = opened(a_page(), "#rollout=%E0%A4%A<script>window.hit=1</script>")
    tab.get_by_text("This page has no rollout").wait_for()
    tab = opened(a_page(), "#task=no';where")
    tab.get_by_text(r"skillttrl inspect demo --task 'no'\'';where'").wait_for()  # one word of a shell


@pytest.mark.browser
def test_ten_thousand_rollouts_open_within_two_seconds(opened: Any, tmp_path: Path) -> None:
    page = a_page(tasks=312, steps=8, group=4)
    rollouts = page["runs"][0]["rollouts"]
    rollouts["texts"] = [f"{number} " + "so it goes, on and on " * 14 for number in range(12_000)]
    for number, item in enumerate(rollouts["items"]):
        for turn in (item["turns"] or [])[:1]:
            item["turns"] = [{**turn, "said": number, "tokens": None, "calls": []}]
    times = []
    for _ in range(2):
        tab = opened(page)
        times.append(tab.evaluate("performance.getEntriesByType('navigation')[0].domContentLoadedEventEnd"))
    assert len(rollouts["items"]) > 9_900 and (tmp_path / "report.html").stat().st_size < 8_000_000
    assert min(times) < 2000

"""The page of an optimization in a real browser: what models wrote does not act there, and nothing is fetched."""

from __future__ import annotations

import html
import shutil
import subprocess
from pathlib import Path

import pytest

from skill_ttrl.stages.reports.optimize_page import write_optimize_html
from tests.unit.optimize.test_loop import CONFIG, run
from tests.unit.stages.test_optimize_page import HOSTILE, Hostile

pytestmark = pytest.mark.slow
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


def test_hostile_documents_are_shown_and_do_not_act(tmp_path: Path) -> None:
    chromium = next((found for name in NAMES if (found := shutil.which(name))), None)
    if chromium is None:
        pytest.skip("needs Chromium on the PATH (Debian: apt-get install chromium)")
    run(Hostile(), tmp_path, CONFIG.model_copy(update={"gate": CONFIG.gate.model_copy(update={"enabled": False})}))
    page = write_optimize_html(tmp_path)
    acts = page.with_name("acts.html")  # the same texts put in without care: this browser runs scripts
    acts.write_text(
        f"<!doctype html><title>quiet</title>{HOSTILE.replace('alert(1)', 'document.title = 1').replace('alert(2)', '')}"
    )
    options = [
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        f"--user-data-dir={tmp_path}/profile",
    ]

    def seen(file: Path) -> str:
        words = [chromium, *options, "--dump-dom", file.as_uri()]
        return subprocess.run(words, capture_output=True, text=True, timeout=60, check=True).stdout

    assert "<title>1</title>" in seen(acts)
    shown = seen(page)
    assert "<title>Optimization" in shown and "<script" not in shown and "<img" not in shown
    assert "<script>alert(1)</script>" in html.unescape(shown) and shown.count("<section") == 4
    assert shown.count('<polyline points="') == 2

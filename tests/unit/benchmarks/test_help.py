"""Each benchmark imports, and its `--help` prints what it is."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
TEXTS = {path.stem: path.read_text(encoding="utf-8") for path in sorted(BENCHMARKS.glob("*.py"))}


@pytest.mark.parametrize("name", TEXTS)
def test_it_imports_and_helps(name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.delitem(sys.modules, name, raising=False)  # `skillrl` is the name of a package too
    module = importlib.import_module(name)
    if "ArgumentParser(" in TEXTS[name] and "__main__" in TEXTS[name]:
        monkeypatch.setattr("sys.argv", [name, "--help"])
        with pytest.raises(SystemExit) as leaving:
            module.main()
        assert leaving.value.code == 0 and capsys.readouterr().out.startswith("usage: ")

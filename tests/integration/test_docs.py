"""The documentation says what is: its examples and Python blocks run, its commands exist, its links lead somewhere."""

from __future__ import annotations

import os
import re
import runpy
import shlex
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gymnasium
import pytest
import torch

from skill_ttrl.config import load_config, recipe_names, verified_note
from skill_ttrl.errors import ConfigError
from skill_ttrl.runs.reader import read_run
from tests.preloaded import run_script

ROOT = Path(__file__).parents[2]
GENERATED = ("settings", "cli", "metrics")
"""Pages that `make docs` makes from the code."""
WRITTEN = [page for page in sorted((ROOT / "docs").glob("*.md")) if page.stem not in GENERATED]
PAGES = [ROOT / "README.md", *WRITTEN]
BLOCK = re.compile(r"^(?P<mark><!-- not run: .+ -->\n)?```(?P<kind>\w+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<!!)\[[^\]]*\]\((?P<target>[^)\s]+)\)")
TEST = re.compile(r"tests/[\w/]+\.py(?:::\w+)?")
TINY_RUN = [
    "runtime.threads=1", "sft.steps=2", "sft.data.limit=64", "rl.steps=2", "rl.prompts_per_step=4",
    "rl.mini_batch_size=2",
]  # fmt: skip
TINY_RUN += ["data.eval.limit=16", "eval.samples=4"]


def blocks(page: Path, *kinds: str) -> Iterator[tuple[str, bool]]:
    """The text of each fenced block of these kinds, and whether a mark above it says that it is not run."""
    for found in BLOCK.finditer(page.read_text(encoding="utf-8")):
        if found["kind"] in kinds:
            yield found["text"], found["mark"] is not None


def run_example(name: str, folder: Path, *arguments: str) -> str:
    done = run_script(ROOT / "examples" / name, *arguments, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a short run at `runs/quickstart`, which pages and examples read."""
    from skill_ttrl.commands.train import run

    folder = tmp_path_factory.mktemp("docs")
    (folder / "runs").mkdir()
    run(load_config("quickstart", TINY_RUN), folder / "runs" / "quickstart")
    return folder


@pytest.fixture
def as_before() -> Iterator[None]:
    """What a block sets for its process is undone: environments that it registers, torch's threads."""
    environments, threads = set(gymnasium.registry), torch.get_num_threads()
    yield
    for added in set(gymnasium.registry) - environments:
        del gymnasium.registry[added]
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("as_before")
@pytest.mark.parametrize("page", [page for page in PAGES if any(blocks(page, "python"))], ids=lambda page: page.name)
def test_python_blocks_run(page: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if page.name == "quickstart-alfworld.md" and find_spec("alfworld") is None and "ALFWORLD_DATA" not in os.environ:
        pytest.skip("needs games: the package alfworld (pip install --no-deps alfworld), or ALFWORLD_DATA")
    monkeypatch.chdir(scratch)
    for text, not_run in blocks(page, "python"):
        if not not_run:
            exec(compile(text, page.name, "exec"), {"__name__": page.stem})


def test_examples_on_strings(tmp_path: Path) -> None:
    assert "winner: 1/2 | majority ratio: 0.6" in run_example("vote.py", tmp_path)
    assert "advantages [0.866, 0.866, -0.866, -0.866]" in run_example("train_offline.py", tmp_path)
    assert not any(tmp_path.iterdir())


def test_examples_on_skills(tmp_path: Path) -> None:
    told = run_example("skill_bank.py", tmp_path)
    assert "uses 2 | success 1.0 | from fermat" in told and "kept: bounds euler units" in told
    assert "version 7 holds fermat parity | the one before: bounds euler units" in told
    told = run_example("merge_offline.py", tmp_path)
    assert "add sk-581f814d2d" in told and "use sk-581f814d2d won 2 of 2" in told
    assert "<skill>use Fermat's theorem</skill>\nWhich theorem gives 3^6 mod 7?" in told
    assert not any(tmp_path.iterdir())


OWN = {
    "environment": "I think of a number from 1 to 8. higher ('right', 1.0)",
    "backend": "[3, 3]",
    "voter": "('1', '1.0', '2') -> None (0.0, 0.0, 0.0)",
    "teacher": "Begin with: go to fridge, open fridge.",
    "optimizer": "test success 0.000 -> 0.500",
    "tools": "The code is 8655.\n6.21",
    "form": "['click[b09qqp3356]', 'search[mug red]', None]",
}
"""Examples of what one adds, at most 40 lines each, and a line that each prints."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name == "optimizer" else name for name in OWN]
)
def test_example_of_something_of_ones_own(name: str, tmp_path: Path) -> None:
    example = ROOT / "examples" / f"own_{name}.py"
    assert OWN[name] in run_example(example.name, tmp_path)
    assert len(example.read_text(encoding="utf-8").splitlines()) <= 40


@pytest.mark.slow
def test_example_of_an_algorithm_and_a_loss_of_ones_own_learns_and_its_controls_do_not(tmp_path: Path) -> None:
    shares = dict(re.findall(r"^(.+): (0\.\d\d)$", run_example("own_algorithm.py", tmp_path), re.MULTILINE))
    assert len(shares) == 4 and float(shares["ours, rewarded"]) > 0.5, shares
    assert max(float(shares[name]) for name in ("ours, a coin for a reward", "ours, not learning")) < 0.1, shares


@pytest.mark.slow
def test_example_on_ones_own_problems_improves_without_labels(tmp_path: Path) -> None:
    told = run_example("own_problems.py", tmp_path, str(tmp_path / "new"))
    before, after = map(float, re.findall(r"avg@16  before (\S+)  after (\S+)", told)[0])
    assert after > before + 0.1, told
    run = read_run(tmp_path / "new" / "run")
    again = run_script(ROOT / "examples" / "own_problems.py", str(tmp_path / "new"), cwd=tmp_path)
    assert again.returncode == 1 and again.stderr.startswith("Error: ") and "already holds a run" in again.stderr
    right = run.metrics[run.metrics["phase"] == "rl"]["ground_truth_ratio"].tolist()  # measured, and never used
    assert len(right) == 20 and sum(right[-2:]) / 2 > sum(right[:2]) / 2 + 0.15
    assert run.summary is not None and run.summary.entropy_before is not None and run.summary.entropy_after is not None
    assert run.summary.entropy_after < run.summary.entropy_before
    assert (tmp_path / "new" / "run" / "summary.json").is_file()


def test_example_that_reads_a_run(scratch: Path) -> None:
    told = run_example("read_run.py", scratch)
    assert "avg@k before and after:" in told and "a first try:" in told


def command_lines(page: Path) -> list[tuple[str, str]]:
    """Each `skillttrl` command of a page, and the error that the page shows under it (empty where it shows none)."""
    found = []
    for text, _ in blocks(page, "console", "bash"):
        lines = [line.removeprefix("$ ") for line in text.splitlines()]
        for line, following in zip(lines, [*lines[1:], ""], strict=True):
            if line.startswith("skillttrl "):
                found.append((line, following.removeprefix("Error: ") if following.startswith("Error: ") else ""))
    return found


@cache
def all_commands() -> dict[str, Any]:
    return dict(runpy.run_path(str(ROOT / "docs" / "generate_cli.py"))["commands"]())


@pytest.mark.parametrize("page", [page for page in PAGES if command_lines(page)], ids=lambda page: page.name)
def test_commands_exist(page: Path) -> None:
    known = all_commands()
    for line, error in command_lines(page):
        words = shlex.split(line.partition(" | ")[0], comments=True)[1:]
        if words == ["--version"]:
            continue
        words = [word for word in words if word not in ("--debug", "--trust")]  # these may stand anywhere
        name = next((each for each in (" ".join(words[:2]), words[0]) if each in known), None)
        assert name is not None, f"{page.name}: there is no such command: {line}"
        arguments = words[len(name.split()) :]
        context = known[name].make_context(name, list(arguments), resilient_parsing=False)
        source = context.params.get("source") if name != "merge" else None  # there it is a run or its samples
        source = source or context.params.get("config")
        overrides = context.params.get("overrides") or []
        if error:
            with pytest.raises(ConfigError, match=re.escape(error)):
                load_config(source, overrides)
        elif source in recipe_names():
            load_config(source, overrides)
        elif source is not None:
            assert source.endswith((".yaml", ".json")), f"{page.name}: neither a recipe nor a file: {line}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_and_named_tests_are_there(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for found in LINK.finditer(text):
        target = found["target"].partition("#")[0]
        made = page.name == "index.md" and Path(target).stem in GENERATED  # in a clone the others are not there
        if target and "://" not in target and not made:
            assert (page.parent / target).exists(), f"{page.name} links to {target}, which is not there"
    for named in TEST.findall(text):
        file, _, test = named.partition("::")
        assert (ROOT / file).is_file(), f"{page.name} names {file}, which is not there"
        assert f"def {test}" in (ROOT / file).read_text(encoding="utf-8"), (
            f"{page.name} names {named}, which is not there"
        )


def test_readme_says_of_every_recipe_if_it_was_run() -> None:
    """A recipe whose settings have changed since then counts as not run."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(readme.splitlines()) <= 150
    rows = [[cell.strip() for cell in line.split("|")] for line in readme.splitlines() if line.startswith("|")]
    stated = {name: row[3] for row in rows if len(row) == 6 for name in re.findall(r"`(\S+)`", row[2])}
    notes = {name: verified_note(load_config(name)) for name in recipe_names()}
    assert stated == {name: "not run" if note.startswith("untested") else "run" for name, note in notes.items()}


@pytest.mark.parametrize("name", GENERATED)
def test_generated_pages_are_made(name: str) -> None:
    made = runpy.run_path(str(ROOT / "docs" / f"generate_{name}.py"))[f"{name}_page"]()
    assert made.startswith("# ") and made.count("\n| ") > 100


@pytest.mark.parametrize(("page", "change"), [("README.md", "with_result"), ("docs/quickstart.md", "with_output")])
def test_what_is_shown_of_the_quickstart_is_what_it_prints(page: str, change: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    made = runpy.run_path(str(ROOT / "docs" / "generate_quickstart.py"))[change](text)
    assert text == made, "run: python docs/generate_quickstart.py"

"""Every command end to end on a tiny run: what it shows, what it writes, and how it refuses."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from skill_ttrl.cli.main import main
from skill_ttrl.runs.reader import read_run


@dataclass
class Done:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def skillttrl(*arguments: object, stdin: bytes | None = None) -> Done:
    """The command in this process, through its real entry point."""
    before, out, err = (sys.argv, sys.stdin), io.StringIO(), io.StringIO()
    sys.argv = ["skillttrl", *map(str, arguments)]
    if stdin is not None:
        sys.stdin = io.TextIOWrapper(io.BytesIO(stdin))
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                main()
                code = 0
            except SystemExit as leaving:
                code = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    finally:
        sys.argv, sys.stdin = before
    return Done(code, out.getvalue(), err.getvalue())


def refused(done: Done, code: int, *words: str) -> None:
    """A user's mistake: the exit code, one message with these words, no traceback, nothing on stdout."""
    assert done.code == code, done
    assert "Traceback" not in done.err + done.out
    said = f"{done.err} {' '.join(done.err.split())}"
    for word in words:
        assert word in said, (word, done.err)


@pytest.fixture(scope="module")
def trained(tiny_yaml: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One run that all tests here look at and none changes."""
    folder = tmp_path_factory.mktemp("runs") / "trained"
    done = skillttrl("train", tiny_yaml, "-o", folder, "--set", "run.report_to=tensorboard")
    assert done.code == 0, done
    assert "avg@2" in done.out and f"skillttrl inspect {folder}" in done.out
    return folder


@pytest.fixture(scope="module")
def adapted(trained: Path, tiny_yaml: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(exported base model, LoRA run on it)."""
    base = tmp_path_factory.mktemp("export") / "base"
    assert skillttrl("export", trained, "-o", base).code == 0
    folder = base.parent / "lora"
    settings = ["rl.reward=random", "rl.learning_rate=0.01", "model.lora={r: 2, alpha: 8}"]
    changes = [word for setting in settings for word in ("--set", setting)]
    done = skillttrl("rl", tiny_yaml, "--policy", base, *changes, "-o", folder)
    assert done.code == 0, done
    return base, folder


def test_evaluations_reach_the_tracker(trained: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # type: ignore[import-untyped]

    events = EventAccumulator(str(trained / "tracker" / "tensorboard"))
    events.Reload()
    summary = json.loads((trained / "summary.json").read_text())
    seen = [(event.step, event.value) for event in events.Scalars("evaluate/accuracy")]
    expected = [(0, summary["accuracy_before"]), (2, summary["accuracy_after"])]
    assert [place for place, _ in seen] == [0, 2] and seen == [
        (place, pytest.approx(value)) for place, value in expected
    ]


def test_a_run_folder_holds_what_is_promised(trained: Path) -> None:
    names = {entry.name for entry in trained.iterdir()}
    assert names >= {"run.json", "config.yaml", "config_source.yaml", "summary.json", "report.html"}
    assert names >= {"metrics.jsonl", "timings.jsonl", "trajectories.jsonl", "votes.jsonl", "evaluations.jsonl"}
    assert list((trained / "tracker").rglob("events.out.tfevents.*"))
    summary = json.loads((trained / "summary.json").read_text())
    figures = ("accuracy", "majority", "greedy")
    assert {f"{name}_{when}" for name in figures for when in ("before", "after")} <= summary.keys()
    assert summary["steps"] == {"sft": 12, "rl": 2} and summary["seconds"].keys() >= {"demonstrations", "sft", "rl"}
    run = read_run(trained)
    assert (run.timings.query("phase == 'rl'")["tokens_per_second"] > 0).all()
    assert len(run.metrics) == 14 and run.summary is not None and run.summary.seed == 0
    assert "name: tiny" in (trained / "config_source.yaml").read_text()


def test_sft_then_rl_is_the_whole_run(trained: Path, tiny_yaml: Path, tmp_path: Path) -> None:
    assert skillttrl("sft", tiny_yaml, "-o", tmp_path / "sft").code == 0
    weights = "checkpoints/sft-000012/model.safetensors"
    assert (tmp_path / "sft" / weights).read_bytes() == (trained / weights).read_bytes()
    done = skillttrl("rl", tiny_yaml, "--policy", tmp_path / "sft", "-o", tmp_path / "rl", "--json")
    assert done.code == 0 and done.json["steps"] == {"rl": 2}
    assert done.json == json.loads((tmp_path / "rl" / "summary.json").read_text())
    weights = "checkpoints/rl-000002/model.safetensors"
    assert (tmp_path / "rl" / weights).read_bytes() == (trained / weights).read_bytes()


def test_ask(trained: Path) -> None:
    one = skillttrl("ask", trained, "Compute 47+38.", "--json")
    assert one.code == 0 and len(one.json["texts"]) == 1
    assert skillttrl("ask", trained, "Compute 47+38.", "--json").json == one.json  # greedy
    many = skillttrl("ask", trained, "[bold]Compute[/] 47+38.", "-n", 5)
    assert many.code == 0 and ("Vote: " in many.out) != ("No answer in the 5 responses" in many.out)


def test_inspect_takes_whatever_it_is_given(trained: Path, tiny_yaml: Path) -> None:
    run = skillttrl("inspect", trained, "--json").json
    assert run["kind"] == "run" and run["facts"]["steps done"] == "rl 2, sft 12" and run["facts"]["ended"] == "yes"
    checkpoint = skillttrl("inspect", trained / "checkpoints" / "rl-000002", "--json").json
    assert checkpoint["kind"] == "checkpoint" and checkpoint["facts"]["step"] == 2
    records = skillttrl("inspect", trained / "trajectories.jsonl", "--rows", 3, "--json").json
    assert records["kind"] == "records" and len(records["rows"]) == 3 and "reward" in records["columns"]
    assert skillttrl("inspect", trained / "votes.jsonl", "--json").json["facts"]["lines"] == 6
    refused(skillttrl("inspect", tiny_yaml), 4, "skillttrl configs")
    before = sorted((entry, entry.stat().st_mtime_ns) for entry in trained.rglob("*"))
    skillttrl("inspect", trained)
    assert before == sorted((entry, entry.stat().st_mtime_ns) for entry in trained.rglob("*"))


@pytest.mark.slow
def test_what_is_exported_loads_without_us(trained: Path, adapted: tuple[Path, Path]) -> None:
    base, _ = adapted
    code = (
        "import sys, transformers as t;"
        f"tok = t.AutoTokenizer.from_pretrained({str(base)!r});"
        f"m = t.AutoModelForCausalLM.from_pretrained({str(base)!r});"
        "text = tok.apply_chat_template([{'role': 'user', 'content': 'Compute 47+38.'}], tokenize=False, "
        "add_generation_prompt=True);"
        "ids = tok(text, return_tensors='pt', add_special_tokens=False);"
        "out = m.generate(**ids, max_new_tokens=10, do_sample=False);"
        "print(tok.decode(out[0, ids['input_ids'].shape[1]:], skip_special_tokens=True), end='');"
        "assert 'skill_ttrl' not in sys.modules and 'peft' not in sys.modules"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert found.returncode == 0, found.stderr
    assert found.stdout == skillttrl("ask", trained, "Compute 47+38.", "--json").json["texts"][0]


@pytest.mark.slow
def test_adapters_are_saved_alone_and_merge_to_the_same_model(
    trained: Path, adapted: tuple[Path, Path], tiny_yaml: Path
) -> None:
    import torch
    from peft import AutoPeftModelForCausalLM
    from transformers import AutoModelForCausalLM

    base, run = adapted
    assert {"trainer.pt", "state.json", "manifest.json"}.isdisjoint(entry.name for entry in base.iterdir())
    assert "pipeline_tag" in (base / "README.md").read_text()
    refused(skillttrl("export", trained, "-o", base), 4, "exists already")
    refused(skillttrl("export", trained, "-o", base.parent / "m", "--merge-lora"), 2, "no adapters to merge")
    checkpoint = run / "checkpoints" / "rl-000002"
    assert (checkpoint / "adapter_config.json").is_file() and not (checkpoint / "model.safetensors").exists()
    merged = base.parent / "merged"
    done = skillttrl("export", run, "-o", merged, "--merge-lora")
    assert done.code == 0 and done.out.strip() == str(merged)
    assert not (merged / "adapter_config.json").exists()
    ids = torch.arange(5, 25)[None]
    with torch.no_grad():
        folded = AutoModelForCausalLM.from_pretrained(merged)(ids).logits
        with_adapters: Any = AutoPeftModelForCausalLM.from_pretrained(checkpoint)
        adapted_logits = with_adapters(ids).logits
        bare = AutoModelForCausalLM.from_pretrained(base)(ids).logits
    torch.testing.assert_close(folded, adapted_logits, atol=1e-4, rtol=0)
    assert float((folded - bare).abs().max()) > 1e-3  # it did learn something
    plain = base.parent / "adapter"
    assert skillttrl("export", run, "-o", plain).code == 0 and (plain / "adapter_model.safetensors").is_file()
    start = ("rl", run / "config_source.yaml", "-o", base.parent / "next", "--policy")
    refused(skillttrl(*start, run), 5, "holds adapters without their base model")
    assert skillttrl(*start, merged).code == 0
    own = skillttrl("evaluate", run, "--json").json
    there = skillttrl("evaluate", plain, "--config", tiny_yaml, "--json").json
    assert own["problems"] == 4 and there["results"] == own["results"], "adapters stand on the model that they name"


def test_envs_and_configs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "SkillTTRL/Math-v0" in [row["id"] for row in skillttrl("envs", "list", "--json").json]
    assert "skillttrl init my_env" in skillttrl("envs").out
    names = [row["name"] for row in skillttrl("configs", "--json").json]
    assert "quickstart" in names and "quickstart" in skillttrl("configs").out
    shown = skillttrl("configs", "quickstart")
    assert shown.code == 0 and "verified:\n  hardware:" in shown.out
    assert "rollout:" in skillttrl("configs", "quickstart", "--set", "rl.steps=7").out
    assert skillttrl("configs", "quickstart", "-o", "mine.yaml").out.strip() == "mine.yaml"
    assert (tmp_path / "mine.yaml").read_text() == shown.out
    refused(skillttrl("configs", "quickstart", "-o", "mine.yaml"), 4, "exists already")
    refused(skillttrl("configs", "quikstart"), 2, "Did you mean 'quickstart'")


def test_an_environment_that_always_fails_stops_the_run(
    tiny_yaml: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_game.py").write_text(
        "import gymnasium\nfrom skill_ttrl.envs import TextEnv\n"
        "class Game(TextEnv):\n"
        "    def reset(self, *, seed=None, options=None):\n"
        "        return 'Compute 1+1.', {}\n"
        "    def step(self, action):\n"
        "        raise RuntimeError('the board fell over')\n"
        "gymnasium.register('Game-v0', entry_point='broken_game:Game')\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    changes = ["data.train=null", "data.eval=null", "phases=[rl]", "rl.steps=1", "rl.prompts_per_step=8"]
    run = ("train", tiny_yaml, "--env", "broken_game:Game-v0", *[w for c in changes for w in ("--set", c)], "-o")
    refused(skillttrl(*run, tmp_path / "all"), 3, "the board fell over")


def test_mistakes_with_folders(trained: Path, tiny_yaml: Path, tmp_path: Path) -> None:
    refused(
        skillttrl("train", tiny_yaml, "-o", trained, "--resume", "never"), 4, "already holds a run", "--resume auto"
    )
    other = ("train", tiny_yaml, "-o", trained, "--resume", "auto", "--set", "rl.learning_rate=0.5")
    refused(skillttrl(*other), 4, "belongs to another config: rl.learning_rate 0.001 there, 0.5 here")
    foreign = tmp_path / "photos"
    foreign.mkdir()
    (foreign / "cat.jpg").write_bytes(b"")
    refused(skillttrl("train", tiny_yaml, "-o", foreign), 4, "not a run folder", "cat.jpg")
    assert [entry.name for entry in foreign.iterdir()] == ["cat.jpg"]
    (tmp_path / "file").write_text("")
    refused(skillttrl("train", tiny_yaml, "-o", tmp_path / "file"), 4, "a file has that name")
    for command in (["ask", foreign, "?"], ["export", foreign, "-o", tmp_path / "x"], ["inspect", foreign]):
        refused(skillttrl(*command), 4, "photos")
    (tmp_path / "torn.jsonl").write_text('{"a": 1}\n[1]\n')
    refused(skillttrl("inspect", tmp_path / "torn.jsonl"), 4, "torn.jsonl:2")


def test_a_damaged_checkpoint_is_named_and_the_one_before_is_taken_once_it_is_removed(
    trained: Path, tiny_yaml: Path, tmp_path: Path
) -> None:
    run, name = tmp_path / "run", "model.safetensors"
    shutil.copytree(trained, run)
    file = run / "checkpoints" / "rl-000002" / name
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 0xFF
    file.write_bytes(content)
    settings = ("--set", "run.report_to=tensorboard")
    done = skillttrl("train", tiny_yaml, "-o", run, "--resume", "auto", *settings)
    refused(done, 4, "rl-000002 is damaged", name, f"remove {file.parent}")
    for command in (["ask", run, "?"], ["inspect", file.parent], ["export", run, "-o", tmp_path / "x"]):
        refused(skillttrl(*command), 4, name)
    shutil.rmtree(file.parent)
    done = skillttrl("train", tiny_yaml, "-o", run, *settings)
    assert done.code == 0 and "Continuing from rl-000001" in done.out, done
    for whole in ("checkpoints/rl-000002/model.safetensors", "metrics.jsonl", "evaluations.jsonl", "votes.jsonl"):
        assert (run / whole).read_bytes() == (trained / whole).read_bytes()


def test_debug_shows_the_traceback_wherever_it_stands(tmp_path: Path) -> None:
    """In a process of its own, as a user would."""
    command = [sys.executable, "-m", "skill_ttrl.cli.main", "train", "quikstart", "--debug"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "Traceback" in done.stderr and "Did you mean 'quickstart'" in done.stderr
    refused(skillttrl("train", "quikstart"), 2, "Did you mean 'quickstart'")
    assert not list(tmp_path.iterdir())


def test_a_run_of_another_user_runs_no_code_and_sends_nothing_before_it_is_trusted(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    foreign = tmp_path / "foreign"
    shutil.copytree(trained, foreign)
    text = (foreign / "config.yaml").read_text()
    (foreign / "config.yaml").write_text(text.replace("\n  id: math\n", "\n  id: evilmod:Evil-v0\n"))
    (tmp_path / "evilmod.py").write_text("from pathlib import Path\nPath('imported').touch()\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    commands: list[list[object]] = [
        ["ask", foreign, "Compute 1+1."],
        ["evaluate", foreign],
        ["evaluate", foreign / "checkpoints" / "sft-000012"],
        ["collect", "--env", "math", "--policy", foreign, "-o", "episodes.jsonl"],
        ["export", foreign, "-o", "exported"],
        ["train", foreign, "-o", foreign, "--resume", "auto"],
        ["train", foreign / "config.yaml", "--dry-run"],
        ["rl", "--policy", foreign, "-o", "more"],
        ["doctor", "--config", foreign],
    ]
    for words in commands:
        refused(skillttrl(*words), 4, "import the Python code evilmod:Evil-v0 (env.id)", "--trust", "docs/security.md")
    for words in (["inspect", foreign], ["configs", foreign], ["vote", foreign / "trajectories.jsonl"]):
        assert skillttrl(*words).code == 0
    assert not Path("imported").exists() and "evilmod" not in sys.modules
    refused(skillttrl("ask", foreign, "Compute 1+1.", "--trust"), 3, "registers no environment")
    assert Path("imported").exists()
    assert skillttrl("ask", foreign, "Compute 1+1.", "--set", "env.id=math").code == 0

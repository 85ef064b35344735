"""Every command end to end on a tiny run: what it shows, what it writes, and how it refuses."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from skill_ttrl.cli.main import main
from skill_ttrl.commands.train import run
from skill_ttrl.config import SkillTTRLConfig, load_config
from skill_ttrl.envs.alfworld.games import forget
from skill_ttrl.progress import SilentProgress
from skill_ttrl.runs.folder import MetricsLog, RunFolder
from skill_ttrl.runs.reader import read_run
from skill_ttrl.storage.jsonl import read_jsonl
from skill_ttrl.types import Trajectory, from_json
from tests.preloaded import run_script


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


class Listener(SilentProgress):
    """Notes what was planned, started, shown and measured."""

    def __init__(self) -> None:
        self.planned: dict[str, int] = {}
        self.started: dict[str, int] = {}
        self.episodes: list[str] = []
        self.accuracies: list[float] = []

    def plan(self, phases: Mapping[str, int]) -> None:
        self.planned |= phases

    def start(self, phase: str, total: int, unit: str, done: int = 0) -> None:
        self.started[phase] = total - done

    def rollout(self, episode: str, played: Trajectory) -> None:
        self.episodes.append(episode)

    def measured(self, metrics: Mapping[str, float]) -> None:
        self.accuracies.append(metrics["accuracy"])


def test_a_run_says_first_what_it_will_do_and_shows_a_rollout_of_each_step(tiny_yaml: Path, tmp_path: Path) -> None:
    for steps in (2, 3):  # the second goes on where the first ended
        heard = Listener()
        config = load_config(tiny_yaml, [f"rl.steps={steps}", "rl.eval_steps=1", "rl.lr_scheduler=constant"])
        run(config, tmp_path / "run", resume="auto", progress=heard)
        assert len(heard.accuracies) == 3  # before, in between and after
        del heard.started[f"evaluate step {steps - 1}"]  # time of the steps
        assert heard.planned == heard.started and heard.planned["grpo"] == len(heard.episodes) == (
            2 if steps == 2 else 1
        )


def test_evaluations_reach_the_tracker(trained: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # type: ignore[import-untyped]

    events = EventAccumulator(str(trained / "tracker" / "tensorboard"))
    events.Reload()
    (kept, *_) = read_jsonl(trained / "trajectories.jsonl")
    (text, *_) = events.Tensors("rl/rollout/text_summary")[0].tensor_proto.string_val
    assert text.decode().startswith(f"user\n\n    {kept['steps'][0]['observation']}\n\nassistant\n\n    ")
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
    step = skillttrl("inspect", trained, "--step", 1, "--json").json
    assert "reward" in step["facts"] and len(step["rows"]) == 3
    episode = step["parts"][0]["rows"][0][0]
    assert "turn 1 of 1" in skillttrl("inspect", trained, "--episode", episode).out
    refused(skillttrl("inspect", tiny_yaml), 4, "skillttrl configs")
    refused(skillttrl("compare", "a", "b"), 2, "skillttrl inspect a b")
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


def test_export_writes_rollouts_where_a_format_is_named(trained: Path, tmp_path: Path) -> None:
    for form in ("parquet", "inspect"):
        refused(skillttrl("export", trained, "-o", tmp_path, "--format", form), 4, "exists already")
    table = ("export", trained, "-o", tmp_path / "table", "--format", "parquet")
    refused(skillttrl(*table, "--merge-lora"), 2, "Leave one out")
    refused(skillttrl("export", trained / "checkpoints", *table[2:]), 4, "is not a run folder")
    done = skillttrl(*table, "--json")
    assert json.loads(done.out)["rollouts"] == len(read_jsonl(trained / "trajectories.jsonl")), done
    (left := tmp_path / ".making-left").mkdir()  # by an export that was killed
    assert skillttrl("export", trained, "-o", tmp_path / "policy").code == 0 and not left.exists()


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
    refused(skillttrl("inspect", tmp_path / "torn.jsonl"), 3, "torn.jsonl:2")


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


def test_seeds_are_run_resumed_listed_compared_and_inspected(tiny_yaml: Path, tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "seeds"
    small = ("--set", "sft.steps=1", "--set", "rl.steps=1", "--set", "eval.samples=1")
    command = ("train", tiny_yaml, *small, "--seeds", "0, 1", "-o", folder)
    done = skillttrl(*command, "--json")
    assert done.code == 0, done
    assert done.json["seeds"] == done.json["ended"] == [0, 1] and len(done.json["after"]["avg@1"]["values"]) == 2
    refused(skillttrl(*command, "--resume", "never"), 4, "already holds runs with the seeds 0, 1")
    before = (folder / "seed-0" / "summary.json").stat().st_mtime_ns
    assert skillttrl(*command, "--resume", "auto").code == 0
    assert (folder / "seed-0" / "summary.json").stat().st_mtime_ns == before, "what has ended is left as it is"
    refused(
        skillttrl(*command, "--resume", "auto", "--set", "rl.learning_rate=1"),
        4,
        "rl.learning_rate 0.001 there, 1.0 here",
    )
    refused(skillttrl("train", tiny_yaml, "--seeds", "a", "-o", tmp_path / "x"), 2, "such as 0,1,2")
    refused(skillttrl("train", tiny_yaml, "--seeds", "0", "--seed", "1"), 2, "give one of them")

    listed = skillttrl("inspect", tmp_path / "runs", "--json").json
    assert [(row[1], row[3]) for row in listed["rows"]] == [(0, "yes"), (1, "yes")]
    (folder / "seed-1" / "run.json").write_text("{")
    assert "damaged" in skillttrl("inspect", tmp_path / "runs").out

    (found,) = skillttrl("inspect", folder / "seed-0", folder / "seed-0", "--json").json
    assert found["figures"]["accuracy"]["difference"] == 0
    assert found["figures"]["accuracy"]["interval"][0] < 0 < found["figures"]["accuracy"]["interval"][1]
    seen = skillttrl("inspect", folder)
    assert "seeds: " in seen.out and "avg@1" in seen.out

    steps = skillttrl("inspect", folder / "seed-0" / "metrics.jsonl", "--json").json
    assert {"loss", "reward", "majority_ratio"} <= {row[0] for row in steps["rows"]}
    rows = skillttrl("inspect", folder / "seed-0" / "evaluations.jsonl", "--json").json["rows"]
    assert next(row for row in rows if row[0].startswith("avg@1"))[1].count("[") == 1
    shown = skillttrl("inspect", folder / "seed-0", "--json").json
    assert "[" in shown["rows"][0][1] and "change" in shown["columns"]


HOUSE = '''
import warnings

import gymnasium

from skill_ttrl.envs import TextEnv
from skill_ttrl.types import Task


class House(TextEnv):
    """Take the key, open the door, within five steps. What is read there tries to act on the terminal."""

    def __init__(self, max_steps=5, split="train", broken=False, worn=False):
        super().__init__()
        if worn:
            warnings.warn("a hinge squeaks")
        self.max_steps, self.broken = max_steps, broken

    def tasks(self, split=None):
        return [
            Task(id=f"{part}/{kind}", env_id="House-v0", options={"kind": kind}, split=part, task_type=kind)
            for part in ("train", "test")
            for kind in ("red", "blue")
            if split in (None, part)
        ]

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.played, self.key = 0, False
        told = f"A hall with a {(options or {}).get('kind')} door. [bold]\\x1b[31mRead me\\x1b]0;mine\\x07"
        return told, {**self.info(), "walkthrough": ["take the key", "open the door"]}

    def info(self, won=False):
        commands = ["look", "open the door", "take the key", "take the lamp"]
        return {"admissible_commands": commands, "won": won, "task": "leave", "source": "toys"}

    def step(self, action):
        if self.broken:
            raise RuntimeError("the roof fell in")
        self.played += 1
        won = action == "open the door" and self.key
        self.key |= action == "take the key"
        return f"You did: {action}.", float(won), won, not won and self.played >= self.max_steps, self.info(won)


gymnasium.register("House-v0", House)
'''

PLAY = ("envs", "play", "play_house:House-v0")

COMMAND = [sys.executable, "-m", "skill_ttrl.cli.main", *PLAY]

LIST = "  1 look\n  2 open the door\n  3 take the key\n  4 take the lamp\n"


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("house")
    (folder / "play_house.py").write_text(HOUSE)
    return folder


@pytest.fixture
def here(house: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(house)
    monkeypatch.syspath_prepend(str(house))


def play(*arguments: object, typed: str = "") -> tuple[int, str, str]:
    """Exit code, stdout and stderr of the command, with `typed` on stdin."""
    done = skillttrl(*arguments, stdin=typed.encode())
    return done.code, done.out, done.err


@pytest.mark.usefixtures("here")
def test_a_game_is_played_through_a_pipe() -> None:
    """Numbers, `?`, blank lines; nothing that is shown acts on a terminal, and nothing in it is markup."""
    code, out, err = play(*PLAY, "--task", "test/red", typed="?\n\n3\nopen THE door\n2\nlook\n")
    assert (code, err) == (0, "")
    assert "House-v0: test/red. Steps: at most 5." in out and "[bold]␛[31mRead me␛]0;mine␇\n" in out and LIST in out
    for line in ("[1/5] > take the key\n", "[2/5] > open THE door\n", "[3/5] > open the door\n"):
        assert line in out
    assert out.endswith("Episode ended after 3 steps, won, reward 1.\n")


@pytest.mark.usefixtures("here")
def test_json_is_the_trajectory_alone() -> None:
    code, out, err = play(*PLAY, "--policy", "walkthrough", "--json", "--task", "test/blue")
    played = from_json(Trajectory, out)
    assert code == 0 and out.count("\n") == 1 and played.stop_reason == "terminated" and played.env_return == 1
    assert [step.action for step in played.steps] == ["take the key", "open the door"]
    assert played.steps[1].admissible_actions == ("look", "open the door", "take the key", "take the lamp")
    assert "[2/5] > open the door" in err and "after 2 steps, won" in err


@pytest.mark.usefixtures("here")
def test_a_policy_plays_live(tiny_yaml: Path, tmp_path: Path) -> None:
    small = [
        word for key in ("phases=[rl]", "rl.steps=1", "model.builtin.max_positions=4096") for word in ("--set", key)
    ]
    assert play("train", tiny_yaml, "-o", tmp_path / "run", *small)[0] == 0
    room = ["--set", "data.max_prompt_tokens=4000", "--set", "rollout.max_new_tokens=3"]
    policy = ["--policy", tmp_path / "run", "--task", "test/red", *room]
    code, out, err = play(*PLAY, *policy, "--json")
    played = from_json(Trajectory, out)
    assert code == 0 and len(played.steps) == 5 and played.stop_reason == "truncated"
    assert all(step.completion is not None for step in played.steps) and err.count("[5/5] > ") == 1
    code, out, _ = play(*PLAY, *policy, "--set", "agent.max_turns=2")
    assert code == 0 and "left after 2 steps" in out and "[3/5]" not in out
    code, out, _ = play(
        *PLAY, *policy, "--json", "--set", "agent.structured_actions=true", "--set", "rollout.max_new_tokens=60"
    )
    played = from_json(Trajectory, out)
    assert code == 0 and played.steps and all(step.action in step.admissible_actions for step in played.steps)


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (["--task", "red"], 3, "2 tasks have 'red' in the id. Such as: train/red, test/red."),
        (["--env-data", "x"], 3, "has no argument 'data'"),
        (["--policy", "exprt"], 2, "Did you mean 'expert'?"),
        (["--policy", "./nowhere"], 5, "There is no folder nowhere"),
        (["--set", "rl.steps=3"], 2, "--set rl.steps=3 has no effect"),
        (
            ["--set", "env.kwargs.broken=true", "--policy", "random"],
            3,
            "failed before the first step: RuntimeError: the",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_mistakes_are_one_message(options: list[str], code: int, words: str) -> None:
    found, _, err = play(*PLAY, *options, typed="look\n")
    assert found == code and words in err and "Traceback" not in err and err.count("\n") == 1, err


@pytest.mark.slow
def test_what_is_typed_need_not_be_text(house: Path) -> None:
    """Bytes that are no UTF-8."""
    options: Any = {"cwd": house, "capture_output": True, "timeout": 60}
    done = subprocess.run([*COMMAND, "--json"], input=b"\xff\xfe\nlook\n", **options)
    assert [step.action for step in from_json(Trajectory, done.stdout).steps] == ["\ufffd\ufffd", "look"]


@pytest.mark.slow
def test_an_official_game_is_watched_and_its_expert_plays_the_example(
    official_games: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALFWORLD_DATA", str(official_games))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    forget()  # as in a process of its own: what an earlier test has read would be in memory
    game = "valid_unseen/pick_cool_then_place_in_recep-Potato-None-Microwave-10/trial_T20190907_033228_194678"
    code, out, err = play("envs", "play", "alfworld", "--task", game, "--policy", "walkthrough")
    assert code == 0 and "cool some potato and put it in microwave." in out, err
    assert out.endswith("You move the potato 2 to the microwave 1.\nEpisode ended after 7 steps, won, reward 1.\n")
    read = {path.name.partition("-")[0] for path in (tmp_path / "skill-ttrl" / "alfworld" / "index").glob("*.json")}
    assert read == {"valid_unseen"}  # thousands of training games are not read for it
    code, out, _ = play("envs", "play", "alfworld", "--split", "valid_unseen", "--seed", 1, typed="look\n")
    assert code == 0 and "[1/50] > look" in out and "left after 1 step, not won, reward 0." in out
    done = run_script(Path(__file__).parents[2] / "examples" / "play_alfworld.py", game)
    assert done.returncode == 0 and f"alfworld-official: {game}" in done.stdout and "\nwon after " in done.stdout, done


def test_a_metric_that_is_not_registered_fails_the_test_that_logs_it(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path / "run", SkillTTRLConfig(name="t")) as folder:
        log = MetricsLog(folder)
        log.log("rl", 0, {"reward": 0.5})
        log.time("rl", 0, {"seconds": 1.0})
        log.track("evaluate", {"accuracy": 0.5}, 1)
        for write in (log.log, log.time):
            with pytest.raises(AssertionError, match=r"skill_ttrl/metrics.toml does not have made_up \(phase rl\)"):
                write("rl", 1, {"reward": 0.5, "made_up": 1.0})
        with pytest.raises(AssertionError, match="made_up"):
            log.track("evaluate", {"made_up": 1.0}, 1)

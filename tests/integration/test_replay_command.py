"""`skillttrl replay` on a real small run: nothing differs, and each thing that somebody changed since is found and named."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from skill_ttrl.commands import train
from skill_ttrl.commands.replay import Replayer
from skill_ttrl.config import load_config
from skill_ttrl.envs.math.env import MathEnv
from skill_ttrl.envs.mcp import McpClient
from skill_ttrl.storage.jsonl import read_jsonl
from tests.integration.test_cli_commands import refused, skillttrl
from tests.integration.test_imitation import KIOSK_RUN


@pytest.fixture(scope="module")
def run(tiny_yaml: Path, answering: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    given = [
        "phases=[rl]",
        f"model.path={answering}",
        "rl.reward=majority",
        "eval.samples=1",
        "rollout.temperature=1.3",
    ]
    done = skillttrl("train", tiny_yaml, "-o", folder, *(word for each in given for word in ("--set", each)))
    assert done.code == 0, done
    return folder


@pytest.fixture
def copy(run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(run, tmp_path / "copy"))


def edit(file: Path, change: Callable[[dict[str, Any]], None], line: int = 0) -> dict[str, Any]:
    """Change one line of a JSONL file; gives it as it was."""
    lines = file.read_text().splitlines()
    was, changed = json.loads(lines[line]), json.loads(lines[line])
    change(changed)
    file.write_text("\n".join([*lines[:line], json.dumps(changed), *lines[line + 1 :]]) + "\n")
    return dict(was)


def episode(line: dict[str, Any]) -> str:
    return f"{line['phase']}:{line['step']}:{line['task']['id']}:{line['sample']}"


def test_a_fresh_run_replays_without_a_difference_and_is_not_written(run: Path) -> None:
    def content() -> dict[str, bytes]:
        return {str(file): file.read_bytes() for file in run.rglob("*") if file.is_file()}

    before = content()
    done = skillttrl("replay", run, "--all", "--tokens", "--json")
    assert done.code == 0, done
    found = done.json
    assert (found["replayed"], found["different"], found["differences"]) == (24, {}, [])
    assert found["scored"] > 100 and 0 < found["largest"] < 1e-5
    assert (found["changed"], found["notes"]) == ([], [])
    assert content() == before
    assert "Replayed 12 rollouts, 12 turns: no difference." in skillttrl("replay", run, "--step", 1).out


@pytest.mark.parametrize(
    ("name", "key", "value", "what"),
    [
        ("trajectories.jsonl", "reward", 7.0, "reward of the group"),
        ("trajectories.jsonl", "original_score", 0.5, "label"),
        ("trajectories.jsonl", "answer", "12345", "answer"),
        ("votes.jsonl", "answer", "12345", "vote"),
    ],
)
def test_an_edited_record_is_found(copy: Path, name: str, key: str, value: Any, what: str) -> None:
    edit(copy / name, lambda line: line.update({key: value}))
    done = skillttrl("replay", copy, "--step", 0, "--json")
    assert done.code == 3 and what in done.json["different"]
    (first, *_) = done.json["differences"]
    assert (first["what"], first["recorded"]) == (what, str(value))


def test_a_changed_environment_and_grader_are_found(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = json.loads((run / "trajectories.jsonl").read_text().splitlines()[0])
    step = MathEnv.step

    def changed(env: MathEnv, action: str) -> Any:
        seen, reward, *ends, info = step(env, action)
        return seen, reward + 1.0, *ends, info

    monkeypatch.setattr(MathEnv, "step", changed)
    done = skillttrl("replay", run, "--episode", episode(line))
    assert done.code == 3
    assert done.out.splitlines()[:3] == [
        f"{episode(line)}: turn 1, reward differs",
        "  recorded: 0.0",
        "  now:      1.0",
    ]

    def regraded(env: MathEnv, action: str) -> Any:
        *most, info = step(env, action)
        return *most, {**info, "answer": "\x1b[31m17"}

    monkeypatch.setattr(MathEnv, "step", regraded)
    done = skillttrl("replay", run, "--episode", episode(line))
    assert "info['answer'] differs" in done.out and "\x1b" not in done.out


def test_changed_weights_are_found_at_a_token(copy: Path) -> None:
    file = copy / "checkpoints" / "rl-000001" / "model.safetensors"
    weights = load_file(file)
    name = next(each for each in weights if "down_proj" in each)
    weights[name] = weights[name] + 0.01
    save_file(weights, file, metadata={"format": "pt"})
    assert skillttrl("replay", copy, "--step", 0, "--tokens").code == 0
    done = skillttrl("replay", copy, "--step", 1, "--tokens", "--json")
    assert done.code == 3 and done.json["different"] == {"log-prob": done.json["replayed"]}
    (first, *_) = done.json["differences"]
    assert first["what"].startswith("log-prob of token 1 (") and first["turn"] == 1
    assert abs(float(first["recorded"]) - float(first["now"])) > 1e-4
    assert done.json["largest"] > 1e-4 and "model.safetensors has changed" in done.json["notes"][0]


def test_a_changed_prompt_and_changed_libraries_are_found(copy: Path) -> None:
    config = copy / "config.yaml"
    config.write_text(config.read_text().replace("template: plain", "template: boxed"))
    made = json.loads((copy / "run.json").read_text())
    made["libraries"]["torch"] = "1.0"
    (copy / "run.json").write_text(json.dumps(made))
    assert skillttrl("replay", copy, "--step", 0).code == 0  # prompts are built with --tokens alone
    done = skillttrl("replay", copy, "--step", 0, "--tokens")
    assert done.code == 3 and "turn 1, prompt differs" in done.out
    assert "Changed since the run: torch 1.0, now " in done.out
    assert 'config.yaml: agent.template "plain" there, "boxed" here' in done.out
    assert "config.yaml is not that of the newest checkpoint: agent.template" in skillttrl("inspect", copy).out


def test_prompts_with_a_bank_are_built_again_by_its_version(tiny_skills_yaml: Path, tmp_path: Path) -> None:
    given = [*("rl.steps=1", "eval.samples=1", "data.eval.limit=1"), "skills.prompt_max_tokens=40", "sft.steps=4"]
    run = tmp_path / "run"
    done = skillttrl("train", tiny_skills_yaml, "-o", run, *(word for each in given for word in ("--set", each)))
    assert done.code == 0, done
    assert skillttrl("replay", run, "--all", "--tokens", "--json").json["different"] == {}
    edit(run / "trajectories.jsonl", lambda line: line.update(skills_in_prompt=["of-nobody"]))
    done = skillttrl("replay", run, "--all")
    assert done.code == 3 and "skills_in_prompt differs\n  recorded: of-nobody\n  now:      not in version" in done.out


def test_what_cannot_be_replayed_is_refused(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = edit(copy / "trajectories.jsonl", lambda _: None, line=-1 + 24)
    name = episode(line)
    refused(skillttrl("replay", copy, "--episode", f"{name}9"), 2, "Did you mean", name)
    refused(skillttrl("replay", copy, "--step", 9), 2, "no rollouts of step 9")
    measured = episode(edit(copy / "eval_trajectories.jsonl", lambda _: None))
    refused(skillttrl("replay", copy, "--episode", measured), 2, "belongs to an evaluation")
    refused(skillttrl("replay", copy), 2, "--episode ID, --step N or --all")
    shutil.rmtree(copy / "checkpoints" / "rl-000001")
    refused(
        skillttrl("replay", copy, "--episode", name, "--tokens"),
        4,
        "No checkpoint is kept of 1 updates",
        "--episode rl:0:",
    )
    with monkeypatch.context() as patched:
        full = RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 99 bytes.")
        patched.setattr(Replayer, "_score", lambda *_: (_ for _ in ()).throw(full))
        refused(skillttrl("replay", copy, "--step", 0, "--tokens"), 5, "Out of memory (rl:0:", "99 bytes")
    partly = skillttrl("replay", copy, "--all", "--tokens")
    assert partly.code == 0 and "No checkpoint is kept of 1 updates" in partly.out
    edit(copy / "votes.jsonl", lambda vote: vote.update(labels=["of", "others"]))
    assert skillttrl("replay", copy, "--step", 0).code == 0
    edit(copy / "trajectories.jsonl", lambda rollout: rollout["steps"][0]["completion"]["token_ids"].append(10**9))
    edit(copy / "trajectories.jsonl", lambda rollout: rollout["steps"][0]["completion"]["logprobs"].append(-1.0))
    refused(skillttrl("replay", copy, "--step", 0, "--tokens"), 3, "do not fit")


def test_tokens_of_limited_choices_are_scored_among_these(tmp_path: Path) -> None:
    """Words of slots among these; their sets stand in the file."""
    run = tmp_path / "run"
    rl = {**KIOSK_RUN["rl"], "save_steps": 1}
    train.run(load_config({**KIOSK_RUN, "phases": ["collect", "rl"], "rl": rl}), run)
    found = skillttrl("replay", run, "--all", "--tokens", "--json").json
    steps = [step for row in read_jsonl(run / "trajectories.jsonl") for step in row["steps"]]
    sampled = sum(len(step["completion"]["token_ids"]) for step in steps)
    assert (found["different"], found["notes"], found["scored"]) == ({}, [], sampled)
    assert 0 < found["largest"] < 1e-5 and any(step["action"].startswith("search") for step in steps)
    edit(run / "trajectories.jsonl", lambda line: line["steps"][0]["completion"]["logprobs"].__setitem__(0, -9.0))
    done = skillttrl("replay", run, "--all", "--tokens", "--json")
    assert done.code == 3 and done.json["different"] == {"log-prob": 1}
    edit(run / "trajectories.jsonl", lambda line: line["steps"][0]["admissible_actions"].append("click[me]"))
    done = skillttrl("replay", run, "--all", "--tokens", "--json")
    assert done.json["different"] == {"admissible_actions": 1} and done.json["scored"] == sampled


@pytest.mark.slow
def test_no_mcp_server_is_started_and_what_its_tools_answered_is_as_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mcp")
    run = tmp_path / "run"
    server = Path(__file__).parents[1] / "mcp_server.py"
    given = [
        "sft.steps=100", "sft.batch_size=32", "sft.learning_rate=1e-2", "sft.data.options.noise=0.0", "eval.samples=1",
        "rl.steps=1", "rl.prompts_per_step=1", "rl.mini_batch_size=null", "model.builtin.layers=1", "runtime.threads=1",
        "rollout.n_votes_per_prompt=4", "rollout.n_samples_per_prompt=4", "data.eval.limit=1", "eval.greedy=false",
        f"agent.tools=[{{mcp: [{sys.executable}, {server}]}}]",
    ]  # fmt: skip
    done = skillttrl("train", "quickstart_tools", "-o", run, *(word for each in given for word in ("--set", each)))
    assert done.code == 0, done

    monkeypatch.setattr(McpClient, "__init__", lambda *_: pytest.fail("an MCP server was started"))
    rows = read_jsonl(run / "trajectories.jsonl")
    calls = [[call for step in row["steps"] for call in step.get("calls", [])] for row in rows]
    at = next(number for number, made in enumerate(calls) if made and made[0]["name"] == "calculator")
    assert calls[at][0]["result"].startswith("1: ")  # which no calculator but the server's says
    done = skillttrl("replay", run, "--all", "--tokens", "--json")
    assert (done.code, done.json["different"]) == (0, {}) and done.json["scored"] > 50
    note = "No MCP server was called: the results of its tools are the recorded ones."
    assert done.json["notes"] == [f"{note} Prompts that list its tools were not compared."]
    assert skillttrl("replay", run, "--all").out.splitlines()[-1] == note
    # The prompt with the result in it is compared, and so is the observation.
    edit(run / "trajectories.jsonl", lambda line: line["steps"][1]["prompt_ids"].append(1), at)
    done = skillttrl("replay", run, "--all", "--tokens", "--json")
    assert done.code == 3 and done.json["differences"][0]["what"] == "prompt"
    edit(run / "trajectories.jsonl", lambda line: line["steps"][0]["calls"][0].update(result="1: other"), at)
    done = skillttrl("replay", run, "--all", "--json")
    assert done.code == 3 and done.json["differences"][0]["what"] == "observation"

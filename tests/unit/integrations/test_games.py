"""Our games inside verifiers and OpenEnv: the same texts, steps and rewards as in our own player."""

# mypy: ignore-errors
from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from skill_ttrl.agents.scripted import make_scripted_agent
from skill_ttrl.envs import env_tasks, make_env, resolve_env
from skill_ttrl.envs.lookup import split_argument
from skill_ttrl.rollout.rollout import run_scripted_episode


def played(name: str, agent: str, count: int, split: str) -> list:
    """Episodes of our own player."""
    env = make_env(name, **split_argument(name, split))
    script = make_scripted_agent(agent, resolve_env(name))
    return [run_scripted_episode(env, task, script, seed=0) for task in env_tasks(name, {}, split, count)]


class Scripted(BaseHTTPRequestHandler):
    """A chat API that gives the answers of a list, one a turn; the conversation is found by a text in its first message."""

    protocol_version = "HTTP/1.1"
    answers: ClassVar[dict] = {}

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["messages"]
        (script,) = [answers for text, answers in self.answers.items() if text in asked[0]["content"]]
        said = sum(each["role"] == "assistant" for each in asked)
        message = {"role": "assistant", "content": script[said] if isinstance(script, list) else next(script)}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        reply = {"id": "x", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice]}
        body = json.dumps(reply).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def api():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Scripted)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()
    server.server_close()


@pytest.fixture
def evaluate(api: str, tmp_path: Path):
    """verifiers' own evaluation, as `vf-eval` runs it."""
    pytest.importorskip("verifiers.v1", reason="needs the extra verifiers, in an environment of its own")
    from verifiers.v1.cli.eval.main import main

    def run(*arguments: str) -> list[dict]:
        main(["skill-ttrl-verifiers", "--client.base-url", api, "--client.api-key-var", "HOME", "-m", "m", "--no-push", "--no-rich",
              "-o", str(tmp_path), "--run.name", "it", *arguments])  # fmt: skip
        lines = (tmp_path / "it" / "traces.jsonl").read_text().splitlines()
        return [trace for line in lines for trace in json.loads(line)["traces"]]

    return run


@pytest.mark.parametrize(
    ("name", "split", "agent"), [("alfworld", "valid_unseen", "expert"), ("webshop", "test", "rule")]
)
def test_verifiers_plays_ten_games_as_ours(evaluate, name: str, split: str, agent: str) -> None:
    ours = played(name, agent, 10, split)
    Scripted.answers = {
        each.steps[0].observation: [f"<action>{step.action}</action>" for step in each.steps] for each in ours
    }
    assert len(Scripted.answers) == 10
    theirs = evaluate("--env.taskset.env", name, "--env.taskset.split", split, "--env.taskset.num", "10")
    by_task = {trace["task"]["data"]["name"]: trace for trace in theirs}
    assert len(theirs) == len(by_task) == 10 and all(trace["ok"] for trace in theirs)
    for each in ours:
        trace = by_task[each.task.id]
        said = [node["message"]["content"] for node in trace["nodes"] if node["message"]["role"] == "user"]
        assert len(said) == len(each.steps)
        assert all(step.observation in text for step, text in zip(each.steps, said, strict=True))
        assert trace["rewards"]["env"]["score"] == each.env_return and trace["metrics"]["won"] == each.success
        assert trace["metrics"].get("score") == each.steps[-1].info.get("score")


def test_verifiers_rewards_math_by_labels_or_votes(api: str, evaluate) -> None:
    vf = pytest.importorskip("verifiers.v1")
    from skill_ttrl.integrations.verifiers import load_environment

    async def play(env) -> list:
        client = vf.EvalClientConfig(base_url=api, api_key_var="HOME")
        async with env.serving():
            return (await env.run_episode(next(iter(env.taskset)), vf.ModelContext(model="m", client=client))).traces

    (task,) = env_tasks("math", {}, "test", 1)
    right, wrong = f"It is \\boxed{{{task.ground_truth}}}.", "\\boxed{-1}"
    for votes, answers, rewards in ((1, [right], [1.0]), (3, [wrong, right, wrong], [0.0, 1.0, 1.0])):
        Scripted.answers = {task.options["question"]: iter(answers)}
        traces = asyncio.run(play(load_environment("math", split="test", num=1, votes=votes)))
        assert sorted(trace.reward for trace in traces) == rewards
    assert sorted(trace.metrics["env_reward"] for trace in traces) == [0.0, 0.0, 1.0]


@pytest.mark.parametrize(
    ("name", "agent", "split"),
    [("alfworld", "expert", "valid_seen"), ("webshop", "rule", "dev"), ("math", "constant:1", "test")],
)
def test_a_client_of_openenv_plays_as_ours(name: str, agent: str, split: str) -> None:
    core = pytest.importorskip("openenv.core", reason="needs the extra openenv")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "skill_ttrl.integrations.openenv", name, "--split", split, "--port", str(port)]
    server = subprocess.Popen(command)
    try:
        for _ in range(2400):
            with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                break
            assert server.poll() is None
            time.sleep(0.1)
        with core.GenericEnvClient(base_url=f"http://127.0.0.1:{port}").sync() as client:
            for each in played(name, agent, 5, split):
                seen = client.reset(task=each.task.id)
                for step in each.steps:
                    assert seen.observation["text"] == step.observation and not seen.done
                    assert step.action in seen.observation["actions"] or name != "alfworld"
                    seen = client.step({"text": step.action})
                    assert seen.reward == step.reward
                assert seen.done and seen.observation["won"] == each.won
            assert client.reset(seed=3).observation["task"] == client.reset(seed=3).observation["task"]
    finally:
        server.terminate()
        server.wait(30)

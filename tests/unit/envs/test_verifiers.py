"""`verifiers:NAME`: a taskset of one's own and one that comes with verifiers; an episode equals one of the package's own rollouts."""

# mypy: ignore-errors
from __future__ import annotations

import asyncio
import json
import random
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from skill_ttrl.envs import check_text_env, env_tasks, make_env
from skill_ttrl.errors import EnvError, TrustError
from skill_ttrl.trust import check_trusted

vf = pytest.importorskip("verifiers.v1", reason="needs the extra verifiers, in an environment of its own")
TASKSET = """
import verifiers.v1 as vf

class Data(vf.TaskData):
    answer: str

class Sum(vf.Task[Data]):
    @vf.reward(weight=0.75)
    async def right(self, trace) -> float:
        return float(trace.last_reply.endswith(self.data.answer))

    @vf.reward(weight=0.25)
    async def short(self, trace, runtime) -> float:
        return float(len(trace.last_reply) < 9)

    @vf.metric
    async def turns(self, trace) -> float:
        return float(trace.num_turns)

    @vf.stop
    async def gave_up(self, trace: vf.Trace) -> bool:
        return trace.num_turns > 0 and trace.last_reply == "pass"

class SumConfig(vf.TasksetConfig):
    most: int = 20

class Sums(vf.Taskset[Sum, SumConfig]):
    def load(self):
        for n in range(self.config.most):
            yield Sum(Data(prompt=f"{n} + {n}?", system_prompt="Add.", answer=str(2 * n)), self.config.task)

__all__ = ["Sums"]
"""
TALK = """
from sums import Sums

class TalkConfig(vf.EnvConfig):
    player: vf.AgentConfig = vf.AgentConfig()

class Talk(vf.Env[TalkConfig]):
    async def run(self, task, agents):
        async with agents.player.interaction(task) as talk:
            segment = await talk.turn()
            while not segment.terminated and "sure" not in segment.last_reply:
                segment = await talk.turn("Sure? <|im_start|>")
        talk.trace.record_reward("kept", float("sure" in talk.trace.last_reply), 2.0)

__all__ = ["Sums", "Talk"]
"""


@pytest.fixture
def sums(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sums.py").write_text(TASKSET)
    (tmp_path / "talk_sums.py").write_text("import verifiers.v1 as vf\n" + TALK)
    monkeypatch.syspath_prepend(tmp_path)


class Model(BaseHTTPRequestHandler):
    """A model server whose answers are given in advance."""

    answers: list[str]

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        text = self.answers[sum(each["role"] == "assistant" for each in asked["messages"])]
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        for delta, end in (({"role": "assistant", "content": text}, None), ({}, "stop")):
            chunk = {"id": "x", "object": "chat.completion.chunk", "created": 0, "model": "m"}
            chunk["choices"] = [{"index": 0, "delta": delta, "finish_reason": end}]
            self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())
        self.wfile.write(b"data: [DONE]\n\n")

    def log_message(self, *_: object) -> None:
        pass


def own_rollout(name: str, seat: str, place: int, answers: list[str]) -> tuple[list[str], dict[str, float], float]:
    """What verifiers' own harness makes of these answers: the texts before them, the metrics, the reward."""
    handler = type("Scripted", (Model,), {"answers": [*answers]})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    agent = {"harness": {"id": "null"}, "runtime": {"type": "subprocess"}}
    config = vf.resolve_env_config({"taskset": {"id": name}, seat: agent, "interception": {"type": "server"}})
    env = vf.load_environment(config)
    client = vf.EvalClientConfig(base_url=f"http://127.0.0.1:{server.server_port}/v1", api_key_var="HOME")

    async def play() -> vf.Episode:
        async with env.serving():
            return await env.run_episode([*env.taskset.take(20)][place], vf.ModelContext(model="m", client=client))

    episode = asyncio.run(play())
    server.shutdown()
    assert episode.ok, (episode.errors, episode.traces and episode.traces[0].errors)
    (trace,) = episode.traces
    return [m.content for m in trace.messages if m.role != "assistant"], trace.metrics, trace.reward


@pytest.mark.parametrize(
    ("name", "seat", "answers"),
    [
        ("sums", "agent", ["14"]),
        ("sums", "agent", ["I do not know"]),
        ("talk_sums", "player", ["14", "sure: 14"]),
        ("talk_sums", "player", ["pass"]),
    ],
)
def test_an_episode_is_that_of_the_packages_own_harness(sums: None, name: str, seat: str, answers: list[str]) -> None:
    env = make_env(f"verifiers:{name}")
    shown, total = [env.reset(options={"index": 7})[0]], 0.0
    for answer in answers:
        observation, reward, terminated, _, info = env.step(answer)
        shown, total = [*shown, observation], total + reward
    texts, metrics, theirs = own_rollout(name, seat, 7, answers)
    assert terminated and total == theirs and info["metric_turns"] == metrics["turns"] == len(answers)
    assert "\n\n".join(shown[:-1]).replace("&lt;|im", "<|im") == "\n\n".join(texts)
    assert info["won"] == (total >= 1)
    env.close()


def test_splits_do_not_overlap_and_what_is_not_played_is_refused(
    sums: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_text_env(make_env("verifiers:sums"))
    parts = [{task.id for task in env_tasks("verifiers:sums", {}, split)} for split in ("train", "validation", "test")]
    assert [*map(len, parts)] == [16, 2, 2] and len(set.union(*parts)) == 20
    assert len(env_tasks("verifiers:sums", {"taskset": {"most": 5}}, "train")) == 5
    for name, kwargs, message in (
        ("nosuch", {}, "not found"),
        ("sums", {"taskset": {"task": {"rewards": {"x": {"fn": "os.system"}}}}}, "import code"),
        ("sums", {"taskset": {"mots": 1}}, "mots"),
    ):
        with pytest.raises(EnvError, match=message):
            make_env(f"verifiers:{name}", **kwargs)
    monkeypatch.setattr("skill_ttrl.trust._refused", {})
    file = tmp_path / "config.yaml"
    check_trusted(file, "", {"env": {"id": "verifiers:sums"}}, shown=True)
    with pytest.raises(TrustError, match=r"config.yaml names the Python module verifiers"):
        make_env("verifiers:sums")


def test_a_taskset_that_comes_with_verifiers() -> None:
    from tests.unit.envs.test_openenv import Guess, Hint, Number, serve

    for url in serve(Number, Guess, Hint):
        env = make_env("verifiers:openenv", taskset={"base_url": url, "resets": [{"seed": 5}] * 3})
        shown, _ = env.reset(options={"index": 0})
        assert json.loads(shown)["observation"]["text"].startswith("Guess a number.")
        said, reward, *_ = env.step('{"number": 200}')
        assert "higher or lower" in json.loads(said)["observation"]["text"] and not reward
        right = random.Random(5).randrange(100)
        assert env.step(json.dumps({"number": right}))[1:3] == (1.0, True)
        env.close()

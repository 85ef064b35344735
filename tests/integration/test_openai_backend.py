"""A policy behind an address, as its user meets it: evaluated, voted on, asked, bounded, and what its failures become."""

from __future__ import annotations

import json
import random
import re
import signal
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from skill_ttrl.agents.action_parser import project
from skill_ttrl.agents.agent import Agent, PromptFormatter
from skill_ttrl.agents.turn_prompt import TurnPromptBuilder
from skill_ttrl.commands import train
from skill_ttrl.compat.trainer import RolloutEngine
from skill_ttrl.config import EndpointsConfig, load_config
from skill_ttrl.envs.alfworld.env import ALFWorldEnv
from skill_ttrl.envs.alfworld.games import forget
from skill_ttrl.errors import BudgetError, ConfigError, EndpointError
from skill_ttrl.llm.backend import Backend, BackendContext, Request, Sampling, wait_for
from skill_ttrl.llm.backends import make_backend
from skill_ttrl.llm.openai.ledger import Ledger, track_usage
from skill_ttrl.llm.pauses import InsertionPoint, generate_with_insertions
from skill_ttrl.prompts.templates import Templates
from skill_ttrl.rollout.episode import EnvPool
from skill_ttrl.rollout.rollout import RolloutSettings, rollout
from skill_ttrl.runs.checkpoint import verify
from skill_ttrl.skills.embedders import make_embedder
from skill_ttrl.storage.jsonl import read_jsonl
from skill_ttrl.types import Completion, Group, Message
from tests.alfworld_kitchen import walks, write_game
from tests.faulty_server import FaultyServer, at, requests_in, vector_of
from tests.integration.test_cli_commands import refused, skillttrl
from tests.integration.test_evaluate_command import problems
from tests.preloaded import run_code


def adds(body: Mapping[str, Any], draw: random.Random) -> str:
    """The right sum, whatever is drawn."""
    found = re.findall(r"(\d+)\+(\d+)", json.dumps(body.get("messages") or body.get("prompt")))
    return f"<answer>{int(found[-1][0]) + int(found[-1][1])}</answer>" if found else "What?"


def sometimes_adds(body: Mapping[str, Any], draw: random.Random) -> str:
    return adds(body, draw) if draw.random() < 0.6 else "<answer>1</answer>"


def backend(server: FaultyServer, *overrides: str) -> Backend:
    settings = ["endpoints.model=m", f"endpoints.base_url={server.url}"]
    config = load_config({}, ["rollout.backend=openai", *settings, *overrides])

    def load() -> Any:
        raise AssertionError("a model was loaded")

    return make_backend(BackendContext(config, load))


def complete(server: FaultyServer, request: Request, *overrides: str, **sampling: Any) -> tuple[Completion, ...]:
    made = backend(server, *overrides)
    try:
        (found,) = wait_for(made.generate([request], Sampling(max_new_tokens=50, **sampling), seed=1))
        return found.completions
    finally:
        made.close()


@pytest.fixture
def sums(tmp_path: Path) -> Path:
    return problems(tmp_path / "sums.jsonl", "12+34", "5+6", "70+1", "8+8")


def test_a_model_behind_an_address_is_evaluated_without_one_of_ones_own(sums: Path, tmp_path: Path) -> None:
    out = tmp_path / "kept"
    with FaultyServer(answer=adds, slow=0.2, seed=5) as server:
        command = ["evaluate", "openai:tiny", "--data", sums, "-o", out, "--json", *at(server, "eval.samples=8")]
        done = skillttrl(*command)
        assert done.code == 0, done
        asked = len(server.asked)
        again = skillttrl(*command)  # everything is saved: nobody is asked
        assert len(server.asked) == asked and again.json == done.json
    found = done.json
    assert found["label"] == "tiny" and found["problems"] == 4 and found["transductive"] is None
    assert found["majority"] == 1.0 and found["accuracy"] > 0.8
    assert "API usage" in done.err
    lines = requests_in(out / "usage.jsonl")
    assert {line["phase"] for line in lines} == {"evaluate"} and {line["role"] for line in lines} == {"policy"}
    assert sum(line["tokens_in"] for line in lines) == server.delivered["prompt"]
    assert "LLM calls" in skillttrl("inspect", out).out


def calls_first(body: Mapping[str, Any], draw: random.Random) -> Any:
    """A call that is right and one that is no JSON; then the first result."""
    last = body["messages"][-1]
    if last["role"] == "tool":
        return f"<answer>{body['messages'][-2]['content']}</answer>"
    given = json.dumps({"expression": re.findall(r"[0-9+]{3,}", last["content"])[-1]}), "{oops"
    functions = [{"name": "calculator", "arguments": each} for each in given]
    calls = [{"id": f"c-{place}", "type": "function", "function": each} for place, each in enumerate(functions)]
    return {"content": None, "tool_calls": calls}


def test_a_model_behind_an_address_calls_tools(sums: Path) -> None:
    chosen = "agent.tools=[calculator]", "agent.max_turns=2", "eval.samples=2", "eval.greedy=false"
    with FaultyServer([], answer=calls_first) as server:
        done = skillttrl("evaluate", "openai:tiny", "--data", sums, "--json", *at(server, *chosen))
        assert done.code == 0 and done.json["accuracy"] == 1.0, done
        bodies = [each["body"] for each in server.asked]
    assert all(body["tools"][0]["function"]["name"] == "calculator" for body in bodies)
    said = next(body["messages"] for body in bodies if len(body["messages"]) > 1)
    assert [each["role"] for each in said] == ["user", "assistant", "tool", "tool"]
    assert (
        [each["id"] for each in said[1]["tool_calls"]] == [each["tool_call_id"] for each in said[2:]] == ["c-0", "c-1"]
    )
    assert said[3]["content"] == "Error: the call is not JSON."
    with FaultyServer([], answer=calls_first) as server:
        refused(
            skillttrl("evaluate", "openai:tiny", "--data", sums, *at(server)), 6, "called a tool, but none is offered"
        )


def test_what_failed_for_good_is_a_failed_try_with_its_reason(sums: Path, tmp_path: Path) -> None:
    out = tmp_path / "kept"
    with FaultyServer([], answer=adds) as server:
        server.refuse_about = "5+6"
        done = skillttrl("evaluate", "openai:tiny", "--data", sums, "-o", out, "--json", *at(server, "eval.samples=4"))
    assert done.code == 0, done
    assert done.json["failed"] == 0.25 and done.json["accuracy"] == 0.75
    rows = read_jsonl(out / "samples.jsonl")
    errors = {sample["error"] for row in rows for sample in row["samples"] if sample["error"]}
    assert len(errors) == 1 and "refused the request (400)" in errors.pop()
    assert all(sample["text"] == "" for row in rows for sample in row["samples"] if sample["error"])


def test_a_server_that_refuses_everything_ends_it_at_once(sums: Path) -> None:
    with FaultyServer(first=[(401, {}, {"error": {"message": "no"}})] * 99) as server:
        done = skillttrl("evaluate", "openai:tiny", "--data", sums, *at(server))
        assert len(server.asked) <= 8  # those that were on their way
    refused(done, 6, "tiny")


def test_a_spent_budget_keeps_what_was_drawn_and_a_larger_one_goes_on(sums: Path, tmp_path: Path) -> None:
    def evaluate(server: FaultyServer, out: Path, *more: str) -> Any:
        chosen = at(server, "eval.samples=4", "eval.greedy=false", *more)
        return skillttrl("evaluate", "openai:tiny", "--data", sums, "-o", out, "--batch-size", 1, "--json", *chosen)

    with FaultyServer([], answer=adds) as server:
        whole = evaluate(server, tmp_path / "whole")
        stopped = evaluate(server, tmp_path / "kept", "endpoints.max_requests=2")
        refused(stopped, 7, "endpoints.max_requests=2", "lines of samples")
        drawn = (tmp_path / "kept" / "samples.jsonl").read_text().splitlines()
        assert 0 < len(drawn) < 4
        asked = len(server.asked)
        still = evaluate(server, tmp_path / "kept", "endpoints.max_requests=2")
        assert still.code == 7 and len(server.asked) == asked  # what is spent is spent
        done = evaluate(server, tmp_path / "kept", "endpoints.max_requests=1000")
    assert done.code == 0 and done.json == whole.json
    assert (tmp_path / "kept" / "samples.jsonl").read_text().splitlines()[: len(drawn)] == drawn


def test_a_model_behind_an_address_is_voted_on_and_confidence_has_them_where_the_server_gives_some(sums: Path) -> None:
    with FaultyServer(["429", "drop in the answer"], answer=sometimes_adds, seed=2) as server:
        command = ["vote", "--policy", "openai:m", "--data", sums, "-n", 4, "--strategies", "confidence", "--json"]
        told = skillttrl(*command, *at(server, "endpoints.logprobs=true")).json["strategies"][1]
        blind = skillttrl(*command, *at(server)).json["strategies"][1]
    assert told["strategy"] == blind["strategy"] == "confidence"
    assert told["requires"] is None and "log-probabilities" in blind["requires"]


def test_a_model_behind_an_address_is_asked(tmp_path: Path) -> None:
    recipe = tmp_path / "mine.yaml"
    with FaultyServer([], answer=adds) as server:
        recipe.write_text(
            f"agent: {{template: plain}}\nmodel: {{path: /no/such/model}}\nendpoints: {{model: m, base_url: '{server.url}'}}\n"
        )
        done = skillttrl("ask", "openai", "Compute 2+3.", "--config", recipe, "-n", 3, "--json")
        assert done.code == 0 and done.json["answers"] == ["5", "5", "5"]
        assert server.asked[0]["body"]["n"] == 3
    assert skillttrl("ask", "openai", "Compute 2+3.").code == 2  # no endpoint is named


def test_a_begun_answer_is_gone_on_with_as_the_server_can() -> None:
    begun = Request((Message("user", "Q"),), assistant_prefix="<answer>1")
    with FaultyServer([]) as server:
        complete(server, begun)
        complete(server, begun, "endpoints.server_type=vllm")
        plain, vllm = (each["body"] for each in server.asked)
    assert [each["role"] for each in plain["messages"]] == ["user", "assistant", "user"]
    assert vllm["messages"][-1] == {"role": "assistant", "content": "<answer>1"}
    assert vllm["continue_final_message"] is True and vllm["add_generation_prompt"] is False
    assert "continue_final_message" not in plain


@pytest.mark.parametrize("dialect", ["openai", "vllm"])
def test_an_answer_that_asks_the_bank_pauses_is_told_and_goes_on(dialect: str) -> None:
    asks, end = "First <retrieve>sums", "</retrieve>"

    def says(body: Mapping[str, Any], draw: random.Random) -> str:
        if any(message["role"] == "assistant" for message in body["messages"]):
            return " so <answer>5</answer>"
        return asks + (end if body.get("include_stop_str_in_output") else "")  # most servers cut the stop text off

    told: list[str] = []

    def answer(pauses: Sequence[InsertionPoint]) -> list[str]:
        told.extend(pause.written for pause in pauses)
        return ["[add them]"] * len(pauses)

    with FaultyServer([], answer=says) as server:
        made = backend(server, f"endpoints.server_type={dialect}")
        request = Request((Message("user", "2+3"),), n=3)
        going = generate_with_insertions(
            made, [request], Sampling(), seed=1, stop_markers=(end,), answer=answer, limit=2
        )
        (found,) = wait_for(going)
        made.close()
        sent = [each["body"] for each in server.asked]
    whole = f"{asks}{end}[add them] so <answer>5</answer>"
    assert told == [asks + end] * 3 and [done.text for done in found.completions] == [whole] * 3
    assert all(done.text[slice(*done.inserted_spans[0])] == "[add them]" for done in found.completions)
    assert [body["n"] for body in sent] == [3, 3]  # those that stand at the same place go on as one request
    assert {"role": "assistant", "content": f"{asks}{end}[add them]"} in sent[1]["messages"]


def test_what_the_protocol_cannot_say_is_said_to_those_who_understand_it_or_refused() -> None:
    request = Request((Message("user", "Q"),))
    with FaultyServer([]) as server:
        complete(server, request, "endpoints.server_type=vllm", top_k=5, stop=("</x>",))
        body = server.asked[0]["body"]
        with pytest.raises(ConfigError, match="top_k=5"):
            complete(server, request, top_k=5)
    assert body["top_k"] == 5 and body["include_stop_str_in_output"] is True


def test_the_plain_engine_asks_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with FaultyServer([], answer=adds) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        engine = RolloutEngine("m", "openai")
        assert engine.generate(["2+2", "3+4"], 2) == [["<answer>4</answer>"] * 2, ["<answer>7</answer>"] * 2]
        server.refuse_about = "2+2"
        with pytest.raises(EndpointError, match="refused"):
            engine.generate(["2+2"], 1)
        engine.close()


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("openai._base_client.INITIAL_RETRY_DELAY", 0.01)


def endpoint(server: FaultyServer, **fields: Any) -> str:
    return json.dumps({"model": "vectors", "base_url": server.url, **fields})


def settings(server: FaultyServer, *more: str) -> list[str]:
    return [
        "skills.embedder=openai",
        f"endpoints.roles.embeddings={endpoint(server)}",
        "phases=[rl]",
        "rl.steps=4",
        *more,
    ]


def test_vectors_have_length_one_and_the_same_text_has_the_same_bits() -> None:
    texts = [f"skill {number}" for number in range(40)]
    with FaultyServer(["500", "drop in the answer"], seed=4) as server:
        made = make_embedder("openai", endpoint(server))
        rows = made.embed([*texts, "", "  ", "skill 3"])
        asked = len(server.asked)
        assert np.array_equal(made.embed(texts[::-1]), rows[:40][::-1]) and len(server.asked) == asked
    assert made.dimension == 4 and "127.0.0.1" in made.name and made.name.endswith("/vectors:4")
    expected = np.asarray(vector_of("skill 3"))
    assert np.allclose(rows[3], expected / np.linalg.norm(expected), atol=1e-6)
    assert np.allclose(np.linalg.norm(rows[:40], axis=1), 1, atol=1e-6)
    assert not rows[40:42].any() and np.array_equal(rows[42], rows[3])
    sent = [text for each in server.asked for text in each["body"]["input"]]
    assert "" not in sent and "  " not in sent


@pytest.mark.slow
def test_a_spent_budget_ends_a_run_like_a_signal_and_a_larger_one_goes_on_to_the_same_end(
    tiny_skills_yaml: Path, tmp_path: Path
) -> None:
    """Each step's skills are changed, so each asks for vectors anew. The end is that of a run that was never stopped."""
    with FaultyServer([]) as server:
        often = settings(server, "rl.save_steps=3", "skills.episode_notes=false")
        whole = train.run(load_config(tiny_skills_yaml, often), tmp_path / "whole")
        phases = [line["phase"] for line in requests_in(tmp_path / "whole" / "usage.jsonl")]
        assert phases.count("rl") >= 2, phases  # the budget can end between two requests of the phase
        bound = phases.index("rl") + 1
        folder = tmp_path / "bounded"
        with pytest.raises(BudgetError, match="--resume auto"):
            train.run(load_config(tiny_skills_yaml, [*often, f"endpoints.max_requests={bound}"]), folder)
        spent = (folder / "usage.jsonl").read_text()
        checkpoints = sorted(path.name for path in (folder / "checkpoints").iterdir())
        assert checkpoints == ["rl-000001"]  # saved at the budget's end, not at a third step
        for name in checkpoints:
            verify(folder / "checkpoints" / name)
        with pytest.raises(BudgetError, match="The budget is spent"):
            train.run(load_config(tiny_skills_yaml, [*often, f"endpoints.max_requests={bound}"]), folder, resume="auto")
        assert (folder / "usage.jsonl").read_text() == spent  # nobody was asked
        more = load_config(tiny_skills_yaml, [*often, "endpoints.max_requests=1000000"])
        done = train.run(more, folder, resume="auto")
    assert (folder / "usage.jsonl").read_text().startswith(spent)
    for name in ("metrics.jsonl", "votes.jsonl", "evaluations.jsonl", "trajectories.jsonl"):
        assert (folder / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name
    assert done.accuracy_after == whole.accuracy_after and done.usage["requests"] >= whole.usage["requests"]
    log = "bank/log.jsonl"
    assert (folder / log).is_file() == (tmp_path / "whole" / log).is_file()


GAMES = [f"pick_and_place_simple-Apple-None-Fridge-{number}/trial_{number}" for number in range(1, 7)]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    root = tmp_path_factory.mktemp("games")
    for name in GAMES:
        write_game(root, "train", name, task=name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(root / "cache"))
        forget()
        yield str(root)
    forget()


def play(data: str, made: Backend, tries: int = 2, on_episode: Any = print, **more: Any) -> list[Group]:
    agent = Agent(
        PromptFormatter("plain"), "window", window=TurnPromptBuilder(Templates(), "alfworld"), project=project
    )
    tasks = ALFWorldEnv(data).tasks("train")
    try:
        return wait_for(
            rollout(tasks, tries, envs=EnvPool(lambda: ALFWorldEnv(data)), agent=agent, backend=made, on_episode=on_episode, settings=RolloutSettings(Sampling(max_new_tokens=50), 0, max_turns=50, schedule="async", **more))
        )  # fmt: skip
    finally:
        made.close()


@pytest.mark.slow
def test_many_episodes_are_on_their_way_at_once_and_all_of_it_is_accounted_for(data: str) -> None:
    def answer(body: Mapping[str, Any], draw: random.Random) -> str:
        time.sleep(0.05)
        return walks(body, draw)

    faults = ("429", "500", "drop before the answer", "truncated JSON")
    with FaultyServer(faults, 0.1, answer=answer, seed=1) as server, track_usage(None, EndpointsConfig()) as ledger:
        groups = play(data, backend(server))
        spent = ledger.totals()
        assert (spent.tokens_in, spent.tokens_out) == (server.delivered["prompt"], server.delivered["answer"])
    assert server.busiest > 2 and server.hit  # several at once, and faults in between
    tries = [each for group in groups for each in group.trajectories]
    assert len(tries) == 12 and all(each.won for each in tries)
    assert all(step.action_status == "valid" for each in tries for step in each.steps)


QUESTIONS = 4

ASKS = """
import os, signal, sys
from pathlib import Path
from skill_ttrl.config import EndpointConfig, EndpointsConfig
from skill_ttrl.llm.backend import wait_for
from skill_ttrl.llm.openai.client import Client
from skill_ttrl.llm.openai.ledger import track_usage
from skill_ttrl.types import Message

folder, url, kill_at = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
opened = 0

def watch(event, args):
    global opened
    if event == "open" and str(args[0]).startswith(str(folder)) and args[2] & (os.O_WRONLY | os.O_RDWR):
        opened += 1
        if opened == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(watch)
with track_usage(folder / "usage.jsonl", EndpointsConfig(max_requests=100)) as ledger:
    client = Client(EndpointConfig(model="m", base_url=url), "policy")
    for number in range(4):
        wait_for(client.chat([Message("user", f"question {number}")], seed=number))
    client.shut()
    ledger.settle()
"""


@pytest.mark.parametrize("kill_at", [2, pytest.param(5, marks=pytest.mark.slow)])
def test_an_answer_that_was_counted_is_never_paid_again(kill_at: int, tmp_path: Path) -> None:
    usage = tmp_path / "usage.jsonl"
    with FaultyServer([]) as server:

        def run(kill_at: int) -> int:
            return run_code(ASKS, tmp_path, server.url, kill_at).returncode

        ended = run(kill_at)
        counted = Ledger(usage).totals().attempts
        asked = len(server.asked)
        assert ended in (0, -signal.SIGKILL) and asked - 1 <= counted <= asked  # one may be on its way
        if ended:
            assert run(0) == 0
        times = Counter(json.dumps(each["body"], sort_keys=True) for each in server.asked)
    assert len(times) == QUESTIONS and len(server.asked) - QUESTIONS == (asked - counted if ended else 0)
    sent = [line for line in requests_in(usage) if line["attempts"]]
    assert len(sent) == QUESTIONS

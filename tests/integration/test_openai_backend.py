"""A policy behind an address, as its user meets it: evaluated, voted on, asked, bounded, and what its failures become."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from skill_ttrl.compat.trainer import RolloutEngine
from skill_ttrl.config import load_config
from skill_ttrl.errors import ConfigError, EndpointError
from skill_ttrl.llm.backend import Backend, BackendContext, Request, Sampling, wait_for
from skill_ttrl.llm.backends import make_backend
from skill_ttrl.llm.pauses import InsertionPoint, generate_with_insertions
from skill_ttrl.storage.jsonl import read_jsonl
from skill_ttrl.types import Completion, Message
from tests.faulty_server import FaultyServer, requests_in
from tests.integration.test_cli_commands import refused, skillttrl
from tests.integration.test_evaluate_command import problems

NOWHERE = "model.path=/no/such/model"
"""A model of one's own that must never be looked at."""


def adds(body: Mapping[str, Any], draw: random.Random) -> str:
    """The right sum, whatever is drawn."""
    found = re.findall(r"(\d+)\+(\d+)", json.dumps(body.get("messages") or body.get("prompt")))
    return f"<answer>{int(found[-1][0]) + int(found[-1][1])}</answer>" if found else "What?"


def sometimes_adds(body: Mapping[str, Any], draw: random.Random) -> str:
    return adds(body, draw) if draw.random() < 0.6 else "<answer>1</answer>"


def at(server: FaultyServer, *more: str) -> list[str]:
    """Settings that name the server."""
    settings = [f"endpoints.base_url={server.url}", NOWHERE, *more]
    return [word for setting in settings for word in ("--set", setting)]


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

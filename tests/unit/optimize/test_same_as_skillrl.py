"""The same inputs through PyPI's skillrl 1.0.0 and through ours: editor, budgets, gate, answers, scores, JSON, QA environment, settings, client."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Mapping
from typing import Any

import pytest
import skillrl
from hypothesis import example, given
from hypothesis import strategies as st
from skillrl.core import editor, gate, scheduler, utils
from skillrl.envs.qa import SimpleQAEnv as TheirEnv
from skillrl.llm.openai_client import OpenAIChatClient as TheirClient

from skill_ttrl import BaseLLMClient, OpenAIChatClient, SimpleQAEnv, SkillOptConfig
from skill_ttrl import optimize as ours
from skill_ttrl.errors import ConfigError, DataError, EndpointError
from tests.faulty_server import FaultyServer

PIECES = st.sampled_from(["rule", "rule 1", "\n", "\n\n", " ", "- ", "#", "é", "\r\n", "\t", "", "{x}", "\\1", "\x00"])
TEXTS = st.lists(PIECES, max_size=6).map("".join)
EDITS = st.fixed_dictionaries(
    {
        "op": st.sampled_from(("append", "insert_after", "replace", "delete", "Append", "", "move")),
        "content": TEXTS | st.none(),
        "target": TEXTS | st.none(),
    },
    optional={
        "support_count": st.none() | st.integers(0, 9),
        "source_type": st.sampled_from([None, "failure", "success"]),
        "merge_level": st.none() | st.integers(1, 3),
    },
)


@given(TEXTS, st.lists(EDITS, max_size=4), st.booleans())
def test_patches_give_the_same_document_and_reports(skill: str, edits: list[dict[str, Any]], typed: bool) -> None:
    patch: dict[str, Any] = {"edits": edits, "reasoning": "because"}
    theirs = editor.apply_patch_with_report(skill, skillrl.Patch.from_dict(patch) if typed else patch)
    assert ours.apply_patch_with_report(skill, ours.Patch.from_dict(patch) if typed else patch) == theirs
    assert ours.apply_patch(skill, patch) == theirs[0]


@pytest.mark.parametrize(
    "edit",
    [
        "append: more", None, ["append", "x"], {"op": ["append"], "content": "x"}, {"op": None, "content": "x"},
        {"op": "append", "content": ["x", "y"]}, {"op": "replace", "target": {"line": 1}, "content": "x"},
    ],
)  # fmt: skip
def test_what_is_no_edit_is_skipped_and_reported(edit: object) -> None:
    """skillrl writes the Python text of a list into the document, or fails in a later stage on what is no object."""
    patch = ours.Patch.from_dict({"edits": [edit, {"op": "append", "content": "good"}]})
    document, reports = ours.apply_patch_with_report("doc", patch)
    assert document == "doc\n\ngood\n"
    assert [report["status"] for report in reports] == ["skipped_unknown_op", "applied_append"]
    raw = ours.apply_patch_with_report("doc", {"edits": [edit]})
    assert raw[0] == "doc" and raw[1][0]["status"] in {"error", "skipped_unknown_op"} and json.dumps([reports, raw[1]])


def test_half_characters_of_a_model_s_json_do_not_reach_the_document() -> None:
    patch = json.loads('{"edits": [{"op": "append", "content": "half \\ud800"}], "reasoning": "\\udfff"}')
    document = ours.apply_patch("doc", ours.Patch.from_dict(patch))
    assert document == "doc\n\nhalf \N{REPLACEMENT CHARACTER}\n" and len(ours.skill_hash(document)) == 16


@given(
    st.sampled_from(["constant", "linear", "cosine"]),
    st.integers(1, 20),
    st.integers(1, 20),
    st.integers(-1, 60),
    st.integers(0, 70),
)
@example("cosine", 4, 2, 1, 5)
@example("linear", 4, 2, 0, 3)
def test_budgets_are_the_same(mode: str, top: int, low: int, total: int, start: int) -> None:
    mine, theirs = ours.build_scheduler(mode, top, low, total), scheduler.build_scheduler(mode, top, low, total)
    assert [mine.get_lr(step) for step in range(-1, 75)] == [theirs.get_lr(step) for step in range(-1, 75)]
    mine.load_state_dict({"current_step": start})
    theirs.load_state_dict({"current_step": start})
    assert [mine.step() for _ in range(4)] == [theirs.step() for _ in range(4)]
    assert mine.state_dict() == theirs.state_dict() == {"current_step": start + 4}


SCORES = st.sampled_from([-1.0, 0.0, 0.25, 0.3, 0.5, 0.75, 1.0])


@given(SCORES, SCORES, SCORES, SCORES, st.sampled_from(["hard", "soft", "mixed"]), st.sampled_from([0.0, 0.3, 1.0]))
def test_the_gate_decides_the_same(
    hard: float, soft: float, current: float, best: float, metric: str, weight: float
) -> None:
    state: dict[str, Any] = {
        "candidate_skill": "new", "cand_hard": hard, "cand_soft": soft, "current_skill": "old",
        "current_score": current, "best_skill": "top", "best_score": best, "best_step": 3, "global_step": 5,
        "metric": metric, "mixed_weight": weight,
    }  # fmt: skip
    assert vars(ours.evaluate_gate(**state)) == vars(gate.evaluate_gate(**state))
    assert ours.select_gate_score(hard, soft, metric, weight) == gate.select_gate_score(hard, soft, metric, weight)
    for scores, one in (((hard, math.nan), "hard"), ((math.nan, soft), "soft")):  # the other score does not matter
        assert ours.select_gate_score(*scores, one) == gate.select_gate_score(*scores, one)


BITS = [
    "```json",
    "```",
    "```JSON\n",
    '{"edits": []}',
    '{"a": {"b": 1}}',
    "[1]",
    "{",
    "}",
    '{"a": NaN}',
    "so: ",
    "\n",
    "null",
]


@given(st.lists(st.sampled_from(BITS), max_size=6).map("".join))
def test_the_same_json_is_found(text: str) -> None:
    assert repr(ours.extract_json(text)) == repr(utils.extract_json(text))


@given(st.lists(st.tuples(st.integers(0, 1), st.floats(0, 1)), max_size=9), st.text(max_size=20))
def test_scores_and_hashes_are_the_same_to_the_last_digit(pairs: list[tuple[int, float]], text: str) -> None:
    rows = [{"hard": hard, "soft": soft} for hard, soft in pairs]
    assert ours.compute_score(rows) == utils.compute_score(rows)
    assert ours.compute_score(ours.RolloutResult("1", *pair) for pair in pairs) == ours.compute_score(iter(rows))
    assert ours.skill_hash(text) == utils.skill_hash(text)


@given(st.lists(EDITS, max_size=3), st.none() | st.just({"selected_indices": [0]}))
def test_patches_round_trip_as_there(edits: list[dict[str, Any]], details: dict[str, Any] | None) -> None:
    patch = {"edits": edits, "reasoning": None, "ranking_details": details}
    raw = {"patch": patch, "source_type": "success", "batch_size": 8}
    mine, theirs = ours.RawPatch.from_dict(raw), skillrl.RawPatch.from_dict(raw)
    assert mine is not None and mine.to_dict() == theirs.to_dict()
    assert ours.RawPatch.from_dict(theirs.to_dict()) == mine


@pytest.mark.parametrize("value", ["solved", [1], math.nan, math.inf])
def test_a_score_that_is_no_number_is_named(value: object) -> None:
    with pytest.raises(DataError, match=r"rollout 'q1' has hard = .*1 for solved"):
        ours.RolloutResult.from_dict({"id": "q1", "hard": value})


class Says(BaseLLMClient):
    """A scripted model that always says the same."""

    model = "scripted"

    def __init__(self, text: str) -> None:
        self.text = text
        self.asked: list[dict[str, Any]] = []

    def chat(self, **asked: Any) -> tuple[str, dict[str, Any]]:
        self.asked.append(asked)
        return self.text, {}


WORDS = st.lists(st.sampled_from(["Paris", "paris", "the", "Pacific", "Ocean", " ", "\n", ".", ""]), max_size=5).map(
    " ".join
)
ITEMS = st.fixed_dictionaries(
    {"question": WORDS, "answers": st.lists(WORDS, max_size=3) | WORDS | st.none()},
    optional={"id": st.integers(0, 9) | WORDS, "context": WORDS, "task_type": st.sampled_from(["geo", None])},
)


@given(ITEMS, WORDS, WORDS)
def test_questions_are_asked_and_scored_the_same(item: dict[str, Any], skill: str, answer: str) -> None:
    splits: dict[str, Any] = {"train_items": [item], "val_items": [], "test_items": []}
    mine, theirs, models = SimpleQAEnv(**splits), TheirEnv(**splits), (Says(answer), Says(answer))
    result = mine.rollout_one(item=item, skill=skill, target_client=models[0])
    expected = theirs.rollout_one(item=item, skill=skill, target_client=models[1])
    assert result.to_dict() == expected.to_dict() and models[0].asked == models[1].asked
    assert mine.get_task_types() == theirs.get_task_types()


def test_settings_have_the_same_keys_and_defaults() -> None:
    changed: dict[str, Any] = {"num_epochs": 2, "batch_size": 8, "lr_scheduler": "linear", "extras": {"a": 1}}
    for given_ in ({}, changed):
        assert SkillOptConfig(**given_).to_dict() == skillrl.SkillOptConfig(**given_).to_dict()
    assert SkillOptConfig(2, 8) == SkillOptConfig(num_epochs=2, batch_size=8)


@pytest.mark.parametrize(
    ("given", "key"),
    [
        ({"batch_size": 0, "lr_scheduler": "cosin"}, "batch_size.*; lr_scheduler.*Did you mean 'cosine'"),
        ({"edit_budget": 1}, "min_edit_budget"),
        ({"gate_mixed_weight": float("nan")}, "gate_mixed_weight"),
        ({"batch_size": "8"}, "batch_size: must be a valid integer"),
        ({"out_root": ""}, "out_root"),
    ],
)
def test_settings_that_cannot_be_used_are_named(given: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError, match=f"SkillOptConfig: .*{key}"):
        SkillOptConfig(**given)


# --- the client, against a really started server of the protocol ---


def shout(body: Mapping[str, Any], draw: random.Random) -> str:
    return f"  {body['messages'][-1]['content'].upper()}\n"


def header(asked: Mapping[str, Any], name: str) -> str:
    return str({key.lower(): value for key, value in asked["headers"].items()}[name])


def test_both_clients_ask_and_answer_the_same() -> None:
    with FaultyServer(rate=0, answer=shout) as server:
        common: dict[str, Any] = {"api_key": "secret-key", "base_url": server.url, "default_temperature": 0.5}
        mine, theirs = OpenAIChatClient("m", **common), TheirClient("m", **common)
        asked: dict[str, Any] = {"system": "be loud", "user": "hello", "max_completion_tokens": 9, "stage": "analyst"}
        (text, used), expected = mine.chat(**asked), theirs.chat(**asked)
        assert text == "HELLO" and used["total_tokens"] > 0
        assert (text, used | {"total_tokens": None}) == expected  # this server does not add up
        assert mine.chat(system="", user="", temperature=0.0)[0] == theirs.chat(system="", user="", temperature=0.0)[0]
        mine.close()
    bodies = [each["body"] for each in server.asked]
    assert bodies[0] == bodies[1] and bodies[2] == bodies[3]
    assert [body["temperature"] for body in bodies[::2]] == [0.5, 0.0]
    assert {header(each, "authorization") for each in server.asked} == {"Bearer secret-key"}


def test_a_server_that_knows_only_max_tokens_is_asked_so_from_then_on_and_other_refusals_are_errors() -> None:
    message = "Unknown parameter: 'max_completion_tokens'."
    refused: list[tuple[int, dict[str, str], Any]] = [
        (400, {}, {"error": {"message": message, "param": "max_completion_tokens"}}),
        (400, {}, {"error": {"message": "the prompt is too long"}}),
    ]
    with FaultyServer(rate=0, first=refused[:1], answer=shout) as server:
        client = OpenAIChatClient("m", base_url=server.url)
        assert [client.chat(system="s", user="u", max_completion_tokens=7)[0] for _ in range(2)] == ["U", "U"]
        client.close()
    limits = [{k: v for k, v in each["body"].items() if k.startswith("max")} for each in server.asked]
    assert limits == [{"max_completion_tokens": 7}, {"max_tokens": 7}, {"max_tokens": 7}]
    with FaultyServer(rate=0, first=refused[1:]) as server:  # skillrl gives an empty answer
        client = OpenAIChatClient("m", base_url=server.url)
        with pytest.raises(EndpointError, match="the prompt is too long"):
            client.chat(system="s", user="u", retries=1)
        client.close()


def test_azure_is_asked_by_deployment_and_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_OPENAI_API_KEY", "azure-key")
    with FaultyServer(rate=0, answer=shout) as server:
        client = OpenAIChatClient("mine", azure_endpoint=server.url.removesuffix("/v1"), api_version="2024-10-21")
        assert client.chat(system="s", user="u")[0] == "U"
        client.close()
    (asked,) = server.asked
    assert asked["path"].startswith("/openai/deployments/mine/chat/completions?api-version=2024-10-21")
    assert header(asked, "api-key") == "azure-key"


@pytest.mark.parametrize(
    ("given", "said"),
    [({}, "OPENAI_API_KEY is not set.* pass api_key="), ({"base_url": "localhost:8000"}, "must start with http")],
)
def test_what_is_missing_is_found_at_once(given: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    with pytest.raises(ConfigError, match=said):
        OpenAIChatClient("gpt", **given)

"""Runs and `skillttrl merge` with a merger and an extractor that ask a language model: a scripted one, on a really started
server. The policy is the small real one of tests/data/operators_base, which writes skills.
"""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from skill_ttrl.config import load_config
from skill_ttrl.errors import BudgetError, EndpointError
from skill_ttrl.skills.bank import SkillBank
from skill_ttrl.skills.mergers import TROUBLE
from skill_ttrl.stages import train
from skill_ttrl.storage.jsonl import read_jsonl
from skill_ttrl.types import BankUpdate, from_json
from tests.faulty_server import FaultyServer, requests_in
from tests.integration.test_cli_commands import refused, skillttrl

BASE = Path(__file__).parents[1] / "data" / "operators_base"
STEPS = 4
SMALL = [
    "phases=[rl]", f"model.path={BASE}", "skills.update=merge", "skills.merger=openai", "skills.index=memory",
    f"rl.steps={STEPS}", "rl.prompts_per_step=6", "rl.save_steps=2", "rollout.n_votes_per_prompt=6",
    "rollout.n_samples_per_prompt=6", "data.eval.limit=4", "eval.samples=2", "eval.greedy=false", "runtime.threads=1",
]  # fmt: skip


def scripted(body: Mapping[str, Any], draw: random.Random) -> str:
    """Each proposal becomes a skill in the model's words; the solutions of a problem share nothing."""
    prompt = body["messages"][1]["content"]
    if "<problem>" in prompt:
        return '{"technique": null}'
    found = re.findall(r'<generate n="(\d+)"[^>]*>\n(.*?)\n</generate>', prompt, re.DOTALL)
    skills = [{"title": "Rule", "text": f"The rule is: {text}", "support": [int(number)]} for number, text in found]
    return json.dumps({"new_skills": skills, "rewrites": [], "known": []})


@contextmanager
def serving(**options: Any) -> Iterator[FaultyServer]:
    with FaultyServer(answer=scripted, **{"faults": (), **options}) as server:
        yield server


def asking(server: FaultyServer, *more: str, role: str = "merger") -> list[str]:
    endpoint = {"model": "scripted", "base_url": server.url, "max_retries": "0", "timeout": "5"}
    return [*(f"endpoints.roles.{role}.{name}={value}" for name, value in endpoint.items()), *more]


def merged_run(server: FaultyServer, folder: Path, *more: str, resume: Any = None) -> list[dict[str, Any]]:
    """The figures of each step."""
    train.run(load_config("quickstart_notes", [*SMALL, *asking(server, *more)]), folder, resume=resume)
    return read_jsonl(folder / "metrics.jsonl")


def log_of(folder: Path) -> list[BankUpdate]:
    return [from_json(BankUpdate, line) for line in (folder / "bank" / "log.jsonl").read_bytes().split(b"\n")[:-1]]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One run that nothing disturbed."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    with serving() as server:
        rows = merged_run(server, folder)
        requests = len(server.asked)
    assert len(rows) == STEPS and requests == sum(row["skills_merge_requests"] for row in rows) >= STEPS
    assert all(row["skills_merge_failed"] == row["skills_merge_fallback"] == 0 for row in rows)
    return folder


@pytest.mark.slow
def test_a_run_s_bank_holds_what_the_model_made_of_the_winners_skills(whole: Path) -> None:
    with SkillBank.open(whole / "bank", read_only=True) as bank:
        made = [skill for skill in bank if skill.source == "merge"]
    assert made and all(skill.text.startswith("The rule is: ") and skill.title == "Rule" for skill in made)
    rows = read_jsonl(whole / "metrics.jsonl")
    assert len(made) == sum(row["skills_added"] for row in rows) > 0
    summary = json.loads((whole / "summary.json").read_text())
    usage = requests_in(whole / "usage.jsonl")
    assert summary["usage"]["requests"] == len(usage) and {line["role"] for line in usage} == {"merger"}
    assert {line["phase"] for line in usage} == {"rl"}


@pytest.mark.slow
def test_a_model_that_fails_ends_the_run_which_goes_on_later(whole: Path, tmp_path: Path) -> None:
    """Three steps are merged, the fourth is not; the two up to the checkpoint are kept and asked about no more."""
    with serving() as server:
        settings = [*SMALL, *asking(server)]
        server._answer = lambda body, draw: scripted(body, draw) if len(server.asked) < 4 else "no JSON"
        with pytest.raises(EndpointError, match=r"bank is unchanged.*--resume auto"):
            train.run(load_config("quickstart_notes", settings), tmp_path / "run")
        assert len(log_of(tmp_path / "run")) == 1 + 3  # the import, and three steps
        server._answer = scripted
        train.run(load_config("quickstart_notes", settings), tmp_path / "run", resume="auto")
        asked = Counter(json.dumps(each["body"], sort_keys=True) for each in server.asked)
    again = [body for body, count in asked.items() if count > 1]
    assert len(again) == 1 and "no JSON" in again[0], "but for the question that ended it, none is paid for again"
    assert (tmp_path / "run/bank/log.jsonl").read_bytes() == (whole / "bank/log.jsonl").read_bytes()


@pytest.mark.slow
def test_a_run_gets_over_a_model_that_fails_says_it_once_and_counts(tmp_path: Path) -> None:
    with serving(faults=("503",), rate=1.0) as server:
        rows = merged_run(server, tmp_path / "run", "skills.on_failure=heuristic", "rl.steps=2")
    assert [row["skills_merge_fallback"] for row in rows] == [row["skills_merge_requests"] for row in rows] == [1, 1]
    assert sum(row["skills_added"] for row in rows) > 0
    warnings = json.loads((tmp_path / "run" / "summary.json").read_text())["warnings"]
    assert len([text for text in warnings if text.startswith(TROUBLE)]) == 1
    with SkillBank.open(tmp_path / "run" / "bank", read_only=True) as bank:
        assert not any(skill.text.startswith("The rule is") for skill in bank)


# --- skillttrl merge ---

TEXT = "<skill_ops><generate>{}</generate></skill_ops><answer>{}</answer>"


@pytest.fixture
def records(tmp_path: Path) -> Path:
    responses = [TEXT.format("Use Fermat.", 2), TEXT.format("Fermat it is.", 2), TEXT.format("Guess.", 3)]
    path = tmp_path / "samples.jsonl"
    path.write_text(json.dumps({"problem": "2^10 mod 7?", "responses": responses}) + "\n")
    return path


def sets(settings: Sequence[str]) -> list[str]:
    return [word for setting in settings for word in ("--set", setting)]


def test_the_command_asks_and_says_what_it_cost(records: Path, tmp_path: Path) -> None:
    bank = tmp_path / "bank"
    with serving() as server:
        asked = ["merge", records, "--bank", bank, *sets(asking(server, "endpoints.roles.merger.price_in=2000000"))]
        dry = skillttrl(*asked, "--set", "skills.merger=openai", "--dry-run")
        assert dry.code == 0 and "1 requests" in dry.out and "cost" in dry.out and not bank.exists()
        assert len(server.asked) == 1
        found = skillttrl(*asked, "--set", "skills.merger=openai", "--json").json
        assert (
            skillttrl(*asked, "--bank", tmp_path / "b").code == 0 and len(server.asked) == 2
        )  # nobody asked for the model
    assert (found["skills_after"], found["usage"]["by"]["merge"]["merger"]["requests"]) == (2, 1)
    assert (
        found["usage"]["cost"] == server.delivered["prompt"]
    )  # of both requests, at 2 a token: half of it is this one's
    with SkillBank.open(bank, read_only=True) as kept:
        assert {skill.text for skill in kept} == {"The rule is: Use Fermat.", "The rule is: Fermat it is."}


def test_a_model_that_fails_leaves_no_bank_behind(records: Path, tmp_path: Path) -> None:
    bank = tmp_path / "bank"
    with serving(faults=("malformed content",), rate=1.0) as server:
        asked = ["merge", records, "--bank", bank, "--set", "skills.merger=openai", *sets(asking(server))]
        refused(skillttrl(*asked), EndpointError.exit_code, "skills.on_failure")
        budget = [*asked, "--set", "endpoints.max_total_tokens=1", "--set", "skills.on_failure=skip"]
        refused(skillttrl(*budget), BudgetError.exit_code, "budget is spent")
    refused(skillttrl("merge", records, "--bank", bank, "--set", "skills.merger=openai"), 2, "endpoints.roles.merger")
    assert not bank.exists()

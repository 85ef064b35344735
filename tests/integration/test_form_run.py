"""A policy with a form of actions of its own: it collects, imitates, is advised and rewarded, and the environment reads its own texts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from skill_ttrl.agents.agent import Agent, PromptFormatter
from skill_ttrl.commands import train
from skill_ttrl.config import BuiltinConfig, DemonstrationsConfig, load_config
from skill_ttrl.data.episodes import read_episodes
from skill_ttrl.llm.backend import Sampling, wait_for
from skill_ttrl.llm.hf import HFBackend
from skill_ttrl.llm.models.builtin import build_model, build_tokenizer
from skill_ttrl.rollout.episode import EnvPool
from skill_ttrl.rollout.rollout import RolloutSettings, rollout
from skill_ttrl.storage.jsonl import read_jsonl
from skill_ttrl.train.encode import demonstrate, demonstrate_episodes, encode_shown
from skill_ttrl.types import Step, Task, Trajectory
from tests.kiosk import FORM, KIOSK, Kiosk

AGENT = Agent(PromptFormatter("plain"), "episode", form=FORM)
RUN: dict[str, Any] = {
    "name": "kiosk",
    "phases": ["collect", "sft", "dagger", "rl"],
    "env": {"id": KIOSK, "train_split": "train", "eval_split": "test"},
    "agent": {"template": "plain", "context_mode": "episode", "max_turns": 4, "observations": "tests.kiosk:FORM"},
    "data": {"max_prompt_tokens": 200},
    "model": {
        "path": "builtin",
        "builtin": {"vocabulary": "entities", "hidden_size": 16, "layers": 1, "heads": 2, "max_positions": 256},
    },
    "collect": {"agent": "tests.kiosk:Buyer", "episodes": None, "rollouts_per_task": 3, "epsilon": [0.0, 0.5, 0.5]},
    "demonstrations": {"label": "expert", "examples": None},
    "sft": {"steps": 20, "batch_size": 8, "micro_batch_size": 8, "learning_rate": 1e-2},
    "dagger": {"rounds": 1, "episodes": 9, "steps": [4]},
    "rl": {"steps": 2, "prompts_per_step": 3, "mini_batch_size": 3, "reward": "env", "algorithm": {"type": "grpo"}},
    "rollout": {"n_votes_per_prompt": 4, "n_samples_per_prompt": 4, "max_new_tokens": 6},
    "eval": {"samples": 2, "greedy": True, "controls": []},
    "runtime": {"device": "cpu", "threads": 1},
}
RUN["agent"]["structured_actions"] = True


@pytest.fixture(scope="module")
def policy() -> tuple[Any, Any]:
    """(model, tokenizer): untrained."""
    shape = BuiltinConfig.model_validate(RUN["model"]["builtin"])
    tokenizer = build_tokenizer(["<task>", *FORM.vocabulary], shape)
    model: Any = build_model(shape, tokenizer, seed=0)
    return model.eval(), tokenizer


def play(backend: Any, tries: int, **how: Any) -> list[Trajectory]:
    settings = RolloutSettings(Sampling(max_new_tokens=24), 7, max_turns=3, **how)
    task = Task("t", KIOSK, {"want": "red mug"})
    work = rollout([task], tries, envs=EnvPool(Kiosk), agent=AGENT, backend=backend, settings=settings)
    return [found for group in wait_for(work) for found in group.trajectories]


def test_a_constrained_policy_writes_its_form_and_the_environment_reads_its_own(policy: tuple[Any, Any]) -> None:
    found = play(HFBackend(*policy), 6, constrain=True)
    assert len({step.action for each in found for step in each.steps}) > 3
    for each in found:
        for step in each.steps:
            assert step.completion is not None and step.completion.allowed is not None and step.action_status == "valid"
            said = step.completion.text
            if said.startswith("search "):
                query = said.removeprefix("search ").replace("word 1", "red").replace("word 2", "mug")
                assert step.action == f"search[{query}]" and set(query.split()) <= {"red", "mug"}
            else:
                assert step.action == step.admissible_actions[int(said.removeprefix("result ")) - 1]


def episode(*done: tuple[str, str | None], won: bool = True) -> Trajectory:
    """An episode in the kiosk of (action, advice)."""
    shop, steps = Kiosk(), list[Step]()
    seen, info = shop.reset(options={"want": "red mug"})
    for action, advice in done:
        listed, before = tuple(info["admissible_commands"]), seen
        seen, reward, over, cut, info = shop.step(action)
        told = {} if advice is None else {"expert_action": advice}
        steps.append(Step(before, action, reward, over, cut, info=told, admissible_actions=listed))
    return Trajectory(Task("t", KIOSK, {"want": "red mug"}), tuple(steps), None, "terminated")


def test_demonstrations_are_written_in_the_form_up_to_what_it_cannot_write(policy: tuple[Any, Any]) -> None:
    good = episode(("search[red cheap mug]", None), ("click[b00]", None))
    helped = episode(("search[red]", "search[red mug]"), ("click[help]", "click[b00]"), ("click[b00]", "click[b00]"))
    config = DemonstrationsConfig(label="success", examples=None)
    shown = demonstrate([good], AGENT, config, 0)[0]
    assert [(each.action, each.answer) for each in shown] == [
        ("search[red cheap mug]", "search word 1 word 2"),
        ("click[b00]", "result 1"),
    ]
    assert shown[0].messages[-1].content == "<task> word 1 word 2"
    advice = config.model_copy(update={"label": "expert"})
    grown, learnt, _, left_out = demonstrate_episodes([helped], AGENT, advice, 0, tagged=False)
    said = [[message.content for message in each.messages[each.first :: 2]] for each in grown]
    assert said == [["search word 1", "result 1"]] and left_out == (0, 1) and len(learnt) == 2
    assert grown[0].learnt == ("search word 1 word 2", "result 1")
    assert grown[0].messages[grown[0].first + 1].content.startswith("result 1 word 1 word 2")
    (example,) = encode_shown(policy[1], grown)
    assert "click" not in policy[1].decode(list(example.response_ids))
    # Each turn by itself needs what is before it no more.
    alone = Agent(PromptFormatter("plain"), "none", form=FORM)
    assert [each.answer for each in demonstrate([helped], alone, advice, 0)[0]] == [
        "search word 1 word 2",
        "result 1",
        "result 1",
    ]


@pytest.mark.slow
def test_every_phase_goes_by_the_form(tmp_path: Path) -> None:
    train.run(load_config(RUN), tmp_path / "run")
    kept = json.loads((tmp_path / "run" / "coverage.json").read_text())
    assert kept["not_written"] > 0 and kept["examples"] > 20
    for row in read_jsonl(tmp_path / "run" / "demonstrations.jsonl"):
        assert not any("click" in message["content"] or "[" in message["content"] for message in row["messages"])
    episodes = list(read_episodes(tmp_path / "run" / "dagger.jsonl"))
    assert episodes and all(step.action.endswith("]") for each in episodes for step in each.steps)
    rows = read_jsonl(tmp_path / "run" / "metrics.jsonl")
    (round_row,) = [row for row in rows if row["phase"] == "dagger_round"]
    assert round_row["expert_action_not_written"] == 0 and 0 <= round_row["expert_agreement"] <= 1
    assert [row["invalid_actions"] for row in rows if row["phase"] == "rl" and "invalid_actions" in row] == [0.0, 0.0]

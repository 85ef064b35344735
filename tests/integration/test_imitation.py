"""Imitation and RL on episodes: DAgger, environments from a file, a form of actions of its own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import pytest

from skill_ttrl.agents.agent import Agent, PromptFormatter
from skill_ttrl.commands import train
from skill_ttrl.commands.train import run
from skill_ttrl.config import BuiltinConfig, DemonstrationsConfig, SkillTTRLConfig, load_config
from skill_ttrl.data.episodes import read_episodes
from skill_ttrl.llm.backend import Sampling, wait_for
from skill_ttrl.llm.hf import HFBackend
from skill_ttrl.llm.models.builtin import build_model, build_tokenizer
from skill_ttrl.rollout.episode import EnvPool
from skill_ttrl.rollout.rollout import RolloutSettings, rollout
from skill_ttrl.runs.reader import read_run
from skill_ttrl.storage.jsonl import read_jsonl
from skill_ttrl.train.encode import demonstrate, demonstrate_episodes, encode_shown
from skill_ttrl.types import Step, Task, Trajectory
from tests.doors import DOORS, TASKS, Doors
from tests.integration.test_cli_commands import Listener
from tests.kiosk import FORM, KIOSK, Kiosk
from tests.preloaded import run_code

HALLS = f"{__name__}:Halls-v0"


class Halls(Doors):
    """Doors, of which those of the test are others."""

    def tasks(self, split: str | None = None) -> list[Task]:
        doors = {"train": 0, "test": TASKS["train"]}
        return [
            replace(task, env_id=HALLS, options={"door": task.options["door"] + doors[task.split]})
            for task in super().tasks(split)
        ]


gymnasium.register("Halls-v0", entry_point=f"{__name__}:Halls")

CONFIG: dict[str, Any] = {
    "name": "doors",
    "phases": ["rl"],
    "env": {"id": HALLS, "train_split": "train", "eval_split": "test"},
    "data": {"max_prompt_tokens": 240},
    "agent": {
        "template": "episode",
        "prompts": "tiny",
        "context_mode": "window",
        "max_turns": 3,
        "action_parser": "action",
    },
    "model": {"path": "builtin", "builtin": {"hidden_size": 32, "layers": 1, "heads": 2, "max_positions": 256}},
    "rollout": {"n_votes_per_prompt": 4, "n_samples_per_prompt": 4, "max_new_tokens": 6, "rollout_timeout_s": 600},
    "rl": {
        "reward": "env",
        "steps": 1,
        "prompts_per_step": 4,
        "mini_batch_size": None,
        "invalid_action_penalty_coef": 0.1,
    },
    "eval": {"samples": 1, "extra_temperatures": [], "greedy": False},
    "runtime": {"device": "cpu", "threads": 1},
}


def test_a_run_says_how_its_episodes_went(tmp_path: Path) -> None:
    run(load_config(CONFIG), tmp_path / "run")
    found = read_run(tmp_path / "run")
    row = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[0])
    steps = [step for steps in found.trajectories["steps"][:16] for step in steps]
    assert {
        "success",
        "success/left",
        "success/right",
        "episode_steps",
        "timeout_fraction",
        "prompt_truncated/turns",
    } <= row.keys()
    assert row["timeout_fraction"] == 0 and 1 <= row["episode_steps"] <= 3 and row["sequences"] == len(steps) > 16
    assert row["invalid_actions"] == pytest.approx(
        sum(step["action_status"] == "invalid" for step in steps) / len(steps)
    )
    assert set(found.trajectories["reward"]) <= {0.0, 1.0}, "the penalty is no part of a try's reward"
    assert not {"majority_ratio", "answer_entropy", "abstained"} & row.keys(), (
        "nothing was answered, so nothing was voted on"
    )


GROWING: dict[str, Any] = {
    **CONFIG,
    "agent": {"template": "plain", "context_mode": "episode", "max_turns": 3, "structured_actions": True},
    "rollout": {**CONFIG["rollout"], "n_votes_per_prompt": 8, "n_samples_per_prompt": 8},
    "rl": {
        **CONFIG["rl"],
        "steps": 3,
        "learning_rate": 3e-3,
        "lr_scheduler": "constant",
        "warmup_steps": 0,
        "kl_coef": 0.0,
        "invalid_action_penalty_coef": 0.0,
    },
}


def test_whole_episodes_of_possible_actions_are_scored_as_they_were_sampled(tmp_path: Path) -> None:
    run(load_config(GROWING), tmp_path / "run")
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    for row in rows:
        assert row["sequences"] == 32 < 32 * row["episode_steps"], "one item an episode"
        # One update a step: the learner scores what was sampled as the sampler did.
        assert row["ratio_mean"] == pytest.approx(1, abs=1e-5) and row["ratio_max"] == pytest.approx(1, abs=2e-4)
    assert len(rows) == 3 and all(row["updates"] == 1 and row["grad_norm"] > 0 for row in rows)
    taken = {step["action"] for steps in read_run(tmp_path / "run").trajectories["steps"] for step in steps}
    assert taken <= {"left", "right", "wait"}


SHOP: dict[str, Any] = {
    **CONFIG,
    "name": "shop",
    "env": {"id": "webshop", "kwargs": {"data": "generated", "max_steps": 4}, "train_tasks": 8, "eval_tasks": 2},
    "agent": {
        **CONFIG["agent"],
        "max_turns": 4,
        "history_length": 1,
        "max_observation_tokens": 1,
        "actions": "numbered",
    },
    "data": {"max_prompt_tokens": 500},
    "model": {
        "path": "builtin",
        "builtin": {"hidden_size": 32, "layers": 1, "heads": 2, "max_positions": 600, "merges": 100},
    },
    "rl": {**CONFIG["rl"], "steps": 2},
}


@pytest.mark.parametrize(("algorithm", "env"), [("gigpo", "webshop"), ("graphgpo", "alfworld")])
def test_steps_are_compared_with_those_from_the_same_state(tmp_path: Path, algorithm: str, env: str) -> None:
    changes: dict[str, Any] = {"rl": {**SHOP["rl"], "algorithm": algorithm}}
    if env == "alfworld":
        pytest.importorskip("alfworld", reason="generated games need its floor plans")
        kwargs = {"data": "generated", "max_steps": 4, "task_types": ["look_at_obj_in_light"]}
        changes["env"] = {"id": env, "kwargs": kwargs, "eval_split": "valid_seen", "train_tasks": 4, "eval_tasks": 1}
    run(load_config({**SHOP, **changes}), tmp_path / "run")
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    step_rows = [row for row in rows if "step_group_size" in row]
    # All four rollouts of a group start in one state.
    assert len(step_rows) == 2 and all(row["step_group_size"] > 1 and row["singleton_states"] < 1 for row in step_rows)
    found = read_run(tmp_path / "run").trajectories
    starts = found["start_state"].groupby([found["step"], found["task"].map(lambda task: task["id"])]).nunique()
    assert set(starts) == {1} and "" not in found["start_state"].tolist()
    assert all(step["info"]["state"] for steps in found["steps"] for step in steps)


RUN: dict[str, Any] = {
    "name": "doors",
    "phases": ["collect", "sft", "dagger"],
    "env": {"id": DOORS, "kwargs": {"apart": True}, "train_split": "train", "eval_split": "test"},
    "agent": {"template": "plain", "context_mode": "episode", "max_turns": 3},
    "data": {"max_prompt_tokens": 400},
    "model": {"path": "builtin", "builtin": {"hidden_size": 32, "layers": 1, "heads": 2, "max_positions": 512}},
    "collect": {"agent": "tests.doors:Opener", "episodes": 20, "rollouts_per_task": 2, "epsilon": [0.0, 0.4]},
    "demonstrations": {"label": "expert", "examples": None},
    "sft": {"steps": 4, "batch_size": 4, "micro_batch_size": 4, "optimizer": "muon", "learning_rate": 4e-3},
    "dagger": {"rounds": 2, "episodes": 5, "steps": [2, 3]},
    "rollout": {"n_votes_per_prompt": 1, "n_samples_per_prompt": 1, "max_new_tokens": 3},
    "eval": {"samples": 1, "greedy": False, "controls": []},
    "runtime": {"device": "cpu", "threads": 1},
}

KEPT = (
    "metrics.jsonl", "evaluations.jsonl", "dagger.jsonl", "demonstrations.jsonl",
    "checkpoints/dagger-000005/model.safetensors",
)  # fmt: skip


def config(**changes: Any) -> SkillTTRLConfig:
    return load_config({**RUN, **changes})


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("reference") / "run"
    train.run(config(), path)
    return path


def kept(path: Path) -> dict[str, bytes]:
    return {name: (path / name).read_bytes() for name in KEPT}


def test_a_round_is_played_labelled_and_learnt_from(reference: Path) -> None:
    episodes = list(read_episodes(reference / "dagger.jsonl"))
    assert len(episodes) == 10 and len({each.task.id for each in episodes}) == 10, "no task comes twice before all have"
    for each in episodes:
        for step in each.steps:
            assert step.completion is not None and step.info["expert_action"] in ("left", "right", "wait")
    rows = read_jsonl(reference / "metrics.jsonl")
    rounds = [row for row in rows if row["phase"] == "dagger_round"]
    assert [row["step"] for row in rounds] == [0, 1] and all(0 <= row["expert_agreement"] <= 1 for row in rounds)
    assert [row["step"] for row in rows if row["phase"] == "dagger"] == [0, 1, 2, 3, 4]
    labels = [row["label"] for row in read_jsonl(reference / "evaluations.jsonl")]
    assert labels == ["after"]
    card = (reference / "checkpoints" / "dagger-000005" / "README.md").read_text()
    assert "this checkpoint is of `dagger`" in card and "rounds: 2" in card
    chats = read_jsonl(reference / "demonstrations.jsonl")
    assert len(chats) == 20 and {row["messages"][-1]["role"] for row in chats} == {"assistant"}
    assert sum(len(row["learnt"]) for row in chats) == json.loads((reference / "coverage.json").read_text())["examples"]


HARNESS = """
import json, os, signal, sys
import skill_ttrl.rl.sft_learner as learner, skill_ttrl.runs.checkpoint as checkpoint
from skill_ttrl.config import load_config
from skill_ttrl.runs.folder import RunFolder
from skill_ttrl.commands import train
from skill_ttrl.train import imitate

config, folder, stops = json.loads(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])
PLACES = {
    "played": (imitate, "play_chunk"),
    "appended": (RunFolder, "append_jsonl"),
    "learn": (learner.SFTLearner, "step"),
    "seal": (checkpoint, "_seal"),
}


def attempt(stop):
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if stop is not None:
        (owner, name), nth, came = PLACES[stop[0]], stop[1], [0]
        whole = getattr(owner, name)

        def replaced(*words, **named):
            found = whole(*words, **named)
            came[0] += 1
            if came[0] == nth:
                os.kill(os.getpid(), signal.SIGKILL)
            return found

        setattr(owner, name, replaced)
    code = 1
    try:
        train.run(load_config(config), folder, resume="auto")
        code = 0
    finally:
        os._exit(code)


print(json.dumps([attempt(stop) for stop in [*stops, None]]))
"""


@pytest.mark.slow
def test_killed_again_and_again_within_rounds_and_between_them(reference: Path, tmp_path: Path) -> None:
    """After a chunk, in the middle of what a round appends, after an update, and while a checkpoint is written."""
    # Each number counts from where the attempt goes on: at the end of the cold start, then within the first round, then in the second.
    stops = [("played", 1), ("learn", 1), ("appended", 3), ("seal", 1), ("played", 2), ("learn", 2)]
    run = {**RUN, "sft": {**RUN["sft"], "save_steps": 1}}
    done = run_code(HARNESS, json.dumps(run), tmp_path / "run", json.dumps(stops), timeout=240)
    assert done.returncode == 0 and json.loads(done.stdout) == [-9] * len(stops) + [0], (done.stdout, done.stderr)
    assert kept(tmp_path / "run") == kept(reference)


def test_other_memories_learn_step_by_step(reference: Path, tmp_path: Path) -> None:
    changes: Mapping[str, Any] = {
        "phases": ["dagger"],
        "rollout": {**RUN["rollout"], "max_new_tokens": 12},
        "agent": {"template": "plain", "max_turns": 2, "structured_actions": True},
        "demonstrations": {"trajectories": str(reference / "collected.jsonl"), "label": "expert", "examples": None},
        "dagger": {"rounds": 1, "episodes": 4, "steps": 2},
    }
    train.run(config(**changes), tmp_path / "run", progress=(heard := Listener()))
    assert [*heard.planned] == ["DAgger round 1: play", "DAgger round 1: learn", "evaluate after"]
    assert heard.planned.items() <= heard.started.items()
    episodes = list(read_episodes(tmp_path / "run" / "dagger.jsonl"))
    assert all(
        len(each.steps) <= 2 and step.action in step.admissible_actions for each in episodes for step in each.steps
    )


AGENT = Agent(PromptFormatter("plain"), "episode", form=FORM)

KIOSK_RUN: dict[str, Any] = {
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

KIOSK_RUN["agent"]["structured_actions"] = True


@pytest.fixture(scope="module")
def policy() -> tuple[Any, Any]:
    """(model, tokenizer): untrained."""
    shape = BuiltinConfig.model_validate(KIOSK_RUN["model"]["builtin"])
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
    train.run(load_config(KIOSK_RUN), tmp_path / "run")
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

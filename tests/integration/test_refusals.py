"""What a run's learner cannot do is refused with the reason, before a folder is made or anything is sampled."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from skill_ttrl.cli.main import main
from skill_ttrl.config import load_config
from skill_ttrl.errors import SkillTTRLError
from skill_ttrl.stages import train
from skill_ttrl.stages.doctor.preflight import look_before

BACKEND = """
class Silent:
    trainable = True
    log_probs = False


def make(context):
    raise AssertionError("it was made")


make.log_probs = False
"""

SENSELESS = [
    ("GiGPO without episodes", ["rl.algorithm=gigpo"], "compares steps of episodes, but agent.max_turns is 1"),
    ("GraphGPO without episodes", ["rl.algorithm=graphgpo"], "compares steps of episodes, but agent.max_turns is 1"),
    (
        "GraphGPO without states",
        ["rl.algorithm=graphgpo", "agent.max_turns=2"],
        "compares steps from the same exact state, but math does not report its state",
    ),
    (
        "a single vote",
        ["rollout.n_votes_per_prompt=1", "rollout.n_samples_per_prompt=1"],
        "a single vote always agrees with itself",
    ),
    (
        "a group of one that has nothing to be compared with",
        ["rl.algorithm=maxrl", "rl.reward=label", "rollout.n_samples_per_prompt=1"],
        "every advantage would be 0",
    ),
    ("GAE without a critic", ["rl.algorithm=gae"], "rl.algorithm=gae needs a critic, and there is none"),
    ("a critic that nothing asks", ["rl.critic={}"], "rl.critic is set, but rl.algorithm=grpo asks no critic"),
    (
        "a correction without sampler log-probs",
        ["rollout.backend=own_refusals:make", "rl.rollout_correction.type=token_mask"],
        "gives no log-probs, so neither the policy ratio nor a correction",
    ),
    ("a backend that cannot follow", ["rollout.backend=openai"], "cannot be trained"),
    ("FSDP with one process", ["runtime.parallel=fsdp"], "runtime.parallel is fsdp, but there is one process"),
    (
        "offload without shards",
        ["runtime.param_offload=true", "runtime.parallel=ddp"],
        "param_offload needs parallel=fsdp",
    ),
    ("votes without a vote", ["rl.algorithm=gmae", "rl.reward=label"], "learns from votes, but rl.reward is 'label'"),
    (
        "rewards beside those of the votes",
        ["rl.algorithm=scrl", "rl.extra_rewards={format: 0.5}"],
        "makes its rewards of the votes alone",
    ),
    (
        "a mask without a weight in its bounds",
        ["rl.rollout_correction={type: token_mask, threshold: 0.5}"],
        "no weight would be within the bounds",
    ),
    ("several rewards of one", ["rl.algorithm=gdpo"], "normalises several rewards"),
    (
        "both halves of GRPO-NSR without a weight",
        ["rl.algorithm={type: grpo_nsr, positive_weight: 0, negative_weight: 0}"],
        "both 0, so nothing would be learned",
    ),
    (
        "a critic that warms up to the end",
        ["rl.algorithm=gae", "rl.critic={warmup_steps: 2}", "rl.steps=2"],
        "only the critic would learn, and the policy never",
    ),
    (
        "mini-batches of more prompts than a step has",
        ["rl.mini_batch_size=4", "rl.prompts_per_step=3"],
        "but a step has rl.prompts_per_step=3 prompts",
    ),
    (
        "a negative reward over the mean reward",
        ["rl.algorithm=maxrl", "rl.extra_rewards={format: -0.5}"],
        "rl.extra_rewards.format=-0.5 makes rewards below 0 possible",
    ),
    (
        "a threshold that no reward is above",
        ["rl.algorithm={type: psr, threshold: 1}"],
        "rl.reward=majority gives from 0 to 1: no sample would be correct",
    ),
    (
        "whitening of equal advantages",
        ["rl.algorithm=nsr", "rl.whiten_advantages=true"],
        "have the same advantage: nothing would be left",
    ),
    (
        "a name that is none",
        ["rl.algorithm={type: null}"],
        "rl.algorithm: its type is a name",
    ),
    (
        "bonuses that raise wrong samples",
        ["rl.algorithm=w_reinforce", "rl.extra_rewards={format: 0.7, random: 0.7}"],
        "add up to 1.4, so a wrong sample could earn more than 1",
    ),
    ("a penalty that nothing draws", ["rl.invalid_action_penalty_coef=0.1"], "no action is ever found invalid"),
]
UNKNOWN = [
    ("rl.algorithm=gigop", "Unknown algorithm 'gigop'. Did you mean 'gigpo'?"),
    ("rl.algorithm={type: gigpo, gama: 0.9}", "no option 'gama'. Did you mean 'gamma'?"),
    ("rl.algorithm={type: gigpo, mode: mean_nrm}", "mode: unknown value 'mean_nrm'. Did you mean 'mean_norm'?"),
    ("rl.algorithm=nowhere:Mine", "Cannot import 'nowhere' for the algorithm"),
    ("rl.loss=ppo_clop", "Unknown loss 'ppo_clop'. Did you mean 'ppo_clip'?"),
    ("rl.loss={clip_ratoi: 0.1}", "no option 'clip_ratoi'. Did you mean 'clip_ratio'?"),
    ("rl.loss_aggregation=token-maen", "unknown value 'token-maen'. Did you mean 'token-mean'?"),
    ("rl.kl_estimator=k33", "unknown value 'k33'. Did you mean 'k3'?"),
    ("rl.rollout_correction.type=token_trunc", "Did you mean 'token_truncate'?"),
    ("rl.optimizer=muonn", "unknown value 'muonn'. Did you mean 'muon'?"),
    ("rl.reward=majorty", "Unknown reward 'majorty'. Did you mean 'majority'?"),
    ("rl.lerning_rate=1", "rl.lerning_rate: unknown key. Did you mean 'learning_rate'?"),
    ("run.on_nan=stopp", "run.on_nan: unknown value 'stopp'. Did you mean 'stop'?"),
    ("vote.strategy=majoritty", "Unknown voting strategy 'majoritty'. Did you mean 'majority'?"),
    ("rollout.backend=hff", "Unknown backend 'hff'. Did you mean 'hf'?"),
]


@pytest.fixture(autouse=True)
def _own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_refusals.py").write_text(BACKEND)
    monkeypatch.syspath_prepend(str(tmp_path))


def given(tiny_yaml: Path, settings: list[str]) -> Any:
    return load_config(tiny_yaml, ["phases=[rl]", *settings])


@pytest.mark.parametrize(("what", "settings", "reason"), SENSELESS, ids=[what for what, _, _ in SENSELESS])
def test_a_combination_without_sense_is_refused_by_train_and_by_a_dry_run(
    tiny_yaml: Path, tmp_path: Path, what: str, settings: list[str], reason: str
) -> None:
    with pytest.raises(SkillTTRLError) as refused:
        train.run(given(tiny_yaml, settings), tmp_path / "run")
    assert reason in str(refused.value) and refused.value.exit_code == 2
    assert not (tmp_path / "run" / "metrics.jsonl").exists()
    try:
        found = [str(each) for each in look_before(given(tiny_yaml, settings)).refusals]
    except SkillTTRLError as error:  # already the config says so
        found = [str(error)]
    assert any(reason in each for each in found), found


@pytest.mark.parametrize(("setting", "words"), UNKNOWN)
def test_an_unknown_name_is_answered_with_the_closest_one(
    tiny_yaml: Path, tmp_path: Path, capsys: Any, monkeypatch: Any, setting: str, words: str
) -> None:
    monkeypatch.setattr(
        sys, "argv", ["skillttrl", "train", str(tiny_yaml), "-o", str(tmp_path / "run"), "--set", setting]
    )
    with pytest.raises(SystemExit) as left:
        main()
    said = capsys.readouterr()
    assert left.value.code == 2 and words in said.err and "Traceback" not in said.err + said.out
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("also", [[], ["--dry-run"]])
def test_demonstrations_without_an_answer_are_refused_before_training(
    tiny_yaml: Path, tmp_path: Path, capsys: Any, monkeypatch: Any, also: list[str]
) -> None:
    """`"response": "63"` names no answer: everything would abstain."""
    demos, run = tmp_path / "demos.jsonl", tmp_path / "run"
    demos.write_text(
        "".join(json.dumps({"prompt": f"Compute {n}+{n}.", "response": str(2 * n)}) + "\n" for n in range(15))
    )

    def said(*settings: str) -> tuple[int, str]:
        words = [each for text in settings for each in ("--set", text)]
        asked = [
            "skillttrl",
            "train",
            str(tiny_yaml),
            "-o",
            str(run),
            "--set",
            f"sft.data={{path: {demos}}}",
            *words,
            *also,
        ]
        monkeypatch.setattr(sys, "argv", asked)
        try:
            main()
            code = 0
        except SystemExit as left:
            code = int(left.code or 0)
        found = capsys.readouterr()
        return code, " ".join((found.err + found.out).split())

    code, text = said()
    assert code == 3 and "0 of 15 demonstrations in" in text and "Traceback" not in text
    assert r"contain an answer; write \boxed{0} or <answer>0</answer>" in text and "sft.require_answers=false" in text
    assert not run.exists() or not (run / "metrics.jsonl").exists()
    assert said("env.kwargs={last_number: true}", "sft.steps=1")[0] == 0, "the last number is an answer then"
    run = tmp_path / "meant"
    code, text = said("sft.require_answers=false", "sft.steps=1")
    assert code == 0 and "0 of 15 demonstrations" in text

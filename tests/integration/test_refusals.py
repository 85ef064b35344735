"""What a run cannot do is refused by `train` and by `--dry-run` alike: with the same exit code, the key or file named, and nothing written."""

from __future__ import annotations

import json
import re
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from skill_ttrl.cli.main import main
from skill_ttrl.commands import train
from skill_ttrl.config import load_config
from skill_ttrl.errors import TrainingError
from skill_ttrl.runs.checkpoint import list_checkpoints
from skill_ttrl.runs.folder import RunFolder
from skill_ttrl.runs.summary import read_summary
from skill_ttrl.train import state
from skill_ttrl.types import Trajectory, from_json
from tests.integration.test_cli_commands import skillttrl

OWN = """
from skill_ttrl.llm.hf import HFBackend


class Shares(HFBackend):
    pass


def make(context):
    raise AssertionError("it was made")


make.log_probs = False


class NoTokens:
    pass
"""
STEP = ["phases=[rl]"]
SKILLS = "skills={embedder: hash, index: memory}"
SERVER = ["rollout.backend=vllm", "vllm.mode=server", "vllm.servers=['http://127.0.0.1:1']"]
ROOMY = [*STEP, SKILLS, "model.builtin.max_positions=4096"]
RAY = ["scale.address=auto"]
CPUS = ["runtime.nproc=2", "runtime.device=cpu"]
AHEAD = [*STEP, "rl.max_staleness=1"]
EVERYTHING = ["phases=[collect, distill, sft, rl]", "evolve={}"]
WEBSHOP = ["phases=[sft, rl]", "env.id=webshop", "data.train=null", "data.eval=null"]

SENSELESS: list[tuple[list[str], int, str]] = [
    ([*STEP, "rl.algorithm=gigpo"], 2, "agent.max_turns"),
    ([*STEP, "rl.algorithm=graphgpo"], 2, "agent.max_turns"),
    ([*STEP, "rl.algorithm=graphgpo", "agent.max_turns=2"], 2, "exact state"),
    ([*STEP, "rollout.n_votes_per_prompt=1", "rollout.n_samples_per_prompt=1"], 2, "rollout.n_votes_per_prompt"),
    ([*STEP, "vote.strategy={type: sequential, first: 64}"], 2, "vote.strategy.first"),
    (
        [*STEP, "vote.strategy={type: sequential, first: 2}", "rl.reward=env"],
        2,
        "rl.reward=env rewards no answers",
    ),
    ([*STEP, "rl.algorithm=gae"], 2, "needs a critic"),
    ([*STEP, "rl.critic={}"], 2, "rl.critic"),
    ([*STEP, "rollout.backend=own_refusals:make", "rl.rollout_correction=token_truncate"], 2, "rl.rollout_correction"),
    ([*STEP, "rollout.backend=openai"], 2, "cannot be trained"),
    ([*STEP, "rollout.backend=none", "program.argv=cat"], 2, "cannot be trained"),
    ([*STEP, "program.argv=no-such-agent"], 2, "program.argv: 'no-such-agent' is neither a program"),
    ([*STEP, "program.argv=cat nowhere.py"], 2, "there is no file nowhere.py"),
    ([*STEP, "program={argv: cat, env: [NOT_SET]}"], 2, "not set: NOT_SET"),
    ([*STEP, "program.argv=cat", "agent.max_turns=2"], 2, "needs agent.max_turns=1"),
    ([*STEP, "program.argv=cat", "scale.address=local", "agent.max_turns=2"], 2, "scale.address=null"),
    ([*STEP, "runtime.parallel=fsdp"], 2, "runtime.parallel"),
    ([*STEP, "runtime.nproc=0"], 2, "runtime.nproc"),
    ([*STEP, "rl.algorithm=ttpo", "rl.reward=label"], 2, "learns from votes"),
    ([*STEP, "rl.algorithm=ttpo", "vote.strategy=anchored"], 2, "cannot follow"),
    ([*STEP, "rollout.backend=own_refusals:make"], 2, "returns no log-probs"),
    ([*AHEAD, "rollout.top_p=0.9"], 2, "truncated distribution"),
    ([*STEP, "rl.reward=verify"], 2, "has none. Add the field `check`"),
    ([*STEP, "rl.extra_rewards={verify: 0.5}"], 2, "'add-"),
    ([*STEP, "rl.algorithm={type: grpo_nsr, positive_weight: 0, negative_weight: 0}"], 2, "both 0"),
    ([*STEP, "rl.algorithm=gspo", "rl.loss=cispo"], 2, "with the loss gspo"),
    ([*STEP, "rl.algorithm={type: null}"], 2, "rl.algorithm"),
    ([*STEP, "rl.algorithm=w_reinforce", "rl.extra_rewards={format: 0.7, random: 0.7}"], 2, "1.4"),
    ([*STEP, "rl.invalid_action_penalty_coef=0.1"], 2, "invalid"),
    ([*AHEAD, "rollout.backend=own_refusals:Shares"], 2, "is_learner"),
    ([*AHEAD, *SERVER, "vllm.enable_sleep_mode=true"], 2, "vllm.enable_sleep_mode"),
    ([*AHEAD, "rl.dynamic_sampling=2"], 2, "rl.dynamic_sampling"),
    ([*AHEAD, SKILLS, "skills.gate={}"], 2, "skills.gate"),
    ([*STEP, "rl.max_staleness=2", "rl.in_flight_updates=false"], 2, "max_staleness"),
    ([*WEBSHOP, "agent.observations=webshop", "agent.action_order=words"], 2, "agent.action_order=words"),
    (["agent.context_mode=episode", "demonstrations.rationale=openai"], 2, "demonstrations.rationale"),
    (["phases=[rl, sft]"], 2, "in this order"),
    (["phases=[dagger, sft]"], 2, "in this order"),
    ([*WEBSHOP, SKILLS, "phases=[collect, distill]"], 2, "None of the phases trains"),
    (["phases=[distill, sft]", SKILLS], 2, "demonstrations.trajectories"),
    (["phases=[distill, rl]"], 2, "skills section"),
    (["sft.data=null"], 2, "sft.data.path"),
    (["model.lora={r: 2}"], 2, "random weights"),
    (["model.path=nowhere/model"], 2, "quickstart_pretrained"),
    (["requires=the moon"], 2, "the moon"),
    (["rl.prompts_per_step=1000"], 2, "rl.prompts_per_step"),
    (["data.max_prompt_tokens=60"], 2, "data.max_prompt_tokens"),
    ([SKILLS, "skills.merger=openai", "endpoints.roles.merger.model=m"], 2, "OPENAI_API_KEY"),
    ([*ROOMY, "skills.bank=./none"], 4, "skills.bank"),
    (
        [*STEP, "agent.structured_actions=true", "rollout.backend=own_refusals:Shares"],
        2,
        "agent.structured_actions=false",
    ),
    ([*STEP, "agent.structured_actions=true", *SERVER], 2, "cannot restrict"),
    ([*STEP, "agent.context_mode=episode", "rollout.backend=own_refusals:NoTokens"], 2, "encode_next"),
    ([*STEP, "agent.tools=[calculator]"], 2, "agent.max_turns of at least 2"),
    ([*STEP, "agent.tools=[{a: 1}]"], 2, "agent.tools.0: must be calculator, module:function, {mcp: "),
    ([*STEP, "vote.options={weight: 0.5}"], 2, "vote.strategy={type: NAME"),
    ([*STEP, "agent.tools=[calculator]", "agent.context_mode=none"], 2, "agent.context_mode=conversation"),
    ([*STEP, "rl.reward=env"], 2, "cannot grade without true answers"),
    ([*STEP, "agent.max_turns=2", "rl.algorithm=graphgpo"], 2, "does not report its state"),
    ([*ROOMY, "evolve={teacher: 'tests.doors:Opener'}"], 2, "without distill and evolve"),
    ([*ROOMY, "evolve={}"], 2, "evolve needs the environment's own success"),
    ([*ROOMY, "skills.gate={tasks: 2}"], 2, "skills.gate needs the environment's own success"),
    ([*ROOMY, "skills.gate={tasks: 30}"], 2, "the gate's tasks are excluded from training"),
    ([*ROOMY, "skills.gate={tasks: 2}", "data.eval=null"], 2, "skills.gate decides by success"),
    ([*ROOMY, "skills.gate={rule: not_worse, min_effect: 0}"], 2, "min_effect above 0"),
    ([*STEP, "optimize={every: 1}"], 2, "optimize.every edits the run's skill bank"),
    ([*ROOMY, "optimize={every: 1, optimizer: openai}"], 2, "endpoints.roles.optimizer"),
    ([*ROOMY, "optimize={every: 1, optimizer: a:b}", "endpoints.roles.optimizer={}"], 2, "roles.optimizer.model"),
    ([*ROOMY, "evolve={}", "data.eval=null"], 2, "evolve learns from success"),
    (["phases=[dagger]", "collect.agent=builtin"], 2, "phase dagger asks an expert"),
    (["phases=[dagger]", "collect.agent=walkthrough"], 2, "nor with dagger"),
    (["dagger={rounds: 3, steps: [1, 2]}"], 2, "steps has 2 values"),
    ([*RAY, "phases=[sft]", "rollout.prompts_per_batch=4"], 2, "distributes the phases collect, rl"),
    ([*RAY, "rl.prompts_per_step=3"], 2, "prompts_per_batch=null all 3 prompts"),
    ([*RAY, "rl.prompts_per_step=3", "rollout.prompts_per_batch=3"], 2, "prompts_per_batch=3 all 3 prompts"),
    ([*RAY, *SERVER, "rollout.prompts_per_batch=4"], 2, "vllm.servers"),
    ([*CPUS, "runtime.device=cuda:1"], 2, "a single device"),
    ([*CPUS, "rollout.backend=vllm"], 2, "vllm.mode=server"),
    ([*CPUS, "runtime.parallel=fsdp", "rollout.backend=own_refusals:Shares"], 2, "runtime.parallel=ddp"),
    ([*CPUS, "runtime.parallel=fsdp", "runtime.precision=fp16"], 2, "Use bf16"),
    (["env={id: alfworld, kwargs: {data: ./none}}", "data.train=null", "data.eval=null"], 3, "none"),
    (["data.eval={path: 'synthetic:add', split: train, limit: 4}"], 3, "data.eval"),
    (["data.eval={path: 'synthetic:add', split: demos, limit: 4}"], 3, "sft.data"),
    (["rollout.backend=vllm"], 5, "needs vLLM"),
    (["runtime.device=cuda:99"], 5, "cuda:99"),
    (["rl.steps=-1"], 2, "rl.steps"),
    (["rl.steps"], 2, "key=value"),
]
"""Overrides of a config that runs → exit code → what the message names."""

UNKNOWN = {
    "rl.algorithm=gigop": "gigpo",
    "rl.algorithm={type: gigpo, gama: 0.9}": "gamma",
    "rl.algorithm={type: gigpo, mode: mean_nrm}": "mean_norm",
    "rl.loss=ppo_clop": "ppo_clip", "rl.loss={clip_ratoi: 0.1}": "clip_ratio",
    "rl.loss_aggregation=token-maen": "token-mean",
    "rl.rollout_correction=token_trunc": "token_truncate",
    "sft.optimizer=muonn": "muon", "rl.reward=majorty": "majority", "rl.lerning_rate=1": "learning_rate",
    "rl.stop_rule=entrpy": "entropy", "vote.strategy=majoritty": "majority",
    "rollout.backend=hff": "hf", "agent.template=boxd": "boxed", "skills.embedder=hsh": "hash",
    "skills.merger=heuristi": "heuristic", "collect.agent=randm": "random", "distill.teacher=heuristik": "heuristic",
    "evolve.teacher=heuristc": "heuristic", "eval.controls=[frst]": "first", "data.eval.path=synthetic:ad": "add",
}  # fmt: skip
"""Override with a name that nothing has → the name that was meant."""


@pytest.fixture(autouse=True)
def _own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_refusals.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    for key in ("OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(key, raising=False)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")


def check_refused(config: object, overrides: list[str], code: int, *words: str) -> None:
    """`train` and `train --dry-run` both refuse, in words, and leave the working directory empty."""
    changes = [word for each in overrides for word in ("--set", each)]
    for more in (["--dry-run"], ["-o", "run"]):
        done = skillttrl("train", config, *more, *changes)
        said = " ".join((done.err + done.out).split())
        assert done.code == code, (more, done)
        assert "Traceback" not in said
        for word in words:
            assert word in said, (more, word, said)
        assert not [each for each in Path().rglob("*") if each.name != "data.jsonl"], more


@pytest.mark.parametrize(("overrides", "code", "named"), SENSELESS, ids=[" ".join(row[0][-2:]) for row in SENSELESS])
def test_what_no_run_can_do_is_refused(tiny_yaml: Path, overrides: list[str], code: int, named: str) -> None:
    check_refused(tiny_yaml, overrides, code, named)


@pytest.mark.parametrize("override", UNKNOWN)
def test_an_unknown_name_is_answered_with_the_closest_one(tiny_skills_yaml: Path, override: str) -> None:
    check_refused(tiny_skills_yaml, [*EVERYTHING, override], 2, f"Did you mean '{UNKNOWN[override]}'")


@pytest.mark.parametrize(("env", "words"), [("maht", "math"), ("no_such_module:X-v0", "no_such_module")])
def test_an_unknown_environment_is_an_error_of_environments(tiny_yaml: Path, env: str, words: str) -> None:
    check_refused(tiny_yaml, [f"env.id={env}"], 3, words)


def test_all_problems_of_a_config_are_named_at_once(tiny_skills_yaml: Path) -> None:
    names = [each for each in UNKNOWN if "gi" not in each and "clip" not in each][-10:]
    check_refused(tiny_skills_yaml, [*EVERYTHING, *names], 2, *(UNKNOWN[each] for each in names))
    wrong = ["seed=-1", "rl.stepz=3", "rl.rollout_correction=maskd"]
    check_refused(tiny_skills_yaml, wrong, 2, "3 problems", "seed", "rl.stepz", "rl.rollout_correction")


def test_an_unknown_name_hides_no_folder_that_holds_something_else(tiny_yaml: Path, tmp_path: Path) -> None:
    done = skillttrl("train", tiny_yaml, "--dry-run", "-o", tmp_path, "--set", "vote.strategy=majoritty")
    assert done.code == 2 and "majority" in done.out and str(tmp_path) in done.out, done


GOOD = '{"prompt": "Compute 1+1.", "answer": 2}\n'


@pytest.mark.parametrize(
    ("text", "overrides", "code", "words"),
    [
        (None, [], 3, ["data.jsonl"]),
        ("", [], 3, ["data.jsonl", "no records"]),
        (GOOD + "{oops}\n", [], 3, ["data.jsonl:2"]),
        ('{"text": "Compute 1+1."}\n', [], 3, ["'prompt'"]),
        (GOOD + '{"answer": 3}\n', [], 3, ["data.jsonl:2", "'prompt'"]),
    ],
)
def test_data_that_cannot_be_read_are_refused_with_the_line(
    tiny_yaml: Path, text: str | None, overrides: list[str], code: int, words: list[str]
) -> None:
    if text is not None:
        Path("data.jsonl").write_text(text)
    check_refused(tiny_yaml, ["data.train={path: data.jsonl}", "rl.prompts_per_step=1", *overrides], code, *words)


@pytest.mark.parametrize(
    ("overrides", "code", "words"),
    [
        (["rl.reward=label", "data.answer_field=truth"], 2, ["1 of 1"]),
        (["data.max_prompt_tokens=1"], 3, ["data.max_prompt_tokens=16"]),
        (["data.max_prompt_tokens=2"], 3, ["data.max_prompt_tokens=16"]),
        (["rl.reward=model:nowhere", "phases=[rl]"], 5, ["reward model"]),
    ],
)
def test_what_needs_the_model_is_refused_before_a_step(
    tiny_yaml: Path, overrides: list[str], code: int, words: list[str]
) -> None:
    """Found once the policy is there: a dry run loads none."""
    Path("data.jsonl").write_text(GOOD)
    given = ["data.train={path: data.jsonl}", "rl.prompts_per_step=1", *overrides]
    done = skillttrl("train", tiny_yaml, "-o", "run", *(word for each in given for word in ("--set", each)))
    assert done.code == code and not Path("run").exists(), done
    assert all(word in done.err for word in words) and "Traceback" not in done.err


def test_demonstrations_without_an_answer_are_refused_before_training(tiny_yaml: Path) -> None:
    """`"response": "63"` names no answer: everything would abstain."""
    rows = [{"prompt": f"Compute {n}+{n}.", "response": str(2 * n)} for n in range(15)]
    Path("data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    demos = "sft.data={path: data.jsonl}"
    check_refused(tiny_yaml, [demos], 3, "0 of 15", r"\boxed{", "last_number=true")
    given = (demos, "env.kwargs={last_number: true}", "sft.steps=1", "phases=[sft]")
    words = [word for each in given for word in ("--set", each)]
    assert skillttrl("train", tiny_yaml, "-o", "last", *words).code == 0


REMOTE = ["rollout.backend=openai", "endpoints.model=m"]
EXPERT = ["collect", "--env", "alfworld", "--mock", "--policy", "expert"]
POLICY = ["collect", "--env", "math", "--policy", "openai:m"]
MEASURED = ["evaluate", "openai:m"]
DISTILLED = ["distill", "--trajectories", "../episodes.jsonl"]
MERGED = ["merge", "../episodes.jsonl", "--bank", "bank"]
OPTIMIZED = ["optimize", "--policy", "openai:m", "--dry-run"]

OTHERS: list[tuple[list[str], list[str], list[str], int, str]] = [
    *((command, each, [], code, word) for command in (POLICY, MEASURED, OPTIMIZED) for each, code, word in (
        (["agent.template=boxd"], 2, "boxed"),
        (["agent.observations=alfwrld"], 2, "alfworld"),
        (["eval.controls=[frst]"], 2, "first"),
    )),
    *((command, ["phases=[rl]", *each], REMOTE, code, word) for command in (POLICY, MEASURED) for each, code, word in (
        ([SKILLS, "skills.bank=./none"], 2, "skills.bank"),
        (["skills.embedder=hsh"], 2, "hash"),
        (["agent.context_mode=episode"], 2, "encode_next"),
        (["agent.structured_actions=true"], 2, "cannot restrict"),
        (["scale.address=local"], 2, "scale.address=local"),
        ([], 2, "OPENAI_API_KEY"),
    )),
    (["evaluate", "none"], [], ["rollout.backend=none"], 2, "a program has to play"),
    (EXPERT, ["env.kwargs.no_such=1"], ["env.id=alfworld"], 3, "no_such"),
    (["collect", "--env", "maht", "--policy", "expert"], [], ["env.id=maht"], 3, "math"),
    (DISTILLED, ["distill.teacher=heuristik"], ["phases=[distill, rl]", SKILLS], 2, "heuristic"),
    (DISTILLED, ["skills.embedder=hsh"], [], 2, "hash"),
    (DISTILLED, ["distill.teacher=openai", "endpoints.model=m"], ["phases=[distill, sft]", SKILLS], 2, "OPENAI_API_KEY"),
    (DISTILLED, ["distill.teacher=openai"], ["phases=[distill, sft]", SKILLS], 2, "endpoints.roles.teacher"),
    (MERGED, ["skills.merger=heuristi"], ["phases=[rl]"], 2, "heuristic"),
    (MERGED, ["skills.merger=openai", "endpoints.model=m"], ["phases=[rl]"], 2, "OPENAI_API_KEY"),
]  # fmt: skip
"""Command → settings → what else makes them matter to `train` → exit code → what the message names."""


@pytest.mark.parametrize(
    ("command", "overrides", "more", "code", "named"),
    OTHERS,
    ids=[f"{row[0][0]} {row[4]} {row[1][-1:]}" for row in OTHERS],
)
def test_other_commands_refuse_what_train_refuses(
    tiny_skills_yaml: Path, command: list[str], overrides: list[str], more: list[str], code: int, named: str
) -> None:
    (tmp := Path("..") / "episodes.jsonl").write_text("")
    config = [] if "expert" in command else ["--config", str(tiny_skills_yaml)]
    output = [] if command[0] in ("merge", "evaluate") else ["-o", "found.jsonl"]
    given = [word for each in overrides for word in ("--set", each)]
    done = skillttrl(*command, *(config[1:] if command[0] == "optimize" else config), *output, *given)
    said = " ".join((done.err + done.out).split())
    assert done.code == code and named in said and "Traceback" not in said, done
    assert not [*Path().iterdir()] and tmp.exists()
    trained = skillttrl(
        "train", tiny_skills_yaml, "--dry-run", *(word for each in [*more, *overrides] for word in ("--set", each))
    )
    assert trained.code == code and named in trained.err + trained.out, trained


BAD_VALUES = """
import torch

from skill_ttrl.config import Section


class Nan:
    options_type = Section

    def __init__(self, options):
        pass

    def __call__(self, inputs):
        return inputs.log_probs * float("nan"), {}


class NanGradient(Nan):
    # 0 everywhere, and so is what the square root is taken of: its derivative there is infinite.
    def __call__(self, inputs):
        return (inputs.log_probs - inputs.log_probs.detach()).abs().sqrt(), {}


class Broken(Nan):
    def __call__(self, inputs):
        raise IndexError("no such token")


class OneNumber(Nan):
    def __call__(self, inputs):
        return -(inputs.log_probs * inputs.advantages).mean(), {}


class NanAdvantages(Nan):
    def advantages(self, samples):
        return [float("nan") if place == 1 else 1.0 for place, _ in enumerate(samples.trajectories)]


class TooFew(Nan):
    def advantages(self, samples):
        return [1.0]

"""

BAD_ENV = '''
import sys
import gymnasium
from skill_ttrl.envs import TextEnv
from skill_ttrl.types import Task


class Bad(TextEnv):
    """Fails at some of its tasks, each in another way."""

    def tasks(self, split=None):
        numbers = range(6) if split == "train" else range(10, 13)
        return [Task(str(number), "Bad-v0", {"number": number}, split=split) for number in numbers]

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.number = (options or {"number": 0})["number"]
        if self.number == 3:
            sys.exit()
        return "half \\ud800", {"word": "\\udfff"}

    def step(self, action):
        if self.number == 4:
            raise RuntimeError("stuck")
        reward = {2: "1.0", 5: 1e300}.get(self.number, float(len(action)))
        return "\\ud800", reward, True, False, {"answer": "\\ud800", "graded": True}

    def close(self):
        sys.exit("no way out")


gymnasium.register("Bad-v0", Bad)
'''


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "own_bad_values.py").write_text(BAD_VALUES)
    (tmp_path / "own_bad_env.py").write_text(BAD_ENV)
    monkeypatch.syspath_prepend(str(tmp_path))
    return "own_bad_values"


@pytest.fixture(scope="module")
def base(tiny_yaml: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model to start from: the checkpoint of a cold start."""
    path = tmp_path_factory.mktemp("base") / "run"
    train.run(load_config(tiny_yaml, ["phases=[sft]"]), path)
    return path / "checkpoints" / "sft-000012"


def settings(base: Path, *more: str) -> list[str]:
    return ["phases=[rl]", f"model.path={base}", "rl.reward=random", *more]


def test_a_run_whose_updates_are_all_left_out_fails_and_says_so(
    base: Path, own: str, tiny_yaml: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "MAX_SKIPPED", 2)
    given = settings(base, f"rl.loss={own}:Nan", "rl.steps=3")
    words = "The last 2 updates of the phase rl were skipped"
    with pytest.raises(TrainingError, match=words) as caught:
        train.run(load_config(tiny_yaml, given), tmp_path / "run")
    assert caught.value.exit_code == 8
    summary = read_summary(tmp_path / "run")
    assert summary.stopped == str(caught.value) and summary.steps == {"rl": 2} and summary.accuracy_after is None
    assert len([text for text in summary.warnings if "first in step 0 of rl" in text]) == 1
    monkeypatch.setattr(state, "MAX_SKIPPED", 20)
    with pytest.raises(TrainingError, match="All updates of the phase rl were skipped"):
        train.run(load_config(tiny_yaml, given), tmp_path / "run", resume="auto")
    with RunFolder.open(tmp_path / "run") as folder:
        assert [checkpoint.step for checkpoint in list_checkpoints(folder)] == [1, 2, 3]


@pytest.mark.parametrize(
    ("key", "reason", "skipped"),
    [
        ("rl.loss={own}:NanGradient", r"the loss is 0, the norm of its gradient (nan|inf)\.", 2),
        ("rl.algorithm={own}:NanAdvantages", "the loss is nan; not finite before it: advantages_F at", 1),
    ],
)
def test_an_update_that_is_skipped_is_explained(
    base: Path, own: str, tiny_yaml: Path, tmp_path: Path, key: str, reason: str, skipped: int
) -> None:
    given = settings(base, key.format(own=own), "rl.steps=1", "rl.mini_batch_size=1", "rl.prompts_per_step=2")
    with suppress(TrainingError):  # all updates were skipped
        train.run(load_config(tiny_yaml, given), tmp_path / "run")
    assert any(re.search(f"first in step 0 of rl: {reason}", text) for text in read_summary(tmp_path / "run").warnings)
    row = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[0])
    assert row["skipped_updates"] == skipped and row["updates"] == 2 - skipped


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("rl.loss={own}:Broken", "IndexError: no such token"),
        ("rl.loss={own}:OneNumber", "a loss of shape ()"),
        ("rl.algorithm={own}:TooFew", "ValueError"),
    ],
)
def test_a_function_of_the_users_that_raises_is_one_line_and_an_exit_code(
    base: Path, own: str, tiny_yaml: Path, tmp_path: Path, capsys: Any, monkeypatch: Any, key: str, words: str
) -> None:
    given = [word for each in settings(base, key.format(own=own)) for word in ("--set", each)]
    monkeypatch.setattr(sys, "argv", ["skillttrl", "train", str(tiny_yaml), "-o", str(tmp_path / "run"), *given])
    with pytest.raises(SystemExit) as left:
        main()
    said = capsys.readouterr()
    assert left.value.code == 2 and words.format(own=own) in said.err and "Traceback" not in said.err + said.out


def test_what_an_environment_gets_wrong_is_on_its_trajectories_and_the_run_goes_on(
    base: Path, own: str, tiny_yaml: Path, tmp_path: Path
) -> None:
    env = ["env={id: 'own_bad_env:Bad-v0', eval_split: test}", "data.train=null", "data.eval=null"]
    config = load_config(tiny_yaml, settings(base, *env, "rl.reward=env", "rl.steps=2", "eval.greedy=false"))
    said = "Bad could not be closed: SystemExit: no way out"
    with pytest.warns(UserWarning, match=said):
        train.run(config, tmp_path / "run")
    with pytest.warns(UserWarning, match=said):
        again = train.run(config, tmp_path / "run", resume="auto")
    assert again.accuracy_after is not None
    lines = [from_json(Trajectory, line) for line in (tmp_path / "run" / "trajectories.jsonl").read_text().splitlines()]
    assert {line.task.id: line.error for line in lines} == {
        "0": None,
        "1": None,
        "2": "ValueError: the environment's reward is '1.0', a text",
        "3": "SystemExit: ",
        "4": "RuntimeError: stuck",
        "5": "ValueError: the environment's reward is 1e+300",
    }
    assert {step.observation for line in lines for step in line.steps} == {"half \ufffd"}

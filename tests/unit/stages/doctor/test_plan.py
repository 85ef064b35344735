"""`--dry-run`: what a run would take, reckoned before it starts."""

from __future__ import annotations

from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from transformers import Qwen2Config
from typer.testing import CliRunner

from skill_ttrl.cli.display.tables import plan_view
from skill_ttrl.cli.main import app
from skill_ttrl.config import load_config
from skill_ttrl.errors import ConfigError, ModelError
from skill_ttrl.rl.speed import DEVICES, PLANNED, device_of, measured, reckoned
from skill_ttrl.stages.doctor import plan as planning
from skill_ttrl.stages.doctor.plan import USUAL, plan
from skill_ttrl.stages.setup import ranks

PAPER = ("skillrl_alfworld", "skillrl_alfworld_lora", "skillrl_webshop", "skillrl_webshop_lora")


@pytest.mark.parametrize("name", PAPER)
def test_the_plan_of_a_paper_recipe_names_every_phase_with_its_hours(name: str) -> None:
    found = plan(load_config(name))
    assert [each.phase for each in found.phases] == ["collect", "distill", "sft", "rl", "evaluate"]
    assert found.parameters >= 7_615_616_512
    assert found.hours is not None and found.usual_hours is not None and 1 < found.usual_hours < found.hours
    assert any("published one" in text for text in found.assumptions)


@pytest.mark.parametrize("name", PAPER)
def test_all_weights_do_not_fit_one_gpu_and_adapters_do(name: str) -> None:
    found, whole = plan(load_config(name)), not name.endswith("_lora")
    assert found.peak < found.available == int(PLANNED.memory)
    assert (found.ranks, found.parallel) == ((8, "fsdp") if whole else (1, "alone"))
    alone = plan(load_config(name, ["runtime.nproc=1", "runtime.parallel=auto"]))
    assert (alone.peak > alone.available) is whole
    assert any("--nproc" in text for text in alone.obstacles) is whole
    assert whole is (found.hours != alone.hours)


def test_tokens_are_those_of_every_turn_at_its_longest() -> None:
    config = load_config("skillrl_webshop_lora", ["rl.steps=2", "rl.kl_coef=0"])
    rl = next(each for each in plan(config).phases if each.phase == "rl")
    assert rl.episodes == 2 * 16 * 8
    assert rl.prompt_tokens == rl.episodes * 15 * (6000 + 1500)
    assert rl.answer_tokens == rl.episodes * 15 * 768
    assert rl.trained_tokens == rl.episodes * 15 * (6000 + 1500 + 768)


def test_further_rounds_of_samples_are_said_to_be_left_out() -> None:
    asked = ["rl.algorithm=dapo", "rl.dynamic_sampling={max_rounds: 7}", "rl.loss={clip_ratio_high: 0.28}"]
    (line,) = [text for text in plan(load_config("quickstart", asked)).assumptions if text.startswith("rl counts")]
    assert "up to 7 times as many" in line


def test_a_teacher_costs_what_its_prices_say() -> None:
    priced = ["endpoints.teacher.price_in=2", "endpoints.teacher.price_out=8"]
    found = plan(load_config("skillrl_webshop_lora", priced))
    asked = {each.phase: each for each in found.phases}
    assert asked["rl"].requests == 30
    assert asked["rl"].cost == pytest.approx(30 * (6000 * 2 + 1500 * 8) / 1e6)
    thoughts = asked["sft"]
    assert thoughts.requests == 2400 and thoughts.cost == pytest.approx(2400 * (7500 * 2 + 300 * 8) / 1e6)
    assert found.cost == pytest.approx(sum(each.cost or 0 for each in found.phases))
    unpriced = plan(load_config("skillrl_webshop_lora"))
    assert unpriced.cost is None and any("price_in" in text for text in unpriced.assumptions)
    assert not any("price_in" in text for text in found.assumptions)


def test_every_evaluation_is_reckoned_the_one_without_the_bank_too() -> None:
    evaluated = {each.phase: each for each in plan(load_config("skillrl_webshop_lora")).phases}["evaluate"]
    assert evaluated.episodes == 64 * (len(("before", "after", "after_no_skills")) + 29)  # 29: every 5 of 150 steps


def test_rounds_of_dagger_are_reckoned_with_their_evaluations() -> None:
    own = ["phases=[collect,sft,dagger]", "dagger={rounds: 3, episodes: 50, steps: [10, 10, 20], eval_rounds: 1}"]
    own.append("env.eval_tasks=20")  # its games may not have been made yet
    phases = {each.phase: each for each in plan(load_config("quickstart_alfworld", own)).phases}
    assert phases["dagger"].episodes == 150 and "40 updates" in phases["dagger"].what
    assert phases["evaluate"].what.startswith("4 x "), "before, twice between rounds, after"


def test_a_plan_is_read_whole_on_a_terminal_of_80_columns() -> None:
    priced = ["endpoints.teacher.price_in=2", "endpoints.teacher.price_out=8"]
    screen = Console(width=80, file=StringIO())
    screen.print(plan_view(plan(load_config("skillrl_alfworld", priced))))
    shown = screen.file.getvalue()  # type: ignore[attr-defined]  # a StringIO
    assert "…" not in shown and "5.76B" in shown and "rl: 150 steps of 16 tasks x 8" in shown


def test_the_built_in_policy_is_measured_here() -> None:
    found = plan(load_config("quickstart"))
    assert found.speed is not None and found.speed.measured and not found.obstacles


def test_a_model_that_nobody_knows_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ModelError, match="Cannot read the config"):
        plan(load_config("skillrl_webshop_lora", ["model.path=nobody/nothing"]))


def test_a_device_is_known_by_the_name_that_its_driver_gives() -> None:
    assert device_of("NVIDIA H100 80GB HBM3") is DEVICES[1]
    assert device_of("NVIDIA A100-SXM4-80GB") is DEVICES[2]
    assert device_of("Tesla K80") is None


def test_ranks_sample_and_learn_side_by_side() -> None:
    settings = ["runtime.parallel=auto", "rollout.max_batch_size=64"]
    one, four = (plan(load_config("ttrl_qwen2.5_math_7b", [*settings, f"runtime.nproc={n}"])) for n in (1, 4))
    (rl_of_one, *_), (rl_of_four, *_) = one.phases, four.phases
    assert rl_of_one.rounds == 240 * 8 * 3072 and rl_of_four.rounds == 240 * 2 * 3072  # 8 x 64 rows, 64 a rank at once
    assert one.hours is not None and four.hours == pytest.approx(one.hours / 4)
    assert one.speed is not None and one.speed.cached == pytest.approx(PLANNED.bandwidth / 2 / (28 * 2 * 512 * 2))


def test_adapters_learn_faster_than_all_weights_and_read_as_fast() -> None:
    whole, few = reckoned(10**9, PLANNED), reckoned(10**9, PLANNED, trainable=10**7)
    assert few.training == pytest.approx(1.5 * whole.training)
    assert few.reading == whole.reading
    assert all(0 < share < 1 for share in USUAL.values())


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Speeds are measured for an instant."""
    monkeypatch.setattr("skill_ttrl.stages.doctor.plan.measured", partial(measured, seconds=0.0))


@pytest.mark.usefixtures("quick")
def test_a_local_file_is_counted_and_one_that_is_not_there_is_the_refusal(tiny_yaml: Path, tmp_path: Path) -> None:
    file = tmp_path / "problems.jsonl"
    file.write_text('{"prompt": "Compute 1+2.", "answer": 3}\n{"prompt": "Compute 2+2.", "answer": 4}\n')
    found = plan(load_config(tiny_yaml, [f"data.eval={{path: {file}}}"]))
    evaluated = found.phases[-1]
    assert (evaluated.what, evaluated.episodes) == ("2 x 2 tasks x 3", 12)
    assert found.exit_code == 0 and not found.obstacles
    missing = plan(load_config(tiny_yaml, [f"data.eval={{path: {tmp_path / 'no.jsonl'}}}"]))
    assert missing.exit_code == 3 and "No file" in missing.obstacles[0]
    few = plan(load_config(tiny_yaml, ["rl.prompts_per_step=7"]))
    assert few.exit_code == 2 and "there are 6 tasks to train on" in few.obstacles[0]


@pytest.mark.usefixtures("quick")
def test_what_a_recorded_run_took_stands_beside_the_bounds() -> None:
    said = plan(load_config("quickstart")).assumptions
    assert any(text.startswith("a recorded run of these settings: hardware: 2 cores") for text in said)
    assert not any("recorded run" in text for text in plan(load_config("quickstart", ["rl.steps=3"])).assumptions)


@pytest.mark.usefixtures("quick")
def test_a_small_model_of_a_folder_has_hours_on_a_cpu(tiny_yaml: Path, tmp_path: Path) -> None:
    shape: dict[str, Any] = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    Qwen2Config(**shape, num_attention_heads=2, num_key_value_heads=2).save_pretrained(tmp_path / "small")
    found = plan(load_config(tiny_yaml, ["phases=[rl]", f"model.path={tmp_path / 'small'}"]))
    assert found.hours is not None and found.speed is not None and found.speed.measured


@pytest.mark.parametrize(
    "wrong", ["rl.loss=ppoclip", "rl.reward=majorty", "rl.rollout_correction=icepp", "rl.algorithm=grop"]
)
def test_a_wrong_name_stops_a_plan_before_anything_is_measured(monkeypatch: pytest.MonkeyPatch, wrong: str) -> None:
    monkeypatch.setattr(planning, "measured", lambda *args, **kwargs: pytest.fail("measured"))
    with pytest.raises(ConfigError, match=r"Unknown.*Did you mean"):
        plan(load_config("quickstart", [wrong]))


@pytest.mark.usefixtures("quick")
def test_too_many_ranks_are_one_refusal_with_a_number_that_this_machine_has_cores_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ranks, "free_memory", lambda: 20_000_000_000)
    monkeypatch.setattr(ranks, "cores", lambda: 2)
    found = plan(load_config("quickstart", ["runtime.nproc=64", "runtime.device=cpu"]))
    assert len(found.obstacles) == 1 and found.obstacles[0].endswith("Start fewer: --nproc 2")


def test_a_refused_recipe_is_planned_and_ends_with_the_refusal_s_code() -> None:
    done = CliRunner().invoke(app, ["train", "skillrl_alfworld", "--dry-run", "--set", "requires=the moon"])
    assert done.exit_code == 2 and "waits for the moon" in " ".join(done.output.split())

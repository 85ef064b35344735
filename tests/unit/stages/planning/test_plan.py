"""Plans as a whole: every figure of the advice is a simulation, memory is the estimate that a run has, and a curve follows its points."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import pytest

from skill_ttrl.config import load_config
from skill_ttrl.errors import ConfigError, DataError, ModelError, RunFolderError
from skill_ttrl.llm.models.model_config import published_config
from skill_ttrl.rl.memory import read_shape
from skill_ttrl.rl.speed import PLANNED
from skill_ttrl.stages.doctor.memory import estimate_memory
from skill_ttrl.stages.plan import ClusterPlan, PlanOptions, pose, run, write_curve
from skill_ttrl.stages.planning.advice import EFFECTS, best, bottleneck, changes, savings
from skill_ttrl.stages.planning.calibrate import calibrate
from skill_ttrl.stages.planning.curve import curve, growing, scaled
from skill_ttrl.stages.planning.memory import memory_by_rank
from skill_ttrl.stages.planning.problem import MAX_SIMULATED, MAX_TURNS, Problem
from skill_ttrl.stages.planning.simulate import simulate
from skill_ttrl.stages.planning.workload import Lengths, MeasuredStep, bounds, count, limited

SMALL = "ttrl_qwen2.5_math_1.5b"
NAME = "ttrl_qwen2.5_math_7b"
OPTIONS = PlanOptions(gpus=8, nodes=2, gpu="h100", env_seconds=0.001)


EPISODES = ("agent.max_turns=10", "agent.context_mode=episode", "agent.template=boxed")
AHEAD = PlanOptions(gpus=3, gpu="h100", rollout_gpus=2, env_seconds=0.001)
FAR = ("rl.eval_steps=null", "rl.save_steps=1000")


def problem(*overrides: str, options: PlanOptions = OPTIONS, name: str = NAME) -> Problem:
    return pose(load_config(name, list(overrides)), options, [])


@pytest.fixture(scope="module")
def found() -> ClusterPlan:
    return run(load_config(NAME), replace(OPTIONS, price=2.0))


def test_hours_tokens_and_cost_follow_from_the_step(found: ClusterPlan) -> None:
    assert found.tokens["sampled"] == 8 * 64 * 3072 and found.tokens["trained"] == 8 * 32 * (512 + 3072)
    assert found.tokens["sampled_in_all"] == 240 * found.tokens["sampled"]
    assert found.tokens_per_second == pytest.approx(found.tokens["sampled"] / found.step_seconds)
    assert found.rollouts_per_second == pytest.approx(512 / found.step_seconds)
    assert found.hours == pytest.approx(240 * found.step_seconds / 3600)
    assert found.cost == pytest.approx(2.0 * found.gpu_hours) and found.gpu_hours == pytest.approx(8 * found.hours)
    assert sum(found.parts.values()) == pytest.approx(found.step_seconds)  # nothing overlaps
    assert run(load_config(NAME), OPTIONS).cost is None


def test_the_bottleneck_is_the_part_of_which_half_saves_most(found: ClusterPlan) -> None:
    assert found.bottleneck == "generation"
    saved = savings(problem().loop())
    assert saved["generation"] == pytest.approx(found.parts["generation"] / 2, rel=1e-3)
    assert bottleneck(problem().loop().faster("generation", 100)) == "update"
    slow = replace(problem().loop(), env_seconds=10.0)
    assert bottleneck(slow) == "environment"


def test_advice_is_another_simulation(found: ClusterPlan) -> None:
    advised = best(found.changes)
    assert advised is not None and found.advice.startswith(advised.setting)
    assert advised.setting == "rollout.backend=vllm" and advised.effect == "speed"
    other = problem("rollout.backend=vllm")
    assert advised.step_seconds == pytest.approx(simulate(other.loop()).step_seconds)
    assert advised.gain == pytest.approx(found.step_seconds / advised.step_seconds)
    assert advised.bottleneck == bottleneck(other.loop())
    order = [(not each.fits, EFFECTS.index(each.effect), -each.gain) for each in found.changes]
    assert order == sorted(order)


def test_no_advice_is_given_for_what_gains_nothing() -> None:
    stuck = problem("rollout.backend=vllm")
    stuck = replace(stuck, env_seconds=1000.0, config=stuck.with_setting("rollout.mode", "async").config)
    assert all(each.gain < 1.05 for each in changes(stuck) if each.effect == "speed")


def test_staleness_is_advised_where_generation_has_gpus_of_its_own() -> None:
    apart = problem(*FAR, options=AHEAD, name=SMALL)
    assert apart.config.vllm.mode == "server" and apart.config.rollout.backend == "vllm"
    (ahead,) = [each for each in changes(apart) if each.setting == "rl.max_staleness=1"]
    assert ahead.effect == "off-policy" and ahead.gain > 1.2
    assert not staleness_advised(problem(name=SMALL))


@pytest.mark.slow
def test_staleness_that_a_run_refuses_is_not_advised() -> None:
    once = problem("rl.in_flight_updates=false", options=AHEAD, name=SMALL)
    assert staleness_advised(once) == ["rl.max_staleness=1"]
    ahead = once.with_setting("rl.max_staleness", 1)
    assert not staleness_advised(ahead)
    assert "--rollout-gpus=1" in {each.setting for each in changes(once)} - {each.setting for each in changes(ahead)}
    with pytest.raises(ConfigError, match="max_staleness=2 does not go with this config"):
        problem("rl.in_flight_updates=false", options=replace(AHEAD, max_staleness=2), name=SMALL)
    asleep = ["vllm.mode=server", "vllm.servers=['http://a:1','http://b:1']", "vllm.enable_sleep_mode=true"]
    assert not staleness_advised(problem(*asleep, options=AHEAD, name=SMALL))
    assumptions: list[str] = []
    several = replace(AHEAD, rollout_gpus=1, max_staleness=1)
    what_if = pose(load_config(SMALL), several, assumptions)
    assert what_if.staleness == 1 and [each for each in assumptions if "refuses several ranks" in each]
    assert not staleness_advised(what_if)


def test_rollouts_run_ahead_to_the_next_checkpoint_or_evaluation() -> None:
    ahead = replace(AHEAD, max_staleness=1)
    free, held = (problem(*each, options=ahead, name=SMALL).loop() for each in (FAR, ["rl.eval_steps=2"]))
    assert held.barriers == (10, 2) and simulate(held).step_seconds > 1.05 * simulate(free).step_seconds
    assert simulate(held).staleness == 0.5  # every other batch starts with nothing before it
    every = problem(*FAR, "rl.save_steps=1", options=ahead, name=SMALL).loop()
    assert simulate(every).step_seconds == pytest.approx(simulate(replace(every, max_staleness=0)).step_seconds)


def staleness_advised(asked: Problem) -> list[str]:
    return [each.setting for each in changes(asked) if "staleness" in each.setting]


def test_memory_of_a_learner_is_the_estimate_of_a_run(found: ClusterPlan) -> None:
    config = load_config(NAME)
    known = estimate_memory(
        config, published_config("Qwen/Qwen2.5-Math-7B"), device="cuda", precision="bf16", total=int(PLANNED.memory)
    )
    (each,) = found.memory
    assert (each.ranks, each.role, each.peak, each.fits) == ("0-7", "learner and generation", known.peak, True)
    assert each.parts == {name: size for name, size in known.parts.items() if size}


def test_ranks_that_generate_have_weights_and_a_cache() -> None:
    learner, generation = memory_by_rank(problem(options=replace(OPTIONS, rollout_gpus=3)))
    assert (learner.ranks, generation.ranks) == ("0-4", "5-7")
    assert generation.parts["weights"] == 2 * 7_615_616_512
    assert generation.peak == sum(generation.parts.values()) == int(0.45 * PLANNED.memory)
    small = problem("vllm.gpu_memory_utilization=0.1", options=replace(OPTIONS, rollout_gpus=3))
    assert not memory_by_rank(small)[1].fits


def test_a_model_that_does_not_fit_is_one_sentence_with_what_fits() -> None:
    with pytest.raises(
        ModelError, match=r"rank \(learner and generation\) needs 1\d\d\.\d GB .* has 80\.0 GB .*It fits with --gpus 8"
    ):
        run(load_config(NAME), PlanOptions(gpus=2, gpu="h100", env_seconds=0.0))
    with pytest.raises(ModelError, match="Cannot read the config of the model 'no/such'"):
        run(load_config(NAME, ["model.path=no/such"]), OPTIONS)
    with pytest.raises(ConfigError, match="Nothing is known of the speed of 7,615,616,512 parameters on this CPU"):
        run(load_config(NAME), replace(OPTIONS, gpu="cpu"))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"price": -1.0}, "--price -1"),
        ({"env_seconds": -0.1}, "--env-seconds -0.1"),
        ({"slow_fraction": 1.5}, "from 0 to 1"),
        ({"slow_factor": 0.5}, "--slow-factor 0.5 must be at least 1"),
        ({"tokens": 0.0}, "--tokens 0"),
        ({"max_staleness": -1}, "--max-staleness -1"),
        ({"turns": float("nan")}, "--turns nan"),
    ],
)
def test_numbers_that_nothing_can_have_are_refused(options: dict[str, float], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        pose(load_config(NAME), replace(OPTIONS, **options), [])  # type: ignore[arg-type]


def test_a_config_without_rl_and_an_environment_without_data_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"phases=\[collect,sft,rl\]"):
        run(load_config("quickstart_alfworld"), OPTIONS)
    with pytest.raises(ConfigError, match="Give its seconds: --env-seconds"):
        run(load_config("skillrl_alfworld", [f"env.kwargs.data={tmp_path}"]), replace(OPTIONS, env_seconds=None))


def test_many_rollouts_are_simulated_by_few() -> None:
    loop = problem("agent.max_turns=50", "agent.template=boxed", "rl.prompts_per_step=64").loop()
    assert loop.turns == MAX_TURNS and loop.rollouts == 64 * 64
    assert loop.rollouts * loop.turns / loop.weight <= 1.1 * MAX_SIMULATED
    assert loop.lengths[0] * loop.turns == pytest.approx(50 * 3072)


def test_lengths_are_bounds_of_the_config_or_those_of_a_run_under_its_limits() -> None:
    config = load_config(NAME, ["rollout.max_new_tokens=100"])
    assert bounds(config) == Lengths(1, 512, (100.0,), 612)
    assert bounds(config, tokens=40).response == 40 and bounds(config, tokens=400).response == 100
    known = Lengths(1, 60, (50.0, 150.0), 160)
    assert limited(known, config, None, None) == Lengths(1, 60, (50.0, 100.0), 135)
    assert limited(known, config, 20.0, None).response == 20
    counted = count(config, known)
    assert (counted.updates, counted.trained) == (8, 8 * 32)
    assert counted.read_tokens == pytest.approx(8 * 60)  # a group reads its prompt once
    assert counted.packed_tokens == counted.trained_tokens - 60 * (8 * 32 - 8)


def test_factors_are_measured_over_computed_seconds() -> None:
    own = replace(problem(), env_seconds=0.0, measured=Lengths(1, 60, (50.0, 150.0), 160))
    loop = own.loop()
    sample = simulate(replace(loop, update=0, transfer=0, records=0)).step_seconds
    parts = (2 * sample, 3 * loop.update, 4 * loop.transfer)
    step = MeasuredStep(own.measured, sum(parts) + 5 * loop.records, *parts, on_gpu=True)  # type: ignore[arg-type]
    found = calibrate(own, step)
    assert [found.generation, found.update, found.transfer, found.records] == pytest.approx([2, 3, 4, 5])
    again = replace(own, factors=found).loop()
    assert simulate(again).step_seconds == pytest.approx(step.seconds)
    with pytest.raises(DataError, match="Name another run"):
        calibrate(replace(own, env_seconds=1e9), step)
    assert calibrate(own, replace(step, seconds=0.9 * sum(parts))).records == 0  # medians need not add up


def test_lengths_of_whole_episodes_grow_with_their_turns_and_responses() -> None:
    """A first prompt of 20 tokens, 5 responses of 10 and 4 observations of 6: the mean prompt has 20 + 2 x 16 tokens."""
    config = load_config(NAME, [*EPISODES])
    known = Lengths(5, 52, (10.0,), 94)
    assert limited(known, config, None, None) == known
    assert limited(known, config, 20.0, None) == Lengths(5, 72, (20.0,), 144)
    assert limited(known, config, None, 10.0) == Lengths(10, 92, (10.0,), 174)
    short = load_config(NAME, [*EPISODES, "data.max_prompt_tokens=100", "rollout.max_new_tokens=20"])
    assert limited(known, short, None, 10.0).item == 120
    packed = Lengths(1, 60, (50.0,), 40)  # most of its samples were skipped
    assert limited(packed, load_config(NAME), 20.0, None) == replace(packed, responses=(20.0,))
    assert bounds(config, turns=30).turns == 10
    turns = load_config(NAME, ["agent.max_turns=10", "agent.template=boxed"])
    assert limited(Lengths(5, 52, (10.0,), 62), turns, 20.0, 10.0) == Lengths(10, 52, (20.0,), 72)


def test_prompts_are_read_anew_each_turn_but_in_whole_episodes() -> None:
    """Whatever the numbers of votes and of trained samples are."""
    known = Lengths(5, 900, (10.0,), 910)
    window = load_config(NAME, ["agent.max_turns=10", "agent.template=boxed", "rollout.n_samples_per_prompt=8"])
    assert count(window, known).read_per_turn == 900
    assert count(load_config(NAME, [*EPISODES]), known).read_per_turn == 180


def test_the_curve_has_the_points_that_fit_and_growing_batches_keep_growing() -> None:
    served = problem("rollout.backend=vllm")
    same, grows = curve(served, counts=(1, 8, 64, 512)), curve(served, grows=True, counts=(8, 64, 512))
    assert [point.gpus for point in same] == [8, 64, 512]  # its weights do not fit one GPU
    assert same[-1].rollouts_per_second < 1.2 * same[-2].rollouts_per_second  # 256 sequences cannot use more ranks
    assert grows[-1].rollouts_per_second > 6 * grows[-2].rollouts_per_second
    assert growing(served, 64).work.updates == served.work.updates
    apart = scaled(problem(options=replace(OPTIONS, rollout_gpus=6)), 32)
    assert apart is not None and (apart.machine.rollout_gpus, apart.machine.nodes) == (24, 4)  # machines of 8
    assert scaled(problem(options=replace(OPTIONS, rollout_gpus=6)), 1) is None


def test_the_image_has_a_dot_for_each_point(tmp_path: Path) -> None:
    name, options = "quickstart", PlanOptions(gpus=8, gpu="h100", env_seconds=0.0)
    posed = pose(load_config(name), options, [])
    lines = write_curve(posed, tmp_path / "curve.svg", counts=(1, 8, 64))
    image = ElementTree.parse(tmp_path / "curve.svg").getroot()
    dots = image.findall(".//{http://www.w3.org/2000/svg}circle")
    assert len(lines) == 3 and len(dots) == sum(map(len, lines.values())) == 9
    with pytest.raises(RunFolderError, match="choose another --svg"):
        write_curve(posed, tmp_path / "none" / "curve.svg", counts=(8,))


def test_a_shape_is_read_once_for_all_that_is_simulated() -> None:
    shape = read_shape(published_config("Qwen/Qwen2.5-Math-7B"), None)
    assert problem().shape == shape == problem("rl.kl_coef=0").shape

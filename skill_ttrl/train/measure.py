"""Measuring a policy: every problem exactly once, in a fixed order, seeded, with intervals.

`evaluate_samples` is a pure function of stored samples; `draw_samples` draws them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from skill_ttrl.agents.agent import Agent
from skill_ttrl.agents.scripted import FIRST, ConstantAgent, FirstAgent, ScriptedAgent, make_scripted_agent
from skill_ttrl.answers import canonicals, correct
from skill_ttrl.config import EvalConfig, RolloutConfig, SkillTTRLConfig
from skill_ttrl.envs import resolve_env
from skill_ttrl.errors import EnvError
from skill_ttrl.llm.backend import Sampling, wait_for
from skill_ttrl.rollout.episode import EnvPool, ScriptedPolicy
from skill_ttrl.rollout.outcome import GREEDY, SAMPLE, SamplingPass, TaskSamples, drawn, interval_of_rollouts
from skill_ttrl.rollout.rollout import RolloutSettings, refuse_failure, rollout
from skill_ttrl.statistics import (
    Interval,
    avg_at_k,
    mean_interval,
    paired_difference,
    pass_at_k,
    verdict,
    wilson_interval,
)
from skill_ttrl.train.results import Evaluation, ProblemResult, SamplingResult, TypeResult
from skill_ttrl.types import Group, Skill, Task, derive_seed
from skill_ttrl.voting import copied_winners, given_up, majority_vote, vote_entropy


@dataclass(frozen=True, slots=True)
class Controls:
    """Episodes of scripted agents."""

    rows: tuple[TaskSamples, ...] = ()
    """One episode a task and agent; `draw` is the agent's name."""
    why_none: str = ""
    """Why there are none, where a control was asked for and the environment judges its tasks; else empty."""
    asked: tuple[str, ...] = ()
    """Names of the agents that were asked for."""

    def by_agent(self) -> dict[str, list[TaskSamples]]:
        """The rows of each agent that played."""
        return {name: rows for name in self.asked if (rows := [row for row in self.rows if row.draw == name])}

    def of(self, problems: Sequence[TaskSamples]) -> Controls:
        """Select the rows of the same sources and tasks."""
        places = {(row.source, row.task.id) for row in problems}
        return replace(self, rows=tuple(row for row in self.rows if (row.source, row.task.id) in places))


def join(parts: Iterable[Controls]) -> Controls:
    """Controls of several sources as one."""
    found = list(parts)
    whys = dict.fromkeys(each.why_none for each in found if each.why_none)
    return Controls(tuple(row for each in found for row in each.rows), "; ".join(whys), found[0].asked)


def applies(config: EvalConfig, tasks: Sequence[Task]) -> bool:
    """Tell whether controls are asked for, and the environment judges the tasks: they have no true answers."""
    return bool(config.controls and tasks) and all(task.ground_truth is None for task in tasks)


def play_controls(
    config: SkillTTRLConfig, tasks: Sequence[Task], envs: EnvPool, agent: Agent, *, source: str = ""
) -> Controls:
    """Have the scripted agents of `eval.controls` play every task once.

    Nothing is played where tasks have true answers, where the environment lists no actions, or where it says that steps are
    expensive (`TextEnv.expensive`).

    Args:
        config: its `eval.controls`, `agent` and `seed` are used.
        tasks: what is measured.
        envs: one environment is taken from it.
        agent: the policy's. `first` takes the action that its prompts list first, under the bank that it sees.
        source: written on the rows.
    """
    asked = tuple(config.eval.controls)
    if not applies(config.eval, tasks):
        return Controls(asked=asked)
    if getattr(envs.acquire().unwrapped, "expensive", False):
        return Controls(why_none="steps of this environment are expensive: no control", asked=asked)
    settings = RolloutSettings(
        Sampling(), config.seed, config.agent.max_turns, rollout_timeout_s=config.rollout.rollout_timeout_s
    )
    if not lists_actions(envs, tasks, settings):
        return Controls(why_none="no listed actions: no control", asked=asked)
    rows = []
    for name in asked:
        for task in tasks:
            group = _play(envs, task, partial(_scripted_agent, name, config, agent, task), settings)
            rows.append(drawn(group, source=source, draw=name))
    return Controls(tuple(rows), asked=asked)


def _play(envs: EnvPool, task: Task, make: Callable[[], ScriptedAgent], settings: RolloutSettings) -> Group:
    return wait_for(rollout([task], 1, envs=envs, agent=ScriptedPolicy(make), settings=settings))[0]


def _scripted_agent(name: str, config: SkillTTRLConfig, agent: Agent, task: Task) -> ScriptedAgent:
    if name != FIRST or agent.skills is None or not agent.listing.by_words:
        return make_scripted_agent(name, resolve_env(config.env.id), config.agent)

    def shown(said: str) -> tuple[Skill, ...]:
        return agent.select_skills([task], [said])[0].skills

    return FirstAgent(agent.listing, shown)


def lists_actions(envs: EnvPool, tasks: Sequence[Task], settings: RolloutSettings) -> bool:
    """Tell whether the environment lists actions, by one step of one of the first tasks."""
    for task in tasks[:3]:
        (played,) = _play(envs, task, partial(ConstantAgent, "look"), replace(settings, max_turns=1)).trajectories
        if played.steps:
            return bool(played.steps[0].admissible_actions)
    return False


SampleFn = Callable[[int, Sampling, int], list[Group]]
"""(rollouts per task, sampling, seed) → one group a task, in a fixed order."""
NO_CONTROLS = Controls()


def correctness(row: TaskSamples) -> list[bool | None]:
    """Grade each sample: by the true answer, else by what the environment said; None where neither is known."""
    if row.task.ground_truth is None:
        return [sample.is_correct for sample in row.samples]
    return list(correct([(answer, row.task.ground_truth) for answer in row.answers]))


def evaluation_draws(config: EvalConfig, how: RolloutConfig, seed: int) -> list[SamplingPass]:
    """The ways of sampling that an evaluation needs, the one of its main figures first."""

    def at(temperature: float, name: str) -> SamplingPass:
        sampling = replace(Sampling.of(how, temperature), top_p=config.top_p)
        return SamplingPass(name, config.samples, sampling, derive_seed(seed, "evaluate", name))

    greedy = SamplingPass(GREEDY, 1, Sampling.of(how, 0.0), derive_seed(seed, "evaluate", GREEDY))
    # The main temperature may stand among the extra ones, and one of these twice; each is drawn once.
    heats = [heat for heat in dict.fromkeys(config.extra_temperatures) if heat != config.temperature]
    extra = [at(heat, _at(heat)) for heat in heats]
    return [at(config.temperature, SAMPLE), *([greedy] if config.greedy else []), *extra]


def draw_samples(
    sample: SampleFn, config: EvalConfig, rollout: RolloutConfig, seed: int
) -> tuple[list[TaskSamples], list[Group]]:
    """Sample every task as `evaluation_draws` says; also returns the rollouts at the temperature of the main figures, whole.

    Raises:
        EndpointError, EnvError: every try failed (`refuse_failure`).
    """
    rows, whole = list[TaskSamples](), list[Group]()
    for draw in evaluation_draws(config, rollout, seed):
        groups = sample(draw.rollouts_per_task, draw.sampling, draw.seed)
        if draw.name == SAMPLE:
            refuse_failure(groups)
            whole = groups
        rows += [drawn(group, draw=draw.name) for group in groups]
    return rows, whole


def evaluate_samples(
    rows: Sequence[TaskSamples],
    *,
    label: str,
    config: EvalConfig,
    source: str = "",
    transductive: bool | None = None,
    controls: Controls = NO_CONTROLS,
) -> Evaluation:
    """The figures of stored samples: a pure function, so the same samples give the same figures at any time.

    Args:
        rows: what was drawn as `evaluation_draws` says, problems in the same order under each way of sampling.
        label: written on the evaluation.
        config: what was drawn.
        source: written on the evaluation.
        transductive: written on the evaluation.
        controls: what scripted agents did with the same problems.

    Raises:
        EnvError: every try failed in the environment.
    """
    # One call for all of them; the results are cached.
    canonicals([answer for row in rows for answer in (*row.answers, row.task.ground_truth)])
    main = [row for row in rows if row.draw == SAMPLE]
    errors = failures(main)
    greedy = [row for row in rows if row.draw == GREEDY]
    results = [_result(row, greedy[place] if greedy else None) for place, row in enumerate(main)]
    graded = bool(results) and all(result.correct is not None for result in results)
    voted = any(row.task.ground_truth is not None or any(answer is not None for answer in row.answers) for row in main)
    majority = [bool(result.majority_correct) for result in results] if graded and voted else []
    greedily = [bool(result.greedy_correct) for result in results] if graded and greedy else []
    exploits = [sample.exploits for row in main for sample in row.samples if sample.exploits is not None]
    score, score_interval = _score(main)
    greedy_score, greedy_score_interval = _score(greedy)
    return Evaluation(
        label=label,
        split=main[0].task.split,
        problems=len(main),
        samples=config.samples,
        temperature=config.temperature,
        **(_accuracy(rows, main, config) if graded else NOT_GRADED),
        **_share("majority", majority),
        **_share("greedy", greedily),
        majority_ratio=float(np.mean([result.majority_ratio for result in results])) if voted else None,
        entropy=float(np.mean([_answer_entropy(row) for row in main])) if voted else None,
        copied_winners=copied_winners(
            (row.task, each.majority_answer) for row, each in zip(main, results, strict=True)
        ),
        results=tuple(results),
        failed=len(errors) / sum(len(row.samples) for row in main),
        skill_use=_skill_use(main),
        source=source,
        transductive=transductive,
        undecided_answers=given_up(answer for row in rows for answer in row.answers).count,
        score=score,
        score_interval=score_interval,
        greedy_score=greedy_score,
        greedy_score_interval=greedy_score_interval,
        exploit_rate=float(np.mean([count > 0 for count in exploits])) if exploits else None,
        controls=control_results(controls, results),
        no_controls=controls.why_none,
    )


def _accuracy(rows: Sequence[TaskSamples], main: Sequence[TaskSamples], config: EvalConfig) -> dict[str, Any]:
    """`accuracy`, `pass_at_k` and what is by temperature or type, of an evaluation whose samples are all graded."""
    correct_P_K = _correct_matrix(main)
    samples = config.samples
    ks = sorted({samples, *(1 << power for power in range(samples.bit_length()))})
    passed = {str(k): [pass_at_k(len(row), int(row.sum()), k) for row in correct_P_K] for k in ks}
    extra = {f"{heat:g}": [row for row in rows if row.draw == _at(heat)] or main for heat in config.extra_temperatures}
    others = {GREEDY: [row for row in rows if row.draw == GREEDY], **extra}
    return {
        "accuracy": avg_at_k(correct_P_K),
        "accuracy_interval": mean_interval(correct_P_K.mean(axis=1)),
        "pass_at_k": {k: float(np.mean(each)) for k, each in passed.items()},
        "pass_at_k_intervals": {k: mean_interval(each) for k, each in passed.items()},
        "by_temperature": {heat: avg_at_k(_correct_matrix(sampled)) for heat, sampled in extra.items()},
        "by_type": _by_type(main, correct_P_K),
        "by_sampling": {name: _sampling_result(own) for name, own in others.items() if own},
    }


NOT_GRADED: Mapping[str, Any] = {"accuracy": None, "accuracy_interval": None, "pass_at_k": {}, "by_temperature": {}}


def _share(name: str, right: Sequence[bool]) -> dict[str, Any]:
    """Share of the problems that are right, and its interval; None of no problems."""
    if not right:
        return {name: None, f"{name}_interval": None}
    interval = wilson_interval(sum(right), len(right))
    return {name: float(np.mean(right)), f"{name}_interval": interval}


def control_results(controls: Controls, results: Sequence[ProblemResult] = ()) -> dict[str, TypeResult]:
    """Success and score of each scripted agent (see `evaluate_samples`), and how the policy's `results` compare."""
    policy = {each.task: each.correct / each.samples for each in results if each.correct is not None}
    found = {}
    for name, rows in controls.by_agent().items():
        if all(None not in correctness(row) for row in rows):
            correct_P_K = _correct_matrix(rows)
            found[name] = _share_of(rows, correct_P_K)
            if all(row.task.id in policy for row in rows):
                shares = correct_P_K.mean(axis=1), [policy[row.task.id] for row in rows]
                _, low, high = paired_difference(*shares)
                found[name] = replace(found[name], policy=verdict((low, high)))
    return found


def failures(rows: Sequence[TaskSamples]) -> list[str]:
    """Errors of the failed rollouts, which count as wrong unless all failed.

    Raises:
        EnvError: every try failed: the environment is broken, and there is nothing to measure.
    """
    errors = [sample.error for row in rows for sample in row.samples if sample.error is not None]
    rollouts = sum(len(row.samples) for row in rows)
    if errors and len(errors) == rollouts:
        raise EnvError(f"Every one of {rollouts} rollouts failed in {rows[0].task.env_id}. The first: {errors[0]}")
    return errors


def _by_type(rows: Sequence[TaskSamples], correct_P_K: np.ndarray) -> dict[str, TypeResult]:
    kinds = sorted({row.task.task_type for row in rows})
    found: dict[str, TypeResult] = {}
    for kind in kinds if len(kinds) > 1 else ():
        own = [place for place, row in enumerate(rows) if row.task.task_type == kind]
        found[kind] = _share_of([rows[place] for place in own], correct_P_K[own])
    return found


def _sampling_result(rows: Sequence[TaskSamples]) -> SamplingResult:
    correct_P_K = _correct_matrix(rows)
    whole = _share_of(rows, correct_P_K)
    return SamplingResult(whole.accuracy, whole.interval, _by_type(rows, correct_P_K))


def _share_of(rows: Sequence[TaskSamples], correct_P_K: np.ndarray) -> TypeResult:
    bounds = interval_of_rollouts(correct_P_K.tolist())
    return TypeResult(len(correct_P_K), avg_at_k(correct_P_K), bounds, *_score(rows))


def _score(rows: Sequence[TaskSamples]) -> tuple[float | None, Interval | None]:
    """Mean score and its interval; None where they have no score."""
    if not (scores := _scores(rows)):
        return None, None
    bounds = interval_of_rollouts(scores)
    return float(np.mean([np.mean(each) for each in scores])), bounds


def _at(temperature: float) -> str:
    return f"sample at {temperature:g}"


def _result(row: TaskSamples, greedy: TaskSamples | None) -> ProblemResult:
    vote = majority_vote(row.answers)
    right = correctness(row)
    known = all(each is not None for each in right)
    winner = vote.matches.index(True) if vote.answer is not None else None
    scores = _scores([row])
    return ProblemResult(
        task=row.task.id,
        correct=sum(bool(each) for each in right) if known else None,
        samples=len(right),
        majority_answer=vote.answer,
        majority_ratio=vote.majority_ratio,
        majority_correct=(winner is not None and bool(right[winner])) if known else None,
        greedy_correct=correctness(greedy)[0] if greedy else None,
        score=float(np.mean(scores[0])) if scores else None,
    )


def _scores(rows: Sequence[TaskSamples]) -> list[list[float]]:
    """Scores of each row, of failed samples 0; empty unless there are samples that did not fail and each of them has a score."""
    whole = [sample for row in rows for sample in row.samples if sample.error is None]
    if not whole or any(sample.score is None for sample in whole):
        return []
    return [[sample.score or 0.0 for sample in row.samples] for row in rows]


def _correct_matrix(rows: Sequence[TaskSamples]) -> np.ndarray:
    return np.array([[bool(each) for each in correctness(row)] for row in rows])


def _answer_entropy(row: TaskSamples) -> float:
    vote = majority_vote(row.answers)
    silent = [1] * vote.abstained  # every sample without an answer is its own class: silence is no agreement
    return vote_entropy([*(votes for _, votes in vote.classes), *silent])


def _skill_use(rows: Sequence[TaskSamples]) -> dict[str, float]:
    """Use of the skill bank, counted as in `run_bank.skill_metrics`."""
    rollouts = [sample for row in rows for sample in row.samples]
    counts = [sample.skills for sample in rollouts if sample.skills is not None]
    return {name: sum(found[name] for found in counts) / len(rollouts) for name in (counts[0] if counts else ())}

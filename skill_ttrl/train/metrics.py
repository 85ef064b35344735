"""Metrics of a training step that need no true answers: rewards and lengths, votes, episodes."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np

from skill_ttrl.answers import canonical
from skill_ttrl.config import RLConfig, SkillTTRLConfig
from skill_ttrl.errors import ConfigError, did_you_mean
from skill_ttrl.registry import Registry, naming
from skill_ttrl.statistics import Interval
from skill_ttrl.train.results import Evaluation
from skill_ttrl.types import Completion, Group, Task, Trajectory, VoteResult, equal_rewards
from skill_ttrl.voting import copied_winners, given_up, vote_entropy, vote_metrics
from skill_ttrl.voting.rewards import OVERLONG
from skill_ttrl.voting.strategies import mean, mean_if_known

if TYPE_CHECKING:
    import torch


BY_TYPE = "success/"
"""Begins the name of a metric that is the success of one type of task."""
LEFT_OUT = ("turns", "observation_tokens", "actions")
"""Parts that a prompt of `agent.context_mode: window` may have had no room for; see `Step.truncated_parts`."""


def trajectories_of(groups: Sequence[Group]) -> list[Trajectory]:
    """All rollouts of a step, group after group."""
    return [trajectory for group in groups for trajectory in group.trajectories]


def completions_of(groups: Sequence[Group]) -> list[Completion]:
    """All completions of a step, in the order of its rollouts."""
    steps = [step for trajectory in trajectories_of(groups) for step in trajectory.steps]
    return [step.completion for step in steps if step.completion is not None]


def group_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """Rewards, lengths and failures of a step's samples; where there are several rewards, `rewards/NAME/mean` of each before its weight."""
    completions = completions_of(groups)
    rewards = [[trajectory.reward or 0.0 for trajectory in group.trajectories] for group in groups]
    parts = [each.rewards for each in trajectories_of(groups)]
    names = dict.fromkeys(name for part in parts for name in part)
    return {
        **{f"rewards/{name}/mean": mean([part[name] for part in parts if name in part]) for name in names},
        "reward": float(np.mean([value for group in rewards for value in group])),
        "frac_reward_zero_std": float(np.mean([equal_rewards(group) for group in rewards])),
        "completions/mean_length": mean([float(done.num_sampled_tokens) for done in completions]),
        "completions/clipped_ratio": mean([float(done.finish_reason == "length") for done in completions]),
        "failed_rollouts": float(np.mean([each.error is not None for each in trajectories_of(groups)])),
    }


def staleness_metrics(groups: Sequence[Group], step: int) -> dict[str, float]:
    """Steps between the weights that sampled a completion and those of `step`, which learn from it."""
    ages = [float(step - done.policy_version) for done in completions_of(groups)]
    return {"staleness/mean": mean(ages), "staleness/max": max(ages)} if ages else {}


def overlong_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """`overlong_fraction`: share of rollouts with a length penalty. Empty without one (`rl.overlong_penalty`)."""
    penalties = [each.rewards[OVERLONG] for each in trajectories_of(groups) if OVERLONG in each.rewards]
    return {"overlong_fraction": mean([float(each < 0) for each in penalties])} if penalties else {}


def step_rates(
    groups: Sequence[Group], metrics: Mapping[str, float], times: Mapping[str, float], device: torch.device, ranks: int
) -> dict[str, float]:
    """Rollouts and sampled tokens a second of sampling, those that a bank inserted not counted; for the rest see `update_rates`."""
    from skill_ttrl.rl.learner import update_rates

    tokens = sum(completion.num_sampled_tokens for completion in completions_of(groups))
    seconds = max(times["sample_seconds"], 1e-9)
    return {
        "rollouts_per_second": len(trajectories_of(groups)) / seconds,
        "tokens_per_second": tokens / seconds,
        **update_rates(metrics, times["update_seconds"], device, ranks),
    }


def step_vote_metrics(
    groups: Sequence[Group], votes: Sequence[VoteResult], rl: RLConfig, visits: Mapping[str, float]
) -> dict[str, float]:
    """Metrics of a step's votes and answers; `visits` are those of their history.

    Empty where the environment's own return is rewarded and no rollout has an answer: there is nothing to vote on.
    """
    if rl.reward == "env" and all(answer is None for group in groups for answer in group.answers):
        return {}
    return {**visits, **vote_metrics(votes), **answer_metrics(groups, votes)}


def answer_metrics(groups: Sequence[Group], votes: Sequence[VoteResult]) -> dict[str, float]:
    """Entropy of a step's answers, how many stayed undecided, and the share of winners that stand in their question, where one has both."""
    copied = copied_winners((group.task, vote.answer) for group, vote in zip(groups, votes, strict=True))
    return ({} if copied is None else {"copied_winners": copied}) | {
        "answer_entropy": float(np.mean([vote_entropy([n for _, n in v.classes] + [1] * v.abstained) for v in votes])),
        "undecided_answers": float(given_up(answer for group in groups for answer in group.answers).count),
    }


def several_types(tasks: Iterable[Task]) -> bool:
    """True if the tasks are of more than one type."""
    return len({task.task_type for task in tasks}) > 1


def episode_metrics(
    groups: Sequence[Group], config: SkillTTRLConfig, *, by_type: bool, tools: bool = False
) -> dict[str, float]:
    """Metrics of a step's episodes, of all that were played.

    `success`: share of the rollouts that the environment calls a success (`Trajectory.success`), those that failed included; with
    `by_type` also `success/<type>` of each type that the step has. `score`: mean of how near they came to perfect ones, where
    the environment reports it. Either is left out if the environment does not report it. `invalid_actions` and `repaired_actions`: shares of the
    steps whose action was read from the model's words. Where episodes can have several turns: `episode_steps` (mean of those
    that did not fail), `tools/calls` and `tools/errors` (mean of a rollout) where the policy has `tools`, `timeout_fraction` (share of rollouts) where
    their time is limited, and as `prompt_truncated/<what>` the share of steps whose prompt had no room for all of it.
    """
    rollouts = trajectories_of(groups)
    metrics: dict[str, float] = {}
    if any(each.error is None for each in rollouts):
        found = {"success": mean_if_known([each.success for each in rollouts])}
        if by_type and found["success"] is not None:
            for kind in sorted({each.task.task_type for each in rollouts}):
                own = [each.success for each in rollouts if each.task.task_type == kind]
                found[f"{BY_TYPE}{kind or 'other'}"] = mean_if_known(own)
        found["score"] = mean_if_known([each.score if each.error is None else 0.0 for each in rollouts])
        metrics = {name: value for name, value in found.items() if value is not None}
    steps = [step for trajectory in rollouts for step in trajectory.steps]
    read = [step.action_status for step in steps if step.action_status is not None]
    if read:
        metrics["invalid_actions"] = mean([float(verdict == "invalid") for verdict in read])
        metrics["repaired_actions"] = mean([float(verdict == "repaired") for verdict in read])
    if config.agent.max_turns > 1:
        metrics["episode_steps"] = mean([float(len(each.steps)) for each in rollouts if each.error is None])
        calls = [call for step in steps for call in step.calls]
        if calls or tools:
            metrics["tools/calls"] = len(calls) / len(rollouts)
            metrics["tools/errors"] = sum(bool(call.error) for call in calls) / len(rollouts)
        if config.rollout.rollout_timeout_s is not None:
            metrics["timeout_fraction"] = mean([float(each.stop_reason == "timeout") for each in rollouts])
        skills = config.skills
        shown = skills is not None and skills.enabled and skills.prompt_top_k > 0
        for what in [*(LEFT_OUT if config.agent.windowed else ()), *(["skills"] if shown else [])]:
            metrics[f"prompt_truncated/{what}"] = mean([float(step.truncated_parts.get(what, 0) > 0) for step in steps])
    return metrics


LEAST_REWARDED = 4
"""A step with fewer rewarded rollouts has no trip-wire shares."""
COPIED_WORDS = 8
"""Words in a row from which on a rollout repeats a skill."""
_FORM = re.compile(
    r"<action>.*?</action>|</?(?:answer|think)>|\\boxed|\b(?:the|final|answer|is)\b|[\W_]", re.IGNORECASE | re.DOTALL
)
"""Words and signs around an answer that are no reasoning, and whole actions, since an action may be a number."""
_LONGEST_FORM = 80
"""Most characters of a text beyond its answer or action for it to be bare."""


def tripwire_metrics(groups: Sequence[Group], skills: Mapping[str, str], *, answers: bool) -> dict[str, float]:
    """Shares of a step's rewarded rollouts that may be shortcuts; empty where fewer than `LEAST_REWARDED` are rewarded.

    A rollout is rewarded if it earned more than the mean of its group, or, where all earned the same, more than 0.

    Args:
        groups: All rollouts of the step, rewarded.
        skills: Text of each skill of the bank, by id.
        answers: Rollouts of this run have given answers, so that one without may be meant to have one.
    """
    rewarded = list[Trajectory]()
    for group in groups:
        played = [each for each in group.trajectories if each.error is None]
        earned = [each.reward or 0.0 for each in played]
        bar = 0.0 if equal_rewards(earned) else mean(earned)
        rewarded += [each for each, reward in zip(played, earned, strict=True) if reward > bar]
    if len(rewarded) < LEAST_REWARDED:
        return {}
    shown = {name for each in rewarded for name in (*each.skills_in_prompt, *each.retrieved)}
    pieces = {name: _pieces(skills[name]) for name in shown if name in skills}
    found = {"bare_answers": [_is_bare(each) for each in rewarded]}
    found["unreadable"] = [_is_unreadable(each, answers) for each in rewarded]
    if pieces:
        found["copied_skills"] = [_copies(each, pieces) for each in rewarded]
    return {f"tripwire/{name}": sum(flags) / len(flags) for name, flags in found.items()}


def _is_bare(trajectory: Trajectory) -> bool:
    """Tell whether each turn is nothing but its action, or the answer; a call of a tool is more."""
    for step in trajectory.steps:
        text = step.model_text
        said = trajectory.answer if step.action_status is None else step.action
        if step.calls or said is None or len(text) > len(said) + _LONGEST_FORM or _FORM.sub("", text.replace(said, "")):
            return False
    return True


def _is_unreadable(trajectory: Trajectory, answers: bool) -> bool:
    """Tell whether a rollout has no text, or neither a valid action nor, where there are `answers`, an answer."""
    read = [step.action_status for step in trajectory.steps if step.action_status is not None]
    nothing = all(status == "invalid" for status in read) if read else answers and trajectory.answer is None
    return nothing or not trajectory.text.strip()


def _copies(trajectory: Trajectory, pieces: Mapping[str, Sequence[str]]) -> bool:
    """Tell whether a rollout repeats one of the `pieces` of the skills that it was shown."""
    text = f" {' '.join(_words(trajectory.text))} "
    shown = (*trajectory.skills_in_prompt, *trajectory.retrieved)
    return any(piece in text for name in shown for piece in pieces.get(name, ()))


def _pieces(text: str) -> list[str]:
    """Each `COPIED_WORDS` words in a row."""
    words = _words(text)
    return [f" {' '.join(words[start : start + COPIED_WORDS])} " for start in range(len(words) - COPIED_WORDS + 1)]


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


# Signs that a run cannot work, as warnings: in the steps of its RL training, and in its votes with and without its skill bank.
#
# The votes' own signs are in `collapse_signs`, those of a reward that is paid for the wrong thing in `tripwire_signs`. The metrics that need labels only measure: a warning is all that comes of them.


EARLY = 5
"""Steps after which the signs that need no course are looked at for the first time."""
INVALID = 0.9
"""Share of invalid actions from which on nearly all of them are."""
CUT_OFF = 0.5
"""Share of completions that were cut off from which on that is why they earn nothing."""
RISE = 0.1
"""Least rise of the agreement, from the first third of the steps to the last."""
NEVER_TRUE = 0.05
"""Share of true winners below which nearly none is."""
OTHER_WINNERS = 0.5
"""Share of the problems with another winner from which on a bank decides the votes."""
BANK_RISE = 0.1
"""Least difference of agreement that is worth a warning where no labels are known."""

HOW_TO_ANSWER = r"Answers are read from \boxed{63} or <answer>63</answer>: request this form in the prompt (agent.template), use it in the demonstrations (sft.data), or read the samples in steps[] of trajectories.jsonl."
Rows = Sequence[Mapping[str, Any]]
"""Figures of each step, oldest first."""
Signs = dict[str, str]
"""Warnings: the words that each begins with, and how it goes on."""


def early_signs(rows: Rows, *, answers: bool = True) -> Signs:
    """Warnings that a few steps are enough for; `answers`: the reward looks at answers."""
    found, abstained, invalid = Signs(), figures(rows, "abstained"), figures(rows, "invalid_actions")
    clipped = mean(figures(rows, "completions/clipped_ratio"))
    if invalid and mean(invalid) >= INVALID:
        found["Nearly all actions were invalid"] = (
            f" ({mean(invalid):.0%} over {steps_of(len(invalid))}): the policy does not write them in the required form. See "
            "steps[].parse_error in trajectories.jsonl; a longer cold start helps, or another agent.action_parser."
        )
    # All other signs follow from a lack of answers, which itself may follow from invalid actions.
    if answers and abstained and mean(abstained) >= NO_ANSWER:
        why = "Most were truncated: raise rollout.max_new_tokens." if clipped >= CUT_OFF else HOW_TO_ANSWER
        said = f" ({mean(abstained):.0%} abstained over {steps_of(len(abstained))}). {why}"
        return found or {"Almost no sample contained an answer": said}
    uniform = figures(rows, "frac_reward_zero_std")
    # Samples of equal reward can have advantages without a group's mean (`psr`, `gae`).
    learned = any(row.get(f"advantage/{name}") for row in rows for name in ("max", "min"))
    if uniform and min(uniform) == 1.0 and not learned:
        reward = mean(figures(rows, "reward"))
        why = "The cold start is too weak, or the tasks are too hard: collect more demonstrations, or start with easier tasks."
        if reward > 0.5:
            why = "The policy already gets all of this reward; harder tasks would show differences."
        elif clipped >= CUT_OFF:
            why = f"{clipped:.0%} of the completions were truncated: raise rollout.max_new_tokens."
        found["No reward differed"] = (
            f" within any group in {steps_of(len(uniform))} (mean reward {reward:.2f}), so no sample was better than another. {why}"
        )
    elif rows and all(map(_idle, rows)):
        found["No step changed the weights"] = (
            f" in {steps_of(len(rows))}: rewards differed, but every advantage was 0. Check the options of rl.algorithm, and the advantages "
            "in trajectories.jsonl."
        )
    return found


SHARE, RISE_OF_SHARE, LENGTH, WINDOW = 0.5, 0.3, 4.0, 3
"""Thresholds of the trip-wires: share of the rewarded rollouts or winners, its least rise, factor of the length; latest steps, which the first is compared with."""

UNREADABLE = "Rewarded rollouts are empty or cannot be read"
"""Begins the warning of `tripwire/unreadable`."""
TRIPWIRES: Mapping[str, tuple[str, str]] = {
    "tripwire/bare_answers": (
        "Rewarded answers come without reasoning",
        "of the rewarded rollouts are nothing but the answer. If the task needs reasoning, the reward pays for guesses: use checks "
        "(rl.reward=verify), raise rl.kl_coef, or lower rl.learning_rate. If it does not, ignore this.",
    ),
    "tripwire/copied_skills": (
        "Rewarded rollouts repeat the text of skills",
        f"of them have {COPIED_WORDS} words in a row of a skill that was in their prompt. If copying is what earns the reward, change "
        "rl.reward, or show fewer skills (skills.prompt_top_k).",
    ),
    "tripwire/top_winner": (
        "One answer wins across the prompts",
        "of the winners are the same one. If their true answers differ, the policy is learning one answer for everything: change "
        "rl.reward, lower rl.learning_rate or raise rl.kl_coef.",
    ),
}
"""By metric, the words that its warning begins with and goes on with. Tasks differ in what is normal, so only a rise is a sign."""


def tripwire_signs(rows: Rows, *, answers: bool = True, share: float = SHARE, length: float = LENGTH) -> Signs:
    """Warnings that the reward is paid for the wrong thing; docs/voting.md has each.

    Args:
        rows: Figures of each step of RL.
        answers: The reward looks at answers.
        share: Least share of the rewarded rollouts, or of the winners, that is a sign.
        length: Factor by which responses are longer or shorter than in the first step.
    """
    found = early_signs(rows[-EARLY:], answers=answers) if len(rows) >= EARLY else {}
    unreadable = figures(rows, "tripwire/unreadable")[-WINDOW:]
    if len(unreadable) == WINDOW and mean(unreadable) >= share:
        found[UNREADABLE] = (
            f": {mean(unreadable):.0%} of those in the latest {WINDOW} steps have no text, no answer or no valid action. The "
            "reward is paid for nothing: look at them in trajectories.jsonl, and change rl.reward."
        )
    decided = [row for row in rows if row.get("winners", 0) >= LEAST_WINNERS]
    for name, (start, rest) in TRIPWIRES.items():
        before, now = _ends(figures(decided if name == "tripwire/top_winner" else rows, name))
        if now >= max(share, before + RISE_OF_SHARE):
            found[start] = f": {now:.0%} (in the first step {before:.0%}) {rest}"
    before, now = _ends(figures(rows, "completions/mean_length"))
    if before and not before / length < now < before * length:
        found[f"Responses became much {'shorter' if now < before else 'longer'}"] = (
            f": {before:.0f} tokens in the first step, {now:.0f} in the latest ones. If the task did not ask for it, the reward pays "
            "for length: change rl.reward, raise rl.kl_coef, or set rl.overlong_penalty against long ones."
        )
    return found


def _ends(values: Sequence[float]) -> tuple[float, float]:
    """The first value, which no update has changed yet, and the mean of the latest `WINDOW`; 0 and 0 of fewer than twice as many."""
    return (values[0], mean(values[-WINDOW:])) if len(values) >= 2 * WINDOW else (0.0, 0.0)


def late_signs(rows: Rows, *, answers: bool = True) -> Signs:
    """`early_signs`, and what the whole course says."""
    agreement, right = figures(rows, "majority_ratio"), figures(rows, "label_accuracy")
    third = max(1, len(rows) // 3)
    begun, ended = mean(agreement[:third]), mean(agreement[-third:])
    found = early_signs(rows, answers=answers)
    if len(agreement) > 1 and right and ended - begun >= RISE and mean(right[-third:]) < NEVER_TRUE:
        found["Agreement rose"] = (
            f" from {begun:.2f} to {ended:.2f}, but only {mean(right[-third:]):.1%} of the latest votes were correct "
            "(diagnostic only): the policy learns to agree on wrong answers. Use a longer cold start or easier problems; see "
            "docs/voting.md."
        )
    return found


def steps_of(count: int) -> str:
    """A number of steps in words."""
    return f"{count} step{'s' * (count != 1)}"


def _idle(row: Mapping[str, Any]) -> bool:
    """Tell whether an update had samples, and none that pulled on the weights. One that the critic's warm-up left out has no rate."""
    return row.get("updates") == 0 == row.get("skipped_updates") and row.get("learning_rate") is not None


def bank_votes(after: Evaluation | None, off: Evaluation | None) -> dict[str, float]:
    """Agreement with the bank and without it, maj@k without it, and the share of problems with another winner; empty without votes."""
    if after is None or off is None:
        return {}
    pairs = [
        (one.majority_answer, other.majority_answer) for one, other in zip(after.results, off.results, strict=True)
    ]
    if all(one is None for one, _ in pairs) or after.majority_ratio is None or off.majority_ratio is None:
        return {}
    differ = [(None if one is None else canonical(one)) != (None if other is None else canonical(other)) for one, other in pairs]  # fmt: skip
    found = {
        "majority_ratio": after.majority_ratio,
        "majority_ratio_no_skills": off.majority_ratio,
        "other_winners": sum(differ) / len(differ),
    }
    if after.majority is not None and off.majority is not None:
        found |= {"majority": after.majority, "majority_no_skills": off.majority}
    return found


def bank_warning(votes: dict[str, float], change: Interval | None) -> str | None:
    """A warning where the bank makes votes agree on wrong answers, or decides them where no label tells; else None.

    Args:
        votes: see `bank_votes`.
        change: interval of maj@k with the bank less maj@k without it; None where there are no labels.
    """
    if not votes or (rise := votes["majority_ratio"] - votes["majority_ratio_no_skills"]) <= 0:
        return None
    more = f"agreement is {votes['majority_ratio']:.2f} with it and {votes['majority_ratio_no_skills']:.2f} without it"
    if change is not None:
        if change[1] >= 0:
            return None
        return (
            f"The skill bank makes the votes agree on wrong answers: {more}, but {votes['majority']:.2f} of the winners are correct "
            f"with it and {votes['majority_no_skills']:.2f} without it (diagnostic only). Find the wrong skill: skillttrl inspect "
            "RUN/bank."
        )
    if votes["other_winners"] < OTHER_WINNERS or rise < BANK_RISE:
        return None
    return (
        f"The skill bank decides the votes: {votes['other_winners']:.0%} of the problems have another winner with it than "
        f"without it, and {more}. No labels tell which winners are correct: give data.eval some true answers, or check a few by "
        "hand."
    )


# When to stop without labels: rules that look at the votes of a run and at nothing else.
#
# A rule is one function from the steps done so far (lines of `metrics.jsonl`, oldest first), with options as keyword
# arguments, to whether training should end after the last of them. One of your own is `module:function`. What each rule
# costs against the best step in hindsight is measured in docs/evaluate.md.


Rule = Callable[..., object]
"""(rows, **options) → true, or anything that counts as true, to stop after the last of the rows."""

RULES: Registry[Rule] = Registry("stopping rule")


def stop_step(rows: Rows, rule: str, options: Mapping[str, Any] | None = None, first: int = 1) -> int | None:
    """After how many of these steps, from `first` on, `rule` would have ended training; None where it never does.

    Raises:
        ConfigError: no rule has this name, or an option is not one of its own or out of its range.
    """
    stop = find_rule(rule, options)
    done = (done for done in range(first, len(rows) + 1) if stop(rows[:done], **(options or {})))
    with naming(f"The stopping rule {rule!r}") if ":" in rule else nullcontext():
        return next(done, None)


def find_rule(rule: str, options: Mapping[str, Any] | None = None) -> Rule:
    """The rule of this name, its options checked.

    Raises:
        ConfigError: see `stop_step`.
    """
    found = RULES.get(rule)
    known = dict(list(inspect.signature(found).parameters.items())[1:])
    for option, value in (options or {}).items():
        if option not in known:
            raise ConfigError(f"The stopping rule {rule!r} has no option {option!r}.{did_you_mean(option, known)}")
        whole = isinstance(known[option].default, int)
        if rule in RULES and (not isinstance(value, int if whole else int | float) or value <= 0):
            kind = "a whole number" if whole else "a number"
            raise ConfigError(f"The option {option} of the stopping rule {rule!r} is {kind} above 0, found {value!r}.")
    return found


COLLAPSE = "collapse"
NO_ANSWER = 0.9
"""Share of samples without an answer from which on nearly all abstain: there is nothing to vote on, and nothing else to say."""

LEAST_WINNERS = 4
"""Winners that a step needs to say how different they are."""


def collapse_signs(
    rows: Rows, *, agreement: float = 0.3, copied: float = 0.6, flips: float = 0.2, distinct: float = 0.5
) -> Signs:
    """Warnings that the votes collapse; as a rule, any of them ends the run.

    `train.rl.give_back` then returns the weights of before RL. docs/voting.md has what each sign finds.

    Args:
        rows: Figures of each step of RL.
        agreement: Weak votes: mean share of the winner among the answers given in the first 3 steps below it. RESTRAIN (arXiv 2510.02172) gives no reward
            on a prompt whose most frequent answer has too small a share; here the same doubt is about the mean prompt.
        copied: Copies: mean `copied_winners` of the latest 2 steps at or above it.
        flips: Flips: mean `flip_rate` of the latest 5 steps that have one above it (TTRL-Guard, arXiv 2605.19444).
        distinct: Few answers: mean `distinct_winners` of the latest 3 steps below this share of the first 3 steps', of steps with at
            least 4 `winners`.
    """
    found = Signs()
    voted = [row for row in rows if row.get("majority_ratio") is not None][:3]
    silent = mean(figures(voted, "abstained")) >= NO_ANSWER
    shares = [row["majority_ratio"] / max(1e-9, 1.0 - row.get("abstained", 0.0)) for row in voted]
    if len(shares) == 3 and not silent and mean(shares) < agreement:
        found["The first votes were weak"] = (
            f": their winners had less than {agreement:.0%} of the answers. A majority that is mostly wrong teaches errors; try a "
            "stronger base, more votes or easier tasks. The option agreement of rl.stop_rule=collapse sets the threshold."
        )
    copies = figures(rows, "copied_winners")[-2:]
    if len(copies) == 2 and mean(copies) >= copied:
        found["The winners copy the question"] = (
            f": {mean(copies):.0%} of those in the latest 2 steps are words or numbers of it. If answers never stand in their questions, the "
            "policy is learning to repeat: set env.kwargs.copies=false (math), or show it more examples. If they do, ignore this; if the "
            "run uses rl.stop_rule=collapse, set rl.stop_rule={type: collapse, copied: 2}."
        )
    changes = figures(rows, "flip_rate")[-5:]
    if len(changes) > 1 and mean(changes) > flips:
        found["Possible collapse"] = (
            f": over {flips:.0%} of the revisited prompts changed their winner. Rising agreement is then no sign of accuracy; stop, or "
            "see docs/voting.md."
        )
    apart = figures([row for row in rows if row.get("winners", 0) >= LEAST_WINNERS], "distinct_winners")
    before, now = mean(apart[:3]), mean(apart[-3:])
    if len(apart) > 5 and now < distinct * before:
        found["The prompts collapse to few answers"] = (
            f": {before:.2f} different winners a prompt in the first steps, {now:.2f} in the latest. If their true answers differ, the "
            "policy is learning one answer for everything: stop, and lower rl.learning_rate or raise rl.kl_coef; see docs/voting.md."
        )
    return found


RULES.register(COLLAPSE)(collapse_signs)

TRIPWIRE_RULE = "tripwires"


@RULES.register(TRIPWIRE_RULE)
def tripped(rows: Rows, *, share: float = SHARE, length: float = LENGTH) -> bool:
    """There is a sign that the reward is paid for the wrong thing (`tripwire_signs`); `train.run.stopped_by` adds those of a collapse."""
    return bool(tripwire_signs(rows, answers=False, share=share, length=length))


@RULES.register("entropy")
def spent_entropy(rows: Rows, *, window: int = 3, share: float = 0.25) -> bool:
    """Little is left to vote on: mean entropy of the answers in the latest `window` steps below `share` of the first.

    Reinforcement pays for accuracy with entropy and gains no more once it is spent (arXiv 2505.22617, of the tokens'
    entropy; here it is that of the answers to a prompt, which needs no log-probs). It saves steps where training goes well;
    a collapse spends entropy just so, and is not noticed.
    """
    entropies = figures(rows, "answer_entropy")
    return len(entropies) > window and mean(entropies[-window:]) < share * mean(entropies[:window])


def figures(rows: Rows, name: str) -> list[float]:
    """The figure of each step that has it."""
    return [float(row[name]) for row in rows if row.get(name) is not None]

"""Rewards, labels and metrics (in TTRL's names) from votes. Answers reach the learner only through rewards.

Label-free rewards are made without access to true answers: `build_reward` hands `references` to the `label` control and to
nothing else, and the tasks inside the groups carry none (`Task.without_ground_truth`). A reward of your own is
`module:function`, a function from one `Group` to one number for each of its trajectories.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

from skill_ttrl.answers import (
    bare_key,
    canonical,
    canonicals,
    compute_reward,
    correct,
    extract,
    grade_answer,
    satisfied,
    stands_in,
    verdict,
)
from skill_ttrl.errors import ConfigError, did_you_mean
from skill_ttrl.registry import Registry, import_attribute, naming
from skill_ttrl.types import Group, Labels, Task, VoteResult, derive_seed
from skill_ttrl.voting.strategies import compute_voting_rewards, mean, tally

Reward = Callable[[Group, VoteResult, int], Sequence[float]]
"""(group, its vote, seed) → one reward for each trajectory, in order."""

LARGEST_REWARD = 1e15
"""Largest magnitude of a reward: the squares that a group's deviation sums must stay within float32 (3.4e38)."""

REWARDS: Registry[Reward] = Registry("reward")
CONTROLS = ("random", "format")
"""Rewards that know neither votes nor true answers."""
MODEL_REWARD = "model:"
"""Begins the name of a reward that is a Hugging Face model."""
VERIFY = "verify"
"""Name of the reward by a task's `check`, which every task must have."""
OVERLONG = "overlong"
"""Name of the length penalty (`rl.overlong_penalty`) among the rewards of a rollout."""


@REWARDS.register("majority")
def majority_reward(group: Group, vote: VoteResult, seed: int) -> list[float]:
    """1 for agreeing with the winner of the group's vote, else 0 (TTRL, eq. 3)."""
    return list(vote.sample_rewards)


@REWARDS.register("random")
def random_reward(group: Group, vote: VoteResult, seed: int) -> list[float]:
    """Control: a fair coin for each try."""
    import numpy as np  # here, so that `import skill_ttrl` does not load it

    rng = np.random.default_rng(derive_seed(seed, "random-reward", group.task.id))
    return [float(heads) for heads in rng.random(len(group.trajectories)) < 0.5]


@REWARDS.register("format")
def format_reward(group: Group, vote: VoteResult, seed: int) -> list[float]:
    """Control: 1 for giving any answer in the asked form, right or wrong."""
    return [float(answer is not None) for answer in group.answers]


@REWARDS.register(VERIFY)
def verify_reward(group: Group, vote: VoteResult, seed: int) -> list[float]:
    """1 for an answer that satisfies the task's `check`, else 0: no reference, and no vote."""
    return [float(right) for right in satisfied(group.answers, group.task.options["check"])]


@REWARDS.register("env")
def env_reward(group: Group, vote: VoteResult, seed: int) -> list[float]:
    """The environment's own return takes the vote's place (ALFWorld, WebShop).

    Raises:
        ConfigError: the environment says that it could not grade a try: it was given no true answer.
    """
    if any(trajectory.steps and trajectory.steps[-1].info.get("graded") is False for trajectory in group.trajectories):
        raise ConfigError(
            f"rl.reward=env, but {group.task.env_id} cannot grade without true answers, which training tasks lack. Use "
            "rl.reward=majority, rl.reward=label as a control, or an agent program that prints its own reward each time."
        )
    return [trajectory.env_return for trajectory in group.trajectories]


def label_reward(references: Mapping[str, str], group: Group, vote: VoteResult, seed: int) -> list[float]:
    """Control and ceiling: 1 for the true answer. `references` maps task ids to true answers."""
    reference = references.get(group.task.id)
    if reference is None:
        raise ConfigError(f"rl.reward=label needs a true answer for every training task; {group.task.id!r} has none.")
    return [grade_answer(answer, reference)["score"] for answer in group.answers]


def build_reward(
    name: str, references: Mapping[str, str], score: Callable[[Group], Sequence[float]] | None = None
) -> Reward:
    """The reward that `rl.reward` names, checked to give one finite number for each try.

    Args:
        name: `majority`, `verify`, `random`, `format`, `env`, `label`, `module:function`, or `model:PATH`.
        references: true answers by task id. Only `label` is given them.
        score: what `model:` scores with (see `llm.reward_model`).

    Raises:
        ConfigError: nothing has this name, or `label` is asked and there are no true answers.
    """
    if name == "label":
        if not references:
            raise ConfigError("rl.reward=label needs true answers, and the training tasks have none.")
        return partial(label_reward, references)
    if score is not None or ":" in name:
        return partial(_checked, name, score or import_attribute(name, "reward"))
    if name not in REWARDS:
        known = [*REWARDS, "label", "module:function", "model:PATH"]
        raise ConfigError(f"Unknown reward {name!r}.{did_you_mean(name, known)}")
    return REWARDS.get(name)


def _checked(
    name: str, function: Callable[[Group], Sequence[float]], group: Group, vote: VoteResult, seed: int
) -> list[float]:
    with naming(f"The reward {name!r}", f"on task {group.task.id!r}"):
        given = function(group)
    try:
        values = [as_reward(value) for value in given]
        problem = "" if len(values) == len(group.trajectories) else f"{len(values)} of them"
    except (TypeError, ValueError) as error:
        problem = str(error)
    if problem:
        raise ConfigError(
            f"Reward {name!r} must return one finite number of at most {LARGEST_REWARD:g} for each of the {len(group.trajectories)} "
            f"rollouts of task {group.task.id!r}; it returned {given!r:.200} ({problem:.200})."
        )
    return values


def as_reward(value: Any) -> float:
    """A reward as the learner can take it.

    Raises:
        ValueError: it is no number (a text that spells one is none), not finite, or larger than `LARGEST_REWARD`.
        TypeError: nothing makes a number of it.
    """
    if isinstance(value, str | bytes):
        raise ValueError(f"{value!r:.80}, a text")
    number = float(value)
    if not abs(number) <= LARGEST_REWARD:
        raise ValueError(f"{number:g}")
    return number


@dataclass(frozen=True)
class RewardSet:
    """Rewards by name; the first is `rl.reward`, whose weight is 1."""

    rewards: Mapping[str, Reward]
    weights: Mapping[str, float] = field(default_factory=dict)
    """Of the further ones (`rl.extra_rewards`)."""

    def __call__(self, group: Group, vote: VoteResult, seed: int) -> Group:
        """The group, each rollout carrying its reward, and where there are several each of them by name.

        Args:
            group: Rollouts of one task.
            vote: Their vote.
            seed: For rewards that draw.
        """
        rows = {name: list(reward(group, vote, seed)) for name, reward in self.rewards.items()}
        if len(rows) == 1:
            return group.with_rewards(next(iter(rows.values())))
        parts = [{name: row[place] for name, row in rows.items()} for place in range(len(group.trajectories))]
        return group.with_rewards([self.total(part) for part in parts], parts)

    def total(self, part: Mapping[str, float]) -> float:
        """The weighted sum of one rollout's rewards."""
        return sum(self.weights.get(name, 1.0) * value for name, value in part.items())


class RewardManager:
    """Majority-vote rewards for plain texts, and their measurement."""

    def compute_majority_rewards(
        self, responses: Sequence[str], prompt_ids: Sequence[object] | None = None, n_per_prompt: int = 64
    ) -> dict[str, list[float] | list[str | None]]:
        """Vote within each prompt's responses.

        Args:
            responses: texts, those of one prompt side by side.
            prompt_ids: prompt of each response; without it every `n_per_prompt` responses are one prompt.
            n_per_prompt: responses a prompt.

        Returns:
            `rewards` (one for each response), `majority_answers` and `agreement_ratios` (one for each prompt, in order of
            first appearance).

        Raises:
            ValueError: the number of responses is not a multiple of `n_per_prompt`, or ids and responses differ in number.
        """
        if prompt_ids is None:
            if len(responses) % n_per_prompt:
                raise ValueError(f"{len(responses)} responses are not a multiple of n_per_prompt={n_per_prompt}.")
            prompt_ids = [number // n_per_prompt for number in range(len(responses))]
        positions: dict[object, list[int]] = {}
        for position, (prompt, _) in enumerate(zip(prompt_ids, responses, strict=True)):
            positions.setdefault(prompt, []).append(position)
        rewards = [0.0] * len(responses)
        answers: list[str | None] = []
        ratios: list[float] = []
        for members in positions.values():
            group, answer, agreement = compute_voting_rewards([extract(responses[place]) for place in members])
            for place, value in zip(members, group, strict=True):
                rewards[place] = value
            answers.append(answer)
            ratios.append(agreement)
        return {"rewards": rewards, "majority_answers": answers, "agreement_ratios": ratios}

    def compute_gt_metrics(
        self, responses: Sequence[str], ground_truths: Sequence[str]
    ) -> dict[str, float | list[float]]:
        """Grade responses against true answers, to measure and never to train.

        Args:
            responses: whole texts.
            ground_truths: true answer of each.

        Returns:
            `scores` (see `compute_reward`), their mean `mean_score`, and `accuracy`, the share of scores above 1/2; 0 of nothing.

        Raises:
            ValueError: the two differ in number.
        """
        pairs = zip(responses, ground_truths, strict=True)
        scores = [compute_reward(text, true)["score"] for text, true in pairs]
        right = [float(score > 0.5) for score in scores]
        return {"accuracy": mean(right), "scores": scores, "mean_score": mean(scores)}


# Metrics of votes, with true answers that no reward has seen and without.


Labelled = TypeVar("Labelled", Task, Group)
"""A task, or the group of rollouts at one."""
MANY = 0.05
"""Share of different answers above which it is worth a warning."""


def label_metrics(
    votes: Sequence[VoteResult], references: Sequence[str], groups: Sequence[Sequence[str | None]], samples: int = 0
) -> dict[str, float]:
    """Measure votes against true answers that no reward has seen (TTRL's names), as means over prompts.

    `label_accuracy`: 1 where the winner is true. `reward_accuracy`: share of samples that belong to the winner's class exactly
    if they are true; for rewards of 0 and 1 that is TTRL's 1[r_i = r_i^true]. `ground_truth_ratio`: mean true reward.
    `ground_truth_split_ratio`: share of samples that grading accepts and the vote counts outside of the largest class of such
    samples: true answers in other words (`answers.correct`), whose votes are lost. `majority_voting_reward`: mean vote reward.
    `pass@N`: 1 where any of the N samples is true, N the most samples of a prompt: `samples`, where it is given.

    `references` are the true answers of the prompts, `groups` the answers that were voted on.
    """
    winners, right = _graded(votes, references, groups)
    samples = samples or max((len(answers) for answers in groups), default=0)
    return {
        "label_accuracy": mean([float(won) for won in winners]),
        **_sample_metrics(votes, right, samples),
        "ground_truth_split_ratio": mean([_split(answers, row) for answers, row in zip(groups, right, strict=True)]),
        **vote_metrics(votes),
    }


compute_ttrl_metrics = label_metrics
"""The name in forks of TTRL."""


def trained_metrics(
    votes: Sequence[VoteResult], references: Sequence[str], groups: Sequence[Sequence[str | None]], samples: int
) -> dict[str, float]:
    """Measure the samples that were trained on (TTRL: `post_`), as means over their prompts.

    `post_reward_accuracy`, `post_ground_truth_ratio` and `post_pass@K`, K the `samples` of each prompt that are trained on;
    nothing where no prompt was. The votes are as they bear on those samples (`VoteResult.select`), whose answers are `groups`.
    """
    if not groups:
        return {}
    _, right = _graded(votes, references, groups)
    return {f"post_{name}": value for name, value in _sample_metrics(votes, right, samples).items()}


def vote_entropy(counts: Iterable[int]) -> float:
    """Shannon entropy (nats) of a distribution given as votes for each answer; 0 when all agree or nobody voted."""
    import numpy as np  # here, so that `import skill_ttrl` does not load it

    votes = np.asarray(list(counts), dtype=np.float64)
    votes = votes[votes > 0]
    if votes.size <= 1:
        return 0.0
    shares = votes / votes.sum()
    return float(-(shares * np.log(shares)).sum())


def vote_metrics(votes: Sequence[VoteResult]) -> dict[str, float]:
    """`majority_voting_reward` (TTRL): mean over prompts of the mean vote reward."""
    return {"majority_voting_reward": mean([mean(vote.sample_rewards) for vote in votes])}


@dataclass(frozen=True, slots=True)
class UndecidedAnswers:
    """Count of the undecided answers of a step, an evaluation or a voting comparison."""

    count: int = 0
    """Number of distinct undecided answers."""
    distinct: int = 0
    """Number of distinct answers."""
    reasons: Mapping[str, int] = field(default_factory=dict)
    """Count of each reason (`answers.EquivalenceResult.gave_up`), most first."""

    @property
    def many(self) -> bool:
        """True if they are more than `MANY` of the different answers."""
        return self.count > MANY * self.distinct

    def __str__(self) -> str:
        """Describe the count in one sentence."""
        why = ", ".join(f"{reason} {count}" for reason, count in self.reasons.items())
        return f"{self.count} of {self.distinct} different answers could not be normalized ({why}): each equals only its own text."


def copied_winners(winners: Iterable[tuple[Task, str | None]]) -> float | None:
    """Share of the winners that stand in the last question of their task (`answers.stands_in`); None where no task has both."""
    pairs = [([task.options.get("question"), *task.options.get("then", ())][-1], answer) for task, answer in winners]
    copied = [stands_in(answer, question) for question, answer in pairs if isinstance(question, str) and answer]
    return sum(copied) / len(copied) if copied else None


def given_up(answers: Iterable[str | None]) -> UndecidedAnswers:
    """Count the different undecided answers: they look like mathematics, and yet are compared as texts only.

    It counts the answers themselves and not the decisions, so a resumed run reports the same as an uninterrupted one.
    """
    # Sorted, so that equally frequent reasons always come in the same order.
    distinct = sorted({answer for answer in answers if answer is not None})
    canonicals(distinct)  # where some are not known yet: all in one go
    found = [said for answer in distinct if (said := verdict(answer)) is not None]
    reasons = Counter(said.gave_up for said in found if said.gave_up is not None)
    return UndecidedAnswers(
        reasons.total(), len(found), dict(sorted(reasons.items(), key=lambda pair: (-pair[1], pair[0])))
    )


def _graded(
    votes: Sequence[VoteResult], references: Sequence[str], groups: Sequence[Sequence[str | None]]
) -> tuple[list[bool], list[list[bool]]]:
    """Grade each winner and each sample; all distinct answers are compared in one go."""
    given = zip(votes, references, groups, strict=True)
    pairs = [(answer, true) for vote, true, answers in given for answer in (vote.answer, *answers)]
    judged = iter(correct(pairs))
    rows = [(next(judged), [next(judged) for _ in answers]) for answers in groups]
    return [won for won, _ in rows], [row for _, row in rows]


def _split(answers: Sequence[str | None], right: Sequence[bool]) -> float:
    """Share of the samples that are true and stand outside of the largest class of true ones."""
    classes = Counter(key for key, true in zip(tally(answers).keys, right, strict=True) if true)
    return (classes.total() - max(classes.values(), default=0)) / max(1, len(answers))


def _sample_metrics(votes: Sequence[VoteResult], right: Sequence[Sequence[bool]], samples: int) -> dict[str, float]:
    pairs = [list(zip(vote.matches, row, strict=True)) for vote, row in zip(votes, right, strict=True)]
    return {
        "reward_accuracy": mean([mean([float(match == true) for match, true in row]) for row in pairs]),
        "ground_truth_ratio": mean([mean([float(true) for true in row]) for row in right]),
        f"pass@{samples}": mean([float(any(row)) for row in right]),
    }


def apply_pseudo_labels(tasks: Sequence[Labelled], votes: Sequence[VoteResult]) -> list[Labelled]:
    """Put the winners of votes in force as labels (TTRL: `apply_ttrl_gt`).

    `Task.labels` keeps both labels, whichever is in force, so that they can be compared at any time. A task whose vote nobody won
    has no label in force. What goes to training is still `Task.without_ground_truth`, which drops both.

    Args:
        tasks: Tasks, or groups of rollouts, whose own task is then labelled.
        votes: One for each, in the same order.

    Raises:
        ValueError: there is not one vote for each task.
    """
    if len(tasks) != len(votes):
        raise ValueError(f"Expected one vote for each of {len(tasks)} tasks, found {len(votes)}.")
    return [_voted(item, vote) for item, vote in zip(tasks, votes, strict=True)]


def restore_labels(tasks: Sequence[Labelled]) -> list[Labelled]:
    """Put the true answers in force again (TTRL: `apply_original_gt`); the voted ones stay in `Task.labels`."""
    return [_restored(item) for item in tasks]


apply_ttrl_gt = apply_pseudo_labels
apply_original_gt = restore_labels


def _voted(item: Labelled, vote: VoteResult) -> Labelled:
    if isinstance(item, Group):
        return replace(item, task=_voted(item.task, vote))
    return replace(item, ground_truth=vote.answer, labels=Labels(_true(item), vote.answer))


def _restored(item: Labelled) -> Labelled:
    if isinstance(item, Group):
        return replace(item, task=_restored(item.task))
    return replace(item, ground_truth=_true(item))


def _true(task: Task) -> str | None:
    return task.ground_truth if task.labels is None else task.labels.ground_truth


# History of the votes: flips and each prompt's past.


@dataclass(frozen=True, slots=True)
class _Course:
    """The winners of one prompt so far."""

    winner: str | None = None
    """Canonical form of the latest winner; None where there was none yet."""
    returns: int = 0
    """Votes that had a winner to be compared with an earlier one."""
    flips: int = 0
    """Returns whose winner differed from the one before."""


@dataclass
class VoteHistory:
    """Winners by prompt over the steps of a run. `train.metrics.collapse_signs` looks for a collapse in its metrics."""

    base_answers: dict[str, list[str | None]] = field(default_factory=dict)
    """Answers of the policy before training to each prompt, where the strategy needs them."""
    prompts: dict[str, _Course] = field(default_factory=dict)
    """The winners of each prompt."""

    def record(self, votes: Mapping[str, VoteResult]) -> dict[str, float]:
        """Take in one step's votes by prompt id; gives the step's label-free figures.

        `majority_ratio` (TTRL): mean share of the winner. `abstained`: mean share of samples without an answer. `ties`: share
        of prompts with one. `winners`: prompts that have one. `distinct_winners`: different ones over that, `tripwire/top_winner`: the most
        frequent one's share of them. `flip_rate`: share of prompts
        seen before whose winner changed. `prompt_flip_rate`: mean over the step's prompts of each one's flips over its
        returns in the whole run. The last two are absent where no prompt was seen before. `left_base`: share of prompts whose
        majority differs from that before training; absent where that is not known.
        """
        keys = {prompt: bare_key(canonical(vote.answer)) for prompt, vote in votes.items()}
        won = {prompt: key for prompt, key in keys.items() if key is not None}
        old = {prompt: self.prompts.get(prompt, _Course()) for prompt in votes}
        seen = [prompt for prompt in won if old[prompt].winner is not None]
        figures = {
            "majority_ratio": mean([vote.majority_ratio for vote in votes.values()]),
            "abstained": mean([vote.abstained / max(1, len(vote.matches)) for vote in votes.values()]),
            "ties": mean([float(vote.tie) for vote in votes.values()]),
        }
        if won:
            figures |= {"winners": float(len(won)), "distinct_winners": len(set(won.values())) / len(won)}
            figures["tripwire/top_winner"] = Counter(won.values()).most_common(1)[0][1] / len(won)
        if seen:
            figures["flip_rate"] = mean([float(won[prompt] != old[prompt].winner) for prompt in seen])
        if known := [prompt for prompt in votes if prompt in self.base_answers and votes[prompt].classes]:
            figures["left_base"] = mean([float(self._left_base(prompt, votes[prompt])) for prompt in known])
        for prompt, key in won.items():  # a vote without a winner leaves the one before, and flips nothing
            before = old[prompt]
            flipped = before.winner is not None and key != before.winner
            self.prompts[prompt] = _Course(key, before.returns + (before.winner is not None), before.flips + flipped)
        courses = [self.prompts[prompt] for prompt in votes if prompt in self.prompts]
        rates = [course.flips / course.returns for course in courses if course.returns]
        if rates:
            figures["prompt_flip_rate"] = mean(rates)
        return figures

    def _left_base(self, prompt: str, vote: VoteResult) -> bool:
        """Tell whether the samples' largest class is not a largest one of the answers before training."""
        before = tally(self.base_answers[prompt])
        largest = bare_key(canonical(vote.classes[0][0]))
        counts = {bare_key(key): count for key, count in before.votes.items()}
        return counts.get(largest, 0) < max(counts.values(), default=0)

    def state_dict(self) -> dict[str, Any]:
        """JSON-able state for a checkpoint."""
        return asdict(self)

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> VoteHistory:
        """Restore what `state_dict` gave."""
        prompts = {prompt: _Course(**saved) for prompt, saved in state["prompts"].items()}
        return cls(base_answers=state["base_answers"], prompts=prompts)

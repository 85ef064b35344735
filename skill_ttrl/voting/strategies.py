"""The voting strategies, each as its formula.

Two answers vote for the same thing exactly when `answers.canonical` says so, and the reward uses the same relation, so a
sample is rewarded if and only if it is counted for the winner. An answer that is missing or empty abstains: it cannot
win and is never rewarded. Ties go to the answer that appeared first and are reported.
"""

from __future__ import annotations

import functools
import inspect
import math
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, TypeVar

from skill_ttrl.answers import Answer, answer_text, canonicals, without_units
from skill_ttrl.errors import ConfigError, ExtensionError, did_you_mean
from skill_ttrl.registry import Registry, naming
from skill_ttrl.types import Group, Trajectory, VoteResult

# Answers counted by class: what every strategy begins with.


Score = float | Fraction


@dataclass(frozen=True, slots=True)
class Tally:
    """Answers counted by class. A class is named by the key that its answers share (`answers.canonical`)."""

    keys: tuple[str | None, ...]
    """Class of each sample; None for one without an answer."""
    votes: Mapping[str, int]
    """Votes of each class, most first, ties in order of first appearance."""
    representatives: Mapping[str, str]
    """The answer of each class's first voter."""

    @property
    def share(self) -> float:
        """Votes of the largest class over all samples (TTRL: majority_ratio); 0 where nobody answered."""
        return next(iter(self.votes.values())) / len(self.keys) if self.votes else 0.0

    def result(self, scores: Mapping[str, Score] | None = None) -> VoteResult:
        """The vote that the class with the highest score wins; without scores the one with most votes.

        There is a score for each class; one of 0 wins nothing. Ties go to the class that appeared first and are reported.
        """
        ranking: Mapping[str, Score] = self.votes if scores is None else scores
        best = max(ranking.values(), default=0)
        leading = {key for key in self.votes if ranking[key] == best > 0}
        winner = next((key for key in self.representatives if key in leading), None)
        return VoteResult(
            answer=None if winner is None else self.representatives[winner],
            majority_ratio=self.share if winner is None else self.votes[winner] / len(self.keys),
            matches=tuple(key is not None and key == winner for key in self.keys),
            classes=tuple((self.representatives[key], count) for key, count in self.votes.items()),
            abstained=sum(key is None for key in self.keys),
            tie=len(leading) > 1,
            scores=() if scores is None else tuple(float(scores[key]) for key in self.votes),
        )


def tally(answers: Sequence[str | None], keys: Sequence[str | None] | None = None) -> Tally:
    """Count the answers of one group; an answer without a unit belongs to the one unit that others state (`answers.without_units`).

    None and an empty text are no answer. `keys` are the classes where they are known already (`answers.canonicals`).
    """
    keys = without_units(canonicals(answers) if keys is None else keys)
    votes: dict[str, int] = {}
    words: dict[str, str] = {}
    for key, answer in zip(keys, answers, strict=True):
        if key is not None and answer is not None:
            votes[key] = votes.get(key, 0) + 1
            words.setdefault(key, answer)
    ranked = sorted(votes, key=lambda key: -votes[key])  # stable: ties stay in order of first appearance
    return Tally(tuple(keys), {key: votes[key] for key in ranked}, words)


def mean(values: Sequence[float]) -> float:
    """Mean, 0 of nothing."""
    return sum(values) / len(values) if values else 0.0


def mean_if_known(values: Sequence[float | None]) -> float | None:
    """Mean of at least one value; None where one of them is not known."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if len(known) == len(values) else None


# The samples of one prompt, and votes on them by the name of a strategy.
#
# A strategy is one function from a `Ballot`, with options as keyword arguments, to a `VoteResult`. To add one, write it in
# `strategies.py` under `@strategy("name")`, naming what it needs of the ballot. One of your own is `module:function`; what it requires is
# in its attribute `requires`. It is imported and called, so its name comes from the command line, a config or a program and never out of
# data.


@dataclass(frozen=True, slots=True)
class Ballot:
    """All samples of one prompt, and what a strategy may know about them. None: not known."""

    answers: tuple[str | None, ...]
    prompt: str = ""
    """Id of the prompt."""
    logprobs: tuple[float, ...] | None = None
    """Log-probability (nats) of each whole sample under the policy that drew it: the sum over its tokens."""
    lengths: tuple[int, ...] | None = None
    """Sampled tokens of each sample."""
    base_answers: tuple[str | None, ...] | None = None
    """What the policy before training answered to the same prompt, one entry for each of its samples."""
    keys: tuple[str | None, ...] | None = None
    """Class of each answer (`answers.canonicals`), where it was looked up with those of other ballots."""

    def tally(self) -> Tally:
        """The answers, counted."""
        return tally(self.answers, self.keys)


def ballot_of(group: Group, base_answers: Sequence[str | None] | None = None) -> Ballot:
    """Build the ballot of a group of rollouts. Log-probabilities are set where every rollout with text has them."""
    rollouts = group.trajectories
    written = [_written(trajectory) for trajectory in rollouts]
    scored = any(tokens for _, tokens in written)
    return Ballot(
        answers=tuple(group.answers),
        prompt=group.task.id,
        logprobs=tuple(logprob for logprob, _ in written) if scored else None,
        lengths=tuple(tokens for _, tokens in written) if scored else None,
        base_answers=None if base_answers is None else tuple(base_answers),
    )


def _written(trajectory: Trajectory) -> tuple[float, int]:
    """Log-probability and number of a rollout's own sampled tokens."""
    total, count = 0.0, 0
    for step in trajectory.steps:
        if step.completion is not None:
            mask = step.completion.completion_mask or (True,) * len(step.completion.logprobs)
            own = [value for value, sampled in zip(step.completion.logprobs, mask, strict=True) if sampled]
            total, count = total + sum(own), count + len(own)
    return total, count


Strategy = Callable[..., VoteResult]
"""(ballot, **options) → the vote."""
S = TypeVar("S", bound=Strategy)

STRATEGIES: Registry[Strategy] = Registry("voting strategy")
_REQUIRES: dict[str, dict[str, str]] = {}

INPUT_SOURCES: Mapping[str, str] = {
    "logprobs": "samples whose tokens have log-probabilities (of a text file: a list `logprobs`)",
    "lengths": "samples whose tokens are known (of a text file: a list `lengths`)",
    "base_answers": "answers of the policy before training; a run samples them at its start",
}
"""Fields that a ballot may lack, and where each comes from."""


def strategy(name: str, *requires: str, **unless: str) -> Callable[[S], S]:
    """Decorator: file a strategy under `name`.

    Args:
        name: What `vote.strategy` calls it.
        *requires: Fields of the ballot that it cannot do without.
        **unless: Fields that it needs unless the option of this name is false.
    """

    def add(function: S) -> S:
        STRATEGIES.register(name)(function)
        _REQUIRES[name] = {**dict.fromkeys(requires, ""), **unless}
        return function

    return add


def requires(name: str, options: Mapping[str, Any] | None = None) -> tuple[str, ...]:
    """Fields of the ballot that a strategy cannot do without under these options.

    Raises:
        ConfigError: no strategy has this name.
    """
    function = _function(name)
    wanted = _REQUIRES[name] if name in _REQUIRES else dict.fromkeys(getattr(function, "requires", ()), "")
    return tuple(field for field, switch in wanted.items() if not switch or (options or {}).get(switch, True))


def vote(name: str, ballot: Ballot, options: Mapping[str, Any] | None = None) -> VoteResult:
    """Hold the vote that `name` names.

    Raises:
        ConfigError: no strategy has this name, what has it is none, an option is not one of its own or out of its range, the
            ballot lacks what it requires, or a strategy of one's own gives no sound result.
    """
    function = _function(name)
    parameters = inspect.signature(function).parameters
    known = list(parameters)[1:]
    open_ended = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    for option, value in (options or {}).items():
        if option not in known and not open_ended:
            raise ConfigError(f"The voting strategy {name!r} has no option {option!r}.{did_you_mean(option, known)}")
        # A text such as "no" would count as true.
        if option in known and isinstance(parameters[option].default, bool) and not isinstance(value, bool):
            raise ConfigError(f"The vote's option {option!r} must be true or false; found {value!r}.")
    missing = [field for field in requires(name, options) if getattr(ballot, field) is None]
    if missing:
        asked = "; ".join(f"{field}: {INPUT_SOURCES.get(field, field)}" for field in missing)
        raise ConfigError(f"The voting strategy {name!r} needs inputs that this ballot lacks. {asked}.")
    with naming(f"The voting strategy {name!r}", f"on task {ballot.prompt!r}") if ":" in name else nullcontext():
        found = function(ballot, **(options or {}))
    if not isinstance(found, VoteResult) or not _sound(found, len(ballot.answers)):
        raise ConfigError(
            f"The voting strategy {name!r} must return a VoteResult with one finite entry for each of {len(ballot.answers)} "
            f"samples; it returned {found!r}."
        )
    return found


@functools.lru_cache
def _function(name: str) -> Strategy:
    """The strategy of this name. What is named as one of the user's own is looked at before anybody calls it.

    Raises:
        ConfigError: there is none, or it is no function of a ballot: a slip such as `os:system` runs nothing.
    """
    function = STRATEGIES.get(name)
    if name in STRATEGIES:
        return function
    inner: Any = function
    while isinstance(inner, functools.partial):
        inner = inner.func
    home = str(getattr(inner, "__module__", None) or "").partition(".")[0]
    if not callable(inner) or inspect.isclass(inner) or inspect.isbuiltin(inner) or home in sys.stdlib_module_names:
        raise ConfigError(f"{name!r} is not a voting strategy: expected a function from a Ballot to a VoteResult.")
    try:
        first = next(iter(inspect.signature(function).parameters.values()), None)
    except (TypeError, ValueError):  # written in C, without a signature
        first = None
    if first is None or first.kind not in (first.POSITIONAL_ONLY, first.POSITIONAL_OR_KEYWORD):
        raise ConfigError(f"{name!r} is not a voting strategy: its first parameter must take the Ballot.")
    return function


def _sound(found: VoteResult, samples: int) -> bool:
    """True if training can use the result: a strategy may be the user's."""
    return len(found.matches) == samples and all(map(math.isfinite, (found.majority_ratio, *found.scores)))


def batch_vote(name: str, ballots: Sequence[Ballot], options: Mapping[str, Any] | None = None) -> list[VoteResult]:
    """Hold the votes of one step: all distinct answers are compared in one go.

    Raises:
        ConfigError: as `vote`.
    """
    keys = iter(canonicals([answer for ballot in ballots if ballot.keys is None for answer in ballot.answers]))
    return [
        vote(
            name,
            ballot if ballot.keys is not None else replace(ballot, keys=tuple(next(keys) for _ in ballot.answers)),
            options,
        )
        for ballot in ballots
    ]


def check_strategy(name: str, options: Mapping[str, Any] | None = None) -> None:
    """Hold a small made-up vote, so that a wrong name or option is found before anything is sampled.

    Raises:
        ConfigError: as `vote`, or an option has a value of the wrong kind.
    """
    ballot = Ballot(
        answers=("1", "2", "1", None),
        prompt="check",
        logprobs=(-1.0, -2.0, -3.0, -4.0),
        lengths=(1, 2, 3, 4),
        base_answers=("1", "2"),
    )
    try:
        vote(name, ballot, options)
    except (TypeError, ValueError) as error:
        reason = error.__cause__ if isinstance(error, ExtensionError) else error
        if isinstance(reason, ConfigError) or not isinstance(reason, TypeError | ValueError):
            raise
        raise ConfigError(
            f"The voting strategy {name!r} cannot work with its options {dict(options or {})}: {reason}."
        ) from reason


def check_range(
    value: float, option: str, low: float, high: float = float("inf"), *, above: bool = False, whole: bool = False
) -> float:
    """Check that an option's value lies in [low, high], is not `low` itself (`above`), is an integer (`whole`).

    Raises:
        ConfigError: it is no number in the range.
    """
    is_number = isinstance(value, int if whole else int | float) and not isinstance(value, bool)
    if not is_number or not low <= value <= high or (above and value == low):
        bounds = f"{'above' if above else 'at least'} {low:g}" + (
            f" and at most {high:g}" if high != float("inf") else ""
        )
        kind = "whole number" if whole else "number"
        raise ConfigError(f"The vote's option {option!r} must be a {kind} {bounds}; found {value!r}.")
    return value


@strategy("majority")
def majority(ballot: Ballot) -> VoteResult:
    """The most frequent answer, y* = mode(y_1 … y_N), rewards 1[y_i = y*] (TTRL, arXiv 2504.16084, eq. 2 and 3)."""
    return ballot.tally().result()


def majority_vote(answers: Sequence[Answer]) -> VoteResult:
    """The most frequent answer of one group (TTRL, eq. 2: the mode of the extracted answers); answers are texts or numbers."""
    return tally([answer_text(answer) for answer in answers]).result()


def batch_majority_vote(groups: Iterable[Sequence[Answer]]) -> list[VoteResult]:
    """One vote for each group of answers; all distinct answers are compared in one go."""
    return batch_vote("majority", [Ballot(tuple(map(answer_text, answers))) for answers in groups])


def compute_voting_rewards(answers: Sequence[Answer]) -> tuple[list[float], str | None, float]:
    """Rewards (1.0 for agreeing with the majority, else 0.0), the majority answer and the agreement."""
    vote = majority_vote(answers)
    return [float(match) for match in vote.matches], vote.answer, vote.majority_ratio


@strategy("confidence", "logprobs", lengths="per_token")
def confidence(ballot: Ballot, *, per_token: bool = True, temperature: float = 1.0) -> VoteResult:
    """Each sample's vote weighs what the policy thought of it; the class with the largest sum of weights wins.

    w_i = exp(s_i / T) / Σ_j exp(s_j / T) over the samples j of the group that gave an answer, where s_i is the mean log-prob
    (nats) of the sample's tokens, or with `per_token` false the sum, which favours short samples. With the defaults this is
    the normalised weighted sum of self-consistency (arXiv 2203.11171, table 1); the softmax with a temperature is that of
    CISC (arXiv 2502.06233). Rewards are 1 for the winner's class.

    Args:
        ballot: With `logprobs`, and `lengths` where `per_token` is true.
        per_token: Divide a sample's log-prob by its tokens.
        temperature: T, above 0. A large one gives back the majority.

    Raises:
        ConfigError: the temperature is not above 0, or a log-prob is not finite.
    """
    check_range(temperature, "temperature", 0, above=True)
    assert ballot.logprobs is not None  # `vote` has looked
    counted = ballot.tally()
    lengths = ballot.lengths if per_token and ballot.lengths is not None else (1,) * len(ballot.answers)
    pairs = zip(counted.keys, ballot.logprobs, lengths, strict=True)
    heats = [(key, logprob / max(1, length) / temperature) for key, logprob, length in pairs if key is not None]
    if not all(math.isfinite(heat) for _, heat in heats):
        raise ConfigError(
            f"The votes of {ballot.prompt!r} have a log-prob that is not finite; confidence cannot weigh it."
        )
    top = max((heat for _, heat in heats), default=0.0)
    weights: dict[str, list[float]] = defaultdict(list)
    for key, heat in heats:
        weights[key].append(math.exp(heat - top))
    # fsum rounds once, so the sums do not depend on the order of the samples.
    total = math.fsum(weight for members in weights.values() for weight in members)
    return counted.result({key: math.fsum(weights[key]) / total for key in counted.votes})


@strategy("anchored", "base_answers")
def anchored(ballot: Ballot, *, weight: float = 1.0) -> VoteResult:
    """The samples vote together with those of the policy before training, so a rule that spreads cannot confirm itself.

    score(c) = (1 - weight) f_c + weight b_c, where f_c is the share of class c among the samples and b_c its share among
    `base_answers`, samples without an answer included in both. Weight 1 fixes each prompt's label at the vote of the policy
    before training; 0 is the majority. A label that no sample gave
    rewards nobody. Shares are exact fractions, so ties are true ties.

    Raises:
        ConfigError: the weight is not in [0, 1].
    """
    check_range(weight, "weight", 0, 1)
    assert ballot.base_answers is not None  # `vote` has looked
    size, before = len(ballot.answers), len(ballot.base_answers)
    both = tally((*ballot.answers, *ballot.base_answers))
    own, base = Counter(both.keys[:size]), Counter(both.keys[size:])
    part = Fraction(weight)
    scores = {
        key: (1 - part) * Fraction(own[key], max(1, size)) + part * Fraction(base[key], max(1, before))
        for key in both.votes
    }
    found = both.result(scores).select(list(range(size)))
    given = sorted((key for key in both.votes if own[key]), key=lambda key: -own[key])
    return replace(
        found,
        majority_ratio=sum(found.matches) / max(1, size),
        classes=tuple((both.representatives[key], own[key]) for key in given),
        abstained=own[None],
        scores=tuple(float(scores[key]) for key in given),
    )


SEQUENTIAL = "sequential"


@dataclass(frozen=True)
class SequentialTest:
    """When the samples so far decide a prompt's majority.

    Raises:
        ConfigError: an option is out of its range.
    """

    error: float = 0.05
    """Most probability that the policy gives the runner-up more often than the leader, in (0, 0.5)."""
    first: int = 8
    """Samples before the first look; each further look comes at twice as many."""

    def __post_init__(self) -> None:
        check_range(self.error, "error", 0, 0.5, above=True)
        check_range(self.first, "first", 2, whole=True)

    def looks(self, most: int) -> list[int]:
        """Numbers of samples at which the test looks, of at most `most`: the last."""
        found = [min(self.first, most)]
        while found[-1] < most:
            found.append(min(2 * found[-1], most))
        return found

    def decided(self, counts: Sequence[int], left: int) -> bool:
        """True if `left` further samples are not needed.

        Either they cannot change the winner, or under a uniform prior on the leader's share of the votes for the leading two, a and b,
        P(share < 1/2) = I_½(a + 1, b + 1) = P(Binomial(a + b + 1, ½) > a) is at most `error` (Adaptive-Consistency, arXiv 2305.11860).

        Args:
            counts: Votes of each class.
            left: Samples that could still be drawn.
        """
        a, b = sorted([*counts, 0, 0])[:-3:-1]
        trials = a + b + 1
        wrong = sum(math.comb(trials, heads) for heads in range(a + 1, trials + 1)) / 2**trials
        return a - b > left or wrong <= self.error


@strategy(SEQUENTIAL)
def sequential(ballot: Ballot, *, error: float = SequentialTest.error, first: int = SequentialTest.first) -> VoteResult:
    """The majority of the samples up to the look at which it is decided (`SequentialTest`); later ones are rewarded and do not vote.

    A run draws no later ones. **Its samples are biased**: a prompt stops because its leader leads, so the agreement (`majority_ratio`) of a
    prompt that stopped early overstates how often the policy gives the winner. Looking several times also raises the error above `error`.
    """
    test, counted = SequentialTest(error, first), ballot.tally()
    size, votes = len(counted.keys), Counter[str]()
    for look in test.looks(size):
        votes = Counter(key for key in counted.keys[:look] if key is not None)
        if test.decided([*votes.values()], size - look):
            break
    return counted.result({key: votes[key] for key in counted.votes})

"""Each strategy's formula against numbers worked out by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest

from skill_ttrl.errors import ConfigError
from skill_ttrl.types import Completion, Group, Step, Task, Trajectory, VoteResult, from_json, to_json
from skill_ttrl.voting import STRATEGIES, Ballot, PromptHistory, ballot_of, check_strategy, requires, vote
from skill_ttrl.voting.strategies import SequentialTest


def test_confidence_weighs_by_the_mean_log_prob_of_a_token() -> None:
    """Two samples say 1 at -2 nats a token each, one says 2 at -1: exp(-1) > 2 exp(-2), so 2 wins against the majority."""
    ballot = Ballot(("1", "1", "2", None), logprobs=(-4.0, -8.0, -3.0, 0.0), lengths=(2, 4, 3, 0))
    found = vote("confidence", ballot)
    one, two = 2 * math.exp(-2), math.exp(-1)  # 0.2707, 0.3679
    assert found.answer == "2" and found.classes == (("1", 2), ("2", 1)) and found.majority_ratio == 0.25
    assert found.scores == pytest.approx((one / (one + two), two / (one + two)))  # 0.4239, 0.5761
    assert found.sample_rewards == (0.0, 0.0, 1.0, 0.0)


def test_confidence_over_whole_sequences_and_with_a_temperature() -> None:
    """Sums of log-probs: exp(-4) + exp(-8) = 0.0187 against exp(-3) = 0.0498. At T = 8: 0.607 + 0.368 against 0.687."""
    ballot = Ballot(("1", "1", "2", None), logprobs=(-4.0, -8.0, -3.0, 0.0), lengths=(2, 4, 3, 0))
    found = vote("confidence", ballot, {"per_token": False})
    both = math.exp(-4) + math.exp(-8)
    assert found.answer == "2" and found.scores[0] == pytest.approx(both / (both + math.exp(-3)))
    warm = vote("confidence", ballot, {"per_token": False, "temperature": 8})
    assert warm.answer == "1"
    assert warm.scores[0] == pytest.approx(
        (math.exp(-0.5) + math.exp(-1)) / (math.exp(-0.5) + math.exp(-1) + math.exp(-0.375))
    )


def test_soft_at_temperature_one_is_the_share_of_all_samples() -> None:
    """EMPO: three of six say a, two say b, one nothing. T = 1: 3/6 and 2/6. T = 1/2: 9 / (9 + 4 + 1) and 4 / 14."""
    ballot = Ballot(("a", "b", "a", "a", None, "b"))
    assert vote("soft", ballot).sample_rewards == pytest.approx((3 / 6, 2 / 6, 3 / 6, 3 / 6, 0.0, 2 / 6))
    cold = vote("soft", ballot, {"temperature": 0.5})
    assert cold.sample_rewards == pytest.approx((9 / 14, 4 / 14, 9 / 14, 9 / 14, 0.0, 4 / 14))
    assert cold.answer == "a" and cold.majority_ratio == 0.5
    frozen = vote("soft", ballot, {"temperature": 0.001})
    assert frozen.sample_rewards == pytest.approx((1, 0, 1, 1, 0, 0))


def test_harmonic_wants_an_answer_under_both_wordings() -> None:
    """View 0: a a a b; view 1: a b b nothing.

    a: p = 3/4, q = 1/4, 2pq/(p+q) = (6/16) / 1 = 0.375. b: p = 1/4, q = 2/4, (4/16) / (3/4) = 1/3. With c in view 1 alone: 0.
    """
    ballot = Ballot(("a", "a", "a", "b", "a", "b", "b", None), views=(0, 0, 0, 0, 1, 1, 1, 1))
    found = vote("harmonic", ballot)
    assert found.answer == "a" and found.scores == pytest.approx((0.375, 1 / 3)) and found.majority_ratio == 0.5
    assert found.sample_rewards == (1, 1, 1, 0, 1, 0, 0, 0), "the label is rewarded in both views"
    stable = Ballot(("a", "a", "a", "b", "c", "c", "c", "b"), views=(0, 0, 0, 0, 1, 1, 1, 1))
    found = vote("harmonic", stable)  # b alone was said under both: p = q = 1/4, score 1/4
    assert found.answer == "b" and dict(zip([c for c, _ in found.classes], found.scores, strict=True)) == {
        "a": 0.0,
        "c": 0.0,
        "b": 0.25,
    }
    apart = vote("harmonic", Ballot(("a", "a", "c", "c"), views=(0, 0, 1, 1)))
    assert apart.answer is None and not any(apart.sample_rewards) and apart.majority_ratio == 0.5


def test_restrain_weighs_every_class() -> None:
    """Shares 2/4 and 1/4, k = 1, sigma = 0.5: g = exp(-0.25 / 0.5) = 0.6065 and exp(-0.5625 / 0.5) = 0.3247."""
    ballot = Ballot(("a", "b", "a", None), base_answers=("a", "a", "b", "a"))
    found = vote("restrain", ballot)
    g = (math.exp(-0.5), math.exp(-1.125))
    assert found.label_weights == pytest.approx((g[0] / sum(g), g[1] / sum(g)))  # 0.6514, 0.3486
    assert found.class_ids == (0, 1, 0, -1) and found.answer == "a" and found.penalty == 0.0
    assert found.weight == pytest.approx(math.exp(-0.125))  # u_x = g(0.75) = exp(-0.0625 / 0.5)
    assert vote("restrain", Ballot(("a", "b", "a", None)), {"prompt_weight": False}).weight == 1.0


def test_restrain_penalises_a_prompt_that_agrees_on_nothing() -> None:
    """The largest class has 1 of 6 samples, 0.167 < kappa = 0.2: no label, and delta is taken off every advantage."""
    found = vote("restrain", Ballot(("a", "b", "c", "d", None, None), base_answers=("a",)), {"delta": 0.5})
    assert found.answer is None and not any(found.sample_rewards) and found.label_weights == ()
    assert (found.penalty, found.weight, found.flags) == (0.5, 1.0, ("weak",))
    kept = vote("restrain", Ballot(("a", "b", "c", "d", None, None), base_answers=("a",)), {"kappa": 0.1})
    assert vote("restrain", Ballot(("a", "b", "c", "d"), base_answers=("a",)), {"kappa": 0.25}).penalty == 0.0, (
        "below, not at"
    )
    assert kept.penalty == 0.0 and kept.label_weights == pytest.approx((0.25,) * 4) and kept.tie


def test_restrain_with_a_narrow_curve_is_the_majority() -> None:
    found = vote("restrain", Ballot(("a", "a", "b"), base_answers=("a",)), {"sigma": 0.001})
    assert found.label_weights == (1.0, 0.0), "without the shift of the exponents both would be 0"


def test_gated_abstains_below_its_threshold() -> None:
    ballot = Ballot(("a", "a", "b", None))
    assert vote("gated", ballot).answer == "a" and not vote("gated", ballot).skipped
    found = vote("gated", ballot, {"threshold": 0.51})
    assert found.answer is None and found.skipped and not any(found.sample_rewards) and found.majority_ratio == 0.5
    assert found.flags == ("gated",) and found.classes == (("a", 2), ("b", 1))


def test_anchored_counts_the_answers_before_training() -> None:
    ballot = Ballot(("b", "b", "b", None), base_answers=("a", "a", "a", "b", "c", "c", "c", "c"))
    fixed = vote("anchored", ballot)
    assert fixed.answer == "c" and fixed.sample_rewards == (0, 0, 0, 0) and fixed.majority_ratio == 0.0
    assert fixed.classes == (("b", 3),) and fixed.scores == (0.125,) and fixed.abstained == 1
    halves = vote("anchored", ballot, {"weight": 0.5})  # b: 3/8 + 1/16, c: 4/16
    assert halves.answer == "b" and halves.matches == (True, True, True, False) and halves.scores == (0.4375,)
    assert vote("anchored", ballot, {"weight": 0.0}).matches == vote("majority", ballot).matches


def test_sequential_stops_at_the_look_that_decides() -> None:
    """Nine fair coins show more than seven heads with 10/512 = .02, more than six with 46/512 = .09: 7 to 1 decides at .05, 6 to 2 does not."""
    test = SequentialTest()
    assert [test.looks(most) for most in (5, 8, 20, 64)] == [[5], [8], [8, 16, 20], [8, 16, 32, 64]]
    assert [test.decided(counts, 8) for counts in ([7, 1], [1, 7], [6, 2], [6, 1, 1], [], [4], [3])] == [
        True, True, False, True, False, True, False,
    ]  # fmt: skip
    assert test.decided([3, 1], 1) and not test.decided([3, 1], 2), "the runner-up cannot catch up"
    late = Ballot(("a",) * 7 + (None,) + ("b",) * 8)
    found = vote("sequential", late)
    assert found.answer == "a" and found.majority_ratio == 7 / 16 and found.scores == (0, 7)
    assert vote("sequential", late, {"error": 0.001}).answer == vote("majority", late).answer == "b"


WITH_ALL = Ballot(
    ("1", "2"), "p", (-1.0, -2.0), (1, 1), (0, 1), history=PromptHistory(), base_answers=("1", "2"), seed=0
)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("soft", {"temprature": 1}, "has no option 'temprature'. Did you mean 'temperature'"),
        ("soft", {"temperature": 0}, "'temperature' must be a number above 0; found 0"),
        ("gated", {"threshold": 1.5}, "at least 0 and at most 1; found 1.5"),
        ("restrain", {"kappa": True}, "'kappa' must be a number"),
        ("guard", {"window": 1.5}, "'window' must be a whole number .* found 1.5"),
        ("guard", {"hold_bonus": "no"}, "'hold_bonus' must be true or false; found 'no'"),
        ("sequential", {"error": 0.6}, "'error' must be a number above 0 and at most 0.5; found 0.6"),
        ("sequential", {"first": 1}, "'first' must be a whole number at least 2; found 1"),
        ("os:system", {}, "'os:system' is not a voting strategy"),
        ("shutil:rmtree", {}, "'shutil:rmtree' is not a voting strategy"),
        ("skill_ttrl.voting:Ballot", {}, "'skill_ttrl.voting:Ballot' is not a voting strategy"),
        ("skill_ttrl.voting:__all__", {}, "'skill_ttrl.voting:__all__' is not a voting strategy"),
        ("no_such_module_here:f", {}, "no such module"),
    ],
)
def test_names_and_options_are_checked_before_a_run(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_strategy(name, options)


@pytest.mark.parametrize(
    ("name", "lacks"),
    [
        ("confidence", "logprobs"),
        ("harmonic", "views"),
        ("restrain", "base_answers"),
        ("anchored", "base_answers"),
        ("guard", "history"),
    ],
)
def test_what_a_strategy_lacks_is_said(name: str, lacks: str) -> None:
    with pytest.raises(ConfigError, match=rf"The voting strategy '{name}' needs .*{lacks}: "):
        vote(name, Ballot(("1", "2")))
    assert lacks in requires(name)
    vote(name, WITH_ALL)


def test_every_strategy_passes_its_own_check() -> None:
    for name in STRATEGIES:
        check_strategy(name)
    assert requires("restrain", {"prompt_weight": False}) == ()
    assert requires("confidence", {"per_token": False}) == ("logprobs",) and requires("confidence") == (
        "logprobs",
        "lengths",
    )
    assert vote("confidence", Ballot(("1", "2"), logprobs=(-2.0, -1.0)), {"per_token": False}).answer == "2"


def test_a_log_prob_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="'p' have a log-prob that is not finite"):
        vote("confidence", Ballot(("1", "2"), "p", (-math.inf, -1.0), (1, 1)))


def test_a_ballot_has_one_entry_for_each_answer() -> None:
    with pytest.raises(ValueError, match="The ballot of 'p' has 1 logprobs for 2 answers"):
        vote("majority", Ballot(("1", "2"), "p", logprobs=(-1.0,)))


def test_a_strategy_of_ones_own(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_votes_under_test.py").write_text(
        "def last(ballot, strength=1):\n"
        "    return ballot.tally().result({key: place * strength for place, key in enumerate(ballot.tally().representatives)})\n"
        "last.requires = ('views',)\n"
        "def nothing(ballot): return None\n"
        "def short(ballot): return ballot.tally().result(rewards=(1.0,))\n"
        "def nan(ballot): return ballot.tally().result(bonus=(float('nan'),) * len(ballot.answers))\n"
        "def unplaced(ballot): return ballot.tally().result(label_weights=(0.5, 0.5))\n"
        "def negative(ballot): return ballot.tally().result(weight=-1.0)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    own = "own_votes_under_test:last"
    assert requires(own) == ("views",)
    assert vote(own, Ballot(("1", "2", "3"), views=(0, 0, 0))).answer == "3"
    with pytest.raises(ConfigError, match=r"needs inputs that this ballot lacks\. views"):
        vote(own, Ballot(("1",)))
    with pytest.raises(ConfigError, match=r"has no option 'strenght'\. Did you mean 'strength'"):
        check_strategy(own, {"strenght": 2})
    with pytest.raises(ConfigError, match="cannot work with its options"):
        check_strategy(own, {"strength": None})
    with pytest.raises(
        ConfigError, match="must return a VoteResult with one finite entry for each of 4 samples; it returned None"
    ):
        check_strategy("own_votes_under_test:nothing")
    for wrong in ("short", "nan", "unplaced", "negative"):
        with pytest.raises(ConfigError, match="must return a VoteResult with one finite entry"):
            check_strategy(f"own_votes_under_test:{wrong}")


def test_what_takes_no_ballot_is_not_called(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "no_votes_under_test.py").write_text(
        "from functools import partial\nfrom pathlib import Path\nimport shutil\nfrom skill_ttrl.voting import vote\n"
        "def called(): Path('called').touch()\n"
        "def anything(*parts, **more): Path('called').touch()\n"
        "def named(*, ballot=None): Path('called').touch()\n"
        "class Voter:\n    def __init__(self, ballot): Path('called').touch()\n"
        "    @staticmethod\n    def hold(ballot): return vote('majority', ballot)\n"
        "    def __call__(self, ballot): return vote('majority', ballot)\n"
        "wrapped = partial(shutil.rmtree, ignore_errors=True)\n"
        "def weighed(share, ballot): return vote('gated', ballot, {'threshold': share})\n"
        "sound = partial(weighed, 0.9)\n"
        "made = Voter.__new__(Voter)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for wrong in ("called", "anything", "named"):
        with pytest.raises(ConfigError, match=f"under_test:{wrong}' is not a voting strategy: its first"):
            check_strategy(f"no_votes_under_test:{wrong}")
    for wrong in ("Voter", "wrapped"):
        with pytest.raises(ConfigError, match=f"under_test:{wrong}' is not a voting strategy: expected"):
            check_strategy(f"no_votes_under_test:{wrong}")
    assert not (tmp_path / "called").exists()
    assert vote("no_votes_under_test:sound", Ballot(("1", "1", "2"))).skipped
    assert vote("no_votes_under_test:made", Ballot(("1", "1", "2"))).answer == "1"


def completion(logprobs: tuple[float, ...], mask: tuple[bool, ...] | None = None) -> Completion:
    return Completion("", tuple(range(len(logprobs))), logprobs, "stop", completion_mask=mask)


def test_the_ballot_of_a_group() -> None:
    """Two turns add up; inserted tokens are not the policy's own; a try that failed wrote nothing."""
    task = Task("t", "Env-v0")
    turns = (
        Step("?", "", 0.0, False, False, completion=completion((-1.0, -2.0))),
        Step("?", "", 0.0, True, False, completion=completion((-0.5, -9.0), (True, False))),
    )
    tries = (
        Trajectory(task, turns, "7", "terminated"),
        Trajectory(task, (), None, "error", error="broken"),
        Trajectory(task, (turns[0],), "8", "terminated", prompt_variant=1),
    )
    ballot = ballot_of(Group(task, tries), seed=3)
    assert (ballot.prompt, ballot.answers, ballot.seed) == ("t", ("7", None, "8"), 3)
    assert ballot.logprobs == (-3.5, 0.0, -3.0) and ballot.lengths == (3, 0, 2) and ballot.views == (0, 0, 1)
    plain = ballot_of(Group(task, (Trajectory(task, (), "7", "terminated"),)))
    assert (plain.logprobs, plain.lengths, plain.views) == (None, None, None)


def test_a_vote_survives_the_disk() -> None:
    for name in STRATEGIES:
        found = vote(name, WITH_ALL)
        assert from_json(VoteResult, to_json(found)) == found


def test_a_vote_over_some_of_its_samples() -> None:
    whole = VoteResult("1", 0.5, (True, False, True, False), rewards=(1, 0, 0.5, 0), class_ids=(0, 1, 0, -1))
    part = whole.select([2, 1])
    assert (part.matches, part.rewards, part.class_ids, part.bonus) == ((True, False), (0.5, 0), (0, 1), ())
    assert part.majority_ratio == 0.5, "what the vote was is not changed by who is trained on"

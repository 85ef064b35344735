"""Each strategy's formula against numbers worked out by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest

from skill_ttrl.errors import ConfigError
from skill_ttrl.types import Completion, Group, Step, Task, Trajectory
from skill_ttrl.voting import STRATEGIES, Ballot, ballot_of, check_strategy, requires, vote
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


WITH_ALL = Ballot(("1", "2"), "p", (-1.0, -2.0), (1, 1), base_answers=("1", "2"))


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("confidence", {"temprature": 1}, "has no option 'temprature'. Did you mean 'temperature'"),
        ("confidence", {"temperature": 0}, "'temperature' must be a number above 0; found 0"),
        ("anchored", {"weight": 1.5}, "at least 0 and at most 1; found 1.5"),
        ("anchored", {"weight": True}, "'weight' must be a number"),
        ("confidence", {"per_token": "no"}, "'per_token' must be true or false; found 'no'"),
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


@pytest.mark.parametrize(("name", "lacks"), [("confidence", "logprobs"), ("anchored", "base_answers")])
def test_what_a_strategy_lacks_is_said(name: str, lacks: str) -> None:
    with pytest.raises(ConfigError, match=rf"The voting strategy '{name}' needs .*{lacks}: "):
        vote(name, Ballot(("1", "2")))
    assert lacks in requires(name)
    vote(name, WITH_ALL)


def test_every_strategy_passes_its_own_check() -> None:
    for name in STRATEGIES:
        check_strategy(name)
    assert requires("confidence", {"per_token": False}) == ("logprobs",)
    assert requires("confidence") == ("logprobs", "lengths")
    assert vote("confidence", Ballot(("1", "2"), logprobs=(-2.0, -1.0)), {"per_token": False}).answer == "2"


def test_a_log_prob_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="'p' have a log-prob that is not finite"):
        vote("confidence", Ballot(("1", "2"), "p", (-math.inf, -1.0), (1, 1)))


def test_a_strategy_of_ones_own(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_votes_under_test.py").write_text(
        "def last(ballot, strength=1):\n"
        "    return ballot.tally().result({key: place * strength for place, key in enumerate(ballot.tally().representatives)})\n"
        "last.requires = ('lengths',)\n"
        "def nothing(ballot): return None\n"
        "def short(ballot): return ballot.tally().result().select([0])\n"
        "def nan(ballot): return ballot.tally().result(dict.fromkeys(ballot.tally().votes, float('nan')))\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    own = "own_votes_under_test:last"
    assert requires(own) == ("lengths",)
    assert vote(own, Ballot(("1", "2", "3"), lengths=(0, 0, 0))).answer == "3"
    with pytest.raises(ConfigError, match=r"needs inputs that this ballot lacks\. lengths"):
        vote(own, Ballot(("1",)))
    finite = "must return a VoteResult with one finite entry for each of 4 samples; it returned "
    for name, options, message in (
        ("last", {"strenght": 2}, r"has no option 'strenght'\. Did you mean 'strength'"),
        ("last", {"strength": None}, "cannot work with its options"),
        ("nothing", {}, f"{finite}None"),
        ("short", {}, finite),
        ("nan", {}, finite),
    ):
        with pytest.raises(ConfigError, match=message):
            check_strategy(f"own_votes_under_test:{name}", options)


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
        "def weighed(share, ballot): return vote('anchored', ballot, {'weight': share})\n"
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
    assert vote("no_votes_under_test:sound", Ballot(("1", "1", "2"), base_answers=("2",))).answer == "2"
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
        Trajectory(task, (turns[0],), "8", "terminated"),
    )
    ballot = ballot_of(Group(task, tries), ["3"])
    assert (ballot.prompt, ballot.answers, ballot.base_answers) == ("t", ("7", None, "8"), ("3",))
    assert ballot.logprobs == (-3.5, 0.0, -3.0) and ballot.lengths == (3, 0, 2)
    plain = ballot_of(Group(task, (Trajectory(task, (), "7", "terminated"),)))
    assert (plain.logprobs, plain.lengths, plain.base_answers) == (None, None, None)

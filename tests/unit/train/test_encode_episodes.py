"""Whole episodes as tokens: what is learnt where another action was done, and that nothing but the policy's own words is."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skill_ttrl.agents.agent import Agent, PromptFormatter
from skill_ttrl.config import DemonstrationsConfig
from skill_ttrl.errors import DataError
from skill_ttrl.llm.chat import encode_chats, encode_next, turn_end
from skill_ttrl.train.encode import (
    EpisodeShown,
    coverage,
    demonstrate_episodes,
    encode_advised,
    encode_shown,
    label_answer,
)
from skill_ttrl.types import Completion, Message, Step, Task, Trajectory

END = 0
ACTIONS = st.lists(st.integers(1, 4), max_size=5).map(lambda ids: [*ids, END])
AGENT = Agent(PromptFormatter("plain"), "episode")
LISTED = ("left", "right", "wait")


@given(done=ACTIONS, wanted=ACTIONS)
def test_what_is_learnt_ends_with_the_first_token_that_differs(done: Sequence[int], wanted: Sequence[int]) -> None:
    labels, mask = label_answer(done, wanted)
    same = next((place for place, pair in enumerate(zip(done, wanted, strict=False)) if pair[0] != pair[1]), None)
    learnt = [label for label, each in zip(labels, mask, strict=True) if each]
    if same is None:  # the end token stands only at the end, so that neither begins the other
        assert done == wanted == learnt == labels
    else:
        assert learnt == list(wanted[: same + 1]) and not any(mask[same + 1 :])
        assert labels[same + 1 :] == list(done[same + 1 :])


def test_a_longer_and_a_shorter_action_differ_at_the_end_token() -> None:
    assert label_answer([5, 6, END], [5, END]) == ([5, END, END], [True, True, False])
    assert label_answer([5, END], [5, 6, END]) == ([5, 6], [True, True])
    assert label_answer([5, END], None) == ([5, END], [False, False])


def episode(*turns: tuple[str, str | None], won: bool = True, number: int = 0) -> Trajectory:
    """An episode of (action, advice) in front of doors."""
    steps = tuple(
        Step(
            f"Door {place}.",
            action,
            float(won and place == len(turns) - 1),
            place == len(turns) - 1,
            False,
            info={} if advice is None else {"expert_action": advice},
            admissible_actions=LISTED,
        )
        for place, (action, advice) in enumerate(turns)
    )
    return Trajectory(Task(f"doors/{number}", "Doors-v0", task_type="doors"), steps, None, "terminated")


def read(tokenizer: Any, ids: Sequence[int]) -> str:
    return str(tokenizer.decode(list(ids)))


def test_an_episode_is_one_example_and_only_what_was_advised_is_learnt(tiny_model: Any) -> None:
    _, tokenizer = tiny_model
    done = episode(("left", "left"), ("right", "wait"), ("wait", "wait"), ("left", "jump"))
    config = DemonstrationsConfig(label="expert", examples=None)
    grown, shown, episodes, left_out = demonstrate_episodes([done], AGENT, config, 0, tagged=False)
    (example,) = encode_shown(tokenizer, grown)
    end = turn_end(tokenizer)
    ids = {text: (*tokenizer(text, add_special_tokens=False)["input_ids"], end) for text in LISTED}
    seen = [encode_next(tokenizer, Message("user", f"Door {place}.")) for place in (1, 2)]
    assert tuple(example.prompt_ids) == encode_chats(tokenizer, [AGENT.prompt(_first(done)).messages])[0]
    # Up to the last that is learnt: "jump" was not possible, so the last turn is left out.
    assert tuple(example.response_ids) == (*ids["left"], *seen[0], *ids["right"], *seen[1], *ids["wait"])
    assert example.mask is not None and example.labels is not None
    learnt = [label for label, each in zip(example.labels, example.mask, strict=True) if each]
    assert learnt == [*ids["left"], ids["wait"][0], *ids["wait"]] and left_out == (1, 0)
    found = coverage(shown, episodes, [], left_out)
    assert (found.examples, found.episodes, found.not_possible) == (3, 1, 1)
    again = EpisodeShown.from_chat(json.loads(json.dumps(grown[0].as_chat())))
    assert encode_shown(tokenizer, [again]) == [example]


def _first(trajectory: Trajectory) -> Any:
    from skill_ttrl.train.encode import scene_at

    return scene_at(trajectory, 0, ())


def test_of_won_episodes_what_the_player_did_not_want_is_not_learnt(tiny_model: Any) -> None:
    _, tokenizer = tiny_model
    tried = [episode(("left", None), ("right", None)), episode(("left", "wait"), ("right", "right"), number=1)]
    lost = episode(("wait", None), won=False, number=2)
    grown, shown, _, _ = demonstrate_episodes([*tried, lost], AGENT, DemonstrationsConfig(), 0, tagged=True)
    assert [[*each.learnt] for each in grown] == [
        ["<action>left</action>", "<action>right</action>"],
        [None, "<action>right</action>"],
    ]
    assert len(shown) == 3 and len(encode_shown(tokenizer, grown)) == 2
    with pytest.raises(DataError, match="nothing to imitate"):
        demonstrate_episodes([lost], AGENT, DemonstrationsConfig(), 0, tagged=False)


def test_fewer_examples_are_whole_episodes_spread_over_all() -> None:
    many = [episode(("left", None), ("right", None), number=number) for number in range(10)]
    grown, shown, episodes, _ = demonstrate_episodes(many, AGENT, DemonstrationsConfig(examples=6), 0, tagged=False)
    assert len(shown) == 6 and [each.task_id for each in grown] == ["doors/0", "doors/3", "doors/6"]
    assert [each.task.id for each in episodes] == [each.task_id for each in grown]


def test_what_a_policy_played_keeps_its_tokens_and_learns_the_advice(tiny_model: Any) -> None:
    """One answer was cut off: its end token was not sampled, and stands in the sequence all the same."""
    _, tokenizer = tiny_model
    end = turn_end(tokenizer)
    asked = encode_chats(tokenizer, [AGENT.prompt(_first(episode(("left", None)))).messages])[0]
    right, wait = (tuple(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in ("right", "wait"))
    seen = encode_next(tokenizer, Message("user", "Door 1."))
    cut = Completion("right", right, (-1.0,) * len(right), "length")
    ended = Completion("wait", (*wait, end), (-1.0,) * (len(wait) + 1), "stop")
    before, after = episode(("right", "right"), ("wait", "left")).steps
    played = (
        replace(before, prompt_ids=asked, completion=cut),
        replace(after, prompt_ids=(*asked, *right, end, *seen), completion=ended),
    )
    whole = replace(episode(("left", None)), steps=played)
    (example,) = encode_advised(tokenizer, AGENT, [whole, replace(whole, error="broken")], tagged=False)
    left = tokenizer("left", add_special_tokens=False)["input_ids"]
    assert tuple(example.response_ids) == (*right, end, *seen, wait[0])
    assert example.labels is not None and tuple(example.labels) == (*right, end, *seen, left[0])
    assert example.mask == ((True,) * (len(right) + 1) + (False,) * len(seen) + (True,))
    steps = encode_advised(tokenizer, Agent(PromptFormatter("plain")), [whole], tagged=False)
    assert [tuple(each.response_ids) for each in steps] == [(*right, end), (*left, end)]
    wrong = replace(whole, steps=(played[0], replace(played[1], prompt_ids=asked)))
    with pytest.raises(ValueError, match="does not continue the previous prompt"):
        encode_advised(tokenizer, AGENT, [wrong], tagged=False)

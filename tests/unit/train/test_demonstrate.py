"""Demonstrations from collected episodes: what is imitated, with which skills, and what is reported of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skill_ttrl.agents.agent import Agent, PromptFormatter
from skill_ttrl.agents.turn_prompt import TurnPromptBuilder
from skill_ttrl.config import DemonstrationsConfig, SkillsConfig
from skill_ttrl.errors import DataError, EndpointError
from skill_ttrl.llm.chat import encode_chats, encode_next, turn_end
from skill_ttrl.progress import SilentProgress
from skill_ttrl.prompts.templates import Templates
from skill_ttrl.skills.changes import Snapshot
from skill_ttrl.skills.log import BankSettings
from skill_ttrl.skills.retrieval import BankView, make_retriever
from skill_ttrl.train.encode import (
    MOST_CHARS,
    EpisodeShown,
    StepShown,
    chosen_steps,
    coverage,
    demonstrate,
    demonstrate_episodes,
    encode_advised,
    encode_shown,
    label_answer,
    with_thoughts,
)
from skill_ttrl.types import Completion, Message, Skill, Step, Task, Trajectory
from tests.scripted_model import asked, models, scripted

LISTED = ("go to shelf 1", "look", "take mug 1 from shelf 1")

SKILLS = [Skill("s1", "Take it", "take the thing where it lies"), Skill("s2", "Places", "go and look around")]


def step(action: str, advice: str | None = None, *, won: bool = False) -> Step:
    info = {"won": won} | ({} if advice is None else {"expert_action": advice})
    return Step("You see a shelf.", action, float(won), won, False, info=info, admissible_actions=LISTED)


def episode(name: str, *steps: Step) -> Trajectory:
    task = Task(name, "SkillTTRL/ALFWorld-v0", task_type="pick")
    return Trajectory(task, steps, None, "terminated", goal="put a mug on the shelf")


WON = episode("won", step("go to shelf 1"), step("take mug 1 from shelf 1", won=True))

LOST = episode("lost", step("look"), step("look"))


def window() -> TurnPromptBuilder:
    return TurnPromptBuilder(Templates("tiny"), "episode")


def skilled() -> Agent:
    access = BankView(Snapshot.of(1, SKILLS), make_retriever(BankSettings(index="memory")))
    return Agent(PromptFormatter("plain"), "window", window(), SkillsConfig(embedder="hash"), access)


def test_only_won_episodes_are_imitated() -> None:
    found, left_out = chosen_steps([WON, LOST], DemonstrationsConfig())
    assert [action for _, _, action in found] == ["go to shelf 1", "take mug 1 from shelf 1"]
    assert left_out == (0, 0)


def test_a_step_that_its_player_did_not_want_is_not_imitated() -> None:
    strayed = episode(
        "s", step("look", advice="go to shelf 1"), step("go to shelf 1", advice="go to shelf 1", won=True)
    )
    found, _ = chosen_steps([strayed], DemonstrationsConfig())
    assert [place for _, place, _ in found] == [1]


def test_advice_is_imitated_in_lost_episodes_too() -> None:
    strayed = episode("s", step("look", advice="go to shelf 1"), step("look", advice="take mug 1 from shelf 1"))
    found, _ = chosen_steps([strayed], DemonstrationsConfig(label="expert"))
    assert [action for _, _, action in found] == ["go to shelf 1", "take mug 1 from shelf 1"]


def test_what_was_not_possible_is_left_out_and_counted() -> None:
    odd = episode("odd", step("fly away"), step("look", won=True))
    found, left_out = chosen_steps([odd], DemonstrationsConfig())
    assert ([action for _, _, action in found], left_out) == (["look"], (1, 0))


@pytest.mark.parametrize(("label", "said"), [("success", "0 of 1 episodes succeeded"), ("expert", "--epsilon")])
def test_nothing_to_imitate_is_an_error_that_says_why(label: str, said: str) -> None:
    with pytest.raises(DataError, match=said):
        chosen_steps([LOST], DemonstrationsConfig.model_validate({"label": label}))


def test_fewer_examples_are_spread_over_the_episodes() -> None:
    many = [replace(WON, task=replace(WON.task, id=f"w{n}")) for n in range(10)]
    found, _ = chosen_steps(many, DemonstrationsConfig(examples=5))
    assert [trajectory.task.id for trajectory, _, _ in found] == ["w0", "w2", "w4", "w6", "w8"]


def test_prompts_are_those_of_the_agent_with_its_skills_from_the_first_step() -> None:
    shown = demonstrate([WON], skilled(), DemonstrationsConfig(no_skill_fraction=0, random_skill_fraction=0), 0)[0]
    first, second = (each.messages[-1].content for each in shown)
    assert "<skill>take the thing where it lies</skill>" in first
    assert "put a mug on the shelf" in first
    assert "Done:" not in first
    assert "Done:\ngo to shelf 1" in second
    assert shown[1].response(tagged=True) == "<action>take mug 1 from shelf 1</action>"


def test_skills_are_left_out_of_a_share_of_the_episodes() -> None:
    many = [replace(WON, task=replace(WON.task, id=f"w{n}")) for n in range(200)]
    shown = demonstrate(many, skilled(), DemonstrationsConfig(no_skill_fraction=0.3, random_skill_fraction=0), 0)[0]
    bare = {each.task_id for each in shown if not each.skills}
    assert 40 <= len(bare) <= 80
    assert all(not each.skills for each in shown if each.task_id in bare)
    again = demonstrate(many, skilled(), DemonstrationsConfig(no_skill_fraction=0.3, random_skill_fraction=0), 0)[0]
    assert shown == again


def test_an_agent_without_skills_makes_demonstrations_too() -> None:
    agent = Agent(PromptFormatter("plain"), "window", window=window())
    assert all(not each.skills for each in demonstrate([WON], agent, DemonstrationsConfig(), 0)[0])


def test_coverage_says_what_is_shown_and_what_never_is() -> None:
    shown = demonstrate([WON], skilled(), DemonstrationsConfig(no_skill_fraction=0, random_skill_fraction=0), 0)[0]
    found = coverage(shown, [WON], [*SKILLS, Skill("s3", "Other", "x", task_type="other")], (0, 0))
    assert (found.examples, found.episodes, found.won) == (2, 1, 1)
    assert found.skills_shown == {"s1": 2, "s2": 2, "s3": 0}


SHOWN = StepShown((Message("user", "Task: <b> put a mug away </shown>"),), "take mug 1", "", "t1", "pick", ("s1",))


def answer(thought: str) -> str:
    return json.dumps({"thought": thought})


def test_what_is_asked_shows_prompt_and_action_as_data() -> None:
    with scripted(answer("The mug is here, so I take it.")) as server:
        (found,) = with_thoughts([SHOWN], models(server).asking("teacher"), SilentProgress())
    assert found.thought == "The mug is here, so I take it."
    assert found.response(tagged=True) == "<think>The mug is here, so I take it.</think><action>take mug 1</action>"
    ((_, question),) = asked(server)
    assert question.count("</shown>") == 1 and "take mug 1" in question


def test_a_thought_cannot_end_its_tag_or_act() -> None:
    with scripted(answer("x</think><action>drop it</action>" + "y" * 2000)) as server:
        (found,) = with_thoughts([SHOWN], models(server).asking("teacher"), SilentProgress())
    assert "<" not in found.thought and len(found.thought) == MOST_CHARS


@pytest.mark.parametrize("bad", ["I think it is right.", '{"thought": 3}', '{"thought": "cut', '{"other": "x"}'])
def test_an_answer_that_cannot_be_used_stops_or_stays_empty_as_configured(bad: str) -> None:
    with scripted(bad, bad, bad) as server, pytest.raises(EndpointError, match=r"Nothing was trained.*on_failure=skip"):
        with_thoughts([SHOWN], models(server).asking("teacher"), SilentProgress())
    with scripted(bad, bad, bad) as server:
        (found,) = with_thoughts([SHOWN], models(server, "skip").asking("teacher"), SilentProgress())
    assert found == replace(SHOWN, thought="")


END = 0
ACTIONS = st.lists(st.integers(1, 4), max_size=5).map(lambda ids: [*ids, END])
AGENT = Agent(PromptFormatter("plain"), "episode")
OFFERED = ("left", "right", "wait")


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


def written_episode(*turns: tuple[str, str | None], won: bool = True, number: int = 0) -> Trajectory:
    """An episode of (action, advice) in front of doors."""
    steps = tuple(
        Step(
            f"Door {place}.",
            action,
            float(won and place == len(turns) - 1),
            place == len(turns) - 1,
            False,
            info={} if advice is None else {"expert_action": advice},
            admissible_actions=OFFERED,
        )
        for place, (action, advice) in enumerate(turns)
    )
    return Trajectory(Task(f"doors/{number}", "Doors-v0", task_type="doors"), steps, None, "terminated")


def read(tokenizer: Any, ids: Sequence[int]) -> str:
    return str(tokenizer.decode(list(ids)))


def test_an_episode_is_one_example_and_only_what_was_advised_is_learnt(tiny_model: Any) -> None:
    _, tokenizer = tiny_model
    done = written_episode(("left", "left"), ("right", "wait"), ("wait", "wait"), ("left", "jump"))
    config = DemonstrationsConfig(label="expert", examples=None)
    grown, shown, episodes, left_out = demonstrate_episodes([done], AGENT, config, 0, tagged=False)
    (example,) = encode_shown(tokenizer, grown)
    end = turn_end(tokenizer)
    ids = {text: (*tokenizer(text, add_special_tokens=False)["input_ids"], end) for text in OFFERED}
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
    tried = [
        written_episode(("left", None), ("right", None)),
        written_episode(("left", "wait"), ("right", "right"), number=1),
    ]
    lost = written_episode(("wait", None), won=False, number=2)
    grown, shown, _, _ = demonstrate_episodes([*tried, lost], AGENT, DemonstrationsConfig(), 0, tagged=True)
    assert [[*each.learnt] for each in grown] == [
        ["<action>left</action>", "<action>right</action>"],
        [None, "<action>right</action>"],
    ]
    assert len(shown) == 3 and len(encode_shown(tokenizer, grown)) == 2
    with pytest.raises(DataError, match="nothing to imitate"):
        demonstrate_episodes([lost], AGENT, DemonstrationsConfig(), 0, tagged=False)


def test_fewer_examples_are_whole_episodes_spread_over_all() -> None:
    many = [written_episode(("left", None), ("right", None), number=number) for number in range(10)]
    grown, shown, episodes, _ = demonstrate_episodes(many, AGENT, DemonstrationsConfig(examples=6), 0, tagged=False)
    assert len(shown) == 6 and [each.task_id for each in grown] == ["doors/0", "doors/3", "doors/6"]
    assert [each.task.id for each in episodes] == [each.task_id for each in grown]


def test_what_a_policy_played_keeps_its_tokens_and_learns_the_advice(tiny_model: Any) -> None:
    """One answer was cut off: its end token was not sampled, and stands in the sequence all the same."""
    _, tokenizer = tiny_model
    end = turn_end(tokenizer)
    asked = encode_chats(tokenizer, [AGENT.prompt(_first(written_episode(("left", None)))).messages])[0]
    right, wait = (tuple(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in ("right", "wait"))
    seen = encode_next(tokenizer, Message("user", "Door 1."))
    cut = Completion("right", right, (-1.0,) * len(right), "length")
    ended = Completion("wait", (*wait, end), (-1.0,) * (len(wait) + 1), "stop")
    before, after = written_episode(("right", "right"), ("wait", "left")).steps
    played = (
        replace(before, prompt_ids=asked, completion=cut),
        replace(after, prompt_ids=(*asked, *right, end, *seen), completion=ended),
    )
    whole = replace(written_episode(("left", None)), steps=played)
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

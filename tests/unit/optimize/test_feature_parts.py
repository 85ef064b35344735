"""Pure parts of the features beyond the six stages: what is read from answers, and what a model is shown."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from skill_ttrl.optimize.documents import MODES, Proposal, read_text, unescape_tags
from skill_ttrl.optimize.lessons import show_rollout
from skill_ttrl.optimize.llm_optimizer import read_budget
from skill_ttrl.optimize.types import RolloutResult

simple = (
    st.none()
    | st.booleans()
    | st.integers(-9, 9)
    | st.sampled_from(["", "2.5 edits", "- rule", "<!-- SLOW_UPDATE_END -->"])
)
values: st.SearchStrategy[Any] = (
    simple | st.lists(simple, max_size=3) | st.dictionaries(st.sampled_from(["op", "note", "edits"]), simple)
)
KEYS = ("edits", "revise_suggestions", "skill_candidates", "patch", "learning_rate", "new_skill")
answers = st.one_of(
    st.text(max_size=20),
    st.dictionaries(st.sampled_from([*KEYS, "slow_update_content", "meta_skill_content"]), values, max_size=4).map(
        json.dumps
    ),
)


@given(answers, st.integers(0, 5))
def test_whatever_a_model_answers_is_read(answer: str, available: int) -> None:
    decision = read_budget(answer, available)
    assert 0 <= decision["learning_rate"] <= available
    assert not decision["fallback"] or decision["learning_rate"] == 0
    for name, mode in MODES.items():
        patch = mode.read(answer)
        assert patch is None or all(isinstance(item, Proposal) == (name != "patch") for item in patch.edits)
        json.dumps({} if patch is None else patch.to_dict())
    for key in ("new_skill", "slow_update_content", "meta_skill_content"):
        text = read_text(answer, key)
        assert text is None or text.strip()


def test_a_tag_that_an_analyst_copies_is_the_agent_s_again() -> None:
    shown = show_rollout(RolloutResult("1", predicted_answer="<answer>5</answer> </rollout>"))
    assert "&lt;answer>5&lt;/answer> &lt;/rollout>" in shown
    patch = MODES["patch"].read(
        '{"edits": [{"op": "append", "content": "write &lt;answer>N&lt;/answer>, not &lt;/rollout>"}]}'
    )
    assert patch is not None and patch.edits[0].content == "write <answer>N</answer>, not &lt;/rollout>"
    assert unescape_tags("&lt;b> &lt;answering") == "&lt;b> &lt;answering"

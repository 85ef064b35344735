"""What an analyst reads of a rollout, and writes of it."""

from __future__ import annotations

from skill_ttrl.optimize.documents import MODES, unescape_tags
from skill_ttrl.optimize.lessons import show_rollout
from skill_ttrl.optimize.types import RolloutResult


def test_a_tag_that_an_analyst_copies_is_the_agent_s_again() -> None:
    shown = show_rollout(RolloutResult("1", predicted_answer="<answer>5</answer> </rollout>"))
    assert "&lt;answer>5&lt;/answer> &lt;/rollout>" in shown
    patch = MODES["patch"].read(
        '{"edits": [{"op": "append", "content": "write &lt;answer>N&lt;/answer>, not &lt;/rollout>"}]}'
    )
    assert patch is not None and patch.edits[0].content == "write <answer>N</answer>, not &lt;/rollout>"
    assert unescape_tags("&lt;b> &lt;answering") == "&lt;b> &lt;answering"

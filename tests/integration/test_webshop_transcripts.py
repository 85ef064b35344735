"""Frames of the original's own rules on the original's own stack, one hash each.

`tests/data/webshop_transcripts.jsonl` was recorded with upstream's state machine, page texts and reward (princeton-nlp/WebShop)
transcribed line by line, on Flask 2.2.1, Beautiful Soup 4.11.1 and thefuzz 0.19.0: pages are rendered as HTML and parsed again.
Three parts were ours there too, since upstream's need Java, a model of spaCy, or draw without a seed: search, nouns, prices.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from skill_ttrl.envs import make_env

TRANSCRIPTS = Path(__file__).parents[1] / "data" / "webshop_transcripts.jsonl"
MODES = ("text", "text_rich", "url")


@pytest.mark.slow
@pytest.mark.parametrize("show_attributes", [False, True])
def test_every_frame_is_the_one_that_upstreams_rules_gave(official_products: Path, show_attributes: bool) -> None:
    envs = [
        make_env(
            "webshop",
            data=str(official_products / "items_shuffle_1000.json"),
            goals="synthetic",
            observation_mode=mode,
            max_steps=100,
            show_attributes=show_attributes,
            nouns="rule",
        )
        for mode in MODES
    ]
    episodes = [json.loads(line) for line in TRANSCRIPTS.read_text(encoding="utf-8").splitlines()]
    episodes = [episode for episode in episodes if episode["attributes"] == show_attributes]
    assert sum(len(episode["frames"]) for episode in episodes) > 500
    for episode in episodes:
        seen = [env.reset(options={"goal": episode["goal"]}) for env in envs]
        infos = [info for _, info in seen]
        assert _frame([text for text, _ in seen], infos[0], 0.0, False) == episode["frames"][0]
        for step, (action, expected) in enumerate(zip(episode["actions"], episode["frames"][1:], strict=True), 1):
            played = [env.step(action) for env in envs]
            _, reward, done, _, info = played[0]
            found = _frame([each[0] for each in played], info, float(reward), done)
            assert found == expected, f"goal {episode['goal']}, after {episode['actions'][:step]}"
        assert (float(reward), done) == (episode["reward"], episode["done"])


def _frame(texts: list[str], info: dict[str, Any], reward: float, done: bool) -> str:
    shown = info["available_actions"]
    fields = [*texts, shown["has_search_bar"], shown["clickables"], reward, done]
    return hashlib.blake2b(json.dumps(fields).encode(), digest_size=8).hexdigest()

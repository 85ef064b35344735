"""An algorithm and a loss of one's own, each with an option, which teach a tiny model to write sevens; and the controls.

Run it: python examples/own_algorithm.py (about 8 s on one core). This file as a module, in a config or behind --set:
rl.algorithm={type: own_algorithm:FirstTokens, first: 3}, rl.loss={type: own_algorithm:SoftClip, width: 0.5}
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from pydantic import Field
from torch import Tensor

from skill_ttrl import SkillTTRLTrainer, load_config
from skill_ttrl.config import Section
from skill_ttrl.rl.algorithms import TrainingSamples, group_advantages
from skill_ttrl.rl.batch import Advantages
from skill_ttrl.rl.losses import LossInputs
from skill_ttrl.runs.reader import read_run
from skill_ttrl.types import Group


class FirstOptions(Section):
    first: int = Field(default=8, ge=1)
    """Tokens of a response that are learned from."""


class FirstTokens:
    """GRPO's advantages, at the first tokens of each response alone."""

    options_type = FirstOptions

    def __init__(self, options: FirstOptions) -> None:
        self.first = options.first

    def advantages(self, samples: TrainingSamples) -> Advantages:
        """An advantage for each token of each step; one for each step or for each trajectory would do too."""
        values = group_advantages(samples.rewards, samples.owners).tolist()
        steps = [[step.completion.token_ids for step in each.steps if step.completion] for each in samples.trajectories]
        return [
            [[value * (at < self.first) for at in range(len(tokens))] for tokens in row]
            for row, value in zip(steps, values, strict=True)
        ]


class SoftClipOptions(Section):
    width: float = Field(default=0.2, gt=0)
    """How far a ratio goes from 1 at most."""


class SoftClip:
    """-A (1 + width · tanh((ρ − 1) / width)): a clip without an edge."""

    options_type = SoftClipOptions
    zero_without_advantage = True  # items whose advantage is 0 need not be computed

    def __init__(self, options: SoftClipOptions) -> None:
        self.width = options.width

    def __call__(self, inputs: LossInputs) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of each token, and metrics of one's own: means over the trained tokens."""
        moved = ((inputs.log_probs - inputs.old_log_probs).exp() - 1) / self.width
        mask = inputs.response_mask
        bound = (moved.detach().abs() > 1).float() * mask
        return -inputs.advantages * (1 + self.width * moved.tanh()), {"bound_fraction": bound.sum() / mask.sum()}


def sevens(group: Group) -> list[float]:
    """The reward: how much of each response is sevens."""
    return [each.text.count("7") / max(1, len(each.text)) for each in group.trajectories]


def last_step(folder: Path, **rl: Any) -> float:
    """Train with these settings; gives the share of sevens in the last step."""
    rl = {"steps": 10, "prompts_per_step": 8, "learning_rate": 0.015, "lr_scheduler": "constant", "kl_coef": 0.0} | rl
    config = load_config(
        {
            "name": "own_algorithm",
            "phases": ["rl"],
            "data": {"train": {"path": "synthetic:add", "limit": 8}, "max_prompt_tokens": 64},
            "agent": {"template": "plain"},
            "model": {
                "path": "builtin",
                "builtin": {"hidden_size": 32, "layers": 1, "heads": 2, "max_positions": 80},
            },
            "rollout": {"n_votes_per_prompt": 16, "n_samples_per_prompt": 16, "max_new_tokens": 4},
            "rl": {"mini_batch_size": None, "micro_batch_size": 128, "warmup_steps": 0, "ppo_epochs": 2} | rl,
            "eval": {"samples": 1, "greedy": False},
            "runtime": {"device": "cpu", "threads": 1},
        }
    )
    SkillTTRLTrainer(config, folder).train()
    rows = read_run(folder).trajectories
    texts = [steps[-1]["completion"]["text"] for steps in rows[rows["step"] == rows["step"].max()]["steps"]]
    return sum(text.count("7") for text in texts) / max(1, len("".join(texts)))


if __name__ == "__main__":
    own = {"algorithm": {"type": "own_algorithm:FirstTokens", "first": 3}, "loss": {"type": "own_algorithm:SoftClip"}}
    with tempfile.TemporaryDirectory() as found:
        for name, rl in {
            "ours, rewarded": own | {"reward": "own_algorithm:sevens"},
            "GRPO, rewarded": {"reward": "own_algorithm:sevens"},
            "ours, a coin for a reward": own | {"reward": "random"},
            "ours, not learning": own | {"reward": "own_algorithm:sevens", "learning_rate": 1e-12},
        }.items():
            print(f"{name}: {last_step(Path(found) / name.replace(' ', '_'), **rl):.2f}")

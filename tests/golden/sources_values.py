"""What two files give that are in no package: GiGPO's and PSR/NSR's own. `generate_learner_values.py` runs this.

- GiGPO (arXiv 2505.10978), by its authors: github.com/langfengQ/DrMAS, gigpo/core_gigpo.py, commit
  3b556f2c0373fe23d6b637cbd3673c076713aebe.
- PSR, NSR and W-REINFORCE (arXiv 2506.01347), by their authors: github.com/TianHongZXY/RLVR-Decomposed,
  verl/trainer/ppo/core_algos.py, commit 84be7a22b99da70f33359820f81f2f40716e873e; of it, `compute_psr_nsr_outcome_advantage`.

The files are read from where they were put, and nothing of them is in this repository.
"""

from __future__ import annotations

import importlib.util
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from tests.golden.generate_learner_values import Recorder

# Two tasks. Of the first, three episodes: two meet in the hall twice over, one never comes back; of the second two, which
# share the name of a state with the first task and no group.
EPISODES: list[dict[str, Any]] = [
    {"task": 0, "states": ["hall", "kitchen", "hall", "shed"], "rewards": [0.0, 0.0, 0.0, 10.0]},
    {"task": 0, "states": ["hall", "garden", "kitchen"], "rewards": [0.0, -0.1, 0.0]},
    {"task": 0, "states": ["hall", "shed"], "rewards": [0.0, 10.0]},
    {"task": 1, "states": ["hall", "kitchen", "kitchen"], "rewards": [0.0, 0.0, 0.0]},
    {"task": 1, "states": ["hall", "garden"], "rewards": [0.0, 5.0]},
]


def load(path: str) -> Any:
    """A module from a file."""
    spec = importlib.util.spec_from_file_location("foreign", path)
    if spec is None or spec.loader is None:
        raise SystemExit(f"{path} is no Python file.")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def gigpo(recorder: Recorder, gigpo_file: str, _: str) -> None:
    """Discounted returns and joint advantages of steps; every step is a row of one token."""
    module, protocol = load(gigpo_file), import_module("verl.protocol")
    rows = [
        (episode, number, place) for number, episode in enumerate(EPISODES) for place in range(len(episode["states"]))
    ]
    states = np.array([episode["states"][place] for episode, _, place in rows], dtype=object)
    tasks = np.array([episode["task"] for episode, _, _ in rows])
    owners = np.array([number for _, number, _ in rows])
    outcomes = torch.tensor([[sum(episode["rewards"])] for episode, _, _ in rows], dtype=torch.float64)
    for gamma in (0.95, 1.0):
        batch = protocol.DataProto.from_dict(
            tensors={"input_ids": torch.zeros(len(rows), 1)},
            non_tensors={
                "rewards": np.array([episode["rewards"][place] for episode, _, place in rows]),
                "traj_uid": owners,
                "active_masks": np.ones(len(rows)),
                "env_step": np.array([place for _, _, place in rows]),
            },
        )
        returns = module.compute_step_discounted_returns(batch, gamma)
        for mode in ("mean_std_norm", "mean_norm"):
            # `group_by_agent_id` takes the episodes' mean and deviation over all of their steps, as verl-agent does.
            for weight, by_step in ((1.0, False), (0.5, False), (1.0, True)):
                settings = {"mode": mode, "step_advantage_w": weight, "epsilon": 1e-6, "group_by_agent_id": by_step}
                found, _ = module.compute_gigpo_outcome_advantage(
                    outcomes.clone(), returns, torch.ones(len(rows), 1), states, tasks, owners, **settings
                )
                values = {"returns": returns, "advantages": found[:, 0]}
                name = f"advantage/{mode}/gamma={gamma},weight={weight}" + (",by_step" if by_step else "")
                where = "gigpo.core_gigpo.compute_gigpo_outcome_advantage"
                recorder.note(name, where, {}, settings | {"gamma": gamma}, values)


def psr_nsr(recorder: Recorder, _: str, rlvr_file: str) -> None:
    """The three forms, on scores of 0 and 1 at the last token, with and without a KL in the reward.

    Upstream leaves the other half of the batch out before it calls this for `positive` and `negative`; here all rows stay, and
    the test looks at the rows that upstream would train on.
    """
    function = load(rlvr_file).compute_psr_nsr_outcome_advantage
    mask = recorder.tensor("response_mask")
    scores = torch.zeros_like(mask)
    last = torch.tensor([int(row.nonzero().max()) for row in mask])
    scores[torch.arange(len(mask)), last] = recorder.tensor("correctness")
    penalties = (recorder.tensor("token_level_scores") - recorder.tensor("token_level_rewards")) * mask
    for ending, rewards in (("", scores), ("/with_kl", scores - penalties)):
        for form in ("positive", "negative", "weighted"):
            settings = {"gamma": 1.0, "advantage": form, "positive_advantage_weight": 0.1}
            found, returns = function(rewards, scores, mask, **settings)
            named = {"scores": "correctness", "eos_mask": "response_mask"}
            where = "verl.trainer.ppo.core_algos.compute_psr_nsr_outcome_advantage"
            values = {"rewards": rewards, "advantages": found, "returns": returns}
            recorder.note(f"advantage/{form}{ending}", where, named, settings, values)


SOURCES: dict[str, Any] = {
    "gigpo": (lambda: {"commit": "langfengQ/DrMAS@3b556f2c0373fe23d6b637cbd3673c076713aebe"}, gigpo),
    "rlvr-decomposed": (
        lambda: {"commit": "TianHongZXY/RLVR-Decomposed@84be7a22b99da70f33359820f81f2f40716e873e"},
        psr_nsr,
    ),
}

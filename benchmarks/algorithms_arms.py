"""Recipes, arms and controls of `algorithms.py`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from skill_ttrl.rl.algorithms.grpo import AdvantageEstimate, Requirement, TrainingSamples
from skill_ttrl.rl.algorithms.votes import TTPO
from skill_ttrl.types import VoteResult

QUICK, SKILLS, EPISODES, WEAK = "quickstart", "quickstart_skills", "quickstart_webshop", "collapse"
VOTED = (QUICK, SKILLS)
EVERYWHERE = (*VOTED, EPISODES, WEAK)
RECIPES: dict[str, tuple[str, ...]] = {
    QUICK: (
        "rl.mini_batch_size=4",
        "rl.mini_batch_by=samples",
        "rl.lr_scheduler=cosine",
        "rl.min_lr_ratio=0.1",
        "rl.steps=12",
        "eval.samples=16",
        "eval.extra_temperatures=[]",
    ),
    SKILLS: ("rl.steps=12", "eval.samples=4", "eval.greedy=false"),
    EPISODES: ("rl.steps=10", "evolve=null", "env.eval_tasks=100", "eval.controls=[]"),
    WEAK: ("eval.samples=16", "eval.extra_temperatures=[]"),
}
"""By recipe, the settings of each of its cells: fewer steps than the recipe's, and no control that an arm would repeat."""
SEEDS = {QUICK: (0, 1, 2), SKILLS: (0, 1, 2), EPISODES: (0, 1, 2), WEAK: (0, 1, 2, 3)}
COLD = {EPISODES: "[collect,distill,sft]"}
"""Phases of a cold start, where they are not the supervised one alone."""
VOTE_SFT = "vote_sft"
COIN = ", random reward"
"""Ends the name of an arm's control: the same settings, with a coin for each sample as reward."""


@dataclass(frozen=True)
class Arm:
    """Settings that are compared."""

    settings: tuple[str, ...]
    recipes: tuple[str, ...]
    coin: tuple[str, ...] = ()
    """Recipes in which its control runs too."""
    coin_settings: tuple[str, ...] = ("rl.reward=random",)


def _algorithm(options: str, *more: str) -> tuple[str, ...]:
    return (f"rl.algorithm={options}", *more)


def _loss(options: str, aggregation: str = "seq-mean-token-mean") -> tuple[str, ...]:
    return (f"rl.loss={options}", f"rl.loss_aggregation={aggregation}")


COIN_TTPO = (f"rl.algorithm={__name__}:CoinTTPO", "rl.reward=random")
_DAPO = ("rl.loss={clip_ratio_high: 0.28, dual_clip: null}",)
ARMS: dict[str, Arm] = {
    "grpo": Arm((), EVERYWHERE, coin=EVERYWHERE),
    "grpo, true labels": Arm(("rl.reward=label",), VOTED),
    VOTE_SFT: Arm((), VOTED, coin=(QUICK,)),
    "psr": Arm(_algorithm("psr"), EVERYWHERE, coin=(*VOTED, EPISODES)),
    "ttpo": Arm(
        _algorithm("ttpo"),
        (*VOTED, WEAK),
        coin=(QUICK,),
        coin_settings=COIN_TTPO,
    ),
    "grpo_nsr, wrong x 0.3": Arm(_algorithm("{type: grpo_nsr, negative_weight: 0.3}"), EVERYWHERE, coin=(QUICK,)),
    "grpo_nsr, right x 0.1": Arm(_algorithm("{type: grpo_nsr, positive_weight: 0.1}"), (QUICK,)),
    "rloo": Arm(_algorithm("rloo"), (*VOTED, EPISODES)),
    "dr_grpo": Arm(
        _algorithm("dr_grpo", "rl.loss_aggregation=seq-mean-token-sum-norm"), (*VOTED, EPISODES), coin=(QUICK,)
    ),
    "reinforce_plus_plus_baseline": Arm(_algorithm("reinforce_plus_plus_baseline"), (*VOTED, EPISODES), coin=(QUICK,)),
    "gspo": Arm(
        _algorithm("gspo", *_loss("{type: gspo, clip_ratio: 3.0e-4, clip_ratio_high: 4.0e-4}")), (*VOTED, EPISODES)
    ),
    "cispo": Arm(_algorithm("cispo", *_loss("cispo", "token-mean")), (*VOTED, EPISODES), coin=(QUICK,)),
    "gigpo": Arm(_algorithm("gigpo"), (EPISODES,)),
    "graphgpo": Arm(_algorithm("graphgpo"), (EPISODES,)),
    "grpo, mean only": Arm(_algorithm("{type: grpo, scale_rewards: none}"), (QUICK,)),
    "reinforce_plus_plus": Arm(_algorithm("reinforce_plus_plus"), (QUICK,)),
    "gae, value head": Arm(_algorithm("gae", "rl.critic={}"), (QUICK,)),
    "gae, critic apart": Arm(_algorithm("gae", "rl.critic={model: policy, learning_rate: 3.0e-4}"), (QUICK,)),
    "dapo, no refill": Arm(_algorithm("dapo", *_DAPO, "rl.dynamic_sampling=0"), (QUICK,)),
    "dapo": Arm(_algorithm("dapo", *_DAPO, "rl.steps=7"), (QUICK,)),
    "nsr": Arm(_algorithm("nsr"), (QUICK, WEAK)),
    "w_reinforce": Arm(_algorithm("w_reinforce"), (QUICK, WEAK)),
    "grpo, one update a step": Arm(("rl.mini_batch_size=null", "rl.lr_scheduler=constant"), (QUICK,)),
    "grpo, 4 updates a step": Arm(("rl.mini_batch_size=8",), (QUICK,)),
    "ttpo, 4 updates a step": Arm(
        ("rl.algorithm=ttpo", "rl.mini_batch_size=8"), (QUICK,), coin=(QUICK,), coin_settings=COIN_TTPO
    ),
    "grpo_nsr, wrong x 0.3, 4 updates a step": Arm(
        _algorithm("{type: grpo_nsr, negative_weight: 0.3}", "rl.mini_batch_size=8"), (QUICK,), coin=(QUICK,)
    ),
    "grpo, whole prompts": Arm(("rl.mini_batch_by=prompts",), (QUICK,)),
    "grpo, KL 1": Arm(("rl.kl_coef=1.0",), (WEAK,), coin=(WEAK,)),
    "grpo, KL 3": Arm(("rl.kl_coef=3.0",), (WEAK,)),
    "psr, KL 1": Arm(("rl.algorithm=psr", "rl.kl_coef=1.0"), (WEAK,), coin=(WEAK,)),
    "ttpo, KL 1": Arm(("rl.algorithm=ttpo", "rl.kl_coef=1.0"), (WEAK,), coin=(WEAK,), coin_settings=COIN_TTPO),
    "grpo, learning rate / 10": Arm(("rl.learning_rate=3.0e-5",), (WEAK,), coin=(WEAK,)),
    "grpo, entropy 0.01": Arm(("rl.entropy_coef=0.01",), (WEAK,)),
    "grpo, 8 prompts x 64 votes": Arm(("rollout.n_votes_per_prompt=64", "rl.prompts_per_step=8"), (WEAK,)),
    "grpo, T 0.6": Arm(("rollout.temperature=0.6",), (WEAK,)),
    "grpo, votes by confidence": Arm(("vote.strategy=confidence",), (WEAK,)),
}
"""Arms in the order of the tables. GRPO first, whose cells the others are compared with. Losses are stated, so that one of a recipe's own
never stands in their place. All arms draw as many samples as GRPO: `dapo`, which samples further prompts, has as few steps as its samples buy."""


def arms_of(recipe: str, names: Sequence[str] | None) -> dict[str, tuple[str, ...]]:
    """Arms of a recipe with their settings, each followed by its control: those of these names, or all."""
    known: dict[str, tuple[str, ...]] = {}
    for name, arm in ARMS.items():
        if recipe in arm.recipes:
            known[name] = arm.settings
        if recipe in arm.coin:
            known[name + COIN] = (*arm.settings, *arm.coin_settings)
    if names is None:
        return known
    elsewhere = {*ARMS, *(name + COIN for name in ARMS)}
    own = {name: (f"rl.algorithm={name}",) for name in names if name not in elsewhere}
    return {name: settings for name, settings in known.items() if name in names} | own


class CoinTTPO(TTPO):
    """TTPO in which a sample agrees where a coin (`rl.reward=random`) says so: the control of an algorithm that reads votes itself."""

    requires: ClassVar[frozenset[Requirement]] = frozenset()

    def advantages(self, samples: TrainingSamples) -> AdvantageEstimate:
        """One for each step."""
        votes = [
            VoteResult(None, 0.0, tuple((each.reward or 0.0) > 0.5 for each in group.trajectories))
            for group in samples.groups
        ]
        return super().advantages(replace(samples, votes=votes))

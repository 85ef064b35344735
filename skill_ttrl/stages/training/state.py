"""The state of RL training: one object, which a checkpoint holds and a resumed run restores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from skill_ttrl.llm.backends import backend_facts
from skill_ttrl.rl.algorithms import Algorithm
from skill_ttrl.rl.correction import choose_correction
from skill_ttrl.rl.learner import Learner, LocalLearner
from skill_ttrl.skills.evolution import Evolver
from skill_ttrl.stages.training.run import Run
from skill_ttrl.stages.training.saving import PhaseState
from skill_ttrl.stages.training.votes import VoteManager

PHASE = "rl"


@dataclass(kw_only=True)
class RLState(PhaseState):
    """Learner, votes, evolution and step."""

    learner: Learner
    votes: VoteManager
    evolution: Evolver | None

    @classmethod
    def restore(cls, run: Run, algorithm: Algorithm, evolution: Evolver | None) -> RLState:
        """The state to start from: that of the checkpoint of a resumed run."""
        config, parts, resumed = run.config, run.components, run.resumed
        step = resumed.steps_done(PHASE)
        if config.rl.kl_coef > 0 and "sft" in config.phases:
            parts.policy.refresh_reference()  # the cold start's policy: without its adapters it would be the bare base
        learner = LocalLearner(
            parts.policy,
            config.rl,
            parts.accelerator,
            total_steps=config.rl.steps,
            algorithm=algorithm,
            max_response_tokens=config.rollout.max_new_tokens,
            correction=choose_correction(config.rl, sampler_is_learner=backend_facts(config).is_learner),
        )
        if step:
            resumed.load_learner(learner)
        votes = VoteManager(parts, resumed.state if step else {})
        return cls(PHASE, step, learner=learner, votes=votes, evolution=evolution)

    def state_dict(self) -> dict[str, Any]:
        """Votes and evolution."""
        evolution = {} if self.evolution is None else {"evolve": self.evolution.state_dict()}
        return {**self.votes.state_dict(), **evolution}

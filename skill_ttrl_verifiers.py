"""`skill_ttrl.integrations.verifiers` for `vf-eval skill-ttrl-verifiers`: a module at the root, as verifiers imports no dotted name."""

from skill_ttrl.integrations.verifiers import GameEnv, GameHarness, GameTaskset, load_environment

__all__ = ["GameEnv", "GameHarness", "GameTaskset", "load_environment"]

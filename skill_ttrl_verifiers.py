"""`skill_ttrl.integrations.verifiers` under a name that verifiers can import: `vf-eval skill-ttrl-verifiers`."""

from skill_ttrl.integrations.verifiers import GameEnv, GameHarness, GameTaskset, load_environment

__all__ = ["GameEnv", "GameHarness", "GameTaskset", "load_environment"]

"""The configuration of a run: one pydantic model a section, sparse YAML, defaults from the papers."""

from skill_ttrl.config.schema import SkillTTRLConfig, load_config

__all__ = ["SkillTTRLConfig", "load_config"]

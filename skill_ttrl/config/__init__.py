"""The configuration of a run: one pydantic model a section, sparse YAML, defaults from the papers."""

from skill_ttrl.config.schema import SkillTTRLConfig, load_config
from skill_ttrl.config.sections import SourceConfig
from skill_ttrl.config.skill_phases import DistillConfig

__all__ = ["DistillConfig", "SkillTTRLConfig", "SourceConfig", "load_config"]

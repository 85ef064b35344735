"""The configuration of a run: one pydantic model a section, sparse YAML, defaults from the papers."""

from skill_ttrl.config.backends import (
    ROLES,
    CommandConfig,
    EndpointConfig,
    EndpointsConfig,
    Role,
    VLLMConfig,
    split_command,
)
from skill_ttrl.config.data import (
    BUILTIN,
    BuiltinConfig,
    DataConfig,
    EnvConfig,
    LoraConfig,
    ModelConfig,
    RuntimeConfig,
    ScaleConfig,
    Source,
    SourceConfig,
)
from skill_ttrl.config.load import InvalidConfigError, load_config, parse_override, read_config_text, recipe_names
from skill_ttrl.config.rl import RLConfig
from skill_ttrl.config.sampling import AgentConfig, EvalConfig, RolloutConfig, VoteConfig
from skill_ttrl.config.schema import (
    Phase,
    RunConfig,
    SkillTTRLConfig,
    settings_digest,
    verified_note,
)
from skill_ttrl.config.section import Section
from skill_ttrl.config.skills import (
    GateConfig,
    OptimizeConfig,
    OptimizeGateConfig,
    OptimizeSelectionConfig,
    SkillsConfig,
)
from skill_ttrl.config.training import (
    CollectConfig,
    DaggerConfig,
    DemonstrationsConfig,
    DistillConfig,
    EvolveConfig,
    SFTConfig,
    VoteSFTConfig,
)

__all__ = [
    "BUILTIN",
    "ROLES",
    "AgentConfig",
    "CollectConfig",
    "CommandConfig",
    "DaggerConfig",
    "DataConfig",
    "DemonstrationsConfig",
    "DistillConfig",
    "BuiltinConfig",
    "EndpointConfig",
    "EndpointsConfig",
    "EnvConfig",
    "EvalConfig",
    "EvolveConfig",
    "GateConfig",
    "InvalidConfigError",
    "LoraConfig",
    "ModelConfig",
    "OptimizeConfig",
    "OptimizeGateConfig",
    "OptimizeSelectionConfig",
    "Phase",
    "RLConfig",
    "Role",
    "RolloutConfig",
    "RunConfig",
    "RuntimeConfig",
    "SFTConfig",
    "ScaleConfig",
    "Section",
    "SkillTTRLConfig",
    "SkillsConfig",
    "Source",
    "SourceConfig",
    "VLLMConfig",
    "VoteConfig",
    "VoteSFTConfig",
    "load_config",
    "parse_override",
    "read_config_text",
    "recipe_names",
    "settings_digest",
    "split_command",
    "verified_note",
]

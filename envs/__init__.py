"""Gymnasium environments of text, and the one rule by which an environment is named.

`--env` and `env.id` take, in this order: a short name (`math`), a name of another library (`lookup.FAMILIES`), `module:EnvId-v0` (the module is imported, from the working
directory too, and registers the id), or a Gymnasium id that is registered already (`SkillTTRL/Math-v0`). Importing this
package registers the ones that come along; their modules are imported when one is made.
"""

import gymnasium

from skill_ttrl.envs.lookup import (
    SHORT_NAMES,
    EnvInfo,
    env_defaults,
    env_tasks,
    list_envs,
    make_env,
    make_vec_env,
    prepare_env,
    resolve_env,
)
from skill_ttrl.envs.text_env import TextEnv, TextSpace, check_text_env, state_digest

__all__ = [
    "SHORT_NAMES",
    "EnvInfo",
    "TextEnv",
    "TextSpace",
    "check_text_env",
    "env_defaults",
    "env_tasks",
    "list_envs",
    "make_env",
    "make_vec_env",
    "prepare_env",
    "resolve_env",
    "state_digest",
]

gymnasium.register("SkillTTRL/Math-v0", entry_point="skill_ttrl.envs.math.env:MathEnv")
gymnasium.register("SkillTTRL/QA-v0", entry_point="skill_ttrl.envs.qa.env:QAEnv")
gymnasium.register("SkillTTRL/ALFWorld-v0", entry_point="skill_ttrl.envs.alfworld.env:ALFWorldEnv")
gymnasium.register("SkillTTRL/WebShop-v0", entry_point="skill_ttrl.envs.webshop.env:WebShopEnv")
gymnasium.register("SkillTTRL/Remote-v0", entry_point="skill_ttrl.envs.remote.env:RemoteEnv")
gymnasium.register("SkillTTRL/ReasoningGym-v0", entry_point="skill_ttrl.envs.reasoning_gym:ReasoningGymEnv")
gymnasium.register("SkillTTRL/Verifiers-v0", entry_point="skill_ttrl.envs.verifiers:VerifiersEnv")
gymnasium.register("SkillTTRL/OpenEnv-v0", entry_point="skill_ttrl.envs.openenv:OpenEnvEnv")

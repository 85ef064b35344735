"""One household game: its expert plays it by what it sees, and the walkthrough that comes with it is counted beside.

Run it: python examples/play_alfworld.py [TASK]

The games are the official ones where ALFWORLD_DATA names their folder. Without it games are made from the rules and floor plans
in the package alfworld, once, in a few seconds: pip install -e '.[alfworld]', or, where nothing can be compiled,
pip install --no-deps alfworld.
"""

from __future__ import annotations

import sys

import gymnasium

from skill_ttrl.agents.scripted import make_scripted_agent
from skill_ttrl.errors import EnvError, MissingDependencyError

ENV_ID = "SkillTTRL/ALFWorld-v0"


def main(task: str | None) -> None:
    # The module before the colon registers the environment.
    env = gymnasium.make(f"skill_ttrl.envs:{ENV_ID}", split="valid_unseen")
    observation, info = env.reset(seed=0, options={"task": task, "walkthrough": True})
    print(f"{info['source']}: {info['game']}")
    print(
        f"{len(info['admissible_commands'])} commands are possible; the walkthrough has {len(info['walkthrough'])}.\n"
    )
    print(observation)

    # A player is shown what an agent is shown: the observation and the commands, not the walkthrough.
    expert = make_scripted_agent("expert", ENV_ID)
    seen = {"admissible_commands": info["admissible_commands"]}
    expert.start(observation, seen, seed=0)
    over, earned, steps = False, 0.0, 0
    while not over:
        action = expert.act(observation, seen)
        observation, reward, terminated, truncated, info = env.step(action)
        seen = {"admissible_commands": info["admissible_commands"]}
        over, earned, steps = terminated or truncated, earned + float(reward), steps + 1
        print(f"> {action}\n{observation}")
    print(f"\n{'won' if info['won'] else 'not won'} after {steps} steps, reward {earned:g}")
    env.close()


if __name__ == "__main__":
    try:
        main(sys.argv[1] if len(sys.argv) > 1 else None)
    except (EnvError, MissingDependencyError) as error:
        sys.exit(f"{error}")

"""One shopping trip: the expert buys by what it sees, and what the purchase is worth is shown part by part.

Run it: python examples/shop_webshop.py [GOAL]

The shop is the official catalogue where WEBSHOP_DATA names its folder, else one of 1,000 products that the package makes.
GOAL is a goal's number in the fixed order; the first 500 are for testing.
"""

from __future__ import annotations

import sys

import gymnasium

from skill_ttrl.agents.scripted import make_scripted_agent
from skill_ttrl.errors import EnvError

ENV_ID = "SkillTTRL/WebShop-v0"
PARTS = ("r_type", "r_att", "r_option", "r_price")


def main(goal: int) -> None:
    # The module before the colon registers the environment.
    env = gymnasium.make(f"skill_ttrl.envs:{ENV_ID}", split="test")
    observation, info = env.reset(options={"goal": goal, "walkthrough": True})
    print(f"{info['source']}\n{info['task']}")
    print(f"Who knows the goal takes {len(info.pop('walkthrough'))} steps.\n")

    expert = make_scripted_agent("expert", ENV_ID)
    expert.start(observation, info, seed=0)
    over = False
    while not over:
        action = expert.act(observation, info)
        print(f"> {action}")
        observation, _, terminated, truncated, info = env.step(action)
        over = terminated or truncated
    print(f"\nscore {info['score']:.2f}" + ", won" * info["won"])
    print(", ".join(f"{part} {info[part]}" for part in PARTS if info.get(part) is not None))
    env.close()


if __name__ == "__main__":
    try:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
    except EnvError as error:
        sys.exit(f"{error}")

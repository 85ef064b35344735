"""Who shops how well in WebShop, what the best purchase is worth, and where the expert's weights come from.

    python benchmarks/webshop_agents.py scores         # scripted agents on the test goals, with intervals
    python benchmarks/webshop_agents.py ceiling        # over all goals: how many can be fulfilled, and why the others cannot
    python benchmarks/webshop_agents.py weights        # the weights of envs/webshop/expert.py, fitted on `train` by product
    python benchmarks/webshop_agents.py worth          # the expert on `dev` without one or another part of what it does

The official 1,000 products are looked for in $WEBSHOP_DATA, or --data; the generated catalogue needs nothing.
"""

from __future__ import annotations

import argparse
import os
import random
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from statistics import fmean
from typing import Any
from unittest.mock import patch

import numpy as np

from skill_ttrl.agents.scripted import make_scripted_agent
from skill_ttrl.envs.webshop import expert
from skill_ttrl.envs.webshop.env import WEBSHOP_ENV_ID, WebShopEnv
from skill_ttrl.envs.webshop.expert import STEPS, Offer, Signs, query, read_wish, signs
from skill_ttrl.envs.webshop.goals import Goal
from skill_ttrl.envs.webshop.reward import alike, normalise_colour, option_texts
from skill_ttrl.envs.webshop.solve import Purchase, best_purchase, own_purchase
from skill_ttrl.rollout.rollout import run_scripted_episode
from skill_ttrl.statistics import mean_interval, wilson_interval
from skill_ttrl.types import Trajectory

AGENTS = {
    "first": "first",
    "random": "random",
    "the paper's rule": "rule",
    "that, and the named options": "careful",
    "rule over the form": "webshop_form_rule:FormRule",
    "demonstrator": "brief",
    "expert": "expert",
    "oracle": "walkthrough",
}
EACH = 4
"""Goals of a product that the weights are fitted to: some products have hundreds, all alike."""


def play(env: WebShopEnv, agent: str, split: str) -> list[Trajectory]:
    """Every goal of a split once."""
    player = make_scripted_agent(agent, WEBSHOP_ENV_ID)
    played = [run_scripted_episode(env, task, player, seed=0) for task in env.tasks(split)]
    errors = [episode.error for episode in played if episode.error]
    if errors:
        raise SystemExit(f"{len(errors)} episodes of {agent} failed, the first: {errors[0]}")
    return played


def score_of(episode: Trajectory) -> float:
    """The reward of the purchase; 0.0 where nothing was bought."""
    return sum(step.reward for step in episode.steps)


def scores(data: str) -> None:
    """A line for each agent, catalogue and way to split."""
    print("| goals | agent | score | success | steps |\n|---|---|---|---|---|")
    for source, by in ((data, "goal"), (data, "product"), ("generated", "goal"), ("generated", "product")):
        env = WebShopEnv(data=source, split="test", split_by=by)
        for name, agent in AGENTS.items():
            played = play(env, agent, "test")
            earned = [score_of(episode) for episode in played]
            won = sum(score == 1.0 for score in earned)
            low, high = (100 * end for end in mean_interval(earned))
            least, most = (100 * end for end in wilson_interval(won, len(played)))
            print(
                f"| {env.source.split(',')[0]}, {len(played)} by {by} | {name} | {100 * fmean(earned):.1f} [{low:.1f}, {high:.1f}] "
                f"| {100 * won / len(played):.1f} % [{least:.1f}, {most:.1f}] "
                f"| {fmean(len(episode.steps) for episode in played):.1f} |",
                flush=True,
            )


def ceiling(data: str) -> None:
    """Over all goals of a catalogue: with which product reward 1 can be reached, and what is in the way where it cannot."""
    for source in (data, "generated"):
        env = WebShopEnv(data=source)
        assert env.shop is not None
        counts: Counter[str] = Counter()
        total, goals = 0.0, [env.goals[number] for number in range(len(env.goals))]
        for goal in goals:
            own, best = own_purchase(env.shop, goal, STEPS), best_purchase(env.shop, goal, STEPS)
            total += best.reward.total if best is not None else 0.0
            if own is not None and own.reward.total == 1.0:
                counts["reward 1 with its own product"] += 1
            elif best is not None and best.reward.total == 1.0:
                counts["reward 1 with another product"] += 1
            else:
                counts[f"below 1: {in_the_way(env, goal, own)}"] += 1
        print(f"{env.source}: {len(goals):,} goals, mean of the best purchases {total / len(goals):.4f}")
        for what, count in counts.most_common():
            print(f"  {count:6,} {what}")


def in_the_way(env: WebShopEnv, goal: Goal, own: Purchase | None) -> str:
    """Why a goal's own product has no reward of 1."""
    assert env.shop is not None
    if own is None:
        return "its product is not found"
    reasons = []
    if own.reward.r_type < 1:
        reasons.append("the title's nouns")
    if own.reward.r_att < 1:
        reasons.append("an attribute that nothing says")
    if own.reward.r_option is not None and own.reward.r_option < 1:
        values = goal.options if isinstance(goal.options, tuple) else tuple(goal.options.values())
        texts = option_texts(goal.options)
        missed = [value for value, text in zip(values, texts, strict=True) if not alike(normalise_colour(value), text)]
        reasons.append("a colour's name in an option's value" if missed else "an option that cannot be clicked")
    if not own.reward.r_price:
        reasons.append("the price")
    return " and ".join(reasons)


def fitted_goals(env: WebShopEnv) -> Iterator[tuple[Goal, float]]:
    """At most `EACH` goals of every product of the environment's split, and the weight of each: a product counts once."""
    by_product: dict[str, list[Goal]] = defaultdict(list)
    for task in env.tasks():
        goal = env.goals[env.goals.find(task.id)]
        by_product[goal.asin].append(goal)
    rng = random.Random(0)
    for goals in by_product.values():
        drawn = rng.sample(goals, min(EACH, len(goals)))
        yield from ((goal, 1 / len(drawn)) for goal in drawn)


def fit_weights(data: str) -> Signs:
    """Weights that make the described product likeliest in a choice among the results of the expert's search.

    A softmax over the 50 results, its logarithm averaged over products, 0.05 of the squared weights taken from it (the sum over
    products has some 250 of them); plain Newton steps. Goals whose product is not among the results say nothing.
    """
    env = WebShopEnv(data=data, split="train", split_by="product")
    assert env.shop is not None
    examples: list[tuple[Any, int, float]] = []
    for goal, weight in fitted_goals(env):
        wish = read_wish(goal.instruction)
        found = env.shop.search(tuple(query(wish)[len("search[") : -1].split(" ")))
        number = env.shop.store.number_of(goal.asin)
        if number in found:
            products = [env.shop.store[each] for each in found]
            offers = [Offer(each.asin, each.title, min(each.prices), max(each.prices)) for each in products]
            rows = np.array([signs(wish, offer, rank) for rank, offer in enumerate(offers)])
            examples.append((rows, found.index(number), weight))
    weights = np.zeros(len(Signs._fields))
    for _ in range(30):
        slope, curve = -0.1 * weights, 0.1 * np.eye(len(weights))
        for rows, right, weight in examples:
            chances = np.exp(rows @ weights - np.logaddexp.reduce(rows @ weights))
            mean = chances @ rows
            slope += weight * (rows[right] - mean)
            curve += weight * ((rows * chances[:, None]).T @ rows - np.outer(mean, mean))
        weights += np.linalg.solve(curve, slope)
    return Signs(*(round(float(weight), 1) for weight in weights))


def worth(data: str) -> None:
    """The expert on `dev` with and without parts of what it does."""

    def without_prices(low: float, high: float, below: float | None) -> float:
        return 1.0 if below is None or low <= below else 0.0

    parts: dict[str, AbstractContextManager[Any]] = {
        "as it is": nullcontext(),
        "any price below the ceiling fits": patch.object(expert, "in_window", without_prices),
        "offers in the order of the results": patch.object(
            expert, "WEIGHTS", Signs(-1.0, *[0.0] * (len(Signs._fields) - 1))
        ),
        "attributes are not looked for": patch.object(expert, "missing", lambda wish, candidate: 0),
        "words of the instruction searched once": patch.object(expert, "query", lambda wish: expert.search(wish.text)),
    }
    for name, change in parts.items():
        with change:
            columns = []
            for by in ("goal", "product"):
                played = play(WebShopEnv(data=data, split="dev", split_by=by), "expert", "dev")
                earned = [score_of(episode) for episode in played]
                columns.append(
                    f"by {by} {100 * fmean(earned):.1f}, {100 * fmean(score == 1.0 for score in earned):.1f} %, "
                    f"{fmean(len(episode.steps) for episode in played):.1f} steps"
                )
            print(f"{name}: {'; '.join(columns)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["scores", "ceiling", "weights", "worth"])
    parser.add_argument("--data", help="folder of the official products; else $WEBSHOP_DATA")
    args = parser.parse_args()
    data = args.data or os.environ.get("WEBSHOP_DATA")
    if not data:
        parser.error("the folder of the official products is needed: --data, or $WEBSHOP_DATA")
    if args.what == "weights":
        print(fit_weights(data))
    else:
        {"scores": scores, "ceiling": ceiling, "worth": worth}[args.what](data)


if __name__ == "__main__":
    main()

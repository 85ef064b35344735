"""Why WebShop goals were lost: each purchase below reward 1 in one class, counts by class, examples.

    skillttrl collect --env webshop --split test --set env.kwargs.split_by=product --policy POLICY --greedy -o greedy.jsonl
    python benchmarks/webshop_failures.py greedy.jsonl                  # counts, and one example a class
    python benchmarks/webshop_failures.py greedy.jsonl --examples 50    # up to 50 a class, to be read

An episode is judged by its texts: what was searched for, listed, opened, chosen and bought. What no agent knows, the goal's own product and the best
purchase there is, comes from the catalogue, which is to be the one of the episodes. The class is the first that fits, in the order of `CLASSES`.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from skill_ttrl.data.episodes import read_episodes
from skill_ttrl.envs.webshop.env import WebShopEnv
from skill_ttrl.envs.webshop.expert import BUTTONS, BUY, click
from skill_ttrl.envs.webshop.goals import Goal, price_of
from skill_ttrl.envs.webshop.shop import Shop
from skill_ttrl.envs.webshop.solve import best_purchase
from skill_ttrl.sanitize import escape_terminal
from skill_ttrl.statistics import wilson_interval
from skill_ttrl.types import Trajectory

CLASSES = {
    "failed": "the environment or the policy failed",
    "best possible": "no purchase of any product is worth more: a rule of the reward is in the way",
    "nothing bought": "the steps ran out",
    "over the price": "what was bought costs more than the ceiling",
    "option missed": "the goal's own product was bought, with a wanted value not chosen or another chosen",
    "opened": "another product was bought, and the goal's own had been opened",
    "listed": "another was bought; the goal's own stood on a page of results that was shown, and was not opened",
    "not listed": "another was bought; the goal's own is among the results of a search that was made, on a page that was not shown",
    "not found": "another was bought; the goal's own is among the results of none of the searches",
}
PARTS = {"r_type": "kind", "r_att": "attributes", "r_option": "options"}


@dataclass(frozen=True)
class Loss:
    """One episode without reward 1."""

    name: str
    """Its class."""
    score: float
    best: float
    """Reward of the best purchase."""
    lacking: tuple[str, ...]
    """`PARTS` of the reward that are below 1."""
    episode: Trajectory
    goal: Goal


def classify(shop: Shop, goal: Goal, episode: Trajectory) -> Loss | None:
    """Class of an episode; None where it has reward 1."""
    info = episode.steps[-1].info if episode.steps else {}
    score = float(info.get("score", 0.0))
    if score == 1.0:
        return None
    found = best_purchase(shop, goal)
    best = 0.0 if found is None else found.reward.total
    lacking = tuple(name for part, name in PARTS.items() if info.get(part) is not None and info[part] < 1)
    return Loss(_class(shop, goal, episode, score >= best), score, best, lacking, episode, goal)


def _class(shop: Shop, goal: Goal, episode: Trajectory, is_best: bool) -> str:
    if episode.error:
        return "failed"
    bought = bought_by(episode)
    if bought is None:
        return "nothing bought"
    if is_best:
        return "best possible"
    if episode.steps[-1].info.get("r_price") is False:
        return "over the price"
    own = click(goal.asin.lower())
    if bought == own:
        return "option missed"
    if any(step.action == own for step in episode.steps):
        return "opened"
    if any(own in step.admissible_actions for step in episode.steps):
        return "listed"
    number = shop.store.number_of(goal.asin)
    queries = [step.action for step in episode.steps if step.action.startswith("search[")]
    hit = any(number in shop.search(tuple(query[len("search[") : -1].lower().split(" "))) for query in queries)
    return "not listed" if hit else "not found"


def bought_by(episode: Trajectory) -> str | None:
    """The click that opened the product that was bought."""
    if not episode.steps or episode.steps[-1].action != click(BUY) or episode.stop_reason != "terminated":
        return None
    opened = [
        step.action
        for step in episode.steps
        if step.action in step.admissible_actions and click("next >") in step.admissible_actions
    ]
    return next((action for action in reversed(opened) if action[6:-1] not in BUTTONS), None)


def table(found: Sequence[Loss], episodes: int) -> str:
    """Lost goals by class, in Markdown; how many lack which part of the reward, and what was earned all the same."""
    lines = [
        f"| class | lost | {' | '.join(PARTS.values())} | mean score | best possible |",
        "|---" * (len(PARTS) + 4) + "|",
    ]
    for name in (*CLASSES, "all"):
        own = [loss for loss in found if name in (loss.name, "all")]
        if own:
            lacking = Counter(part for loss in own for part in loss.lacking)
            means = [sum(values) / len(own) for values in ((loss.score for loss in own), (loss.best for loss in own))]
            cells = [*(str(lacking[part]) for part in PARTS.values()), *(f"{mean:.2f}" for mean in means)]
            lines.append(f"| {name} | {len(own)} | {' | '.join(cells)} |")
    won = episodes - len(found)
    low, high = wilson_interval(won, episodes)
    return f"Won {won} of {episodes}: {won / episodes:.3f} [{low:.3f}, {high:.3f}]\n\n" + "\n".join(lines)


def story(shop: Shop, loss: Loss) -> str:
    """A lost goal to be read: the instruction, what was done, what was bought and what should have been."""
    steps, bought = loss.episode.steps, bought_by(loss.episode)
    products = {"own": loss.goal.asin, **({} if bought is None else {"bought": bought[6:-1].upper()})}
    lines = [
        f"[{loss.name}] score {loss.score:.2f} of {loss.best:.2f}, lacking {', '.join(loss.lacking) or '-'}: {loss.goal.instruction}"
    ]
    lines.append("  " + "; ".join(step.action for step in steps))
    for name, asin in products.items():
        number = shop.store.number_of(asin)
        if number is not None:
            product = shop.store[number]
            shown = [
                place + 1
                for step in steps[1:2]
                for place, action in enumerate(step.admissible_actions[2:])
                if action == click(asin.lower())
            ]
            options = {key: len(values) for key, values in product.options.items()}
            lines.append(
                f"  {name}: {asin} at {price_of(product):.2f}, place {shown or '-'}, options {options}: {product.title[:150]}"
            )
    if loss.episode.error:
        lines.append(f"  {loss.episode.error}")
    return escape_terminal("\n".join(lines))


def main() -> None:
    """Print the table and the examples."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trajectories", nargs="+", type=Path, metavar="FILE.jsonl")
    parser.add_argument(
        "--examples", type=int, default=1, metavar="N", help="lost goals shown of each class (default: 1)"
    )
    parser.add_argument(
        "--data", default="official", help="official ($WEBSHOP_DATA), generated, or a folder (default: official)"
    )
    options = parser.parse_args()
    env = WebShopEnv(data=options.data, goals="synthetic")
    assert env.shop is not None
    episodes = [episode for file in options.trajectories for episode in read_episodes(file)]
    found = list(losses(env, episodes))
    print(f"{table(found, len(episodes))}\n")
    for name, meaning in CLASSES.items():
        own = [loss for loss in found if loss.name == name][: options.examples]
        if own:
            print(f"{name}: {meaning}\n" + "\n".join(story(env.shop, loss) for loss in own) + "\n")


def losses(env: WebShopEnv, episodes: Iterable[Trajectory]) -> Iterable[Loss]:
    """The lost goals among them."""
    assert env.shop is not None
    for episode in episodes:
        found = classify(env.shop, env.goals[env.goals.find(episode.task.id)], episode)
        if found is not None:
            yield found


if __name__ == "__main__":
    main()

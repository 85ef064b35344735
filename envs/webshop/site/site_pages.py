"""Pages of our own server that the official one does not have: the goals to choose from, what a purchase was worth, and errors."""

from __future__ import annotations

import pprint
from collections.abc import Mapping, Sequence

from skill_ttrl.envs.webshop.catalogue.product import Product
from skill_ttrl.envs.webshop.goal import NO_CEILING, Goal, price_of
from skill_ttrl.envs.webshop.reward import PurchaseReward, count_attributes, count_options
from skill_ttrl.envs.webshop.shop import Shop, State
from skill_ttrl.envs.webshop.site.html import render, render_page

GOALS_A_PAGE = 8


def start_page(goals: Sequence[Goal], first: int, source: str) -> str:
    """Some goals to try, from number `first` on, and ways to another one."""
    end = min(first + GOALS_A_PAGE, len(goals))
    return render(
        "start",
        goals=[(number, goals[number]) for number in range(first, end)],
        count=len(goals),
        before=max(0, first - GOALS_A_PAGE) if first > 0 else None,
        after=end if end < len(goals) else None,
        source=source,
    )


def problem_page(status: int, message: str) -> str:
    """An error, in words."""
    return render("problem", status=status, message=message)


def receipt_page(shop: Shop, goal: Goal, session: str, state: State) -> str:
    """After a purchase: the score, what it is made of, and what had been asked for.

    The official elements are there as well, filled in as on the official site.
    """
    assert state.bought is not None
    product, bought = shop.product(state.asin), state.bought
    price = price_of(product)
    below = "any" if goal.price_upper == NO_CEILING else f"at most ${goal.price_upper:,.2f}"
    return render_page(
        "receipt",
        session,
        state,
        goal=goal,
        product=product,
        price=price,
        bought=bought,
        verdict=_verdict(bought),
        kinds=[
            ("Same search", bought.query_match),
            ("Two categories shared", bought.category_match),
            (f"Title shares {bought.title_score:.0%} of the nouns", bought.title_score > 0.2),
        ],
        attributes=[(each, count_attributes(product, [each]) == 1) for each in goal.attributes],
        options=_matched_options(goal, state),
        prices=[(f"{below} (${price:,.2f})", bought.r_price)],
        sum=_sum(goal, bought),
        known=_known(product, goal, bought),
    )


def reward_details(bought: PurchaseReward) -> dict[str, float | bool]:
    """The parts of a reward as upstream lists them: without what the goal does not have."""
    names = ["r_type", "r_att", "w_att", "query_match", "category_match", "title_score", "r_price", "w_price"]
    names += ["r_option", "w_option"] * (bought.r_option is not None)
    return {name: getattr(bought, name) for name in names}


def _verdict(bought: PurchaseReward) -> str:
    if bought.total == 1.0:
        return "Exactly what was asked for."
    if bought.r_type < 0.5:
        return "Another kind of thing than was asked for."
    return "Not all of what was asked for." if bought.total > 0 else "Nothing of what was asked for."


def _matched_options(goal: Goal, state: State) -> list[tuple[str, bool]]:
    values = state.options.values()
    if isinstance(goal.options, Mapping):
        wanted = goal.options.items()
        return [(f"{name}: {value}", count_options(values, {name: value}) == 1) for name, value in wanted]
    return [(value, count_options(values, (value,)) == 1) for value in goal.options]


def _sum(goal: Goal, bought: PurchaseReward) -> str:
    attributes, options = len(goal.attributes), len(goal.options)
    got = (round(bought.r_att * attributes), round((bought.r_option or 0) * options), int(bought.r_price))
    below = attributes + options + 1
    return f"{bought.r_type:g} × ({got[0]} + {got[1]} + {got[2]}) / {below} = {bought.total:.4g}"


def _known(product: Product, goal: Goal, bought: PurchaseReward) -> dict[str, str]:
    """Return the texts that the official site fills into its page after a purchase, by element id."""
    options = dict(goal.options) if isinstance(goal.options, Mapping) else list(goal.options)
    wanted = {
        "goal-asin": goal.asin,
        "goal-options": options,
        "goal-attrs": list(goal.attributes),
        "goal-price": goal.price_upper,
        "goal-instruction-text": goal.instruction,
        "goal-category": goal.category,
        "goal-pc": goal.product_category,
        "goal-query": goal.query,
    }
    return {
        "purchased_attrs": str(list(product.attributes)),
        "purchased-category": product.category,
        "purchased-query": product.query,
        "purchased-pc": product.product_category,
        **{name: str(value) for name, value in wanted.items()},
        "goal": pprint.pformat({name.removeprefix("goal-"): value for name, value in wanted.items()}),
        "reward_info": pprint.pformat(reward_details(bought)),
    }

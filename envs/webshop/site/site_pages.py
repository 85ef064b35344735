"""Pages of our own server that the official one does not have: the goals to choose from, what a purchase was worth, and errors."""

from __future__ import annotations

import pprint
from collections.abc import Iterable, Mapping, Sequence
from html import escape

from skill_ttrl.envs.webshop.address import page_path
from skill_ttrl.envs.webshop.catalogue.product import Product
from skill_ttrl.envs.webshop.goal import NO_CEILING, Goal
from skill_ttrl.envs.webshop.reward import PurchaseReward, count_attributes, count_options
from skill_ttrl.envs.webshop.shop import Shop, State
from skill_ttrl.envs.webshop.site.html import document, home_link, official_receipt

GOALS_A_PAGE = 8


def start_page(goals: Sequence[Goal], first: int, source: str) -> str:
    """Some goals to try, from number `first` on, and ways to another one."""
    numbers = range(first, min(first + GOALS_A_PAGE, len(goals)))
    turns = [("Before", first - GOALS_A_PAGE, first > 0), ("More", first + GOALS_A_PAGE, numbers.stop < len(goals))]
    links = "".join(f'<a href="/?from={max(0, to)}">{name}</a>\n' for name, to, there in turns if there)
    listed = "\n".join(
        f'<li><a class="goal" href="/fixed_{number}"><span class="number">{number}</span>'
        f'<span class="wish">{escape(goals[number].instruction)}</span>'
        f'<span class="badge">{escape(goals[number].category)}</span></a></li>'
        for number in numbers
    )
    body = f"""<main class="container start">
<h1>WebShop</h1>
<p class="lead">Find and buy what somebody asks for. Search, open a product, choose its options, buy: then you see your score.</p>
<form class="pick" method="get" action="/">
<label for="goal">Goal</label>
<input id="goal" class="form-control" type="number" name="goal" min="0" max="{len(goals) - 1}" placeholder="0 to {len(goals) - 1}" required>
<button class="btn btn-primary" type="submit">Go</button>
<a class="btn btn-success" href="/?goal=random">A random goal</a>
</form>
<h2>Goals to try</h2>
<ol class="goals">
{listed}
</ol>
<p class="turns">{links}</p>
<footer><p>{escape(source)}. {len(goals):,} goals: 0 to 499 are the test split, 500 to 1,499 dev, the others train.</p>
<p>An agent shops here too: <code>--env webshop</code> with <code>data</code> set to this address.</p></footer>
</main>"""
    return document(body, "start", "WebShop: goals")


def problem_page(status: int, message: str) -> str:
    """An error, in words."""
    body = f"""<main class="container problem">
{home_link()}
<h1>{status}</h1>
<p>{escape(message)}</p>
</main>"""
    return document(body, "problem", f"WebShop: {status}")


def receipt_page(shop: Shop, goal: Goal, session: str, state: State) -> str:
    """After a purchase: the score, what it is made of, and what had been asked for.

    The official elements are there as well, filled in as on the official site.
    """
    assert state.bought is not None
    product, bought = shop.product(state.asin), state.bought
    body = f"""<main class="container receipt">
{home_link()}
<section class="score" data-won="{str(bought.total == 1.0).lower()}">
<p class="total">{bought.total:.2f}</p>
<meter min="0" max="1" value="{bought.total}" aria-label="Score"></meter>
<p>{_verdict(bought)}</p>
</section>
<blockquote>{escape(goal.instruction)}</blockquote>
<h2>What counted</h2>
<table class="parts">
<thead><tr><th>Part</th><th>Wanted</th><th>Got</th></tr></thead>
<tbody>
{_parts(shop, product, goal, state, bought)}
</tbody>
</table>
<p class="sum">{_sum(goal, bought)}</p>
<h2>What you bought</h2>
<p><strong>{escape(product.title)}</strong><br>
{escape(product.asin)}{_chosen(state.options)}, ${shop.price(product.asin):,.2f}</p>
<h2>What the goal was made from</h2>
<p>{escape(goal.title)}<br>
{escape(goal.asin)}</p>
<p class="again"><a class="btn btn-success" href="/?goal=random">Another goal</a>
<a class="btn btn-primary" href="{escape(page_path(session, State()))}">The same again</a></p>
<details><summary>As the official site says it</summary>
{official_receipt(state.asin, state.options, bought.total, _known(product, goal, bought))}
</details>
</main>"""
    return document(body, "done", f"WebShop: {bought.total:.2f}")


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


def _parts(shop: Shop, product: Product, goal: Goal, state: State, bought: PurchaseReward) -> str:
    kinds = [("Same search", bought.query_match), ("Two categories shared", bought.category_match)]
    kinds.append((f"Title shares {bought.title_score:.0%} of the nouns", bought.title_score > 0.2))
    attributes = [(each, count_attributes(product, [each]) == 1) for each in goal.attributes]
    values = state.options.values()
    if isinstance(goal.options, Mapping):
        options = [
            (f"{name}: {value}", count_options(values, {name: value}) == 1) for name, value in goal.options.items()
        ]
    else:
        options = [(value, count_options(values, (value,)) == 1) for value in goal.options]
    below = "any" if goal.price_upper == NO_CEILING else f"at most ${goal.price_upper:,.2f}"
    price = f"${shop.price(product.asin):,.2f}"
    rows = [
        ("Kind of thing", _marks(kinds, "one is enough"), f"× {bought.r_type:g}"),
        ("Attributes", _marks(attributes), _count(attributes)),
        ("Options", _marks(options) if options else "none", _count(options) if options else "–"),
        ("Price", _marks([(f"{below} ({price})", bought.r_price)]), "1 of 1" if bought.r_price else "0 of 1"),
    ]
    return "\n".join(f"<tr><th>{name}</th><td>{wanted}</td><td>{got}</td></tr>" for name, wanted, got in rows)


def _marks(each: Iterable[tuple[str, bool]], beside: str = "") -> str:
    def line(text: str, matched: bool) -> str:
        return f'<li class="{"yes" if matched else "no"}">{escape(text)}</li>'

    return f'<ul class="marks" title="{beside}">{"".join(line(*one) for one in each)}</ul>'


def _count(each: Sequence[tuple[str, bool]]) -> str:
    return f"{sum(matched for _, matched in each)} of {len(each)}"


def _sum(goal: Goal, bought: PurchaseReward) -> str:
    attributes, options = len(goal.attributes), len(goal.options)
    got = (round(bought.r_att * attributes), round((bought.r_option or 0) * options), int(bought.r_price))
    below = attributes + options + 1
    return f"{bought.r_type:g} × ({got[0]} + {got[1]} + {got[2]}) / {below} = {bought.total:.4g}"


def _chosen(options: Mapping[str, str]) -> str:
    return "".join(f", {escape(name)}: {escape(value)}" for name, value in options.items())


def _known(product: Product, goal: Goal, bought: PurchaseReward) -> dict[str, str]:
    """What the official site fills into its page, by the ids of the elements."""
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

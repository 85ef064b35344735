"""The shop's pages as HTML: what the environment shows in the mode `html`, and what `site` serves.

Names of elements are those of the official templates, as far as programs look for them: `search_input`, `btn`, `product-link`,
`instruction-text`, radio buttons with `data-url`, `reward`, … And the visible texts are exactly those of `pages`, so that the
official way from HTML to text (all strings outside of head, style and script) gives the observations `text` and `text_rich`.
What a person should see beside them is therefore no text: `site.css` writes it, out of attributes.

The official pages choose an option by a script. Here a link lies over each option, so that a browser without scripts shops too;
`site.js` is for programs that press the radio button itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape
from urllib.parse import quote

from skill_ttrl.envs.webshop.address import page_path
from skill_ttrl.envs.webshop.catalogue.product import NO_RATING, Product
from skill_ttrl.envs.webshop.goal import Goal
from skill_ttrl.envs.webshop.pages import (
    ATTRIBUTES,
    BACK,
    BUY,
    DESCRIPTION,
    FEATURES,
    NEXT,
    PREVIOUS,
    RESULTS_A_PAGE,
    SEARCH,
    SUB_PAGES,
    options_text,
)
from skill_ttrl.envs.webshop.shop import Shop, State

STYLE, SCRIPT = "/static/site.css", "/static/site.js"
_ORDINARY = "btn btn-primary"


def page_html(shop: Shop, goal: Goal, session: str, state: State, images: bool = False) -> str:
    """A page as the official simulator shows it; after a purchase, too, it leaves open what was wanted.

    Args:
        shop: where the shopper is.
        goal: of the episode.
        session: name of the visit, as it stands in addresses.
        state: where the shopper stands.
        images: show the catalogue's pictures, which lie on other hosts.

    Raises:
        KeyError: the state names a product that the shop does not have.
    """
    if state.place == "search":
        return document(_search(goal, session), "search", title="WebShop")
    if state.place == "results":
        return document(_results(shop, goal, session, state, images), "results")
    if state.place == "done":
        total = state.bought.total if state.bought is not None else 0.0
        return document(f"<main>\n{official_receipt(state.asin, state.options, total, {})}\n</main>", "done", "WebShop")
    product = shop.product(state.asin)
    if state.place == "item":
        return document(_item(shop, goal, session, state, product, images), "item")
    return document(_sub(goal, session, state, product), "sub")


def document(body: str, kind: str, title: str = "") -> str:
    """A whole page: `kind` is its body's class, `title` what the browser's tab says."""
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{escape(title or "WebShop")}</title>
<link rel="stylesheet" href="{STYLE}">
<link rel="icon" href="data:,">
<script src="{SCRIPT}" defer></script>
</head>
<body class="{kind}">
{body}
</body>
</html>
"""


def official_receipt(asin: str, options: Mapping[str, str], total: float, known: Mapping[str, str]) -> str:
    """What the official page says after a purchase, in its own elements.

    Args:
        asin: of what was bought.
        options: that were chosen.
        total: the reward.
        known: id of an element → what stands in it; the official simulator fills in none.
    """

    def line(name: str, label: str, otherwise: str = "None") -> str:
        return f'<h4 id="{name}">{label}<pre>{escape(known.get(name, otherwise))}</pre></h4>'

    bought = (("purchased_attrs", "attrs"), ("purchased-category", "category"), ("purchased-query", "query"))
    wanted = (
        *(("goal-asin", "asin"), ("goal-options", "options"), ("goal-attrs", "attrs"), ("goal-price", "price upper")),
        *(("goal-instruction-text", "instuction text"), ("goal-category", "category")),
        *(("goal-pc", "product category"), ("goal-query", "query")),
    )
    return f"""<div id="thankyou" class="text-center">
<h1>Thank you for shopping with us!</h1>
</div>
<div id="stats" class="text-center">
<div class="mturk">
<h3>Your code: </h3>
<pre>None</pre><p> (Paste it in your MTurk interface.)</p>
</div>
<div class="hidden-details">
<h2>Purchased</h2>
<h4 id="asin">asin<pre>{escape(asin)}</pre></h4>
<h4 id="options">options<pre>{escape(options_text(options))}</pre></h4>
{_lines(line(*each) for each in bought)}
{line("purchased-pc", "product category")}
<h2>Target</h2>
{_lines(line(*each, "") for each in wanted)}
<h4>Goal <div id="goal"><pre>{escape(known.get("goal", "None"))}</pre></div></h4>
<h2>Reward</h2>
</div>
<h3 id="reward">Your score (min 0.0, max 1.0)<pre>{total}</pre></h3>
<h4 class="hidden-details">Reward Details <div id="reward_info"><pre>{escape(known.get("reward_info", "None"))}</pre></div></h4>
</div>"""


def home_link() -> str:
    """To where goals are chosen. Its words are an attribute, which the style sheet shows."""
    return '<a class="home" href="/" aria-label="All goals"></a>'


def picture(product: Product, images: bool, name: str) -> str:
    """The product's picture, or a place that the style sheet fills: nothing is fetched that was not asked for."""
    if images and product.image.startswith("https://"):
        return f'<img {name} src="{escape(product.image)}" alt="" loading="lazy" referrerpolicy="no-referrer">'
    return f'<div class="no-picture" data-kind="{escape(product.category)}" aria-hidden="true"></div>'


def _search(goal: Goal, session: str) -> str:
    return f"""<main class="container">
{home_link()}
<div id="logo" class="text-center"><h2>WebShop</h2></div>
<div id="instruction-text" class="text-center"><h4>Instruction: <br>{escape(goal.instruction)}</h4></div>
<form role="search" id="form-buscar" method="post" action="{_to(session, State())}">
<input id="search_input" class="form-control" type="text" name="search_query" placeholder="Search..." \
aria-label="Search" autocomplete="off" required autofocus>
{_button(SEARCH, "btn btn-success")}
</form>
</main>"""


def _results(shop: Shop, goal: Goal, session: str, state: State, images: bool) -> str:
    found = shop.search(state.keywords)
    first = (state.page - 1) * RESULTS_A_PAGE
    shown = [shop.store[number] for number in found[first : first + RESULTS_A_PAGE]]
    turns = [(PREVIOUS, -1)] if state.page > 1 else []
    last = state.page * RESULTS_A_PAGE >= len(found)
    pages = _lines(
        _post(session, State("results", state.keywords, state.page + by), name, "btn btn-primary", last and by > 0)
        for name, by in (*turns, (NEXT, 1))
    )
    return f"""{_head(goal, session)}
<main class="container" data-query="{escape(" ".join(state.keywords))}">
<div class="turn">
<h3>Page {state.page} (Total results: {len(found)})</h3>
{pages}
</div>
<ul class="list-group{"" if shown else " nothing"}">
{_lines(_found(session, state, product, images) for product in shown)}
</ul>
</main>"""


def _found(session: str, state: State, product: Product, images: bool) -> str:
    to = _to(session, State("item", state.keywords, state.page, product.asin))
    return f"""<li class="list-group-item searched-product">
{picture(product, images, 'class="result-img"')}
<h4 class="product-asin"><a class="product-link" href="{to}">{escape(product.asin)}</a></h4>
<h4 class="product-title">{escape(product.title)}</h4>
<h5 class="product-price">{escape(product.price_tag)}</h5>
</li>"""


def _item(shop: Shop, goal: Goal, session: str, state: State, product: Product, images: bool) -> str:
    at = State("item", state.keywords, state.page, product.asin, options=state.options)
    subs = SUB_PAGES if shop.show_attributes else SUB_PAGES[:-1]
    kinds = {DESCRIPTION: "description", FEATURES: "bulletpoints", ATTRIBUTES: "attributes"}
    shown = _lines(
        f'<div name="{kinds.get(sub, "reviews")}">'
        f"{_post(session, State('sub', at.keywords, at.page, at.asin, options=at.options, sub=sub), sub)}</div>"
        for sub in subs
    )
    return f"""{_head(goal, session, State("results", state.keywords, state.page))}
<main class="container product">
<div class="choose">
{picture(product, images, 'id="product-image" class="item-page-img"')}
{_lines(_option(session, at, name, values) for name, values in product.options.items())}
</div>
<div class="about">
<h2>{escape(product.title)}</h2>
<h4 class="price">Price: {escape(product.price_tag)}</h4>
<h4 class="rating">Rating: {NO_RATING}</h4>
<div class="subs">
{shown}
</div>
</div>
<div class="buy">
{_post(session, State("done", asin=product.asin, options=state.options), BUY, "btn btn-lg purchase")}
</div>
</main>"""


def _option(session: str, at: State, name: str, values: Iterable[str]) -> str:
    def value_html(number: int, value: str) -> str:
        chosen = State("item", at.keywords, at.page, at.asin, options={**at.options, name: value})
        key, to = f"radio_{escape(name)}{number}", _to(session, chosen)
        on = at.options.get(name) == value
        place = quote(f"radio_{name}{number}", safe="")  # so that the next page stands where this one did
        return f"""<div class="value">
<input type="radio" id="{key}" name="{escape(name)}" value="{escape(value)}" data-url="{to}" tabindex="-1"{" checked" * on}>
<label for="{key}">{escape(value)}</label>
<a href="{to}#{place}" aria-label="{escape(f"{name}: {value}")}"{' aria-current="true"' * on}></a>
</div>"""

    return f"""<div class="option">
<h4>{escape(name)}</h4>
<div class="radio-toolbar">
{_lines(value_html(number, value) for number, value in enumerate(values))}
</div>
</div>"""


def _sub(goal: Goal, session: str, state: State, product: Product) -> str:
    def listed(texts: Iterable[str], kind: str) -> str:
        lines = _lines(f'<li><p class="{kind}"> {escape(text)}</p></li>' for text in texts)
        return f"<ul>\n{lines}\n</ul>"

    if state.sub == DESCRIPTION:
        shown = f'<p class="product-info">{escape(product.description)}</p>'
    elif state.sub == FEATURES:
        shown = listed(product.bullets, "product-info")
    elif state.sub == ATTRIBUTES:
        of = (
            ("category", product.category),
            ("query", product.query),
            ("product_category", product.product_category),
        )
        shown = listed(product.attributes, "attribute")
        shown += _lines(f'<h5 class="product-{name}">{escape(text)}</h5>' for name, text in of)
    else:
        shown = ""
    back = State("item", state.keywords, state.page, state.asin, options=state.options)
    return f"""{_head(goal, session, back)}
<main class="container">
<div class="card" data-page="{escape(state.sub)}">
{shown}
</div>
</main>"""


def _head(goal: Goal, session: str, back: State | None = None) -> str:
    """What stands above every page but the first: the instruction, and the ways back."""
    ways = _post(session, State(), BACK, "btn btn-success") + ("\n" + _post(session, back, PREVIOUS) if back else "")
    return f"""<header>
{home_link()}
<div id="instruction-text" class="text-center"><h4>Instruction:<br>{escape(goal.instruction)}</h4></div>
<nav>
{ways}
</nav>
</header>"""


def _post(session: str, to: State, name: str, kind: str = _ORDINARY, faint: bool = False) -> str:
    return f'<form method="post" action="{_to(session, to)}">{_button(name, kind + " faint" * faint)}</form>'


def _button(name: str, kind: str) -> str:
    return f'<button type="submit" class="{kind}">{escape(name)}</button>'


def _to(session: str, state: State) -> str:
    return escape(page_path(session, state))


def _lines(parts: Iterable[str]) -> str:
    return "\n".join(parts)

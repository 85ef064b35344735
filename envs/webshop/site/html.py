"""The shop's pages as HTML: what the environment shows in the mode `html`, and what `site` serves.

Names of elements are those of the official templates, as far as programs look for them: `search_input`, `btn`, `product-link`,
`instruction-text`, radio buttons with `data-url`, `reward`, … And the visible texts are exactly those of `pages`, so that the
official way from HTML to text (all strings outside of head, style and script) gives the observations `text` and `text_rich`.
Everything else that a person should see is therefore no text: `site.css` writes it, out of attributes.

The official pages choose an option by a script. Here a link lies over each option, so that a browser without scripts shops too;
`site.js` is for programs that press the radio button itself.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import jinja2

from skill_ttrl.envs.webshop.address import page_path
from skill_ttrl.envs.webshop.catalogue.product import NO_RATING
from skill_ttrl.envs.webshop.goal import Goal
from skill_ttrl.envs.webshop.pages import RESULTS_A_PAGE, options_text, sub_pages
from skill_ttrl.envs.webshop.shop import Place, Shop, State

STYLE, SCRIPT = "/static/site.css", "/static/site.js"

_TEMPLATES = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
    autoescape=True,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
    undefined=jinja2.StrictUndefined,
)
_TEMPLATES.globals |= {"STYLE": STYLE, "SCRIPT": SCRIPT, "NO_RATING": NO_RATING}
_TEMPLATES.filters["quote"] = lambda text: quote(text, safe="")


def page_html(shop: Shop, goal: Goal, session: str, state: State, images: bool = False) -> str:
    """A page as the official simulator shows it; after a purchase, too, it leaves open what was wanted.

    The session is the visit's name in addresses. With `images` it shows the catalogue's pictures, which lie on other hosts.

    Raises:
        KeyError: the state names a product that the shop does not have.
    """
    facts: dict[str, Any] = {"goal": goal, "images": images}
    if state.place == "results":
        products, total = shop.results(state)
        facts |= {"products": products, "total": total, "last": state.page * RESULTS_A_PAGE >= total}
    elif state.place == "done":
        facts["total"] = state.bought.total if state.bought is not None else 0.0
    elif state.place != "search":
        facts |= {"product": shop.product(state.asin), "subs": sub_pages(shop.show_attributes)}
    return render_page(state.place, session, state, **facts)


def render_page(name: str, session: str, state: State, **facts: Any) -> str:
    """Fill in the template of a page of a visit, which can link to other places as seen from `state`."""

    def to(place: Place, **changes: Any) -> str:
        return page_path(session, replace(state, place=place, **changes))

    return render(name, state=state, to=to, options_text=options_text(state.options), **facts)


def render(name: str, **facts: Any) -> str:
    """Fill in the template `name`; the name is also the class of the page's body, for the style sheet."""
    return _TEMPLATES.get_template(f"{name}.html.j2").render(kind=name, **facts)

"""The shop's pages as HTML as the site of princeton-nlp/WebShop has them.

Names of elements are those of the official templates, as far as programs look for them: `search_input`, `btn`, `product-link`,
`instruction-text`, radio buttons with `data-url`, `reward`, … And the visible texts are exactly those of `pages`, so that the
official way from HTML to text (all strings outside of head, style and script) gives the observations `text` and `text_rich`.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import jinja2

from skill_ttrl.envs.webshop.catalogue.product import NO_RATING
from skill_ttrl.envs.webshop.goals import Goal
from skill_ttrl.envs.webshop.shop import RESULTS_A_PAGE, Place, Shop, State, options_text, sub_pages

_TEMPLATES = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).parent / "data" / "webshop_pages"),
    autoescape=True, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True,
    undefined=jinja2.StrictUndefined,
)  # fmt: skip
_TEMPLATES.globals |= {"NO_RATING": NO_RATING}


def page_html(shop: Shop, goal: Goal, session: str, state: State) -> str:
    """A page as the official simulator shows it; after a purchase, too, it leaves open what was wanted.

    The session is the visit's name in addresses.

    Raises:
        KeyError: the state names a product that the shop does not have.
    """
    facts: dict[str, Any] = {"goal": goal}
    if state.place == "results":
        products, total = shop.results(state)
        facts |= {"products": products, "total": total, "last": state.page * RESULTS_A_PAGE >= total}
    elif state.place == "done":
        facts["total"] = state.bought.total if state.bought is not None else 0.0
    elif state.place != "search":
        facts |= {"product": shop.product(state.asin), "subs": sub_pages(shop.show_attributes)}

    def to(place: Place, **changes: Any) -> str:
        return page_path(session, replace(state, place=place, **changes))

    template = _TEMPLATES.get_template(f"{state.place}.html.j2")
    return template.render(kind=state.place, state=state, to=to, options_text=options_text(state.options), **facts)


def page_path(session: str, state: State) -> str:
    """The address of a page without its server, as the official site writes them: keywords and options as Python prints a list and a dict."""
    words, options = _part(str(list(state.keywords))), _part(str(dict(state.options)))
    item = f"{_part(session)}/{_part(state.asin)}"
    return {
        "search": f"/{_part(session)}",
        "results": f"/search_results/{_part(session)}/{words}/{state.page}",
        "item": f"/item_page/{item}/{words}/{state.page}/{options}",
        "sub": f"/item_sub_page/{item}/{words}/{state.page}/{state.sub}/{options}",
        "done": f"/done/{item}/{options}",
    }[state.place]


def _part(text: str) -> str:
    return quote(text, safe="", errors="replace")

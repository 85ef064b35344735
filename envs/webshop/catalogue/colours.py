"""The colours by which the reward compares options: a light grey one is as good as a grey one.

The list is the official engine's (`COLOR_SET` of `web_agent_site/engine/normalize.py`), in its order, which decides: the first
that a text contains stands for the text, wherever in it, so that "colored" is red.
"""

from __future__ import annotations

from functools import lru_cache

COLOURS: tuple[str, ...] = tuple(
    """
    alabaster apricot aqua ash asphalt azure banana beige black blue blush bordeaux bronze brown burgundy camel camo caramel
    champagne charcoal cheetah chestnut chocolate christmas coffee cognac copper coral cranberry cream crystal dark denim
    eggplant elephant espresso fuchsia gold granite grape graphite grass gray green grey heather indigo ivory ivy khaki
    lavender lemon leopard light lilac lime magenta maroon mauve merlot midnight mint mocha multicolor mushroom mustard
    natural navy nude olive orange peach pewter pink plum purple rainbow red rose royal rust sand sapphire seashell silver
    skull slate steel stone stonewash sunflower tan taupe teal tiger turquoise violet walnut wheat white wine yellow
    """.split()
)


@lru_cache(maxsize=16_384)
def normalise_colour(text: str) -> str:
    """The first colour of the list that `text` contains; `text` itself where it contains none. Small letters only."""
    return next((colour for colour in COLOURS if colour in text), text)

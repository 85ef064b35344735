"""A shop's pages as a terminal shows them: the parts of a page by hand, and what a purchase was worth."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from skill_ttrl.cli.games.shop_screen import ShopScreen, read_page, score_lines
from skill_ttrl.stages.collecting.watch import Scene

HEAD = "Instruction: [SEP] a red sock [SEP] Back to Search"
ITEM = f"{HEAD} [SEP] < Prev [SEP] color [SEP] red [SEP] description [SEP] size [SEP] s [SEP] Sock [SEP] Price: $3.0 [SEP] Rating: N.A."
ITEM += " [SEP] Description [SEP] Features [SEP] Reviews [SEP] Buy Now"
ON_ITEM = ["back to search", "< prev", "description", "features", "reviews", "buy now", "red", "s"]


def test_the_parts_of_every_page() -> None:
    first = read_page("WebShop [SEP] Instruction: [SEP] a red sock [SEP] Search", ["search"])
    assert first and (first.heading, first.instruction) == ("WebShop", "a red sock")
    results = f"{HEAD} [SEP] Page 1 (Total results: 2) [SEP] Next > [SEP] B1 [SEP] Sock [SEP] $3.0 [SEP] B2 [SEP] $4.0"
    page = read_page(results, ["back to search", "next >", "b1", "b2"])
    assert page and page.products == (("B1", "Sock", "$3.0"), ("B2", "$4.0")), "the second has no title"
    assert page.heading == "Page 1 (Total results: 2)" and page.buttons == ("Back to Search", "Next >")
    empty = read_page(f"{HEAD} [SEP] Page 9 (Total results: 2) [SEP] < Prev [SEP] Next >", ["< prev", "next >"])
    assert empty and empty.products == () and not empty.has_product
    item = read_page(ITEM, ON_ITEM)
    assert item and item.options == {"color": ("red", "description"), "size": ("s",)}
    assert item.texts == ("Sock", "Price: $3.0", "Rating: N.A.") and item.buttons[-1] == "Buy Now"
    sub = read_page(f"{HEAD} [SEP] < Prev [SEP] Warm. [SEP] Red.", ["back to search", "< prev"])
    assert sub and sub.texts == ("Warm.", "Red.") and sub.options == {} and sub.has_product
    done = read_page("Thank you for shopping with us! [SEP] Purchased [SEP] asin [SEP] B1 [SEP] options [SEP] {}", [])
    assert done and done.texts[1] == "Bought: B1, options {}"


@pytest.mark.parametrize("text", ["", "<html> [SEP] </html>", "http://127.0.0.1:3000/7", "Instruction:", "WebShop"])
def test_what_is_no_page_of_texts_is_not_laid_out(text: str) -> None:
    assert read_page(text, ["search"]) is None


def shown(*scenes: tuple[str | None, str, list[str]]) -> str:
    """What a screen of 60 columns gets of (action, observation, clickables)."""
    out = io.StringIO()
    screen = ShopScreen(Console(file=out, force_terminal=True, width=60, color_system=None), None, 0.0)
    for number, (action, seen, clicks) in enumerate(scenes):
        listed = [f"click[{name}]" for name in clicks]
        info = {"available_actions": {"clickables": clicks}, "admissible_commands": listed}
        screen.show(Scene(number, 15, action, seen, info, 0.0, False))
    return out.getvalue()


def test_chosen_options_are_marked_until_one_goes_back_to_the_results() -> None:
    results = (None, f"{HEAD} [SEP] Page 1 (Total results: 1) [SEP] Next > [SEP] B1 [SEP] Sock [SEP] $3.0", ["b1"])
    chosen = shown(results, ("click[b1]", ITEM, ON_ITEM), ("click[RED]", ITEM, ON_ITEM))
    assert "red (chosen)" in chosen and "s (chosen)" not in chosen
    back = shown(("click[b1]", ITEM, ON_ITEM), ("click[red]", ITEM, ON_ITEM), results, ("click[b1]", ITEM, ON_ITEM))
    assert back.count("(chosen)") == 1
    assert "(chosen)" not in shown((None, ITEM, ON_ITEM), ("search[red]", ITEM, ON_ITEM))


def test_nothing_in_a_page_acts_on_the_terminal_and_no_value_is_broken() -> None:
    values = [f"shade number {number}" for number in range(20)]
    seen = f"{HEAD} [SEP] < Prev [SEP] color [SEP] {' [SEP] '.join(values)} [SEP] [bold]\x1b[31mSock [SEP] Buy Now"
    out = shown((None, seen, ["back to search", "< prev", "buy now", *values]))
    assert "\x1b" not in out and "[bold]␛[31mSock" in out
    assert all(value in out for value in values) and max(map(len, out.splitlines())) <= 60


def test_a_score_is_explained_as_far_as_it_is_known() -> None:
    assert score_lines({"score": 0.5}) == ["Score 0.500 of 1"]
    whole: dict[str, object] = {
        "score": 0.25,
        "r_type": 0.5,
        "query_match": False,
        "category_match": True,
        "title_score": 0.125,
    }
    whole |= {"r_att": 0.5, "w_att": 0.5, "r_option": None, "w_option": None, "r_price": True, "w_price": 0.25}
    assert score_lines(whole) == [
        "Score 0.250 of 1 = kind × (attributes + options + price)",
        "  kind 0.500 (same search: no, same category: yes, nouns of the title shared: 0.12)",
        "  attributes 0.500 × 0.500",
        "  price 1.000 × 0.250",
    ]

"""The environment on a running shop: as on a catalogue of its own, and never a wrong reward from a server that fails."""

from __future__ import annotations

import pickle
import random
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from skill_ttrl.envs import check_text_env, make_env
from skill_ttrl.envs.webshop.live import LiveVisit, NotThePage, ServerGoals, read_page
from skill_ttrl.envs.webshop.pages import Text, as_text
from skill_ttrl.errors import EnvError, SplitError
from skill_ttrl.stages import collect
from skill_ttrl.stages.inputs.selection import TaskSelection
from tests.web_shop_server import Misbehaving, started_shop

MAX_WAIT_FRACTION: dict[str, dict[str, Any]] = {
    "slow": {"timeout": 0.5, "attempts": 2},
    "drip": {"timeout": 0.5, "attempts": 2},
}
GOLDEN = Path(__file__).parents[1] / "golden" / "webshop_episodes"


@pytest.fixture(scope="module")
def shop() -> Iterator[str]:
    """Address of a shop of twenty products."""
    with started_shop(GOLDEN, goals="synthetic") as address:
        yield address


@pytest.fixture
def faulty(shop: str) -> Iterator[Misbehaving]:
    server = Misbehaving(shop)
    yield server
    server.close()


def visit_to(server: Misbehaving, attempts: int = 3, **settings: Any) -> LiveVisit:
    visit = LiveVisit(server.address, **{"timeout": 5.0, **settings})
    visit.attempts, visit.pause = attempts, 0.01
    return visit


def to_a_product(visit: LiveVisit) -> None:
    visit.start(0)
    visit.act("search[lamp]")
    assert "buy now" in visit.act("click[b0lamp0001]").clickables


def episodes(local: Any, live: Any, goals: int, count: int = 22) -> tuple[int, list[float]]:
    """Random walks and an oracle's purchases, side by side; gives steps and scores."""
    draw, steps, scores = random.Random(7), 0, []
    for episode in range(count):
        number = episode % goals
        begun = local.reset(options={"goal": number, "walkthrough": episode % 2 == 0})
        assert live.reset(options={"goal": number})[0] == begun[0]
        plan, over = list(begun[1].get("walkthrough", ())), False
        while not over:
            open_ends = ["search[1/2 lamp]", "search[<r> clock]", "search[.]", "click[nothing]", "buy it", "search[ ]"]
            shown = [name for name in begun[1]["admissible_commands"] if not name.startswith("search")]
            action = plan.pop(0) if plan else draw.choice([*shown * 2, *open_ends])
            if steps % 7 == 0:
                written = pickle.dumps(live)
                live.close()
                live = pickle.loads(written)
            found, expected = live.step(action), local.step(action)
            assert found[:4] == expected[:4], action
            shared = set(found[4]) - {"goal", "task_type", "source"}
            assert shared > {"admissible_commands", "won", "score", "state"}
            assert {key: found[4][key] for key in shared} == {key: expected[4][key] for key in shared}, action
            begun, over, steps = (expected[0], expected[4]), expected[2] or expected[3], steps + 1
            if expected[2]:
                scores.append(expected[4]["score"])
    live.close()
    return steps, scores


@pytest.mark.parametrize(("mode", "count"), [("text", 8), pytest.param("text_rich", 6, marks=pytest.mark.slow)])
def test_episodes_on_a_started_server_are_those_of_its_catalogue(mode: str, count: int, shop: str) -> None:
    settings: dict[str, Any] = {"split": "test", "observation_mode": mode, "max_steps": 9}
    local = make_env("webshop", data=str(GOLDEN), goals="synthetic", nouns="rule", **settings)
    live = make_env("webshop", data=shop, **settings)
    steps, scores = episodes(local, live, 12, count)
    assert steps > 4 * count and len(scores) > count / 3 and len(set(scores)) > 1 and max(scores) == 1.0


@pytest.mark.slow
def test_episodes_on_official_products_are_those_of_the_catalogue_too(official_products: Path) -> None:
    with started_shop(official_products) as address:
        local = make_env("webshop", data=str(official_products), nouns="rule", split="test", max_steps=9)
        steps, scores = episodes(local, make_env("webshop", data=address, split="test", max_steps=9), 500)
    assert steps > 100 and len(scores) > 10


def test_a_running_server_keeps_the_contract_of_environments(shop: str) -> None:
    env = make_env("webshop", data=shop, split="test", server_goals=12)
    tasks = env.unwrapped.tasks()  # type: ignore[attr-defined]
    assert [task.id for task in tasks] == [f"server-{number}" for number in range(12)]
    check_text_env(env, tasks[3])
    env.close()
    assert env.reset(options={"task": "server-3"})[1]["goal"] == 3


def test_what_a_running_server_decides_is_not_asked_of_the_environment() -> None:
    with pytest.raises(EnvError, match="when it is started"):
        make_env("webshop", data="http://127.0.0.1:9", split="test", goals="human")


def test_query_codes_are_words_unless_they_are_allowed(faulty: Misbehaving) -> None:
    sent = []
    for allowed in (False, True):
        visit = visit_to(faulty, query_codes=allowed)
        visit.start(0)
        visit.act("search[<r> lamp]")
        sent += [body for method, _, body in faulty.asked if method == "POST"]
        faulty.asked.clear()
    assert sent == ["search_query=+%3Cr%3E+lamp", "search_query=%3Cr%3E+lamp"]


@pytest.mark.parametrize("fault", ["500", "hang up"])
def test_a_page_that_fails_once_is_asked_for_again(fault: str, faulty: Misbehaving) -> None:
    visit = visit_to(faulty, **MAX_WAIT_FRACTION.get(fault, {}))
    faulty.faults = [fault, "", fault]
    visit.start(0)
    assert "b0lamp0001" in visit.act("search[lamp]").clickables
    assert len(faulty.asked) == 5


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("500", "status 500"),
        ("hang up", "the connection broke"),
        ("drip", "no complete answer came within 0.5 s"),
        ("garbage", "has no instruction"),
        ("elsewhere", "redirects to another server: http://127.0.0.2:9/"),
        ("circle", "without end"),
        ("huge", "more than 4 MiB"),
    ],
)
def test_a_server_that_always_fails_is_one_clear_error(fault: str, said: str, faulty: Misbehaving) -> None:
    visit = visit_to(faulty, **MAX_WAIT_FRACTION.get(fault, {}))
    visit.start(0)
    faulty.always = fault
    with pytest.raises(EnvError) as caught:
        visit.act("search[lamp]")
    message = str(caught.value)
    assert said in message and "127.0.0.1" in message and "\n" not in message and len(message) < 700
    faulty.always = ""
    assert "b0lamp0001" in visit.act("search[lamp]").clickables


@pytest.mark.parametrize("fault", ["500", "slow"])
def test_a_purchase_that_may_have_reached_the_server_is_not_repeated(fault: str, faulty: Misbehaving) -> None:
    visit = visit_to(faulty, **MAX_WAIT_FRACTION.get(fault, {}))
    to_a_product(visit)
    faulty.asked.clear()
    faulty.faults = [fault]
    with pytest.raises(EnvError, match="The purchase was not sent again"):
        visit.act("click[buy now]")
    assert [path.split("/")[1] for _, path, _ in faulty.asked] == ["done"]


@pytest.mark.slow
def test_a_server_that_is_not_there_is_named() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(EnvError, match=f"^{address} returned no page for the page .*nothing answers there"):
        collect.run(TaskSelection("webshop", "test", {"data": address}), agent="random")  # and not by 500 episodes


@pytest.mark.parametrize(
    ("page", "said"),
    [
        ('<h3 id="reward">Your score</h3>', "has no instruction"),
        ('<h3 id="reward"><pre>1.0</pre><pre>0.5</pre></h3>', "no single score"),
        ('<h3 id="reward"><pre>1.0</pre></h3><p id="reward"><pre>1.0</pre></p>', "no single score"),
        ('<h3 id="reward"><pre>nan</pre></h3>', "found 'nan'"),
        ('<h3 id="reward"><pre>__import__("os")</pre></h3>', "found '__import__"),
        ('<div id="instruction-text"><h4>Instruction:<br>x</h4></div><button>Buy Now</button>', "it is 'item'"),
    ],
)
def test_a_purchase_without_one_proper_score_has_no_reward(page: str, said: str, faulty: Misbehaving) -> None:
    visit = visit_to(faulty)
    to_a_product(visit)
    faulty.faults = [page]
    with pytest.raises(EnvError, match="'done'") as caught:
        visit.act("click[buy now]")
    assert said in str(caught.value)


def test_a_session_with_another_goal_than_before_is_refused(faulty: Misbehaving) -> None:
    visit = visit_to(faulty)
    instruction, _ = visit.start(0)
    faulty.edit = (instruction.split()[-1], "nothing")
    with pytest.raises(EnvError, match="a different instruction than before"):
        visit.act("search[lamp]")


def test_pages_of_other_templates_are_refused() -> None:
    head = '<div id="instruction-text"><h4>Instruction: buy</h4></div>'
    with pytest.raises(NotThePage, match="a button '< Back to Results'"):
        read_page(f"{head}<form action='/x'><button class='btn'>&lt; Back to Results</button></form>")
    with pytest.raises(NotThePage, match="of the official buttons it has none"):
        read_page(head)


def test_goals_of_a_server_are_numbers_and_splits_are_ranges_of_them() -> None:
    unknown, small, full = ServerGoals("http://h", None), ServerGoals("http://h", 600), ServerGoals("http://h", 6910)
    assert (unknown.split("test")[[0, -1]] == [0, 499]).all() and (unknown.split("dev")[[0, -1]] == [500, 1499]).all()
    assert (small.split("dev")[[0, -1]] == [500, 599]).all() and (full.split("train")[[0, -1]] == [1500, 6909]).all()
    with pytest.raises(SplitError, match="The 600 goals of http://h leave none for the split 'train'"):
        small.split("train")
    with pytest.raises(SplitError, match="Did you mean"):
        small.split("tets")
    with pytest.raises(EnvError, match="does not report the product of a goal"):
        full.split("test", "product")
    assert (
        full.find("server-6909") == 6909
        and full[12].id == "server-12"
        and [full.draw(chance, "train") for chance in (0.0, 0.5, 1 - 2**-53)] == [1500, 4205, 6909]
    )
    with pytest.raises(EnvError, match="numbered from 0 to 6,909"):
        full.find("server-6910")
    with pytest.raises(EnvError, match="server_goals"):
        ServerGoals("http://h", 0)


def test_pages_are_read_as_the_official_site_writes_them() -> None:
    """With headings closed as others, text beside tags, scripts, and addresses that hold Python's way of writing."""
    head = """<!DOCTYPE html><html><head><title>WebShop</title><style>p {}</style></head><body><div id="instruction-text">
      <h4>Instruction:<br>a lamp &lt; $10</h4></div><form method="post" action="/fixed_u_0">
      <button type="submit" class="btn btn-success">Back to Search</button></form>"""
    results = f"""{head}<h3>Page 1 (Total results: 1)</h3>
      <form method="post" action="/search_results/fixed_u_0/%5B%27lamp%27%5D/2"><button class="btn">Next &gt;</button></form>
      <h4 class="product-asin"><a class="product-link" href="/item_page/fixed_u_0/B0/%5B%27lamp%27%5D/1/%7B%7D">B0</a></h5>
      <h4 class="product-title">Lamp</h5><h5 class="product-price">$9.0</h6></body></html>"""
    page = read_page(results)
    assert as_text(page.texts) == (
        "Instruction: [SEP] a lamp < $10 [SEP] Back to Search [SEP] Page 1 (Total results: 1) [SEP] Next > [SEP] B0 [SEP] Lamp "
        "[SEP] $9.0"
    )
    assert page.place == "results" and page.instruction == "a lamp < $10"
    assert page.target("b0") == ("GET", "/item_page/fixed_u_0/B0/%5B%27lamp%27%5D/1/%7B%7D")
    item = read_page(
        f"""{head}<form method="post" action="/back"><button class="btn">&lt; Prev</button></form><h4>size</h4>
      <input type="radio" id="radio_size0" name="size" value="10 | 12" data-url="/item_page/%7B%27size%27%3A%20%2710%27%7D">
      <label for="radio_size0">10 | 12</label><form method="post" action="/done/fixed_u_0/B0/%7B%7D">
      <button class="btn btn-lg purchase">Buy Now</button></form></body><script>let options = `{{}}`;</script></html>"""
    )
    assert item.place == "item" and Text("10 | 12", "option", "size") in item.texts and "let" not in as_text(item.texts)
    assert item.target("10 | 12") == ("GET", "/item_page/%7B%27size%27%3A%20%2710%27%7D")
    done = read_page(
        """<h1>Thank you</h1><p><pre>code</pre> (Paste)</p><h4 id="asin">asin<pre>B0</pre></p><h4 id="goal-asin">asin<pre>B1</pre>
      </p><h3   id="reward">Your score (min 0.0, max 1.0)<pre>0.3333333333333333</pre></h3><h4 hidden>Reward Details
      <div id="reward_info"><pre>{&#39;r_att&#39;: 0.5, &#39;r_price&#39;: True}</pre></div></h4>"""
    )
    assert done.score == 1 / 3

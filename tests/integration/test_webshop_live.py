"""The environment on a running shop: as on a catalogue of its own, and never a wrong reward from a server that fails."""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from skill_ttrl.envs import check_text_env, make_env
from skill_ttrl.envs.webshop import live
from skill_ttrl.envs.webshop.live import LiveVisit, ServerGoals, read_page
from skill_ttrl.envs.webshop.shop import Text, as_text
from skill_ttrl.errors import EnvError, SplitError
from skill_ttrl.stages import collect
from skill_ttrl.stages.inputs.tasks import TaskSelection
from tests.web_shop_server import started_shop

GOLDEN = Path(__file__).parents[1] / "golden" / "webshop_episodes"


@pytest.fixture(scope="module")
def shop() -> Iterator[str]:
    """Address of a shop of twenty products."""
    with started_shop(GOLDEN, goals="synthetic") as address:
        yield address


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the next requests find, in order: an error, a status, a page, or None, which passes on. Then all pass on."""
    left: list[Any] = []
    send = httpx.request

    def request(method: str, url: str, **more: Any) -> httpx.Response:
        fault = left.pop(0) if left else None
        if isinstance(fault, Exception):
            raise fault
        if fault is None:
            return send(method, url, **more)
        status, text = (fault, "") if isinstance(fault, int) else (200, fault)
        headers = {"Location": "http://127.0.0.2:9/fixed_0"} if status == 302 else {}
        return httpx.Response(status, text=text, headers=headers, request=httpx.Request(method, url))

    monkeypatch.setattr(httpx, "request", request)
    monkeypatch.setattr(live, "PAUSE_S", 0.01)
    return left


def to_a_product(address: str) -> LiveVisit:
    visit = LiveVisit(address)
    visit.start(0)
    visit.act("search[lamp]")
    assert "buy now" in visit.act("click[b0lamp0001]").clickables
    return visit


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


def test_a_page_that_fails_is_asked_for_again_and_a_purchase_is_not(shop: str, faults: list[Any]) -> None:
    faults += [500, None, httpx.ReadError("gone"), 503]
    visit = to_a_product(shop)
    assert not faults
    faults += [500, None]
    with pytest.raises(EnvError, match=r"500.* The purchase was not sent again"):
        visit.act("click[buy now]")
    assert len(faults) == 1


HEAD = '<div id="instruction-text"><h4>Instruction:<br>x</h4></div>'


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (302, "another server, which is not contacted: http://127.0.0.2:9"),
        ("\x00 garbage \xff", "something else"),
        (f"{HEAD}<form action='/x'><button class='btn'>&lt; Back to Results</button></form>", "something else"),
        ('<h3 id="reward">Your score</h3>', "something else"),
        ('<h3 id="reward"><pre>1.0</pre><pre>0.5</pre></h3>', "something else"),
        ('<h3 id="reward"><pre>nan</pre></h3>', "something else"),
        ('<h3 id="reward"><pre>__import__("os")</pre></h3>', "something else"),
        (f"{HEAD}<button>Buy Now</button>", "'item'"),
    ],
)
def test_a_purchase_without_one_proper_score_has_no_reward(fault: Any, said: str, shop: str, faults: list[Any]) -> None:
    visit = to_a_product(shop)
    faults.append(fault)
    with pytest.raises(EnvError, match=r"127\.0\.0\.1") as caught:
        visit.act("click[buy now]")
    assert said in str(caught.value)
    assert visit.act("click[buy now]").score is not None  # it stayed where it was


def test_a_session_with_another_goal_than_before_is_refused(shop: str, faults: list[Any]) -> None:
    visit = LiveVisit(shop)
    visit.start(0)
    faults.append(f"{HEAD}<button>Next &gt;</button>")
    with pytest.raises(EnvError, match="a different instruction than before"):
        visit.act("search[lamp]")


def test_a_server_that_is_not_there_is_named(faults: list[Any]) -> None:
    address = "http://127.0.0.1:9"
    with pytest.raises(EnvError, match=f"^{address} returned no page for the page "):
        collect.run(TaskSelection("webshop", "test", {"data": address}), agent="random")  # and not by 500 episodes


def test_goals_of_a_server_are_numbers_and_splits_are_ranges_of_them() -> None:
    small, full = ServerGoals("http://h", 600), ServerGoals("http://h", 6910)
    assert (small.split("dev")[[0, -1]] == [500, 599]).all() and (full.split("train")[[0, -1]] == [1500, 6909]).all()
    with pytest.raises(SplitError, match="The 600 goals of http://h leave none for 'train'"):
        small.split("train")
    with pytest.raises(EnvError, match="does not report the product of a goal"):
        full.split("test", "product")
    assert full.find("server-6909") == 6909 and full[12].id == "server-12"
    assert [full.draw(chance, "train") for chance in (0.0, 0.5, 1 - 2**-53)] == [1500, 4205, 6909]
    with pytest.raises(EnvError, match="they are server-0 to server-6909"):
        full.find("server-6910")


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
    assert page.targets["b0"] == ("GET", "/item_page/fixed_u_0/B0/%5B%27lamp%27%5D/1/%7B%7D")
    item = read_page(
        f"""{head}<form method="post" action="/back"><button class="btn">&lt; Prev</button></form><h4>size</h4>
      <input type="radio" id="radio_size0" name="size" value="10 | 12" data-url="/item_page/%7B%27size%27%3A%20%2710%27%7D">
      <label for="radio_size0">10 | 12</label><form method="post" action="/done/fixed_u_0/B0/%7B%7D">
      <button class="btn btn-lg purchase">Buy Now</button></form></body><script>let options = `{{}}`;</script></html>"""
    )
    assert item.place == "item" and Text("10 | 12", "option", "size") in item.texts and "let" not in as_text(item.texts)
    assert item.targets["10 | 12"] == ("GET", "/item_page/%7B%27size%27%3A%20%2710%27%7D")
    done = read_page(
        """<h1>Thank you</h1><p><pre>code</pre> (Paste)</p><h4 id="asin">asin<pre>B0</pre></p><h4 id="goal-asin">asin<pre>B1</pre>
      </p><h3   id="reward">Your score (min 0.0, max 1.0)<pre>0.3333333333333333</pre></h3><h4 hidden>Reward Details
      <div id="reward_info"><pre>{&#39;r_att&#39;: 0.5, &#39;r_price&#39;: True}</pre></div></h4>"""
    )
    assert done.score == 1 / 3

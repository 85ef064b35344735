"""WebShop by commands: its own pages, the transcripts of the original, a live site."""

from __future__ import annotations

import hashlib
import json
import pickle
import random
import re
from ast import literal_eval
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import httpx
import pytest

from skill_ttrl.commands import collect
from skill_ttrl.envs import check_text_env, make_env
from skill_ttrl.envs.webshop import live
from skill_ttrl.envs.webshop.catalogue.catalogue import open_catalogue
from skill_ttrl.envs.webshop.goals import price_of
from skill_ttrl.envs.webshop.live import LiveVisit, ServerGoals, read_page
from skill_ttrl.envs.webshop.reward import purchase_reward
from skill_ttrl.envs.webshop.shop import State, Text, as_text, shared_shop
from skill_ttrl.errors import EnvError, SplitError
from skill_ttrl.statistics import mean_interval, wilson_interval
from skill_ttrl.train.tasks import TaskSelection
from skill_ttrl.types import Trajectory, from_json
from tests.faulty_server import FaultyServer, at
from tests.integration.test_cli_commands import skillttrl
from tests.preloaded import run_script
from tests.webshop_html import page_html, page_path

TRANSCRIPTS = Path(__file__).parents[1] / "data" / "webshop_transcripts.jsonl"

MODES = ("text", "text_rich", "url")


@pytest.mark.slow
@pytest.mark.parametrize("show_attributes", [False, True])
def test_every_frame_is_the_one_that_upstreams_rules_gave(official_products: Path, show_attributes: bool) -> None:
    envs = [
        make_env(
            "webshop",
            data=str(official_products / "items_shuffle_1000.json"),
            goals="synthetic",
            observation_mode=mode,
            max_steps=100,
            show_attributes=show_attributes,
        )
        for mode in MODES
    ]
    episodes = [json.loads(line) for line in TRANSCRIPTS.read_text(encoding="utf-8").splitlines()]
    episodes = [episode for episode in episodes if episode["attributes"] == show_attributes]
    assert sum(len(episode["frames"]) for episode in episodes) > 500
    for episode in episodes:
        seen = [env.reset(options={"goal": episode["goal"]}) for env in envs]
        infos = [info for _, info in seen]
        assert _frame([text for text, _ in seen], infos[0], 0.0, False) == episode["frames"][0]
        for step, (action, expected) in enumerate(zip(episode["actions"], episode["frames"][1:], strict=True), 1):
            played = [env.step(action) for env in envs]
            _, reward, done, _, info = played[0]
            found = _frame([each[0] for each in played], info, float(reward), done)
            assert found == expected, f"goal {episode['goal']}, after {episode['actions'][:step]}"
        assert (float(reward), done) == (episode["reward"], episode["done"])


def _frame(texts: list[str], info: dict[str, Any], reward: float, done: bool) -> str:
    shown = info["available_actions"]
    fields = [*texts, shown["has_search_bar"], shown["clickables"], reward, done]
    return hashlib.blake2b(json.dumps(fields).encode(), digest_size=8).hexdigest()


SOURCE = "generated, 1,000 products, synthetic goals by goal, nouns by rule"


@pytest.fixture(autouse=True, scope="module")
def one_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The catalogue is made once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patch.delenv("WEBSHOP_DATA", raising=False)
        patch.setenv("COLUMNS", "80")
        yield


@pytest.fixture(scope="module")
def goals(one_cache: None) -> list[Any]:
    """The test goals that ask for two options."""
    with closing(make_env("webshop", data="generated", split="test")) as env:
        found = [env.unwrapped.goals[number] for number in range(500)]  # type: ignore[attr-defined]
    return [goal for goal in found if len(goal.options) == 2]


def kept(file: Path) -> list[Trajectory]:
    return [from_json(Trajectory, line) for line in file.read_bytes().splitlines()]


@pytest.mark.slow
def test_the_500_test_goals_are_played_once_each_with_score_and_success_by_category(tmp_path: Path) -> None:
    file = tmp_path / "out.jsonl"
    words = ("evaluate", "random", "--env", "webshop", "--num-workers", 1, "-o", file)
    done = skillttrl(*words, "--split", "test", "--json")
    assert done.code == 0, done
    found, lines = done.json, kept(file)
    assert len({line.task.id for line in lines}) == len(lines) == 500 and found["split"] == "test"
    scores = [line.steps[-1].info["score"] for line in lines]
    won = [line.steps[-1].info["won"] for line in lines]
    assert any(0 < score < 1 for score in scores), "somebody bought what is wrong in part"
    overall = found["overall"]
    assert overall["score"] == pytest.approx(sum(scores) / 500)
    assert overall["score_interval"] == pytest.approx(list(mean_interval(scores)))
    assert overall["success"] == sum(won) / 500 and overall["interval"] == list(wilson_interval(sum(won), 500))
    assert overall["steps"] == sum(len(line.steps) for line in lines) / 500 and found["source"] == SOURCE
    kinds = {line.task.task_type for line in lines}
    assert kinds == set(found["by_type"]) and "fashion" in kinds
    assert all({"score", "score_interval", "success", "interval"} <= set(each) for each in found["by_type"].values())
    again = skillttrl(*words)
    assert "episodes are in" in again.err and f"Source: {SOURCE}." in again.out
    header = next(line for line in again.out.splitlines() if "task type" in line)
    columns = [word.strip() for word in header.strip("┃").split("┃")]
    assert columns == ["task type", "episodes", "score", "success", "steps", "failed"]
    assert max(map(len, again.out.splitlines()[1:-1])) <= 80
    inspected = skillttrl("inspect", file, "--json").json["facts"]
    assert f", score {overall['score']:.3f}, " in inspected["success"]


def shops(body: Mapping[str, Any], draw: random.Random) -> str:
    """Searches for the instruction, opens the first product, buys it."""
    seen = str(body["messages"][-1]["content"])
    if "[SEP] Search" in seen:
        return "search[" + seen.partition("Instruction: [SEP] ")[2].partition(" [SEP] ")[0].partition(" with ")[0] + "]"
    asin = re.search(r"Next > \[SEP\] (\w{10}) ", seen)
    return f"click[{asin[1].lower()}]" if asin else "click[buy now]"


def test_a_policy_is_measured_by_score_and_success(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    words = ("evaluate", "openai:buyer", "--env", "webshop", "--limit", 5, "-o", tmp_path / "kept")
    with FaultyServer(answer=shops, faults=()) as server:
        done = skillttrl(*words, "--json", *at(server, "eval.samples=1", "agent.template=plain"))
        assert done.code == 0, done
        more = skillttrl(*words, "--full", *at(server, "eval.samples=1", "agent.template=plain"))
    shown = " ".join(more.out.split())
    found = done.json
    rows = [json.loads(line) for line in (tmp_path / "kept" / "samples.jsonl").read_text().splitlines()]
    drawn = [row["samples"][0] for row in rows if row["draw"] == "sample"]
    assert [sample["is_correct"] for sample in drawn] == [sample["score"] == 1 for sample in drawn]
    assert 0 < found["score"] < 1 and found["score"] == pytest.approx(sum(each["score"] for each in drawn) / 5)
    assert found["accuracy"] == sum(each["is_correct"] for each in drawn) / 5 < found["score"]
    assert found["score_interval"][0] <= found["score"] <= found["score_interval"][1]
    assert found["source"] == f"webshop test ({SOURCE})"
    assert f"score, T = 0.6 │ {found['score']:.3f} [" in shown and "score, greedy" in shown and "generated" in shown


@pytest.mark.slow
def test_the_example_shops_with_nothing_but_the_package() -> None:
    done = run_script(Path(__file__).parents[2] / "examples" / "shop_webshop.py", "7")
    assert done.returncode == 0 and done.stdout.startswith(f"{SOURCE}\nFind me "), done
    assert "\n> search[" in done.stdout and "\nscore " in done.stdout and "\nr_type " in done.stdout


GOLDEN = Path(__file__).parents[1] / "golden" / "webshop_episodes"

ADDRESS = "http://127.0.0.1:9"


class Site:
    """A site with the routes and pages of princeton-nlp/WebShop (`web_agent_site/app.py`), in place of `httpx.request`."""

    def __init__(self, folder: Path, goals: str) -> None:
        catalogue = open_catalogue(folder)
        self.goals, self.shop = catalogue.goals(goals), shared_shop(catalogue.store, False)
        self.faults: list[Any] = []
        """What the next requests find, in order: an error, a status, a page, or None for the site's own answer."""

    def request(self, method: str, url: str, data: Any = None, **more: Any) -> httpx.Response:
        fault = self.faults.pop(0) if self.faults else None
        if isinstance(fault, Exception):
            raise fault
        status, text, to = (fault, "", "http://127.0.0.2:9/fixed_0") if isinstance(fault, int) else (200, fault, "")
        if fault is None:
            kind, *parts = [unquote(part) for part in url.removeprefix(f"{ADDRESS}/").split("/")]
            if data is not None:
                status, text, to = (
                    302,
                    "",
                    page_path(kind, State("results", tuple(data["search_query"].lower().split(" ")))),
                )
            else:
                text = self.page(kind, parts)
        return httpx.Response(status, text=text, headers={"Location": to}, request=httpx.Request(method, url))

    def page(self, kind: str, parts: list[str]) -> str:
        session, state = (parts or [kind])[0], State()
        goal = self.goals[int(session.rpartition("_")[2])]
        if kind == "search_results":
            state = State("results", tuple(literal_eval(parts[1])), int(parts[2]))
        elif kind in ("item_page", "item_sub_page"):
            at = {"place": "item"} if kind == "item_page" else {"place": "sub", "sub": parts[4]}
            words, options = tuple(literal_eval(parts[2])), literal_eval(parts[-1])
            state = State(keywords=words, page=int(parts[3]), asin=parts[1], options=options, **at)  # type: ignore[arg-type]
        elif kind == "done":
            product, options = self.shop.product(parts[1]), literal_eval(parts[2])
            bought = purchase_reward(product, goal, price_of(product), options)
            state = State("done", asin=parts[1], options=options, bought=bought)
        return page_html(self.shop, goal, session, state)


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Site:
    """A shop of twenty products."""
    made = Site(GOLDEN, "synthetic")
    monkeypatch.setattr(httpx, "request", made.request)
    monkeypatch.setattr(live, "PAUSE_S", 0.01)
    return made


def to_a_product() -> LiveVisit:
    visit = LiveVisit(ADDRESS)
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
def test_episodes_on_a_started_server_are_those_of_its_catalogue(site: Site, mode: str, count: int) -> None:
    settings: dict[str, Any] = {"split": "test", "observation_mode": mode, "max_steps": 9}
    local = make_env("webshop", data=str(GOLDEN), goals="synthetic", **settings)
    live = make_env("webshop", data=ADDRESS, **settings)
    steps, scores = episodes(local, live, 12, count)
    assert steps > 4 * count and len(scores) > count / 3 and len(set(scores)) > 1 and max(scores) == 1.0


def test_a_running_server_keeps_the_contract_of_environments(site: Site) -> None:
    env = make_env("webshop", data=ADDRESS, split="test", server_goals=12)
    tasks = env.unwrapped.tasks()  # type: ignore[attr-defined]
    assert [task.id for task in tasks] == [f"server-{number}" for number in range(12)]
    check_text_env(env, tasks[3])
    env.close()
    assert env.reset(options={"task": "server-3"})[1]["goal"] == 3


def test_a_page_that_fails_is_asked_for_again_and_a_purchase_is_not(site: Site) -> None:
    site.faults += [500, None, httpx.ReadError("gone"), 503]
    visit = to_a_product()
    assert not site.faults
    site.faults += [500, None]
    with pytest.raises(EnvError, match=r"500.* The purchase was not sent again"):
        visit.act("click[buy now]")
    assert len(site.faults) == 1


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
def test_a_purchase_without_one_proper_score_has_no_reward(fault: Any, said: str, site: Site) -> None:
    visit = to_a_product()
    site.faults.append(fault)
    with pytest.raises(EnvError, match=r"127\.0\.0\.1") as caught:
        visit.act("click[buy now]")
    assert said in str(caught.value)
    assert visit.act("click[buy now]").score is not None  # it stayed where it was


def test_a_session_with_another_goal_than_before_is_refused(site: Site) -> None:
    visit = LiveVisit(ADDRESS)
    visit.start(0)
    site.faults.append(f"{HEAD}<button>Next &gt;</button>")
    with pytest.raises(EnvError, match="a different instruction than before"):
        visit.act("search[lamp]")


def test_a_server_that_is_not_there_is_named(site: Site) -> None:
    site.faults += [httpx.ConnectError("nothing answers")] * 99
    with pytest.raises(EnvError, match=f"^{ADDRESS} returned no page for the page "):
        collect.run(TaskSelection("webshop", "test", {"data": ADDRESS}), agent="random")  # and not by 500 episodes


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

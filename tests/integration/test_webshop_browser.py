"""The shop in a real browser, as a person uses it: with links and buttons alone, on a wide screen and on a phone."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from skill_ttrl.envs.webshop.catalogue.catalogue import open_catalogue
from skill_ttrl.envs.webshop.goal import Goal
from tests.web_shop_server import started_shop
from tests.webshop_files import LAMPS, LAMPS_ABOUT, write_catalogue

webdriver = pytest.importorskip("selenium.webdriver", reason="needs selenium (the extra dev)")

from selenium.common.exceptions import StaleElementReferenceException, WebDriverException  # noqa: E402
from selenium.webdriver.chrome.options import Options  # noqa: E402
from selenium.webdriver.chrome.service import Service  # noqa: E402
from selenium.webdriver.support.ui import WebDriverWait  # noqa: E402

GOLDEN = Path(__file__).parents[1] / "golden" / "webshop_episodes"
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
PHONE = {"width": 390, "height": 800, "deviceScaleFactor": 1, "mobile": True}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    chromium = next((found for name in NAMES if (found := shutil.which(name))), None)
    driver = shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("needs Chromium and chromedriver on the PATH (Debian: apt-get install chromium chromium-driver)")
    options = Options()
    options.binary_location = chromium
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--window-size=1200,900"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    with webdriver.Chrome(options=options, service=Service(driver)) as browser:
        browser.set_page_load_timeout(20)
        yield browser


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with started_shop("--env-data", str(GOLDEN), "--goals", "synthetic", "--nouns", "rule") as address:
        yield address


@pytest.fixture
def narrow(browser: Any) -> Iterator[None]:
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", PHONE)
    yield
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def one(browser: Any, selector: str) -> Any:
    return browser.find_element("css selector", selector)


def follow(browser: Any, element: Any) -> None:
    """Click, and wait until another page is there."""
    before = one(browser, "html")
    element.click()
    arrived(browser, before)


def arrived(browser: Any, before: Any) -> None:
    """Wait until another page than that of the element `before` is there as a whole."""
    WebDriverWait(browser, 20).until(lambda _: left_behind(before))
    WebDriverWait(browser, 20).until(lambda _: browser.execute_script("return document.readyState") == "complete")


def left_behind(element: Any) -> bool:
    """True once the element's page is no longer shown.

    Between two pages Chromium names the error otherwise than WebDriver's "stale element", which is all that `staleness_of` knows.
    """
    try:
        element.is_enabled()
    except StaleElementReferenceException:
        return True
    except WebDriverException as error:
        if "does not belong to the document" in str(error.msg):
            return True
        raise
    return False


def press(browser: Any, text: str) -> None:
    follow(browser, browser.find_element("xpath", f"//button[normalize-space()='{text}']"))


def choose(browser: Any, option: str, value: str) -> None:
    links = browser.find_elements("css selector", ".value a")
    follow(browser, next(link for link in links if link.get_attribute("aria-label") == f"{option}: {value}"))


def chosen(browser: Any) -> list[str]:
    return [each.get_attribute("value") for each in browser.find_elements("css selector", "input:checked")]


@pytest.fixture(scope="module")
def wish() -> tuple[int, Goal]:
    """A goal with options, and its number."""
    goals = open_catalogue(GOLDEN).goals("synthetic")
    number = max(range(len(goals)), key=lambda each: len(goals[each].options))
    return number, goals[number]


def test_a_person_searches_opens_chooses_buys_and_sees_the_score(
    browser: Any, address: str, wish: tuple[int, Goal]
) -> None:
    number, goal = wish
    assert isinstance(goal.options, Mapping) and goal.options
    options = goal.options
    browser.get(address)
    one(browser, "#goal").send_keys(str(number))
    press(browser, "Go")
    assert goal.instruction in one(browser, "#instruction-text").text
    one(browser, "#search_input").send_keys(goal.title)
    press(browser, "Search")
    assert "Page 1 (Total results:" in one(browser, "main").text
    follow(browser, browser.find_element("link text", goal.asin))
    assert goal.title in one(browser, "h2").text
    for option, value in options.items():
        choose(browser, option, value)
    assert sorted(chosen(browser)) == sorted(options.values())
    press(browser, "Description")
    press(browser, "< Prev")
    assert sorted(chosen(browser)) == sorted(options.values())
    press(browser, "Buy Now")
    assert one(browser, ".total").text == "1.00" and "Exactly what was asked for." in one(browser, ".score").text
    parts = one(browser, ".parts").text
    assert all(word in parts for word in ("Kind of thing", "Attributes", "Options", "Price", *options.values()))
    browser.back()
    assert sorted(chosen(browser)) == sorted(options.values())
    browser.refresh()
    assert sorted(chosen(browser)) == sorted(options.values())
    assert not [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]


def test_who_chooses_with_the_keyboard_goes_on_where_the_option_stands(browser: Any, tmp_path: Path) -> None:
    """A page that began anew at its top would be a long way back to the fiftieth value, and to the next option."""
    sizes = [{"value": f"size {number}"} for number in range(100)]
    many = {**LAMPS[0], "customization_options": {"lamp size": sizes, "color": [{"value": "red"}]}}
    folder = write_catalogue(tmp_path / "many", [many], LAMPS_ABOUT)
    with started_shop("--env-data", str(folder), "--nouns", "rule") as address:
        browser.get(f"{address}/item_page/fixed_0/{many['asin']}/x/1/{{}}")
        link = browser.find_elements("css selector", ".value a")[50]
        before = one(browser, "html")
        link.send_keys("\n")
        arrived(browser, before)
        assert chosen(browser) == ["size 50"] and browser.execute_script("return scrollY") > 0
        place = browser.find_elements("css selector", ".value")[50].rect["y"] - browser.execute_script("return scrollY")
        assert 0 < place < browser.execute_script("return innerHeight")
        browser.switch_to.active_element.send_keys("\t")
        assert browser.switch_to.active_element.get_attribute("aria-label") == "lamp size: size 50"
        browser.get(f"{address}/no/such/page")
        left, right = browser.execute_script(
            "const {left, right} = document.querySelector('main').getBoundingClientRect(); return [left, innerWidth - right]"
        )
        assert abs(left - right) < 20, "in the middle, as the other pages"


def test_a_program_that_presses_the_radio_button_chooses_too(
    browser: Any, address: str, wish: tuple[int, Goal]
) -> None:
    browser.get(f"{address}/item_page/abc/{wish[1].asin}/x/1/{{}}")
    radio = one(browser, 'input[type="radio"]')
    value = radio.get_attribute("value")
    before = one(browser, "html")
    browser.execute_script("arguments[0].click()", radio)
    arrived(browser, before)
    assert chosen(browser) == [value]


@pytest.mark.usefixtures("narrow")
def test_on_a_phone_no_page_is_wider_than_the_screen(browser: Any, address: str, wish: tuple[int, Goal]) -> None:
    visit, asin = f"fixed_{wish[0]}", wish[1].asin
    for path in (
        *("/", f"/{visit}", f"/search_results/{visit}/lamp/1", f"/item_page/{visit}/{asin}/lamp/1/{{}}"),
        *(f"/item_sub_page/{visit}/{asin}/lamp/1/Features/{{}}", f"/done/{visit}/{asin}/{{}}", "/no/such/page"),
    ):
        browser.get(address + path)
        wide, screen = browser.execute_script("return [document.documentElement.scrollWidth, innerWidth]")
        assert (wide, screen) == (390, 390), path
        out = browser.execute_script(
            "return [...document.querySelectorAll('a, button, h2, h4, p, td')].filter(e => e.checkVisibility() && "
            "e.getBoundingClientRect().right > 391).map(e => e.outerHTML)"
        )
        assert out == [], path
    follow(browser, one(browser, ".home"))
    assert one(browser, "h1").text == "WebShop"


def test_the_page_is_dark_where_the_person_likes_it_dark(browser: Any, address: str) -> None:
    paper = []
    for scheme in ("light", "dark"):
        browser.execute_cdp_cmd(
            "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        )
        browser.get(address)
        paper.append(browser.execute_script("return getComputedStyle(document.body).backgroundColor"))
    assert paper == ["rgb(251, 250, 247)", "rgb(23, 23, 21)"]

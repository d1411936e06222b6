"""The page in a browser: it draws, it moves, it fetches nothing and cuts nothing."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from moetraffic.report.page import Content, document
from moetraffic.trace import Trace

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is missing")

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
pytestmark = [
    pytest.mark.skipif(
        not (BROWSER and DRIVER), reason="there is no chromium with a chromedriver"
    ),
    pytest.mark.timeout(120),
]

QUIET = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update"),
    *("--disable-sync", "--disable-dev-shm-usage", "--window-size=1280,900"),
)

CUT = """
const cut = [];
for (const plot of document.querySelectorAll(".plot")) {
  const box = plot.getBoundingClientRect();
  const texts = ".xtitle, .ytitle, .legendtext, .xtick, .ytick";
  for (const text of plot.querySelectorAll(texts)) {
    const r = text.getBoundingClientRect();
    if (r.width && (r.left < box.left - 2 || r.right > box.right + 2 ||
        r.top < box.top - 2 || r.bottom > box.bottom + 2)) cut.push(text.textContent);
  }
}
return cut;
"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for each in QUIET:
        options.add_argument(each)
    options.add_argument(f"--user-data-dir={tmp_path_factory.mktemp('profile')}")
    options.set_capability(
        "goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"}
    )
    driver = webdriver.Chrome(
        options=options, service=webdriver.ChromeService(executable_path=DRIVER)
    )
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def opened(
    browser: Any, shown: Content, tmp_path_factory: pytest.TempPathFactory
) -> Any:
    page: Path = tmp_path_factory.mktemp("page") / "run.html"
    page.write_text(document(shown), encoding="utf-8")
    browser.get_log("performance")
    browser.get(page.as_uri())
    wait(browser, "return !document.querySelector('.figure:not([data-drawn])')")
    return browser


def wait(browser: Any, condition: str, *arguments: object) -> None:
    deadline = time.monotonic() + 60
    while not browser.execute_script(condition, *arguments):
        assert time.monotonic() < deadline, condition
        time.sleep(0.05)


def test_all_figures_are_drawn_without_an_error_or_a_request(opened: Any) -> None:
    assert opened.execute_script("return document.querySelectorAll('.figure').length")
    errors = [e for e in opened.get_log("browser") if e["level"] == "SEVERE"]
    assert errors == []
    events = [
        json.loads(e["message"])["message"] for e in opened.get_log("performance")
    ]
    asked = {
        e["params"]["request"]["url"].split(":")[0]
        for e in events
        if e["method"] == "Network.requestWillBeSent"
        # the browser's own first tab is no part of the page
        and not e["params"]["documentURL"].startswith("chrome")
    }
    # the page itself, and pictures that it makes
    assert "file" in asked
    assert asked <= {"file", "data", "blob"}
    assert opened.execute_script("return window.hostile") is None


MATRIX = (
    "return document.querySelector('#figure-matrices .plot').data[0].z.map(r => [...r])"
)


def test_the_slider_moves_the_matrix(opened: Any, golden: Trace) -> None:
    before = opened.execute_script(MATRIX)
    layer = golden.layers[0]
    for at, phase in ((3, "dispatch"), (5, "dispatch"), (7, "dispatch")):
        opened.execute_script(
            """
            const card = document.querySelector("#figure-matrices");
            const kind = card.querySelectorAll("select")[1];
            kind.value = arguments[1];
            const slider = card.querySelector("input[type=range]");
            slider.value = arguments[0];
            slider.dispatchEvent(new Event("input"));
            """,
            at,
            f"wire: {phase}",
        )
        iteration = int(golden.iterations[at])
        wait(
            opened,
            "return document.querySelector('#figure-matrices .aside').textContent"
            f".startsWith('wire: {phase}, layer {layer}, iteration {iteration}:')",
        )
        told = golden.matrix(iteration, layer, phase, of="wire").values
        wait(opened, MATRIX.replace("return", "return !!"))
        assert np.array_equal(opened.execute_script(MATRIX), told)
    assert not np.array_equal(before, opened.execute_script(MATRIX))


def test_a_choice_changes_the_view(opened: Any) -> None:
    titles = opened.execute_script(
        """
        const card = document.querySelector("#figure-evenness");
        const select = card.querySelectorAll("select")[1];
        const axis = () => card.querySelector(".ytitle").textContent;
        const before = axis();
        select.value = "Gini";
        select.dispatchEvent(new Event("change"));
        return [before, axis()];
        """
    )
    assert titles == ["entropy (1: even)", "Gini (0: even)"]


def test_downloads_hold_the_data(opened: Any, golden: Trace) -> None:
    def saved(card: str, at: int) -> list[list[str]]:
        opened.execute_script(
            """
            window.saved = null;
            URL.createObjectURL = (blob) => {
              blob.text().then((text) => { window.saved = text; });
              return "#";
            };
            const buttons = arguments[0] + " .downloads button";
            document.querySelectorAll(buttons)[arguments[1]].click();
            """,
            card,
            at,
        )
        wait(opened, "return window.saved")
        text = opened.execute_script("return window.saved")
        return [line.split(",") for line in text.splitlines()]

    head, *rows = saved("#figure-matrices", 1)
    assert head[0] == "iteration"
    (experts,) = {site.experts for site in golden.sites if site.experts}
    width = experts if head[2] == "expert" else golden.meta.world  # demand, or wire
    assert len(rows) == len(golden.iterations) * golden.meta.world * width
    head, *rows = saved("#figure-evenness", 0)
    assert head[:3] == ["quantity", "measure", "series"]
    assert head[3:] == ["iteration", "value (dimensionless)"]
    names = {row[1] for row in rows}
    assert {"entropy", "Gini"} <= names
    head, *rows = saved("#figure-loads", 0)
    assert head == ["layer", "iteration", "expert or rank", "share [%]"]
    total = sum(float(row[3]) for row in rows)
    expected = 100 * len(golden.iterations) * len(golden.layers)
    assert total == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("width", [1280, 375])
def test_nothing_is_cut_at_any_width(opened: Any, width: int) -> None:
    opened.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 641},
    )
    opened.refresh()
    wait(opened, "return !document.querySelector('.figure:not([data-drawn])')")
    wide = opened.execute_script("return document.documentElement.scrollWidth")
    assert wide <= width
    assert opened.execute_script(CUT) == []


def test_the_navigation_stays_and_names_the_section(opened: Any) -> None:
    opened.execute_script("document.querySelector('#about').scrollIntoView()")
    wait(opened, "return document.querySelector('nav').getBoundingClientRect().top < 1")
    wait(opened, "return document.querySelector('nav a[aria-current]')")


def test_the_page_is_dark_where_the_screen_is(opened: Any) -> None:
    paper = "return document.querySelector('.plot').layout.paper_bgcolor"
    found = {}
    for mode in ("light", "dark"):
        opened.execute_cdp_cmd(
            "Emulation.setEmulatedMedia",
            {"features": [{"name": "prefers-color-scheme", "value": mode}]},
        )
        # also without another load of the page
        expected = "#fff" if mode == "light" else "#1d2024"
        wait(opened, f"{paper} === {expected!r}")
        found[mode] = opened.execute_script(
            "return getComputedStyle(document.body).backgroundColor"
        )
    assert found["light"] != found["dark"]


def test_cells_of_a_small_matrix_have_numbers(opened: Any) -> None:
    cell = "#figure-matrices .heatmap-label, #figure-matrices .hm text"
    wait(opened, f"return document.querySelector({cell!r})")

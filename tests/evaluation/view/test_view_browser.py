"""The viewer in a real browser: from the list of runs to tokens and comparisons, live, and with planted scripts."""

import re
import shutil
import signal
import subprocess
import sys

import pytest
from view_kit import ODD_FOLDER, PLANTED, make_runs, rollout

from chimera.run.directory import Run

pytestmark = pytest.mark.whole

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return make_runs(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def address(runs):
    """The address that the command prints first; at the end the command is interrupted."""
    command = [sys.executable, "-m", "chimera", "view", "--runs-dir", str(runs)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        yield server.stdout.readline().strip()
        server.send_signal(signal.SIGINT)
        _, errors = server.communicate()
        assert (server.returncode, errors) == (0, "")


@pytest.fixture(scope="module")
def browser():
    if CHROMIUM is None:
        pytest.skip("no Chromium is installed (apt install chromium)")
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        # Without its sandbox, because it has none in containers; it opens the test's own pages only.
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(params=[("light", 1280), ("dark", 390)], ids=["light-1280", "dark-390"])
def page(request, browser, address):
    """A page whose browser tells every error, and every request to another host."""
    scheme, width = request.param
    context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 900})
    context.set_default_timeout(240_000)
    page, wrong = context.new_page(), []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda message: wrong.append(message.text) if message.type in ("error", "warning") else None)
    page.on("dialog", lambda dialog: wrong.append(dialog.message))
    page.on(
        "request", lambda asked: None if asked.url.startswith(address.partition("?")[0]) else wrong.append(asked.url)
    )
    page.goto(address)
    yield page
    context.close()
    assert wrong == []


def follow(page, selector):
    """Click what leads to another page, and wait until its script has run."""
    with page.expect_navigation():
        page.locator(selector).first.click()


def check(page):
    """The page fits the window, and nothing that was planted has run."""
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.evaluate("window.planted") is None
    assert page.locator("main img, main script").count() == 0


def test_from_the_runs_to_tokens_and_comparisons(page):
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/", page.url)
    assert ODD_FOLDER in page.inner_text("main")
    check(page)
    follow(page, "text=first")
    assert page.locator(".chart polyline").count() > 3
    check(page)
    follow(page, "#stages >> text=gather")
    assert page.locator("tbody tr").count() == 3
    assert PLANTED in page.inner_text("main")
    check(page)
    with page.expect_navigation(url=re.compile("failure=vetoed")):
        page.select_option("select[name=failure]", "vetoed")  # Chosen at once, without a button.
    follow(page, "tbody th a")
    assert page.inner_text("h1") == PLANTED
    check(page)
    follow(page, "text=previous")
    assert "ro-000000000001" in page.url
    token = page.locator(".tokens span.up").first
    assert token.is_visible()
    assert token.evaluate("one => getComputedStyle(one).backgroundColor") != "rgba(0, 0, 0, 0)"
    check(page)
    page.click("text=About it, and other rollouts of this task (2)")
    follow(page, "text=side by side")
    assert page.locator(".pair del").first.is_visible()
    check(page)
    follow(page, "text=Chimera")
    for name in ("first", "second"):
        page.check(f"input[value={name}]")
    follow(page, "text=Compare two chosen runs")
    assert page.inner_text("h1") in ("first and second", "second and first")
    check(page)


@pytest.mark.parametrize("page", [("light", 1280)], indirect=True, ids=["light-1280"])
def test_an_open_page_shows_what_the_run_records(page, runs):
    follow(page, "text=second")
    row = page.locator("#stages tbody tr", has_text="gather")
    before = int(row.locator("td").first.inner_text())
    with Run(runs / "second").own() as run:
        number = 0x100 + before
        run.append_rollout(rollout(number, "gather", f"t-{number}").dump(), phase="gather")
    row.locator("td").first.get_by_text(str(before + 1), exact=True).wait_for()


def test_a_stranger_is_shown_nothing(browser, address):
    page = browser.new_context().new_page()
    answer = page.goto(address.partition("?")[0])
    assert answer.status == 401
    assert "first" not in page.content()

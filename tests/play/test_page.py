"""The page of `anode play` in a real browser."""

import shutil
import threading
import time

import pytest

from anode.play.server import address, listen, serve

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
if BROWSER is None:
    pytest.skip("needs Chromium", allow_module_level=True)
sync_playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright").sync_playwright

SECONDS = 60
"""How long to wait at most for what should happen soon."""
SMALL = "#data=moons&width=8"
TOO_WIDE = """() => {
  const seen = [...document.body.querySelectorAll("*")].filter((e) => e.getClientRects().length);
  const isBlock = (e) => e.clientWidth > 1 && getComputedStyle(e).display !== "inline";
  const isCut = (e) => isBlock(e) && e.scrollWidth > e.clientWidth + 1;
  const isWide = (e) => e.getBoundingClientRect().right > innerWidth + 1 || isCut(e);
  return seen.filter(isWide).map((e) => `${e.tagName} ${e.id} ${e.className}`);
}"""


@pytest.fixture(scope="module")
def server():
    """The address of a running server."""
    with listen(0) as listening:
        running = serve(listening)
        thread = threading.Thread(target=running.run, kwargs={"sockets": [listening]})
        thread.start()
        yield address(listening)
        running.should_exit = True
        thread.join()


@pytest.fixture(scope="module")
def browser():
    with sync_playwright() as driver:
        launched = driver.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.fixture
def open_page(server, browser):
    """Opens the page, and fails if anything is logged as an error on it."""
    contexts, errors = [], []

    def open_page(link=SMALL, before=lambda page: None, **options):
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(1000 * SECONDS)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)
        before(page)
        page.goto(server + link)
        wait(page, lambda: iterations(page) >= 0)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert errors == []


def wait(page, condition):
    """Wait until a condition holds. The page's policy does not let playwright watch for it within the page."""
    end = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        page.wait_for_timeout(30)


def iterations(page, number=1):
    return int(page.get_attribute(f"#model{number}", "data-iterations") or -1)


def loss(page, number):
    return float(page.get_attribute(f"#model{number}", "data-loss") or "nan")


def shown(page, number, name="plane"):
    """A canvas as it is now."""
    return page.locator(f"#model{number} .{name}").screenshot()


def test_on_the_ring_the_loss_of_the_anode_falls_below_a_tenth_of_the_nodes(open_page):
    page = open_page("")
    untrained = [shown(page, number) for number in (0, 1)]
    page.keyboard.press("Space")
    wait(page, lambda: iterations(page) > 100 and loss(page, 1) < loss(page, 0) / 10)
    page.keyboard.press("Space")
    wait(page, lambda: page.inner_text("#play") == "Play")
    both = page.eval_on_selector_all("[data-iterations]", "models => models.map((model) => model.dataset.iterations)")
    assert both[0] == both[1], both  # read at once, as a last picture may still arrive
    assert [shown(page, number) for number in (0, 1)] != untrained
    wait(page, lambda: "times lower" in page.inner_text("#verdict"))


def test_a_step_is_an_epoch_and_a_reset_begins_again(open_page):
    page = open_page()
    page.click("#step")
    wait(page, lambda: iterations(page) == 15)
    page.keyboard.press("s")
    wait(page, lambda: iterations(page) == 30)
    page.click("#reset")
    wait(page, lambda: iterations(page) == 0)


def test_dragging_p_makes_a_model_of_more_dimensions_and_the_link_keeps_it(open_page):
    page = open_page()
    box = page.locator("#p").bounding_box()
    page.mouse.move(box["x"] + 10, box["y"] + box["height"] / 2)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2, steps=5)
    page.mouse.up()
    wait(page, lambda: page.get_attribute("#model1", "data-p") == "3")
    assert page.inner_text("#p-value") == "3"
    assert "p=3" in page.url
    other = open_page(page.url[page.url.index("#") :])
    wait(other, lambda: other.get_attribute("#model1", "data-p") == "3")
    other.keyboard.press("[")
    wait(other, lambda: other.get_attribute("#model1", "data-p") == "2")


def test_painted_points_are_trained_on_and_survive_a_reload(open_page):
    page = open_page()
    page.check("[name=data][value=own]", force=True)
    page.click("#clear")
    assert page.inner_text("#hint") == "Paint points of both colours to train."
    box = page.locator("#model0 .plane").bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    for key, side in (("", -80), ("x", 80)):  # the other brush
        if key:
            page.keyboard.press(key)
        page.mouse.move(x + side, y - 60)
        page.mouse.down()
        page.mouse.move(x + side, y + 60, steps=8)
        page.mouse.up()
    wait(page, lambda: "points=" in page.url)
    page.keyboard.press("Space")
    wait(page, lambda: iterations(page) > 100 and loss(page, 1) < 0.05)
    page.keyboard.press("Space")
    wait(page, lambda: page.inner_text("#play") == "Play")
    made = iterations(page)
    page.reload()
    wait(page, lambda: iterations(page) >= made)
    assert page.is_checked("[name=data][value=own]")


def test_the_keyboard_paints_too(open_page):
    page = open_page()
    page.keyboard.press("5")
    page.click("#clear")
    for brush in ("", "x"):
        if brush:
            page.keyboard.press(brush)
        page.focus("#model0 .plane")
        for key in ("ArrowLeft", "ArrowUp", "Enter"):
            page.keyboard.press(key)
    wait(page, lambda: "points=" in page.url)
    wait(page, lambda: iterations(page) == 0)
    page.keyboard.press("s")
    wait(page, lambda: iterations(page) == 1)  # six points are one batch


def test_a_file_of_points_is_read_in_the_browser(open_page):
    page = open_page()
    rows = "x,y,class\n" + "".join(f"{i},{100 * (i % 2)},{'ab'[i % 2]}\n" for i in range(100))
    page.set_input_files("#csv", {"name": "points.csv", "mimeType": "text/csv", "buffer": rows.encode()})
    wait(page, lambda: page.inner_text("#hint") == "100 points from points.csv, scaled to fit the plane.")
    page.keyboard.press("s")
    wait(page, lambda: iterations(page) == 2)
    page.set_input_files("#csv", {"name": "wrong.csv", "mimeType": "text/csv", "buffer": b"1,2,a\n1,x,b\n"})
    wait(page, lambda: page.inner_text("#hint").startswith("Row 2 needs two numbers and a class"))


def test_a_lost_connection_is_made_again_and_finds_the_session(open_page):
    connections = []

    def between(page):
        page.route_web_socket("**/live", lambda route: connections.append((route, route.connect_to_server())))

    page = open_page(before=between)
    page.keyboard.press("Space")
    wait(page, lambda: iterations(page) > 30)
    before = iterations(page)
    route, behind = connections[0]
    route.close(code=1001)  # first, or what the page still sends would go to a closed connection
    behind.close()
    wait(page, lambda: len(connections) == 2)
    wait(page, lambda: page.inner_text("#status") == "connected")
    wait(page, lambda: iterations(page) > before + 100)
    assert page.inner_text("#play") == "Pause"


def test_a_reloaded_page_goes_on_where_it_was(open_page):
    page = open_page()
    page.keyboard.press("Space")
    wait(page, lambda: iterations(page) > 30)
    before = iterations(page)
    page.reload()
    wait(page, lambda: iterations(page) > before)
    assert page.inner_text("#play") == "Pause"


def test_the_flow_moves_and_the_point_under_the_pointer_is_told(open_page):
    page = open_page()
    first = shown(page, 0, "features")
    wait(page, lambda: shown(page, 0, "features") != first)
    page.locator("#model1 .plane").hover()
    wait(page, lambda: "→" in page.inner_text("#model1 .where"))
    page.locator("#t").focus()
    page.keyboard.press("Home")
    wait(page, lambda: page.inner_text("#t-value") == "0.00")
    assert page.get_attribute("#animate", "aria-pressed") == "false"


def test_the_features_of_an_anode_turn_by_mouse_and_keys(open_page):
    page = open_page(reduced_motion="reduce")
    views = [shown(page, 1, "features")]
    box = page.locator("#model1 .features").bounding_box()
    page.mouse.move(box["x"] + 100, box["y"] + 100)
    page.mouse.down()
    page.mouse.move(box["x"] + 160, box["y"] + 120, steps=3)
    page.mouse.up()
    for act in (
        lambda: None,
        lambda: page.keyboard.press("ArrowLeft"),
        lambda: page.click("#model1 [data-zoom='1.25']"),
    ):
        page.focus("#model1 .features")
        act()
        page.mouse.move(5, 5)
        wait(page, lambda: shown(page, 1, "features") not in views)
        views.append(shown(page, 1, "features"))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_is_wider_than_the_page(open_page, scheme):
    page = open_page(color_scheme=scheme, has_touch=True)
    assert page.get_attribute("html", "data-theme") == scheme
    page.keyboard.press("5")  # with all controls
    for width in (360, 800, 1280):
        page.set_viewport_size({"width": width, "height": 800})
        wait(page, lambda width=width: page.evaluate("innerWidth") == width)
        assert page.evaluate(TOO_WIDE) == []


def test_keys_open_the_help_and_change_the_theme(open_page):
    page = open_page(color_scheme="light")
    page.keyboard.press("?")
    assert page.is_visible("#about")
    page.keyboard.press("Escape")
    wait(page, lambda: not page.is_visible("#about"))
    page.keyboard.press("t")
    wait(page, lambda: page.get_attribute("html", "data-theme") == "dark")


def test_a_message_that_is_too_long_ends_the_connection_before_it_is_read(open_page):
    page = open_page()
    closed = page.evaluate(
        """() => new Promise((done) => {
          const socket = new WebSocket(`ws://${location.host}/live`);
          socket.onopen = () => socket.send("x".repeat(1e6));
          socket.onclose = (event) => done(event.code);
        })"""
    )
    assert closed in (1006, 1009)  # the connection may be gone before the browser has read why

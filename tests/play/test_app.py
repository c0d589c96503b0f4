import json
import re
import socket
from contextlib import contextmanager

import pytest
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from anode.models.fields import ACTIVATIONS
from anode.play.app import FULL, LONGEST, PAGE, TAKEN_OVER, application
from anode.play.pictures import HIGH, WIDE
from anode.play.server import address, listen, serve
from anode.play.sessions import Sessions, TooManyError
from anode.play.settings import DATA, OWN, POINTS, Settings
from helpers.pages import unpacked

HOST = "127.0.0.1:8000"
SMALL = {"data": "moons", "width": 8}


@contextmanager
def serving(**options):
    """A client of the server, and the server's sessions."""
    sessions = Sessions(**options)
    with TestClient(application(8000, sessions), base_url=f"http://{HOST}") as client:
        yield client, sessions
    assert len(sessions) == 0  # the end closes all


@pytest.fixture
def client():
    with serving() as (client, _):
        yield client


def connect(client, host=HOST, origin=f"http://{HOST}"):
    headers = {"host": host} | ({"origin": origin} if origin else {})
    return client.websocket_connect("/live", headers=headers)


def opened(page, **asked):
    page.send_json({"type": "open", "settings": SMALL, **asked})
    return page.receive_json()


def picture(page):
    found = unpacked(page.receive_bytes())[0]
    page.send_json({"type": "drawn"})
    return found


def picture_with(page, iterations):
    """The first picture after so many iterations."""
    for _ in range(100):
        found = picture(page)
        if found["models"][1]["iterations"] >= iterations:
            return found
    raise AssertionError("the picture did not come")


def test_the_page_and_its_files_are_served_with_headers_that_keep_it_to_itself(client):
    page = client.get("/")
    assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'; script-src 'self'" in policy
    assert f"connect-src 'self' ws://{HOST}" in policy
    assert "unsafe" not in policy
    assert page.headers["x-content-type-options"] == "nosniff"
    for name in PAGE:
        assert client.get(f"/page/{name}").content == PAGE[name][0]


def test_every_file_that_the_page_names_is_there_and_none_is_of_elsewhere():
    named = {
        name
        for content, _ in PAGE.values()
        for name in re.findall(r'(?:from "\./|(?:href|src)="/page/)([\w.]+)"', content.decode())
    }
    assert named | {"index.html"} == set(PAGE)
    everything = b"".join(content for content, _ in PAGE.values()).decode().replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"https?://|style=|\bon\w+=|innerHTML|eval\(", everything)


@pytest.mark.parametrize(
    "path", ["/page/../app.py", "/page/%2e%2e/app.py", "/page/..%2fapp.py", "/page/x", "/etc/passwd"]
)
def test_no_other_file_is_served(client, path):
    assert client.get(path).status_code == 404


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8000", "127.0.0.1", "127.0.0.1:8001", "0.0.0.0:8000", ""]
)
def test_another_host_is_refused(client, host):
    assert client.get("/", headers={"host": host}).status_code == 403
    with pytest.raises(WebSocketDisconnect), connect(client, host, f"http://{host}"):
        pass


@pytest.mark.parametrize("origin", ["http://evil.example", f"https://{HOST}", "http://localhost:8000", "null", ""])
def test_another_origin_is_refused(client, origin):
    with pytest.raises(WebSocketDisconnect), connect(client, origin=origin):
        pass
    if origin:
        assert client.get("/", headers={"origin": origin}).status_code == 403


def test_localhost_is_this_machine_too(client):
    assert client.get("/", headers={"host": "localhost:8000"}).status_code == 200
    with connect(client, "localhost:8000", "http://localhost:8000") as page:
        assert opened(page)["type"] == "opened"


def test_a_page_opens_a_session_plays_and_pauses(client):
    with connect(client) as page:
        said = opened(page)
        assert (said["type"], said["resumed"], said["settings"]["width"]) == ("opened", False, 8)
        assert picture(page)["models"][1]["iterations"] == 0
        page.send_json({"type": "play"})
        assert picture_with(page, 60)["playing"]
        page.send_json({"type": "pause"})
        while picture(page)["playing"]:
            pass


def test_no_picture_is_sent_before_the_last_one_was_drawn(client):
    with connect(client) as page:
        opened(page)
        page.receive_bytes()
        page.send_json({"type": "play"})
        page.send_json({"type": "change", "settings": {"p": 9}})  # is answered at once
        assert page.receive_json()["type"] == "unfit"
        page.send_json({"type": "drawn"})
        page.receive_bytes()


def test_a_page_that_comes_back_finds_its_session_as_it_was(client):
    with connect(client) as page:
        key = opened(page)["session"]
        picture(page)
        page.send_json({"type": "step"})
        picture_with(page, 15)
    with connect(client) as page:
        said = opened(page, session=key)
        assert (said["session"], said["resumed"]) == (key, True)
        assert picture(page)["models"][1]["iterations"] == 15


def test_a_second_page_takes_a_session_over_and_the_first_hears_of_it(client):
    with connect(client) as first:
        key = opened(first)["session"]
        with connect(client) as second:
            assert opened(second, session=key)["resumed"]
            picture(second)
            while (heard := first.receive())["type"] != "websocket.close":  # a picture may come first
                pass
            assert heard["code"] == 4001
            second.send_json({"type": "step"})
            picture_with(second, 15)


@pytest.mark.parametrize(
    "message",
    ["{", "[]", "1", "[" * 100_000, '{"type": "open", "settings": {"data": "/etc/passwd"}}', '{"settings": []}'],
    ids=lambda message: message[:40],
)
def test_a_message_that_is_none_ends_the_connection_with_a_word(client, message):
    with connect(client) as page:
        page.send_text(message)
        assert page.receive_json()["type"] == "refused"
        with pytest.raises(WebSocketDisconnect):
            page.receive_json()


@pytest.mark.parametrize("message", [{"type": "read"}, {"type": ["play"]}, {}], ids=repr)
def test_an_unknown_command_ends_the_connection_with_a_word(client, message):
    with connect(client) as page:
        opened(page)
        picture(page)
        page.send_json(message)
        assert page.receive_json()["type"] == "refused"


def test_messages_are_bounded(client):
    with connect(client) as page:
        page.send_text(json.dumps({"type": "open", "points": "x" * LONGEST}))
        assert "at most" in page.receive_json()["text"]
    with connect(client) as page:
        page.send_bytes(b"{}")
        assert page.receive_json()["type"] == "refused"


def test_two_thousand_points_fit_into_a_message():
    points = [[-2.3999 + i / 1e4, 1.7999, i % 2] for i in range(2000)]
    assert len(json.dumps({"type": "change", "settings": SMALL, "points": points})) < LONGEST


def test_pages_are_bounded_and_say_so():
    with serving(most=1) as (client, _), connect(client) as first:
        opened(first)
        with connect(client) as second:
            assert opened(second) == {
                "type": "refused",
                "text": "1 pages are open already; close one of them and reload this one",
            }


def test_a_session_that_was_left_makes_room_and_is_closed_after_a_while():
    sessions = Sessions(most=2, kept=0.0)
    settings = Settings(**SMALL)
    first, second = sessions.open(settings, None), sessions.open(settings, None)
    with pytest.raises(TooManyError):
        sessions.open(settings, None)
    sessions.leave(first)
    third = sessions.open(settings, None)
    assert sessions.find(first.key) is None
    assert sessions.find(second.key) is second
    sessions.leave(third)
    assert sessions.find(third.key) is third  # and is watched again
    sessions.tidy()
    assert len(sessions) == 2
    sessions.leave(third)
    sessions.tidy()
    assert len(sessions) == 1
    sessions.close()


def test_the_server_listens_on_this_machine_alone():
    with listen(0) as listening:
        host, port = listening.getsockname()
        assert host == "127.0.0.1"
        assert address(listening) == f"http://127.0.0.1:{port}/"
        with pytest.raises(ValueError, match=f"^port: {port} is used by another program"):
            listen(port)
        assert serve(listening).config.ws_max_size == LONGEST


@pytest.mark.parametrize("port", [-1, 65536])
def test_a_port_that_is_none_is_refused(port):
    with pytest.raises(ValueError, match=r"^port: takes a number from 0 to 65535"):
        listen(port)


def test_an_error_of_the_system_stays_what_it_is(monkeypatch):
    def refuse(*_):
        raise OSError(99, "Cannot assign requested address")

    monkeypatch.setattr(socket.socket, "bind", refuse)
    with pytest.raises(OSError, match="Cannot assign"):
        listen(0)


def test_the_page_has_the_same_defaults_and_limits_as_the_server():
    def of(name, file):
        return re.search(rf"{name} = (.+?);", PAGE[file][0].decode())[1]

    assert json.loads(re.sub(r"(\w+):", r'"\1":', of("DEFAULTS", "settings.js"))) == vars(Settings())
    assert json.loads(of("ACTIVATIONS", "settings.js")) == list(ACTIVATIONS)
    assert json.loads(of("DATA", "settings.js")) == [*DATA, OWN]
    assert int(of("MOST_POINTS", "settings.js")) == POINTS
    assert json.loads(of("REACH", "settings.js")) == [WIDE, HIGH]
    assert of("TAKEN_OVER", "link.js") == f"{TAKEN_OVER}, FULL = {FULL}, REFUSED = 1008"
    steps = re.search(r"STEPS = \{(.+?)\n\}", PAGE["settings.js"][0].decode(), re.DOTALL)[1]
    for name, values in re.findall(r"(\w+): (\[.+?\])", steps):
        for value in json.loads(values):
            Settings(**{name: value})

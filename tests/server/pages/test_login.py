"""A browser gets a session for the token, and nobody can try many tokens."""

from __future__ import annotations

import pytest

from ondisk.server.pages.login import COOKIE, LASTS, PER, TRIES, Sessions, local_path

TOKEN = b"0123456789abcdef"
HOST = "192.0.2.1"


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_session_is_opened_by_the_token_only_and_ends():
    clock = Clock()
    sessions = Sessions(TOKEN, clock)
    assert sessions.begin("0123456789abcdeF", HOST) is None
    assert sessions.begin("ä\udc80", HOST) is None
    session = sessions.begin(f" {TOKEN.decode()}\n", HOST)
    assert session is not None
    assert TOKEN.decode() not in session
    cookie = f"a=b; {COOKIE}={session}"
    assert sessions.is_open(cookie)
    assert not sessions.is_open(f"{COOKIE}={session[:-1]}")
    assert not sessions.is_open(f"{COOKIE}={TOKEN.decode()}")
    assert not sessions.is_open("")
    assert not sessions.is_open('"=;\0')
    clock.now = LASTS
    assert not sessions.is_open(cookie)
    other = sessions.begin(TOKEN.decode(), HOST)
    sessions.end(f"{COOKIE}={other}")
    assert not sessions.is_open(f"{COOKIE}={other}")


def test_an_address_may_send_ten_wrong_tokens_a_minute():
    clock = Clock()
    sessions = Sessions(TOKEN, clock)

    def try_wrong(address):
        return sessions.may_try(address) and sessions.begin("wrong", address) is None

    assert all(sessions.begin(TOKEN.decode(), HOST) for _ in range(TRIES + 1))
    assert [try_wrong(HOST) for _ in range(TRIES + 1)] == [True] * TRIES + [False]
    assert sessions.may_try("192.0.2.2")
    clock.now = PER
    assert sessions.may_try(HOST)
    assert [try_wrong(f"2001:db8::{n:x}") for n in range(TRIES + 1)] == [True] * TRIES + [False]
    assert sessions.may_try("2001:db8:0:1::1")


@pytest.mark.parametrize(
    "path", ["//evil.example", "/\\evil.example", "https://evil.example/", "evil", "", "/a\r\nSet-Cookie: x=y", "/a\\b"]
)
def test_after_the_login_a_browser_stays_on_this_server(path):
    assert local_path(path) == "/"
    assert local_path("/dataset/x?match=a%3A%20b") == "/dataset/x?match=a%3A%20b"

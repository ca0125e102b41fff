"""Who may see pages of a server with a token: a browser gets a session for it, and keeps no more than a random id."""

from __future__ import annotations

import hmac
import ipaddress
import secrets
import time
from collections import deque
from collections.abc import Callable
from http.cookies import CookieError, SimpleCookie

COOKIE = "ondisk_session"
LASTS = 12 * 3600  # seconds after which a browser must send the token again
TRIES, PER = 10, 60.0  # how often an address may send a wrong token in so many seconds
_MOST_SESSIONS, _MOST_ADDRESSES = 10_000, 10_000


class Sessions:
    """The sessions of browsers, in memory: they end with the server. `token`: what opens one."""

    def __init__(self, token: bytes, clock: Callable[[], float] = time.monotonic) -> None:
        self._token = token
        self._clock = clock
        self._ends: dict[str, float] = {}
        self._tries: dict[str, deque[float]] = {}

    def may_try(self, address: str) -> bool:
        network = _network(address)
        tries = self._tries.pop(network, deque())
        while tries and tries[0] <= self._clock() - PER:
            tries.popleft()
        self._tries[network] = tries  # the last one now
        while len(self._tries) > _MOST_ADDRESSES:
            del self._tries[next(iter(self._tries))]
        return len(tries) < TRIES

    def begin(self, given: str, address: str) -> str | None:
        """Return the id of a new session; None if the token is wrong, which counts as a try of the address."""
        if not hmac.compare_digest(given.strip().encode(errors="replace"), self._token):
            self._tries.setdefault(_network(address), deque()).append(self._clock())
            return None
        while len(self._ends) >= _MOST_SESSIONS:
            del self._ends[next(iter(self._ends))]
        session = secrets.token_urlsafe(32)
        self._ends[session] = self._clock() + LASTS
        return session

    def is_open(self, cookies: str) -> bool:
        session = _session_of(cookies)
        if session not in self._ends:
            return False
        if self._ends[session] <= self._clock():
            del self._ends[session]
            return False
        return True

    def end(self, cookies: str) -> None:
        self._ends.pop(_session_of(cookies), None)


def _session_of(cookies: str) -> str:
    try:
        found = SimpleCookie(cookies).get(COOKIE)
    except CookieError:
        return ""
    return "" if found is None else found.value


def _network(address: str) -> str:
    """Return what has one limit for tries: an address, or the 2⁶⁴ addresses that one host of IPv6 has."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    return str(ipaddress.ip_network((found, 64), strict=False)) if found.version == 6 else str(found)


def local_path(path: str) -> str:
    """Return where a browser goes after the login: a path of this server, whatever the address of the page says."""
    is_local = path.startswith("/") and not path.startswith(("//", "/\\")) and path.isprintable()
    return path if is_local and "\\" not in path else "/"

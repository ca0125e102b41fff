"""What sends requests to one host: through a proxy if the environment names one, and with a limit for each answer."""

from __future__ import annotations

import http.client
import io
import time
from typing import Any, cast
from urllib.parse import unquote
from urllib.request import getproxies, proxy_bypass

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import LocationValueError
from urllib3.util import Url, make_headers, parse_url

from ondisk.errors import InvalidInput

LONGEST_HEAD, LONGEST = 60.0, 3600.0
"""Seconds from a request to the end of the head of its answer, and to its end."""

_WHERE = "It is in the environment: http_proxy, https_proxy or all_proxy. no_proxy names hosts that need none."


class _Limited(io.RawIOBase):
    """The bytes that a server sends, for some seconds."""

    def __init__(self, raw: io.RawIOBase) -> None:
        self._raw = raw
        self._begin = time.monotonic()
        self.seconds = LONGEST_HEAD

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        # A timeout of the socket begins again with each byte.
        if time.monotonic() > self._begin + self.seconds:
            raise TimeoutError(f"the answer takes longer than {self.seconds:g} seconds")
        return cast("int | None", self._raw.readinto(buffer))

    def close(self) -> None:
        self._raw.close()
        super().close()


class _Answer(http.client.HTTPResponse):
    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._limited = _Limited(cast("Any", self.fp).detach())
        self.fp = io.BufferedReader(self._limited)

    def begin(self) -> None:
        super().begin()
        self._limited.seconds = LONGEST


class _Connection(HTTPConnection):
    response_class = _Answer


class _TlsConnection(HTTPSConnection):
    response_class = _Answer


class _Connections(urllib3.HTTPConnectionPool):
    ConnectionCls = _Connection


class _TlsConnections(urllib3.HTTPSConnectionPool):
    ConnectionCls = _TlsConnection


def client(url: Url, **options: Any) -> urllib3.PoolManager:
    """Return what sends requests to the host of a URL.

    Args:
        options: of `urllib3.PoolManager`.

    Raises:
        InvalidInput: the environment names a proxy that cannot be used.
    """
    proxy = _proxy_of(url)
    if proxy is None:
        made = urllib3.PoolManager(1, **options)
    else:
        try:
            parts = parse_url(proxy)
            headers = make_headers(proxy_basic_auth=unquote(parts.auth)) if parts.auth else None
            made = urllib3.ProxyManager(parts._replace(auth=None).url, 1, proxy_headers=headers, **options)
        except LocationValueError as error:
            message = f"the proxy {_without_password(proxy)!r} cannot be used: write it as http://HOST:PORT"
            raise InvalidInput(message, hint=_WHERE) from error
    made.pool_classes_by_scheme = {"http": _Connections, "https": _TlsConnections}
    return made


def proxy_in(client: urllib3.PoolManager) -> str | None:
    """Return host and port of the proxy that a client uses."""
    return client.proxy.netloc if client.proxy is not None else None


def _proxy_of(url: Url) -> str | None:
    """Return the URL of the proxy that the environment names for a host, or None."""
    host, proxies = url.host or "", getproxies()
    proxy = proxies.get(url.scheme or "") or proxies.get("all")
    if not proxy or proxy_bypass(host.strip("[]")) or proxy_bypass(url.netloc or ""):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


def _without_password(proxy: str) -> str:
    begin, _, end = proxy.partition("://")
    return f"{begin}://{end.rpartition('@')[2]}"

"""A source on a server: `ondisk serve` answers what a replica asks. It needs the extra `server`: urllib3.

A request is repeated, after a pause, if the connection fails, the server is busy, or bytes were changed on the way:
nothing of such an answer is used. Whatever a server sends, memory and time are bounded.
"""

from __future__ import annotations

import http.client
import io
import json
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast
from urllib.parse import unquote
from urllib.request import getproxies, proxy_bypass

import urllib3
from urllib3 import BaseHTTPResponse
from urllib3.exceptions import HTTPError, LocationValueError, ProxyError
from urllib3.util import Url, make_headers, parse_url

from ondisk import errors, json_values
from ondisk.config import DatasetConfig
from ondisk.errors import ConfigError, IntegrityError, InvalidInput, LockError, OndiskError, StorageError, shown
from ondisk.replication import records
from ondisk.replication.feed import MAX_BYTES
from ondisk.replication.records import LARGEST, Records
from ondisk.replication.source import Contents, Description, Removed, Source
from ondisk.replication.token import Token
from ondisk.replication.wire import Structure, digest, from_json, to_json

_T = TypeVar("_T")
_S = TypeVar("_S", bound=Structure)
_TRIES = 5
_PAUSE, _SLOWER = 0.2, 4  # seconds before the second try; how much longer each further pause is
_TIMEOUT = 30.0  # seconds
_ERROR_BYTES, _JSON_BYTES = 64 * 1024, 8 * 1024 * 1024
_AHEAD = 16 * 1024 * 1024  # bytes that are read at once
_LONGEST_TEXT, _BEGIN = 2000, 40  # characters of a message, and of an answer that is not HTTP
_NOBODY = "Does `ondisk serve` run there, and is the address right?"
_PROXY = "The environment names it: http_proxy, https_proxy or all_proxy. no_proxy names hosts that need none."
_CERTIFICATE = (
    "Is it for the host name in the URL? If you trust it, set SSL_CERT_FILE to a file with the server's certificate."
)
_CHANGED = (400, 405)  # this client does not send such requests: it was changed on its way
LONGEST_HEAD, LONGEST = 60.0, 3600.0  # seconds from a request to the end of the head of its answer, and to its end
_KINDS = {name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, OndiskError)}


class HttpSource(Source):
    """A source on a server.

    Args:
        url: of the dataset, such as `http://127.0.0.1:8787/dataset/weather`.
        token: what the server demands, if it does.
        timeout: seconds to wait for a connection, and for each next byte of an answer.
        pause: seconds before the second try of a request; each further pause is four times as long.

    Raises:
        InvalidInput: `url` is not the URL of a dataset.

    All methods raise:
        StorageError: the server cannot be reached, or demands another token.
        LockError: the server is busy.
        IntegrityError: what it sends is damaged, again and again, or not what a server sends.
        Also any error that the server reports.
    """

    def __init__(self, url: str, token: str | None = None, *, timeout: float = _TIMEOUT, pause: float = _PAUSE) -> None:
        try:
            parts = parse_url(url)
        except (LocationValueError, ValueError) as error:
            raise _no_url(url) from error
        if parts.scheme not in ("http", "https") or not parts.host or "/dataset/" not in (parts.path or ""):
            raise _no_url(url)
        self.address = (parts.host.strip("[]"), parts.port or (443 if parts.scheme == "https" else 80))
        self._url = parts._replace(auth=None, query=None, fragment=None).url.rstrip("/")
        self._pause = pause
        self._headers = {"accept-encoding": "identity", "user-agent": "ondisk"}
        if token is not None:
            self._headers["authorization"] = f"Bearer {token}"
        self._client = _client_for(parts, timeout=timeout, retries=False)
        self._proxy = self._client.proxy.netloc if self._client.proxy is not None else None
        self._largest: int | None = None

    def __str__(self) -> str:
        return self._url

    def close(self) -> None:
        self._client.clear()

    def describe(self) -> Description:
        return self._structure(Description, "describe")

    def changes(self, token: Token | None, max_bytes: int = MAX_BYTES) -> Records:
        asked = {"token": None if token is None else to_json(token), "max_bytes": max_bytes}
        return self._records("changes", asked, max_bytes)

    def fetch(self, seqs: Sequence[int], max_bytes: int = MAX_BYTES) -> Records:
        return self._records("fetch", {"seqs": [*seqs], "max_bytes": max_bytes}, max_bytes)

    def contents(self, first: int, last: int, *, listed: bool = False) -> Contents:
        return self._structure(Contents, "contents", first=first, last=last, listed=listed)

    def removed(self, seqs: Sequence[int]) -> Removed:
        return self._structure(Removed, "removed", seqs=[*seqs])

    def _records(self, what: str, asked: dict[str, Any], max_bytes: int) -> Records:
        if self._largest is None:
            self._largest = DatasetConfig.from_toml(self.describe().config).max_datum_size
        most = min(LARGEST, 2 * max_bytes + self._largest + _JSON_BYTES)
        try:
            return self._ask(what, asked, lambda answer: records.decode(_content(answer, most)))
        except OndiskError:
            self._largest = None  # it may be more now
            raise

    def _structure(self, kind: type[_S], what: str, **asked: Any) -> _S:
        return self._ask(what, asked, lambda answer: from_json(kind, _json(answer, _JSON_BYTES)))

    def _ask(self, what: str, asked: dict[str, Any], read: Callable[[BaseHTTPResponse], _T]) -> _T:
        """Return what a function reads from the answer to a request; try again if that can help."""
        tries = 0
        while True:
            try:
                return self._ask_once(what, asked, read)
            except _Again as again:
                if tries == _TRIES - 1:
                    raise again.error from again.__cause__
            time.sleep(self._pause * _SLOWER**tries)
            tries += 1

    def _ask_once(self, what: str, asked: dict[str, Any], read: Callable[[BaseHTTPResponse], _T]) -> _T:
        content, headers = None, self._headers
        if asked:
            content = json_values.dump(asked)
            headers = headers | {"content-digest": digest(content)}
        method = "POST" if asked else "GET"
        try:
            with self._client.request(
                method, f"{self._url}/{what}", body=content, headers=headers, redirect=False, preload_content=False
            ) as answer:
                if answer.status != 200:
                    raise self._reported(answer)
                try:
                    found = read(answer)
                except (IntegrityError, InvalidInput) as error:
                    raise _Damaged(error.message) from error
                answer.release_conn()
                return found
        except HTTPError as error:
            problem, hint, proxy = _printable(str(error.__context__ or error) or type(error).__name__), _NOBODY, ""
            if type(error.__context__) is http.client.BadStatusLine:  # a connection that was closed is a kind of it
                problem = f"the answer is not HTTP: it begins with {problem[:_BEGIN]!r}"
            if isinstance(error, ProxyError):
                proxy, hint = f"the proxy {self._proxy}: ", _PROXY
            elif "CERTIFICATE_VERIFY_FAILED" in problem:  # urllib3 hides the error of ssl, but for its text
                hint = _CERTIFICATE
            raise _Again(StorageError(f"{self._url}: {proxy}{problem}", hint=hint)) from error
        except _Damaged as error:
            hint = "If it is a server of ondisk, compare the versions on both sides, and check the connection."
            raise _Again(IntegrityError(f"{self._url}: the answer is damaged: {error}", hint=hint)) from error

    def _reported(self, answer: BaseHTTPResponse) -> Exception:
        if (status := answer.status) == 401:
            hint = "Pass --server-token FILE, with the token of `ondisk serve --token-file`."
            return ConfigError(f"{self._url}: the token is missing or wrong", hint=hint)
        try:
            found = _json(answer, _ERROR_BYTES)["error"]
            kind, message, hint = found["kind"], _printable(found["message"]), _printable(found["hint"])
            error = _KINDS[kind](f"{self._url}: {message}", hint=f"On the server: {hint}" if hint else "")
        except (_Damaged, KeyError, TypeError):
            return _Again(StorageError(f"{self._url}: the answer has the status {status}", hint=_NOBODY))
        return _Again(error) if isinstance(error, LockError) or status in _CHANGED else error


class _Again(Exception):
    """A request failed in a way that another try may not. `error`: what to raise after the last try."""

    def __init__(self, error: OndiskError) -> None:
        super().__init__(error.message)
        self.error = error


class _Damaged(Exception):
    """An answer is not what a server sends."""


def _content(answer: BaseHTTPResponse, most: int) -> bytes:
    """Return all bytes of an answer; raise HTTPError if the connection fails, or after an hour."""
    left, pieces = answer.length_remaining, list[bytes]()
    if left is None:
        raise _Damaged("its length is missing, perhaps because of a proxy")
    if left > most:
        raise _Damaged(f"it has {left} bytes, more than {most}")
    # An answer that is cut is an error of the connection. Decoded, a few bytes could become gigabytes.
    while left and (piece := answer.read(min(left, _AHEAD), decode_content=False)):
        pieces.append(piece)
        left -= len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _json(answer: BaseHTTPResponse, most: int) -> Any:
    content = _content(answer, most)
    if answer.headers.get("content-digest") != digest(content):
        raise _Damaged("its digest is wrong")
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise _Damaged(f"it is not JSON: {error}") from error


def _printable(text: Any) -> str:
    """Return a text of a server that may be hostile; raise TypeError if it is not a text."""
    if not isinstance(text, str):
        raise TypeError
    return "".join(each if each.isprintable() else " " for each in text[:_LONGEST_TEXT])


def _no_url(url: str) -> InvalidInput:
    hint = "Write it as `ondisk serve` prints it: http://127.0.0.1:8787/dataset/weather"
    return InvalidInput(f"{shown(url)} is not the URL of a dataset", hint=hint)


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


def _client_for(url: Url, **options: Any) -> urllib3.PoolManager:
    """Return what sends requests to the host of a URL; raise InvalidInput if the environment's proxy is wrong."""
    proxy = _proxy_of(url)
    if proxy is None:
        made = urllib3.PoolManager(1, **options)
    else:
        try:
            parts = parse_url(proxy)
            headers = make_headers(proxy_basic_auth=unquote(parts.auth)) if parts.auth else None
            made = urllib3.ProxyManager(parts._replace(auth=None).url, 1, proxy_headers=headers, **options)
        except LocationValueError as error:
            message = "the proxy in the environment cannot be used: write it as http://HOST:PORT"
            raise InvalidInput(message, hint=_PROXY) from error
    pools = {"http": urllib3.HTTPConnectionPool, "https": urllib3.HTTPSConnectionPool}
    made.pool_classes_by_scheme = {scheme: _limited(pool) for scheme, pool in pools.items()}
    return made


def _limited(pool: Any) -> Any:
    """Return a class of connections whose answers take a limited time."""
    connection = type("Connection", (pool.ConnectionCls,), {"response_class": _Answer})
    return type("Connections", (pool,), {"ConnectionCls": connection})


def _proxy_of(url: Url) -> str | None:
    host, proxies = url.host or "", getproxies()
    proxy = proxies.get(url.scheme or "") or proxies.get("all")
    if not proxy or proxy_bypass(host.strip("[]")) or proxy_bypass(url.netloc or ""):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"

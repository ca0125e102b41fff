"""Start a server, and end it cleanly."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import signal
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import uvicorn

from ondisk.errors import ConfigError, InvalidInput, StorageError
from ondisk.malloc import keep_freed
from ondisk.server.admission import Limits
from ondisk.server.app import application
from ondisk.server.connection import limited
from ondisk.server.datasets import by_name
from ondisk.server.metrics import Counts

_BACKLOG = 1024


class Server(uvicorn.Server):
    """A running server. `names`: of the datasets that it serves; `host`, `port`: where it listens."""

    def __init__(
        self, config: uvicorn.Config, names: Sequence[str], listener: socket.socket, started: Callable[[Server], object]
    ) -> None:
        super().__init__(config)
        self.names = names
        self.host, self.port = listener.getsockname()[:2]
        self._call = started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                asyncio.get_running_loop().add_signal_handler(number, self.stop)
        self._call(self)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await super().shutdown(sockets)
        for task in (tasks := [*self.server_state.tasks]):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        while left := [*self.server_state.connections]:  # clients that do not take the rest of their answer
            for connection in left:
                connection.transport.abort()
            await asyncio.sleep(0)

    def stop(self) -> None:
        """End, when answers that are being sent are complete or take too long; at once, if it is called again."""
        self.force_exit = self.should_exit
        self.should_exit = True

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to `startup`: uvicorn would raise them again at the end."""
        yield


def serve(
    paths: Sequence[str],
    listener: socket.socket,
    started: Callable[[Server], object],
    *,
    token: bytes | None = None,
    tls: ssl.SSLContext | None = None,
    limits: Limits | None = None,
) -> None:
    """Serve the datasets at some paths until SIGINT or SIGTERM arrives, or `Server.stop` is called.

    Args:
        listener: as `listen` returns it; closed at the end.
        started: called when requests are answered.
        token: what clients must send; needed if others can reach the address.
    """
    keep_freed()
    with contextlib.ExitStack() as stack:
        stack.enter_context(listener)
        if token is None and not is_loopback(listener):
            hint = "Pass --token-file FILE; and --tls-cert, else others can read the token on its way."
            raise InvalidInput(f"others can reach {listener.getsockname()[0]}, and there is no token", hint=hint)
        served = by_name(paths)
        for each in served.values():
            stack.callback(each.close)
        limits, counts = limits or Limits(), Counts()
        threads = stack.enter_context(ThreadPoolExecutor(limits.requests, "ondisk-server"))
        config = uvicorn.Config(
            application(served, token, limits, counts, threads),
            http=limited(limits, counts),
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            log_level="critical",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            backlog=_BACKLOG,
            timeout_keep_alive=int(limits.idle),
            timeout_graceful_shutdown=int(limits.grace),
        )
        config.load()
        config.ssl = tls
        asyncio.run(Server(config, [*served], listener, started).serve([listener]))


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens at an address, at port 0 on a free one; raise StorageError if it cannot."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(
            family, kind, protocol
        )  # only if asyncio knows that it is TCP, answers are not delayed
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(_BACKLOG)
        except BaseException:
            listener.close()
            raise
    except OSError as error:
        hint = "Choose another address."
        raise StorageError(f"cannot listen on {host}:{port}: {error.strerror or error}", hint=hint) from None
    return listener


def is_loopback(listener: socket.socket) -> bool:
    return ipaddress.ip_address(listener.getsockname()[0].partition("%")[0]).is_loopback


def tls_of(certificate: str, key: str | None) -> ssl.SSLContext:
    """Return what a server needs for TLS; raise ConfigError if a file cannot be used.

    Args:
        certificate: a file in PEM form, with its chain.
        key: a file in PEM form, without a password; None if the certificate's file contains it.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(certificate, key, password="")  # else OpenSSL asks for one on the terminal
    except (OSError, ValueError) as error:
        hint = "Both files must be in PEM form, the key without a password, and belong to each other."
        raise ConfigError(f"{certificate}, {key or 'with its key'}: {error}", hint=hint) from None
    return context

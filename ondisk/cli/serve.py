"""Serve datasets on the network, until SIGINT or SIGTERM: over HTTP, to browsers and programs; or as elliptics does.

ondisk serve weather objects
ondisk serve weather --bind 0.0.0.0:8787 --token-file token --tls-cert cert.pem --tls-key key.pem
ondisk serve --elliptics 127.0.0.1:1025 objects
ondisk serve --elliptics [::1]:1025 objects --read-only
"""

from __future__ import annotations

import argparse
import asyncio
import warnings
from urllib.parse import quote

from ondisk.cli.arguments import add_keys, check_options, path, positive
from ondisk.cli.dataset import open_dataset
from ondisk.cli.streams import Output, complain
from ondisk.errors import EXIT_DONE, DataOffline, InvalidInput, StateError, StorageError

_BIND = ("127.0.0.1", 8787)


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("dataset", metavar="DATASET", type=path, nargs="+", help="the datasets' directories")
    add_keys(parser)
    parser.add_argument(
        "--bind",
        metavar="HOST:PORT",
        type=_address,
        help="answer HTTP here (default 127.0.0.1:8787); other hosts than this machine need --token-file",
    )
    parser.add_argument("--token-file", metavar="FILE", type=path, help="answer those who send the token in this file")
    parser.add_argument("--tls-cert", metavar="FILE", type=path, help="use TLS, with this certificate")
    parser.add_argument("--tls-key", metavar="FILE", type=path, help="its key, if it is in another file")
    parser.add_argument(
        "--elliptics",
        metavar="HOST:PORT",
        type=_address,
        help="answer read and write commands of elliptics here, without authentication; port 0 takes a free one",
    )
    parser.add_argument("--id-size", metavar="N", type=positive, help="bytes of an id of elliptics (default 64)")
    parser.add_argument("--read-only", action="store_true", help="refuse commands that write")


def run(arguments: argparse.Namespace, output: Output) -> int:
    needs = {"--id-size --read-only": "--elliptics", "--tls-key": "--tls-cert"}
    check_options(arguments, needs, {"--bind --token-file --tls-cert --tls-key": "--elliptics"})
    (_serve_http if arguments.elliptics is None else _serve_elliptics)(arguments, output)
    return EXIT_DONE


def _serve_http(arguments: argparse.Namespace, output: Output) -> None:
    try:
        from ondisk.keys import read_token
        from ondisk.server.serve import Server, is_loopback, listen, serve, tls_of
    except ModuleNotFoundError as error:
        hint = "Install it: pip install 'ondisk[server]'"
        raise StateError(f"the server needs the package {error.name}", hint=hint) from None
    token = None if arguments.token_file is None else read_token(arguments.token_file)
    tls = None if arguments.tls_cert is None else tls_of(arguments.tls_cert, arguments.tls_key)
    host, port = arguments.bind or _BIND
    listener = listen(host.strip("[]"), port)
    if token is not None and tls is None and not is_loopback(listener):
        complain("warning", "without --tls-cert, others can read the token and all data on their way")

    def started(server: Server) -> None:
        base = f"{'http' if tls is None else 'https'}://{host}:{server.port}/dataset/"
        urls = {name: base + quote(name, safe="") for name in server.names}
        lines = (f"serving {name} on {url}" for name, url in urls.items())
        output.show([{"datasets": urls, "host": host, "port": server.port}], lines)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataOffline)  # each answer says it to its client
        serve(arguments.dataset, listener, started, token=token, tls=tls)


def _serve_elliptics(arguments: argparse.Namespace, output: Output) -> None:
    from ondisk.backends.elliptics import Backend
    from ondisk.backends.elliptics.server import serve

    if len(arguments.dataset) > 1:
        raise InvalidInput("--elliptics serves one dataset")
    (name,) = arguments.dataset
    host, port = arguments.elliptics
    with open_dataset(name, read_only=arguments.read_only) as dataset:
        backend = Backend(dataset, id_size=arguments.id_size or 64)

        def started(port: int) -> None:
            output.show([{"dataset": name, "host": host, "port": port}], [f"serving {name} on {host}:{port}"])

        try:
            asyncio.run(serve(backend, host.strip("[]"), port, started))
        except OSError as error:
            if isinstance(error, StorageError):
                raise
            hint = "Choose another address."
            raise StorageError(f"cannot listen on {host}:{port}: {error.strerror or error}", hint=hint) from None


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST:PORT, such as 127.0.0.1:1025")
    return host, int(port)

"""Serve a dataset on the network, until SIGINT or SIGTERM. There is no authentication: bind to an address you trust.

ondisk serve --elliptics 127.0.0.1:1025 objects
ondisk serve --elliptics [::1]:1025 objects --read-only
"""

from __future__ import annotations

import argparse
import asyncio
from functools import partial

from ondisk.cli.arguments import add_dataset, add_keys, positive
from ondisk.cli.dataset import open_dataset
from ondisk.cli.output import Output
from ondisk.errors import EXIT_DONE, StorageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_dataset(parser)
    add_keys(parser)
    parser.add_argument(
        "--elliptics",
        metavar="HOST:PORT",
        type=_address,
        required=True,
        help="answer read and write commands of elliptics here; port 0 takes a free one",
    )
    parser.add_argument("--id-size", metavar="N", type=positive, default=64, help="bytes of an id (default 64)")
    parser.add_argument("--read-only", action="store_true", help="refuse commands that write")
    parser.add_argument("--json", action="store_true", help="print the address as a JSON object")


def run(arguments: argparse.Namespace, output: Output) -> int:
    from ondisk.backends.elliptics import Backend
    from ondisk.backends.elliptics.server import serve

    host, port = arguments.elliptics
    with open_dataset(arguments.dataset, read_only=arguments.read_only) as dataset:
        backend = Backend(dataset, id_size=arguments.id_size)

        try:
            asyncio.run(serve(backend, host.strip("[]"), port, partial(output.serving, arguments.dataset, host)))
        except OSError as error:
            if isinstance(error, StorageError):
                raise
            hint = "Choose another address."
            raise StorageError(f"cannot listen on {host}:{port}: {error.strerror or error}", hint=hint) from None
    return EXIT_DONE


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST:PORT, such as 127.0.0.1:1025")
    return host, int(port)

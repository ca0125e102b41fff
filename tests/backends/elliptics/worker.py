"""A process that answers packets with a backend, until it is killed: packets on stdin, replies on stdout.

Each message is its length in 8 bytes and its content; a request is the lengths and contents of several packets.
"""

from __future__ import annotations

import pickle
import sys

import ondisk
from ondisk.backends.elliptics import Backend


def main() -> None:
    with ondisk.open(sys.argv[1]) as dataset:
        backend = Backend(dataset)
        while head := sys.stdin.buffer.read(8):
            packets = pickle.loads(sys.stdin.buffer.read(int.from_bytes(head)))
            content = pickle.dumps(backend.process_all(packets))
            sys.stdout.buffer.write(len(content).to_bytes(8) + content)
            sys.stdout.buffer.flush()


main()

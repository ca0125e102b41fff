"""Links between a client and a server that cut, change or delay what is sent over them."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

PIECE = 1024


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens to one connection.

    Attributes:
        cut: it ends after so many bytes of answers.
        flip: the byte of answers that is changed.
        flip_request: the byte of requests that is changed.
        bit: that is changed in it.
        pause: seconds before each piece of an answer.
    """

    cut: int | None = None
    flip: int | None = None
    flip_request: int | None = None
    bit: int = 1
    pause: float = 0.0


class Link:
    """Forwards connections to a server on this machine. Use it as a context manager.

    Attributes:
        port: connect here.
        faults: of the next connections, in their order; those after them have none.
        connections: how many there were.
        answered: bytes of answers of the last connection.
        requested: bytes of its requests.
    """

    def __init__(self, port: int) -> None:
        self.faults: list[Fault] = []
        self.connections = self.answered = self.requested = 0
        self._to = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._threads = [threading.Thread(target=self._accept)]
        self._sockets: list[socket.socket] = []

    def __enter__(self) -> Link:
        self._threads[0].start()
        return self

    def __exit__(self, *error: object) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for each in [*self._sockets]:
            _end(each)
        for thread in self._threads:
            thread.join()
        for each in self._sockets:
            each.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                fault = self.faults.pop(0) if self.faults else Fault()
                self.connections += 1
                self.answered = self.requested = 0
                far = socket.create_connection(("127.0.0.1", self._to))
                self._sockets += [near, far]
                for work in (self._requests, self._answers):
                    self._threads.append(threading.Thread(target=work, args=(near, far, fault)))
                    self._threads[-1].start()

    def _requests(self, near: socket.socket, far: socket.socket, fault: Fault) -> None:
        at = 0
        for piece in _pieces(near):
            with contextlib.suppress(OSError):
                far.sendall(_flipped(piece, at, fault.flip_request, fault.bit))
            at += len(piece)
            self.requested = at
        _end(far)

    def _answers(self, near: socket.socket, far: socket.socket, fault: Fault) -> None:
        at = 0
        for piece in _pieces(far):
            time.sleep(fault.pause)
            left = piece if fault.cut is None else piece[: fault.cut - at]
            with contextlib.suppress(OSError):
                near.sendall(_flipped(left, at, fault.flip, fault.bit))
            at += len(left)
            self.answered = at
            if len(left) < len(piece):
                break
        _end(near)
        _end(far)


def _pieces(connection: socket.socket) -> Iterator[bytes]:
    with contextlib.suppress(OSError):
        while piece := connection.recv(PIECE):
            yield piece


def _flipped(piece: bytes, at: int, place: int | None, bit: int) -> bytes:
    if place is None or not at <= place < at + len(piece):
        return piece
    changed = bytearray(piece)
    changed[place - at] ^= bit
    return bytes(changed)


def _end(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)

"""Limits of the server."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """What a server accepts.

    Attributes:
        connections: at a time; others are closed at once.
        head: bytes of the first line and the headers of a request.
        body: bytes of the body of a request.
        requests: that are answered at a time; each may hold a snapshot and a thread.
        patience: seconds for which a request waits for one of these to end.
        receiving: seconds for the body of a request.
        idle: seconds for the head of a request, from the beginning of the connection or the end of the last answer.
        stalled: seconds in which a connection must take a part of an answer: some 512 KiB.
        duration: seconds for an answer.
        grace: seconds for the rest of the answers when the server ends.
    """

    connections: int = 256
    head: int = 16 * 1024
    body: int = 1024 * 1024
    requests: int = 16
    patience: float = 10
    receiving: float = 30
    idle: float = 60
    stalled: float = 60
    duration: float = 3600
    grace: float = 5

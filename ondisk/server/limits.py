"""Limits of the server."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    connections: int = 256  # at a time; others are closed at once
    head: int = 16 * 1024  # bytes of the first line and the headers of a request
    body: int = 1024 * 1024  # bytes of the body of a request
    requests: int = 16  # that are answered at a time; each may hold a snapshot and a thread
    patience: float = 10  # seconds for which a request waits for one of these to end
    receiving: float = 30  # seconds for the body of a request
    # seconds for the head of a request, from the beginning of the connection or the end of the last answer
    idle: float = 60
    stalled: float = 60  # seconds in which a connection must take a part of an answer: some 512 KiB
    duration: float = 3600  # seconds for an answer
    grace: float = 5  # seconds for the rest of the answers when the server ends

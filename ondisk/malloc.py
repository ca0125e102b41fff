"""How the C library treats freed memory."""

from __future__ import annotations

import contextlib
from ctypes import CDLL

_KEPT = 24 * 1024 * 1024
_ARENA_MAX = -8  # M_ARENA_MAX of malloc.h of glibc


def keep_freed() -> None:
    """Let the C library keep freed memory for the next request, in all of this process. Call it before threads begin.

    The malloc of glibc gets large blocks from the kernel and returns them when they are freed, until it has seen that
    blocks of that size are freed. The kernel fills each with zeros: a third of the time of answers that are large. The
    process keeps about as much memory as it has used at once.
    """
    with contextlib.suppress(AttributeError):  # another C library
        CDLL(None).mallopt(_ARENA_MAX, 1)  # else the heap of each thread keeps as much
    bytes(_KEPT)

"""Simulates a killed process: one call that changes the disk, and all later ones, raise `Killed` and do nothing.

Only calls from Python are counted, not those inside SQLite. SQLite rolls its transaction back, as it would when the
index is opened after a crash.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

CALLS = ("pwrite", "fsync", "ftruncate", "unlink", "rename", "link", "mkdir", "rmdir")


class Killed(BaseException):
    """Raised where the simulated process is killed."""


@contextlib.contextmanager
def killed_in(owner: object, name: str) -> Iterator[None]:
    """Kill the block at its first call of a function of a module, or method of a class; the block must call it."""
    try:
        with patch.object(owner, name, side_effect=Killed):
            yield
    except Killed:
        return
    raise AssertionError(f"{name} was not called")


@contextlib.contextmanager
def killed_at(call: int) -> Iterator[None]:
    """Kill the block at one of its calls that change the disk, counted from 0, and at all later ones.

    Raises:
        Killed: from the call.
    """
    left = call

    def count() -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise Killed

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def counting(*arguments: Any, **options: Any) -> Any:
            count()
            return function(*arguments, **options)

        return counting

    open_ = os.open

    def opened(path: Any, flags: int, *rest: Any, **more: Any) -> int:
        if flags & os.O_CREAT:
            count()
        return open_(path, flags, *rest, **more)

    with contextlib.ExitStack() as stack:
        for name in CALLS:
            stack.enter_context(patch.object(os, name, counted(getattr(os, name))))
        stack.enter_context(patch.object(os, "open", opened))
        yield

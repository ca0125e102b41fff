"""A process that is killed, without a process: at one call that changes the disk, and all later ones, it is dead.

The calls of Python are counted. SQLite's own are not: its transaction is rolled back, as the next who opens the index
would do.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

CALLS = ("pwrite", "fsync", "ftruncate", "unlink", "rename", "link", "mkdir", "rmdir")


class Killed(BaseException):
    """What ends a process that is as good as dead."""


@contextlib.contextmanager
def killed_in(owner: object, name: str) -> Iterator[None]:
    """Kill at the first call of a function, or method, of a module or class, to which the block must come."""
    try:
        with patch.object(owner, name, side_effect=Killed):
            yield
    except Killed:
        return
    raise AssertionError(f"{name} was not called")


@contextlib.contextmanager
def killed_at(call: int) -> Iterator[None]:
    """Kill at one call and at all later ones, counted from 0, for the length of the block.

    Raises:
        Killed: from whatever was called.
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

"""The blocking work of an answer, in threads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import TypeVar, TypeVarTuple

from ondisk.index.connection import LENT, Lent

_T = TypeVar("_T")
_Ts = TypeVarTuple("_Ts")


class Work:
    """What one answer does in threads: one step after the other, always in the same context.

    Args:
        threads: has a free one, as long as no more answers are at work than it has.
    """

    def __init__(self, threads: ThreadPoolExecutor) -> None:
        self._threads = threads
        self._lent = Lent()
        self._context = copy_context()
        self._context.run(LENT.set, self._lent)

    async def call(self, function: Callable[[*_Ts], _T], *arguments: *_Ts) -> _T:
        """Return what a function returns.

        A caller that is cancelled ends the queries of the function, and waits for it: no step may follow before.
        """
        step = asyncio.get_running_loop().run_in_executor(self._threads, self._context.run, function, *arguments)
        try:
            return await asyncio.shield(step)
        except asyncio.CancelledError:
            while not step.done():
                self._lent.interrupt()
                await asyncio.wait([step], timeout=0.1)  # it may begin a query after this
            if not step.cancelled():
                step.exception()  # nobody asks for it any more
            raise

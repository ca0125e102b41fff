"""The table: how an accident is written down."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

import pytest

from .victim import KINDS, LAST, Victim

PLACES = {"dataset": "", "archive": LAST}
ORDERS = ("fix", "repack", "maintain", "append")
"""What is done first. `append` is one to the segment of the accident; a maintain comes after each."""

Codes = int | tuple[int, ...] | None
"""One exit code, several that are allowed, or None for any that the law allows."""


@dataclass(frozen=True)
class Accident:
    """One accident, and what must follow.

    Attributes:
        name: begins with its number in the list of accidents, or with x.
        happen: prepares, and lets it happen.
        check: the states that a check reports, one set for each possibility; None for any.
        fix, repack, maintain: the exit code of the command that comes first.
        answered: all data that the accident has not destroyed are answered at the end; else they may be in quarantine.
        quiet: a query directly after the accident may be short without a warning.
        kinds, places, orders: where it applies.
        config: more configuration of the dataset.
        root: it needs root.
        after: brings the dataset back after the commands, and checks what must hold then.
    """

    name: str
    happen: Callable[[Victim], None]
    check: tuple[str, ...] | None = None
    fix: Codes = None
    repack: Codes = None
    maintain: Codes = None
    answered: bool = True
    quiet: bool = False
    kinds: tuple[str, ...] = tuple(KINDS)
    places: tuple[str, ...] = tuple(PLACES)
    orders: tuple[str, ...] = ORDERS
    config: dict[str, Any] = field(default_factory=dict)
    root: bool = False
    after: Callable[[Victim], None] | None = None


ACCIDENTS: list[Accident] = []


def accident(name: str, **columns: Any) -> Callable[[Callable[[Victim], None]], Callable[[Victim], None]]:
    """Enter a function into the table."""

    def enter(happen: Callable[[Victim], None]) -> Callable[[Victim], None]:
        ACCIDENTS.append(Accident(name, happen, **columns))
        return happen

    return enter


def cases() -> Iterator[Any]:
    """Yield each accident with each kind, place and order, as parameters of a test.

    Every fourth case is run always, so that each accident meets each kind, each place and each order; the others are
    slow only because they are so many.
    """
    for each in ACCIDENTS:
        orders = [order for order in ORDERS if order in each.orders]
        for kind in each.kinds:
            for place in each.places:
                turn = crc32(each.name.encode()) + [*KINDS].index(kind) + 2 * [*PLACES].index(place)
                for order in orders:
                    marks = [pytest.mark.root] if each.root else []
                    if orders[turn % len(orders)] != order:
                        marks.append(pytest.mark.slow)
                    case = f"{each.name}-{kind}-{place}-{order}"
                    yield pytest.param(each, kind, PLACES[place], order, id=case, marks=marks)

"""Visit every state that a model can reach, in breadth-first order, so that a violation has a shortest path to it."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Protocol, TypeVar

S = TypeVar("S", bound=Hashable)


class Violation(Exception):
    """A state or a step breaks an invariant."""


class Model(Protocol[S]):
    """What can be explored."""

    def start(self) -> S:
        """Return the first state."""
        ...

    def steps(self, state: S) -> Iterable[tuple[str, S]]:
        """Yield each step that is possible in a state: what happens, and the state after it.

        Raises:
            Violation: an invariant is broken.
        """
        ...


@dataclass(frozen=True, slots=True)
class Explored:
    """The result of an exploration.

    Attributes:
        states: how many were found.
        violation: the first broken invariant; None without one.
        path: the steps that lead to it.
    """

    states: int
    violation: str | None = None
    path: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "\n  ".join([f"{self.states} states: {self.violation or 'no violation'}", *self.path])


def explore(model: Model[S], most: int = 5_000_000) -> Explored:
    """Visit all states, up to the first violation.

    Raises:
        OverflowError: the model has more than `most` states.

    Memory: about a kilobyte for each state.
    """
    first = model.start()
    before: dict[S, tuple[S, str] | None] = {first: None}
    waiting = deque([first])
    while waiting:
        state = waiting.popleft()
        try:
            for label, after in model.steps(state):
                if after not in before:
                    before[after] = state, label
                    waiting.append(after)
        except Violation as error:
            return Explored(len(before), str(error), _path(before, state))
        if len(before) > most:
            raise OverflowError(f"more than {most} states")
    return Explored(len(before))


def _path(before: dict[S, tuple[S, str] | None], state: S) -> tuple[str, ...]:
    path = []
    while (step := before[state]) is not None:
        state, label = step
        path.append(label)
    return tuple(reversed(path))

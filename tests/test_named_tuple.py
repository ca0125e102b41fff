from __future__ import annotations

import pickle
import typing

from ondisk.named_tuple import NamedTuple


class Own(NamedTuple):
    """A value."""

    name: str
    sizes: tuple[int, ...] = ()

    @property
    def total(self) -> int:
        return sum(self.sizes)

    def first(self) -> Own:
        return self._replace(sizes=self.sizes[:1])


class Their(typing.NamedTuple):
    """A value."""

    name: str
    sizes: tuple[int, ...] = ()


def test_a_class_is_as_that_of_typing():
    own, their = Own("a", (1, 2)), Their("a", (1, 2))
    assert own == their
    assert (repr(own), own._asdict()) == (repr(their).replace("Their", "Own"), their._asdict())
    assert (Own._fields, Own._field_defaults, Own.__doc__) == (Their._fields, Their._field_defaults, Their.__doc__)
    assert (Own.__module__, Own.__qualname__) == (__name__, "Own")
    assert (own.total, own.first(), Own("b").sizes) == (3, ("a", (1,)), ())
    assert type(pickle.loads(pickle.dumps(own))) is Own

"""Programs: descriptors of BUFR, expanded to the steps by which the data of one report are read.

A program depends on descriptors and tables only, so that one serves all messages of a kind. Operators are resolved when
it is made: 201, 202, 207 (numbers), 203 (reference values), 204 (associated fields), 205 (text), 206 (local elements),
208 (width of texts), 221 (data that are not there). From 222 on the data describe those before them: there a program
ends. Values that nobody wants are skipped together; those before everything whose place depends on the data are found
by their positions.

Limit: `MOST` expanded descriptors in a program, and as many in a report.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from ondisk.formats.bufr.tables import CODE, NUMBER, TEXT, Element, Tables

MOST = 100_000
"""Limit of expanded descriptors."""

NOTHING = 0
"""The descriptor of what is between elements: associated fields and text."""

Value: TypeAlias = int | str | None
Take: TypeAlias = Callable[[int, Value], bool]
"""Takes the descriptor of an element and its value (None: missing); returns whether that is enough."""

_ELEMENT, _REPLICATION, _OPERATOR = 0, 1, 2
_FACTORS = 31  # class of elements that say how often something is repeated
_DATA_REPETITION = (11, 12)  # elements of this class after which the data are there once
_IDENTIFICATION = frozenset((*range(1, 10), _FACTORS))  # classes that operator 221 does not leave out
_FLAT = 1000  # most steps that are written out instead of a repetition
_INCREMENT_BITS = 6  # how many bits of compressed data say the width of increments
_WIDEST = 4096  # bits; more than any sum of operators gives
_LONGEST_BODY = 64  # descriptors after one of replication that can belong to it
_MOST_ASSOCIATED = 8


class Undecodable(Exception):
    """The data cannot be read on."""


class Wanted(NamedTuple):
    """An element that is wanted: its descriptor, and the number of digits after the decimal point."""

    descriptor: int
    digits: int = 0


class Field(NamedTuple):
    """One value: (bits + reference) / 10 ** scale, as a whole number, or a text."""

    descriptor: int
    width: int
    scale: int
    reference: int
    is_text: bool


class Skip(NamedTuple):
    """Bits that nobody wants, of so many elements."""

    width: int
    elements: int


class NewReference(NamedTuple):
    """A reference value for an element, which is in the data; with a width of 0 all elements have their own again."""

    descriptor: int
    width: int


class Repeat(NamedTuple):
    """A body that is there so many `times`, or as often as a factor of so many bits says; at most `most` times."""

    body: tuple[Step, ...]
    times: int
    factor_width: int
    most: int


class Stop(NamedTuple):
    """The end of what can be read: because of an error, or else since the rest describes what was before."""

    reason: str


Step: TypeAlias = Field | Skip | NewReference | Repeat | Stop


class Place(NamedTuple):
    """Where the value of a field is, if that is always the same: bytes, then bits to the right of it."""

    begin: int
    end: int
    shift: int
    ones: int
    field: Field


class Program(NamedTuple):
    first: int  # the descriptor of its first element; 0 if it has none
    places: tuple[Place, ...]  # the values whose place is always the same
    fixed_size: int  # bits up to the first step whose place is not
    rest: tuple[Step, ...]  # the steps from there on
    size: int  # number of expanded descriptors


class _Operators(NamedTuple):
    """What operators are in force: see the module's docstring for their numbers."""

    width: int = 0
    scale: int = 0
    more: int = 0
    text_width: int = 0
    reference_width: int = 0
    associated: tuple[int, ...] = ()
    local_width: int = -1
    absent: int = 0

    @property
    def is_passing(self) -> bool:
        """Whether some of them end after the next elements, or make something else of these."""
        return self.local_width >= 0 or self.absent > 0 or self.reference_width > 0


@dataclass(slots=True)
class _Making:
    tables: Tables  # where elements and sequences are looked up
    wanted: Mapping[int, Wanted]  # the elements to read, by descriptor
    takes_all: bool  # all others, too, are values to read
    is_compressed: bool  # increments follow each value, so that nothing is skipped together
    operators: _Operators = field(default_factory=_Operators)  # in force now
    # the steps of elements and sequences with these operators, and how many descriptors they are
    made: dict[int, tuple[list[Step], int]] = field(default_factory=dict)
    first: int = 0  # as in `Program`
    count: int = 0  # expanded descriptors so far
    is_ended: bool = False  # nothing after this can be read

    def body(self, descriptors: Sequence[int]) -> list[Step]:
        steps: list[Step] = []
        at = 0
        while at < len(descriptors) and not self.is_ended:
            code = descriptors[at]
            at += 1
            kind = code >> 14
            if self.count >= MOST:
                self._end(steps, f"more than {MOST} descriptors")
            elif code in self.made:
                made, count = self.made[code]
                self.count += count
                _extend(steps, made)
            elif kind == _OPERATOR:
                self.count += 1
                self._operate(steps, code >> 8 & 0x3F, code & 0xFF)
            elif kind == _REPLICATION:
                self.count += 1
                at += self._add_repetition(steps, code, descriptors[at : at + _LONGEST_BODY])
            else:
                self._add(steps, code, self._element if kind == _ELEMENT else self._sequence)
        return steps

    def _add(self, steps: list[Step], code: int, make: Callable[[int], list[Step]]) -> None:
        """Add the steps of an element or a sequence, and keep them for the next time if they are the same then."""
        before, begin = self.operators, self.count
        self.count += 1
        made = make(code)
        if self.operators == before and not before.is_passing and not self.is_ended:
            self.made[code] = made, self.count - begin
        _extend(steps, made)

    def _set(self, operators: _Operators) -> None:
        if operators != self.operators:
            self.operators = operators
            self.made = {}

    def _end(self, steps: list[Step], reason: str) -> None:
        steps.append(Stop(reason))
        self.is_ended = True

    def _sequence(self, code: int) -> list[Step]:
        sequence = self.tables.sequence(code)
        return self._ended(f"unknown sequence {code:04x}") if sequence is None else self.body(sequence)

    def _ended(self, reason: str) -> list[Step]:
        self.is_ended = True
        return [Stop(reason)]

    def _field(self, of: Field) -> Step:
        return Skip(of.width, 1) if of.descriptor == NOTHING and not self.is_compressed else of

    def _element(self, code: int) -> list[Step]:
        now, kind = self.operators, code >> 8
        element = self.tables.element(code)
        if now.local_width >= 0:
            self._set(now._replace(local_width=-1))
            own = Element(now.local_width, 0, 0, CODE) if element is None else element
            element = own if own.kind == TEXT else own._replace(width=now.local_width)
        if element is None:
            return self._ended(f"unknown element {code:04x}")
        if now.absent:
            self._set(now._replace(absent=now.absent - 1))
            if kind not in _IDENTIFICATION:
                return []
        wanted = self.wanted.get(code)
        if now.reference_width:
            return [NewReference(wanted.descriptor if wanted else code, now.reference_width)]
        width, scale, reference, of = element
        if of == TEXT:
            width = 8 * now.text_width or width
        elif of == NUMBER and kind != _FACTORS:
            width += now.width + (10 * now.more + 2) // 3
            scale += now.scale + now.more
            reference *= 10**now.more
        if not 0 < width <= _WIDEST:
            return self._ended(f"element {code:04x} of {width} bits")
        self.first = self.first or code
        if wanted is None:
            read = Field(code if self.takes_all else NOTHING, width, 0, reference, of == TEXT)
        else:
            scale -= wanted.digits
            if wanted.digits and scale > 0:
                reference += 10**scale // 2  # it is rounded
            read = Field(wanted.descriptor, width, scale, reference, of == TEXT)
        if now.associated and kind != _FACTORS:
            return [self._field(Field(NOTHING, sum(now.associated), 0, 0, False)), self._field(read)]
        return [self._field(read)]

    def _operate(self, steps: list[Step], operator: int, operand: int) -> None:
        now = self.operators
        match operator:
            case 1:
                now = now._replace(width=operand - 128 if operand else 0)
            case 2:
                now = now._replace(scale=operand - 128 if operand else 0)
            case 3:
                now = now._replace(reference_width=operand % 255)
                if operand == 0:
                    steps.append(NewReference(NOTHING, 0))
            case 4 if len(now.associated) > _MOST_ASSOCIATED:
                self._end(steps, "too many associated fields")
            case 4:
                now = now._replace(associated=(*now.associated, operand) if operand else now.associated[:-1])
            case 5:
                _extend(steps, [self._field(Field(NOTHING, 8 * operand, 0, 0, True))])
            case 6:
                now = now._replace(local_width=operand)
            case 7:
                now = now._replace(more=operand)
            case 8:
                now = now._replace(text_width=operand)
            case 21:
                now = now._replace(absent=operand)
            case _:
                self._end(steps, "" if operator >= 22 else f"unknown operator 2{operator:02}{operand:03}")
        self._set(now)

    def _add_repetition(self, steps: list[Step], code: int, following: Sequence[int]) -> int:
        """Add a repetition; return how many of the descriptors after it belong to it."""
        size, count = code >> 8 & 0x3F, code & 0xFF
        is_delayed = count == 0
        factor_width, most = 0, MOST
        if is_delayed:
            factor = self.tables.element(following[0]) if following else None
            if factor is None or following[0] >> 8 != _FACTORS:
                self._end(steps, "a replication without factor")
                return 0
            factor_width = factor.width
            most = 1 if following[0] & 0xFF in _DATA_REPETITION else MOST
        before = self.operators
        body = self.body(following[is_delayed : is_delayed + size])
        if self.operators != before and not self.is_ended:
            self._end(body, "an operator that is in force across a replication")
        if not is_delayed and len(body) * count <= _FLAT:
            self.count += len(body) * count
            _extend(steps, body * count)
        else:
            steps.append(Repeat(tuple(body), count, factor_width, most))
            self.is_ended = self.is_ended and not is_delayed  # a factor of 0 passes over what cannot be read
            self._set(before)
        return is_delayed + size


def _extend(steps: list[Step], made: Sequence[Step]) -> None:
    """Add steps to others; what nobody wants is skipped with what nobody wants before."""
    for step in made:
        if steps and isinstance(step, Skip) and isinstance(last := steps[-1], Skip):
            steps[-1] = Skip(last.width + step.width, last.elements + step.elements)
        else:
            steps.append(step)


def make(
    descriptors: bytes, tables: Tables, wanted: Mapping[int, Wanted], *, takes_all: bool, is_compressed: bool
) -> Program:
    """Return the program of descriptors as a message has them, two bytes each; what is wrong in them ends it."""
    making = _Making(tables, wanted, takes_all, is_compressed)
    pairs = memoryview(descriptors[: 2 * MOST + 2])
    steps = making.body([pairs[at] << 8 | pairs[at + 1] for at in range(0, len(pairs), 2)])
    places: list[Place] = []
    position, done = 0, 0
    if not is_compressed:
        for step in steps:
            if not isinstance(step, Field | Skip):
                break
            end = position + step.width
            if isinstance(step, Field):
                last = (end + 7) // 8
                places.append(Place(position // 8, last, 8 * last - end, (1 << step.width) - 1, step))
            position = end
            done += 1
    return Program(making.first, tuple(places), position, tuple(steps[done:]), making.count)


def run(program: Program, data: bytes, is_compressed: bool, take: Take) -> None:
    """Read the values of the first report, until `take` has enough; raise Undecodable if they cannot be read."""
    size = len(data)
    for begin, end, shift, ones, of in program.places:
        if end > size:
            raise Undecodable("section 4 ends too early")
        bits = int.from_bytes(data[begin:end], "big") >> shift & ones
        if take(of.descriptor, _value(bits, ones, of, of.reference)):
            return
    if program.fixed_size > 8 * size:
        raise Undecodable("section 4 ends too early")
    if program.rest:
        _Run(data, 8 * size, program.fixed_size, is_compressed, take).steps(program.rest)


def _value(bits: int, ones: int, of: Field, reference: int) -> Value:
    """Return a value; one of which all bits are set is missing, if it has more than one."""
    if bits == ones and ones > 1:
        return None
    if of.is_text:
        text = bits.to_bytes((of.width + 7) // 8, "big").decode("latin-1")
        return text.partition("\0")[0].rstrip()
    value = bits + reference
    if of.scale:
        value = value * 10**-of.scale if of.scale < 0 else value // 10**of.scale
    return value


@dataclass(slots=True)
class _Run:
    data: bytes  # section 4
    size: int  # number of its bits
    position: int  # of the next bit
    is_compressed: bool  # increments follow each value
    take: Take  # as in `run`
    references: dict[int, int] = field(default_factory=dict)  # reference values that the data changed
    count: int = 0  # descriptors so far

    def steps(self, steps: Sequence[Step]) -> bool:
        """Run steps; return whether `take` has enough."""
        for step in steps:
            self._counted(1)
            if isinstance(step, Field):
                if self._field(step):
                    return True
            elif isinstance(step, Skip):
                self._skip(step, 1)
            elif isinstance(step, Repeat):
                if self._repeat(step):
                    return True
            elif isinstance(step, NewReference):
                self._refer(step)
            elif isinstance(step, Stop):
                if step.reason:
                    raise Undecodable(step.reason)
                return True
        return False

    def _counted(self, count: int) -> None:
        self.count += count
        if self.count > MOST:
            raise Undecodable(f"more than {MOST} descriptors")

    def _bits(self, width: int) -> int:
        begin, end = self.position, self.position + width
        if end > self.size:
            raise Undecodable("section 4 ends too early")
        self.position = end
        last = (end + 7) >> 3
        return (int.from_bytes(self.data[begin >> 3 : last], "big") >> ((last << 3) - end)) & ((1 << width) - 1)

    def _skip(self, step: Skip, times: int) -> None:
        self._counted(step.elements * times)
        self.position += step.width * times
        if self.position > self.size:
            raise Undecodable("section 4 ends too early")

    def _field(self, step: Field) -> bool:
        bits, width = self._bits(step.width), step.width
        if self.is_compressed:
            more = self._bits(_INCREMENT_BITS)
            if more and step.is_text:
                width = 8 * more
                bits = self._bits(width)
                step = step._replace(width=width)
            elif more:
                increment = self._bits(more)
                is_missing = increment == (1 << more) - 1 or bits == (1 << width) - 1
                bits = (1 << width) - 1 if is_missing else bits + increment
        if step.descriptor == NOTHING:
            return False
        reference = self.references.get(step.descriptor, step.reference)
        return self.take(step.descriptor, _value(bits, (1 << width) - 1, step, reference))

    def _refer(self, step: NewReference) -> None:
        if not step.width:
            self.references.clear()
            return
        bits, sign = self._bits(step.width), 1 << (step.width - 1)
        if self.is_compressed:
            self._bits(_INCREMENT_BITS)
        self.references[step.descriptor] = sign - bits if bits & sign else bits

    def _repeat(self, step: Repeat) -> bool:
        count = step.times
        if step.factor_width:
            count = self._bits(step.factor_width)
            if self.is_compressed and (more := self._bits(_INCREMENT_BITS)):
                count += self._bits(more)
        count = min(count, step.most)
        body = step.body
        if len(body) == 1 and isinstance(skipped := body[0], Skip):
            self._skip(skipped, count)
            return False
        if not body:
            return False
        return any(self.steps(body) for _ in range(count))

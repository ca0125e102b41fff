"""Conditions in Python: `(f.station == 5) & (f.reftime >= monday)`, over the declared fields of a dataset."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

from ondisk.datum import METADATA, FieldType, Value, canonical
from ondisk.errors import InvalidInput, MatchError, shown
from ondisk.matcher import (
    Compare,
    Expression,
    IsMissing,
    Kind,
    Not,
    OneOf,
    Operator,
    Scalar,
    StartsWith,
    Undeclared,
)
from ondisk.matcher.fragments import NOT_DECLARED, known_fields

_TAKES = {
    FieldType.INTEGER: "an int of 64 bits",
    FieldType.REAL: "a float that is a number",
    FieldType.TEXT: "a str",
    FieldType.BOOLEAN: "True or False",
    FieldType.TIMESTAMP: "a timezone-aware datetime",
    FieldType.BYTES: "bytes",
    FieldType.ITEM: "a str",
}


_KINDS: list[tuple[type, Kind, FieldType]] = [
    (bool, "boolean", FieldType.BOOLEAN),
    (int, "number", FieldType.INTEGER),
    (float, "number", FieldType.REAL),
    (str, "text", FieldType.TEXT),
    (bytes, "bytes", FieldType.BYTES),
    (datetime, "time", FieldType.TIMESTAMP),
]


class Field:
    """One field; a comparison returns an `Expression`, not a truth value.

    Data without the field do not match `== < <= > >=`, `isin` or `startswith`. `!=` matches exactly the data that `==`
    does not match, so also data without the field. Sets and dicts compare fields by identity.

    Attributes:
        name: its name in `dataset.toml`.
        kind: its declared type; comparing with a value of another type raises MatchError.
    """

    __slots__ = ("kind", "name")

    def __init__(self, name: str, kind: FieldType) -> None:
        self.name = name
        self.kind = kind

    def __eq__(self, value: object) -> Expression:  # type: ignore[override]
        return self._compare("=", value)

    def __ne__(self, value: object) -> Expression:  # type: ignore[override]
        return Not(self._compare("=", value))

    def __lt__(self, value: Value) -> Expression:
        return self._compare("<", value)

    def __le__(self, value: Value) -> Expression:
        return self._compare("<=", value)

    def __gt__(self, value: Value) -> Expression:
        return self._compare(">", value)

    def __ge__(self, value: Value) -> Expression:
        return self._compare(">=", value)

    # A dict compares identity before equality, so it finds a field without calling `==`.
    __hash__ = object.__hash__

    def __bool__(self) -> bool:
        raise TypeError(f"the field {self.name} has no truth value: compare it, or use ~field.is_null()")

    def __repr__(self) -> str:
        return f"Field({self.name!r}, {self.kind})"

    def isin(self, values: Iterable[Value]) -> Expression:
        """Match data with a value equal to one of `values`, a list; empty `values` match nothing; raise MatchError."""
        if isinstance(values, str | bytes):
            raise MatchError(
                f"{self._label}.isin({shown(values)}) would compare with each of its characters or bytes",
                hint=f"Put the values in a list: {self._label}.isin([{shown(values)}]).",
            )
        return self._one_of(values)

    def is_null(self) -> Expression:
        """Match data without the field."""
        return IsMissing(self.name)

    def startswith(self, prefix: str) -> Expression:
        """Match texts that start with `prefix`; upper and lower case differ. Raises MatchError of other types."""
        if not self.kind.is_text:
            raise MatchError(
                f"{self.name} is declared {self.kind}, not text", hint="Compare it with == < <= > >= or isin."
            )
        return StartsWith(self.name, str(self._stored(prefix)))

    @property
    def _label(self) -> str:
        return self.name

    def _compare(self, operator: Operator, value: object) -> Expression:
        return Compare(self.name, operator, self._stored(value))

    def _one_of(self, values: Iterable[Value]) -> Expression:
        return OneOf(self.name, tuple(dict.fromkeys(map(self._stored, values))))

    def _stored(self, value: Any) -> Scalar:
        self._check_given(value)
        try:
            return canonical(value, self.kind)
        except InvalidInput as error:
            raise MatchError(f"{self.name}: {error.message}", hint=f"Compare it with {_TAKES[self.kind]}.") from None

    def _check_given(self, value: object) -> None:
        if value is None:
            raise MatchError(
                f"{self._label} cannot be compared with None",
                hint=f"For data without the field write {self._label}.is_null(), for others ~{self._label}.is_null().",
            )


class UndeclaredField(Field):
    """Metadata that no field declares. The type of what they are compared with decides which values can match.

    Numbers are compared as numbers, whether int or float, and a datetime with texts that are RFC 3339 times. The data
    are read for it, so a declared field is much faster.
    """

    __slots__ = ("_said",)

    def __init__(self, name: str) -> None:
        super().__init__(METADATA + name, FieldType.TEXT)
        self._said = name

    def __repr__(self) -> str:
        return f"Field({shown(self.name)}, not declared)"

    @property
    def _label(self) -> str:
        return f"fields[{shown(self.name)}]"

    def is_null(self) -> Expression:
        return Not(Undeclared(self._said, None))

    def startswith(self, prefix: str) -> Expression:
        return Undeclared(self._said, (("text", StartsWith(self.name, str(self._stored(prefix)))),))

    def _compare(self, operator: Operator, value: object) -> Expression:
        kind, stored = self._typed(value)
        return Undeclared(self._said, ((kind, Compare(self.name, operator, stored)),))

    def _one_of(self, values: Iterable[Value]) -> Expression:
        found: dict[Kind, dict[Scalar, None]] = {}
        for kind, stored in map(self._typed, values):
            found.setdefault(kind, {})[stored] = None
        readings = ((kind, OneOf(self.name, tuple(each))) for kind, each in found.items())
        return Undeclared(self._said, tuple(readings))

    def _typed(self, value: Any) -> tuple[Kind, Scalar]:
        """Return the type of values that can equal this one, and its stored form."""
        self._check_given(value)
        for type_, kind, declared in _KINDS:
            if issubclass(type(value), type_):
                try:
                    stored: Scalar = value if type_ is int else canonical(value, declared)
                except InvalidInput as error:
                    raise MatchError(f"{self._label}: {error.message}") from None
                return kind, stored
        hint = "Compare it with a str, int, float, bool, bytes or datetime."
        raise MatchError(f"{self._label} cannot be compared with {shown(value)}", hint=hint)


class Fields:
    """The fields that conditions can use: `f.station`, `f["station"]`, and always `f.reftime`.

    `f["metadata.sensor"]` are metadata that are not declared; if `sensor` is declared, it is that field.

    Iteration yields the names, `reftime` first. Access to an unknown attribute raises AttributeError, so that
    `hasattr`, copying and completion work as usual; access to an unknown item raises MatchError. Both errors list the
    known fields. The class has no public methods, because a method would hide a field of the same name.

    Args:
        fields: the declared fields, name → type.
    """

    # The mangled name has a capital letter, so no field can have the same name.
    __slots__ = ("__fields",)

    def __init__(self, fields: Mapping[str, FieldType]) -> None:
        kinds = {"reftime": FieldType.TIMESTAMP} | dict(fields)
        self.__fields = {name: Field(name, kind) for name, kind in kinds.items()}

    def __getitem__(self, name: str) -> Field:
        field = self.__fields.get(name)
        if field is not None:
            return field
        said = str(name).removeprefix(METADATA)
        if said and said != name:
            declared = None if said == "reftime" else self.__fields.get(said)
            return UndeclaredField(said) if declared is None else declared
        raise MatchError(f"there is no field {shown(name)}", hint=known_fields(name, list(self)) + NOT_DECLARED)

    def __getattr__(self, name: str) -> Field:
        field = self.__fields.get(name)
        if field is None:
            # No full stop: Python appends ". Did you mean: 'station'?", from `__dir__`.
            message = f"there is no field {shown(name)}\nThe fields are {', '.join(self)}"
            raise AttributeError(message, name=name, obj=self)
        return field

    def __iter__(self) -> Iterator[str]:
        return iter(self.__fields)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self]

    def __repr__(self) -> str:
        return f"Fields({', '.join(f'{name}: {self[name].kind}' for name in self)})"

    def __reduce__(self) -> tuple[Any, ...]:
        # Without this, unpickling would read attributes of an incomplete object.
        return Fields, ({name: field.kind for name, field in self.__fields.items()},)

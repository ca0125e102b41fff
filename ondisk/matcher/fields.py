"""Conditions in Python: `(f.station == 5) & (f.reftime >= monday)`, over the declared fields of a dataset."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ondisk.datum import FieldType, Value, canonical
from ondisk.errors import InvalidInput, MatchError
from ondisk.matcher.parsing import known_fields
from ondisk.matcher.tree import Compare, Expression, IsMissing, Not, OneOf, Operator, Scalar, StartsWith

_TAKES = {
    FieldType.INTEGER: "an int of 64 bits",
    FieldType.REAL: "a float that is a number",
    FieldType.TEXT: "a str",
    FieldType.BOOLEAN: "True or False",
    FieldType.TIMESTAMP: "a timezone-aware datetime",
    FieldType.BYTES: "bytes",
}


class Field:
    """One field; comparing it gives an `Expression` instead of a truth value.

    Data that lack the field match none of `== < <= > >=`, `isin` and `startswith`. `!=` matches exactly what `==`
    does not, and so what lacks the field, too. Being a key of a dict or in a set is a matter of identity.

    Attributes:
        name: its name in `dataset.toml`.
        kind: its declared type; a value of another type is a MatchError.
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

    # A dict asks for identity before equality, so a field is found without its `==` being asked.
    __hash__ = object.__hash__

    def __bool__(self) -> bool:
        raise TypeError(f"the field {self.name} has no truth value: compare it, or ask for ~field.is_null()")

    def __repr__(self) -> str:
        return f"Field({self.name!r}, {self.kind})"

    def isin(self, values: Iterable[Value]) -> Expression:
        """Match data whose value equals one of `values`; no values match nothing.

        Raises:
            MatchError: `values` is one text or bytes, or one of them is not of the field's type.
        """
        if isinstance(values, str | bytes):
            raise MatchError(
                f"{self.name}.isin({values!r}) would ask for each of its parts",
                hint=f"Put the values in a list: {self.name}.isin([{values!r}]).",
            )
        return OneOf(self.name, tuple(dict.fromkeys(map(self._stored, values))))

    def is_null(self) -> Expression:
        """Match data that lack the field."""
        return IsMissing(self.name)

    def startswith(self, prefix: str) -> Expression:
        """Match texts that start with `prefix`, letter by letter; upper and lower case differ.

        Raises:
            MatchError: the field is no text, or `prefix` is not.
        """
        if self.kind is not FieldType.TEXT:
            raise MatchError(
                f"{self.name} is declared {self.kind}, not text", hint="Compare it with == < <= > >= or isin."
            )
        return StartsWith(self.name, str(self._stored(prefix)))

    def _compare(self, operator: Operator, value: object) -> Expression:
        return Compare(self.name, operator, self._stored(value))

    def _stored(self, value: Any) -> Scalar:
        if value is None:
            raise MatchError(
                f"{self.name} cannot be compared with None",
                hint=f"For data that lack the field write {self.name}.is_null(), for others ~{self.name}.is_null().",
            )
        try:
            return canonical(value, self.kind)
        except InvalidInput as error:
            raise MatchError(f"{self.name}: {error.message}", hint=f"Give it {_TAKES[self.kind]}.") from None


class Fields:
    """The fields that conditions can ask for: `f.station`, `f["station"]`, and always `f.reftime`.

    Iterating gives the names, `reftime` first. An unknown name is an AttributeError as an attribute, so that `hasattr`,
    copying and completion work as everywhere, and a MatchError as an item; both name the known fields.
    It has no methods of its own, so that no field is hidden by one.

    Args:
        fields: the declared fields, name → type.
    """

    # The mangled name cannot be that of a field: it has a capital letter.
    __slots__ = ("__fields",)

    def __init__(self, fields: Mapping[str, FieldType]) -> None:
        kinds = {"reftime": FieldType.TIMESTAMP} | dict(fields)
        self.__fields = {name: Field(name, kind) for name, kind in kinds.items()}

    def __getitem__(self, name: str) -> Field:
        field = self.__fields.get(name)
        if field is None:
            raise MatchError(f"there is no field {name!r}", hint=known_fields(name, list(self)))
        return field

    def __getattr__(self, name: str) -> Field:
        field = self.__fields.get(name)
        if field is None:
            # No full stop: Python puts ". Did you mean: 'station'?" behind it, from `__dir__`.
            message = f"there is no field {name!r}\nThe fields are {', '.join(self)}"
            raise AttributeError(message, name=name, obj=self)
        return field

    def __iter__(self) -> Iterator[str]:
        return iter(self.__fields)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self]

    def __repr__(self) -> str:
        return f"Fields({', '.join(f'{name}: {self[name].kind}' for name in self)})"

    def __reduce__(self) -> tuple[Any, ...]:
        # Without it, unpickling would ask the unfinished object for attributes.
        return Fields, ({name: field.kind for name, field in self.__fields.items()},)

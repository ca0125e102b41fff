"""Formats whose data say themselves when they are, and what is in them: as items, and as numbers beside these."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, ClassVar

from ondisk.config import DatasetConfig
from ondisk.datum import Datum, FieldType, microseconds
from ondisk.errors import ConfigError, InvalidInput, shown
from ondisk.formats.base import Format
from ondisk.named_tuple import NamedTuple

_AMBIGUOUS = re.compile(r'["=]|^[+-]?[0-9]+$', re.ASCII)
_SEPARATORS = re.compile(r'[,:="]')


class Content(NamedTuple):
    metadata: Mapping[str, Any]  # canonical values of the declared fields
    all: Mapping[str, Any]  # values by name, also of fields that are not declared


class HasItems(Format):
    """A format whose data have items; the fields and the unique keys of a dataset must fit them."""

    # the names of the items that a datum can have; fields of these names are items or texts
    items: ClassVar[frozenset[str]]
    # the other values that a datum can have; they are stored only where they are declared
    numbers: ClassVar[Mapping[str, FieldType]] = {}

    def __init__(self, config: DatasetConfig) -> None:
        super().__init__(config)
        for name, kind in config.fields.items():
            if name in self.items and not kind.is_text:
                raise self._wrong(name, FieldType.ITEM)
            number = self.numbers.get(name, kind)
            if kind is not number and (kind, number) != (FieldType.REAL, FieldType.INTEGER):
                raise self._wrong(name, number)
        others = set(config.unique) - {"reftime"}
        if config.format == self.name and others and not others & {*self.items, *self.numbers}:
            # All data of one time would be duplicates of the first.
            names = ", ".join(f'"{name}"' for name in sorted(self.items))
            problem = f"unique: data of {self.name} do not have {', '.join(sorted(others))}"
            raise ConfigError(problem, hint=f'Use what they have: unique = ["reftime", {names}].', key="unique")

    @property
    def undeclared(self) -> bool:
        return not self.items <= self.config.fields.keys()

    def check_given(self, datum: Datum, reftime: int, found: Mapping[str, Any]) -> None:
        """Raise InvalidInput if what the caller says of a datum is not what was found in its bytes."""
        if microseconds(datum.reftime) != reftime:
            raise InvalidInput(f"reftime is {datum.reftime.isoformat()}, but another time in the data")
        for name, value in datum.metadata.items():
            if name not in found:
                raise InvalidInput(f"the data do not have the metadata {shown(name)}")
            if value != found[name]:
                raise InvalidInput(f"{name} is {shown(value)}, but {shown(found[name])} in the data")

    def _wrong(self, name: str, kind: FieldType) -> ConfigError:
        problem = f"{name} of {self.name} is {kind}, not {self.config.fields[name]}"
        return ConfigError(problem, hint=f'Write {name} = "{kind}" under [fields].', key=f"fields.{name}")


class Described(HasItems):
    """A format whose data say themselves when they are, and what is in them."""

    durations: ClassVar[frozenset[str]] = frozenset(("step", "period"))

    def __init__(self, config: DatasetConfig) -> None:
        super().__init__(config)
        fields = config.fields
        self._declared_items = self.items & fields.keys()
        self._declared_numbers = [name for name in self.numbers if name in fields]
        self._reals = {name for name in self._declared_numbers if fields[name] is FieldType.REAL}

    @abstractmethod
    def read(self, payload: bytes) -> tuple[int, Content]:
        """Return the reftime of a datum, in microseconds, and what it says of itself; or raise InvalidInput."""

    def items_of(self, content: Content) -> dict[str, Any]:
        """Return what is stored of a datum: all its items, and the numbers that are declared."""
        return {**{name: content.all[name] for name in content.all if name in self.items}, **content.metadata}

    def content(self, values: Mapping[str, Any]) -> Content:
        metadata = {name: values[name] for name in values if name in self._declared_items}
        for name in self._declared_numbers:
            if name in values:
                metadata[name] = float(values[name]) if name in self._reals else values[name]
        return Content(metadata, values)


def time_of(year: int, month: int, day: int, hour: int, minute: int, second: int) -> datetime:
    """Return a time as data say it; raise InvalidInput if it is impossible."""
    try:
        return datetime(year, month, day, hour, minute, second, tzinfo=UTC)
    except (ValueError, OverflowError):
        said = f"{year}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}"
        raise InvalidInput(f"its time, {said}, is not a time") from None


def quoted(value: Any) -> str:
    """Return a value as an item contains it: a text in double quotes if it would be read as something else."""
    text = str(value)
    is_plain = not isinstance(value, str) or (not _AMBIGUOUS.search(text) and text.strip(", ") == text != "")
    return text if is_plain else '"' + text.replace('"', "'") + '"'


def pairs(style: str, values: Mapping[str, Any]) -> str:
    """Return an item that has values by key; None is left out."""
    return f"{style}:" + ",".join(f"{key}={quoted(values[key])}" for key in sorted(values) if values[key] is not None)


def positions(style: str, *values: Any) -> str:
    """Return an item that has values by position; raise InvalidInput if one has a character that separates these."""
    for value in values:
        if _SEPARATORS.search(str(value)):
            raise InvalidInput(f'{shown(value)} cannot be part of an item: it has one of the characters , : = "')
    return ",".join([style, *map(str, values)])

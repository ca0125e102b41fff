"""Metadata in CBOR: the original values, except for times, which are text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from datetime import datetime
from math import isnan
from typing import Any, Generic, TypeVar

from ondisk.datum import INTEGER_MAX, INTEGER_MIN, NO_METADATA, FieldType, canonical
from ondisk.errors import InvalidInput
from ondisk.json_values import format_time, from_json, parse_time

_T = TypeVar("_T")
_CACHED = 50_000
_COMBINATIONS, _LONG = 10_000, 256  # limits of the cache of `Declared`: of metadata; bytes of a text
_TYPES = {
    FieldType.INTEGER: int,
    FieldType.REAL: float,
    FieldType.TEXT: str,
    FieldType.ITEM: str,
    FieldType.BOOLEAN: bool,
    FieldType.BYTES: bytes,
}


class OncePerMapping(Generic[_T]):
    """What a function returns for metadata, called once for a mapping that many data share, and that nobody changes."""

    def __init__(self, function: Callable[[Mapping[str, Any]], _T]) -> None:
        self._function = function
        self._known: dict[int, tuple[Mapping[str, Any], _T]] = {}  # the mapping is kept, so that no other gets its id

    def of(self, metadata: Sequence[Mapping[str, Any]]) -> list[_T]:
        if len(self._known) > _CACHED:
            self._known.clear()
        found: dict[int, _T] = {}
        for key, each in {id(each): each for each in metadata}.items():
            known = self._known.get(key)
            if known is None or known[0] is not each:
                known = self._known[key] = (each, self._function(each))
            found[key] = known[1]
        return [*map(found.__getitem__, map(id, metadata))]


def times_to_text(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return metadata with the timestamps as text; raise InvalidInput if one has no time zone."""
    return {
        key: format_time(int(canonical(value, FieldType.TIMESTAMP))) if isinstance(value, datetime) else value
        for key, value in metadata.items()
    }


def canonical_metadata(
    metadata: Mapping[str, Any], fields: Mapping[str, FieldType], *, times_as_text: bool, shapes: bool = False
) -> dict[str, Any]:
    """Return canonical values of the declared fields without None; InvalidInput names the field.

    Timestamps may be RFC 3339 text, if `times_as_text`, and values may have the `shapes` of `json_values`.
    """
    found: dict[str, Any] = {}
    for name, kind in fields.items():
        value = metadata.get(name)
        if value is None:
            continue
        try:
            if times_as_text and kind is FieldType.TIMESTAMP and type(value) is str:
                found[name] = parse_time(value)
            else:
                found[name] = canonical(from_json(value) if shapes else value, kind)
        except InvalidInput as error:
            raise InvalidInput(f"{name}: {error.message}") from None
    return found


def without(metadata: Mapping[str, Any], declared: Set[str]) -> dict[str, Any]:
    return {key: value for key, value in metadata.items() if key not in declared}


class Declared:
    """Returns the canonical values of the declared fields; equal values share one mapping."""

    def __init__(self, kinds: Mapping[str, FieldType]) -> None:
        self._kinds = kinds
        self._shared = _Metadata(kinds)

    def of(self, metas: Sequence[Mapping[str, Any]], *, from_frame: bool) -> list[Mapping[str, Any]]:
        """Return canonical values of the declared fields; `from_frame`: timestamps are text."""
        columns = [[meta.get(name) for meta in metas] for name in self._shared.kinds]
        if not columns:
            return [NO_METADATA] * len(metas)
        if not all(map(_are_canonical, columns, self._shared.kinds.values())):
            return [self.one(meta, from_frame=from_frame) for meta in metas]
        if len(self._shared) > _COMBINATIONS:
            self._shared.clear()
        return list(map(self._shared.__getitem__, zip(*columns, strict=True)))

    def one(self, meta: Mapping[str, Any], *, from_frame: bool) -> dict[str, Any]:
        return canonical_metadata(meta, self._kinds, times_as_text=from_frame)


class _Metadata(dict[tuple[Any, ...], Mapping[str, Any]]):
    """Canonical values of the declared fields, in order → metadata; equal values share one mapping."""

    def __init__(self, kinds: Mapping[str, FieldType]) -> None:
        super().__init__()
        self.kinds = kinds

    def __missing__(self, key: tuple[Any, ...]) -> Mapping[str, Any]:
        metadata = {name: value for name, value in zip(self.kinds, key, strict=True) if value is not None}
        if all(map(_is_worth_keeping, key)):
            self[key] = metadata
        return metadata


def _is_worth_keeping(value: Any) -> bool:
    if isinstance(value, str | bytes):
        return len(value) < _LONG
    return type(value) is not float or value != 0  # 0.0 and -0.0 are equal, but not the same value


def _are_canonical(values: list[Any], kind: FieldType) -> bool:
    """Return whether the values of one field, which may be None, are already canonical."""
    kinds = set(map(type, values))
    if type(None) in kinds:
        values = [value for value in values if value is not None]
        kinds.discard(type(None))
    if not kinds:
        return True
    if kinds != {_TYPES.get(kind)}:
        return False
    match kind:
        case FieldType.INTEGER:
            return bool(min(values) >= INTEGER_MIN and max(values) <= INTEGER_MAX)
        case FieldType.REAL:
            return not any(map(isnan, values))
        case FieldType.TEXT | FieldType.ITEM:
            return "".join(values).isascii()
        case _:
            return True

"""The declared fields in the metadata of events, as canonical values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isnan
from typing import Any

from ondisk.datum import INTEGER_MAX, INTEGER_MIN, NO_METADATA, FieldType
from ondisk.formats.metadata import canonical_metadata

_CACHED, _LONG = 10_000, 256  # limits of the cache: combinations of metadata; bytes of a text
_TYPES = {
    FieldType.INTEGER: int,
    FieldType.REAL: float,
    FieldType.TEXT: str,
    FieldType.ITEM: str,
    FieldType.BOOLEAN: bool,
    FieldType.BYTES: bytes,
}


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
        if len(self._shared) > _CACHED:
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

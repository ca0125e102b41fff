"""Metadata in CBOR: the original values, except for times, which are text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from datetime import datetime
from typing import Any, Generic, TypeVar

from ondisk.datum import FieldType, canonical
from ondisk.errors import InvalidInput
from ondisk.json_shapes import format_time, from_json, parse_time

_T = TypeVar("_T")
_CACHED = 50_000


class OncePerMapping(Generic[_T]):
    """What a function returns for metadata, called once for a mapping that many data share, and that nobody changes."""

    def __init__(self, function: Callable[[Mapping[str, Any]], _T]) -> None:
        self._function = function
        self._known: dict[int, tuple[Mapping[str, Any], _T]] = {}  # the mapping is kept, so that no other gets its id

    def of(self, metadata: Sequence[Mapping[str, Any]]) -> list[_T]:
        """Return what it returns for each."""
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
    """Return canonical values of the declared fields; None is the same as missing. InvalidInput names the field.

    Args:
        times_as_text: timestamps may be RFC 3339 text.
        shapes: values may have the shapes of `json_shapes`.
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
    """Return the metadata that are not declared."""
    return {key: value for key, value in metadata.items() if key not in declared}

"""Metadata in CBOR: the original values, except for times, which are text."""

from __future__ import annotations

from collections.abc import Mapping, Set
from datetime import datetime
from typing import Any

from ondisk.datum import FieldType, canonical
from ondisk.errors import InvalidInput
from ondisk.json_shapes import format_time, from_json, parse_time


def times_to_text(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return metadata with the timestamps as text.

    Raises:
        InvalidInput: one has no time zone.
    """
    return {
        key: format_time(int(canonical(value, FieldType.TIMESTAMP))) if isinstance(value, datetime) else value
        for key, value in metadata.items()
    }


def canonical_metadata(
    metadata: Mapping[str, Any], fields: Mapping[str, FieldType], *, times_as_text: bool, shapes: bool = False
) -> dict[str, Any]:
    """Return canonical values of the declared fields; None is the same as missing.

    Args:
        times_as_text: timestamps may be RFC 3339 text.
        shapes: values may have the shapes of `json_shapes`.

    Raises:
        InvalidInput: a value is not of its field's type; the message names the field.
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

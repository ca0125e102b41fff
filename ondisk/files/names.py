"""Names of exported files: a template over reftime and metadata, and which names are safe.

    {reftime:%Y%m%d_%H%M}_{site}.jpg    20261120_1200_north.jpg
    {site}/{station:04}_{reftime}       north/0005_20261120T120000Z

A template is not a format string of Python: it names no attributes and no items. Whoever wrote the metadata may have
chosen them to lead out of the folder: a name that does so, or that no file can have, is refused.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from string import Formatter
from typing import Any

from ondisk.datum import Datum, FieldType
from ondisk.errors import InvalidInput, shown

DEFAULT = "{path}"  # the path that `ondisk.files.append` has stored
_LONGEST_PART, _LONGEST = 255, 4096  # bytes
_NAME = re.compile("[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_LETTERS = re.compile("%[-_0^#]*[0-9]*[EO]?(.)", re.DOTALL)  # of strftime
_LONG = re.compile("[0-9]{4}")  # a width that only a mistake has
_SAMPLES: dict[FieldType, Any] = {
    FieldType.INTEGER: 1,
    FieldType.REAL: 1.5,
    FieldType.TEXT: "x",
    FieldType.ITEM: "x",
    FieldType.BOOLEAN: True,
    FieldType.TIMESTAMP: datetime(2026, 11, 20, tzinfo=UTC),
    FieldType.BYTES: b"x",
}


class Names:
    """Returns the name of the file of a datum.

    Args:
        template: literal text, and `{NAME}` or `{NAME:FORM}` for reftime and metadata; a FORM is one of `strftime` for
            times, otherwise one of Python's `format`. `{{` is a brace.
    """

    def __init__(self, template: str, fields: Mapping[str, FieldType]) -> None:
        try:
            parts = [*Formatter().parse(template)]
        except ValueError as error:
            raise _invalid(template, str(error)) from None
        self._parts: list[tuple[str, str | None, str]] = []
        kinds = {**fields, "reftime": FieldType.TIMESTAMP}
        for literal, name, form, conversion in parts:
            if name is not None and (conversion or not _NAME.fullmatch(name) or "{" in (form or "")):
                raise _invalid(template, f"{shown(name)} is not a name of metadata")
            if name in kinds:
                try:
                    _text(_SAMPLES[kinds[name]], form or "")
                except ValueError as error:
                    raise _invalid(template, f"{name} has the type {kinds[name]}: {error}") from None
            self._parts.append((literal, name, form or ""))
        # the names in the template: reftime, and those of metadata
        self.used = {name for _, name, _ in self._parts if name is not None}
        if not self.used:
            raise _invalid(template, "all files would have one name")
        try:
            safe("".join(literal + ("" if name is None else "x") for literal, name, _ in self._parts))
        except InvalidInput as error:  # no value makes it safe
            raise _invalid(template, error.message) from None
        # metadata are named that are not declared: only reading the data finds them
        self.needs_data = not self.used <= kinds.keys()

    def __call__(self, datum: Datum) -> str:
        """Return the path of a datum's file in the folder; raise InvalidInput if it lacks metadata, or is not safe."""
        text = ""
        for literal, name, form in self._parts:
            text += literal
            if name is not None:
                value = datum.reftime if name == "reftime" else datum.metadata.get(name)
                if value is None:
                    raise InvalidInput(f"it has no {name}")
                try:
                    text += _text(value, form)
                except ValueError as error:
                    raise InvalidInput(f"{name}: {error}") from None
        return safe(text)


def safe(name: str) -> str:
    """Return a name that leads to a file inside of a folder; raise InvalidInput if it does not, or is too long."""
    parts = name.split("/")
    if "\0" in name or any(part in ("", ".", "..") for part in parts):
        raise InvalidInput(f"its name would be {shown(name)}, which does not name a file inside the folder")
    try:
        sizes = [len(os.fsencode(part)) for part in parts]
    except UnicodeEncodeError:
        raise InvalidInput(f"its name would be {shown(name)}, which cannot be written in this locale") from None
    if max(sizes) > _LONGEST_PART or sum(sizes) + len(sizes) > _LONGEST:
        raise InvalidInput(f"its name would have {sum(sizes)} bytes: {shown(name)}")
    return name


def _text(value: Any, form: str) -> str:
    """Return the text of a value; raise ValueError if values of its type have no such form."""
    if _LONG.search(form) and not isinstance(value, datetime):
        raise ValueError(f"{shown(form)} is too wide")
    match value:
        case datetime():
            if "s" in _LETTERS.findall(form):
                raise ValueError("%s is in the time zone of this machine")
            fraction = ".%f" if value.microsecond else ""
            return value.astimezone(UTC).strftime(form or f"%Y%m%dT%H%M%S{fraction}Z")
        case bool():
            return format(str(value).lower(), form)
        case str() | int() | float():
            return format(value, form)
        case bytes():
            return format(value.hex(), form)
    raise ValueError(f"{shown(value)} has no text for a name")


def _invalid(template: str, problem: str) -> InvalidInput:
    hint = "Write for example {reftime:%Y%m%d_%H%M}_{site}.jpg; {{ is a brace."
    return InvalidInput(f"{shown(template)} is not a template for names: {problem}", hint=hint)

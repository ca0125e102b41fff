"""What files are called: as the reftime and metadata of their data when they are appended, and back at an export.

    time      name:%Y%m%d_%H%M    found in the file's name
              path:%Y/%m/%d/%H    found in its path
              mtime               when it changed last
    fields    path                the path, as in `north/20261120_1200.jpg`
              path:1, path:-1     its first folder, its last one
              name                the name of the file
              name:1, name:-1     a part of the name, between `_`, `-`, `.` or blanks

A path is relative to the folder that was named. It is also stored as the metadata `path`, unless a field is called so.

Names of exported files are a template over reftime and metadata:

    {reftime:%Y%m%d_%H%M}_{site}.jpg    20261120_1200_north.jpg
    {site}/{station:04}_{reftime}       north/0005_20261120T120000Z

A template is not a format string of Python: it names no attributes and no items. Whoever wrote the metadata may have
chosen them to lead out of the folder: a name that does so, or that no file can have, is refused.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from string import Formatter
from typing import Any, TypeAlias

from ondisk.datum import Datum, FieldType, Value, from_microseconds
from ondisk.errors import InvalidInput, shown
from ondisk.local_time import to_utc, zone_of
from ondisk.tables.times import TimeFormat, Times, Zone
from ondisk.tables.values import reader

PATH = "path"

Field: TypeAlias = Callable[[str], Any]
"""Returns the value of a field for a path.

Raises:
    InvalidInput: the path has none.
"""

_DIGITS = {"Y": 4, "m": 2, "d": 2, "H": 2, "M": 2, "S": 2, "j": 3}
_DIRECTIVES = {each: f"[0-9]{{{count}}}" for each, count in _DIGITS.items()} | {
    "f": "[0-9]{1,6}",
    "z": "(?:Z|[+-][0-9]{2}:?[0-9]{2})",
    "%": "%",
}
_DIRECTIVE = re.compile("%(.?)", re.DOTALL)
_BETWEEN = re.compile("[-_. ]+")
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


class Describe:
    """Reads reftime and metadata of a file from its path, and from when it changed; as in `ondisk.files.append`."""

    def __init__(self, time: str, sources: Mapping[str, str], tz: str | None, fields: Mapping[str, FieldType]) -> None:
        kind, colon, form = time.partition(":")
        if kind not in ("mtime", "name", PATH) or (kind == "mtime") == bool(colon):
            hint = "Write name:%Y%m%d_%H%M, path:%Y/%m/%d/%H%M or mtime."
            raise InvalidInput(f"{shown(time)} does not say where the time of a file is", hint=hint)
        if kind == "mtime" and tz is not None:
            raise InvalidInput("a time zone is for times in names; mtime is in UTC", hint="Omit the time zone.")
        self._time = None if kind == "mtime" else TimeInText(form, kind, tz)
        if "reftime" in sources:
            raise InvalidInput("reftime is the time of a file, and no field", hint="Say with the time where it is.")
        for name in sources:
            same = next((each for each in fields if each.lower() == name.lower()), name)
            if name not in fields and same != name:
                raise InvalidInput(f"there is no field {shown(name)}", hint=f"Did you mean {same}?")
        self._fields = {name: _field(name, source, fields.get(name)) for name, source in sources.items()}
        if PATH not in sources:
            self._fields[PATH] = _field(PATH, PATH, fields.get(PATH))

    def __call__(self, path: str, mtime: int) -> tuple[datetime, dict[str, Any]]:
        """Return reftime and metadata of a file that changed at `mtime`, in ns since 1970; or raise InvalidInput."""
        try:
            path = os.fsencode(path).decode()
        except UnicodeDecodeError:
            raise InvalidInput("its path is not UTF-8") from None
        metadata = {name: value(path) for name, value in self._fields.items()}
        if self._time is not None:
            return self._time(path), metadata
        try:
            return from_microseconds(mtime // 1000), metadata
        except OverflowError:
            raise InvalidInput("the year of its mtime is not one of 1 to 9999") from None


class TimeInText:
    """Finds a time in a path or a name. `form`: literal text and directives of strptime with a fixed width."""

    def __init__(self, form: str, kind: str, tz: str | None) -> None:
        self._form, self._kind, self._time_of = form, kind, TimeFormat(form)
        letters = _DIRECTIVE.findall(form)
        unknown = [f"%{letter}" for letter in letters if letter not in _DIRECTIVES]
        if unknown or len({*letters}) < len(letters) or "Y" not in letters:
            problem = f"{unknown[0]} is not known" if unknown else "it needs %Y, and each letter once"
            hint = f"Use {', '.join(f'%{letter}' for letter in _DIRECTIVES)}."
            raise InvalidInput(f"{shown(form)} is not the form of a time: {problem}", hint=hint)
        if "z" in letters and tz is not None:
            raise InvalidInput("times with an offset (%z) need no time zone", hint="Omit the time zone.")
        self._zone = None if "z" in letters else zone_of(tz or "UTC")
        pattern, at = "", 0
        for found in _DIRECTIVE.finditer(form):
            pattern += re.escape(form[at : found.start()]) + _DIRECTIVES[found[1]]
            at = found.end()
        pattern += re.escape(form[at:])
        # A number is whole: 20261120 is not in 120261120.
        before = "(?<![0-9])" if re.match("%[^%]", form) else ""
        after = "(?![0-9])" if form[-2:-1] == "%" else ""
        self._pattern = re.compile(f"{before}(?=({pattern}){after})")  # looks ahead, since forms may overlap

    def __call__(self, path: str) -> datetime:
        """Return the time in a path; raise InvalidInput if it has none, an impossible one, or several."""
        text = path.rpartition("/")[2] if self._kind == "name" else path
        texts = [*dict.fromkeys(self._pattern.findall(text))]
        times: dict[datetime, str] = {}
        for each in texts:
            with contextlib.suppress(ValueError):
                times.setdefault(self._time_of(each), each)
        if len(times) > 1:
            several = ", ".join(map(shown, times.values()))
            raise InvalidInput(f"its {self._kind} has several times of the form {self._form}: {several}")
        for time in times:
            return time if self._zone is None else to_utc(time, self._zone)
        if texts:
            raise InvalidInput(f"{shown(texts[0])} in its {self._kind} is an impossible time")
        raise InvalidInput(f"its {self._kind} has no time of the form {self._form}")


def _field(name: str, source: str, kind: FieldType | None) -> Field:
    """Return the function that returns the value of a field: of its declared type, as in a table, or else text."""
    part = _part(name, source)
    if kind is None or kind.is_text:
        return part
    times = Times(zone=Zone("UTC"))
    read = reader(kind, times, times)

    def value(path: str) -> Value:
        try:
            return read(part(path))
        except InvalidInput as error:
            problem = error.message.removeprefix(f"{name}: ")
            raise InvalidInput(f"{name}: {problem}") from None

    return value


def _part(name: str, source: str) -> Callable[[str], str]:
    """Return the function that returns the text of a source for a path."""
    what, colon, place = source.partition(":")
    if what not in (PATH, "name") or (colon and not re.fullmatch("-?[1-9][0-9]{0,3}", place)):
        hint = f"Write for example {name}=path:1, {name}=path:-1, {name}=name:2, {name}=path or {name}=name."
        raise InvalidInput(f"{name}: {shown(source)} is not a part of a path", hint=hint)
    if not colon:
        return (lambda path: path) if what == PATH else _name_of
    number = int(place)

    def part(path: str) -> str:
        parts = path.split("/")[:-1] if what == PATH else [each for each in _BETWEEN.split(_name_of(path)) if each]
        if abs(number) > len(parts):
            noun = "folder" if what == PATH else "part"
            raise InvalidInput(f"{name}: its {what} has no {noun} {number}; it has {len(parts)}")
        return parts[number - 1 if number > 0 else number]

    return part


def _name_of(path: str) -> str:
    return path.rpartition("/")[2]


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
                    _named(_SAMPLES[kinds[name]], form or "")
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
                    text += _named(value, form)
                except (ValueError, OverflowError) as error:
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


def _named(value: Any, form: str) -> str:
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

"""What a file is called and when it changed, as the reftime and the metadata of its datum.

    time      name:%Y%m%d_%H%M    found in the file's name
              path:%Y/%m/%d/%H    found in its path
              mtime               when it changed last
    fields    path                the path, as in `north/20261120_1200.jpg`
              path:1, path:-1     its first folder, its last one
              name                the name of the file
              name:1, name:-1     a part of the name, between `_`, `-`, `.` or blanks

A path is relative to the folder that was named. It is also stored as the metadata `path`, unless a field is called so.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, TypeAlias

from ondisk.datum import FieldType, Value, from_microseconds
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

"""The configuration of a dataset: `dataset.toml`, validated. `docs/dataset.md` explains each key."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, Required, Self, TypeAlias, TypedDict, get_args

from ondisk.datum import FieldType
from ondisk.errors import ConfigError, InvalidInput, shown
from ondisk.named_tuple import NamedTuple
from ondisk.step import Step

if TYPE_CHECKING:
    from ondisk.table_options import TableArguments

Replace: TypeAlias = Literal["no", "yes", "newer"]
Compression: TypeAlias = Literal["lz4", "none"]
Payload: TypeAlias = Literal["cbor", "protobuf"]
Encryption: TypeAlias = Literal["none", "aes-128-ctr", "aes-256-gcm"]
Segments: TypeAlias = Literal["concat", "dir"]
UnknownSegments: TypeAlias = Literal["keep", "delete"]

_DEFAULT_FORMAT = "seg"
_READ_SIZE = 128 * 1024 * 1024
"""The default of `max_datum_size`, in bytes. Stored data of this length are read also if that is less."""


class ConfigDict(TypedDict, total=False):
    """The keys of `dataset.toml` as a mapping, so that type checkers find mistyped keys and values.

    The page `docs/dataset.md` explains each key. A mapping that was read from somewhere else is checked by
    `DatasetConfig.from_mapping`.
    """

    format: str
    step: Required[Literal["hourly", "daily", "weekly", "biweekly", "monthly", "yearly", "sequence"] | Step]
    segment_size: int
    unique: Sequence[str]
    index: Sequence[str]
    replace: Replace
    version_field: str
    max_datum_size: int
    max_depth: int
    lock_timeout: float
    compression: Compression
    version: Literal[0, 1, 2]
    payload: Payload
    encryption: Encryption
    segments: Segments
    extension: str
    archive_age: int
    maintain_archives: Sequence[str]
    delete_age: int
    deletions_kept: int
    quarantine_age: int
    keep_replaced: str
    unknown_segments: UnknownSegments
    filter: str
    aliases: str
    replica: bool
    durability: Literal["full"]
    fields: Mapping[str, Literal["integer", "real", "text", "boolean", "timestamp", "bytes", "item"] | FieldType]
    csv: TableArguments


RESERVED_FIELDS = frozenset({"self", "reftime", "match", "sort", "limit", "with_data"})
"""Names of a query's own arguments."""

# SQLite refuses tables of more than 2000 columns; a dataset with this many fields is a mistake.
_MAX_FIELDS = 500
MAX_DEPTH = 500
"""The largest max_depth: parsers recurse once for each level, and Python's own limit is near 1000."""

_MAX_DOTS = 100  # in a line; tomllib needs memory in proportion to the square of the parts of a key
_SEGMENT_SIZE = 100 * 1024 * 1024  # bytes; the default of Beats
_MAX_AGE = 4_000_000  # days; more than the years 1 to 9999
_DURATION = r"(?=.)(?:([0-9]{1,7})d)?(?:([0-9]{1,7})h)?(?:([0-9]{1,7})m)?(?:([0-9]{1,7})s)?"
_RANGES = {
    "max_datum_size": (1, 2**63 - 1),
    "max_depth": (1, MAX_DEPTH),
    "lock_timeout": (0, 2**31 - 1),
    "segment_size": (1, 2**63 - 1),
    "archive_age": (0, _MAX_AGE),
    "delete_age": (0, _MAX_AGE),
    "deletions_kept": (1, _MAX_AGE),
    "quarantine_age": (0, _MAX_AGE),
}
# Keys for which only the default is implemented.
_ONLY = {"durability": "full"}


class _Values(NamedTuple):
    format: str
    step: Step
    unique: tuple[str, ...] = ()
    index: tuple[str, ...] = ()  # type: ignore[assignment]  # not the method of tuples
    replace: Replace = "no"
    version_field: str | None = None
    max_datum_size: int = _READ_SIZE
    max_depth: int = 64
    lock_timeout: float = 60.0
    segment_size: int | None = None
    compression: Compression | None = None
    version: int | None = None
    payload: Payload = "cbor"
    encryption: Encryption = "none"
    segments: Segments = "concat"
    extension: str = "blob"
    archive_age: int | None = None
    maintain_archives: tuple[str, ...] = ()
    delete_age: int | None = None
    deletions_kept: int | None = None
    quarantine_age: int | None = None
    keep_replaced: str = "0s"
    unknown_segments: UnknownSegments = "keep"
    filter: str | None = None
    aliases: str | None = None
    replica: bool = False
    fields: Mapping[str, FieldType] = MappingProxyType({})
    csv: Mapping[str, Any] = MappingProxyType({})


class DatasetConfig(_Values):
    """The content of `dataset.toml`; the module's docstring explains every key.

    Use `_replace` for a copy with other values, which are checked, too.

    Attributes:
        fields: declared metadata, name → type, in the order of declaration.
        csv: the options of `ondisk.table_options.TableOptions` that are given, name → value.
        compression: if None is passed, it becomes "lz4" for version 2 with a step of time, else "none".
        version: if None is passed, it becomes 2, unless `encryption` has a version of its own.
    """

    __slots__ = ()

    if not TYPE_CHECKING:  # type checkers know the parameters from those of _Values

        def __new__(cls, *args, **kwargs):
            return cls._make(_Values(*args, **kwargs))

    @classmethod
    def _make(cls, iterable: Iterable[Any]) -> Self:  # type: ignore[override]  # mypy takes it for a generic one
        source = Source("the configuration", None)
        values = _Values(*iterable)._asdict()
        for key, read in _READERS.items():
            if key not in cls._field_defaults or values[key] is not cls._field_defaults[key]:
                values[key] = read(key, values[key], source)
        if values["version"] is None and values["encryption"] != "aes-256-gcm":
            values["version"] = 2
        if values["compression"] is None:
            is_lz4 = values["version"] == 2 and values["step"] is not Step.SEQUENCE
            values["compression"] = "lz4" if is_lz4 else "none"
        config = super()._make(values.values())
        _check(config, source)
        return config

    def of_stored(self) -> DatasetConfig:
        """Return the configuration to read stored data with: they may be longer than `max_datum_size` is now."""
        return self._replace(max_datum_size=max(self.max_datum_size, _READ_SIZE))

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> DatasetConfig:
        """Return the configuration in a mapping with the keys of `dataset.toml`.

        Raises:
            ConfigError: a key is unknown or missing, or a value is not valid.
        """
        return _parse(values, Source("the configuration", None))

    @classmethod
    def from_toml(cls, text: str, name: str = "dataset.toml") -> DatasetConfig:
        """Return the configuration in the text of a `dataset.toml`; raise ConfigError, with the line."""
        return _parse(read_toml(text, name), Source(name, text))

    def to_toml(self) -> str:
        """Return the text of an equal `dataset.toml`, without keys that have their default."""
        default = DatasetConfig(self.format, self.step)
        values = {key: getattr(self, key) for key in _READERS}
        tables = {
            "fields": {name: kind.value for name, kind in self.fields.items()},
            "csv": self.csv,
        }
        lines = [
            f"{key} = {toml(value)}"
            for key, value in values.items()
            if key in ("format", "step") or (key not in tables and value is not None and value != getattr(default, key))
        ]
        for table, entries in tables.items():
            if entries:
                lines += ["", f"[{table}]", *(f"{name} = {toml(entry)}" for name, entry in entries.items())]
        return "\n".join(lines) + "\n"

    @property
    def is_sequence(self) -> bool:
        """Whether its segments are numbered, and so may be those of a Beats disk queue."""
        return self.step is Step.SEQUENCE

    @property
    def roll_size(self) -> int:
        """The bytes at which a segment of a sequence is full."""
        return self.segment_size or _SEGMENT_SIZE

    @property
    def keep_seconds(self) -> int:
        """The seconds of `keep_replaced`."""
        if self.keep_replaced == self._field_defaults["keep_replaced"]:
            return 0  # at once, since every start of a program comes here
        return seconds_of(self.keep_replaced) or 0

    def __reduce__(self) -> tuple[Any, ...]:
        return DatasetConfig.from_toml, (self.to_toml(),)


def is_extension(text: str) -> bool:
    """Return whether files of the format blob may have an extension: `[a-z][a-z0-9]{0,15}`."""
    return len(text) <= 16 and text.isascii() and text.isalnum() and text[0].isalpha() and text == text.lower()


def seconds_of(duration: str) -> int | None:
    """Return the seconds of a duration such as 90s, 1h30m or 7d; None if it is not one."""
    parts = re.fullmatch(_DURATION, duration)
    if parts is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in parts.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def read_toml(text: str, name: str) -> dict[str, Any]:
    """Return the content of a TOML text that may be hostile; raise ConfigError, with the line, if it is not TOML."""
    for number, line in enumerate(text.split("\n"), 1):
        if line.count(".") > _MAX_DOTS:
            raise ConfigError(f"{name}, line {number}: too many dots", hint="Shorten the line.", line=number)
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # ValueError: a number of thousands of digits
        raise ConfigError(f"{name} is not valid TOML: {error}", hint="Correct that line.") from None


class Source:
    """The origin of a configuration, for errors that name the wrong line."""

    def __init__(self, name: str, text: str | None) -> None:
        self.name = name
        self.text = text

    def error(self, key: str, problem: str, hint: str) -> ConfigError:
        line = self._line(key)
        place = f"{self.name}, line {line}" if line else self.name
        return ConfigError(f"{place}: {key}: {problem}", hint=hint, key=key, line=line, problem=problem)

    def _line(self, key: str) -> int | None:
        """Return the line of `key`, or of `fields.key`; None without a text, or if no line has the key."""
        table, _, name = key.rpartition(".")
        current, inline = "", None
        for number, line in enumerate((self.text or "").splitlines(), 1):
            if header := re.match(r"\s*\[\s*([\w.\"]+)\s*\]", line):
                current = header[1].strip('"')
            elif (current == table and _assigns(name, line)) or (current == "" and _assigns(key, line)):
                return number
            elif current == "" and _assigns(table, line):  # fields = {…}
                inline = number
        return inline


def toml(value: Any) -> str:
    """Return a text, a number, a boolean or a list of texts as TOML."""
    # Unlike JSON, TOML has no surrogates, and DEL only as an escape.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _assigns(key: str, line: str) -> bool:
    return re.match(rf"\s*\"?{re.escape(key)}\"?\s*=", line) is not None


def _parse(values: Mapping[str, Any], source: Source) -> DatasetConfig:
    known = DatasetConfig._fields
    arguments: dict[str, Any] = {"format": _DEFAULT_FORMAT}
    for key, value in values.items():
        if key in _ONLY:
            if value != _ONLY[key]:
                hint = f'Remove the line, or write {key} = "{_ONLY[key]}".'
                raise source.error(key, f"this version of ondisk has no {key} {shown(value)} yet", hint)
        elif key not in known:
            raise source.error(key, "unknown key", f"The keys are {', '.join([*known, *_ONLY])}.")
        else:
            arguments[key] = value
    if "step" not in arguments:
        for table in ("fields", "csv"):
            if isinstance(values.get(table), Mapping) and "step" in values[table]:
                raise _misplaced("step", table, source)
        raise source.error("step", "is required", 'Add a line such as step = "daily".')
    try:
        return DatasetConfig(**arguments)
    except ConfigError as error:  # only this source knows the line
        raise source.error(error.context["key"], error.context["problem"], error.hint) from None


def _misplaced(key: str, table: str, source: Source) -> ConfigError:
    """Return the error for a key of the dataset that is written below the header of a table."""
    problem = f"{key} is a key of the dataset, and not of [{table}]"
    return source.error(f"{table}.{key}", problem, f"Move this line above the line [{table}].")


def _reader(
    is_valid: Callable[[Any], bool], what: str, hint: str, convert: Callable[[Any], Any] = lambda value: value
) -> Callable[[str, Any, Source], Any]:
    """Return a function that checks and converts the value of a key; `hint` may contain `{key}`."""

    def read(key: str, value: Any, source: Source) -> Any:
        if not is_valid(value):
            raise source.error(key, f"must be {what}, not {shown(value)}", hint.format(key=key))
        return convert(value)

    return read


def _choice(kind: Callable[[Any], Any], *choices: str) -> Callable[[str, Any, Source], Any]:
    hint = f'Write one of them in quotes: {{key}} = "{choices[0]}".'
    return _reader(lambda value: value in choices, f"one of {', '.join(choices)}", hint, kind)


def _is_names(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(name, str) for name in value)


def _fields(key: str, value: Any, source: Source) -> Mapping[str, FieldType]:
    if not isinstance(value, Mapping):
        hint = 'Write a line [fields], below it station = "integer".'
        raise source.error(key, f"must be a table, not {shown(value)}", hint)
    fields = {}
    for name, kind in value.items():
        if not isinstance(name, str):
            raise source.error(key, f"the name {shown(name)} is not a text", 'Write station = "integer".')
        try:
            fields[name] = FieldType(kind)
        except ValueError:
            if name in _READERS:
                raise _misplaced(name, key, source) from None
            kinds = ", ".join(kind.value for kind in FieldType)
            raise source.error(f"fields.{name}", f"{shown(kind)} is not a type", f"The types are {kinds}.") from None
    return MappingProxyType(fields)


def _csv(key: str, value: Any, source: Source) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise source.error(key, f"must be a table, not {shown(value)}", 'Write a line [csv], below it time = "when".')
    if not value:
        return MappingProxyType({})
    from ondisk.table_options import TableOptions  # here, as most datasets have no [csv]

    names, given, options = [*TableOptions.__annotations__], dict[str, Any](), TableOptions()
    for name in value:
        if name not in names:
            if name in _READERS:
                raise _misplaced(name, key, source)
            wrong = f"{key}.{name}" if isinstance(name, str) else key
            raise source.error(wrong, f"unknown key {shown(name)}", f"The keys of [{key}] are {', '.join(names)}.")
    for name in sorted(value, key=names.index):  # one by one, so that an error names its key
        given[name] = value[name]
        try:
            options = TableOptions(**given)
        except InvalidInput as error:
            hint = error.hint or "Correct the value, or remove the line."
            raise source.error(f"{key}.{name}", error.message, hint) from None
    return MappingProxyType({name: getattr(options, name) for name in options.given})


_text = _reader(lambda value: isinstance(value, str) and value != "", "a text", "Put it in quotes.")
_names = _reader(_is_names, "a list of field names", 'Write {key} = ["reftime", "…"].', tuple)
_whole = _reader(lambda value: type(value) is int, "a whole number", "Write it without quotes and without a unit.")

_READERS: dict[str, Callable[[str, Any, Source], Any]] = {
    "format": _text,
    "step": _choice(Step, *Step),
    "unique": _names,
    "index": _names,
    "replace": _choice(str, *get_args(Replace)),
    "version_field": _text,
    "max_datum_size": _whole,
    "max_depth": _whole,
    "lock_timeout": _reader(
        lambda value: type(value) is float or (type(value) is int and abs(value) < 2**63),  # others overflow a float
        "a number of seconds",
        "Write {key} = 60, without quotes.",
        float,
    ),
    "segment_size": _whole,
    "compression": _choice(str, *get_args(Compression)),
    "version": _reader(lambda value: type(value) is int and value in (0, 1, 2), "0, 1 or 2", "Write {key} = 2."),
    "payload": _choice(str, *get_args(Payload)),
    "encryption": _choice(str, *get_args(Encryption)),
    "segments": _choice(str, *get_args(Segments)),
    "extension": _text,
    "archive_age": _whole,
    "maintain_archives": _reader(
        lambda value: isinstance(value, Sequence) and not isinstance(value, str) and all(map(_is_folder, value)),
        "a list of names of folders",
        'Write {key} = ["2024"].',
        tuple,
    ),
    "delete_age": _whole,
    "deletions_kept": _whole,
    "quarantine_age": _whole,
    "keep_replaced": _reader(
        lambda value: (type(value) is int and value == 0) or (isinstance(value, str) and seconds_of(value) is not None),
        "a duration such as 90s, 1h30m or 7d",
        'Write {key} = "6h".',
        lambda value: value or "0s",
    ),
    "unknown_segments": _choice(str, *get_args(UnknownSegments)),
    "replica": _reader(lambda value: type(value) is bool, "true or false", "Write {key} = true, without quotes."),
    "filter": _reader(lambda value: isinstance(value, str), "a match expression", "Put it in quotes."),
    "aliases": _reader(
        lambda value: isinstance(value, str) and "\0" not in value and value.strip() != "",
        "the path of a file",
        'Write {key} = "match-alias.conf".',
    ),
    "fields": _fields,
    "csv": _csv,
}


def _is_folder(name: Any) -> bool:
    return isinstance(name, str) and name != "" and not name.startswith(".") and "/" not in name


def _check(config: DatasetConfig, source: Source) -> None:
    """Raise unless the values are valid together."""
    for name in config.fields:
        if not (name.isidentifier() and name.isascii() and name == name.lower()) or name in RESERVED_FIELDS:
            hint = f"Use a name of the form [a-z_][a-z0-9_]* that is not one of {', '.join(sorted(RESERVED_FIELDS))}."
            raise source.error(f"fields.{name}", f"{shown(name)} is not a valid name for a field", hint)
        if config.fields[name] is FieldType.ITEM:
            from ondisk.items import FIELDS  # here, as most datasets have no items

            if name not in FIELDS:
                problem = f"{shown(name)} is not a name of an item"
                raise source.error(f"fields.{name}", problem, f'They are {", ".join(FIELDS)}; others can be "text".')
    if len(config.fields) > _MAX_FIELDS:
        raise source.error("fields", f"{len(config.fields)} fields are too many", f"Declare at most {_MAX_FIELDS}.")
    for key in ("unique", "index"):
        names = getattr(config, key)
        for name in names:
            if name != "reftime" and name not in config.fields:
                raise source.error(
                    key, f"{shown(name)} is not a declared field", f'Declare it under [fields]: {name} = "text".'
                )
            if names.count(name) > 1:
                raise source.error(key, f"{shown(name)} is listed twice", "Name each field once.")
    _check_version_field(config, source)
    _check_variant(config, source)
    _check_sequence(config, source)
    if not is_extension(config.extension):
        hint = 'Use up to 16 characters of a-z and 0-9, a letter first: extension = "h5".'
        raise source.error("extension", f"{shown(config.extension)} is not a valid extension", hint)
    for key, (least, most) in _RANGES.items():
        value = getattr(config, key)
        if value is not None and not least <= value <= most:  # also refuses NaN
            problem = f"{shown(value)} is not between {least} and {most}"
            raise source.error(key, problem, "Remove the line to use the default.")


def _check_sequence(config: DatasetConfig, source: Source) -> None:
    if not config.is_sequence:
        if config.segment_size is not None:
            hint = "Remove the line: with a step of time, a segment has all data of its time, however many."
            raise source.error("segment_size", 'is for the step "sequence" only', hint)
        return
    for key, only in (("format", "seg"), ("segments", "concat"), ("unknown_segments", "keep")):
        if getattr(config, key) != only:
            hint = f'Write {key} = "{only}", or use a step of time.'
            raise source.error(key, f'the step "sequence" has only "{only}"', hint)


def _check_version_field(config: DatasetConfig, source: Source) -> None:
    name = config.version_field
    if name is None:
        if config.replace == "newer":
            hint = 'Name the field that orders the versions of a datum: version_field = "…".'
            raise source.error("replace", '"newer" needs a version_field', hint)
        return
    ordered = (FieldType.INTEGER, FieldType.REAL, FieldType.TIMESTAMP)
    if config.fields.get(name) not in ordered:
        hint = f"Declare it under [fields], with one of the types {', '.join(ordered)}."
        raise source.error("version_field", f"{shown(name)} is not a declared field with an order", hint)


def _check_variant(config: DatasetConfig, source: Source) -> None:
    """Raise unless the values say one kind of segments of seg."""
    chosen = {"version": config.version not in (2, None), "payload": config.payload != "cbor",
              "encryption": config.encryption != "none"}  # fmt: skip
    for key, is_chosen in chosen.items():
        if is_chosen and config.format != _DEFAULT_FORMAT:
            raise source.error(key, f"the format {shown(config.format)} has none", "Remove the line.")
    if config.encryption == "aes-256-gcm":
        if config.version is not None:
            raise source.error("version", '"aes-256-gcm" has a version of its own', "Remove the line.")
        if config.compression != "none":
            raise source.error("compression", '"aes-256-gcm" has none', 'Write compression = "none".')
    elif config.version != 2:
        kinds = {"compression": "none", "payload": "cbor", "encryption": "none"}
        for key, only in kinds.items():
            if getattr(config, key) != only:
                problem = f"version {config.version} has no {getattr(config, key)}"
                raise source.error(key, problem, f'Write version = 2, or {key} = "{only}".')

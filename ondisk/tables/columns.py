"""What the columns of a table show: names for what the index, the metadata and the content of a datum have.

    reftime, area                 the reference time, and the declared fields
    segment, offset, size         the location of the datum
    dataset                       the path of its dataset, if several are read as one
    metadata.sensor               metadata that no field declares
    data                          the whole content: bytes, or JSON
    data.temperature              one key of a content that is a mapping

A field with the name of another column becomes `f_NAME`, as in the index.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import chain, islice
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from ondisk.config import DatasetConfig
from ondisk.dataset.access import Opened
from ondisk.dataset.dataset import Dataset
from ondisk.dataset.query import Query
from ondisk.datum import CONTENT, METADATA, Datum, FieldType, is_unicode
from ondisk.errors import InvalidInput, LimitExceeded, OndiskError, shown
from ondisk.formats import find
from ondisk.index import segment_rows
from ondisk.step import Step
from ondisk.table_options import REFTIME

if TYPE_CHECKING:
    from ondisk.dataset.merged import Merged

DATA = "data"
DATASET = "dataset"
PLACE = {"segment": FieldType.TEXT, "offset": FieldType.INTEGER, "size": FieldType.INTEGER}

SAMPLE = 16_384  # data that are looked at to find the columns of a content
SAMPLE_BYTES = 16 * 1024 * 1024  # bytes of data that are looked at; one datum may have more
_EACH_END = 16  # data of a dataset's begin, and of its end, that are looked at for each table
_DATASETS = 16  # of several that are read as one, whose data are looked at

MOST_COLUMNS = 10_000  # the most columns of a table if the caller has not named them
_KINDS = {
    bool: FieldType.BOOLEAN,
    int: FieldType.INTEGER,
    float: FieldType.REAL,
    bytes: FieldType.BYTES,
    datetime: FieldType.TIMESTAMP,
}
_NOT_WORD = re.compile(r"[^a-z0-9_]+")
_NAMED, _LISTED = 20, 100  # columns in a message, and in its hint

Source: TypeAlias = Literal["index", "field", "metadata", "content", "data"]
_OF_INDEX: dict[str, Callable[[Datum], Any]] = {
    "reftime": lambda datum: datum.reftime,
    DATASET: lambda datum: datum.dataset,
    "segment": lambda datum: datum._segment,
    "offset": lambda datum: datum._place[2],
    "size": lambda datum: datum._place[3],
}


@dataclass(frozen=True, slots=True)
class Chosen:
    name: str  # in the table
    source: Source  # what it shows; "index" is the reftime, the dataset or a part of the location
    key: str = ""  # the name of that

    @property
    def is_indexed(self) -> bool:
        return self.source in ("index", "field")

    def values(self, data: Sequence[Datum]) -> list[Any]:
        key = self.key
        if self.source == "data":
            return [datum.data for datum in data]
        if self.source == "content":
            return [datum.data.get(key) if isinstance(datum.data, Mapping) else None for datum in data]
        if self.source == "index":
            return [*map(_OF_INDEX[key], data)]
        return [datum.metadata.get(key) for datum in data]


class Roles(NamedTuple):
    """What the columns of a table become when its rows are stored; one of them is the reftime."""

    fields: dict[str, str]  # declared field → column
    content: dict[str, str]  # key of the content → column

    def series(self, config: DatasetConfig) -> list[str]:
        return [self.fields[name] for name in names_of_series(config) if name in self.fields]


def roles_of(names: Iterable[str], time: str, config: DatasetConfig) -> Roles:
    """Return what the columns of a table become that is stored in a dataset of this configuration.

    Columns with the names of declared fields are these; a name is compared in lower case, with `_` for each run of
    other characters than letters and digits, so `Station ID` is the field `station_id`. All others are keys of the
    content: `data.wind` is the key `wind`, as in a table that a query returned.

    Args:
        time: the column of the reftime.

    Raises:
        InvalidInput: two columns are the same field or key, or a key is called `reftime`.
    """
    labels = {label: field for label, (field, _) in index_columns(config).items() if field is not None}
    roles = Roles({}, {})
    for name in names:
        if name == time:
            continue
        taken, key = roles.content, name.removeprefix(CONTENT) or name
        field = labels.get(name) or field_name(name)
        if field in config.fields and not name.startswith(CONTENT):
            taken, key = roles.fields, field
        if key in taken:
            problem = f"the columns {shown(taken[key])} and {shown(name)} are both {key}"
            raise InvalidInput(problem, hint="Rename or remove one of them.")
        taken[key] = name
    if REFTIME in roles.content:
        hint = f"Rename it, or remove it; the reftime is {shown(time)}."
        raise InvalidInput(f"a column of the content cannot be called {REFTIME}", hint=hint)
    return roles


def names_of_series(config: DatasetConfig) -> list[str]:
    return [name for name in config.unique or config.fields if name != REFTIME]


def field_name(column: str) -> str:
    return _NOT_WORD.sub("_", column.lower()).strip("_")


def check_names(names: Sequence[str]) -> None:
    places: dict[str, int] = {}
    for place, name in enumerate(names, 1):
        if name in places:
            problem = f"two columns have the name {shown(name)}: {places[name]} and {place}"
            raise InvalidInput(problem, hint="Rename one of them.")
        places[name] = place


def no_column(wanted: str, names: Sequence[str], hint: str) -> InvalidInput:
    listed = ", ".join(map(shown, names[:_NAMED])) + ", …" * (len(names) > _NAMED)
    return InvalidInput(f"there is no column {shown(wanted)}; the columns are {listed}", hint=hint)


def config_of(dataset: Dataset | Merged) -> DatasetConfig:
    """Return the configuration with the columns of a dataset, or of several that are read as one; see `united`."""
    return dataset.config if isinstance(dataset, Dataset) else united(dataset.configs)


def formats_of(dataset: Dataset | Merged) -> set[str]:
    if not isinstance(dataset, Dataset):
        return {config.format for config in dataset.configs.values()}
    with dataset._access.current().index.snapshot() as snapshot:
        return {dataset.config.format, *segment_rows.formats(snapshot)}


def united(configs: Mapping[str, DatasetConfig]) -> DatasetConfig:
    """Return a configuration with the fields of several datasets; raise InvalidInput if the types of one differ."""
    from ondisk.dataset.merged import differing_types  # here, as only several datasets need it

    for name, types in differing_types(configs).items():
        message = f"{name} is {types}, so they are not one table"
        raise InvalidInput(message, hint="Read the datasets with each type by themselves.")
    fields = {name: kind for config in configs.values() for name, kind in config.fields.items()}
    formats = sorted((each.format for each in configs.values()), key=lambda name: not find(name).raw)
    return DatasetConfig(formats[0], Step.DAILY, fields=fields)


def index_columns(config: DatasetConfig, *, several: bool = False) -> dict[str, tuple[str | None, FieldType]]:
    """Return the columns that the index has: name → field, which is None for those of the location, and type.

    `several`: also the column `dataset`, of data from several datasets.
    """
    place = {DATASET: FieldType.TEXT, **PLACE} if several else PLACE
    taken = {*place, DATA}
    found: dict[str, tuple[str | None, FieldType]] = {"reftime": ("reftime", FieldType.TIMESTAMP)}
    for name, kind in config.fields.items():
        label = name
        while label in taken or (label != name and label in config.fields):
            label = f"f_{label}"
        found[label] = (name, kind)
    return {**found, **{name: (None, kind) for name, kind in place.items()}}


def names_in(text: str) -> list[str]:
    return [name.strip() for name in text.split(",")] if text.strip() else []


def column_types(text: str) -> dict[str, str | None]:
    """Return the columns of a comma-separated list, each with its type, which follows a `=`, or None."""
    columns = [each.rpartition("=") if "=" in each else (each, "", "") for each in names_in(text)]
    found = {name.strip(): kind.strip() or None for name, _, kind in columns}
    if len(found) < len(columns):
        raise InvalidInput(f"{text!r} names a column twice")
    return found


def untyped(columns: Mapping[str, str | None] | None) -> list[str] | None:
    """Return the names of the columns of CSV; None for everything; raise InvalidInput if one has a type."""
    for name, kind in (columns or {}).items():
        if kind is not None:
            raise InvalidInput(f"CSV has no types, so {name} cannot have one", hint=f"Write {name} alone.")
    return None if columns is None else [*columns]


def chosen(names: Any, config: DatasetConfig, *, several: bool = False) -> list[Chosen]:
    """Return the columns of these names, in their order; raise InvalidInput if they are not a list of known columns."""
    if isinstance(names, str | bytes):
        text = names if isinstance(names, str) else names.decode(errors="replace")
        raise InvalidInput(f"columns is a list of names, not {shown(names)}", hint=f"Write {re.split(', *', text)}.")
    known = index_columns(config, several=several)
    columns = [_chosen(name, config, known) for name in names]
    if not columns or len({each.name for each in columns}) < len(columns):
        raise InvalidInput("columns must name at least one column, and each only once", hint=_known(known))
    return columns


def _chosen(name: Any, config: DatasetConfig, known: Mapping[str, tuple[str | None, FieldType]]) -> Chosen:
    if name in known:
        return _of_index(name, known[name][0])
    if name == DATA:
        return Chosen(name, "data")
    if isinstance(name, str) and not is_unicode(name):
        raise InvalidInput(f"the name of the column {shown(name)} is not valid Unicode")
    if isinstance(name, str) and name.startswith(CONTENT) and name != CONTENT:
        return Chosen(name, "content", name.removeprefix(CONTENT))
    if isinstance(name, str) and name.startswith(METADATA) and name != METADATA:
        key = name.removeprefix(METADATA)
        if key not in config.fields:
            return Chosen(name, "metadata", key)
        label = next(label for label, (field, _) in known.items() if field == key)
        raise InvalidInput(f"{shown(key)} is declared", hint=f"Write {label}.")
    raise InvalidInput(f"there is no column {shown(name)}", hint=_known(known))


def _of_index(name: str, field: str | None) -> Chosen:
    return Chosen(name, "index", name) if field in (None, REFTIME) else Chosen(name, "field", field)


def _known(columns: Iterable[str]) -> str:
    return f"The columns are {', '.join([*columns, DATA])}, {CONTENT}KEY and {METADATA}NAME."


def first_of(data: Iterable[Datum], most: int) -> list[Datum]:
    """Return the first data, up to a number and to `SAMPLE_BYTES`."""
    found: list[Datum] = []
    size = 0
    for datum in islice(data, most):
        found.append(datum)
        size += datum._place[3]
        if size > SAMPLE_BYTES:
            break
    return found


def ends(dataset: Dataset | Merged) -> list[Datum]:
    """Return data from both ends of a dataset: each table has columns for them, so an empty one, too."""
    found: list[Datum] = []
    for each in [dataset] if isinstance(dataset, Dataset) else islice(dataset._each(), _DATASETS):
        found += _ends_of(each._access.current())
    return found


def _ends_of(opened: Opened) -> Iterator[Datum]:
    """Yield data from both ends of a dataset; those that can be read."""
    for sort in ("reftime", "-reftime"):
        query = Query(sort=sort, limit=_EACH_END)
        how = query.tree(opened.index), query.order(opened.index), query.limit
        # A query that selects other data needs neither these nor their key.
        with (
            contextlib.suppress(OndiskError, OSError),
            opened.index.snapshot() as snapshot,
            contextlib.closing(opened.reader.query(snapshot, *how, with_data=True)) as lists,
        ):
            yield from first_of(chain.from_iterable(lists), _EACH_END)


def default_columns(
    config: DatasetConfig, sample: Sequence[Datum] | None, ends: Sequence[Datum], *, several: bool = False
) -> list[Chosen]:
    """Return the columns of a table of everything but the locations.

    Args:
        sample: the first data of the table, whose keys become columns; None if the content of all data is bytes, and
            all metadata are declared. If the content of one of them is not a mapping, the whole content is one column.
        ends: data from both ends of the dataset, whose keys become columns, too.
    """
    known = index_columns(config, several=several)
    columns = [_of_index(name, field) for name, (field, _) in known.items() if name not in PLACE]
    if sample is None or (not sample and not ends and find(config.format).raw):
        return [*columns, Chosen(DATA, "data")]
    undeclared = keys_of(datum.metadata for datum in [*ends, *sample])
    columns += [Chosen(METADATA + key, "metadata", key) for key in undeclared if key not in config.fields]
    if all(isinstance(datum.data, Mapping) for datum in sample or ends):
        mappings = [datum.data for datum in [*ends, *sample] if isinstance(datum.data, Mapping)]
        columns += [Chosen(CONTENT + key, "content", key) for key in keys_of(mappings)]
    else:
        columns.append(Chosen(DATA, "data"))
    if len(columns) > MOST_COLUMNS:
        message = f"the first data of the table have {len(columns)} columns, more than {MOST_COLUMNS}"
        raise LimitExceeded(message, hint=name_all([each.name for each in columns]))
    return columns


def kind_of(value: Any) -> FieldType:
    return _KINDS.get(type(value), FieldType.TEXT)


def name_all(names: Sequence[str], kinds: Mapping[str, FieldType] | None = None) -> str:
    """Return a hint to name the columns of a table. `kinds`: the types that some of them should have."""
    kinds = kinds or {}
    which = "".join(
        f"; {name} as {kind}{', which takes any value' * (kind is FieldType.TEXT)}"
        for name, kind in islice(kinds.items(), _NAMED)
    )
    which += ", …" * (len(kinds) > _NAMED)
    if len(names) > _LISTED:
        return f"Name the columns that you want with columns (--columns){which}; {DATA} holds the whole content."
    listed = ",".join(f"{name}={kinds[name]}" if name in kinds else name for name in names)
    return f"Name all columns with columns (--columns){which}: {listed}"


def place_of(datum: Datum) -> str:
    return str(datum.location) if datum.dataset is None else f"{datum.dataset}: {datum.location}"


def keys_of(mappings: Iterable[Mapping[str, Any]]) -> list[str]:
    found: dict[str, None] = {}
    last: object = None
    for each in mappings:
        if each is not last:  # neighbours may share their metadata
            found.update(dict.fromkeys(each))
            last = each
    return [*found]


class Complete:
    """Checks that a table of everything has a column for all that data have. `typed`: columns have types."""

    def __init__(self, columns: Sequence[Chosen], config: DatasetConfig, *, typed: bool = True) -> None:
        self._columns = columns
        self._is_typed = typed
        self._has_data = any(each.source == "data" for each in columns)
        self._keys = {each.key for each in columns if each.source == "content"}
        self._metadata = {*config.fields, *(each.key for each in columns if each.source == "metadata")}

    def check(self, data: Sequence[Datum]) -> None:
        """Raise InvalidInput, with the location of a datum, unless all that some data have is in a column."""
        lacking: dict[str, tuple[Datum, Any]] = {}
        for datum in data:
            # Read-only metadata are those of the index, which has declared fields only.
            if type(datum.metadata) is not MappingProxyType and not datum.metadata.keys() <= self._metadata:
                for key in sorted(datum.metadata.keys() - self._metadata):
                    lacking.setdefault(METADATA + key, (datum, datum.metadata[key]))
        for datum in () if self._has_data else data:
            if not isinstance(datum.data, Mapping):
                lacking.setdefault(DATA, (datum, datum.data))
            elif not datum.data.keys() <= self._keys:
                for key in sorted(datum.data.keys() - self._keys):
                    lacking.setdefault(CONTENT + key, (datum, datum.data[key]))
        if lacking:
            raise self._incomplete(lacking)

    def _incomplete(self, lacking: Mapping[str, tuple[Datum, Any]]) -> InvalidInput:
        """Return the error for columns that the table lacks: name → a datum that has it, and its value."""
        (name, (datum, _)), *others = lacking.items()
        problem = f"{place_of(datum)} has {name}, for which the first data of the table have no column"
        if others:
            problem += f"; nor for {', '.join(each for each, _ in others[:_NAMED])}{', …' * (len(others) > _NAMED)}"
        names = [each.name for each in self._columns if DATA not in lacking or each.source != "content"]
        names += [each for each in lacking if DATA not in lacking or not each.startswith(CONTENT)]
        kinds = {each: kind_of(value) for each, (_, value) in lacking.items() if each in names}
        kinds = {name: kind for name, kind in kinds.items() if self._is_typed and kind is not FieldType.TEXT}
        return InvalidInput(problem, hint=name_all(names, kinds), location=datum.location)

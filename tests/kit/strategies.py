"""Hypothesis strategies: configurations, data that a configuration accepts, values, and conditions on them.

Values come from small pools as well as from the whole range of their type, so that data collide under `unique` and
conditions meet data.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from operator import eq, ge, gt, le, lt, ne
from random import Random
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from ondisk import items
from ondisk.config import DatasetConfig
from ondisk.datum import INTEGER_MAX, INTEGER_MIN, METADATA, Datum, FieldType, Value, canonical
from ondisk.errors import MatchError
from ondisk.index.where import check_size
from ondisk.json_values import SHAPES
from ondisk.matcher import (
    And,
    Compare,
    Components,
    EverySeconds,
    Everything,
    Expression,
    IsMissing,
    Item,
    Not,
    OneOf,
    Or,
    StartsWith,
    TimeOfDay,
)
from ondisk.matcher.fields import Fields
from ondisk.matcher.parser import parse
from ondisk.step import Step

# At the ends of days, weeks of a month, half months, months and years; one is before 1970.
_DAYS = [datetime(1969, 12, 31), datetime(2026, 11, 7), datetime(2026, 11, 15), datetime(2026, 12, 31)]
_COMMON: dict[FieldType, list[Any]] = {
    FieldType.INTEGER: [0, 1, 5, -5, INTEGER_MIN, INTEGER_MAX],
    FieldType.REAL: [0.0, -0.0, 1.0, 1.5, -2.5, float("inf"), float("-inf")],
    FieldType.TEXT: [
        "",
        "a",
        "a,b",
        "a,b,c",
        "a,,c",
        "ab",
        "A",
        "a\0,b,c",
        "\u00e9",
        "e\u0301",
        "\U00010000",
        "\uffff",
    ],
    FieldType.BOOLEAN: [False, True],
    FieldType.TIMESTAMP: [datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC), datetime(2026, 11, 20, 6, tzinfo=UTC)],
    FieldType.BYTES: [b"", b"\0", b"a", b"ab", b"\xff\xfe"],
    FieldType.ITEM: [
        "",
        "GRIB1,98,,5",
        "GRIB1,1,60m",
        "Timedef,1h,254",
        "VM2,2",
        "VM2,2:a=1,b=x",
        "a,b",
        "GRIB2S,-,-,-",
    ],
}
_WHOLE: dict[FieldType, SearchStrategy[Any]] = {
    FieldType.INTEGER: st.integers(INTEGER_MIN, INTEGER_MAX),
    FieldType.REAL: st.floats(allow_nan=False),
    FieldType.TEXT: st.text(max_size=20),
    FieldType.BOOLEAN: st.booleans(),
    FieldType.TIMESTAMP: st.datetimes(timezones=st.just(UTC)),
    FieldType.BYTES: st.binary(max_size=20),
    FieldType.ITEM: st.text(max_size=20),
}
STEPS_OF_TIME = tuple(step for step in Step if step is not Step.SEQUENCE)
_OPERATORS = st.sampled_from(["=", "<", "<=", ">", ">="])
EVERY_TYPE = {
    "station": "integer",
    "level": "real",
    "product": "text",
    "valid": "boolean",
    "made": "timestamp",
    "key": "bytes",
    "timerange": "item",
}
"""Names of fields, one for each type that a field can be declared with."""

_PATTERNS = {
    "area": ["VM2", "VM2,2", "GRIB:a=1", "VM2,:a=1", "VM2,02:b=x"],
    "level": ["GRIB1,98", "GRIB1,,0", "GRIB2S,-", "GRIB2S,,,-", "ODIMH5,range 0 5"],
    "product": ["VM2,2", "VM2:b=x", "GRIB1,98,,5", "GRIB1,,,5"],
    "quantity": ["a", "b,a", "GRIB1"],
    "timerange": ["GRIB1,1", "Timedef,1h", "Timedef,,-", "Timedef,60m,254", "Timedef,-", "GRIB1", "BUFR"],
}
"""Expressions on the items of a field, some of which match items above."""
UNDECLARED = ["flow", "note", "reftime", "data", "\u00e9"]
"""Names of metadata that data of seg and blob have beside those of the declared fields."""

_SECONDS_OF_DAY = 86_400
_OF_SEG = datetime(1677, 9, 21, 0, 12, 43, 145225), datetime(2262, 4, 11, 23, 47, 16, 854775)
"""The first and the last time whose nanoseconds fit into 64 bits."""


def values(kind: FieldType) -> SearchStrategy[Value]:
    """Values that a field of this type accepts."""
    return st.sampled_from(_COMMON[kind]) | _WHOLE[kind]


def reftimes(
    whole_seconds: bool = False, first: datetime = datetime.min, last: datetime = datetime.max
) -> SearchStrategy[datetime]:
    """Reftimes: most are one of a few near the edges of segments, the others anywhere in the years 1 to 9999.

    Args:
        whole_seconds: without a fraction.
        first, last: the bounds of the others, naive.
    """
    fine = timedelta(seconds=1) if whole_seconds else timedelta(microseconds=1)
    offsets = st.sampled_from([timedelta(0), fine, timedelta(hours=12), timedelta(days=1) - fine, timedelta(days=1)])
    near = st.builds(lambda day, offset: (day + offset).replace(tzinfo=UTC), st.sampled_from(_DAYS), offsets)
    anywhere = st.datetimes(first, last, timezones=st.just(UTC))
    return near | near | (anywhere.map(lambda time: time.replace(microsecond=0)) if whole_seconds else anywhere)


def configs(
    format: str = "jsonl", steps: Iterable[Step] = STEPS_OF_TIME, kinds: Iterable[FieldType] = tuple(FieldType)
) -> SearchStrategy[DatasetConfig]:
    """Configurations of a format: any fields, `unique`, `index` and `replace`.

    Args:
        format: `vm2` has the fields area and product, each declared or not; `jsonl` and `seg` fields of any type.
        steps: the steps to choose from.
        kinds: the types of fields to choose from, for jsonl and seg.
    """
    if format == "vm2":
        fields = st.sets(st.sampled_from(["area", "product"])).map(
            lambda names: dict.fromkeys(sorted(names), FieldType.TEXT)
        )
    else:
        fields = st.dictionaries(st.sampled_from(list(EVERY_TYPE)), st.sampled_from(list(kinds))).map(
            # Only some names can be items.
            lambda drawn: {
                name: FieldType.TEXT if kind is FieldType.ITEM and name not in items.FIELDS else kind
                for name, kind in drawn.items()
            }
        )
    return fields.flatmap(lambda declared: _configs(format, list(steps), declared))


def _configs(format: str, steps: list[Step], fields: dict[str, FieldType]) -> SearchStrategy[DatasetConfig]:
    ordered = (FieldType.INTEGER, FieldType.REAL, FieldType.TIMESTAMP)
    versions = [name for name, kind in fields.items() if kind in ordered]
    ways = st.sampled_from([("no", None), ("yes", None), *(("newer", name) for name in versions)])
    names = st.lists(st.sampled_from(["reftime", *fields]), unique=True).map(tuple)
    compressions = st.sampled_from(["lz4", "none"]) if format == "seg" else st.just("lz4")

    def build(
        step: Step, unique: tuple[str, ...], index: tuple[str, ...], way: tuple[Any, str | None], compression: Any
    ) -> DatasetConfig:
        return DatasetConfig(format, step, unique=unique, index=index, replace=way[0], version_field=way[1],
                             compression=compression, fields=fields)  # fmt: skip

    return st.builds(build, st.sampled_from(steps), names, names, ways, compressions)


def metadata(fields: Mapping[str, FieldType]) -> SearchStrategy[dict[str, Value]]:
    """Metadata of declared fields; any of them may be missing."""
    return st.fixed_dictionaries({}, optional={name: values(kind) for name, kind in fields.items()})


def data(config: DatasetConfig) -> SearchStrategy[Datum]:
    """Data that a dataset of this configuration stores without refusing any; for vm2, jsonl, seg and blob."""
    if config.format == "vm2":
        return vm2_data()
    if config.format == "seg":
        return seg_data(config)
    if config.format == "blob":
        return st.builds(Datum, reftimes(), st.just({}) | _said(config), st.binary(max_size=20))
    contents = st.dictionaries(
        st.sampled_from(["wind", "note", "$bytes", "\u00e9"]), json_values(allow_nan=False), max_size=2
    )
    return st.builds(Datum, reftimes(), metadata(config.fields), contents)


def vm2_data() -> SearchStrategy[Datum]:
    """Data of VM2: the line; some also have the metadata of the line."""
    return st.builds(_vm2_datum, reftimes(whole_seconds=True), st.integers(1, 3), st.integers(1, 2),
                     vm2_values(), vm2_values(), st.text("0123456789abc ", max_size=9), st.booleans())  # fmt: skip


def vm2_values() -> SearchStrategy[str]:
    """Texts for the columns value1 and value2: empty, or a number."""
    numbers = st.floats(allow_nan=False, allow_infinity=False).map(str) | st.integers().map(str)
    return st.sampled_from(["", ".5", "1.", "+1.2", "-3e-4"]) | numbers


def _vm2_datum(
    reftime: datetime, station: int, variable: int, value1: str, value2: str, flags: str, given: bool
) -> Datum:
    digits = f"{reftime.year:04}{reftime:%m%d%H%M}" + (f"{reftime:%S}" if reftime.second or given else "")
    line = f"{digits},{station},{variable},{value1},{value2},,{flags}".encode()
    return Datum(reftime, {"area": f"VM2,{station}", "product": f"VM2,{variable}"} if given else {}, line)


def refused_data(config: DatasetConfig) -> SearchStrategy[Datum]:
    """Data that the format cannot store; for vm2, jsonl, seg and blob."""
    if config.format == "blob":
        return data(config).map(lambda datum: Datum(datum.reftime, datum.metadata, [datum.data]))
    if config.format != "seg":
        return data(config).map(lambda datum: Datum(datum.reftime, {**datum.metadata, "undeclared": 1}, datum.data))
    return seg_data(config).flatmap(lambda datum: _refused_by_seg(datum, config))


def seg_data(config: DatasetConfig) -> SearchStrategy[Datum]:
    """Data of seg: any CBOR that Beats can read as data and as undeclared metadata; some are larger than a block."""
    content = st.dictionaries(_seg_keys() | st.sampled_from(["data", "wind"]), seg_values(), max_size=2)
    small = content | st.none() | st.binary(max_size=20) | st.just({"deep": _nested(config.max_depth - 1)})
    large = st.builds(_large, st.integers(50_000, 200_000), st.booleans(), st.booleans())
    contents = st.sampled_from([small] * 9 + [large]).flatmap(lambda chosen: chosen)
    return st.builds(Datum, reftimes(False, *_OF_SEG), st.just({}) | _said(config), contents)


def _said(config: DatasetConfig) -> SearchStrategy[dict[str, Any]]:
    """Metadata of seg and blob: declared, undeclared and missing."""
    others = st.sampled_from(UNDECLARED).filter(lambda key: key not in config.fields)
    deep = st.just(_nested(config.max_depth - 1))
    common = st.sampled_from([0, 0.0, 7, -5, True, "a", "a,b", "7", b"\0", *_COMMON[FieldType.TIMESTAMP]])
    undeclared = st.dictionaries(others, seg_values() | values(FieldType.TIMESTAMP) | common | deep, max_size=2)
    missing = st.dictionaries(st.sampled_from([*config.fields, "nothing"]), st.none(), max_size=1)
    return st.builds(lambda *some: dict(ChainMap(*some)), missing, undeclared, metadata(config.fields))


def seg_values() -> SearchStrategy[Any]:
    """Values that a segment of the disk queue returns unchanged, except that a tuple becomes a list."""
    leaves = st.one_of(
        st.none(),
        st.booleans(),
        st.sampled_from([-129, -32769, INTEGER_MIN, 2**64 - 1]) | st.integers(INTEGER_MIN, 2**64 - 1),
        st.floats(),
        _seg_texts(),
        st.binary(max_size=10),
    )
    return st.recursive(
        leaves,
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.lists(inner, max_size=2).map(tuple)
            | st.dictionaries(_seg_keys(), inner, max_size=3)
        ),
        max_leaves=8,
    )


def _seg_texts() -> SearchStrategy[str]:
    return st.text(max_size=10) | st.binary(max_size=10).map(lambda raw: raw.decode(errors="surrogateescape"))


def _seg_keys() -> SearchStrategy[str]:
    return _seg_texts().filter(bool)


def _large(size: int, plain: bool, as_bytes: bool) -> Any:
    """Return data of many bytes, which compress well or not at all."""
    content = b"large " * (size // 6) if plain else Random(size).randbytes(size)
    return content if as_bytes else {"content": content, "size": size}


def _nested(depth: int) -> Any:
    """Return mappings and lists in each other, `depth` levels deep."""
    value: Any = 1
    for level in range(depth):
        value = [value] if level % 2 else {"in": value}
    return value


def _refused_by_seg(datum: Datum, config: DatasetConfig) -> SearchStrategy[Datum]:
    """The datum with an invalid reftime, or an invalid value or key in its metadata or data."""
    first, last = (bound.replace(tzinfo=UTC) for bound in _OF_SEG)
    fine = timedelta(microseconds=1)
    times = st.sampled_from([first - fine, last + fine, datetime.min.replace(tzinfo=UTC)])
    keys: list[Any] = ["", "\ud800", 1, None, b"a"]
    inner: list[Any] = [2**64, INTEGER_MIN - 1, "\ud800", "\udcc3\udca9", {"": 1}, {1: 1}, {"\ud800": 1}, {1}, object(),
                        [datetime(2026, 11, 20, tzinfo=UTC)], bytearray(b"a"), _nested(config.max_depth)]  # fmt: skip
    whole: list[Any] = ["text", 1, 1.5, True, [], [{}], bytearray(b"a"), *({key: 1} for key in keys)]
    spoiled = [*((key, 1) for key in keys), *(("undeclared", value) for value in inner)]
    pairs = st.sampled_from([*spoiled, *((name, []) for name in config.fields)])
    contents = st.sampled_from([*whole, *({"value": value} for value in inner)])
    return st.one_of(
        times.map(lambda time: Datum(time, datum.metadata, datum.data)),
        pairs.map(lambda pair: Datum(datum.reftime, dict([*datum.metadata.items(), pair]), datum.data)),
        contents.map(lambda content: Datum(datum.reftime, datum.metadata, content)),
    )


def json_values(allow_nan: bool = True) -> SearchStrategy[Any]:
    """Values that JSON can store, also by a shape: bytes, any float, text with undecodable bytes."""
    leaves = st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(allow_nan=allow_nan),
        st.text(max_size=10),
        st.binary(max_size=10),
        st.binary(max_size=10).map(lambda raw: raw.decode(errors="surrogateescape")),
    )
    return st.recursive(leaves, lambda inner: st.lists(inner, max_size=3) | _mappings(inner), max_leaves=8)


def _mappings(inner: SearchStrategy[Any]) -> SearchStrategy[dict[str, Any]]:
    keys = st.text(max_size=5) | st.sampled_from(sorted(SHAPES))
    return st.dictionaries(keys, inner, max_size=3).filter(lambda value: not _looks_like_a_shape(value))


def _looks_like_a_shape(value: dict[str, Any]) -> bool:
    return len(value) == 1 and all(key in SHAPES and isinstance(item, str) for key, item in value.items())


def expressions(
    fields: Mapping[str, FieldType], max_leaves: int = 8, undeclared: Iterable[str] = ()
) -> SearchStrategy[Expression]:
    """Conditions on reftime, declared fields and undeclared metadata: every node of the syntax tree, also negated."""
    leaves = st.one_of([st.just(Everything()), _leaves("reftime", FieldType.TIMESTAMP, reftimes())]
                       + [_leaves(name, kind, values(kind)) for name, kind in fields.items()]
                       + [_undeclared_leaves(name) for name in undeclared if name not in fields])  # fmt: skip
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.builds(Not, inner),
            st.builds(And, st.lists(inner, max_size=3).map(tuple)),
            st.builds(Or, st.lists(inner, max_size=3).map(tuple)),
        ),
        max_leaves=max_leaves,
    ).filter(_is_taken)


def _is_taken(tree: Expression) -> bool:
    """Return whether a dataset accepts a condition; one of a hundred is nested too deep."""
    try:
        check_size(tree)
    except MatchError:
        return False
    return True


def _undeclared_leaves(name: str) -> SearchStrategy[Expression]:
    """Conditions on undeclared metadata, by the operators of Python and as text."""
    field = Fields({})[METADATA + name]
    scalars = st.one_of([values(kind) for kind in FieldType] + [st.integers(-1, 2**64 - 1)])
    parts = st.sampled_from(["a", "true", "7", ">=0", "-1,<5", "=-5", "00", "=2026", ",b", '""', '"a,b"', "<inf"])
    quoted = name.replace('"', '""')
    return st.one_of(
        st.just(field.is_null()),
        st.builds(lambda how, value: how(field, value), st.sampled_from([eq, ne, lt, le, gt, ge]), scalars),
        st.lists(scalars, max_size=4).map(field.isin),
        st.sampled_from(_COMMON[FieldType.TEXT]).map(field.startswith),
        st.lists(parts, min_size=1, max_size=3, unique=True).map(
            lambda some: parse(f'{METADATA}"{quoted}": {" or ".join(some)}', {})
        ),
    )


def _leaves(name: str, kind: FieldType, given: SearchStrategy[Any]) -> SearchStrategy[Expression]:
    field = st.just(name)
    stored = given.map(lambda value: canonical(value, kind))
    leaves: list[SearchStrategy[Expression]] = [
        st.builds(IsMissing, field),
        st.builds(Compare, field, _OPERATORS, stored),
        st.builds(OneOf, field, st.lists(stored, max_size=4).map(tuple)),
    ]
    if kind is FieldType.TEXT:
        part = st.sampled_from(["", "a", "b", "c", "a\0", "\u00e9"])
        parts = st.lists(st.none() | part, min_size=1, max_size=4).map(tuple)
        leaves += [st.builds(StartsWith, field, given | part), st.builds(Components, field, parts)]
    if kind is FieldType.ITEM:
        leaves += [st.builds(StartsWith, field, given), st.builds(Item, field, st.sampled_from(_PATTERNS[name]))]
    if kind is FieldType.TIMESTAMP:
        bounds = st.lists(st.integers(0, _SECONDS_OF_DAY), min_size=2, max_size=2, unique=True).map(sorted)
        leaves.append(bounds.flatmap(lambda ends: st.builds(TimeOfDay, field, st.just(ends[0]), st.just(ends[1]))))
        period, base = st.integers(1, 2 * _SECONDS_OF_DAY), st.integers(0, _SECONDS_OF_DAY - 1)
        leaves.append(st.builds(EverySeconds, field, period | st.just(3600), base | st.just(0)))
    return st.one_of(leaves)


def sort_orders(fields: Mapping[str, FieldType]) -> SearchStrategy[str]:
    """Sort orders for `query`, such as `day:station,-reftime`."""
    signs = st.sampled_from(["", "-"])
    names = st.lists(st.sampled_from(["reftime", *fields]), min_size=1, unique=True)
    keys = names.flatmap(lambda chosen: st.tuples(*(st.builds(str.__add__, signs, st.just(name)) for name in chosen)))
    intervals = st.sampled_from(["", "minute:", "hour:", "day:", "month:", "year:"])
    return st.builds(lambda interval, each: interval + ",".join(each), intervals, keys)

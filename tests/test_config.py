from __future__ import annotations

import pickle
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit import strategies

from ondisk import ConfigDict, DatasetConfig, FieldType, Step
from ondisk.config import RESERVED_FIELDS
from ondisk.errors import ConfigError

FULL = """\
format = "jsonl"
step = "weekly"
unique = ["reftime", "station"]
index = ["station"]
replace = "newer"
version_field = "update"
max_datum_size = 1000
max_depth = 10
lock_timeout = 2.5
compression = "none"
durability = "full"
segments = "concat"

[fields]
station = "integer"
update = "timestamp"

[csv]
time = "when"
null = ["NA", "-999"]
delimiter = "tab"
skip_lines = 2
"""
RESERVED = sorted(RESERVED_FIELDS)
SMALL = 'format = "vm2"\nstep = "daily"\n'


def test_every_key_is_read():
    assert DatasetConfig.from_toml(FULL) == DatasetConfig(
        "jsonl",
        Step.WEEKLY,
        unique=("reftime", "station"),
        index=("station",),
        replace="newer",
        version_field="update",
        max_datum_size=1000,
        max_depth=10,
        lock_timeout=2.5,
        compression="none",
        fields={"station": FieldType.INTEGER, "update": FieldType.TIMESTAMP},
        csv={"time": "when", "null": ("NA", "-999"), "delimiter": "\t", "skip_lines": 2},
    )


def test_only_the_step_is_required():
    config = DatasetConfig.from_toml('step = "daily"\n')
    assert (config.format, config.step, config.compression) == ("seg", Step.DAILY, "lz4")
    assert (config.unique, config.index, config.replace, config.version_field) == ((), (), "no", None)
    assert (config.max_datum_size, config.max_depth, config.lock_timeout) == (134_217_728, 64, 60.0)
    assert config.fields == {}


def test_a_configuration_made_in_python_accepts_the_values_of_the_file():
    given = DatasetConfig("vm2", "daily", unique=["area"], fields={"area": "text"}, lock_timeout=5)
    assert given == DatasetConfig.from_toml(SMALL + 'unique = ["area"]\nlock_timeout = 5\n[fields]\narea = "text"\n')
    assert given.step is Step.DAILY


@pytest.mark.parametrize(
    ("line", "key", "problem", "remedy"),
    [
        (
            'step = "minutely"',
            "step",
            "one of daily, weekly, biweekly, monthly, yearly, hourly, sequence, not 'minutely'",
            'step = "daily"',
        ),
        (
            "step = 5",
            "step",
            "one of daily, weekly, biweekly, monthly, yearly, hourly, sequence, not 5",
            'step = "daily"',
        ),
        ("format = 5", "format", "must be a text", "quotes"),
        ('format = ""', "format", "must be a text", "quotes"),
        ("archive_age = -1", "archive_age", "-1 is not between 0 and 4000000", "Remove the line"),
        ('archive_age = "365"', "archive_age", "must be a whole number", "without quotes"),
        ("deletions_kept = 0", "deletions_kept", "0 is not between 1 and 4000000", "Remove the line"),
        ("quarantine_age = -1", "quarantine_age", "-1 is not between 0 and 4000000", "Remove the line"),
        ('keep_replaced = "six hours"', "keep_replaced", "must be a duration such as 90s", 'keep_replaced = "6h"'),
        ("keep_replaced = 6", "keep_replaced", "must be a duration such as 90s", 'keep_replaced = "6h"'),
        ("delete_age = 9999999", "delete_age", "9999999 is not between 0 and 4000000", "Remove the line"),
        ('compression = "gzip"', "compression", "must be one of lz4, none, not 'gzip'", 'compression = "lz4"'),
        ('compression = ""', "compression", "must be one of lz4, none, not ''", "quotes"),
        ("compression = false", "compression", "must be one of lz4, none, not False", "quotes"),
        ("filter = 5", "filter", "must be a match expression", "quotes"),
        ('durability = "none"', "durability", "no durability 'none' yet", 'durability = "full"'),
        ('segments = "tar"', "segments", "must be one of concat, dir, not 'tar'", 'segments = "concat"'),
        ('extension = ".h5"', "extension", "'.h5' is not a valid extension", 'extension = "h5"'),
        ('extension = "a/b"', "extension", "'a/b' is not a valid extension", 'extension = "h5"'),
        ('extension = "17"', "extension", "'17' is not a valid extension", 'extension = "h5"'),
        ("colour = 1", "colour", "unknown key", "max_datum_size"),
        ('unique = "reftime"', "unique", "must be a list", 'unique = ["reftime"'),
        ("unique = [1]", "unique", "must be a list", 'unique = ["reftime"'),
        ('unique = ["area"]', "unique", "'area' is not a declared field", 'area = "text"'),
        ('unique = ["reftime", "reftime"]', "unique", "is listed twice", "once"),
        ('index = ["area"]', "index", "'area' is not a declared field", 'area = "text"'),
        ('replace = "always"', "replace", "must be one of no, yes, newer, not 'always'", 'replace = "no"'),
        ("replace = true", "replace", "must be one of no, yes, newer, not True", "quotes"),
        ('replace = "newer"', "replace", "needs a version_field", "version_field ="),
        ('version_field = "update"', "version_field", "not a declared field with an order", "integer, real, timestamp"),
        ('max_datum_size = "1"', "max_datum_size", "must be a whole number", "without quotes"),
        ("max_datum_size = 0", "max_datum_size", "0 is not between 1 and", "default"),
        ("max_datum_size = true", "max_datum_size", "must be a whole number", "without quotes"),
        ("max_depth = 0", "max_depth", "0 is not between 1 and 500", "default"),
        ("max_depth = 501", "max_depth", "501 is not between 1 and 500", "default"),
        ("lock_timeout = -1", "lock_timeout", "-1.0 is not between 0 and", "default"),
        ("lock_timeout = nan", "lock_timeout", "nan is not between 0 and", "default"),
        ("lock_timeout = inf", "lock_timeout", "inf is not between 0 and", "default"),
        ('lock_timeout = "60"', "lock_timeout", "must be a number of seconds", "without quotes"),
        ("fields = 5", "fields", "must be a table", "[fields]"),
        ('fields = {Station = "text"}', "fields.Station", "not a valid name for a field", "[a-z_]"),
        ('fields.station = "number"', "fields.station", "'number' is not a type", "integer, real, text"),
        ('[fields]\nstation = "number"', "fields.station", "'number' is not a type", "integer, real, text"),
        ('[ fields ]\n"station" = 5', "fields.station", "5 is not a type", "integer, real, text"),
        ("csv = 5", "csv", "must be a table", "[csv]"),
        ("[csv]\ncolour = 1", "csv.colour", "unknown key 'colour'", "time, time_format, tz, ambiguous, null"),
        ("[csv]\nnull = 5", "csv.null", "must be a list of texts, not 5", "remove the line"),
        ('[csv]\ntz = "UTC"\nnull = "NA"', "csv.null", "must be a list of texts, not 'NA'", "['NA']"),
        ('[csv]\ndelimiter = [";"]', "csv.delimiter", "must be one character", "blanks"),
        ('csv = {skip_lines = "2"}', "csv.skip_lines", "must be a whole number", "remove the line"),
        ('csv.ambiguous = "first"', "csv.ambiguous", "must be raise or infer, not 'first'", "remove the line"),
        ('csv.decimal = ";"', "csv.decimal", "must be a point or a comma", "remove the line"),
        ('[csv]\nthousands = "."', "csv.thousands", "cannot both be '.'", "decimal"),
        ('[csv]\nencoding = "latin-99"', "csv.encoding", "'latin-99' is not known", "windows-1252"),
        ('[fields]\nunique = ["reftime"]', "fields.unique", "is a key of the dataset, and not of [fields]", "above"),
        ("[fields]\narchive_age = 365", "fields.archive_age", "is a key of the dataset, and not of [fields]", "above"),
        ('[csv]\nunique = ["reftime"]', "csv.unique", "is a key of the dataset, and not of [csv]", "[csv]"),
        ('[fields]\n2d = "text"', "fields.2d", "'2d' is not a valid name for a field", "[a-z_]"),
        *(
            (f'[fields]\n{name} = "text"', f"fields.{name}", "is not a valid name for a field", "reftime")
            for name in RESERVED
        ),
    ],
)
def test_every_error_names_key_line_and_remedy(line, key, problem, remedy):
    values = {"format": 'format = "vm2"', "step": 'step = "daily"'}
    values.pop(line.split(" ")[0], None)
    text = "# a comment\n" + "".join(f"{each}\n" for each in values.values()) + line + "\n"
    with pytest.raises(ConfigError) as caught:
        DatasetConfig.from_toml(text, "weather/dataset.toml")
    expected = 2 + len(values) + line.count("\n")
    assert caught.value.message.startswith(f"weather/dataset.toml, line {expected}: {key}: ")
    assert problem in caught.value.message
    assert remedy in caught.value.hint
    assert (caught.value.context["key"], caught.value.context["line"]) == (key, expected)


@pytest.mark.parametrize("text", ["", 'format = "vm2"\n'])
def test_a_missing_step_is_named_with_a_line_to_add(text):
    with pytest.raises(ConfigError, match="step: is required") as caught:
        DatasetConfig.from_toml(text)
    assert 'step = "' in caught.value.hint


@pytest.mark.parametrize("table", ["fields", "csv"])
def test_a_step_below_the_header_of_a_table_is_not_called_missing(table):
    with pytest.raises(ConfigError, match=f"line 2: {table}.step: step is a key of the dataset, and not of"):
        DatasetConfig.from_toml(f'[{table}]\nstep = "daily"\n')


@pytest.mark.parametrize("text", ["format = vm2\n", SMALL + "step = 1\n", "[fields\n", "x = " + "[" * 5000])
def test_a_text_that_is_not_toml_is_refused(text):
    with pytest.raises(ConfigError, match="is not valid TOML") as caught:
        DatasetConfig.from_toml(text, "dataset.toml")
    assert caught.value.hint
    assert "line" in caught.value.message or "[" * 100 in text


def test_a_mapping_is_checked_as_the_file_is():
    with pytest.raises(ConfigError, match="the configuration: unique: 'area' is not a declared field"):
        DatasetConfig.from_mapping({"format": "vm2", "step": "daily", "unique": ["area"]})
    with pytest.raises(ConfigError, match="the configuration: unique: 'area' is not a declared field"):
        DatasetConfig("vm2", Step.DAILY, unique=("area",))


@pytest.mark.parametrize(
    ("line", "seconds"),
    [
        ("0", 0),
        ('"0s"', 0),
        ('"6h"', 21_600),
        ('"1h30m"', 5400),
        ('"90s"', 90),
        ('"7d"', 604_800),
        ('"1d12h"', 129_600),
    ],
)
def test_a_duration_is_hours_minutes_and_seconds(line, seconds):
    config = DatasetConfig.from_toml(SMALL + f"keep_replaced = {line}\n")
    assert config.keep_seconds == seconds
    assert DatasetConfig.from_toml(config.to_toml()) == config


def test_too_many_fields_are_refused():
    with pytest.raises(ConfigError, match="501 fields are too many"):
        DatasetConfig("jsonl", Step.DAILY, fields={f"f{n}": FieldType.TEXT for n in range(501)})
    assert len(DatasetConfig("jsonl", Step.DAILY, fields={f"f{n}": FieldType.TEXT for n in range(500)}).fields) == 500


@pytest.mark.parametrize("key", ["archive_age", "delete_age", "quarantine_age", "lock_timeout", "max_depth"])
def test_the_lowest_value_of_a_key_is_accepted(key):
    least = int(key == "max_depth")
    assert getattr(DatasetConfig.from_mapping({"step": "daily", key: least}), key) == least
    with pytest.raises(ConfigError, match=f"{key}: .*is not between {least} and"):
        DatasetConfig.from_mapping({"step": "daily", key: least - 1})


@pytest.mark.parametrize("kind", ["text", "bytes", "boolean"])
def test_a_version_needs_a_field_with_an_order(kind):
    values = {"step": "daily", "fields": {"made": kind}, "replace": "newer", "version_field": "made"}
    with pytest.raises(ConfigError, match="version_field: 'made' is not a declared field with an order"):
        DatasetConfig.from_mapping(values)


def test_a_configuration_cannot_be_changed():
    fields = {"area": FieldType.TEXT}
    config = DatasetConfig("vm2", Step.DAILY, fields=fields)
    fields["product"] = FieldType.TEXT
    assert list(config.fields) == ["area"]
    with pytest.raises(TypeError):
        config.fields["product"] = FieldType.TEXT
    with pytest.raises(AttributeError):
        config.format = "jsonl"


def test_a_copy_with_other_values_is_checked_as_the_configuration_is():
    config = DatasetConfig("vm2", "daily", fields={"area": "text"})
    copy = config._replace(step="hourly", unique=["area"])
    assert copy == DatasetConfig("vm2", Step.HOURLY, ("area",), fields={"area": FieldType.TEXT})
    assert config.unique == ()
    with pytest.raises(ConfigError, match="'level' is not a declared field"):
        config._replace(index=["level"])


@given(st.sampled_from(["vm2", "jsonl"]).flatmap(strategies.configs), st.data())
def test_what_is_written_as_toml_reads_back_equal(config, data):
    again = DatasetConfig.from_toml(config.to_toml())
    assert again == config
    assert list(again.fields) == list(config.fields), "the order of declaration is kept"
    assert pickle.loads(pickle.dumps(config)) == config


def test_keys_that_have_their_default_are_not_written():
    assert DatasetConfig.from_toml(SMALL).to_toml() == SMALL
    assert DatasetConfig.from_toml(SMALL + 'compression = "lz4"\n').to_toml() == SMALL
    assert DatasetConfig.from_toml('step = "daily"\n').to_toml() == 'format = "seg"\nstep = "daily"\n'
    full = DatasetConfig.from_toml(FULL).to_toml()
    assert re.findall(r"^(\w+) =", full, re.MULTILINE) == [
        *(
            "format",
            "step",
            "unique",
            "index",
            "replace",
            "version_field",
            "max_datum_size",
            "max_depth",
            "lock_timeout",
            "compression",
        ),
        *("station", "update"),
        *("time", "null", "delimiter", "skip_lines"),
    ]
    assert DatasetConfig.from_toml(full) == DatasetConfig.from_toml(FULL)


@pytest.mark.parametrize(
    ("given", "resolved"),
    [
        ({}, (2, "lz4")),
        ({"version": 2, "compression": "none"}, (2, "none")),
        ({"version": 1}, (1, "none")),
        ({"version": 0}, (0, "none")),
        ({"payload": "protobuf"}, (2, "lz4")),
        ({"encryption": "aes-128-ctr"}, (2, "lz4")),
        ({"encryption": "aes-256-gcm"}, (None, "none")),
        ({"encryption": "aes-256-gcm", "payload": "protobuf"}, (None, "none")),
    ],
)
def test_the_kind_of_segments_of_seg_can_be_chosen(given, resolved):
    config = DatasetConfig.from_mapping({"step": "daily", **given})
    assert (config.version, config.compression) == resolved
    assert DatasetConfig.from_toml(config.to_toml()) == config


@pytest.mark.parametrize(
    ("given", "key"),
    [
        ({"version": 3}, "version"),
        ({"version": True}, "version"),
        ({"version": "2"}, "version"),
        ({"version": 0, "compression": "lz4"}, "compression"),
        ({"version": 1, "payload": "protobuf"}, "payload"),
        ({"version": 1, "encryption": "aes-128-ctr"}, "encryption"),
        ({"version": 2, "encryption": "aes-256-gcm"}, "version"),
        ({"compression": "lz4", "encryption": "aes-256-gcm"}, "compression"),
        ({"encryption": "aes"}, "encryption"),
        ({"format": "vm2", "version": 1}, "version"),
        ({"format": "jsonl", "payload": "protobuf"}, "payload"),
        ({"format": "blob", "encryption": "aes-256-gcm"}, "encryption"),
    ],
)
def test_kinds_of_segments_that_do_not_exist_are_refused(given, key):
    with pytest.raises(ConfigError) as caught:
        DatasetConfig.from_mapping({"step": "daily", **given})
    assert caught.value.context["key"] == key
    assert caught.value.hint


@pytest.mark.parametrize("key", DatasetConfig._fields)
@pytest.mark.parametrize("shape", ["{}", "-{}", "[{}]", "{{'a': {}}}", "{{{}: 'text'}}"])
def test_an_integer_of_thousands_of_digits_is_refused_for_every_key(key, shape):
    value = eval(shape.format(hex(10**5000)))
    with pytest.raises(ConfigError) as caught:
        DatasetConfig.from_mapping({"format": "seg", "step": "daily", key: value})
    assert len(str(caught.value)) < 600


def test_the_typed_mapping_has_the_keys_of_the_configuration():
    assert {*ConfigDict.__annotations__} == {*DatasetConfig._fields, "durability"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ('{"step": "daily", "uniqe": ["reftime"]}', 'Extra key "uniqe"'),
        ('{"step": "hourlyy"}', "Incompatible types"),
        ('{"step": "daily", "fields": {"area": "txt"}}', "incompatible type"),
        ('{"format": "vm2"}', 'Missing key "step"'),
        ('{"step": "daily", "unique": ["reftime"], "index": ("area",), "fields": {"area": "text"}}', None),
    ],
)
def test_a_type_checker_finds_mistyped_keys_and_values(given, problem):
    api = pytest.importorskip("mypy.api", reason="mypy is not installed")
    program = f'import ondisk\nondisk.create("weather", {given})\nconfig: ondisk.ConfigDict = {given}'
    found, _, code = api.run(["-c", program, "--config-file="])
    assert code == (problem is not None)
    assert problem is None or (problem in found and "<string>:2: error: Argument 2" in found)

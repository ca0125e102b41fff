from __future__ import annotations

import io
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit import EVERY_TYPE, same, strategies

from ondisk import DatasetConfig, Datum
from ondisk.datum import microseconds, restored
from ondisk.errors import ConfigError, FrameCorrupt, InvalidInput
from ondisk.formats import find, has_extension, of_extension, recognised
from ondisk.formats.blob import MAX_METADATA, Blob

T = datetime(2026, 11, 20, 6, tzinfo=UTC)


def blob(**values):
    return Blob(DatasetConfig.from_mapping({"format": "blob", "step": "daily", **values}))


def test_bytes_stay_as_they_are_and_metadata_are_beside_them():
    format = blob(fields={"station": "integer", "made": "timestamp"})
    datum = Datum(
        T, {"station": 5, "made": T, "note": "gusty", "seen": T, "none": None, "deep": {"a": [1, 2.5]}}, b"\0"
    )
    batch = format.encode([datum])
    assert (batch.payloads, batch.refused) == ([b"\0"], [])
    assert format.describe(batch.beside[0]) == (microseconds(T), {"station": 5, "made": microseconds(T)})
    loaded = format.load(batch.beside)
    assert loaded.reftimes == [microseconds(T)]
    text = "2026-11-20T06:00:00Z"
    assert loaded.undeclared == [{"note": "gusty", "seen": text, "none": None, "deep": {"a": [1, 2.5]}}]


@given(data=st.data())
def test_declared_metadata_of_every_type_come_back_from_what_is_beside(data):
    format = blob(fields=EVERY_TYPE)
    metadata = data.draw(strategies.metadata(format.config.fields))
    reftime = data.draw(strategies.reftimes())
    batch = format.encode([Datum(reftime, metadata, data.draw(st.binary(max_size=20)))])
    assert batch.refused == []
    found, described = format.describe(batch.beside[0])
    assert found == microseconds(reftime)
    assert described == batch.metadata[0]
    back = {name: restored(value, format.config.fields[name]) for name, value in described.items()}
    assert same(back, metadata)


@pytest.mark.parametrize(
    ("metadata", "data", "reason"),
    [
        ({}, "text", "the data of blob must be bytes, not str"),
        ({}, None, "the data of blob must be bytes, not NoneType"),
        ({}, bytearray(b"x"), "bytes, not bytearray"),
        ({}, b"x" * 101, "101 bytes are more than max_datum_size, 100"),
        ({"station": "five"}, b"", "station: 'five' is a text, the field is declared integer"),
        ({"x": object()}, b"", "cannot store a value of type object"),
        ({1: 2}, b"", "a key must be text, not int"),
        ({"x": datetime(2026, 1, 1)}, b"", "has no time zone"),
        ({"x": "x" * MAX_METADATA}, b"", "bytes of metadata are more than"),
        ({"x": [[[[]]]]}, b"", "nested deeper"),
    ],
)
def test_what_cannot_be_stored_is_refused_and_the_rest_goes_on(metadata, data, reason):
    format = blob(fields={"station": "integer"}, max_datum_size=100, max_depth=4)
    batch = format.encode([Datum(T, metadata, data), Datum(T, {}, b"whole")])
    assert batch.payloads == [b"whole"]
    assert len(batch.beside) == 1
    ((position, said),) = batch.refused
    assert position == 0
    assert reason in said


def test_refusing_old_data_takes_what_is_beside_them_too():
    format = blob()
    batch = format.encode([Datum(T - timedelta(days=1), {}, b"old"), Datum(T, {"a": 1}, b"new")])
    batch.refuse_before(microseconds(T), "too old")
    assert batch.payloads == [b"new"]
    assert format.load(batch.beside).undeclared == [{"a": 1}]


@pytest.mark.parametrize("beside", [b"", b"\xa0", b"\xff", b"\xa2greftimeahmetadata\xa0", b"\x80"])
def test_damaged_metadata_are_said_to_be_so(beside):
    for read in (blob().describe, lambda each: blob().load([each])):
        with pytest.raises(FrameCorrupt, match="its metadata are damaged"):
            read(beside)


def test_a_file_says_nothing_of_its_reftime_so_the_command_must():
    with pytest.raises(InvalidInput, match="does not contain its reftime") as caught:
        blob().parse(io.BytesIO(b"x"), 1)
    assert "--format blob --time mtime" in caught.value.hint


def test_the_extension_is_configured_and_none_of_another_format():
    assert blob().extension == "blob"
    assert blob(extension="h5").extension == "h5"
    with pytest.raises(ConfigError, match="extension: 'vm2' belongs to another format"):
        blob(extension="vm2")
    config = blob(extension="h5").config
    assert [of_extension(each, config) for each in ("h5", "blob", "vm2", "nc")] == ["blob", "blob", "vm2", "netcdf"]
    assert has_extension("blob", "nc")
    assert not has_extension("blob", "../x")
    assert not has_extension("vm2", "nc")


def test_other_formats_have_no_dir_segments_yet():
    with pytest.raises(ConfigError, match="no dir segments of jsonl"):
        find("jsonl")(DatasetConfig.from_mapping({"format": "jsonl", "step": "daily", "segments": "dir"}))
    blob(segments="dir")
    find("vm2")(blob(segments="dir").config)  # files of other formats are appended as before


def test_no_content_is_taken_for_a_blob_unless_it_is_the_default():
    assert (recognised("x.jpg", b"\x89HDF", "seg") or "seg") == "seg"
    assert (recognised("x.jpg", b"\x89HDF", "blob") or "blob") == "blob"
    assert (recognised(None, b'{"reftime": 1}', "blob") or "blob") == "jsonl"


def test_reftimes_of_any_zone_are_kept_as_utc():
    zone = timezone(timedelta(hours=2))
    batch = blob().encode([Datum(datetime(2026, 11, 20, 8, tzinfo=zone), {}, b"")])
    assert blob().describe(batch.beside[0])[0] == microseconds(T)

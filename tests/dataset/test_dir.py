"""Blobs in a dataset: appended, asked, read, replaced, deleted; what a crash leaves is in nobody's way."""

from __future__ import annotations

import errno
import io
import os
from datetime import UTC, datetime, timedelta

import pytest
from drawn import up_to
from hypothesis import given, settings
from hypothesis import strategies as st
from kit import EVERY_TYPE, same, strategies
from worlds import lose_index

import ondisk
from ondisk import Datum, Location
from ondisk.errors import ConfigError, DatumNotFound, DiskFull, InvalidInput, SegmentCorrupt, SegmentMissing
from ondisk.maintenance.states import State

T = datetime(2026, 11, 20, tzinfo=UTC)
HOUR = timedelta(hours=1)
NAME = "2026/11-20.h5"


@pytest.fixture
def dataset(create):
    return create(format="blob", extension="h5", unique=["reftime", "station"], fields={"station": "integer"})


def some(count=3, **metadata):
    return [Datum(T + HOUR * hour, {"station": 1, **metadata}, b"data %d" % hour) for hour in range(count)]


def names(dataset, day="2026/11-20"):
    return sorted(each.name for each in (dataset.path / f"{day}.h5").iterdir() if each.name[0] != ".")


def test_data_are_files_of_their_day_and_come_back_with_all_their_metadata(dataset):
    given = some(26, note="kept", deep={"a": [b"\0"]})
    result = dataset.append(given)
    assert (result.imported, result.segments, result.bytes) == (26, 2, sum(len(each.data) for each in given))
    assert [*dataset.query()] == given
    assert names(dataset) == [f"{number:06}.h5" for number in range(24)]
    assert (dataset.path / NAME / "000003.h5").read_bytes() == b"data 3"
    assert next(dataset.query()).location == Location(NAME, 0, 6)
    assert [each.metadata for each in dataset.query(with_data=False, limit=1)] == [{"station": 1}]
    assert [*dataset.payloads()] == [each.data for each in given]
    assert dataset.summary().size == result.bytes


def test_one_datum_is_read_by_its_key_and_by_its_location(dataset):
    dataset.append(some(note="kept"))
    (found,) = dataset.query(reftime=T + HOUR, station=1)
    assert found == dataset.read(found.location) == some(note="kept")[1]
    for location in (Location(NAME, 1, 5), Location(NAME, 3, 6), Location(NAME, -1, 6), Location(NAME, 2**70, 6),
                     Location(NAME, 1, 2**70)):  # fmt: skip
        with pytest.raises(DatumNotFound):
            dataset.read(location)


def test_duplicates_are_left_out_without_a_gap_and_replaced_data_leave_their_file(create):
    dataset = create(format="blob", extension="h5", unique=["reftime"])
    dataset.append(some(2))
    result = dataset.append([some(1)[0], Datum(T + 5 * HOUR, {}, b"new"), some(2)[1]], outcomes=True)
    assert [each.status for each in result.outcomes] == ["duplicate", "imported", "duplicate"]
    assert names(dataset) == ["000000.h5", "000001.h5", "000002.h5"]
    other = create("other", format="blob", extension="h5", unique=["reftime"], replace="yes")
    other.append(some(2))
    other.append([Datum(T, {"x": "newer"}, b"newer")])
    assert next((each.data, dict(each.metadata)) for each in other.query()) == (b"newer", {"x": "newer"})
    assert names(other) == ["000000.h5", "000001.h5", "000002.h5"]


def test_deleted_data_are_gone_and_their_files_stay(dataset):
    dataset.append(some())
    assert dataset.delete("reftime:>=2026-11-20 01:00,<=2026-11-20 01:59") == 1
    assert [each.data for each in dataset.query()] == [b"data 0", b"data 2"]
    assert dataset.delete([Location(NAME, 2, 6)]) == 1
    assert len(names(dataset)) == 3


@pytest.mark.check
@settings(max_examples=up_to(25))
@given(data=st.data())
def test_any_bytes_and_metadata_of_every_type_come_back(tmp_path_factory, data):
    config = ondisk.DatasetConfig.from_mapping({"format": "blob", "step": "monthly", "fields": EVERY_TYPE})
    given = data.draw(st.lists(
        st.builds(Datum, strategies.reftimes(), strategies.metadata(config.fields), st.binary(max_size=50)), max_size=4
    ))  # fmt: skip
    with ondisk.create(tmp_path_factory.mktemp("dataset") / "blobs", config) as dataset:
        assert dataset.append(given).imported == len(given)
        found = [*dataset.query()]
        expected = sorted(given, key=lambda each: each.reftime)
        assert [each.data for each in found] == [each.data for each in expected]
        assert all(same(dict(one.metadata), dict(other.metadata)) for one, other in zip(found, expected, strict=True))
        # Data that were not appended in the order of their times are DIRTY.
        assert {each.state for each in dataset.check(accurate=True)} <= {State.OK, State.DIRTY}


def test_what_a_crash_left_does_not_keep_the_next_append_from_going_on(dataset):
    dataset.append(some(2))
    (dataset.path / NAME / "000002.h5").write_bytes(b"cut")
    (dataset.path / NAME / "000007.h5").write_bytes(b"")
    with (dataset.path / NAME / ".metadata").open("ab") as file:
        file.write(b"\x40\0\0\0torn")
    more = [Datum(T + 5 * HOUR, {"station": 2, "x": 1}, b"more"), Datum(T + 6 * HOUR, {}, b"and more")]
    dataset.append([*more, some(1)[0]])
    assert [*dataset.query()] == [*some(2), *more]
    assert (dataset.path / NAME / "000002.h5").read_bytes() == b"cut"
    assert names(dataset)[-2:] == ["000008.h5", "000009.h5"]
    assert dataset.read(Location(NAME, 9, 8)) == more[1]
    assert [each.state for each in dataset.check()] == [State.DIRTY], "no row was removed from the index"


def test_an_append_that_fails_leaves_nothing(dataset, monkeypatch):
    dataset.append(some(1))
    whole, left = os.pwrite, [5]

    def full(file, content, position):
        left[0] -= 1
        if not left[0]:
            raise OSError(errno.ENOSPC, "full")
        return whole(file, content, position)

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", full)
        with pytest.raises(DiskFull):
            dataset.append(some(30))
    assert names(dataset) == ["000000.h5"]
    assert not (dataset.path / "2026/11-21.h5").exists()
    assert dataset.append(some(30)).imported == 29
    assert [*dataset.query()] == some(30)


def test_data_of_a_lost_index_are_not_overwritten(dataset):
    dataset.append(some())
    dataset.close()
    lose_index(dataset.path)
    with ondisk.open(dataset.path) as again:
        again.append([Datum(T, {}, b"other")])
        assert (dataset.path / NAME / "000000.h5").read_bytes() == b"data 0"
        assert names(dataset)[-1] == "000003.h5"


def test_a_damaged_file_is_an_error_and_what_is_before_it_is_returned(dataset):
    dataset.append(some())
    (dataset.path / NAME / "000001.h5").write_bytes(b"cut")
    found = dataset.query()
    assert next(found) == some()[0]
    with pytest.raises(SegmentCorrupt, match="has 3 bytes instead of 6"):
        next(found)
    (dataset.path / NAME / "000001.h5").unlink()
    with pytest.raises(SegmentMissing):
        [*dataset.query()]


def test_a_missing_directory_is_an_error_for_appends_while_the_index_has_data_of_it(dataset):
    dataset.append(some())
    (dataset.path / NAME).rename(dataset.path / "away")
    refused = dataset.append([Datum(T, {"station": 9}, b"")])
    assert (refused.imported, refused.refused) == (0, 1)
    assert "is in the index, but not on disk" in refused.refusals[0][1]
    assert not (dataset.path / NAME).exists()
    dataset.delete("")
    dataset.append([Datum(T, {"station": 9}, b"anew")])
    assert [each.data for each in dataset.query()] == [b"anew"]
    assert names(dataset) == ["000000.h5"]


def test_a_file_of_any_bytes_needs_a_reftime(dataset, tmp_path):
    (tmp_path / "x.h5").write_bytes(b"\x89HDF")
    with pytest.raises(InvalidInput, match="does not contain its reftime"):
        dataset.append_file(tmp_path / "x.h5")


def test_a_later_extension_leaves_older_segments_readable_and_known(dataset):
    dataset.append(some(1))
    dataset.close()
    text = (dataset.path / "dataset.toml").read_text()
    (dataset.path / "dataset.toml").write_text(text.replace('"h5"', '"nc"'))
    with ondisk.open(dataset.path) as again:
        again.append(some(2))
        assert [*again.query()] == some(2)
        assert (dataset.path / "2026/11-20.nc").is_dir()
        assert again.check().ok == 2
    lose_index(dataset.path)
    with ondisk.open(dataset.path) as again:
        again.fix()
        assert [*again.query()] == some(2)


def test_segments_of_other_formats_cannot_be_dir_yet(tmp_path):
    with pytest.raises(ConfigError, match="no dir segments of vm2"):
        ondisk.create(tmp_path / "x", {"format": "vm2", "step": "daily", "segments": "dir"})


def test_files_of_other_formats_are_appended_beside_blobs(dataset, tmp_path):
    dataset.append(some(1))
    dataset.append_file(io.BytesIO(b"202611200600,1,227,1.2,,,\n"), "vm2")
    assert [each.data for each in dataset.query()] == [b"data 0", b"202611200600,1,227,1.2,,,"]
    assert dataset.check().ok == 2

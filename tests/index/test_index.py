"""An index, and a configuration that it was not built for."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from worlds import change_config, hours

import ondisk
from ondisk import Datum
from ondisk.config import DatasetConfig
from ondisk.dataset.auxiliary_files import SENTINEL
from ondisk.errors import ConfigError, NeedsMigration
from ondisk.index import INDEX, Index

T = datetime(2026, 11, 20, 6, tzinfo=UTC)


FIELDS = {"station": "integer", "product": "text"}

CHANGES = {
    "unique": ('unique = ["reftime"]', 'unique = ["reftime", "station"]'),
    "index": ('index = ["station"]', 'index = ["product"]'),
    "fields": ('product = "text"', 'product = "bytes"'),
    "another field": ('product = "text"', 'product = "text"\nlevel = "real"'),
}


@pytest.fixture
def configured(create):
    return create(fields=FIELDS, unique=["reftime"], index=["station"])


@pytest.mark.parametrize("what", CHANGES)
def test_a_changed_configuration_needs_a_migration_to_write_and_none_to_read(configured, what):
    configured.append([Datum(T, {"station": 5, "product": "rain"})])
    configured.close()
    change_config(configured.path, *CHANGES[what])
    with pytest.raises(NeedsMigration) as caught:
        ondisk.open(configured.path)
    assert caught.value.hint
    assert "the index was built for" in caught.value.message
    with ondisk.open(configured.path, read_only=True) as reader:
        assert list(reader.query("station:5; product:rain")) == [Datum(T, {"station": 5, "product": "rain"}, {})]
        assert reader.info()["unique"] == ["reftime"]


def test_the_order_in_which_fields_are_declared_may_change_at_any_time(configured):
    configured.append([Datum(T, {"station": 5, "product": "rain"})])
    configured.close()
    change_config(configured.path, 'station = "integer"\nproduct = "text"', 'product = "text"\nstation = "integer"')
    with ondisk.open(configured.path) as dataset:
        dataset.append([Datum(T.replace(hour=7), {"station": 6, "product": "wind"})])
        found = [datum.metadata for datum in dataset.query(sort="-station")]
        assert found == [{"station": 6, "product": "wind"}, {"station": 5, "product": "rain"}]


def test_a_changed_step_is_an_error_where_there_are_data(configured):
    configured.append([Datum(T)])
    configured.close()
    change_config(configured.path, 'step = "daily"', 'step = "monthly"')
    with pytest.raises(ConfigError, match="says step = 'monthly', the index was built for 'daily'"):
        ondisk.open(configured.path)
    with ondisk.open(configured.path, read_only=True) as reader:
        assert hours(reader) == [6]


@pytest.mark.parametrize("what", [*CHANGES, "step"])
def test_before_anything_was_stored_every_change_is_taken(configured, what):
    configured.close()
    change_config(configured.path, *CHANGES.get(what, ('step = "daily"', 'step = "monthly"')))
    with ondisk.open(configured.path) as dataset:
        assert not dataset.needs_check
        dataset.append([Datum(T, {"station": 5}), Datum(T.replace(hour=7), {"station": 6})])
        assert dataset.info()["unique"] == list(dataset.config.unique)
        assert hours(dataset) == [6, 7]
    assert not (dataset.path / SENTINEL).exists()


def test_what_the_index_does_not_depend_on_may_change_at_any_time(configured):
    configured.append([Datum(T, {"station": 5})])
    configured.close()
    change_config(
        configured.path,
        'format = "jsonl"',
        'format = "jsonl"\nreplace = "yes"\nlock_timeout = 5\nmax_datum_size = 1000',
    )
    with ondisk.open(configured.path) as dataset:
        assert dataset.append([Datum(T, {"station": 6})]).replaced == 1
        assert [datum.metadata for datum in dataset.query()] == [{"station": 6}]


def test_the_logs_of_a_lost_index_are_durably_gone_before_the_new_one_appears(directory, monkeypatch):
    for suffix in ("-journal", "-wal", "-shm"):
        directory.create_file(f"{INDEX}{suffix}").close()
    synced = []
    monkeypatch.setattr("ondisk.filesystem.files.sync", lambda *_: synced.append(directory.names("")))
    Index.create(directory, DatasetConfig.from_mapping({"format": "jsonl", "step": "daily"}))
    assert synced[0] == []
    assert directory.names("") != []


@pytest.mark.check
def test_the_log_of_a_small_index_does_not_stay_as_large_as_the_index(tmp_path):
    path = tmp_path / "dataset"
    with ondisk.create(path, {"format": "jsonl", "step": "monthly"}) as dataset:
        dataset.append([Datum(datetime(2026, 11, 20, tzinfo=UTC), {}, {"v": number}) for number in range(20_000)])
    index, log = path / "index.sqlite", path / "index.sqlite-wal"
    assert log.stat().st_size > index.stat().st_size // 2  # as the append has made it
    ondisk.open(path).close()
    assert log.stat().st_size <= index.stat().st_size // 8

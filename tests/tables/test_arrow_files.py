"""Files of Parquet and Arrow: recognised by their first bytes, stored by rows; a hostile one is an error."""

from __future__ import annotations

import io
import random
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest

import ondisk
from ondisk.errors import InvalidInput, LimitExceeded
from ondisk.tables import arrow_input

T = datetime(2026, 11, 20, tzinfo=UTC)
TIME = pa.timestamp("us", "UTC")
CONFIG = {"format": "jsonl", "step": "monthly", "fields": {"station": "integer"}}


@pytest.fixture
def table():
    return pa.table(
        {
            "reftime": pa.array([T + timedelta(hours=number) for number in range(100)], TIME),
            "station": pa.array([number % 3 for number in range(100)]),
            "wind": pa.array([number / 7 for number in range(100)]),
            "note": pa.array([f"note {number % 5}" if number % 4 else None for number in range(100)]),
        }
    )


def written(table, form, path):
    match form:
        case "parquet":
            pq.write_table(table, path, row_group_size=30)
        case "stream":
            with pa.ipc.new_stream(path, table.schema) as writer:
                writer.write_table(table, max_chunksize=30)
        case "lz4":
            feather.write_feather(table, path, compression="lz4", chunksize=30)
        case "file":
            with pa.ipc.new_file(path, table.schema) as writer:
                writer.write_table(table, max_chunksize=30)
    return path


FORMS = ["parquet", "stream", "lz4", "file"]


@pytest.mark.parametrize("form", FORMS)
def test_a_file_is_stored_whatever_its_name_is(create, table, tmp_path, form):
    dataset = create(**CONFIG)
    path = written(table, form, tmp_path / "it")
    assert dataset.append_file(path).imported == 100
    names = {"reftime": None, "station": None, "data.wind": None, "data.note": None}
    assert dataset.to_arrow(columns=names).read_all().rename_columns(table.schema.names).equals(table)
    with path.open("rb") as stream:
        assert dataset.append_file(stream).imported == 100
    assert dataset.append_file(io.BytesIO(path.read_bytes()), time="reftime").imported == 100


@pytest.mark.parametrize("form", FORMS)
def test_the_same_table_comes_back_from_a_file_that_a_dataset_wrote(create, table, tmp_path, form):
    dataset, other = create(**CONFIG), create("other", **CONFIG)
    dataset.append_arrow(table)
    other.append_file(written(dataset.to_arrow().read_all(), form, tmp_path / "file"))
    assert other.to_arrow().read_all().equals(dataset.to_arrow().read_all())


def test_a_file_of_feather_1_or_of_another_kind_is_refused(create, tmp_path):
    dataset = create(**CONFIG)
    (tmp_path / "old").write_bytes(b"FEA1" + bytes(20) + b"FEA1")
    with pytest.raises(InvalidInput, match="Feather, version 1"):
        dataset.append_file(tmp_path / "old")
    (tmp_path / "text").write_bytes(b"text")
    with pytest.raises(InvalidInput, match="it is not a file of Parquet or Arrow"):
        dataset.append_file(tmp_path / "text", format="parquet")


def test_a_pipe_is_refused_with_its_remedy(create, table, tmp_path):
    class Pipe(io.BytesIO):
        def seekable(self):
            return False

    content = written(table, "parquet", tmp_path / "it").read_bytes()
    with pytest.raises(InvalidInput, match="cannot be read from a pipe") as caught:
        create(**CONFIG).append_file(Pipe(content))
    assert "Write it to a file" in caught.value.hint


def test_a_column_that_is_far_larger_than_its_bytes_is_refused(create, tmp_path, monkeypatch):
    monkeypatch.setattr(arrow_input, "_LARGE", 1_000_000)
    table = pa.table({"reftime": pa.array([T] * 20, TIME), "x": pa.array([b"\0" * 1_000_000] * 20)})
    pq.write_table(table, tmp_path / "bomb", compression="zstd", use_dictionary=False)
    with pytest.raises(LimitExceeded, match=r"x has 2\d+ bytes, in \d+ bytes of the file"):
        create(**CONFIG).append_file(tmp_path / "bomb")


def test_a_text_that_all_rows_share_is_read_once(create, tmp_path):
    """A file of some kilobytes, of which 100,000 rows have the same text of 1 MB: 100 GB if each had its own."""
    shared = pa.DictionaryArray.from_arrays(pa.array([0] * 100_000, pa.int32()), pa.array(["x" * 1_000_000]))
    table = pa.table({"reftime": pa.array([T] * 100_000, TIME), "text": shared})
    pq.write_table(table, tmp_path / "bomb", compression="zstd")
    dataset = create(format="jsonl", max_datum_size=100_000)
    with pytest.raises(LimitExceeded, match="has a value of 1000000 bytes, more than max_datum_size"):
        dataset.append_file(tmp_path / "bomb")


MUTATE = """if True:
    import io, random, sys, tempfile, tracemalloc
    import ondisk
    from ondisk.errors import OndiskError
    form, seed, path = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    content = open(path, "rb").read()
    chance = random.Random(seed)
    stored = failed = 0
    with ondisk.create(path + ".dataset", {"format": "jsonl", "step": "yearly"}) as dataset:
        for _ in range(int(sys.argv[4])):
            mutated = bytearray(content)
            for _ in range(chance.choice([1, 1, 2, 5, 50])):
                at = chance.randrange(len(mutated))
                if chance.random() < 0.5:  # the description at the end
                    at = -1 - chance.randrange(min(600, len(mutated)))
                mutated[at] = chance.choice([0, 255, 127, 128, mutated[at] ^ (1 << chance.randrange(8))])
            if chance.random() < 0.2:
                del mutated[chance.randrange(len(mutated)):]
            try:
                dataset.append_file(io.BytesIO(bytes(mutated)), form)
                stored += 1
            except OndiskError:
                failed += 1
    print(stored, failed)
"""


@pytest.mark.check
@pytest.mark.parametrize("form", FORMS)
def test_damaged_files_are_errors_and_never_a_crash(table, tmp_path, form):
    """In a process of its own, where a crash of pyarrow is seen."""
    path = written(table, form, tmp_path / "it")
    format = "parquet" if form == "parquet" else "arrow"
    done = subprocess.run(
        [sys.executable, "-c", MUTATE, format, str(random.Random(form).randrange(1000)), path, "150"],
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    stored, failed = map(int, done.stdout.split())
    assert stored + failed == 150
    assert failed > 20


def test_a_file_is_appended_by_the_command(table, tmp_path, monkeypatch, capfd):
    from ondisk.cli import main

    monkeypatch.chdir(tmp_path)
    ondisk.create("stations", CONFIG).close()
    written(table.rename_columns(["when", "station", "wind", "note"]), "parquet", tmp_path / "x.parquet")
    assert main(["append", "stations", "x.parquet"]) == 2
    assert "x.parquet: there is no column 'reftime'; the columns are 'when'" in capfd.readouterr().err
    assert main(["append", "stations", "x.parquet", "--time", "when"]) == 0
    assert capfd.readouterr().out.startswith("100 imported, 0 duplicates, 0 refused; ")
    with open("x.parquet", "rb") as stream:  # noqa: PTH123
        monkeypatch.setattr(sys, "stdin", stream)
        assert main(["append", "stations", "-", "--time", "when"]) == 0

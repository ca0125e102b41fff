"""Match expressions use the aliases and the durations of their dataset."""

from __future__ import annotations

import json

import pytest
from formats.grib.build import grib1

import ondisk
from ondisk.cli import main
from ondisk.dataset.expression import read_aliases
from ondisk.errors import MatchError, NotFound, StorageError

CONFIG = {
    "format": "grib",
    "step": "daily",
    "aliases": "names.conf",
    "fields": {"level": "item", "product": "item", "step": "integer", "stat": "integer"},
}
ALIASES = "[level]\nground = GRIB1,105,2\nhigh = GRIB1,100\n"


@pytest.fixture
def path(tmp_path):
    messages = [grib1(p1=hours, level=level) for hours in (3, 6, 48) for level in ((105, 0, 2), (100, 3, 232))]
    (tmp_path / "some.grib").write_bytes(b"".join(messages))
    with ondisk.create(tmp_path / "model", CONFIG) as dataset:
        dataset.append_file(tmp_path / "some.grib")
    (tmp_path / "model" / "names.conf").write_text(ALIASES)
    return tmp_path / "model"


def test_a_query_uses_aliases_of_the_dataset_and_durations(path, capsys):
    with ondisk.open(path, read_only=True) as dataset:
        steps = [datum.metadata["step"] for datum in dataset.query("level: ground; step: >=6h,<=2d")]
        assert steps == [6 * 3600, 48 * 3600]
        assert dataset.count("step: 1d24h; level: GROUND or high") == 2
        assert dataset.count("step: 10800") == 2
        with pytest.raises(MatchError, match="not an integer"):
            dataset.query("stat: 6h")
    other = path.parent / "other.conf"
    other.write_text("[level]\nground = GRIB1,100\n")
    assert main(["query", str(path), "level: ground; step: 6h", "--aliases", str(other), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["metadata"]["level"] == "GRIB1,100,1000"


@pytest.mark.check
def test_commands_take_other_aliases(path, capsys):
    other = path.parent / "other.conf"
    other.write_text("[level]\nlow = GRIB1,105\n")
    options = ["--aliases", str(other)]
    assert main(["summary", str(path), "level: low", *options, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["count"] == 3
    assert main(["delete", str(path), "level: low", *options, "--yes"]) == 0
    assert main(["query", str(path), "level: ground", *options]) == 4
    assert main(["query", str(path), "level: low", "--aliases", str(other) + "x"]) == 10


@pytest.mark.check
def test_a_file_of_aliases_is_read_when_it_is_needed(path):
    (path / "names.conf").unlink()
    with ondisk.open(path, read_only=True) as dataset:
        assert dataset.count() == 6
        with pytest.raises(NotFound, match=r"names\.conf: no such file"):
            dataset.count("level: ground")
        (path / "names.conf").write_text("[level]\nground = GRIB1\n", encoding="utf-8-sig")
        assert dataset.count("level: ground") == 6


@pytest.mark.check
def test_a_file_of_aliases_that_cannot_be_read_is_an_error(path):
    with pytest.raises(StorageError, match="Input/output error"):
        read_aliases("/proc/self/mem")

"""Names and folders of what is served."""

from __future__ import annotations

import pytest

import ondisk
from ondisk.errors import DatasetNotFound, InvalidInput
from ondisk.server.datasets import by_name, is_readable

from .conftest import data


def names(paths):
    served = by_name(paths)
    for each in served.values():
        each.close()
    return [*served]


def test_names_are_those_of_the_folders(create, tmp_path, monkeypatch):
    path = create("weather").path
    (tmp_path / "link").symlink_to(path)
    monkeypatch.chdir(path / "..")
    for given, name in {"weather": "weather", "weather/": "weather", "link": "link", "weather/../link": "link"}.items():
        assert names([given]) == [name]
    monkeypatch.chdir(path)
    assert names(["."]) == ["weather"]


@pytest.mark.check
def test_two_of_one_name_and_what_is_no_dataset_are_refused(create, tmp_path):
    first = create("one/weather").path
    second = create("two/weather").path
    with pytest.raises(InvalidInput, match="both named 'weather'"):
        by_name([str(first), str(second)])
    with pytest.raises(DatasetNotFound):
        by_name([str(first), str(tmp_path)])
    strange = create("new\nline").path
    with pytest.raises(InvalidInput, match="cannot be a name"):
        by_name([str(strange)])


def test_another_folder_at_the_path_is_opened_when_it_is_asked_for(create, tmp_path, open_files):
    dataset = create("weather", fields={"n": "integer"})
    dataset.append(data(3))
    dataset.close()
    served = by_name([str(dataset.path)])["weather"]
    with served.opened() as before:
        rest = before.query()
        next(rest)
        dataset.path.rename(tmp_path / "aside")
        assert not is_readable(served)
        with ondisk.create(dataset.path, {"format": "jsonl", "step": "daily"}), served.opened() as now:
            assert [*now.query()] == []
        assert len([*rest]) == 2
    (tmp_path / "weather").rename(tmp_path / "other")
    (tmp_path / "aside").rename(dataset.path)
    with served.opened() as again:
        assert len([*again.query()]) == 3
    served.close()
    assert open_files() == 0


def test_another_configuration_is_read(create):
    dataset = create("weather")
    dataset.close()
    served = by_name([str(dataset.path)])["weather"]
    path = dataset.path / "dataset.toml"
    path.write_text(path.read_text() + "archive_age = 7\n")
    with served.opened() as now:
        assert now.config.archive_age == 7
    served.close()

"""Files of staged data."""

from __future__ import annotations

import pytest
from kit import STEPS_OF_TIME
from staging.stages import CONFIG, check_sound, counts, stage
from worlds import datum

import ondisk
from ondisk.errors import StateError
from ondisk.filesystem import Directory
from ondisk.staging.jobs import STAGED
from ondisk.staging.stage import Stage


def test_only_what_is_named_is_committed_and_the_rest_of_the_job_goes(create):
    """As when a task runs twice, or is killed and tried again."""
    dataset = create(**CONFIG, format="jsonl")
    first, _again = stage(dataset, [datum(0)], "0-1"), stage(dataset, [datum(0)], "0-2")
    with Directory.open(dataset.path) as directory:
        torn = Stage(directory, dataset.config, "job", "1-3")
        torn.__enter__()  # and killed
        assert counts(dataset.append_staged("job", [first])) == (1, 0, 0)
        torn.__exit__()
    assert [*dataset.path.glob(".staged/*")] == []


@pytest.mark.parametrize("step", STEPS_OF_TIME)
def test_staged_data_have_the_segments_that_an_append_gives_them(create, step):
    data = [datum(hour) for hour in (5, 3, 24, 4, 30 * 24)]
    staged = create("staged", **(CONFIG | {"step": step}), format="jsonl")
    assert counts(staged.append_staged("job", [stage(staged, data)]))[0] == 5
    appended = create("appended", **(CONFIG | {"step": step}), format="jsonl")
    appended.append(data)
    places = [{(each.reftime, each.location.segment) for each in dataset.query()} for dataset in (staged, appended)]
    assert places[0] == places[1]
    check_sound(staged)


def test_a_stage_that_fails_leaves_nothing(create):
    dataset = create(**CONFIG, format="jsonl")
    with Directory.open(dataset.path) as directory:
        with pytest.raises(ZeroDivisionError), Stage(directory, dataset.config, "job", "0"):
            raise ZeroDivisionError
        assert [*dataset.path.glob(".staged/*")] == []
        with pytest.raises(FileExistsError), Stage(directory, dataset.config, "job", "0"):
            Stage(directory, dataset.config, "job", "0")


def test_what_has_gone_or_is_of_another_configuration_is_not_committed(create):
    dataset = create(**CONFIG, format="jsonl")
    for name in ("0.rows", "0.data"):
        one = stage(dataset, [datum(0), datum(0)])
        (dataset.path / STAGED / "job" / name).unlink()
        with pytest.raises(StateError, match=f"{name} does not exist"):
            dataset.append_staged("job", [one])
    one = stage(dataset, [datum(0)])
    dataset.close()
    config = dataset.path / "dataset.toml"
    config.write_text(config.read_text().replace('"reftime", "station"', '"station"'))
    ondisk.migrate(dataset.path)
    with ondisk.open(dataset.path) as dataset:
        with pytest.raises(StateError, match="was configured again after the data were staged"):
            dataset.append_staged("job", [one])
        assert dataset.summary().count == 0
        check_sound(dataset)

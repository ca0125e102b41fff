"""Staged files that are damaged."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest
from staging.stages import CONFIG, check_sound, stage
from worlds import connections, datum

from ondisk.errors import StateError
from ondisk.staging.jobs import STAGED


@pytest.mark.each
@pytest.mark.parametrize("stages", [1, 10], ids=["few", "merged"])
@pytest.mark.parametrize("name", ["0.rows", "0.data"])
def test_what_was_staged_and_lost_a_part_is_reported_from_a_damaged_index(create, name, stages):
    """As when the machine that staged it went down, or a network filesystem is behind."""
    writers = []
    with connections(writers.append, "rw"):
        dataset = create(**CONFIG, format="seg")
        dataset.append([datum(0, "z")])
    cache = writers[-1].execute("PRAGMA cache_size").fetchone()
    damages = [lambda whole: b"", lambda whole: whole[:5000]]
    if name == "0.rows":
        damages.append(lambda whole: bytes(len(whole)))
    else:
        damages.append(lambda whole: whole[:-1])
    for damage in damages:
        staged = [stage(dataset, [datum(0, f"{at} {each}") for each in range(200)], f"{at}") for at in range(stages)]
        file = dataset.path / STAGED / "job" / name
        file.write_bytes(damage(file.read_bytes()))
        with pytest.raises(StateError, match=f"{name} is damaged: .*nothing was stored") as caught:
            dataset.append_staged("job", staged)
        assert caught.value.hint == "Stage the data again."
        assert writers[-1].execute("PRAGMA cache_size").fetchone() == cache
        assert dataset.summary().count == 1
        check_sound(dataset)


@pytest.mark.each
@pytest.mark.parametrize("before", [0, 50])
@pytest.mark.parametrize("fields", [1, 60])
@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        ("DELETE FROM value WHERE id = 1", "a row lacks its piece or a value"),
        ("DELETE FROM piece WHERE id = 1", "a row lacks its piece or a value"),
        ("DELETE FROM datum WHERE seq = 1", "rows are missing"),
    ],
)
def test_rows_that_lost_what_belongs_to_them_are_no_duplicates(create, before, fields, damage, problem):
    names = {f"t{number}": "text" for number in range(fields)}
    dataset = create(**CONFIG | {"fields": CONFIG["fields"] | names}, format="seg")
    dataset.append(datum(hour, "z") for hour in range(before))
    staged = stage(dataset, [datum(0), datum(30)], "0")
    path = dataset.path / STAGED / "job" / "0.rows"
    with closing(sqlite3.connect(path)) as file, file:
        file.execute(damage)
    with pytest.raises(StateError) as caught:
        dataset.append_staged("job", [staged])
    assert caught.value.message == f"{path} is damaged: {problem}; nothing was stored"
    assert dataset.summary().count == before
    check_sound(dataset)

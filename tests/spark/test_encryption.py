"""Encrypted datasets in Spark: executors take the keys from their environment, and encrypt what they stage."""

from __future__ import annotations

import pytest
from worlds import lose_index

import ondisk
from ondisk import keys
from ondisk.errors import AuthenticationFailed
from ondisk.keys import Key, KeyRing

from .conftest import KEYS
from .test_write import CONFIG, ROWS, T, load, write

KINDS = [{"encryption": "aes-256-gcm"}, {"encryption": "aes-128-ctr"}]
WITH_DATA = f"SELECT *, named_struct('n', station, 'text', 'a secret') AS data FROM ({ROWS} FROM range(100))"


@pytest.fixture(autouse=True)
def keys_of_the_driver():
    keys.use(KeyRing.parse(KEYS.replace(";", "\n"), "a test"))
    yield
    keys.use(None)


@pytest.mark.check
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind["encryption"])
def test_executors_write_read_check_fix_and_repack(spark, create, kind):
    dataset = create(**CONFIG, **kind)
    write(spark.sql(WITH_DATA), dataset)
    assert dataset.summary().count == 100
    for path in dataset.path.rglob("*.seg"):
        assert b"secret" not in path.read_bytes()
    found = load(spark, dataset, data="true").where("station >= 90").collect()
    assert sorted(row.station for row in found) == [*range(90, 100)]
    assert all("a secret" in row.data for row in found)
    dataset.delete("station:<50")
    assert [each.state for each in dataset.check(accurate=True, spark=spark)] == [
        each.state for each in dataset.check(accurate=True)
    ]
    dataset.repack(spark=spark)
    path = dataset.path
    dataset.close()
    lose_index(path)
    with ondisk.open(path) as dataset:
        dataset.fix(spark=spark)
        assert sorted(each.data["n"] for each in dataset.query()) == [*range(50, 100)]
        assert dataset.check(accurate=True, spark=spark).is_clean


@pytest.mark.check
def test_an_accurate_check_says_what_could_not_be_authenticated(spark, create):
    dataset = create(**CONFIG, **KINDS[0])
    keys.use(KeyRing([Key(2, bytes(32))]))  # the executors have another key of this number
    dataset.append([ondisk.Datum(T, {}, {"n": 1})])
    assert dataset.check(accurate=True, spark=spark).ok == 1  # what they could not read, the driver has read
    keys.use(KeyRing.parse(KEYS.replace(";", "\n"), "a test"))
    with pytest.raises(AuthenticationFailed, match="the contents of 1 segment were not authenticated") as caught:
        dataset.check(accurate=True, spark=spark)
    assert caught.value.context["report"].ok == 1
    with pytest.raises(AuthenticationFailed):
        dataset.repack(rewrite=True, spark=spark)
    assert not dataset.quarantine.total().items


def test_a_key_that_executors_do_not_have_is_named(spark, create):
    dataset = create(**CONFIG, **KINDS[0])
    keys.use(KeyRing([Key(77, bytes(32))]))  # the executors have others
    dataset.append([ondisk.Datum(T, {}, {"n": 1})])
    with pytest.raises(Exception, match="key 77, of 32 bytes, is not in"):
        load(spark, dataset, data="true").collect()

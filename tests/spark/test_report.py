"""Reports of writes: what was stored, skipped and replaced, for the user's process, exactly if it was committed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from ondisk import Datum
from ondisk.spark import last_write
from spark.test_write import CONFIG, ROWS, T, check_sound, write
from spark.test_write_stream import query  # noqa: F401


def counts(dataset):
    report = last_write(dataset)
    assert timedelta() <= datetime.now(UTC) - report.at < timedelta(minutes=10)
    return report.imported, report.duplicates, report.replaced, report.overwritten


@pytest.mark.check
def test_a_write_reports_what_it_did(spark, create, logged):
    dataset = create(**CONFIG | {"fields": {"station": "integer"}})
    assert last_write(dataset) is None
    write(spark.sql(f"{ROWS} FROM range(3)"), dataset)
    assert counts(dataset) == (3, 0, 0, 0)
    write(spark.sql(f"{ROWS} FROM range(5)"), dataset)
    assert counts(dataset) == (2, 3, 0, 0)
    write(spark.sql(f"{ROWS} FROM range(5)"), dataset)
    assert counts(dataset.path) == (0, 5, 0, 0)
    with pytest.raises(Exception, match="are duplicates"):
        write(spark.sql(f"{ROWS} FROM range(5)"), dataset, on_duplicate="fail")
    assert counts(str(dataset.path)) == (0, 5, 0, 0)
    write(spark.sql(f"{ROWS} FROM range(4)"), dataset, "overwrite", match="reftime: =2026-11-20")
    report = last_write(dataset)
    assert counts(dataset) == (4, 0, 0, 5)
    assert (report.segments, report.query, report.batch) == (1, None, None)
    assert report.bytes == dataset.summary().size
    check_sound(dataset, failed=True)
    counted = "4 imported, 0 duplicates skipped, 0 replaced, 5 overwritten"
    assert logged()[-1] == f"{dataset.path}: {counted}; {report.bytes} bytes in 1 segment"


@pytest.mark.check
def test_data_that_replace_others_are_counted(spark, create):
    dataset = create(**CONFIG, replace="yes")
    dataset.append([Datum(T, {"station": 0}, {})])
    write(spark.sql(f"{ROWS} FROM range(3)"), dataset)
    assert counts(dataset) == (2, 0, 1, 0)


@pytest.mark.check
def test_a_batch_of_a_stream_reports_its_query_and_number(create, query):  # noqa: F811
    dataset = create(**CONFIG)
    run = query(dataset)
    source = run.run(2)
    report = last_write(dataset)
    assert (report.imported, f"query {report.query}", report.batch) == (10, source, 1)
    run.forget_last_commit()
    run.run()  # batch 1 is skipped, batch 2 is stored
    assert last_write(dataset).batch == 2

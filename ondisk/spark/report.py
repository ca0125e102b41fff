"""What a write did: a line of the log, and a text in the import log of the index, for `last_write`.

The commit runs in a worker of Spark, which can return nothing to the user's process. So its transaction also saves the
report: the report of a write is there exactly if its data are.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cache

from ondisk.dataset.append import AppendResult
from ondisk.dataset.dataset import Dataset
from ondisk.index import import_log
from ondisk.index.transaction import Transaction

LOGGER = logging.getLogger("ondisk.spark")
"""A line for each write; and one for each plan, which is not printed.

Plans and commits run in Python workers on the driver's machine. Nobody configures logging there, so a worker prints the
lines to its standard error, which Spark passes on to that of the driver. If `spark.sql.pyspark.worker.logging.enabled`
is true, Spark collects them, too: `spark.tvf.python_worker_logs()`.
"""

_SOURCE = "the last write by Spark"


@cache
def print_lines() -> None:
    """Print the lines of this process. Call it in Spark's workers only: other programs configure logging themselves."""
    handler = logging.StreamHandler(sys.__stderr__)
    handler.setLevel(logging.INFO)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    LOGGER.addHandler(handler)
    LOGGER.setLevel(logging.DEBUG)


@dataclass(frozen=True, slots=True)
class WriteReport:
    """What one commit of the data source did.

    Attributes:
        at: when.
        imported: rows stored as new data.
        duplicates: rows skipped because the dataset has data with the same unique fields.
        replaced: rows stored in place of data with the same unique fields.
        overwritten: data that were deleted because they matched what the mode overwrite replaces.
        bytes: bytes of the stored data, without padding.
        segments: how many segments were written to.
        query, batch: the id of the streaming query and the number of its batch; None for a DataFrame.
    """

    at: datetime
    imported: int
    duplicates: int
    replaced: int
    overwritten: int
    bytes: int
    segments: int
    query: str | None = None
    batch: int | None = None

    @classmethod
    def of(cls, result: AppendResult, query: str | None = None, batch: int | None = None) -> WriteReport:
        """Return the report of a commit that is done now."""
        counts = result.imported, result.duplicates, result.replaced, result.overwritten
        return cls(datetime.now(UTC), *counts, result.bytes, result.segments, query, batch)

    def __str__(self) -> str:
        text = f"{self.imported} imported, {self.duplicates} duplicates skipped, {self.replaced} replaced"
        if self.overwritten:
            text += f", {self.overwritten} overwritten"
        text += f"; {self.bytes} bytes in {self.segments} segment{'s' * (self.segments != 1)}"
        return text if self.query is None else f"batch {self.batch} of query {self.query}: {text}"

    def save(self, transaction: Transaction) -> None:
        """Save it as that of the last write, in the transaction that stores the data."""
        import_log.note(transaction, _SOURCE, json.dumps(asdict(self) | {"at": self.at.isoformat()}))

    def log(self, path: str) -> None:
        """Log it as a line."""
        LOGGER.info("%s: %s", path, self)


def last_write(dataset: Dataset | str | os.PathLike[str]) -> WriteReport | None:
    """Return what the last write of a DataFrame, or of a batch of a stream, did; None if there was none.

    Args:
        dataset: an open dataset, or its path.

    Raises:
        As `Dataset.open`, for a path.
    """
    if not isinstance(dataset, Dataset):
        with Dataset.open(dataset, read_only=True) as opened:
            return last_write(opened)
    for text in dataset.parts_of(_SOURCE):
        values = json.loads(str(text))
        return WriteReport(**values | {"at": datetime.fromisoformat(values["at"])})
    return None

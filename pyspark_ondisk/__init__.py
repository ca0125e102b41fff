"""Lets Spark find the data source `ondisk`: every worker imports all packages `pyspark_*` to look for `DefaultSource`.

So this module imports `ondisk.spark` only when the data source is used.
"""

from __future__ import annotations

import sys
from typing import Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType


def end_quietly(daemon: Any) -> None:
    """Let the workers of a daemon of Spark end without a traceback when Spark closes their socket.

    It does so when it has enough rows, and after a minute without work. With Unix sockets, each worker complains.
    """
    worker = daemon.worker

    def quiet(*arguments: Any) -> Any:
        try:
            return worker(*arguments)
        except BrokenPipeError:
            return 1

    daemon.worker = quiet


# Spark has no setting for the daemons of the workers that look for data sources and plan; these workers import this.
if getattr(sys.modules["__main__"].__spec__, "name", "") == "pyspark.daemon":
    end_quietly(sys.modules["__main__"])


class DefaultSource(DataSource):  # type: ignore[misc]
    """The data source `ondisk`: `spark.read.format("ondisk").load(path)`, and `df.write`."""

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        try:
            import ondisk.spark.source  # noqa: F401
        except ImportError as error:
            hint = "set PYSPARK_PYTHON to a Python in which ondisk[spark] is installed"
            raise ImportError(f"{error}; Spark's workers run {sys.executable}: {hint}") from error

    @classmethod
    def name(cls) -> str:
        return "ondisk"

    def schema(self) -> StructType:
        from ondisk.spark.source import schema

        return schema(self.options)

    def reader(self, schema: StructType) -> DataSourceReader:
        from ondisk.spark.source import reader

        return reader(self.options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        from ondisk.spark.stream import StreamReader

        return StreamReader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from ondisk.spark.write import Writer

        return Writer(self.options, schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        from ondisk.spark.write import StreamWriter

        return StreamWriter(self.options, schema, overwrite=overwrite)

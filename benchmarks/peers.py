"""Measure ondisk beside plain sqlite3, with the data as blobs in one table, and beside DuckDB.

A floor with ondisk's own schema hides what the schema costs. Here a program has the data in the database itself.
"""

from __future__ import annotations

import io
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import observations
from floor import EPOCH
from measure import Bench, best

import ondisk

_APPENDS, _EACH = 100, 100
_SERIES = {"area": "VM2,105", "product": "VM2,225"}
_COLUMNS = "reftime INTEGER, area TEXT, product TEXT, data BLOB"
_INSERT = "INSERT INTO datum VALUES (?, ?, ?, ?)"


class PeersBench(Bench):
    """Queries of one series, one day and everything, bulk and small appends, and checks of half-deleted segments."""

    def run(self) -> None:
        self._dataset = ondisk.create(self.folder / "dataset", observations.CONFIG)
        source = self.folder / "observations.vm2"
        observations.write(source, self.count)
        self._dataset.append_file(source)
        rows = [
            (each.reftime, each.metadata["area"], each.metadata["product"], each.data) for each in self._dataset.query()
        ]
        self._rows = [((time - EPOCH) // timedelta(microseconds=1), *rest) for time, *rest in rows]
        with closing(self._sqlite(self.folder / "plain.sqlite")) as plain, self._dataset:
            self._queries(plain)
            self._small_appends()
            self._bulk()
            self._checks()

    def _sqlite(self, path: Path) -> sqlite3.Connection:
        plain = sqlite3.connect(path, isolation_level=None)
        plain.execute("PRAGMA journal_mode=wal")
        plain.execute("PRAGMA synchronous=full")
        plain.execute(f"CREATE TABLE datum ({_COLUMNS})")
        plain.execute("BEGIN")
        plain.executemany(_INSERT, self._rows)
        plain.execute("CREATE UNIQUE INDEX datum_unique ON datum (reftime, area, product)")
        plain.execute("CREATE INDEX datum_by_series ON datum (area, product, reftime)")
        plain.execute("COMMIT")
        return plain

    def _queries(self, plain: sqlite3.Connection) -> None:
        dataset, begin = self._dataset, self._rows[self.count // 2][0]
        begin -= begin % 86_400_000_000
        day = EPOCH + timedelta(microseconds=begin)
        select = "SELECT reftime, area, product, data FROM datum WHERE"

        def taken(sql: str, *values: Any, limit: int = -1) -> Callable[[], int]:
            """Return a query that makes a time, a mapping and the data of each row."""

            def take() -> int:
                found = plain.execute(f"{select} {sql} ORDER BY reftime LIMIT {limit}", values)
                data = [
                    (EPOCH + timedelta(microseconds=at), {"area": area, "product": product}, content)
                    for at, area, product, content in found
                ]
                return len(data)

            return take

        def ours(match: str | None) -> Callable[[], int]:
            return lambda: sum(1 for each in dataset.query(match) if each.data)

        series = " AND ".join(f"{name} = ?" for name in _SERIES)
        match = "; ".join(f'{name}: "{value}"' for name, value in _SERIES.items())
        for name, floor, work, goal in (
            ("one series : sqlite3", taken(series, *_SERIES.values()), ours(match), 1.7),
            ("one day : sqlite3", taken("reftime BETWEEN ? AND ?", begin, begin + 86_399_999_999),
             ours(f"reftime: ={day:%Y-%m-%d}"), 1.2),
            ("stream of everything : sqlite3", taken("true"), ours(None), 1.0),
            ("the first datum : sqlite3", taken("true", limit=1), lambda: int(dataset.first() is not None), 20),
        ):  # fmt: skip
            assert floor() == work(), name
            self.report.ratio(name, *best(self.rounds, floor, work), goal)

    def _small_appends(self) -> None:
        """Append 100 times 100 data, each durable before the next."""
        lines = [line + b"\n" for line in observations.lines(_APPENDS * _EACH)]
        parts = [lines[at : at + _EACH] for at in range(0, len(lines), _EACH)]

        def by_hand() -> None:
            with closing(self._empty()) as plain:
                for at in range(_APPENDS):
                    plain.execute("BEGIN")
                    plain.executemany(_INSERT, self._rows[at * _EACH : (at + 1) * _EACH])
                    plain.execute("COMMIT")

        def ours() -> None:
            with ondisk.create(self.new_path("small"), observations.CONFIG) as dataset:
                for part in parts:
                    dataset.append_file(io.BytesIO(b"".join(part)), "vm2")

        # Each takes 2.6 syncs: one of the segment, one of the log, and those of a checkpoint after every tenth append.
        self.report.ratio("100 durable appends : sqlite3", *best(self.rounds, by_hand, ours), 3, _APPENDS)

    def _empty(self) -> sqlite3.Connection:
        plain = sqlite3.connect(self.new_path("plain"), isolation_level=None)
        plain.execute("PRAGMA journal_mode=wal")
        plain.execute("PRAGMA synchronous=full")
        plain.execute(f"CREATE TABLE datum ({_COLUMNS})")
        plain.execute("CREATE UNIQUE INDEX datum_unique ON datum (reftime, area, product)")
        plain.execute("CREATE INDEX datum_by_series ON datum (area, product, reftime)")
        return plain

    def _bulk(self) -> None:
        try:
            import duckdb
        except ImportError:
            self.report.skipped("bulk from Arrow : DuckDB", "duckdb is not installed")
            return
        arrow_rows = self._dataset.to_arrow().read_all()
        made: list[Path] = []

        def by_duckdb() -> None:
            path = self.new_path("duck")
            with duckdb.connect(str(path)) as duck:
                duck.register("arrow_rows", arrow_rows)
                duck.execute("CREATE TABLE datum AS SELECT * FROM arrow_rows")
                duck.execute("CREATE UNIQUE INDEX datum_unique ON datum (reftime, area, product)")
                duck.execute("CHECKPOINT")
            path.unlink()

        def ours() -> None:
            made.append(self.new_path("bulk"))
            with ondisk.create(made[-1], observations.CONFIG) as dataset:
                assert dataset.append_arrow(arrow_rows).imported == self.count

        # Of ondisk's time SQLite's inserts of the rows alone are more than DuckDB's whole time: the goal shows a gap.
        self.report.ratio("bulk from Arrow : DuckDB", *best(self.rounds, by_duckdb, ours), 1.2, self.count)
        for path in made:
            shutil.rmtree(path)

    def _checks(self) -> None:
        """Compare the check of segments of which every second datum is deleted with the check before."""
        half = self.new_path("half")
        self._dataset.close()
        shutil.copytree(self._dataset.path, half)
        stations = " or ".join(f'"VM2,{station}"' for station in observations.STATIONS[::2])
        with ondisk.open(half) as dataset, ondisk.open(self._dataset.path) as whole:
            whole.fix()
            dataset.fix()  # both are copies, or not: their files are known
            dataset.delete(f"area: {stations}")
            times = best(self.rounds, whole.check, dataset.check)
        self.report.ratio("check of half-deleted : before", *times, 1.4)

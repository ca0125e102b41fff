"""What `Dataset` and `Merged` have in common: the methods that read data that match."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from ondisk.dataset.query import SHOWN, Match, Query, Results
from ondisk.dataset.read import check_limit
from ondisk.dataset.unreadable_data import Damaged, skipped_of
from ondisk.datum import Datum
from ondisk.filesystem import Closing

if TYPE_CHECKING:
    from pandas import DataFrame as PandasFrame
    from pyarrow import RecordBatchReader

    from ondisk.dataset.dataset import Dataset
    from ondisk.dataset.merged import Merged
    from ondisk.dataset.summaries import Summary
    from ondisk.index.groups import Group
    from ondisk.matcher.fields import Fields
    from ondisk.tables.arrow_output import Columns


class Queryable(Closing, ABC):
    """Data that can be queried: those of a dataset, or of several."""

    @abstractmethod
    def close(self) -> None:
        """Close files and connections. A running query ends with an error."""

    @property
    @abstractmethod
    def fields(self) -> Fields:
        """The declared fields."""

    def _of_key(self, equal: Mapping[str, Any]) -> Generator[Datum, None, None] | None:
        """Return the datum that a complete unique key names, if there is one; None if only a query can find it."""
        return None

    @abstractmethod
    def _data(self, query: Query, *, with_data: bool) -> Generator[Datum, None, None]: ...

    @abstractmethod
    def _payloads(self, query: Query) -> Generator[bytes, None, None]: ...

    def _table(self, query: Query, columns: Columns) -> RecordBatchReader | None:
        """Return a table that is made without data of Python; None if it needs these."""
        return None

    @abstractmethod
    def _summary(self, query: Query, fields: Sequence[str] | None, values: int | None) -> Summary: ...

    @abstractmethod
    def _groups(self, query: Query, by: str, min_max: str | None, tz: str | None) -> Generator[Group, None, None]: ...

    def query(
        self,
        match: Match = None,
        *,
        sort: str | None = None,
        limit: int | None = None,
        with_data: bool = True,
        damaged: Damaged = "raise",
        **equal: Any,
    ) -> Results[Datum]:
        """Return the data that match, in order of reftime, then in the order in which they were appended.

        Args:
            match: a match expression, or a condition over `fields`; None matches all.
            sort: `[minute|hour|day|month|year:]field,-field…`; data that are equal in it are in the order of reftime.
            limit: the highest number of data to return.
            with_data: False reads no segments: `data` is None, and `metadata` has the declared fields only.
            damaged: "skip" leaves out data that cannot be read, and lists them in `Results.skipped`; or pass a
                `Skipped`, which takes them.
            equal: field=value, in addition to `match`.

        Returns:
            An iterator over one snapshot, which begins when the first datum is requested. Exhaust or close it, or use
            it in `with`: while it is open, no disk space is freed.

        Raises:
            MatchError: `match` or `sort` is not valid, or names an unknown field.
            SegmentMissing: before the first datum, if a folder of the archive with matching data is away. Of one that
                is offline, a `DataOffline` warning says that its data are left out.
            SegmentMissing, SegmentCorrupt, FrameCorrupt, IndexCorrupt: data are not on disk as the index says. Raised
                while iterating, after the data that precede the damage.
        """
        # A look-up that takes 17 µs should not take the other way, even if it would end there, too.
        if equal and match is None and sort is None and limit is None and with_data and damaged == "raise":
            found = self._of_key(equal)
            if found is not None:
                return Results(found)
        skipped = skipped_of(damaged)
        query = Query(match, sort, limit, equal, None if skipped is None else skipped.add)
        return Results(self._data(query, with_data=with_data), skipped)

    def count(self, match: Match = None, **equal: Any) -> int:
        """Return how many data match, also of those that are away. Args, Raises: as `query`.

        Cost: reads the index only; and data only if `match` has metadata that are not declared.
        """
        return self._summary(Query(match, equal=equal), (), 0).count

    def payloads(
        self,
        match: Match = None,
        *,
        sort: str | None = None,
        limit: int | None = None,
        damaged: Damaged = "raise",
        **equal: Any,
    ) -> Results[bytes]:
        """Return the bytes of the data as they are in their segments, padding included; arguments and order as `query`.

        Joined, they are a file that can be appended again. Data of several formats are mixed. The iterator has one item
        for each datum, and one more before the first datum of `seg`, the header of a file.

        Raises MatchError, SegmentMissing, SegmentCorrupt, IndexCorrupt as `query`. The content of a datum is not
        checked.
        """
        skipped = skipped_of(damaged)
        query = Query(match, sort, limit, equal, None if skipped is None else skipped.add)
        return Results(self._payloads(query), skipped)

    def to_arrow(
        self,
        match: Match = None,
        *,
        columns: Columns = None,
        sort: str | None = None,
        limit: int | None = None,
        damaged: Damaged = "raise",
        **equal: Any,
    ) -> RecordBatchReader:
        """Return the data that match as a table of Arrow, in the order of `query`; see docs/tables.md.

        Args:
            match, sort, limit, equal: as in `query`.
            columns: names, such as `["reftime", "area", "data.temperature"]`; or names with types, as a mapping or a
                `pyarrow.Schema`: `{"reftime": None, "data.temperature": "real"}`. None for reftime, the declared
                fields, metadata that are not declared, and the content: each key of mappings, else `data`, the bytes.
                Columns and types that are not given are those of the first 16,384 data, or of fewer if these exceed
                16 MiB, and of some at both ends of the dataset.
            damaged: as in `query`; with "skip", a `DataSkipped` warning at the end says how many were left out.

        Returns:
            A `pyarrow.RecordBatchReader` over one snapshot, taken now. Read it to its end, or delete it: while it
            exists, no disk space is freed.

        Raises:
            InvalidInput: a column or a type does not exist. While reading: a datum has a value of another type, or
                one for which the first data had no column.
            StateError: pyarrow is not installed.
            MatchError, SegmentMissing, SegmentCorrupt, FrameCorrupt, IndexCorrupt: as `query`.

        Cost: half of that of a query, if all data are bytes in segments of one file, as those of vm2 are. Data of other
            formats are decoded.
        """
        from ondisk.tables import installed

        with installed():
            from ondisk.tables.arrow_output import from_data

        def found(with_data: bool) -> Results[Datum]:
            return self.query(match, sort=sort, limit=limit, with_data=with_data, damaged=damaged, **equal)

        table = self._table(Query(match, sort, limit, equal), columns) if damaged == "raise" else None
        return table or from_data(cast("Dataset | Merged", self), found, columns, damaged)

    def summary(
        self, match: Match = None, *, fields: Sequence[str] | None = None, values: int | None = SHOWN
    ) -> Summary:
        """Count the data that match: their number, bytes, span of reftimes, and the values of fields. Exact.

        Data that are away or offline are counted: the index knows them.

        Args:
            match: a match expression, or a condition over `fields`; None matches all.
            fields: names of the fields whose values are counted; None for all declared ones.
            values: the highest number of values to list of each, the most frequent first; None for all.

        Raises:
            MatchError, InvalidInput: an argument is not valid, or names an unknown field.

        Cost: reads the index only: all data that match, once for each field. Memory grows with the number of values
            that are listed, not with their number in the dataset.
        """
        check_limit(values, "values", "Pass None to list all.")
        return self._summary(Query(match), fields, values)

    def summary_by(
        self, by: str, match: Match = None, *, min_max: str | None = None, tz: str | None = None
    ) -> Results[Group]:
        """Count the data that match by period or by the values of a field, in order. Exact.

        Args:
            by: `hour`, `day`, `month` or `year` of reftime; or a declared field; or several of them, such as
                `day,station`.
            match: a match expression, or a condition over `fields`; None matches all.
            min_max: a declared field of numbers or times, whose lowest, mean and highest value each group has; or
                `data.NAME`, a number in data that are mappings.
            tz: the zone of the periods, such as Europe/Rome or +01:00; None for UTC.

        Returns:
            An iterator over one snapshot, as that of `query`. Periods without data have no group.

        Raises:
            MatchError: an argument is not valid, or names an unknown field.
            InvalidInput: there is no such zone, or a zone is given and no period.

        Cost: reads the index only: all data that match, once. With `data.NAME` it reads the data.
        """
        return Results(self._groups(Query(match), by, min_max, tz))

    def first(self, match: Match = None, *, sort: str | None = None, **equal: Any) -> Datum | None:
        """Return the first datum of the same query; None if nothing matches. Args, Raises: as `query`."""
        with self.query(match, sort=sort, limit=1, **equal) as found:
            return next(found, None)

    def exists(self, match: Match = None, **equal: Any) -> bool:
        """Return whether a datum matches. Args, Raises: as `query`.

        Cost: reads the index up to the first such datum; and data only if `match` has metadata that are not declared.
        """
        with self.query(match, limit=1, with_data=False, **equal) as found:
            return next(found, None) is not None

    def to_pandas(
        self,
        match: Match = None,
        *,
        columns: Columns = None,
        sort: str | None = None,
        limit: int | None = None,
        damaged: Damaged = "raise",
        **equal: Any,
    ) -> PandasFrame:
        """Return what `to_arrow` returns as a DataFrame of pandas, all at once; raise as it does, also without pandas.

        Raises InvalidInput if an integer of more than 53 bits is in a column with missing values: pandas would round
        it.
        """
        from ondisk.tables import installed

        table = self.to_arrow(match, columns=columns, sort=sort, limit=limit, damaged=damaged, **equal)
        with installed("pandas"):
            from ondisk.tables.arrow_output import to_pandas

            return to_pandas(table)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Return a table of all data for other libraries, such as polars, DuckDB and pandas; see `to_arrow`."""
        return self.to_arrow().__arrow_c_stream__(requested_schema)

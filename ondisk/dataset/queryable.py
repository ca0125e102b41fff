"""What `Dataset` and `Merged` have in common: methods that need no more than a query or its table."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from ondisk.dataset.query import Match, Results
from ondisk.dataset.skipped import Damaged
from ondisk.datum import Datum
from ondisk.filesystem import Closing

if TYPE_CHECKING:
    from pandas import DataFrame as PandasFrame
    from pyarrow import RecordBatchReader

    from ondisk.tables.arrow_output import Columns


class Queryable(Closing, ABC):
    """Data that can be queried: those of a dataset, or of several."""

    @abstractmethod
    def close(self) -> None:
        """Close files and connections. A running query ends with an error."""

    @abstractmethod
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
        """Return the data that match, in order."""

    @abstractmethod
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
        """Return the data that match as a table of Arrow, in the order of `query`."""

    def first(self, match: Match = None, *, sort: str | None = None, **equal: Any) -> Datum | None:
        """Return the first datum of the same query; None if nothing matches. Args, Raises: as `query`."""
        with self.query(match, sort=sort, limit=1, **equal) as found:
            return next(found, None)

    def exists(self, match: Match = None, **equal: Any) -> bool:
        """Return whether a datum matches.

        Args, Raises: as `query`.

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
        """Return what `to_arrow` returns as a DataFrame of pandas, all at once.

        Raises:
            InvalidInput: an integer of more than 53 bits is in a column with missing values: pandas would round it.
            StateError: pandas or pyarrow is not installed.
            Also the errors of `to_arrow`.
        """
        from ondisk.tables import installed

        table = self.to_arrow(match, columns=columns, sort=sort, limit=limit, damaged=damaged, **equal)
        with installed("pandas"):
            from ondisk.tables.arrow_output import to_pandas

            return to_pandas(table)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Return a table of all data for other libraries, such as polars, DuckDB and pandas; see `to_arrow`."""
        return self.to_arrow().__arrow_c_stream__(requested_schema)

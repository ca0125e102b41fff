"""How the rows of a table become data: which column is the reftime, and how its cells are written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ondisk.errors import InvalidInput, shown

REFTIME = "reftime"
MAX_RECORD = 8 * 1024 * 1024
"""The longest record of CSV that is read, bytes."""
CSV_ONLY = ("null", "delimiter", "decimal")
"""The options that no other table has."""
DECIMALS = (POINT, COMMA) = (".", ",")
USE_COMMA = "if that is a decimal comma, pass decimal (--decimal ,)"
"""What to do about a cell with a decimal comma."""
NULLS = frozenset({"NA", "N/A", "NaN", "nan", "null", "NULL", "None", "-", "--", "?"})
"""Texts that often mean that there is no value, if all other cells of a column are numbers."""
_TABS = frozenset({"tab", "\\t"})  # how a shell's user writes it
_DELIMITERS = frozenset(",;|:!#$%&*/<=>?@^_`~ ") | {"\t"}


@dataclass(frozen=True, slots=True)
class TableOptions:
    """The options of an append that are about the rows of a table.

    Attributes:
        time: the column, or the key of JSON lines, that becomes the reftime; None for `reftime`.
        time_format: as `datetime.strptime` takes it, or unix, unix-ms; None for ISO 8601.
        tz: the zone of times without an offset: a name such as Europe/Rome, UTC, or an offset such as +01:00.
        null: texts of cells that mean that there is no value; an empty cell always does. For CSV only.
        delimiter: the character between cells; None for a comma, or a tab in a `.tsv`. For CSV only.
        decimal: the mark before the decimals of numbers, a point or a comma; None for a point. For CSV only.

    Raises:
        InvalidInput: `null`, `delimiter` or `decimal` is not valid.
    """

    time: str | None = None
    time_format: str | None = None
    tz: str | None = None
    null: Sequence[str] = ()
    delimiter: str | None = None
    decimal: str | None = None

    def __post_init__(self) -> None:
        for name in ("time", "time_format", "tz"):
            value = getattr(self, name)
            if not (value is None or (isinstance(value, str) and value)):
                raise InvalidInput(f"{name} must be a text, not {shown(value)}")
        null: object = self.null
        if isinstance(null, str):
            raise InvalidInput(f"null must be a list of texts, not {shown(null)}", hint=f"Write [{shown(null)}].")
        if not all(isinstance(each, str) for each in self.null):
            raise InvalidInput(f"null must be a list of texts, not {shown(null)}")
        object.__setattr__(self, "null", tuple(self.null))
        if self.delimiter in _TABS:
            object.__setattr__(self, "delimiter", "\t")
        if self.delimiter is not None and self.delimiter not in _DELIMITERS:
            problem = f"the delimiter must be one character such as , or ; or a tab, not {shown(self.delimiter)}"
            raise InvalidInput(problem, hint="Write tab for a tab.")
        if self.decimal not in (None, *DECIMALS):
            raise InvalidInput(f"decimal must be a point or a comma, not {shown(self.decimal)}")

    def refuse_those_of_csv(self, what: str) -> None:
        """Raise if options are given that only CSV has.

        Args:
            what: what the input is instead.
        """
        for name in CSV_ONLY:
            if name in self.given:
                raise InvalidInput(f"{name} is for CSV only, and the input is {what}", hint="Omit it.")

    @property
    def given(self) -> list[str]:
        """The names of the options that were given."""
        return [name for name in self.__slots__ if getattr(self, name) not in (None, ())]

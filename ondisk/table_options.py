"""How the rows of a table become data: which column is the reftime, and how its cells are written.

The options of appends, of `init --from`, and the section `[csv]` of `dataset.toml`.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypedDict

from ondisk.datum import INTEGER_MAX, is_unicode
from ondisk.errors import InvalidInput, shown

REFTIME = "reftime"
AMBIGUOUS = (RAISE, INFER) = ("raise", "infer")
MAX_RECORD = 8 * 1024 * 1024
"""The longest record of CSV that is read, bytes."""
CSV_ONLY = ("null", "delimiter", "decimal", "thousands", "header", "skip_lines", "comment", "encoding")
"""The options that no other table has; the others are those of times."""
DECIMALS = (POINT, COMMA) = (".", ",")
THOUSANDS = (COMMA, POINT, "'", " ", "_")
_ALIKE = {"\u2019": "'", "\u00a0": " ", "\u2009": " ", "\u202f": " ", "blank": " "}
NULLS = frozenset({"NA", "N/A", "NaN", "nan", "null", "NULL", "None", "-", "--", "?"})
"""Texts that often mean that there is no value, if all other cells of a column are numbers."""
BLANKS = "blanks"
"""The delimiter of columns that are aligned with blanks or tabs."""
_TABS = ("tab", "\\t")  # how a shell's user writes it
_DELIMITERS = ",;|:!#$%&*/<=>?@^_`~ \t"
_TEXTS = ("time", "time_format", "tz", "comment", "encoding")
# Option → its values, what it must be, and a hint.
_CHOICES = {
    "delimiter": (
        (BLANKS, *_DELIMITERS),
        "the delimiter must be one character such as , or ; or a tab",
        f"Write tab for a tab, {BLANKS} for columns that are aligned with blanks.",
    ),
    "ambiguous": (AMBIGUOUS, f"ambiguous must be {RAISE} or {INFER}", ""),
    "decimal": (DECIMALS, "decimal must be a point or a comma: . or ,", ""),
    "thousands": (THOUSANDS, "thousands must be one of . , ' _ or a blank", "Write blank for a blank."),
}


class TableArguments(TypedDict, total=False):
    """The options of an append that are about the rows of a table, as arguments; `TableOptions` explains them."""

    time: str | None
    time_format: str | None
    tz: str | None
    ambiguous: str | None
    null: Sequence[str]
    delimiter: str | None
    decimal: str | None
    thousands: str | None
    header: Sequence[str]
    skip_lines: int | None
    comment: str | None
    encoding: str | None


@dataclass(frozen=True, slots=True)
class TableOptions:
    """The options of an append that are about the rows of a table. `CSV`: for CSV only.

    Raises:
        InvalidInput: an option is not valid.
    """

    time: str | None = None  # the column, or the key of JSON lines, that becomes the reftime; None for `reftime`
    time_format: str | None = None  # as `datetime.strptime` takes it, or unix, unix-ms; None for ISO 8601
    # the zone of times without an offset: a name such as Europe/Rome, UTC, or an offset such as +01:00
    tz: str | None = None
    # `INFER` if the order of the rows decides about local times that occur twice when clocks are put back; see
    # `ondisk.tables.table_input`. `RAISE` or None to refuse these rows
    ambiguous: str | None = None
    null: Sequence[str] = ()  # texts of cells that mean that there is no value; an empty cell always does; CSV
    # the character between cells, or `BLANKS`; None for a comma, or a tab in a `.tsv`; CSV
    delimiter: str | None = None
    decimal: str | None = None  # the mark before the decimals of numbers, a point or a comma; None for a point; CSV
    # the sign between each three digits of numbers, one of `THOUSANDS`; None for none; CSV
    thousands: str | None = None
    header: Sequence[str] = ()  # the names of the columns, if the first line has none; CSV
    skip_lines: int | None = None  # how many lines precede the names of the columns; None for none; CSV
    comment: str | None = None  # with what lines begin that are to be ignored, such as #; None for none; CSV
    encoding: str | None = None  # how the text is encoded, as `codecs.lookup` knows it; None for UTF-8; CSV

    def __post_init__(self) -> None:
        for name in _TEXTS:
            value = getattr(self, name)
            if not (value is None or (isinstance(value, str) and value and is_unicode(value))):
                raise InvalidInput(f"{name} must be a text, not {shown(value)}")
        object.__setattr__(self, "null", _texts("null", self.null))
        object.__setattr__(self, "header", _texts("header", self.header))
        object.__setattr__(self, "delimiter", "\t" if self.delimiter in _TABS else self.delimiter)
        object.__setattr__(self, "thousands", _ALIKE.get(str(self.thousands), self.thousands))
        for name, (values, problem, hint) in _CHOICES.items():
            if (value := getattr(self, name)) not in (None, *values):
                raise InvalidInput(f"{problem}, not {shown(value)}", hint=hint)
        if self.skip_lines is not None and not (type(self.skip_lines) is int and 0 <= self.skip_lines <= INTEGER_MAX):
            raise InvalidInput(f"skip_lines must be a whole number of 0 or more, not {shown(self.skip_lines)}")
        if self.encoding is not None and not _is_encoding(self.encoding):
            problem = f"encoding {shown(self.encoding)} is not known"
            raise InvalidInput(problem, hint="Write for example windows-1252 or utf-16.")
        if self.thousands == (self.decimal or POINT):
            problem = f"decimal and thousands cannot both be {shown(self.thousands)}"
            raise InvalidInput(problem, hint="For numbers such as 1.013,25 pass decimal (--decimal ,), too.")

    def refuse_those_of_csv(self, what: str) -> None:
        """Raise if options are given that only CSV has, and the input is something else."""
        for name in CSV_ONLY:
            if name in self.given:
                raise InvalidInput(f"{name} is for CSV only, and the input is {what}", hint="Omit it.")

    def over(self, others: Mapping[str, Any]) -> TableOptions:
        """Return these options, and others, name → value, where these are not given; raise InvalidInput.

        A form of times belongs to its column: if only `time` is given, `time_format` is not that of the others.
        """
        replaced = {*self.given, *([] if self.time is None else ["time_format"])}
        return replace(self, **{name: value for name, value in others.items() if name not in replaced})

    @property
    def given(self) -> list[str]:
        """The names of the options that were given."""
        return [each.name for each in fields(self) if getattr(self, each.name) not in (None, ())]


def _is_encoding(name: str) -> bool:
    try:
        return codecs.lookup(name)._is_text_encoding
    except (LookupError, ValueError):
        return False


def _texts(name: str, texts: Any) -> tuple[str, ...]:
    if isinstance(texts, str) or not isinstance(texts, Iterable) or not all(isinstance(each, str) for each in texts):
        hint = f"Write [{shown(texts)}]." if isinstance(texts, str) else ""
        raise InvalidInput(f"{name} must be a list of texts, not {shown(texts)}", hint=hint)
    return tuple(texts)

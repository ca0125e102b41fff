"""Which of the data with the same unique values counts. Whoever has two of them decides it here.

- Of data that are stored one after another, `replace` of the dataset decides: `Precedence.of`.
- What a dataset receives from the one that it follows counts: `LAST`. What returns there does not: `FIRST`.
- Of data that a fix finds in files, `counts_in_files`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from ondisk.config import DatasetConfig, Replace
from ondisk.named_tuple import NamedTuple

_FIELDS = 5  # before them a row of `datum` has seq, reftime, segment, offset and size


class Precedence(NamedTuple):
    """Which of two data counts, one of which was stored after the other.

    Attributes:
        rule: "no" for the one that was stored first, "yes" for the last one, "newer" for the one with the higher
            version; of equal versions the last one counts, and one without a version replaces none.
        version: the field with the version.
        place: that of the version in a row of `datum`.
    """

    rule: Replace
    version: str = ""
    place: int = 0

    @classmethod
    def of(cls, config: DatasetConfig) -> Self:
        if config.replace != "newer":
            return cls(config.replace)
        assert config.version_field is not None
        return cls("newer", config.version_field, _FIELDS + list(config.fields).index(config.version_field))

    def keeps(self, held: Sequence[Any], row: Sequence[Any]) -> bool:
        """Return whether a row still counts when another one with the same unique values is stored after it."""
        return self.keeps_version(held[self.place], row[self.place])

    def keeps_version(self, old: Any, new: Any) -> bool:
        """Do as `keeps` with the versions of both rows."""
        if self.rule != "newer":
            return self.rule == "no"
        return new is None or (old is not None and old > new)

    def keeps_in_sql(self, held: str, version: str) -> str:
        """Return the SQL of `keeps` for "newer": of the highest version before, and of that which is stored."""
        return f"({version} IS NULL OR {held} > {version})"

    @property
    def order(self) -> str:
        """The ORDER BY of rows of `datum` that puts the one first which counts when all were stored one by one."""
        if self.rule != "newer":
            return "seq" if self.rule == "no" else "seq DESC"
        version = f'"f_{self.version}"'
        return f"{version} IS NULL, {version} DESC, iif({version} IS NULL, seq, -seq)"


FIRST, LAST = Precedence("no"), Precedence("yes")


class Found(NamedTuple):
    """A datum that a fix has found in a file.

    Attributes:
        is_readable: its bytes are there, and whole.
        order: that of its segment, if later segments of this dataset have later data: that is so in a sequence whose
            data replace each other, while its index does not know them.
        offset: in its segment.
    """

    is_readable: bool = True
    order: tuple[Any, ...] = ()
    offset: int = 0


def counts_in_files(held: Found, found: Found) -> bool:
    """Return whether a datum counts, and not the one that was found before it.

    One that can be read counts more than one that cannot; in one segment, and in segments that have an order, the last
    one counts; else the one that was found first.
    """
    return found > held

"""The option `archives`: whether data in a folder of the archive that is offline are an error, or left out.

A worker cannot warn the user that rows are missing, as a query of the library does. So the default is an error.
"""

from __future__ import annotations

from collections.abc import Mapping

from ondisk.errors import InvalidInput, shown

OPTION = "archives"
ALL, AVAILABLE = "all", "available"


def choice(options: Mapping[str, str]) -> str:
    """Return the value of the option `archives`, or its default.

    Raises:
        InvalidInput: it has another value.
    """
    text = str(options.get(OPTION, ALL))
    if text.lower() not in (ALL, AVAILABLE):
        hint = 'Write .option("archives", "available") to leave out what is offline.'
        raise InvalidInput(f"archives must be {ALL} or {AVAILABLE}, not {shown(text)}", hint=hint)
    return text.lower()

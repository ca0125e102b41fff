"""Tables: files with a row for each datum. This package turns their rows into data, and data into rows."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from ondisk.errors import StateError

_EXTRA = "pyarrow"


@contextlib.contextmanager
def installed(*packages: str) -> Iterator[None]:
    """Raise StateError, which says what to install, if the block cannot import pyarrow or one of these packages."""
    try:
        yield
    except ModuleNotFoundError as error:
        name = (error.name or "").partition(".")[0]
        if name not in (_EXTRA, *packages):
            raise
        hint = "Install it: pip install 'ondisk[arrow]'." if name == _EXTRA else f"Install it: pip install {name}."
        raise StateError(f"{name} is not installed", hint=hint) from error

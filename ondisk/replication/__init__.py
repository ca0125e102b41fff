"""How one dataset follows another: replicas, their sources, the change feed, tokens, and the files that keep them.

with Replica.create("/backup/weather", "/data/weather") as replica:  # after that, Replica.open
    pulled = replica.pull()
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ondisk.replication.replica import Pulled, Replica, promote
    from ondisk.replication.source import PathSource, Source

__all__ = ["PathSource", "Pulled", "Replica", "Source", "promote"]


# Imported when they are used, so that a look at a token file is fast.
def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from ondisk.replication import replica, source

    return getattr(source if name in ("PathSource", "Source") else replica, name)

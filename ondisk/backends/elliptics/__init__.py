"""elliptics' IO storage backend over a dataset: read and write commands of 2010.

with ondisk.create("objects", configuration()) as dataset:
    backend = Backend(dataset)
    replies = backend.process(packet)

packets ── backend ── objects ── extents     in memory
                         │
                      Dataset                an extent is a datum
"""

from ondisk.backends.elliptics.backend import Backend
from ondisk.backends.elliptics.client import Client
from ondisk.backends.elliptics.extents import Extent
from ondisk.backends.elliptics.packets import check_get_size
from ondisk.backends.elliptics.settings import Limits, configuration

__all__ = ["Backend", "Client", "Extent", "Limits", "check_get_size", "configuration"]

"""`dnet_stat`: load, memory and file system of a node, the reply to STAT.

    u16 la[3], in hundredths | u16 namemax
    u64 bsize, frsize, blocks, bfree, bavail, files, ffree, favail, fsid, flag
    u64 vm_active, vm_inactive, vm_total, vm_free, vm_cached, vm_buffers, in KiB | u64 reserved[32]

Source: elliptics, include/elliptics/packet.h of 2010.
"""

from __future__ import annotations

import os
from struct import Struct

STAT = Struct("<4H16Q256x")

_KIB = 1024
_MOST = 2**16 - 1


def stat_of(path: str | os.PathLike[str]) -> bytes:
    """Return the statistics of this machine, and of the file system of a path.

    Of the memory only the total and the free part are known without reading files of the kernel; the rest are zeros.
    """
    loads = [min(_MOST, round(100 * load)) for load in os.getloadavg()]
    found = os.statvfs(path)
    system = (found.f_bsize, found.f_frsize, found.f_blocks, found.f_bfree, found.f_bavail, found.f_files)
    more = (found.f_ffree, found.f_favail, found.f_fsid % 2**64, found.f_flag)
    page = os.sysconf("SC_PAGE_SIZE")
    total, free = (os.sysconf(name) * page // _KIB for name in ("SC_PHYS_PAGES", "SC_AVPHYS_PAGES"))
    return STAT.pack(*loads, min(_MOST, found.f_namemax), *system, *more, 0, 0, total, free, 0, 0)

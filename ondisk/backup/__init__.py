"""Backups: states of a dataset, kept in a folder that is no dataset, and restored from there.

    backup.json                              the UUID and the path of the dataset
    .lock                                    the lock of a run
    segments/PART/2026/11-20.vm2.17.4096.1a2b3c4d
                                             the first 4096 bytes of generation 17 of a segment, with their checksum;
                                             `.damaged` follows if they are not what the index says
    segments/PART/2026/11-20.h5.17/          generation 17 of a dir segment
      000000.h5.1a2b3c4d                       a file of it, with its checksum
      metadata.4096.1a2b3c4d                   the first 4096 bytes of its `.metadata`, with their checksum
    points/20261123T021500.000000Z/          a point: the state of the dataset at one time
      point.json                               what it contains; see `ondisk.backup.point`
      PART/dataset.toml, index.sqlite          as they were, the index without its log; also `state.dat` of a queue
      PART/segments.jsonl                      a line for each segment: which file is its copy
    points/.new/                             a point that is being made

PART is `dataset`; old points may have more, see `ondisk.backup.point.Part`. No file is changed after it has got its
name, and a point appears with one rename, after everything that it needs was synced. So a run that is killed leaves the
points before it whole. What a segment has in common with the last point is not copied again: the same generation, size
and checksum are the same file. One that has moved is linked to its new name.
"""

from ondisk.backup.copy import Backup, backup
from ondisk.backup.point import Problem
from ondisk.backup.restore import Listed, Restored, points, restore

__all__ = ["Backup", "Listed", "Problem", "Restored", "backup", "points", "restore"]

"""Archives: datasets in a dataset, which hold what has become old.

    .archive/last/             what repack has archived; its segments keep their names
    .archive/NAME/             others, moved there by people
    .archive/NAME.summary      stands for one that is offline: what `ondisk summary --json` printed of it

Each is a dataset of its own, with configuration and index. All share one order of changes: a datum keeps its `seq` when
it is archived. While it is moved, both the dataset and its archive may hold it: who asks takes the dataset's snapshot
first, then those of the archives, and leaves out of these what the first one has. What an append replaces in an archive
is noted among the dataset's own deletions, in the commit of what replaces it, and deleted in the archive behind that:
who asks leaves out, too, what the dataset says was deleted since the archive's last change.
"""

from __future__ import annotations

import contextlib
import json
import stat
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ondisk.config import DatasetConfig
from ondisk.dataset.access import Access
from ondisk.dataset.layout import ARCHIVE, CONFIG, read_config, untrusted
from ondisk.dataset.read import Summary
from ondisk.datum import FieldType, canonical, from_microseconds
from ondisk.errors import ArchiveOffline, DatasetNotFound, InvalidInput, StateError
from ondisk.filesystem import Directory
from ondisk.index import Index, Row, Segment, Snapshot, Transaction, segment_rows
from ondisk.index.connection import Connection, connect_to_read
from ondisk.json_shapes import from_json, parse_time
from ondisk.matcher import Expression
from ondisk.segments.generations import parents
from ondisk.step import ALWAYS, Interval

LAST = "last"
"""The archive that repack moves segments to."""

_OF_DATASET = ("archive_age", "delete_age", "lock_timeout", "max_datum_size", "max_depth")
"""What is set for the archives, too, by the dataset's configuration; theirs is a copy of what that once was."""

_SUMMARY = ".summary"
_LONGEST = 16 * 1024 * 1024  # bytes of a summary; read, it takes some 25 times as much


class DatasetAccess(Access):
    """Access to a dataset, and to its archives.

    Attributes:
        archives: they share the dataset's order of changes.
    """

    def __init__(
        self,
        directory: Directory,
        config: DatasetConfig,
        *,
        read_only: bool,
        connect: Callable[[Directory], Connection] = connect_to_read,
    ) -> None:
        super().__init__(directory, config, read_only=read_only, connect=connect)
        self.archives = Archives(self)

    def seq_elsewhere(self) -> int:
        # The archives are queried each time: a process killed after the archive's commit may not have updated the
        # dataset's counter.
        return self.archives.seq()

    def close(self) -> None:
        self.archives.close()
        super().close()


class _Archive(Access):
    """Access to an archive of a dataset."""

    def __init__(self, main: Access, directory: Directory, config: DatasetConfig, prefix: str) -> None:
        super().__init__(directory, config, read_only=main.read_only, prefix=prefix, connect=main.connect)
        self._main = main

    def seq_elsewhere(self) -> int:
        return _seq(self._main)


class Archives:
    """The archives of one dataset, opened when they are first needed."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._opened: dict[str, Access] = {}

    def online(self) -> Iterator[Access]:
        """Give the archives that can be read, in the order in which they are asked: by name, `last` at the end."""
        if self._access.directory.inode(ARCHIVE) is None:
            return
        names = [entry.name for entry in self._access.directory.entries(ARCHIVE) if entry.kind == "directory"]
        for name in sorted(names, key=lambda each: (each == LAST, each)):
            archive = None if name.startswith(".") else self.get(name)
            if archive is not None:
                yield archive

    def offline(self) -> list[str]:
        """Name the archives of which there is only a summary."""
        if self._access.directory.inode(ARCHIVE) is None:
            return []
        entries = {entry.name: entry.kind for entry in self._access.directory.entries(ARCHIVE)}
        names = [name.removesuffix(_SUMMARY) for name, kind in entries.items() if name.endswith(_SUMMARY)]
        return [name for name in names if entries.get(name) != "directory"]

    def warn_of_offline(self) -> None:
        """Warn that answers lack what is in archives that are offline, or what their indices have lost."""
        for name in self.offline():
            message = f"{self._access.path}: the archive {name!r} is offline, and is not asked"
            warnings.warn(message, ArchiveOffline, stacklevel=2)
        for archive in self.online():
            if archive.path.name != LAST and archive.needs_check():
                message = f"{archive.path}: its index was lost, and may not know all data; `ondisk fix` builds it anew"
                warnings.warn(message, ArchiveOffline, stacklevel=2)

    def get(self, name: str) -> Access | None:
        """Open an archive by its name; None where there is none."""
        directory = self._access.directory
        found = self._opened.get(name)
        place = f"{ARCHIVE}/{name}"
        there = directory.stat(place)
        if there is None or directory.stat(f"{place}/{CONFIG}") is None:  # its configuration is made last
            self._drop(name)
            if there is not None and stat.S_ISDIR(there.st_mode) and _has_segments(directory, place):
                if directory.stat(f"{place}/{CONFIG}") is not None:  # it was made between both looks
                    return self.get(name)
                path, hint = self._access.path / place, "Put it back from a backup, or copy that of the dataset."
                raise StateError(f"the archive {path} has segments and no {CONFIG}", hint=hint)
            return None
        if found is not None and found.inode == there.st_ino:
            return found
        self._drop(name)
        opened = self._open(directory.inside(place), f"{place}/")
        return self._opened.setdefault(name, opened)

    def of(self, segment: str) -> tuple[Access, str] | None:
        """Give the archive of a segment `.archive/NAME/…`, and what it is called there; None where there is none."""
        top, _, rest = segment.partition("/")
        name, _, inner = rest.partition("/")
        if top != ARCHIVE or not inner or name in ("", ".", ".."):
            return None
        archive = self.get(name)
        return None if archive is None else (archive, inner)

    def seq(self) -> int:
        """Tell up to which number the archives have the order of changes, which they share with the dataset."""
        return max(map(_seq, self.online()), default=0)

    def catch_up(self) -> None:
        """Let the dataset give out no number that an archive has, as one whose index was built anew."""
        seq = self.seq()
        if seq > _seq(self._access):
            with self._access.transaction("open") as transaction:
                transaction.advance_seq(seq)
                transaction.commit()

    @contextlib.contextmanager
    def counting(self, part: Access, verb: str) -> Iterator[None]:
        """Let a fix or a repack of an archive take numbers that nobody else takes, for the length of the block.

        Args:
            part: an archive, or the dataset itself, of which nothing more is needed than its own lock.

        Durability: the dataset is told of the numbers behind the archive's commit; killed between, the next opening for
            writing does so.
        Locks: the dataset's writers' lock, since the dataset and its archives share one order of changes.
        """
        if part is self._access:
            yield
            return
        with self._access.locked(verb):
            self.delete_replaced()
            yield
            self.catch_up()

    def check_trusted(self) -> None:
        """Refuse to work while the index of the dataset, or of an archive that is there, may not know all data.

        Raises:
            NeedsCheck: so it is.
        """
        for part in (self._access, *self.online()):
            if part.needs_check():
                # A fix of the dataset mends the archive that repack fills, too; of others, only their own does.
                raise untrusted(self._access.path if part.path.name == LAST else part.path)

    def maintained(self) -> list[Access]:
        """Give what maintenance works on: the dataset, then the archive that repack fills."""
        last = self.last()
        return [self._access] if last is None else [self._access, last]

    def of_append(self, config: DatasetConfig) -> Archived | None:
        """Give what tells duplicates in the archive; None where there can be none."""
        if not config.unique or self._access.directory.inode(ARCHIVE) is None:
            return None
        last = self.last()
        return None if last is None else Archived(self, last, config)

    def other(self, part: Access) -> Access | None:
        """Give the archive that repack fills, or for that the dataset; None where `unique` does not span both."""
        other = self.last() if part is self._access else self._access
        unique = part.current().index.config.unique
        return other if unique and other is not None and other.current().index.config.unique == unique else None

    def delete_replaced(self) -> None:
        """Delete from the archive what was replaced, as the dataset's index tells. Under the writers' lock.

        Before the archive's counter of changes moves on: what it has passed is not looked for any more.
        """
        last = self.last()
        if last is None:
            return
        with self._access.current().index.snapshot() as main, last.current().index.snapshot() as there:
            changes = replaced(main, there)
        if changes:
            with last.transaction("append") as archived:
                archived.delete_as(changes)
                archived.commit()

    def last(self) -> Access | None:
        """Open the archive that repack fills; None where nothing was archived yet."""
        return self.get(LAST)

    def make_last(self) -> Access:
        """Open the archive that repack fills; it is made where it is missing. Under the writers' lock.

        Durability: index, then configuration, each whole or not at all; what a crash leaves is no archive yet.
        """
        found = self.last()
        if found is not None:
            return found
        directory = self._access.directory.inside(f"{ARCHIVE}/{LAST}", make=True)
        try:
            Index.create(directory, self._access.config)
            with contextlib.closing(Index.open(directory, self._access.config)) as index:
                with Transaction(index) as transaction:
                    transaction.commit()  # makes -wal and -shm: from here on nobody has to write in order to read
                if transaction.checkpoint_error is not None:
                    raise transaction.checkpoint_error
            staged = f".{CONFIG}.new"
            with contextlib.suppress(FileNotFoundError):
                directory.unlink(staged)
            with directory.create_file(staged) as file:
                file.write(0, self._access.config.to_toml().encode())
                file.sync()
            directory.rename(staged, CONFIG)
        finally:
            directory.close()
        made = self.last()
        assert made is not None
        return made

    def summaries(self) -> Iterator[Summary]:
        """Read the summaries of the archives that are offline.

        Raises:
            InvalidInput: one of them is no summary.
        """
        for name in self.offline():
            path = f"{ARCHIVE}/{name}{_SUMMARY}"
            try:
                yield _summary(self._access.directory.read(path, _LONGEST), self._access.config.fields)
            except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
                hint = "Write it with `ondisk summary ARCHIVE --json`."
                full = self._access.directory.path / path
                raise InvalidInput(f"{full} is no summary: {error}", hint=hint) from None

    def close(self) -> None:
        for name in [*self._opened]:
            self._drop(name)

    def _open(self, directory: Directory, prefix: str) -> Access:
        try:
            config = read_config(directory)
        except DatasetNotFound:
            directory.close()
            raise
        access = self._access
        config = replace(config, **{name: getattr(access.config, name) for name in _OF_DATASET})
        return _Archive(access, directory, config, prefix)

    def _drop(self, name: str) -> None:
        found = self._opened.pop(name, None)
        if found is not None:
            found.close()


class Archived:
    """What the archive holds of the data that are appended, by their unique fields.

    Used for one batch, under the writers' lock.
    """

    def __init__(self, archives: Archives, last: Access, config: DatasetConfig) -> None:
        self._archives = archives
        self._last = last
        self._config = config
        self._doomed: set[int] = set()
        self._overwritten: set[int] = set()

    def overwrite(self, tree: Expression) -> int:
        """Let what matches be replaced, whatever takes its place; give how many data that is."""
        with self._last.current().index.snapshot() as snapshot:
            self._overwritten = {*segment_rows.seqs_of(snapshot, tree)}
        self._doomed |= self._overwritten
        return len(self._overwritten)

    def interval(self) -> Interval | None:
        """Tell of which times there may be data that others are duplicates of; None where there are none."""
        if not self._config.unique:
            return None
        with self._last.current().index.snapshot() as snapshot:
            interval = segment_rows.span(snapshot)
        return interval if interval is None or "reftime" in self._config.unique else ALWAYS

    def find(self, reftimes: Sequence[int], metadata: Sequence[Mapping[str, Any]]) -> tuple[set[int], set[int]]:
        """Find the places of data that the archive has: those that stay out, and those that replace what it has."""
        kept_out: set[int] = set()
        replacing: set[int] = set()
        opened = self._last.current()
        with opened.index.snapshot() as snapshot:
            for place, row in of_same_key(snapshot, reftimes, metadata):
                if row[0] in self._overwritten:
                    continue
                if self._replaces(metadata[place], snapshot.metadata(row[5:])):
                    replacing.add(place)
                    self._doomed.add(row[0])
                else:
                    kept_out.add(place)
        return kept_out, replacing

    def replace_with(self, transaction: Transaction) -> None:
        """Note in the dataset's index what is replaced: its commit hides it, then it is deleted from the archive."""
        if self._doomed:
            transaction.note_deleted(sorted(self._doomed))
            transaction.after_commit(self._archives.delete_replaced)

    def _replaces(self, new: Mapping[str, Any], old: Mapping[str, Any]) -> bool:
        name = self._config.version_field
        if self._config.replace != "newer" or name is None:
            return self._config.replace == "yes"
        before, after = old.get(name), new.get(name)
        if after is None or before is None:
            return after is not None
        return bool(canonical(before, self._config.fields[name]) <= after)


def of_same_key(
    snapshot: Snapshot, reftimes: Sequence[int], metadata: Sequence[Mapping[str, Any]]
) -> Iterator[tuple[int, Row]]:
    """Find the data of a snapshot that have the unique fields of others: the place of these, and seq and row."""
    interval = segment_rows.span(snapshot)
    if interval is None:
        return
    by_time = "reftime" in snapshot.columns.unique_names
    for place, (reftime, fields) in enumerate(zip(reftimes, metadata, strict=True)):
        if by_time and reftime not in interval:
            continue
        row = snapshot.of_key(reftime, fields)
        if row is not None:
            yield place, row


def held(main: Snapshot, archive: Snapshot) -> list[tuple[int, int, int]]:
    """Find what an archive holds that the dataset's own snapshot has too, as while it is moved.

    Returns:
        Runs of such data: the generation of the archive's segment, the first and the last number of them.

    Cost: looks at the data of segments that both have; of those of the dataset, only as far as the archive goes.
    """
    spans = segment_rows.span(main), segment_rows.span(archive)
    if spans[0] is None or spans[1] is None:
        return []
    both = spans[0] & spans[1]
    there = {segment.name: segment for segment in segment_rows.segments_in(archive, both)}
    mine = [segment for segment in segment_rows.segments_in(main, both) if segment.name in there]
    return [
        (there[segment.name].id, *run)
        for segment in mine
        for run in _common(main, archive, segment, there[segment.name])
    ]


def _common(main: Snapshot, archive: Snapshot, segment: Segment, other: Segment) -> Iterator[tuple[int, int]]:
    """Find the runs of an archive's data, in the order of their numbers, that the dataset has in a segment, too."""
    first = last = None
    for seq, is_common in _compared(main, archive, segment, other):
        if is_common:
            first, last = seq if first is None else first, seq
        elif first is not None and last is not None:
            yield first, last
            first = None
    if first is not None and last is not None:
        yield first, last


def common(main: Snapshot, archive: Snapshot, segment: Segment, other: Segment) -> Iterator[int]:
    """Give the numbers of the data that stand in a segment of both."""
    return (seq for seq, is_common in _compared(main, archive, segment, other) if is_common)


def _compared(main: Snapshot, archive: Snapshot, segment: Segment, other: Segment) -> Iterator[tuple[int, bool]]:
    """Tell of data of an archive's segment, in the order of their numbers, which ones the dataset has in its own, too.

    A number alone may be told twice by damage, so the time must be the same.
    """
    mine = iter(segment_rows.numbers_of(main, segment, segment_rows.last_seq(archive)))
    waiting = next(mine, None)
    if waiting is None:
        return
    for each in segment_rows.numbers_of(archive, other, segment_rows.last_seq(main)):
        while waiting is not None and waiting < each:
            waiting = next(mine, None)
        yield each[0], waiting == each
        if waiting is None:
            return


def _seq(access: Access) -> int:
    with access.current().index.snapshot() as snapshot:
        return int(snapshot.dataset()["seq"])


def replaced(main: Snapshot, archive: Snapshot) -> list[tuple[int, int]]:
    """Find the data of an archive that the dataset's own snapshot says were deleted, and the archive does not yet.

    Returns:
        The numbers of the deletions, and of the data.

    Cost: looks at the dataset's deletions since the archive's last change; at each once, as long as both are open.
    """
    begin, state = archive.dataset()["seq"], main.dataset()["seq"]
    inode, since, after, changes = archive.index.replaced
    if inode != main.index.inode or begin < since:
        since, after, changes = begin, begin, []
    if state > after:
        new = segment_rows.deletions(main, after, segment_rows.last_seq(archive))
        changes = changes + [change for some in new for change in segment_rows.among(archive, some)]
        archive.index.replaced = main.index.inode, since, state, changes
    return segment_rows.among(archive, [change for change in changes if begin < change[0] <= state])


def leave_out(main: Snapshot, archive: Snapshot) -> None:
    """Let an archive's snapshot leave out what the dataset's own one gives, or has given a replacement for."""
    runs, old = held(main, archive), replaced(main, archive)
    if runs or old:
        archive.leave_out(runs, [datum for _, datum in old])


def merged(parts: list[Summary]) -> Summary:
    """Make one summary of several."""
    fields: dict[str, dict[Any, int]] = {}
    for part in parts:
        for name, counts in part.fields.items():
            total = fields.setdefault(name, {})
            for value, count in counts:
                total[value] = total.get(value, 0) + count
    begins = [part.begin for part in parts if part.begin is not None]
    ends = [part.end for part in parts if part.end is not None]
    ordered = {
        name: sorted(counts.items(), key=lambda item: (item[0] is not None, _comparable(item[0])))
        for name, counts in fields.items()
    }
    return Summary(
        sum(part.count for part in parts),
        sum(part.size for part in parts),
        min(begins, default=None),
        max(ends, default=None),
        ordered,
    )


def _comparable(value: Any) -> Any:
    return value.encode() if isinstance(value, str) else 0 if value is None else value


def _summary(text: bytes, fields: Any) -> Summary:
    """Read a summary as `ondisk summary --json` prints it."""
    read = json.loads(text)
    begin, end = (None if read[key] is None else _time(read[key]) for key in ("begin", "end"))
    counts = {
        name: [(_value(each["value"], fields[name]), int(each["count"])) for each in values]
        for name, values in read["fields"].items()
        if name in fields
    }
    return Summary(int(read["count"]), int(read["size"]), begin, end, counts)


def _time(text: str) -> Any:
    return from_microseconds(parse_time(text))


def _value(value: Any, kind: FieldType) -> Any:
    if value is None:
        return None
    found = _time(value) if kind is FieldType.TIMESTAMP else from_json(value)
    canonical(found, kind)  # refuses what is no value of the field
    return found


def _has_segments(directory: Directory, place: str) -> bool:
    with directory.inside(place) as archive:
        return any(True for _ in parents(archive))

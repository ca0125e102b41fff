"""The places of archived segments: the folders below `.archive/`, and whether their disks are there.

    .archive/NAME/.place    the identity of the folder, beside its segments
    .archive/NAME.place     a copy on the dataset's own disk; it also says whether the place is offline

Each move to a place, and each fix or repack that finds other figures, writes both, the first one first. While that is
absent, of another folder, or older than the second, the place is *away*: an empty mount point, a wrong disk and an
older tape are told apart, also after the index was lost. In a place that is away or offline nothing is moved, created,
forgotten or read.

Places are named as in the names of segments: `.archive/NAME/`. The caller must hold the writers' lock to change them.
"""

from __future__ import annotations

import contextlib
import json
import stat
from collections.abc import Iterable, Iterator, Mapping

from ondisk.errors import InvalidInput, StorageError
from ondisk.filesystem import Directory, is_denied
from ondisk.named_tuple import NamedTuple
from ondisk.step import ARCHIVE, Interval, inner_of, place_of

PLACE = ".place"
UNREAD = 2**63 - 1
_LONGEST = 4096  # bytes
_LONGEST_NAME = 200  # bytes


class Identity(NamedTuple):
    """What the file of a place says."""

    id: str  # random; no other folder has it, but for copies
    generation: int = 0  # of the last move, or rewriting. A file with a lower one is of an older state.
    count: int = 0  # type: ignore[assignment]  # not the method of tuples
    # the interval of its segments, microseconds since 1970; both 0 without any
    begin: int = 0
    end: int = 0
    is_offline: bool = False  # somebody has said that it is away for long; only the file on the dataset's disk says so
    # UNREAD since the index was lost; when a fix has read it, the generation of the index from which on it knows all
    # data here; 0 if the index was never lost. Only the file on the dataset's disk says so
    known_since: int = 0

    @property
    def is_unread(self) -> bool:
        return self.known_since == UNREAD

    def during(self, interval: Interval | None) -> Identity:
        """Return it with another interval; None for no segments."""
        begin, end = (0, 0) if interval is None else (interval.begin, interval.end)
        return self._replace(begin=begin, end=end)


class Place(NamedTuple):
    """A folder below `.archive/`."""

    name: str  # `.archive/NAME/`
    # what the file on the dataset's disk says, or else the one in the folder; None without both. Of a copy of a place
    # that is away, without data: they are those of the place
    identity: Identity | None
    why_away: str | None  # why its segments cannot be read; None if they can
    # the folder has the identity that the dataset's disk says. One that somebody has renamed or copied has hidden files
    # that the index knows by other names: until it has followed, nothing in it is cleaned up
    is_ours: bool
    # the place that the folder is now, if somebody has renamed it; readers find its segments there
    renamed: str | None = None

    @property
    def is_offline(self) -> bool:
        return self.identity is not None and self.identity.is_offline

    @property
    def is_unread(self) -> bool:
        return self.identity is not None and self.identity.is_unread


def named(directory: Directory) -> set[str]:
    """Return the names of the places that there are, or that have an identity."""
    if directory.inode(ARCHIVE) is None:
        return set()
    names = set()
    for entry in directory.entries(ARCHIVE):
        if entry.kind == "directory":
            names.add(entry.name)
        elif entry.name.endswith(PLACE):
            names.add(entry.name.removesuffix(PLACE))
    return {f"{ARCHIVE}/{name}/" for name in names if is_name(name)}


def is_name(name: str) -> bool:
    """Return whether a folder of this name may be a place: it must allow for that of the file beside it."""
    try:
        size = len(name.encode())
    except UnicodeEncodeError:  # the index has only names in UTF-8
        return False
    return 0 < size <= _LONGEST_NAME and not name.startswith(".") and not name.endswith(PLACE) and "/" not in name


def check_readable(directory: Directory, name: str) -> None:
    """Raise StorageError if this user may not read the identity of a place: who may sees whether it is away."""
    _read(directory, f"{name}{PLACE}")


def places(directory: Directory) -> dict[str, Place]:
    """Return the places that there are, or that have an identity, by name."""
    return {name: place(directory, name) for name in sorted(named(directory))}


def place(directory: Directory, name: str) -> Place:
    """Return a place by its name, whether there is such a folder or not."""
    outer = _read(directory, outside(name))  # first: a move writes it last
    try:
        inner = _read(directory, f"{name}{PLACE}")
    except StorageError as error:
        return Place(name, outer, error.message, is_ours=False)
    if inner is not None:  # a copy of the other file may be there
        inner = inner._replace(is_offline=False, known_since=0)
    known, why = outer or inner, None
    if outer is None and inner is not None and (owner := _owner(directory, name, inner.id)) is not None:
        original = place(directory, owner)
        if original.why_away is not None and original.renamed != name:
            why, known = f"it is a copy of {owner}, which is away", inner._replace(count=0)
            if original.is_offline:
                known = known._replace(is_offline=True)
    if known is not None and known.is_offline:
        return Place(name, known, "it is offline", is_ours=False)
    found = directory.stat(name.removesuffix("/"))
    if found is None:
        why = "its folder is not there; perhaps its disk is not mounted"
    elif stat.S_ISLNK(found.st_mode):
        why = "a symbolic link is in its place, which is not followed: mount its disk there instead (mount --bind)"
    # If the place has no data, nothing is away: somebody has put files into a new folder of its name.
    elif outer is not None and inner is None and (outer.count or not has_files(directory, name.removesuffix("/"))):
        why = "its folder is empty, or is another one; perhaps its disk is not mounted"
    elif outer is not None and inner is not None and inner.id != outer.id:
        why = "another folder is in its place; perhaps the wrong disk is mounted"
    elif outer is not None and inner is not None and inner.generation < outer.generation:
        why = "an older state of it is in its place; perhaps an old copy is mounted"
    # An empty folder is where a disk is mounted: a copy of that may be elsewhere.
    if outer is None or why is None or (found is not None and inner is None):
        return Place(name, known, why, is_ours=inner is not None and outer is not None and inner.id == outer.id)
    if (renamed := _renamed(directory, name, outer)) is not None:
        return Place(name, known, f"it was renamed to {renamed}", is_ours=False, renamed=renamed)
    return Place(name, known, why, is_ours=inner is not None and inner.id == outer.id)


def _renamed(directory: Directory, name: str, wanted: Identity) -> str | None:
    """Return the place that has the identity of another one; None without one, or with several: copies.

    None as well if the place of that name has gone nowhere: then the wrong disk is mounted there. Of a copy whose files
    somebody has removed only the identity is left.
    """
    inner, chain = inner_identities(directory, named(directory)), [name]
    while True:
        homes = [each for each, other in inner.items() if other.id == wanted.id and each != chain[-1]]
        homes = [each for each in homes if not wanted.count or has_files(directory, each.removesuffix("/"))]
        if len(homes) != 1 or homes[0] in chain[1:] or inner[homes[0]].generation < wanted.generation:
            return None
        chain += homes
        outer = _read(directory, outside(homes[0]))
        if homes[0] == name or outer is None or outer.id == inner[homes[0]].id:
            return chain[1]
        wanted = outer


def inner_identities(directory: Directory, names: Iterable[str]) -> dict[str, Identity]:
    """Return the identities in the folders of places, whatever the dataset's disk says about them."""
    found = {}
    for name in names:
        with contextlib.suppress(StorageError):
            if (each := _read(directory, f"{name}{PLACE}")) is not None:
                found[name] = each
    return found


def elsewhere(directory: Directory, segment: str) -> Iterator[str]:
    """Yield the names that an archived segment has if somebody has renamed its place."""
    mine = place_of(segment)
    if mine:
        for name in places(directory):
            if name != mine:
                yield name + inner_of(segment)


def outside(name: str) -> str:
    return f"{name.removesuffix('/')}{PLACE}"


def twins(directory: Directory, segment: str) -> Iterator[str]:
    """Yield the names that a segment would have in the other places, if these are there: the dataset's own first."""
    inner = inner_of(segment)
    for place in ("", *(each.name for each in places(directory).values() if each.why_away is None)):
        if f"{place}{inner}" != segment:
            yield f"{place}{inner}"


def closed(directory: Directory) -> dict[str, Place]:
    return {name: each for name, each in places(directory).items() if each.why_away is not None}


def roots(directory: Directory) -> Iterator[str]:
    """Yield the folders of the places whose files ondisk may clean up: those that are its own, and are there."""
    for name, each in places(directory).items():
        if each.is_ours and each.why_away is None:
            yield name.removesuffix("/")


def note_move(directory: Directory, name: str, generation: int, change: int, interval: Interval | None = None) -> None:
    """Write the identity of a place before a commit that moves a segment there, or from there.

    Args:
        change: of the number of data.

    Durability: the file in the folder is replaced and synced first: after a crash it is the newer one, if they differ.
    """
    before = own_identity(directory, place(directory, name))
    span = Interval(before.begin, before.end)
    if interval is not None:
        span = interval if span.is_empty else span | interval
    count = max(0, before.count + change)
    write(directory, name, before._replace(generation=generation, count=count).during(span))


def note_unread(directory: Directory, found: Iterable[Place]) -> None:
    """Note that the index may lack data of some places until a fix has read them."""
    for each in found:
        identity = _read(directory, outside(each.name))
        if identity is not None and identity.count and each.renamed is None:
            write(directory, each.name, identity._replace(known_since=UNREAD), only_outside=True)


def begin(directory: Directory, name: str) -> None:
    """Give a place an identity before the first file is written there, so that what a crash leaves is cleaned up."""
    found = place(directory, name)
    if not found.is_ours:
        write(directory, name, own_identity(directory, found))


def own_identity(directory: Directory, found: Place) -> Identity:
    """Return the identity of a place, or a new one: if it has none, or is a copy that has the one of another place."""
    if found.identity is None or (not found.is_ours and _owner(directory, found.name, found.identity.id) is not None):
        return new_identity()
    return found.identity


def home(directory: Directory, found: Place) -> str | None:
    """Return the folder that has the identity of a place: its own, or another one; None if it is in none, or older."""
    if found.identity is None:
        return None
    inner = inner_identities(directory, [found.name, *named(directory)])
    wanted = found.identity
    return next((n for n, each in inner.items() if each.id == wanted.id and each.generation >= wanted.generation), None)


def has_files(directory: Directory, folder: str) -> bool:
    """Return whether a folder has any file that may be a segment, or that of one."""
    seen = [each for each in directory.entries(folder) if not each.name.startswith(".")]
    return any(each.kind != "directory" or has_files(directory, f"{folder}/{each.name}") for each in seen)


def _owner(directory: Directory, name: str, id_: str) -> str | None:
    """Return the other place to which the dataset's disk gives the identity of a folder; None if there is none."""
    outer = {each: _read(directory, outside(each)) for each in named(directory) if each != name}
    return next((each for each, identity in outer.items() if identity is not None and identity.id == id_), None)


def new_identity() -> Identity:
    import uuid

    return Identity(str(uuid.uuid4()))


def write(directory: Directory, name: str, identity: Identity, *, only_outside: bool = False) -> None:
    """Write both files of a place. `only_outside`: leave the one in the folder, which may not be there."""
    if not only_outside:
        with directory.inside(name.removesuffix("/"), make=True) as folder:
            folder.replace(PLACE, _text(identity._replace(known_since=0)))  # the folder may come to another index
    with directory.inside(ARCHIVE) as archive:
        archive.replace(f"{name.split('/')[1]}{PLACE}", _text(identity))


def _text(identity: Identity) -> bytes:
    return json.dumps(identity._asdict()).encode() + b"\n"


def rename(directory: Directory, renamed: Mapping[str, str]) -> None:
    """Give places that were renamed with their folders, old name → new one, their identities on the dataset's disk."""
    found = {new: place(directory, old).identity for old, new in renamed.items()}
    for new, identity in found.items():
        if identity is not None:
            write(directory, new, identity, only_outside=True)
    for old in renamed.keys() - found.keys():
        forget(directory, old)


def forget(directory: Directory, name: str) -> None:
    directory.discard(outside(name))
    directory.sync(ARCHIVE)


def _read(directory: Directory, name: str) -> Identity | None:
    """Return what a file says; None if nobody wrote it; raise StorageError if this user may not read it."""
    try:
        read = json.loads(directory.read(name, _LONGEST))
        found = Identity(**read)
    except StorageError as error:
        if is_denied(error):
            raise
        return None
    except (FileNotFoundError, NotADirectoryError, InvalidInput, ValueError, TypeError):
        return None
    kinds = (str, int, int, int, int, bool, int)
    return found if all(type(each) is kind for each, kind in zip(found, kinds, strict=True)) else None

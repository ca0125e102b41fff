"""Import the segments of a queue directory of Beats, also while Beats writes to it.

The first import begins at the position in `state.dat`. After that, the import log of the dataset has a text for each
segment that was read and still exists: how far, and what recognises it. The commit that stores data also replaces this
text, so each event is stored once, wherever an import is killed. `state.dat` does not matter any more, except to name
segments that were removed.

If no segment exists, the log has the number of the last one that did, or -1: the next import must know that an import
was before it.

A segment is recognised by its number, its first frame, and the last frame that was read. Beats begins again with
`0.seg` when it has sent everything, and overwrites files that it cannot read: a number alone means nothing.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import astuple, dataclass, replace
from typing import TypeAlias, cast

from ondisk.dataset.access import Access
from ondisk.dataset.append import AppendResult
from ondisk.dataset.auxiliary_files import CONFIG
from ondisk.errors import AuthenticationFailed, InvalidInput, KeyMissing, NotFound, OndiskError, SegmentCorrupt
from ondisk.filesystem import Directory, ReadableFile
from ondisk.formats import Batch
from ondisk.formats.base import FileStream
from ondisk.formats.diskqueue.frame_reader import Place, batches, begins_like, is_known, resumed, walk
from ondisk.formats.diskqueue.seg import Seg
from ondisk.formats.diskqueue.state import MAX_NUMBER, NAME, State
from ondisk.index import import_log
from ondisk.index.transaction import Transaction
from ondisk.queue.consumer_position import LEAST_BEGIN, last_before, newer_than, position
from ondisk.segment import Damage

_NAME = re.compile(r"(0|[1-9][0-9]{0,19})\.seg")
_LIKE = re.compile(r"[0-9]+\.seg", re.IGNORECASE)

Append: TypeAlias = Callable[..., AppendResult]  # stores batches of a format; its `record` adds to each commit
_GONE = -1  # the size in the place of a segment that an import did not find any more


def append_queue(
    access: Access, append: Append, path: str | os.PathLike[str], *, from_start: bool, batch_size: int
) -> Iterator[tuple[str, AppendResult]]:
    """Store what is new in a queue directory, and yield the path of each segment that was read, and what was done.

    Remarks about the whole queue come first, with its own path. Nothing is stored before the caller asks for the next
    item, so that an import that is killed before that does not forget what they are about. What Beats writes after this
    has listed the segments is for the next import, and so is an incomplete frame at the end of the last segment.

    Args:
        from_start: the first time, begin at the oldest event instead of the position in `state.dat`.

    Raises:
        NotFound, StorageError: there is no such directory, or a file in it cannot be read.
        InvalidInput: it is a dataset, or contains no queue; or a segment cannot be read by this ondisk, and blocks
            those after it.
        StateError: another process imports from it at the same time.
        Also the errors of `Dataset.append`; what was yielded is stored.

    Durability: as `Dataset.append`. The place after a batch is committed with the batch.
    Locks: the writers' lock, once for each batch; none of Beats, which has no locks.
    Cost: opens each segment of the queue. Reads what is new, and the whole segment if it is compressed or encrypted.
    """
    with _opened(path) as queue:
        remarks: list[str] = []
        at = position(queue)  # before the segments are listed: what Beats removes now is for the next import
        at = at if at is not None and at.offset(0) else None  # else it does not say what Beats has sent
        numbers = sorted(_numbers(queue, remarks))
        source = _Source(access, append, queue, f"queue {queue.path.resolve()}", batch_size)
        known = source.places()
        begun_again = source.has_begun_again(known, numbers)
        new = {}
        if known:
            remarks += source.removed(known, numbers, at, begun_again=begun_again)
        else:
            new = source.begin(numbers, remarks, at, from_start=from_start)
        if remarks:
            yield os.fspath(path), AppendResult(notes=remarks)
        source.save({number: (None, place) for number, place in new.items()})
        known = known or new
        for number in numbers:
            result = source.append_segment(number, known.get(number), growing=number == numbers[-1])
            if result is not None:
                yield f"{os.fspath(path)}/{number}.seg", result
        source.forget(known, numbers, at, begun_again=begun_again)


def _opened(path: str | os.PathLike[str]) -> Directory:
    try:
        queue = Directory.open(path)
    except FileNotFoundError:
        raise NotFound(f"{os.fspath(path)}: no such directory", hint="Check the path.") from None
    except NotADirectoryError:
        hint = "Name the folder of its segments; append single segments without --format diskqueue."
        raise InvalidInput(f"{os.fspath(path)} is not the directory of a queue", hint=hint) from None
    if queue.stat(CONFIG) is not None:
        queue.close()
        hint = "Copy its data: `ondisk query FROM --data | ondisk append TO - --format seg`."
        raise InvalidInput(f"{os.fspath(path)} is a dataset of ondisk, not a queue of Beats", hint=hint)
    if queue.stat(NAME) is None and not any(map(_LIKE.fullmatch, queue.names())):
        queue.close()
        hint = "Name the directory of its segments. If that is right: does the Beat run, and is the disk mounted?"
        problem = f"{os.fspath(path)} contains no queue: it has no segments, and no {NAME}"
        raise InvalidInput(problem, hint=hint)
    return queue


def _numbers(queue: Directory, remarks: list[str]) -> Iterator[int]:
    """Yield the numbers of the segments, and remark on names that look like those of segments."""
    for name in sorted(queue.names()):
        if (found := _NAME.fullmatch(name)) and int(found[1]) <= MAX_NUMBER:
            yield int(found[1])
        elif _LIKE.fullmatch(name):
            remarks.append(f"{name} is ignored: Beats does not open a segment of this name")


def _is_end(at: State, place: Place) -> bool:
    """Return whether a position is after the last event that was read of its segment."""
    return at.offset(LEAST_BEGIN) == place.end and (not place.frames or at.frame_index in (0, place.frames))


def _emptied(known: Mapping[int, Place], at: State | None) -> tuple[int, Place]:
    """Return number and place of the last segment of a queue that has none any more."""
    if at is None:
        last = max(known)
        return last, replace(known[last], size=_GONE)
    place = known.get(at.segment)
    if place is None or not _is_end(at, place):
        place = Place(end=at.offset(LEAST_BEGIN))
    return at.segment, replace(place, size=_GONE)


def _span(first: int, last: int) -> str:
    return f"{first}.seg was" if first == last else f"segments {first} to {last} were"


def _text(place: Place | None) -> str | None:
    return None if place is None else " ".join(map(str, astuple(place)))


@dataclass(slots=True)
class _Source:
    access: Access
    append: Append
    queue: Directory
    name: str  # in the import log
    batch_size: int

    def places(self) -> dict[int, Place]:
        with self.access.current().index.snapshot() as snapshot:
            found = import_log.texts(snapshot, self.name)
        return {int(name): Place(*map(int, text.split())) for name, text in found.items()}

    def save(self, places: Mapping[int, tuple[Place | None, Place | None]]) -> None:
        if places:
            with self.access.user_transaction("append") as transaction:
                for number, (old, new) in places.items():
                    self.record(transaction, number, old, new)
                transaction.commit()

    def record(self, transaction: Transaction, number: int, old: Place | None, new: Place | None) -> None:
        import_log.exchange(transaction, self.name, str(number), _text(old), _text(new))

    def forget(self, known: Mapping[int, Place], numbers: list[int], at: State | None, *, begun_again: bool) -> None:
        """Remove the places of segments that do not exist any more, except the last if no later one follows it."""
        gone: dict[int, tuple[Place | None, Place | None]]
        gone = {number: (known[number], None) for number in sorted(known.keys() - set(numbers))}
        if not numbers:
            last, place = _emptied(known, at)
            gone[last] = known.get(last), place
        elif gone and not begun_again and numbers[-1] < max(gone):
            last = max(gone)
            gone[last] = known[last], replace(known[last], size=_GONE)  # what may be missing of it was reported
        elif gone and not self.places().keys() - gone.keys():  # nothing was read of those that are there
            gone[numbers[0]] = None, Place()
        self.save({number: (old, new) for number, (old, new) in gone.items() if old != new})

    @property
    def format(self) -> Seg:
        return cast("Seg", self.access.incoming("seg"))

    def begin(self, numbers: list[int], remarks: list[str], at: State | None, *, from_start: bool) -> dict[int, Place]:
        """Return the places with which the first import begins, at least one; what is before them counts as read."""
        if not numbers:
            return dict([_emptied({-1: Place()}, at)])
        state = None if from_start else self._state(numbers, remarks)
        return (self._before(state, numbers, remarks) if state is not None else {}) or {numbers[0]: Place()}

    def _before(self, state: State, numbers: list[int], remarks: list[str]) -> dict[int, Place]:
        places = {}
        for number in numbers:
            if number < state.segment:
                with contextlib.suppress(FileNotFoundError):  # Beats has removed it meanwhile
                    places[number] = self._passed(number)
        if places:
            first, last = min(places), max(places)
            remarks.append(
                f"{len(places)} segments before the position in state.dat, {first} to {last}, were acknowledged and are"
                " not imported; to import them, append their files"
            )
        if state.segment in numbers and (place := self._position(state, remarks)) is not None:
            places[state.segment] = place
        return places

    def _state(self, numbers: list[int], remarks: list[str]) -> State | None:
        """Return the position in `state.dat`; None if there is none to believe.

        When Beats has sent everything, removed its files and begun again with 0.seg, the position may still be the old
        one, until Beats sends something. What precedes it must be older than the file, and not the whole queue.
        """
        try:
            state = State.read(self.queue)
        except InvalidInput as error:
            remarks.append(f"{error.message}; all segments are imported")
            return None
        if state is None:
            return None
        if newer := newer_than(self.queue, state):
            remarks.append(f"{NAME} is older than {newer[0]}.seg; all segments are imported")
            return None
        if (last := last_before(self.queue, state)) is not None:
            where = f"{NAME} continues in {state.segment}.seg, but {last}.seg is the last segment"
            remarks.append(f"{where}: it is of another queue; all segments are imported")
            return None
        return state

    def _passed(self, number: int) -> Place:
        """Return the place after a segment that is not imported; it is recognised by its first frame and its size."""
        file = self.queue.open_to_read(f"{number}.seg")
        try:
            with _named(file):
                scanned = next(iter(self.format.frames(FileStream(file, 0))), None)
        except (InvalidInput, SegmentCorrupt):
            scanned = None
        return replace(Place() if scanned is None else Place().after(scanned, 0, 1), size=file.size())

    def _position(self, state: State, remarks: list[str]) -> Place | None:
        """Return the place of the position in `state.dat`; None if it is the beginning, or cannot be right."""
        try:
            file = self.queue.open_to_read(f"{state.segment}.seg")
            with _named(file):
                frames = self.format.frames(FileStream(file, 0))
        except (FileNotFoundError, InvalidInput, SegmentCorrupt):
            return None
        begin = frames.header.logical_size
        offset = state.offset(begin)
        if offset == begin:
            return None
        place, walked = walk(frames, offset)
        if walked == "exact" and place.frames == (state.frame_index or place.frames):
            return place
        remarks.append(
            f"the position in state.dat, byte {offset} of {state.segment}.seg, is not the beginning of event"
            f" {state.frame_index}; all events of that segment are imported"
        )
        return None

    def has_begun_again(self, known: Mapping[int, Place], numbers: list[int]) -> bool:
        """Return whether Beats has begun again with `0.seg`: the oldest segment is not the one that had its number."""
        if not known or not numbers or numbers[0] > max(known):
            return False
        return numbers[0] not in known or self._is_other(numbers[0], known[numbers[0]])

    def _is_other(self, number: int, place: Place) -> bool:
        if not place.frames:
            return place.size == _GONE
        try:
            return not begins_like(self.format, self.queue.open_to_read(f"{number}.seg"), place)
        except (FileNotFoundError, OndiskError):  # Beats has removed it meanwhile, or the import says what is wrong
            return False

    def removed(
        self, known: Mapping[int, Place], numbers: list[int], at: State | None, *, begun_again: bool
    ) -> Iterator[str]:
        """Yield what is known of segments that Beats has removed, and that may have had events not imported."""
        last = max(known)
        read = known[last]
        if numbers and not (begun_again and at is not None and at.segment > numbers[-1]):
            at = None
        ended = at is not None and at.segment == last and _is_end(at, read)
        gone = last not in numbers or self._is_other(last, read)
        if gone and not read.size and not ended:
            yield f"{last}.seg was removed; what Beats wrote to it after the last import was not imported"
        if at is not None and at.segment > last:
            yield f"{_span(last + 1, at.segment)} removed before the import"
        elif at is not None and not ended and (read.size or (at.segment, at.offset(LEAST_BEGIN)) < (last, read.end)):
            yield f"Beats has begun again; {_span(0, at.segment)} removed before the import"
        if begun_again:
            if gone and at is None and read.size != _GONE:
                yield f"Beats has begun again; what it wrote after {last}.seg until then, if anything, was not imported"
            if numbers[0] > 0:
                yield f"Beats has begun again; {_span(0, numbers[0] - 1)} removed before the import"
            return
        following = min((number for number in numbers if number > last), default=last + 1)
        if following > last + 1:
            yield f"{_span(last + 1, following - 1)} removed before the import"
        if following in numbers and read.size == _GONE and last >= 0:
            yield f"if Beats has begun again since the last import, {_span(0, last)} removed before this one"

    def append_segment(self, number: int, known: Place | None, *, growing: bool) -> AppendResult | None:
        """Store what is new in a segment, which may be `growing`; return None if nothing is to be said of it."""
        try:
            file = self.queue.open_to_read(f"{number}.seg")
        except FileNotFoundError:  # Beats has removed it meanwhile
            if known is not None and known.size:
                return None
            lost = ", and" if known is None else "; what Beats wrote to it after the last import"
            return AppendResult(notes=[f"it was removed while the import ran{lost} was not imported"])
        size = file.size()
        try:
            with _named(file):
                if (
                    known is not None
                    and 0 < known.size == size
                    and (not known.frames or is_known(self.format, file, known))
                ):
                    return None
                frames, now, remark = resumed(self.format, file, known or Place())
        except SegmentCorrupt as error:  # inside the header
            if growing or not size:
                return None
            self.save({number: (known, Place(size=size))})
            return AppendResult(damage=[Damage(0, size, error.context["reason"])])
        saved = known

        def stream() -> Iterator[Batch]:
            nonlocal now
            counted = 0 if growing else frames.header.frame_count
            read = batches(frames, self.format.add, self.batch_size, now, growing=growing, counted=counted)
            for batch, after in read:
                now = after
                yield batch

        def record(transaction: Transaction) -> None:
            nonlocal saved
            self.record(transaction, number, saved, now)
            saved = now

        try:
            result = self.append(stream(), self.format, record=record)
        except OndiskError as error:
            error.context["source"] = file.path
            raise
        is_finished = not growing or 0 < now.frames == frames.header.frame_count  # Beats counts when it is complete
        now = replace(now, size=size if is_finished else 0)
        if now != (saved or Place()):
            self.save({number: (saved, now)})
        if remark is not None:
            result.notes.insert(0, remark)
        return result if result.count or result.damage or result.notes else None


@contextlib.contextmanager
def _named(file: ReadableFile) -> Iterator[None]:
    """Name a segment in the error that says why nothing of it can be read."""
    try:
        yield
    except (InvalidInput, KeyMissing, AuthenticationFailed) as error:
        passes = " To import the segments after it, move it out of the queue." * isinstance(error, InvalidInput)
        raise type(error)(f"{file.path}: {error.message}", hint=error.hint + passes, **error.context) from error

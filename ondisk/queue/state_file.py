"""The file `state.dat` in the folder of a queue, read and written as its consumer does."""

from __future__ import annotations

from ondisk.errors import InvalidInput
from ondisk.filesystem import Directory
from ondisk.formats.diskqueue.state import NAME, SIZE, State

__all__ = ["NAME", "read", "write"]


def read(queue: Directory) -> State | None:
    """Return the position of the oldest event that the consumer has not acknowledged; None if it acknowledged nothing.

    A file that cannot be understood raises InvalidInput, with the reason in its context.
    """
    try:
        content = queue.open_to_read(NAME).read(0, SIZE)
    except FileNotFoundError:
        return None
    try:
        return State.parse(content)
    except InvalidInput as error:
        raise InvalidInput(f"{queue.at(NAME)}: {error.message}", hint=error.hint, **error.context) from None


def write(queue: Directory, new: State) -> None:
    """Replace the position; the file keeps its owner and its permissions, so that Beats can still write to it.

    Durability: writes `.state.dat.new`, syncs it, renames it, syncs the folder. A crash leaves the old position or the
        new one, and perhaps `.state.dat.new`, which Beats ignores and the next call removes.
    """
    queue.replace(NAME, new.pack(), like=queue.regular_file(NAME))

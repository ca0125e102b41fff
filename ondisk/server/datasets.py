"""The datasets that are served, by name."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ondisk.dataset.auxiliary_files import Identity, identity_at
from ondisk.dataset.dataset import Dataset
from ondisk.errors import InvalidInput, OndiskError, shown


class _Opened:
    """An open dataset, and how many answers use it."""

    def __init__(self, dataset: Dataset, identity: Identity) -> None:
        self.dataset = dataset
        self.identity = identity
        self.users = 0


class Served:
    """A dataset that is served under a name. Threads may share it.

    It is opened again if another folder is at its path, or its configuration has changed.
    """

    def __init__(self, name: str, path: str) -> None:
        self.name = name
        self.path = path
        self._lock = threading.Lock()
        self._opened: _Opened | None = None

    @contextlib.contextmanager
    def opened(self) -> Iterator[Dataset]:
        """Return the dataset, for the length of the block; errors are those of `Dataset.open`."""
        opened = self._take()
        try:
            yield opened.dataset
        finally:
            with self._lock:
                opened.users -= 1
                if opened is not self._opened and not opened.users:
                    opened.dataset.close()

    def _take(self) -> _Opened:
        with self._lock:
            identity = identity_at(self.path)
            if self._opened is None or self._opened.identity != identity:
                new = _Opened(Dataset.open(self.path, read_only=True), identity)
                old, self._opened = self._opened, new
                if old is not None and not old.users:
                    old.dataset.close()
            self._opened.users += 1
            return self._opened

    def close(self) -> None:
        with self._lock:
            if self._opened is not None:
                self._opened.dataset.close()
                self._opened = None


def by_name(paths: Sequence[str]) -> Mapping[str, Served]:
    """Return what is served, by name, that of the folder; raise InvalidInput if two have one, or no URL can have it."""
    found: dict[str, Served] = {}
    with contextlib.ExitStack() as undo:
        for path in paths:
            name = Path(os.path.normpath(Path(path).absolute())).name
            if not name.isprintable() or not name:
                hint = "Rename its folder, or serve a symbolic link to it that has another name."
                raise InvalidInput(f"{shown(path)}: {shown(name)} cannot be a name in a URL", hint=hint)
            if name in found:
                hint = "Serve a symbolic link to one of them that has another name."
                raise InvalidInput(f"{found[name].path} and {path} are both named {shown(name)}", hint=hint)
            found[name] = Served(name, path)
            undo.callback(found[name].close)
            with found[name].opened():
                pass
        undo.pop_all()
    return found


def is_readable(served: Served) -> bool:
    try:
        with served.opened() as dataset:
            dataset.state()
    except OndiskError:
        return False
    return True

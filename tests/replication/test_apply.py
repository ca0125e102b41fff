"""Nothing that a source never sends is applied to its replica."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kit.crashes import Killed
from replicas import datum, pull

from ondisk.errors import ConfigError, IntegrityError, TokenForeign
from ondisk.index.transaction import Transaction
from ondisk.replication import Replica
from ondisk.replication.apply import apply
from ondisk.replication.feed import Kind
from ondisk.replication.records import Group, Records
from ondisk.replication.source import PathSource
from ondisk.replication.token import Token


class Hostile(PathSource):
    """A source whose answers are changed on their way."""

    def __init__(self, path: Path, **changes: Any) -> None:
        super().__init__(path)
        self._changes = changes

    def changes(self, token: Token | None, max_bytes: int = 1024) -> Records:
        return replace(super().changes(token, max_bytes), **self._changes)


@pytest.mark.parametrize(
    ("changes", "error", "problem"),
    [
        ({"token": Token("another", 1, 5)}, TokenForeign, "the source is another now"),
        ({"groups": [Group("jsonl", [1], [b"{}"])]}, IntegrityError, "it had sent before"),
        ({"deletions": [(1, 1, Kind.DELETED)]}, IntegrityError, "it had sent before"),
        ({"groups": [Group("blob", [9], [b"x"])]}, IntegrityError, "as they are stored"),
        ({"groups": [Group("nothing", [9], [b"x"])]}, ConfigError, "nothing"),
    ],
)
def test_what_a_source_never_sends_changes_nothing(source, path, changes, error, problem):
    source.append([datum(1, 1), datum(2, 1)])
    pull(path, source)
    source.append([datum(3, 1)])
    with Hostile(source.path, **changes) as hostile, Replica.open(path, hostile) as replica:
        with pytest.raises(error, match=problem):
            replica.pull()
        assert replica.followed.offset == 2
    pull(path, source)


def test_an_answer_that_another_process_has_overtaken_is_dropped(source, path):
    source.append(datum(1, a) for a in range(3))
    with Replica.create(path, source.path) as one, Replica.open(path, source.path) as two:
        before = one._begun()
        records = one._changes(before, 1)
        two.pull()
        assert apply(one.dataset._access, records, before, before._replace(offset=records.token.offset)) is None
        assert one.followed.offset == 3


def test_data_and_the_token_that_covers_them_are_one_commit(source, path, monkeypatch):
    source.append([datum(1, 1), datum(2, 1)])
    committed = Transaction.commit

    def killed(transaction: Transaction) -> None:
        committed(transaction)
        raise Killed

    with Replica.create(path, source.path) as replica:
        replica._begun()
        monkeypatch.setattr(Transaction, "commit", killed)
        with pytest.raises(Killed):
            replica.pull()
        monkeypatch.undo()
        assert (replica.followed.offset, replica.dataset.info()["count"]) == (2, 2)
    assert pull(path, source).present == 0


def test_data_that_are_not_of_their_format_are_listed(source, path):
    source.append([datum(1, 1)])
    group = Group("jsonl", [1], [b'{"reftime": "2026-11-01T00:00:00Z"}\n{"reftime": "2026-11-01T00:00:00Z"}'])
    with Hostile(source.path, groups=[group]) as hostile, Replica.create(path, hostile) as replica:
        assert replica.pull().missing == 1
    assert pull(path, source).stored == 1

"""A token file is replaced as a whole, keeps what it does not know, and is set aside if it is damaged."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ondisk.errors import IntegrityError, InvalidInput, NotFound, ReadOnly, StorageError, VersionTooNew
from ondisk.filesystem import Directory
from ondisk.replication import token_file
from ondisk.replication.fields import LARGEST, sealed
from ondisk.replication.token import Entry, Token, TokenFile, encode

ENTRY = Entry(Token("source", 7, 12), "replica")
OTHER = Entry(Token("another source", 8, 13), "replica", "host", 1)


@pytest.fixture
def file(tmp_path) -> Path:
    return tmp_path / "replica.tokens"


def test_a_file_is_created_and_then_updated(file):
    assert token_file.update(file, [ENTRY]) is None
    assert token_file.update(file, [OTHER]) is None
    later = replace(ENTRY, token=replace(ENTRY.token, offset=20))
    assert token_file.update(file, [later]) is None
    assert token_file.read(file) == [later, OTHER]
    assert file.read_bytes() == encode(TokenFile([later, OTHER]))
    assert [path.name for path in file.parent.iterdir()] == [file.name]


def test_a_damaged_file_is_set_aside_and_nothing_set_aside_is_lost(file):
    for number, name in enumerate(("replica.tokens.bad", "replica.tokens.bad.2"), 1):
        file.write_bytes(b"damaged\0%d" % number)
        said = token_file.update(file, [ENTRY])
        assert said is not None
        assert said.startswith(f"{file} is damaged: ")
        assert said.endswith(f"; it is {file.parent / name} now")
        assert (file.parent / name).read_bytes() == b"damaged\0%d" % number
        assert token_file.read(file) == [ENTRY]


def test_a_text_is_no_token_file_and_is_left(file):
    file.write_bytes(b"0123456789abcdef\n")
    with pytest.raises(InvalidInput, match="is a text and no token file") as caught:
        token_file.update(file, [ENTRY])
    assert "--server-token" in caught.value.hint
    assert file.read_bytes() == b"0123456789abcdef\n"
    assert [path.name for path in file.parent.iterdir()] == [file.name]


def test_a_file_that_is_too_large_is_set_aside(file):
    with file.open("wb") as large:
        large.truncate(LARGEST + 1)
    with pytest.raises(InvalidInput, match=f"larger than {LARGEST} bytes"):
        token_file.read(file)
    assert "larger" in (token_file.update(file, [ENTRY]) or "")
    assert token_file.read(file) == [ENTRY]


def test_a_file_of_a_newer_ondisk_is_left(file):
    newer = sealed(b"O\x02something else")
    file.write_bytes(newer)
    with pytest.raises(VersionTooNew):
        token_file.update(file, [ENTRY])
    assert file.read_bytes() == newer


def test_what_does_not_fit_leaves_the_old_file(file):
    token_file.update(file, [ENTRY])
    with pytest.raises(InvalidInput):
        token_file.update(file, [replace(ENTRY, port=2**40)])
    assert token_file.read(file) == [ENTRY]


def test_a_link_is_not_followed(file, tmp_path):
    (tmp_path / "elsewhere").write_bytes(b"mine")
    file.symlink_to("elsewhere")
    with pytest.raises(StorageError):
        token_file.update(file, [ENTRY])
    assert (tmp_path / "elsewhere").read_bytes() == b"mine"


def test_errors_name_the_file(file):
    with pytest.raises(NotFound, match=str(file)):
        token_file.read(file)
    file.write_bytes(b"")
    with pytest.raises(IntegrityError, match=f"{file} is damaged: it has 0 bytes"):
        token_file.read(file)


def test_a_folder_that_may_not_be_written_to_is_named_with_a_remedy_about_the_file(file, monkeypatch):
    def denied(*_: object, **__: object) -> None:
        raise ReadOnly("no permission", hint="Open the dataset read_only.")

    monkeypatch.setattr(Directory, "replace", denied)
    with pytest.raises(ReadOnly) as error:
        token_file.update(file, [ENTRY])
    assert str(file) in error.value.message
    assert error.value.hint.startswith("Choose a file in a folder that this user may write to.")

"""`ondisk token` prints and verifies token files of both layouts."""

from __future__ import annotations

from pathlib import Path

import pytest

from ondisk.replication import token
from ondisk.replication.token import Entry, Token, encode

from .conftest import ROOT

GOLDEN = ROOT / "tests/golden/ambry"
SOURCE, REPLICA = "11111111-2222-4333-8444-555555555555", "aaaaaaaa-bbbb-4ccc-8ddd-eeeeeeeeeeee"
ENTRY = Entry(Token(SOURCE, 255, 1234), REPLICA, "node1", 8080, bytes_read=5678)


@pytest.fixture
def tokens(folder) -> str:
    token.update("replica.tokens", [ENTRY])
    return "replica.tokens"


def test_show_prints_each_token(run, tokens):
    done = run("token", "show", tokens)
    assert (done.code, done.err) == (0, "")
    first, last = done.text.splitlines()
    assert first.startswith(f"source={SOURCE}  host=node1  port=8080  replica={REPLICA}  bytes_read=5678")
    assert "session=00000000000000ff  offset=1234" in first
    assert last == "1 token"
    assert run("token", "show", tokens, "--json").json == {
        "source": SOURCE,
        "host": "node1",
        "port": 8080,
        "replica": REPLICA,
        "bytes_read": 5678,
        "session": "00000000000000ff",
        "offset": 1234,
        "index_start": None,
        "key": None,
    }


def test_show_says_how_far_a_comparison_is(run, folder):
    token.update("it", [Entry(Token(SOURCE, 1, 2, 3, b"\xff"), REPLICA)])
    shown = run("token", "show", "it", "--json").json
    assert (shown["index_start"], shown["key"]) == (3, "ff")


def test_verify_counts_tokens_that_a_later_one_replaces(run, folder):
    Path("it").write_bytes(encode([ENTRY, ENTRY]))
    done = run("token", "verify", "it")
    assert (done.code, done.text) == (0, "it: 1 token in 288 bytes; nothing is damaged; 1 more are superseded\n")
    assert run("token", "verify", "it", "--json").json == {
        "file": "it", "layout": "ondisk", "tokens": 1, "superseded": 1, "size": 288}  # fmt: skip


def test_a_file_of_ambry_is_shown(run):
    done = run("token", "show", GOLDEN / "v1_multi_v3_tokens.bin", "--layout", "ambry", "--json")
    assert done.code == 0
    assert [line["type"] for line in done.lines[:2]] == ["uninitialized", "journal"]
    assert run("token", "verify", GOLDEN / "v0_empty.bin", "--layout", "ambry").code == 0


@pytest.mark.parametrize("verb", ["show", "verify"])
@pytest.mark.parametrize("layout", ["ondisk", "ambry"])
def test_a_damaged_file_is_left_and_ends_with_60(run, folder, verb, layout):
    Path("it").write_bytes((GOLDEN / "bad_crc_low_bit.bin").read_bytes())
    done = run("token", verb, "it", "--layout", layout)
    assert (done.code, done.out) == (60, b"")
    assert done.err.startswith("ondisk: error: it is damaged: its checksum is 0x")
    assert [path.name for path in folder.glob("it*")] == ["it"]


def test_the_wrong_layout_is_recognised(run, tokens):
    done = run("token", "verify", GOLDEN / "v1_empty.bin")
    assert done.code == 60
    assert "--layout ambry" in done.err
    assert run("token", "verify", tokens, "--layout", "ambry").code == 60


def test_a_file_that_is_not_there_ends_with_10(run):
    assert run("token", "show", "nowhere").code == 10
    assert run("token", "show", "no/where").code == 10


def test_nothing_that_others_wrote_reaches_the_terminal(run, folder):
    token.update("it", [Entry(Token("\x1b[31m"), "\x07\n", "\udcff")])
    done = run("token", "show", "it")
    assert done.code == 0
    assert done.text.isascii()
    assert done.text.replace("\n", "").isprintable()
    assert run("token", "show", "it", "--json").json["host"] == {"$text_bytes": "/w=="}

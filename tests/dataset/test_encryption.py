"""Encrypted datasets: what is stored is returned with the keys, and with nothing else; no keystream is used twice."""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
import zlib
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR
from formats.diskqueue import beats_reader
from formats.diskqueue.test_encryption import BEATS_KEY
from formats.diskqueue.test_golden import GOLDEN, expected_events
from kit import same
from worlds import lose_index

import ondisk
from ondisk import Datum, keys
from ondisk.errors import AuthenticationFailed, ConfigError, InvalidInput, KeyMissing, SegmentCorrupt, StateError
from ondisk.filesystem import Directory
from ondisk.formats import find
from ondisk.formats.diskqueue.header import Header
from ondisk.keys import Key, KeyRing
from ondisk.maintenance.maintain import maintain
from ondisk.maintenance.states import State
from ondisk.staging.stage import Stage

T = datetime(2026, 11, 20, 6, tzinfo=UTC)
SEGMENT = "2026/11-20.seg"
NEXT_DAY = "2026/11-21.seg"
SHORT, LONG, NEWER = bytes(range(16)), bytes(range(32)), bytes(range(1, 33))
RING = KeyRing([Key(1, SHORT), Key(2, LONG)], "a test")
WRONG = KeyRing([Key(1, NEWER[:16]), Key(2, NEWER)], "a test")
"""The right numbers, and other keys."""
CTR_LZ4 = {"encryption": "aes-128-ctr"}
CTR_PLAIN = {"encryption": "aes-128-ctr", "compression": "none"}
GCM = {"encryption": "aes-256-gcm"}
KINDS = [pytest.param(kind, id="-".join(kind.values())) for kind in (CTR_LZ4, CTR_PLAIN, GCM)]
STREAMS = KINDS[:2]


@pytest.fixture(autouse=True)
def ring():
    keys.use(RING)
    yield
    keys.use(None)


@pytest.fixture
def make(create):
    def made(kind, name="dataset", **values):
        return create(name, **{"format": "seg", "step": "daily", "unique": ["reftime"],
                               "fields": {"station": "integer"}, **kind, **values})  # fmt: skip

    return made


def numbered(n, text="secret", day=0):
    return Datum(T + timedelta(days=day, seconds=n), {"station": n % 3, "kind": f"{text} meta"}, {"n": n, "text": text})


def numbers(dataset):
    return [each.data["n"] for each in dataset.query()]


def stored(dataset, name=SEGMENT):
    return (dataset.path / name).read_bytes()


def decrypted(content, secret=SHORT):
    """Return a segment of version 2 as if it were not encrypted, without ondisk."""
    version, count, options = struct.unpack_from("<III", content)
    assert (version, options & 1) == (2, 1)
    decryptor = Cipher(AES(secret), CTR(content[12:28])).decryptor()
    return struct.pack("<III", version, count, options & ~1) + decryptor.update(content[28:])


def iv_of(content):
    return Header.parse(content[:44]).iv


@pytest.mark.parametrize("kind", KINDS)
def test_data_come_back_with_the_keys_and_are_not_in_the_files(kind, make):
    with make(kind) as dataset:
        given = [numbered(n, day=n % 2) for n in range(200)]
        assert dataset.append(given).imported == 200
        assert dataset.append(given[:50]).duplicates == 50
        assert same([(each.metadata, each.data) for each in dataset.query()],
                    [(each.metadata, each.data) for each in sorted(given, key=lambda each: each.reftime)])  # fmt: skip
        (one,) = dataset.query(f"reftime:={T + timedelta(seconds=6):%Y-%m-%d %H:%M:%S}")
        assert one.data["n"] == 6
        assert dataset.read(one.location).data == one.data
        assert dataset.check(accurate=True).ok == 2
        for path in dataset.path.rglob("*"):
            if path.is_file() and path.suffix == ".seg":
                assert b"secret" not in path.read_bytes()
                assert b"timestamp" not in path.read_bytes()


@pytest.mark.parametrize("kind", KINDS)
def test_data_are_deleted_replaced_repacked_archived_and_found_again_without_an_index(kind, make):
    with make(kind, replace="yes") as dataset:
        dataset.append(numbered(n) for n in range(100))
        dataset.append([numbered(7, "newer")])
        dataset.delete("station:1")
        before = stored(dataset)
        assert dataset.repack().ok == 0
        assert iv_of(stored(dataset)) != iv_of(before)
        dataset.append([numbered(200)])
        left = [n for n in range(100) if n % 3 != 1] + [200]
        assert numbers(dataset) == left
        dataset.archive(SEGMENT)
        assert numbers(dataset) == left
        dataset.append([numbered(300)])
        dataset.archive(SEGMENT)  # merges
        assert numbers(dataset) == [*left, 300]
        dataset.unarchive(f".archive/last/{SEGMENT}")
        dataset.append([numbered(400)])
        assert dataset.check(accurate=True).ok == 1
        path = dataset.path
    lose_index(path)
    with ondisk.open(path) as dataset:
        dataset.fix()
        assert numbers(dataset) == [*left, 300, 400]
        assert dataset.summary().count == len(left) + 2


@pytest.mark.parametrize("kind", STREAMS)
def test_a_strict_reader_of_beats_reads_each_byte(kind, make):
    with make(kind) as dataset:
        for begin in range(0, 60, 20):
            dataset.append(numbered(n) for n in range(begin, begin + 20))
            assert [each[3]["n"] for each in beats_reader.read(decrypted(stored(dataset)))] == [*range(begin + 20)]
        dataset.delete("station:1")
        dataset.repack()
        left = [n for n in range(60) if n % 3 != 1]
        assert [each[3]["n"] for each in beats_reader.read(decrypted(stored(dataset)))] == left


@pytest.mark.parametrize("variant", ["v2-enc", "v2-enc-lz4"])
def test_files_of_beats_are_imported_and_read_in_place(variant, make):
    keys.use(KeyRing([Key(1, SHORT), Key(2, BEATS_KEY), Key(3, NEWER[:16])], "a test"))
    events = expected_events(variant, "2.seg")
    first, expected = events[0], [event.fields for event in sorted(events, key=lambda each: each.timestamp // 1000)]
    config = {"unique": [], "fields": {}, "step": "yearly"}
    with make({}, "imported", **config) as dataset:
        assert dataset.append_file(GOLDEN / variant / "2.seg").imported == 20
        assert same([each.data for each in dataset.query()], expected)
    with make({}, "adopted", **config) as dataset:
        year = datetime.fromtimestamp(first.timestamp / 1e9, UTC).year
        path = dataset.path / f"{year // 100:02}" / f"{year}.seg"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes((GOLDEN / variant / "2.seg").read_bytes())
        dataset.fix()
        assert same([each.data for each in dataset.query()], expected)


@pytest.mark.parametrize("variant", ["v2-enc", "v2-enc-lz4"])
def test_a_file_of_beats_is_not_imported_with_a_wrong_key(variant, make):
    with make({}, unique=[]) as dataset:
        with pytest.raises(AuthenticationFailed, match="the only key of 16 bytes"):
            dataset.append_file(GOLDEN / variant / "2.seg")
        keys.use(KeyRing())
        with pytest.raises(KeyMissing):
            dataset.append_file(GOLDEN / variant / "2.seg")
        assert dataset.summary().count == 0


# Without the keys


@pytest.mark.each
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("other", ["lost", "wrong"])
def test_without_the_right_keys_nothing_is_returned_and_nothing_is_changed(kind, other, make):
    with make(kind) as dataset:
        dataset.append(numbered(n) for n in range(20))
        dataset.delete("station:1")
        path, before = dataset.path, stored(dataset)
    keys.use(KeyRing() if other == "lost" else WRONG)
    error = KeyMissing if other == "lost" else AuthenticationFailed
    with ondisk.open(path) as dataset:
        with pytest.raises(error):
            next(iter(dataset.query()))
        with pytest.raises(error):
            dataset.repack()
        assert numbers_known(dataset) == 13
        assert dataset.check().ok == 0  # it is DIRTY, and nothing else
        assert "CORRUPTED" not in str(dataset.check())
    lose_index(path)
    with ondisk.open(path) as dataset, pytest.raises(error):
        dataset.fix()
    assert before == (path / SEGMENT).read_bytes()
    keys.use(RING)
    with ondisk.open(path) as dataset:
        dataset.fix()
        assert numbers(dataset) == [*range(20)]  # the lost index knew what was deleted


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("known", [KeyRing(), WRONG], ids=["lost", "wrong"])
def test_maintenance_without_the_right_keys_moves_and_records_nothing(kind, known, make):
    error = AuthenticationFailed if known is WRONG else KeyMissing
    with make(kind) as dataset:
        dataset.append(numbered(n, day=n % 2) for n in range(20))
        dataset.archive(SEGMENT)
        dataset.append(numbered(n, day=n % 2) for n in range(20, 40))
        dataset.delete(f"reftime:={T + timedelta(seconds=20):%Y-%m-%d %H:%M:%S}")
        path = dataset.path
    (path / NEXT_DAY).touch()
    before = files_in(path)
    keys.use(known)
    result = maintain(path, max_duration=10)
    assert type(result.error) is error
    assert [each.state for each in result.findings] == [State.DIRTY]
    assert (result.lost, result.kept) == (0, [])
    with ondisk.open(path) as dataset:
        for act in (partial(dataset.archive, SEGMENT), partial(dataset.unarchive, f".archive/last/{SEGMENT}")):
            with pytest.raises(error):
                act()
        with pytest.raises(error):
            dataset.repack(rewrite=True)
    assert files_in(path) == before
    keys.use(RING)
    with ondisk.open(path) as dataset:
        assert sorted(numbers(dataset)) == [n for n in range(40) if n != 20]
        assert dataset.check(accurate=True).ok == 2


def files_in(path):
    """Return all segments of a dataset, with those of its archive and what is in quarantine."""
    return {str(each): each.read_bytes() for each in path.rglob("*") if each.is_file() and ".seg" in each.name}


@pytest.mark.parametrize("verb", ["fix", "repack"])
def test_a_segment_whose_key_is_lost_does_not_keep_others_from_being_mended(verb, make):
    with make(GCM) as dataset:
        dataset.append([numbered(1), numbered(2)])
        keys.use(KeyRing([Key(2, LONG), Key(3, NEWER)]))
        dataset.append([numbered(11, day=1), numbered(12, day=1)])
        keys.use(KeyRing([Key(3, NEWER)]))
        dataset.delete("station:2")
        path = dataset.path
    if verb == "fix":
        lose_index(path)
    with ondisk.open(path) as dataset:
        with pytest.raises(KeyMissing, match="key 2") as caught:
            getattr(dataset, verb)()
        done = {each.segment: (each.failed, each.action) for each in caught.value.context["report"]}
        assert done == {SEGMENT: (True, None), NEXT_DAY: (False, "rescan" if verb == "fix" else "repack")}
        keys.use(KeyRing([Key(2, LONG), Key(3, NEWER)]))
        getattr(dataset, verb)()
        assert numbers(dataset) == ([1, 2, 11, 12] if verb == "fix" else [1, 12])


def numbers_known(dataset):
    return dataset.summary().count


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_appended_without_a_key_to_encrypt_it(kind, make):
    with make(kind) as dataset:
        keys.use(KeyRing())
        with pytest.raises(KeyMissing):
            dataset.append([numbered(1)])
        assert dataset.summary().count == 0
        keys.use(RING)
        assert dataset.append([numbered(1)]).imported == 1
        keys.use(KeyRing())
        with pytest.raises(KeyMissing):
            dataset.append([numbered(2)])
        keys.use(RING)
        assert numbers(dataset) == [1]
        assert dataset.append([numbered(2)]).imported == 1
        assert numbers(dataset) == [1, 2]


@pytest.mark.check
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("state", ["whole", "torn", "index lost"])
def test_nothing_is_appended_to_a_segment_with_a_wrong_key_of_the_same_number_or_none(kind, state, make):
    with make(kind) as dataset:
        dataset.append(numbered(n) for n in range(10))
        path = dataset.path
    if state == "torn":
        with (path / SEGMENT).open("ab") as file:
            file.write(b"torn")
    elif state == "index lost":
        lose_index(path)
    before = files_in(path)
    for known, error in ((WRONG, AuthenticationFailed), (KeyRing(), KeyMissing)):
        keys.use(known)
        with ondisk.open(path) as dataset:
            with pytest.raises(error, match=SEGMENT):
                dataset.append([numbered(50), numbered(50, day=1)])
            assert not dataset.quarantine.kept
        assert files_in(path) == before
    keys.use(RING)
    with ondisk.open(path) as dataset:
        dataset.fix()
        assert dataset.append([numbered(50)]).imported == 1
        assert numbers(dataset) == [*range(10), 50]


def test_nothing_is_appended_to_a_queue_with_a_wrong_key_of_the_same_number(make):
    with make(GCM, step="sequence") as dataset:
        dataset.append([numbered(1)])
        keys.use(WRONG)
        with pytest.raises(AuthenticationFailed, match=r"0\.seg"):
            dataset.append([numbered(3)])
        keys.use(RING)
        assert numbers(dataset) == [1]


@pytest.mark.parametrize("older", [[], [Key(2, NEWER)]], ids=["lost", "wrong"])
def test_a_newer_key_continues_a_segment_of_an_older_one_that_is_lost_or_wrong(older, make):
    with make(GCM) as dataset:
        dataset.append(numbered(n) for n in range(10))
        keys.use(KeyRing([*older, Key(3, SHORT + SHORT)]))
        dataset.append([numbered(20)])
        keys.use(KeyRing([Key(2, LONG), Key(3, SHORT + SHORT)]))
        assert numbers(dataset) == [*range(10), 20]


# Rotation


def test_a_segment_whose_file_has_a_second_name_gets_a_new_iv(make, tmp_path):
    """The other name may be that of another dataset, which would go on with the same keystream."""
    with make(CTR_PLAIN) as dataset:
        dataset.append([numbered(1)])
        (name,) = {each.location.segment for each in dataset.query()}
        before = (dataset.path / name).read_bytes()[12:28]
        os.link(dataset.path / name, tmp_path / "other")
        dataset.append([numbered(2)])
        assert (dataset.path / name).read_bytes()[12:28] != before
        assert len([*dataset.query()]) == 2


def test_a_repack_encrypts_with_the_newest_key(make):
    with make(GCM) as dataset:
        dataset.append(numbered(n) for n in range(20))
        assert numbers(dataset) == [*range(20)]
        keys.use(KeyRing([Key(2, LONG), Key(3, NEWER)]))
        dataset.append(numbered(n) for n in range(20, 30))
        assert numbers(dataset) == [*range(30)]  # also from the open file
        dataset.delete("station:1")
        dataset.repack()
        keys.use(KeyRing([Key(3, NEWER)]))
        assert len(numbers(dataset)) == 20


# Exchanged files


def exchange(one, two):
    middle = one.with_name("middle")
    one.rename(middle)
    two.rename(one)
    middle.rename(two)


def test_a_segment_of_another_dataset_is_noticed_by_an_accurate_check_and_by_another_key(make):
    """Nothing else may show it, see docs/encryption.md: somebody has set back the time of the file."""
    with make(GCM, "other") as dataset:
        dataset.append(numbered(n, "other") for n in range(3))
        theirs = stored(dataset)
    with make(GCM) as dataset:
        dataset.append(numbered(n, "owned") for n in range(3))
    path = dataset.path / SEGMENT
    before = path.stat()
    path.write_bytes(theirs)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_size == before.st_size
    with ondisk.open(dataset.path) as dataset:
        assert [each.state for each in dataset.check(accurate=True).findings] == [State.CORRUPTED]
    keys.use(WRONG)
    with ondisk.open(dataset.path) as dataset, pytest.raises(AuthenticationFailed):
        [*dataset.query()]
    os.utime(path)
    keys.use(RING)
    with ondisk.open(dataset.path) as dataset, pytest.raises(SegmentCorrupt, match="is not the file"):
        [*dataset.query()]


def test_segments_that_were_exchanged_or_renamed_are_noticed(make):
    with make(GCM) as dataset:
        dataset.append(numbered(n, day=day) for n in range(10) for day in (0, 1))
        path = dataset.path
    exchange(path / SEGMENT, path / NEXT_DAY)
    for is_lost in (False, True):
        if is_lost:
            lose_index(path)
        with ondisk.open(path) as dataset:
            if not is_lost:
                with pytest.raises(ondisk.OndiskError):
                    [*dataset.query()]
            with pytest.raises(AuthenticationFailed, match="another segment"):
                dataset.fix()
    exchange(path / SEGMENT, path / NEXT_DAY)
    with ondisk.open(path) as dataset:
        dataset.fix()
        assert len(numbers(dataset)) == 20


@pytest.mark.parametrize(("at", "value"), [(4, 2), (5, 9)], ids=["kind", "key"])
def test_a_changed_kind_with_a_right_checksum_is_damage_and_a_changed_key_number_may_be_right(make, at, value):
    with make(GCM) as dataset:
        dataset.append(numbered(n) for n in range(10))
        place = [*dataset.query()][3].location
        path, content = dataset.path, bytearray(stored(dataset))
    content[place.offset + at] = value
    end = place.offset + place.size - 8
    content[end : end + 4] = zlib.crc32(content[place.offset : end]).to_bytes(4, "little")
    (path / SEGMENT).write_bytes(content)
    lose_index(path)
    with ondisk.open(path) as dataset:
        if value != 9:
            assert sum(each.lost for each in dataset.fix()) == 1
            assert numbers(dataset) == [n for n in range(10) if n != 3]
            return
        for ring, error in ((RING, KeyMissing), (KeyRing([Key(2, LONG), Key(9, NEWER)]), AuthenticationFailed)):
            keys.use(ring)
            with pytest.raises(error, match="key 9"):  # nothing is decided without the right one
                dataset.fix()
            assert dataset.summary().count == 0
            assert stored(dataset) == content


@pytest.mark.parametrize("kind", KINDS)
def test_a_datum_that_was_stored_after_the_index_was_lost_counts_and_not_an_older_one_in_a_file(make, kind):
    with make(kind, unique=["station"]) as dataset:
        dataset.append([numbered(0)])
        path = dataset.path
    lose_index(path)
    with ondisk.open(path) as dataset:
        dataset.append([numbered(3, day=1)])
        dataset.fix()
        assert numbers(dataset) == [3]


def test_a_fix_says_that_a_segment_in_an_encrypted_dataset_is_plain(make, tmp_path):
    with make({}, name="plain", compression="none") as dataset:
        dataset.append(numbered(n) for n in range(3))
        content = stored(dataset)
    with make(GCM) as dataset:
        dataset.append(numbered(n, day=1) for n in range(3))
        (dataset.path / SEGMENT).write_bytes(content)
        report = {each.segment: each.reasons for each in dataset.fix()}
        assert "it is not encrypted: whoever wrote it needed no key" in report[SEGMENT]
        assert sorted(numbers(dataset)) == [0, 0, 1, 1, 2, 2]


def test_a_dry_run_of_a_rewrite_tells_what_is_plain_from_what_gets_the_newest_key(make):
    with make({}, compression="none") as dataset:
        dataset.append([numbered(1)])
        path = dataset.path
    text = (path / "dataset.toml").read_text()
    (path / "dataset.toml").write_text('encryption = "aes-256-gcm"\n' + text.replace('compression = "none"\n', ""))
    with ondisk.open(path) as dataset:
        dataset.append([numbered(2, day=1)])
        reasons = {each.segment: each.reasons for each in dataset.check(rewrite=True)}
    assert reasons[SEGMENT] == ("it is stored in another way than dataset.toml says",)
    assert reasons[NEXT_DAY] == ("it is encrypted again, with the newest key",)


def test_data_that_changed_places_are_noticed_by_the_query_and_reported_by_fix(make):
    with make(GCM) as dataset:
        dataset.append(numbered(n) for n in range(10, 20))
        one, two = (each.location for each in [*dataset.query()][3:5])
        path, content = dataset.path, stored(dataset)
    assert one.size == two.size
    changed = bytearray(content)
    changed[one.offset : one.offset + one.size] = content[two.offset : two.offset + two.size]
    changed[two.offset : two.offset + two.size] = content[one.offset : one.offset + one.size]
    found = (path / SEGMENT).stat()
    (path / SEGMENT).write_bytes(changed)
    os.utime(path / SEGMENT, ns=(found.st_mtime_ns, found.st_mtime_ns))
    with ondisk.open(path) as dataset:
        got = []
        with pytest.raises(AuthenticationFailed, match=SEGMENT):
            got.extend(each.data["n"] for each in dataset.query())
        assert got == [10, 11, 12]
        assert "CORRUPTED" in str(dataset.check(accurate=True))
    lose_index(path)
    with ondisk.open(path) as dataset:
        assert "does not authenticate" in str(dataset.fix())
        assert numbers(dataset) == [10, 11, 12, 15, 16, 17, 18, 19]


# No keystream is used twice


def used_twice(one, two):
    """Return whether two versions of a file have different bytes at one place of one keystream."""
    if iv_of(one) != iv_of(two):
        return False
    size = min(len(one), len(two))
    return one[28:size] != two[28:size]


KILLED = """
import os, signal, sys
from datetime import UTC, datetime
import ondisk
from ondisk.index.transaction import Transaction

Transaction.commit = lambda self: os.kill(os.getpid(), signal.SIGKILL)
with ondisk.open(sys.argv[1]) as dataset:
    dataset.append([ondisk.Datum(datetime(2026, 11, 20, 7, tzinfo=UTC), {}, {"n": 99, "text": "never acknowledged"})])
"""


@pytest.mark.each
@pytest.mark.parametrize("kind", STREAMS)
@pytest.mark.parametrize("after", ["killed", "undone", "torn"])
def test_a_file_whose_tail_was_cut_is_rewritten_with_another_iv(kind, after, make, monkeypatch):
    with make(kind) as dataset:
        dataset.append(numbered(n) for n in range(10))
        path, committed = dataset.path, stored(dataset)
        found = (path / SEGMENT).stat()
    if after == "killed":
        environment = {**os.environ, "ONDISK_KEYS": f"1 {SHORT.hex()}"}
        done = subprocess.run([sys.executable, "-c", KILLED, path], env=environment, check=False)
        assert done.returncode == -signal.SIGKILL
        left = (path / SEGMENT).read_bytes()
    elif after == "undone":
        with ondisk.open(path) as dataset, monkeypatch.context() as patch:

            def fail(*_):
                nonlocal left
                left = stored(dataset)
                raise OSError("no commit")

            left = b""
            patch.setattr("ondisk.index.transaction.Transaction.commit", fail)
            with pytest.raises(OSError, match="no commit"):
                dataset.append([numbered(99, "never acknowledged")])
        assert stored_at(path) != left
    else:
        left = committed + b"\0" * 7
        (path / SEGMENT).write_bytes(left)
    assert len(left) > len(committed)
    os.utime(path / SEGMENT, ns=(found.st_mtime_ns, found.st_mtime_ns))  # as with a coarse clock
    with ondisk.open(path) as dataset:
        assert numbers(dataset) == [*range(10)]
        dataset.append([numbered(50, "other")])
        assert numbers(dataset) == [*range(10), 50]
        content = stored(dataset)
        assert not used_twice(left, content)
        assert iv_of(content) != iv_of(committed)
        assert [each[3]["n"] for each in beats_reader.read(decrypted(content))] == [*range(10), 50]
        dataset.append([numbered(60)])
        assert iv_of(stored(dataset)) == iv_of(content)  # what was not cut is continued
        assert dataset.check(accurate=True).ok == 1


def stored_at(path):
    return (path / SEGMENT).read_bytes()


@pytest.mark.parametrize("kind", STREAMS)
def test_a_file_that_was_put_back_is_rewritten_before_it_grows(kind, make):
    """An older state of it may have been continued with other data."""
    with make(kind) as dataset:
        dataset.append(numbered(n) for n in range(10))
        content = stored(dataset)
        (dataset.path / SEGMENT).unlink()
        (dataset.path / SEGMENT).write_bytes(content)
        dataset.append([numbered(50)])
        assert iv_of(stored(dataset)) != iv_of(content)
        assert numbers(dataset) == [*range(10), 50]


@pytest.mark.each
@pytest.mark.parametrize("kind", STREAMS)
@pytest.mark.parametrize("what", ["undone", "put back", "lost index"])
def test_a_fix_in_between_does_not_hide_that_a_keystream_was_used(kind, what, make, monkeypatch):
    with make(kind) as dataset:
        dataset.append(numbered(n) for n in range(10))
        path, before = dataset.path, stored(dataset)
        if what == "undone":
            with monkeypatch.context() as patch:
                patch.setattr("ondisk.index.transaction.Transaction.commit", lambda _: 1 / 0)
                with pytest.raises(ZeroDivisionError):
                    dataset.append([numbered(99, "never acknowledged")])
        elif what == "lost index":
            dataset.append([numbered(99, "lost with the file")])
    if what != "undone":
        (path / SEGMENT).unlink()
        (path / SEGMENT).write_bytes(before)  # an older state, from a backup
    if what == "lost index":
        lose_index(path)
    with ondisk.open(path) as dataset:
        dataset.fix()
        dataset.append([numbered(50)])
        assert iv_of(stored(dataset)) != iv_of(before)
        assert numbers(dataset)[-1] == 50
        after = stored(dataset)
        dataset.append([numbered(60)])
        assert iv_of(stored(dataset)) == iv_of(after)


@pytest.mark.parametrize("kind", STREAMS)
def test_no_two_states_of_a_file_show_what_the_other_says(kind, make):
    states = []
    with make(kind) as dataset:
        for n in range(30):
            dataset.append([numbered(n)])
            states.append(stored(dataset))
            if n % 10 == 9:
                dataset.delete(f"reftime:={T + timedelta(seconds=n):%Y-%m-%d %H:%M:%S}")
                dataset.repack()
                states.append(stored(dataset))
    assert not any(used_twice(one, two) for one in states for two in states)
    assert len({iv_of(each) for each in states}) == 4


@pytest.mark.parametrize("kind", STREAMS)
def test_an_exchange_rewrites_a_cut_file_first(kind, make):
    with make(kind, step="yearly") as dataset:
        dataset.append(numbered(n) for n in range(10))
        before = stored(dataset, "20/2026.seg")
        with (dataset.path / "20/2026.seg").open("ab") as file:
            file.write(b"torn")
        assert dataset.exchange(dataset.state(), [dataset.fields.station == 1], [numbered(50)]) is not None
        assert iv_of(stored(dataset, "20/2026.seg")) != iv_of(before)
        assert numbers(dataset) == [0, 2, 3, 5, 6, 8, 9, 50]


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_from_before_a_repack_can_be_read_again(kind, make):
    with make(kind) as dataset:
        dataset.append(numbered(n) for n in range(1000))
        old = stored(dataset)
        dataset.delete("reftime: <2026-11-20 06:05")
        dataset.repack()
        (dataset.path / SEGMENT).write_bytes(old)
        (done,) = dataset.fix()
        assert (done.action, done.returned, done.lost) == ("rescan", 300, 1)
        assert "encrypted differently" in done.reasons[-1]
        assert f"fix {dataset.path} --acknowledge --yes" in done.reasons[-1]
        assert numbers(dataset) == [*range(1000)]
        assert dataset.fix().is_clean
        assert dataset.check(accurate=True).is_clean


@pytest.mark.parametrize("kind", STREAMS)
def test_nothing_is_appended_to_a_cut_file_that_the_index_does_not_know(kind, make):
    with make(kind) as dataset:
        dataset.append(numbered(n) for n in range(10))
        path, content = dataset.path, stored(dataset)
    lose_index(path)
    with ondisk.open(path) as dataset:
        with pytest.raises(StateError, match="keystream"):
            dataset.append([numbered(50)])
        assert stored(dataset) == content
        dataset.fix()
        dataset.append([numbered(50)])
        assert numbers(dataset) == [*range(10), 50]


def test_ctr_needs_version_2_and_gcm_needs_no_compression(make):
    with pytest.raises(ConfigError):
        make({**GCM, "compression": "lz4"})
    with pytest.raises(ConfigError):
        make({**CTR_PLAIN, "version": 1})


# Staged data


def staged(dataset, data, name="0"):
    """Stage data as an executor does; leave the files."""
    with Directory.open(dataset.path) as directory, Stage(directory, dataset.config, "job", name) as stage:
        format = find("seg")(dataset.config)
        stage.add(format.encode(data), format)
        return stage.finish()


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_staged_is_encrypted_too_and_committed_with_and_without_duplicates(kind, make):
    with make(kind) as dataset:
        dataset.append([numbered(5)])
        for begin in (5, 10, 20):
            one = staged(dataset, [numbered(n) for n in range(begin, begin + 5)])
            content = (dataset.path / ".staged/job/0.data").read_bytes()
            assert b"secret" not in content
            assert b"timestamp" not in content
            dataset.append_staged("job", [one])
        assert numbers(dataset) == [*range(5, 15), *range(20, 25)]
        assert dataset.check(accurate=True).ok == 1


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_staged_or_committed_without_keys(kind, make):
    with make(kind) as dataset:
        one = staged(dataset, [numbered(1)])
        keys.use(KeyRing())
        with pytest.raises(KeyMissing):
            dataset.append_staged("job", [one])
        with pytest.raises(KeyMissing):
            staged(dataset, [numbered(1)])
        assert [*dataset.path.glob(".staged/*")] == []


@pytest.mark.parametrize("kind", STREAMS)
def test_a_commit_of_staged_data_rewrites_a_cut_file_first(kind, make):
    with make(kind) as dataset:
        dataset.append(numbered(n) for n in range(10))
        one, before = staged(dataset, [numbered(50)]), stored(dataset)
        with (dataset.path / SEGMENT).open("ab") as file:
            file.write(b"torn")
        assert dataset.append_staged("job", [one]).imported == 1
        assert iv_of(stored(dataset)) != iv_of(before)
        assert numbers(dataset) == [*range(10), 50]


def test_data_of_other_formats_are_refused_by_an_encrypted_dataset(make, tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text('{"reftime": "2026-11-20T06:00:00Z"}\n')
    with make(GCM) as dataset, pytest.raises(InvalidInput, match="cannot be"):
        dataset.append_file(path)


# Checking without keys


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("known", "error"), [(KeyRing(), KeyMissing), (WRONG, AuthenticationFailed)], ids=["lost", "wrong"]
)
def test_an_accurate_check_without_the_right_keys_compares_checksums_and_says_so(kind, known, error, make):
    with make(kind) as dataset:
        dataset.append(numbered(n, day=n % 2) for n in range(20))
        path = dataset.path
        assert dataset.check(accurate=True).ok == 2
        keys.use(known)
        with pytest.raises(error, match="the contents of 2 segments were not authenticated") as caught:
            dataset.check(accurate=True)
        assert caught.value.context["report"].ok == 2
        found = (path / SEGMENT).stat()
        content = bytearray(stored(dataset))
        content[-20] ^= 1
        (path / SEGMENT).write_bytes(content)
        os.utime(path / SEGMENT, ns=(found.st_mtime_ns, found.st_mtime_ns))
        with pytest.raises(error, match="the contents of 1 segment were") as caught:
            dataset.check(accurate=True)
        assert "checksum" in str(caught.value.context["report"])


@pytest.mark.parametrize("kind", KINDS)
def test_a_check_that_records_what_it_reads_records_nothing_about_what_it_cannot_decrypt(kind, make):
    with make(kind) as dataset:
        dataset.append(numbered(n) for n in range(20))
        for other, error in ((KeyRing(), KeyMissing), (WRONG, AuthenticationFailed)):
            keys.use(other)
            with pytest.raises(error):
                dataset.check(max_duration=10)
        keys.use(RING)
        assert dataset.check().ok == 1
        assert numbers(dataset) == [*range(20)]


# Another configuration


def configured(path, **values):
    """Configure a dataset again; None removes a key."""
    config = path / "dataset.toml"
    lines = [line for line in config.read_text().splitlines() if line.split(" ")[0] not in values]
    more = [f'{key} = "{value}"' for key, value in values.items() if value is not None]
    config.write_text("\n".join([*more, *lines]) + "\n")


PLAIN = {"encryption": None, "compression": "none"}
WAYS = [({}, GCM), ({}, CTR_PLAIN), (CTR_LZ4, GCM), (GCM, CTR_LZ4), (GCM, PLAIN), (CTR_PLAIN, PLAIN)]


@pytest.mark.parametrize(("before", "after"), WAYS)
@pytest.mark.parametrize("how", ["append", "repack", "staged"])
def test_segments_are_converted_to_the_configured_encryption(before, after, how, make):
    with make(before) as dataset:
        dataset.append(numbered(n) for n in range(20))
        path = dataset.path
    configured(path, **{"encryption": None, "compression": None} | after)
    with ondisk.open(path) as dataset:
        assert numbers(dataset) == [*range(20)]
        match how:
            case "append":
                dataset.append([numbered(50)])
            case "staged" if after is PLAIN and before is CTR_PLAIN:  # its data would not be copied as they are
                with pytest.raises(StateError, match="not stored as"):
                    dataset.append_staged("job", [staged(dataset, [numbered(50)])])
                return
            case "staged":
                dataset.append_staged("job", [staged(dataset, [numbered(50)])])
            case "repack":
                dataset.repack(rewrite=True)
                dataset.append([numbered(50)])
        assert numbers(dataset) == [*range(20), 50]
        (one,) = dataset.query("reftime:=2026-11-20 06:00:50")
        assert dataset.read(one.location).data["n"] == 50
        assert dataset.check(accurate=True).ok == 1
        content = stored(dataset)
        if after is GCM:
            assert content[0:2] == b"\0\1"
        elif after is not PLAIN:
            assert content[8] & 1
        elif how == "repack":
            assert not content[8] & 1
        assert (b"secret" in content) == (content[8] == 0)
    lose_index(path)
    with ondisk.open(path) as dataset:
        dataset.fix()
        assert numbers(dataset) == [*range(20), 50]


def test_rewriting_all_segments_rotates_the_keys(make):
    with make(GCM) as dataset:
        dataset.append(numbered(n, day=n % 2) for n in range(20))
        keys.use(KeyRing([Key(2, LONG), Key(3, NEWER)]))
        dataset.repack(rewrite=True)
        keys.use(KeyRing([Key(3, NEWER)]))
        assert len(numbers(dataset)) == 20


# Damage


def rotten(path, at, size=3):
    """Change bytes of a segment as a bad disk does: nobody wrote the file."""
    found = (path / SEGMENT).stat()
    content = bytearray((path / SEGMENT).read_bytes())
    content[at : at + size] = bytes(byte ^ 0x55 for byte in content[at : at + size])
    (path / SEGMENT).write_bytes(content)
    os.utime(path / SEGMENT, ns=(found.st_mtime_ns, found.st_mtime_ns))


@pytest.mark.parametrize("kind", [CTR_PLAIN, GCM], ids=["ctr", "gcm"])
@pytest.mark.parametrize("where", ["length", "payload", "checksum", "length again"])
def test_damage_is_reported_and_everything_else_is_read_and_salvaged(kind, where, make):
    with make(kind) as dataset:
        dataset.append(numbered(n) for n in range(20))
        path, place = dataset.path, [*dataset.query()][7].location
    end = place.offset + place.size
    rotten(path, {"length": place.offset, "payload": end - 30, "checksum": end - 8, "length again": end - 4}[where])
    whole = [n for n in range(20) if n != 7]
    with ondisk.open(path) as dataset:
        got = []
        with pytest.raises(ondisk.OndiskError, match=SEGMENT):
            got.extend(each.data["n"] for each in dataset.query())
        assert got == [*range(7)]
        assert "CORRUPTED" in str(dataset.check(accurate=True))
    lose_index(path)
    with ondisk.open(path) as dataset:
        assert sum(each.lost for each in dataset.fix()) == 1
        assert numbers(dataset) == whole
        dataset.fix(salvage=[SEGMENT])
        assert numbers(dataset) == whole
        dataset.append([numbered(50)])
        assert numbers(dataset) == [*whole, 50]
        assert dataset.check(accurate=True).ok == 1


def test_whole_data_after_damage_are_not_cut_off_by_an_append(make):
    with make(GCM) as dataset:
        dataset.append(numbered(n) for n in range(20))
        path, place = dataset.path, [*dataset.query()][7].location
        content = bytearray(stored(dataset)[:-5])
    content[place.offset] ^= 0xFF
    (path / SEGMENT).write_bytes(content)
    lose_index(path)
    with ondisk.open(path) as dataset:
        with pytest.raises(SegmentCorrupt, match="more than a torn end"):
            dataset.append([numbered(50)])
        dataset.fix()
        assert numbers(dataset) == [n for n in range(19) if n != 7]


@pytest.mark.parametrize(
    ("head", "error"),
    [
        (struct.pack("<III", 2, 5, 0), None),
        (struct.pack("<III", 2, 5, 1) + bytes(16), AuthenticationFailed),  # another key may be right
        (struct.pack("<I", 0), None),
    ],
    ids=["plain", "CTR", "JSON"],
)
def test_a_header_of_another_kind_makes_nothing_readable(head, error, make):
    """Whoever changes the header cannot make ondisk take what is encrypted for something else."""
    with make(GCM) as dataset:
        dataset.append(numbered(n) for n in range(5))
        path, content = dataset.path, stored(dataset)
    (path / SEGMENT).write_bytes(head + content[len(head) :])
    with ondisk.open(path) as dataset:
        with pytest.raises(ondisk.OndiskError):
            [*dataset.query()]
        if error is None:
            assert [State.CORRUPTED in each.state for each in dataset.fix()] == [True]
        else:
            with pytest.raises(error):
                dataset.fix()
        assert dataset.summary().count == 5  # none was forgotten
    (path / SEGMENT).write_bytes(content)
    with ondisk.open(path) as dataset:
        dataset.fix()
        assert numbers(dataset) == [*range(5)]

"""Keys come from a private file, a variable or a command, and no message shows a secret."""

from __future__ import annotations

import os
import pickle
import sys

import pytest

from ondisk import keys
from ondisk.errors import ConfigError, KeyMissing, OndiskError
from ondisk.keys import Key, KeyRing

SHORT, LONG = bytes(range(16)), bytes(range(32))
LINES = f"# made in 2026\n1 {SHORT.hex()}\n\n7 {LONG.hex().upper()}\n  9\t{SHORT[::-1].hex()}  \n"


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    for name in ("ONDISK_KEY_FILE", "ONDISK_KEYS", "ONDISK_KEY_COMMAND"):
        monkeypatch.delenv(name, raising=False)
    keys.use(None)
    yield monkeypatch
    keys.use(None)


def key_file(tmp_path, text=LINES, mode=0o600):
    path = tmp_path / "keys"
    path.write_text(text, encoding="utf-8")
    path.chmod(mode)
    return path


def test_a_ring_has_the_keys_of_its_lines():
    ring = KeyRing.parse(LINES, "a test")
    assert ring.secret(1, 16) == SHORT
    assert ring.secret(7, 32) == LONG
    assert ring.newest(16).id == 9
    assert ring.newest(32).id == 7
    assert [each.secret for each in ring.of_size(16)] == [SHORT[::-1], SHORT]


@pytest.mark.parametrize("how", ["file", "variable", "command", "argument", "ring"])
def test_every_source_returns_the_same_keys(how, tmp_path, environment):
    path = key_file(tmp_path)
    match how:
        case "file":
            environment.setenv("ONDISK_KEY_FILE", str(path))
        case "variable":
            environment.setenv("ONDISK_KEYS", LINES.replace("\n", ";"))
        case "command":
            environment.setenv("ONDISK_KEY_COMMAND", f"cat '{path}'")
        case "argument":
            keys.use(path)
        case "ring":
            keys.use(KeyRing.parse(LINES, "a test"))
    assert [each.secret for each in keys.current().of_size(16)] == [SHORT[::-1], SHORT]


def test_a_changed_environment_is_read_again(environment):
    environment.setenv("ONDISK_KEYS", f"1 {SHORT.hex()}")
    assert keys.current().secret(1, 16) == SHORT
    environment.setenv("ONDISK_KEYS", f"2 {SHORT.hex()}")
    with pytest.raises(KeyMissing):
        keys.current().secret(1, 16)


def test_only_one_source_may_be_set(tmp_path, environment):
    environment.setenv("ONDISK_KEY_FILE", str(key_file(tmp_path)))
    environment.setenv("ONDISK_KEYS", LINES)
    with pytest.raises(ConfigError, match="ONDISK_KEY_FILE and ONDISK_KEYS are set"):
        keys.current()


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o601, 0o644])
def test_a_file_that_others_may_use_is_refused(mode, tmp_path):
    with pytest.raises(ConfigError, match=f"has the mode 0{mode:o}") as caught:
        keys.use(key_file(tmp_path, mode=mode))
    assert "chmod 600" in caught.value.hint


@pytest.mark.parametrize("mode", [0o600, 0o400])
def test_a_private_file_is_read(mode, tmp_path):
    keys.use(key_file(tmp_path, mode=mode))
    assert keys.current().newest(16).id == 9


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_file_of_another_user_is_refused(tmp_path):
    path = key_file(tmp_path)
    os.chown(path, 12345, -1)
    with pytest.raises(ConfigError, match="belongs to the user 12345"):
        keys.use(path)


def test_keys_can_come_through_a_pipe(tmp_path):
    """As with --key-file <(pass show ondisk)."""
    reading, writing = os.pipe()
    os.write(writing, LINES.encode())
    os.close(writing)
    try:
        keys.use(f"/dev/fd/{reading}")
    finally:
        os.close(reading)
    assert keys.current().newest(32).id == 7


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (f"1 {SHORT.hex()}\n1 {LONG.hex()}", "two keys have the number 1"),
        (f"0 {SHORT.hex()}", "the number of a key must be"),
        (f"4294967296 {SHORT.hex()}", "the number of a key must be"),
        (f"1 {SHORT.hex()}00", "key 1 has 17 bytes"),
        (f"1 {SHORT.hex()}0", "line 1, is not a key"),
        (SHORT.hex(), "line 1, is not a key"),
        (f"# x\n{SHORT.hex()} 1", "line 2, is not a key"),
        (f"1 {SHORT.hex()} # mine", "line 1, is not a key"),
        ("1 " + "ä" * 32, "line 1, is not a key"),
    ],
)
def test_what_is_no_key_is_refused_without_showing_it(text, problem, tmp_path):
    with pytest.raises(ConfigError, match=problem) as caught:
        keys.use(key_file(tmp_path, text))
    shown = f"{caught.value}{caught.value.context}{caught.value!r}"
    assert SHORT.hex()[:8] not in shown
    assert "ä" not in shown


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        (f"{sys.executable} -c 'import sys; print(\"secret\"); sys.exit(3)'", "ended with 3"),
        ("/does/not/exist", "No such file"),
        ("'", "ValueError"),
        (f"{sys.executable} -c 'print(\"secret\")'", "line 1, is not a key"),
        (f"{sys.executable} -c 'import os; os.write(1, b\"\\xff\")'", "is not text"),
    ],
)
def test_a_command_that_fails_is_an_error_without_its_output(command, problem, environment):
    environment.setenv("ONDISK_KEY_COMMAND", command)
    with pytest.raises(ConfigError, match=problem) as caught:
        keys.current()
    assert "secret" not in str(caught.value)


def test_a_command_that_fails_is_not_run_again_at_once(environment, tmp_path, monkeypatch):
    runs, command = tmp_path / "runs", tmp_path / "command"
    command.write_text(f"#!/bin/sh\necho run >> {runs}\nexit 3\n")
    command.chmod(0o700)
    environment.setenv("ONDISK_KEY_COMMAND", str(command))
    monkeypatch.setattr(keys, "_PAUSE", 3600)
    for _ in range(20):
        with pytest.raises(ConfigError, match="ended with 3"):
            keys.current()
    assert runs.read_text() == "run\n"
    command.write_text(f"#!/bin/sh\necho 1 {SHORT.hex()}\n")
    with pytest.raises(ConfigError, match="ended with 3"):
        keys.current()
    monkeypatch.setattr(keys, "_PAUSE", 0)
    assert [each.secret for each in keys.current().of_size(16)] == [SHORT]


def test_the_command_is_run_without_a_shell(environment, tmp_path):
    environment.setenv("ONDISK_KEY_COMMAND", f"echo 1 {SHORT.hex()} ; touch {tmp_path / 'x'}")
    with pytest.raises(ConfigError):
        keys.current()
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("make", [lambda path: path / "missing", lambda path: path, lambda path: "/dev/zero"])
def test_what_is_no_key_file_is_refused(make, tmp_path):
    with pytest.raises(ConfigError):
        keys.use(make(tmp_path))


@pytest.mark.parametrize(
    "ask",
    [
        lambda ring: ring.secret(1, 16),
        lambda ring: ring.newest(32),
        lambda ring: ring.of_size(16),
    ],
)
def test_a_missing_key_is_an_error_with_a_code_of_its_own(ask):
    with pytest.raises(KeyMissing) as caught:
        ask(keys.current())
    assert caught.value.exit_code == 35
    assert "--key-file" in caught.value.hint
    again: OndiskError = pickle.loads(pickle.dumps(caught.value))
    assert str(again) == str(caught.value)


def test_a_key_of_another_length_is_missing():
    with pytest.raises(KeyMissing, match="another length"):
        KeyRing([Key(1, SHORT)], "a test").secret(1, 32)


def test_no_representation_shows_a_secret():
    ring = KeyRing.parse(LINES, "a test")
    assert repr(ring) == "KeyRing([1, 7, 9], source='a test')"
    assert repr(ring.newest(16)) == "Key(id=9)"
    assert str(ring.newest(32)) == "Key(id=7)"

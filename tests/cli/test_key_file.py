"""Keys on the command line: each command that reads or writes data takes them, and says clearly what is missing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import ondisk
from ondisk import Datum, keys
from ondisk.cli import main

T = datetime(2026, 11, 20, 6, tzinfo=UTC)
LONG, OTHER = bytes(range(32)), bytes(range(1, 33))
SEGMENT = "2026/11-20.seg"
IN_A_CHILD = """
import subprocess, sys
from ondisk.cli.arguments import use_key_file

use_key_file(sys.argv[1])
subprocess.run([sys.executable, "-c", "from ondisk import keys; print(keys.current())"], check=True)
"""


@pytest.fixture(autouse=True)
def no_keys(monkeypatch):
    for name in keys.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    keys.use(None)
    yield
    keys.use(None)


@pytest.fixture
def key_file(tmp_path):
    def made(name="keys", secret=LONG, number=7):
        path = tmp_path / name
        path.write_text(f"{number} {secret.hex()}\n", encoding="utf-8")
        path.chmod(0o600)
        return str(path)

    return made


@pytest.fixture
def events(tmp_path, key_file):
    keys.use(key_file())
    path = str(tmp_path / "events")
    config = {"format": "seg", "step": "daily", "encryption": "aes-256-gcm", "unique": ["reftime"]}
    with ondisk.create(path, config) as dataset:
        dataset.append(Datum(T + timedelta(seconds=n), {}, {"n": n}) for n in range(9))
        dataset.delete("reftime:=2026-11-20 06:00:03")
    keys.use(None)
    return path


def ended(*argv):
    """Run a command as a process of its own would: the keys of the one before are gone."""
    before = dict(os.environ)
    try:
        return main(argv)
    finally:
        keys.use(None)
        os.environ.clear()
        os.environ.update(before)


def test_data_are_printed_with_the_keys_of_a_file(events, key_file, capsys):
    assert ended("query", events, "--json", "--key-file", key_file()) == 0
    assert capsys.readouterr().out.count('"n":') == 8


@pytest.mark.parametrize("argv", [["query", "--json"], ["repack", "--yes"], ["check", "--accurate"]], ids="-".join)
def test_without_keys_a_command_ends_with_35_and_with_wrong_ones_with_64(argv, events, key_file, capsys):
    command, *options = argv
    before = Path(events, SEGMENT).read_bytes()
    assert ended(command, events, *options) == 35
    said = capsys.readouterr()
    assert "key 7, of 32 bytes, is not in" in said.err
    assert "--key-file" in said.err
    assert ended(command, events, *options, "--key-file", key_file("wrong", OTHER)) == 64
    said = capsys.readouterr()
    assert "does not authenticate" in said.out + said.err
    assert OTHER.hex() not in said.out + said.err
    assert before == Path(events, SEGMENT).read_bytes()


@pytest.mark.parametrize("secret", [None, OTHER], ids=["lost", "wrong"])
def test_a_check_lists_what_it_could_not_authenticate_and_calls_nothing_corrupted(secret, events, key_file, capsys):
    code = 64 if secret else 35
    option = ["--key-file", key_file("wrong", secret)] if secret else []
    for how in (["--accurate"], ["--max-duration", "5s"]):
        assert ended("check", events, "--json", *how, *option) == code
        segment, total = map(json.loads, capsys.readouterr().out.splitlines())
        assert (segment["segment"], segment["states"]) == (SEGMENT, ["DIRTY"])
        assert "it was not authenticated" in segment["reasons"][-1]
        assert (total["summary"]["dirty"], total["summary"]["corrupted"]) == (1, 0)
        assert ended("check", events, *how, *option) == code
        said = capsys.readouterr()
        assert "0 segments OK, 1 DIRTY" in said.out.splitlines()[-1]
        assert "the contents of 1 segment were not authenticated" in said.err


@pytest.mark.parametrize("secret", [None, OTHER], ids=["lost", "wrong"])
def test_what_a_repack_could_not_rewrite_without_its_key_is_not_called_ok(secret, events, key_file, capsys):
    keys.use(key_file())
    with ondisk.open(events) as dataset:
        dataset.repack()
        dataset.append([Datum(T + timedelta(days=1), {}, {"n": 100})])
        assert dataset.check().ok == 2
    keys.use(None)
    option = ["--key-file", key_file("wrong", secret)] if secret else []
    assert ended("repack", events, "--rewrite", "--yes", *option) == (64 if secret else 35)
    assert "0 segments OK, 2 DIRTY" in capsys.readouterr().out.splitlines()[-1]
    assert ended("repack", events, "--rewrite", "--yes", "--json", *option) == (64 if secret else 35)
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["summary"]["ok"] == 0
    assert ended("repack", events, "--rewrite", "--yes", "--key-file", key_file()) == 0
    assert "2 segments OK" in capsys.readouterr().out.splitlines()[-1]


def test_what_needs_no_key_works_without_one(events):
    for command in ("info", "summary", "check"):
        assert ended(command, events) in (0, 9)  # a deleted datum makes the segment DIRTY
    assert ended("delete", events, "reftime:=2026-11-20 06:00:04", "--yes") == 0


def test_stored_bytes_are_printed_decrypted_and_can_be_appended_elsewhere(events, key_file, capsysbinary, tmp_path):
    assert ended("query", events, "--data", "--key-file", key_file()) == 0
    plain = tmp_path / "plain.seg"
    plain.write_bytes(capsysbinary.readouterr().out)
    assert b"timestamp" in plain.read_bytes()
    with ondisk.create(tmp_path / "other", {"format": "seg", "step": "daily"}) as dataset:
        assert dataset.append_file(plain).imported == 8
        assert sorted(each.data["n"] for each in dataset.query()) == [0, 1, 2, 4, 5, 6, 7, 8]


def test_a_key_file_that_others_may_read_ends_with_3(events, key_file, capsys):
    path = key_file()
    Path(path).chmod(0o644)
    assert ended("query", events, "--key-file", path) == 3
    assert f"chmod 600 {path}" in capsys.readouterr().err


def test_the_option_counts_more_than_the_environment_and_reaches_child_processes(events, key_file, monkeypatch):
    monkeypatch.setenv("ONDISK_KEYS", f"1 {OTHER.hex()}")
    done = subprocess.run([sys.executable, "-c", IN_A_CHILD, key_file()], stdout=subprocess.PIPE, text=True, check=True)
    assert done.stdout.startswith("KeyRing([7]")
    assert ended("query", events, "--key-file", key_file()) == 0


@pytest.mark.check
def test_the_first_example_of_the_page_makes_an_encrypted_dataset(tmp_path):
    page = (Path(__file__).parents[2] / "docs" / "encryption.md").read_text(encoding="utf-8")
    block = page.split("```sh\n")[1].split("```")[0].replace("python3", sys.executable)
    block = block.replace("ondisk init", f"{sys.executable} -m ondisk init")
    environment = {**os.environ, "HOME": str(tmp_path)}
    subprocess.run(["bash", "-ec", block], cwd=tmp_path, env=environment, check=True, stdout=subprocess.PIPE)
    keys.use(tmp_path / ".ondisk-keys")
    with ondisk.open(tmp_path / "events") as dataset:
        dataset.append([Datum(T, {}, {"n": 1})])
        assert [each.data for each in dataset.query()] == [{"n": 1}]
        assert b"timestamp" not in (dataset.path / SEGMENT).read_bytes()

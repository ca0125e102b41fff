"""The command `serve`, as a process."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from ondisk.backends.elliptics import Client
from ondisk.errors import ReadOnly


@pytest.fixture
def objects(run):
    assert run("init", "objects", "--backend", "elliptics").code == 0
    return "objects"


def started(*arguments):
    process = subprocess.Popen(
        [sys.executable, "-m", "ondisk", "serve", "--elliptics", "127.0.0.1:0", *arguments],
        stdout=subprocess.PIPE,
        text=True,
    )
    line = process.stdout.readline()
    assert line.startswith("serving objects on 127.0.0.1:")
    return process, int(line.rpartition(":")[2])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_server_answers_until_it_is_told_to_stop(run, objects, number):
    process, port = started(objects)
    with process, Client("127.0.0.1", port) as client:
        client.put("a", b"abc")
        process.send_signal(number)
        assert process.wait(30) == 0
    process, port = started(objects, "--read-only")
    with process, Client("127.0.0.1", port) as client:
        assert client.get("a") == b"abc"
        with pytest.raises(ReadOnly):
            client.put("a", b"x")
        process.terminate()
    assert run("check", objects).code == 0


def test_the_address_as_json(objects):
    command = [sys.executable, "-m", "ondisk", "serve", objects, "--elliptics", "127.0.0.1:0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        found = json.loads(process.stdout.readline())
        process.terminate()
    assert found.keys() == {"dataset", "host", "port"}
    assert (found["dataset"], found["host"], type(found["port"])) == ("objects", "127.0.0.1", int)


def test_arguments_that_make_no_server(run, weather, objects):
    done = run("serve", "--elliptics", "127.0.0.1:0", weather)
    assert done.code == 3
    assert "cannot store extents of objects" in done.err
    for address in ("1025", ":1025", "host:", "host:x", "host:99999"):
        done = run("serve", "--elliptics", address, objects)
        assert done.code == 2
        assert "is not HOST:PORT" in done.err
    assert run("serve", objects).code == 2
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = run("serve", "--elliptics", f"127.0.0.1:{taken.getsockname()[1]}", objects)
    assert done.code == 50
    assert "cannot listen on" in done.err


def test_init_writes_the_configuration_of_the_backend(run, objects):
    text = Path("objects/dataset.toml").read_text()
    assert 'parent = "bytes"' in text
    assert "delete_age" not in text
    assert run("init", "weekly", "--backend", "elliptics", "--step", "weekly").code == 0
    assert 'step = "weekly"' in Path("weekly/dataset.toml").read_text()
    done = run("init", "other", "--backend", "elliptics", "--field", "a=text")
    assert done.code == 2
    assert "--backend cannot be combined with --field" in done.err
    done = run("init", "other", "--backend", "elliptics", "--config", "-")
    assert done.code == 2

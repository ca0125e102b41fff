"""The command `serve`, as a process."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
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


@pytest.mark.check
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
    assert run("serve", "--elliptics", "127.0.0.1:0", objects, weather).code == 2
    for option in (("--bind", "127.0.0.1:0"), ("--token-file", "x"), ("--tls-cert", "x"), ("--tls-key", "x")):
        done = run("serve", "--elliptics", "127.0.0.1:0", objects, *option)
        assert done.code == 2
        assert f"{option[0]} cannot be combined with --elliptics" in done.err
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = run("serve", "--elliptics", f"127.0.0.1:{taken.getsockname()[1]}", objects)
    assert done.code == 50
    assert "cannot listen on" in done.err


@contextlib.contextmanager
def served(*arguments, **options):
    """Start a server of HTTP, and yield its process and what it printed; it ends with the block."""
    command = [sys.executable, "-m", "ondisk", "serve", "--json", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options) as process:
        try:
            line = process.stdout.readline()
            yield process, json.loads(line) if line else process.communicate()[1].decode()
        finally:
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_datasets_are_served_over_http_until_it_is_told_to_stop(weather, objects, number):
    with served(weather, objects, "--bind", "127.0.0.1:0") as (process, found):
        assert found.keys() == {"datasets", "host", "port"}
        assert found["datasets"] == {
            name: f"http://127.0.0.1:{found['port']}/dataset/{name}" for name in ("weather", "objects")
        }
        assert httpx.get(found["datasets"]["weather"] + "/summary").json()["count"] == 3
        process.send_signal(number)
        assert process.wait(30) == 0
        assert process.stderr.read() == b""


@pytest.mark.check
def test_a_token_comes_from_a_file_that_others_cannot_read(weather):
    token = Path("token")
    token.write_text("0123456789abcdef\n")
    with served(weather, "--bind", "127.0.0.1:0", "--token-file", token) as (process, err):
        assert process.returncode == 3
        assert "others may use it" in err
        assert "chmod 600 token" in err
    token.chmod(0o600)
    with served(weather, "--bind", "0.0.0.0:0", "--token-file", token) as (process, found):
        url = f"http://127.0.0.1:{found['port']}/dataset/weather/summary"
        assert httpx.get(url).status_code == 401
        assert httpx.get(url, headers={"Authorization": "Bearer 0123456789abcdef"}).status_code == 200
        process.terminate()
        assert b"without --tls-cert" in process.stderr.read()
        assert process.wait(30) == 0


@pytest.mark.check
def test_a_replica_follows_what_is_served(run, weather):
    token = Path("token")
    token.write_text("0123456789abcdef")
    token.chmod(0o600)
    with served(weather, "--bind", "127.0.0.1:0", "--token-file", token) as (process, found):
        url = found["datasets"]["weather"]
        error = run("replicate", url, "copy", "--server-token", token)
        assert error.code == 11
        assert f"`ondisk replicate --server-token token {url} copy --create`" in error.err
        done = run("replicate", url, "copy", "--create", "--server-token", token)
        assert (done.code, done.text.partition(":")[2]) == (
            0,
            " 3 stored, 0 deleted; 99 bytes; change 3, nothing left\n",
        )
        assert run("replicate", url, "copy").code == 3
        process.terminate()
    assert run("query", "copy", "--data").out == run("query", weather, "--data").out


def test_options_that_make_no_server_of_http(run, weather):
    for options, problem in {
        ("--bind", "0.0.0.0:0"): "there is no token",
        ("--bind", "8787"): "is not HOST:PORT",
        ("--tls-key", "key.pem"): "--tls-key needs --tls-cert",
        ("--id-size", "64"): "--id-size needs --elliptics",
        ("--read-only",): "--read-only needs --elliptics",
    }.items():
        done = run("serve", weather, *options)
        assert done.code == 2
        assert problem in done.err
    assert run("serve", weather, "--bind", "127.0.0.1:0", "--tls-cert", "none.pem").code == 3
    assert run("serve", weather, "--bind", "127.0.0.1:0", "--token-file", "none").code == 3
    assert run("serve", weather, "none", "--bind", "127.0.0.1:0").code == 11


def test_a_missing_package_is_named(weather, tmp_path):
    (tmp_path / "uvicorn.py").write_text("raise ModuleNotFoundError(name='uvicorn')")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    with served(weather, env={**os.environ, "PYTHONPATH": path}) as (process, err):
        assert process.returncode == 30
    assert "needs the package uvicorn" in err
    assert "pip install 'ondisk[server]'" in err


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

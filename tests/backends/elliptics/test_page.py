"""The examples and figures of docs/elliptics.md."""

from __future__ import annotations

import re
from pathlib import Path

from ondisk.backends.elliptics import Limits, configuration
from ondisk.backends.elliptics.packets import Code
from ondisk.backends.elliptics.server import ServerLimits

from .conftest import command, name, status, write
from .test_server import Running

PAGE = (Path(__file__).parents[3] / "docs/elliptics.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
MIB = 1024 * 1024


def test_the_examples_work(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    client, embedded = BLOCKS
    with Running(path) as running:
        exec(
            client.replace("1025", str(running.server.port)).replace("client.get(", "found = client.get("), found := {}
        )
        assert found["found"] == b"1xx4"
        assert status(running.backend.process(command(bytes(64), Code.LIST))) == 0
    exec(embedded, found := {"packet": write(name(1), b"abc"), "id": name(1)})
    assert status(found["replies"]) == 0
    assert [extent.size for extent in found["backend"]._objects.get(name(1))] == [3]


def test_the_limits_are_those_of_the_code():
    rows = dict(
        re.findall(
            r"^\| ([^|]+) \| ([^|]+) \|", PAGE[PAGE.index("## Limits") : PAGE.index("## How fast")], re.MULTILINE
        )
    )
    limits, server = Limits(), ServerLimits()
    assert rows["a packet"] == f"{limits.packet // MIB} MiB after its header"
    assert rows["commands of a packet"] == f"{limits.commands:,}"
    assert rows["what a packet reads and lists"] == f"{limits.read // MIB} MiB"
    assert rows["connections"] == f"{server.connections:,}"
    assert rows["packets of one connection that are not answered"] == str(server.pipelined)
    assert rows["packets that are not answered, of all connections"] == f"{server.waiting // MIB} MiB"
    assert rows["replies that connections have not taken"] == f"{server.unsent // MIB} MiB"
    assert rows["a connection that sends nothing"] == f"{server.idle // 60:.0f} minutes"
    assert rows["the rest of a packet; a part of a reply"] == f"{server.stalled // 60:.0f} minute"
    assert rows["extents in memory"] == (
        f"the data of extents up to {limits.cached // MIB} MiB; the offsets and sizes of {limits.extents:,} extents"
    )
    assert f"at most {limits.reply // MIB} MiB" in PAGE
    assert f"at most {limits.listed:,}" in PAGE
    assert all(f"`{field}`" in PAGE for field in configuration().fields)

"""Random writes, appends, reads and deletes, with kill -9, reopening and repack between, against plain bytes."""

from __future__ import annotations

import errno
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

import ondisk
from ondisk.backends.elliptics import configuration
from ondisk.backends.elliptics.packets import APPEND, Code

from .conftest import Client, command, content, name, read, status, write

NAMES = [name(number) for number in range(1, 4)]
OPERATIONS = st.one_of(
    st.tuples(st.just("write"), st.sampled_from(NAMES), st.integers(0, 60), st.binary(max_size=20)),
    st.tuples(st.just("append"), st.sampled_from(NAMES), st.integers(0, 60), st.binary(max_size=20)),
    st.tuples(st.just("delete"), st.sampled_from(NAMES), st.just(0), st.just(b"")),
)


def packet(operation):
    kind, parent, offset, data = operation
    if kind == "delete":
        return command(parent, Code.DEL)
    return write(parent, data, offset, APPEND if kind == "append" else 0)


class Plain:
    """Objects as plain bytes."""

    def __init__(self) -> None:
        self.objects: dict[bytes, bytearray] = {}

    def copy(self) -> Plain:
        made = Plain()
        made.objects = {each: bytearray(content) for each, content in self.objects.items()}
        return made

    def apply(self, operation) -> int:
        kind, parent, offset, data = operation
        if kind == "delete":
            return -errno.ENOENT if self.objects.pop(parent, None) is None else 0
        if kind == "write" and offset == 0:
            self.objects[parent] = bytearray(data)
            return 0
        plain = self.objects.setdefault(parent, bytearray())
        if kind == "append":
            plain += data
        elif data:
            plain.extend(bytes(max(0, offset - len(plain))))
            plain[offset : offset + len(data)] = data
        return 0


class Objects(RuleBasedStateMachine):
    """One process after the other has the dataset open; the one that is killed may have stored its last commit."""

    @initialize()
    def create(self):
        self.folder = Path(tempfile.mkdtemp())
        self.path = self.folder / "objects"
        ondisk.create(self.path, configuration()).close()
        self.client = Client(self.path)
        self.plain = Plain()

    def teardown(self):
        if hasattr(self, "folder"):
            self.client.dataset.close()
            shutil.rmtree(self.folder)

    @rule(operations=st.lists(OPERATIONS, max_size=6))
    def change(self, operations):
        replies = self.client.backend.process_all(list(map(packet, operations)))
        assert [status(each) for each in replies] == [self.plain.apply(each) for each in operations]

    @rule(parent=st.sampled_from(NAMES), offset=st.integers(0, 90), size=st.integers(0, 90))
    def read(self, parent, offset, size):
        plain = self.plain.objects.get(parent)
        expected = -errno.ENOENT if plain is None else bytes(plain[offset : offset + size] if size else plain[offset:])
        assert self.client.read(parent, offset, size) == expected

    @rule(parents=st.lists(st.sampled_from(NAMES), max_size=6))
    def read_together(self, parents):
        replies = self.client.backend.process_all(list(map(read, parents)))
        assert list(map(status, replies)) == [0 if each in self.plain.objects else -errno.ENOENT for each in parents]
        assert list(map(content, replies)) == [bytes(self.plain.objects.get(each, b"")) for each in parents]

    @rule()
    def reopen(self):
        self.client.dataset.close()
        self.client = Client(self.path)

    @rule()
    def repack(self):
        self.client.dataset.repack()

    @rule()
    def archive(self):
        self.client.dataset.repack()  # a segment without data is not archived
        for segment in self.path.glob("20*/*.seg"):
            self.client.dataset.archive(str(segment.relative_to(self.path)))

    @rule(operations=st.lists(OPERATIONS, min_size=1, max_size=6), delay=st.floats(0, 0.01))
    def change_and_kill(self, operations, delay):
        """Send packets to another process and kill it: their commit is there whole or not at all."""
        self.client.dataset.close()
        worker = [sys.executable, str(Path(__file__).with_name("worker.py")), str(self.path)]
        with subprocess.Popen(worker, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            first = [read(NAMES[0])]
            for packets in (first, list(map(packet, operations))):
                request = pickle.dumps(packets)
                process.stdin.write(len(request).to_bytes(8) + request)
                process.stdin.flush()
                if packets is first:  # then it has begun
                    process.stdout.read(int.from_bytes(process.stdout.read(8)))
            time.sleep(delay)
            os.kill(process.pid, signal.SIGKILL)
            head = process.stdout.read(8)
            body = process.stdout.read(int.from_bytes(head)) if len(head) == 8 else b""
        is_confirmed = len(head) == 8 and len(body) == int.from_bytes(head)
        self.client = Client(self.path)
        after = self.plain.copy()
        for each in operations:
            after.apply(each)
        if is_confirmed or self.found() != self.plain.objects:
            self.plain = after

    def found(self):
        objects = {parent: self.client.read(parent) for parent in NAMES}
        return {parent: found for parent, found in objects.items() if found != -errno.ENOENT}

    @invariant()
    def all_objects_are_as_plain_bytes(self):
        if hasattr(self, "plain"):
            assert self.found() == self.plain.objects
            listed = content_of_list(self.client)
            assert listed == b"".join(sorted(self.plain.objects))


def content_of_list(client):
    replies = client.backend.process(command(bytes(64), Code.LIST))
    return replies[0][120:] if len(replies) > 1 else b""


TestObjects = Objects.TestCase
TestObjects.settings = settings(max_examples=3, stateful_step_count=8, deadline=None)


@pytest.mark.slow
class TestObjectsForLonger(Objects.TestCase):
    settings = settings.get_profile("machines")

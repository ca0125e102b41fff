"""Freed memory is kept."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

FAULTS = """
import resource, sys
from ondisk.malloc import keep_freed
if sys.argv[1] == "kept":
    keep_freed()
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
def batch():
    for each in [b"x" * 2_000_000 for _ in range(8)]:
        pass
batch()
before = faults()
for _ in range(10):
    batch()
print(faults() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only the malloc of glibc is told")
def test_large_blocks_are_requested_from_the_kernel_once():
    kept, fresh = (
        int(subprocess.run([sys.executable, "-c", FAULTS, each], check=True, capture_output=True).stdout)
        for each in ("kept", "fresh")
    )
    assert kept < 5_000 < fresh

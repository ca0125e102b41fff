"""docs/server.md: its examples print what it says, and its tables are those of the code."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from dataclasses import asdict

import pytest
from test_readme import ROOT, begin, blocks, check_console, place  # noqa: F401

from ondisk.server.admission import Limits
from ondisk.server.metrics import HELP
from ondisk.server.responses import STATUS

PAGE = (ROOT / "docs/server.md").read_text(encoding="utf-8")
SERVE = "$ ondisk serve weather &\nserving weather on http://127.0.0.1:8787/dataset/weather\n"
PORT = "127.0.0.1:8787"


@pytest.mark.check
def test_the_examples_print_what_the_page_says(place):  # noqa: F811
    if shutil.which("curl") is None:
        pytest.skip("there is no curl")
    begin("docs/server.md")
    text = "".join(text for language, text in blocks("docs/server.md") if language == "console")
    before, after = text.split(SERVE)
    check_console(before)
    command = ["ondisk", "serve", "weather", "--bind", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ) as process:
        (address,) = re.findall(r"127\.0\.0\.1:\d+", process.stdout.readline())
        try:
            check_console(after.replace(PORT, address))
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


def test_the_page_has_every_limit_and_its_value():
    rows = re.findall(r"^\| `(\w+)` \| (\d+) ?.* \|", PAGE.partition("## Limits")[2].partition("## Metrics")[0], re.M)
    assert {name: int(value) for name, value in rows} == asdict(Limits())


def test_the_page_has_every_metric():
    assert re.findall(r"^\| `(ondisk_\w+)` \|", PAGE, re.MULTILINE) == [*HELP]


def test_the_page_has_every_status_of_an_error():
    listed = {
        int(each) for row in re.findall(r"^\| (4\d\d.*?|5\d\d) \|", PAGE, re.MULTILINE) for each in row.split(", ")
    }
    # 403, 409 and 410 are of changes
    assert {*STATUS.values()} - {403, 409, 410} <= listed

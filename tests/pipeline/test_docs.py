"""Every code block of docs/pipeline.md is run, and prints what the page says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from test_readme import ROOT, begin, blocks, check_console, check_python, place  # noqa: F401

from ondisk.pipeline.config import KEYS, MAINTENANCE


@pytest.mark.check
@pytest.mark.usefixtures("place")
def test_the_examples_of_pipelines_print_what_the_page_says():
    begin("docs/pipeline.md")
    names: dict[str, object] = {}
    for language, text in blocks("docs/pipeline.md"):
        if language == "console":
            check_console(text)
        elif language == "toml":
            Path(text.split()[1]).write_text(text, encoding="utf-8")
        else:
            check_python(text, "docs/pipeline.md", names)


def test_the_page_of_pipelines_has_every_key():
    text = (ROOT / "docs/pipeline.md").read_text(encoding="utf-8")
    keys = {*KEYS, *(f"maintenance.{key}" for key in MAINTENANCE)}
    assert set(re.findall(r"^\| `([a-z_.]+)` \|", text, re.MULTILINE)) == keys

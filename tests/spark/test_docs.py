"""Every code block of the pages on Spark is run, and prints what the page says."""

from __future__ import annotations

import re

import pytest
from test_readme import ROOT, begin, blocks, check_console, check_python, place  # noqa: F401

from ondisk.dataset.dataset import Dataset
from ondisk.spark import SETTINGS
from ondisk.spark.source import STREAM_OPTIONS
from ondisk.spark.write import CHECKED as CONSTRAINT
from ondisk.spark.write import OPTIONS as WRITE_OPTIONS

PAGES = ["docs/spark.md", "docs/spark-reference.md", "docs/spark-reasons.md"]
REFERENCE = (ROOT / "docs/spark-reference.md").read_text(encoding="utf-8")


@pytest.mark.check
@pytest.mark.parametrize("page", PAGES)
@pytest.mark.usefixtures("place")
def test_the_examples_print_what_the_page_says_and_need_no_other_page(page, spark):
    names: dict[str, object] = {}
    if "This page has no commands to run." not in " ".join((ROOT / page).read_text(encoding="utf-8").split()):
        begin(page)
    for language, text in blocks(page):
        if language == "console":
            check_console(text)
        elif language not in ("sh", "text"):  # the recipe for a cluster: see test_recipe.py
            check_python(text, page, names)
    for each in names.values():
        if isinstance(each, Dataset):
            each.close()


def test_the_reference_has_every_setting_and_option():
    assert dict(re.findall(r"^\| `(spark\.[\w.]+)` \| `([\w.]+)`", REFERENCE, re.MULTILINE)) == SETTINGS
    options = {*STREAM_OPTIONS, *WRITE_OPTIONS, CONSTRAINT} - {"tree"}
    assert [name for name in sorted(options) if f"\n| `{name}` | " not in REFERENCE] == []

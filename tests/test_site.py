"""The site of the documentation, as `make docs` builds it, in a browser without a window."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import ondisk

ROOT = Path(__file__).parents[1]
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
PATIENCE = 600

pytestmark = [
    pytest.mark.check,
    pytest.mark.xdist_group("site"),
    pytest.mark.skipif(find_spec("myst_parser") is None, reason="the extra docs is not installed"),
]


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """Build the site; a link that leads nowhere is an error."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-d", folder / "pages", "-c", ROOT / "docs"]
    done = subprocess.run([*command, ROOT, folder / "html"], capture_output=True, text=True, timeout=PATIENCE)
    assert (done.returncode, done.stderr) == (0, "")
    return folder / "html"


def test_each_page_is_reached_from_the_first_one(site):
    first = (site / "README.html").read_text(encoding="utf-8")
    for page in ROOT.glob("docs/*.md"):
        assert f'href="docs/{page.stem}.html"' in first


def test_the_first_page_shows_its_picture_in_a_light_and_in_a_dark_theme(site):
    first = (site / "README.html").read_text(encoding="utf-8")
    for theme in ("light", "dark"):
        (image,) = re.findall(rf'<img [^>]*only-{theme}[^>]*src="([^"]+)"', first)
        assert (site / image).is_file()


def test_the_reference_has_each_public_name(site):
    page = (site / "docs/api.html").read_text(encoding="utf-8")
    public = [
        f"ondisk.{name}" for name in ondisk.__all__ if name not in ("FieldType", "Outcome", "Step", "OndiskError")
    ]
    methods = [
        f"ondisk.{kind}.{name}"
        for kind in ("Dataset", "Merged")
        for name in dir(getattr(ondisk, kind))
        if not name.startswith("_")
    ]
    assert [name for name in [*public, *methods, "ondisk.errors.OndiskError"] if f'id="{name}"' not in page] == []


@pytest.mark.skipif(BROWSER is None, reason="there is no Chromium")
def test_a_reader_searches_and_finds(site, tmp_path):
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=60000", "--dump-dom"]
    search = f"{(site / 'search.html').as_uri()}?q=quarantine"
    done = subprocess.run(
        [*command, "--virtual-time-budget=60000", "--dump-dom", search],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    found = re.findall(r'<a href="([^"#]*)[^"]*"[^>]*>', done.stdout.partition('id="search-results"')[2])
    assert {"docs/maintenance.html", "docs/cli.html"} <= {*found}

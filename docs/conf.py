"""Sphinx's settings for the site: `make docs` builds it into build/site. The pages are those of the repository."""

from __future__ import annotations

import re
from typing import Any

import ondisk

project = "ondisk"
version = release = ondisk.__version__
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinxcontrib.mermaid",
]
root_doc = "README"
include_patterns = ["*.md", "docs/*.md", "sample_datasets/*.md"]
html_theme = "furo"
html_title = "ondisk"
html_static_path: list[str] = []

myst_heading_anchors = 4  # as on a forge, so that the same links work in both
myst_fence_as_directive = ["mermaid"]
suppress_warnings = [
    "misc.highlighting_failure",  # output of commands is no language
    "ref.python",  # the type `bytes` is also the name of attributes of several classes
]

default_role = "code"
autodoc_class_signature = "separated"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
napoleon_numpy_docstring = False
_SECTIONS = ["Durability", "Locks", "Cost", "Memory", "Args, Raises"]
napoleon_custom_sections = _SECTIONS

_CONTENTS = """
```{{toctree}}
:hidden:
:caption: {caption}

{pages}
```
"""
_OTHERS = {
    "Reference": ["docs/api", "docs/cli", "docs/cli-json", "docs/limits", "docs/seg", "docs/glossary"],
    "Project": ["docs/architecture", "CONTRIBUTING", "CHANGELOG", "SECURITY", "sample_datasets/README"],
}


_PICTURE = re.compile(r'<picture>.*?srcset="(\S+)".*?src="(\S+)".*?alt="([^"]*)".*?</picture>', re.DOTALL)
_IMAGES = "".join(
    f"```{{image}} \\{n}\n:alt: \\3\n:class: only-{theme}\n```\n\n" for n, theme in ((2, "light"), (1, "dark"))
)


def _with_contents(app: Any, name: str, source: list[str]) -> None:
    """Add the contents to the first page, in the order of docs/README.md, and let Sphinx copy its picture."""
    if name != root_doc:
        return
    source[0] = _PICTURE.sub(_IMAGES, source[0])
    listed = re.findall(r"^\| \[\S+\]\((\S+)\.md\)", (app.srcdir / "docs/README.md").read_text(), re.MULTILINE)
    others = [page for pages in _OTHERS.values() for page in pages]
    guides = [f"docs/{page}" for page in listed if f"docs/{page}" not in others]
    contents = {"Guides": ["docs/README", *guides], **_OTHERS}
    source[0] += "".join(_CONTENTS.format(caption=key, pages="\n".join(pages)) for key, pages in contents.items())


def _as_napoleon_reads(app: Any, kind: str, name: str, of: object, options: object, lines: list[str]) -> None:
    """Mark indented text after a blank line as literal, and begin the text of `Cost: …` on a line of its own."""
    if kind == "property":
        lines.insert(0, "")  # else what precedes a colon would be the type
    for at in range(len(lines) - 1, -1, -1):
        if at > 1 and lines[at].startswith("    ") and not lines[at - 1] and lines[at - 2][:1].strip():
            lines[at:at] = ["::", ""]
        elif begun := re.match(rf"({'|'.join(_SECTIONS)}): (.+)", lines[at]):
            lines[at : at + 1] = ["", f"{begun[1]}:", f"    {begun[2]}"]


def _skips(app: Any, kind: str, name: str, of: object, skip: bool, options: object) -> bool | None:
    """Leave out the fields of named tuples: the docstring of the class has them."""
    return True if type(of).__name__ == "_tuplegetter" else None


def setup(app: Any) -> None:
    app.connect("autodoc-skip-member", _skips)
    app.connect("source-read", _with_contents)
    app.connect("autodoc-process-docstring", _as_napoleon_reads, priority=100)  # before napoleon

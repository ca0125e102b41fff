"""A query of a page in other forms: as an address, as a command, in Python."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import quote, urlencode

from ondisk.errors import shell_words

FORMATS = {"data": "Data", "csv": "CSV", "jsonl": "JSON lines", "parquet": "Parquet"}
"""The formats of a download, and what a page calls them."""


def address(name: str, page: str = "", /, **parameters: object) -> str:
    """Return the path of a page of a dataset, without the parameters that are empty."""
    path = f"/dataset/{quote(name, safe='')}{'/' * bool(page)}{quote(page)}"
    given = {key: str(value) for key, value in parameters.items() if value not in (None, "")}
    return f"{path}?{urlencode(given, quote_via=quote)}" if given else path


class Way(NamedTuple):
    title: str  # where
    text: str  # to copy


def ways(base: str, name: str, path: str, match: str, sort: str) -> list[Way]:
    options = ([match] if match else []) + ([f"--sort={sort}"] if sort else [])
    arguments = ([repr(match)] if match else []) + ([f"sort={sort!r}"] if sort else [])
    python = "\n".join(
        [
            "import ondisk",
            "",
            f"with ondisk.open({path!r}, read_only=True) as dataset:",
            f"    for datum in dataset.query({', '.join(arguments)}):",
            "        print(datum.reftime, datum.metadata, datum.data)",
        ]
    )
    return [
        Way("As a command", f"ondisk query {shell_words(path, *options)}"),
        Way("In Python", python),
        Way("As an address, for programs", base + address(name, "query", match=match, sort=sort, format="csv")),
    ]

"""Queries of a page: match expressions that people put together, and the same query as address, command and Python."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any
from urllib.parse import quote, urlencode

from ondisk.dataset.datum_as_json import time_text
from ondisk.datum import FieldType
from ondisk.errors import MatchError, shell_words
from ondisk.matcher.parser import groups_of, parse
from ondisk.server.pages.content import text_of

MOST_COMPLETIONS = 20
_TIME = FieldType.TIMESTAMP
FORMATS = {"data": "Data", "csv": "CSV", "jsonl": "JSON lines", "parquet": "Parquet"}
"""The formats of a download, and what a page calls them."""


def condition(name: str, value: Any, fields: Mapping[str, FieldType]) -> str | None:
    """Return the condition that a field has a value; None if the language cannot say it, as of NaN."""
    if isinstance(value, bool):
        text = str(value).lower()
    elif isinstance(value, str):
        text = '"' + value.replace('"', '""') + '"'
    elif isinstance(value, bytes):
        text = value.hex()
    elif isinstance(value, datetime):
        text = f"={time_text(value)}"
    else:
        text = repr(value)
    found = f"{name}: {text}"
    try:
        parse(found, fields)
    except MatchError:
        return None
    return found


def field_of(group: str) -> str:
    return group.partition(":")[0].strip().lower()


def refined(match: str, added: str) -> str:
    """Return a match expression with one more condition, which replaces those on the same field."""
    kept = [group for group in groups_of(match) if field_of(group) != field_of(added)]
    return "; ".join([*kept, added])


def removable(match: str) -> list[tuple[str, str]]:
    groups = groups_of(match)
    return [(group, "; ".join(groups[:at] + groups[at + 1 :])) for at, group in enumerate(groups)]


def completions(text: str, fields: Mapping[str, FieldType], values_of: Callable[[str], Iterable[Any]]) -> Iterator[str]:
    """Yield what a match expression that somebody is writing may become: it continues with a field, or with a value.

    `values_of`: returns values of a field, the most frequent first.
    """
    known = {"reftime": _TIME, **fields}
    before, last = _cut(text, r"[;\n]")
    name, colon, written = last.partition(":")
    if not colon:
        begin = name.strip().lower()
        yield from (f"{before}{each}: " for each in known if each.startswith(begin) and each != begin)
        return
    if (name := name.strip().lower()) not in known:
        return
    others, written = _cut(written, r"(?<!\S)or\s", re.IGNORECASE)
    begin, count = written.strip().strip('"').lower(), 0
    for value in values_of(name):
        found = condition(name, value, known)
        if found is None or not text_of(value).lower().startswith(begin):
            continue
        found = found.removeprefix(f"{name}:")
        yield f"{before}{name}:{others.rstrip()}{found}"
        count += 1
        if count == MOST_COMPLETIONS:
            return


def _cut(text: str, separator: str, flags: int = 0) -> tuple[str, str]:
    """Return the text up to the end of the last separator outside quotes, with a blank, and the text after it."""
    end = 0
    for found in re.finditer(rf'"[^"]*(?:"|\Z)|({separator})', text, flags):
        if found[1] is not None:
            end = found.end()
    return text[:end].rstrip() + " " * bool(end), text[end:].lstrip()


def address(name: str, page: str = "", /, **parameters: object) -> str:
    """Return the path of a page of a dataset, without the parameters that are empty."""
    path = f"/dataset/{quote(name, safe='')}{'/' * bool(page)}{quote(page)}"
    given = {key: str(value) for key, value in parameters.items() if value not in (None, "")}
    return f"{path}?{urlencode(given, quote_via=quote)}" if given else path


def ways(base: str, name: str, path: str, match: str, sort: str) -> dict[str, str]:
    """Return the same query for other places: where, and the text to copy."""
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
    return {
        "As a command": f"ondisk query {shell_words(path, *options)}",
        "In Python": python,
        "As an address, for programs": base + address(name, "query", match=match, sort=sort, format="csv"),
    }

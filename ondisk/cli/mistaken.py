"""Notes on standard error about a match that found nothing and looks mistaken."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import TypeVar

from ondisk import Dataset, Merged
from ondisk.cli.streams import complain
from ondisk.errors import MatchError
from ondisk.matcher import METADATA, Compare, Components, Expression, Undeclared, parse
from ondisk.matcher.tree import nodes

_T = TypeVar("_T")
_SAMPLE = 1_000  # data, the newest ones: their values are compared with those of the match
_SHOWN = 3
_RUNS = [(re.compile(r"[^\W\d_]+"), "a"), (re.compile(r"\d+"), "0")]


def noting(items: Iterable[_T], dataset: Dataset | Merged, match: str | None) -> Iterator[_T]:
    """Return the items that a query found; without any, call `note_mistakes`."""
    found = iter(items)
    for first in found:
        return chain([first], found)
    note_mistakes(dataset, match)
    return found


def note_mistakes(dataset: Dataset | Merged, match: str | None) -> None:
    """Print why a match may have found nothing, if one of its values looks mistaken.

    Cost: reads the metadata of 1,000 data; for a value that none of them has, also searches all data for it.
    """
    fields = {name: dataset.fields[name].kind for name in dataset.fields}
    with contextlib.suppress(MatchError):  # a field has different types in several datasets
        for note in dict.fromkeys(_mistakes(dataset, parse(match or "", fields))):
            complain("note", note)


def _mistakes(dataset: Dataset | Merged, tree: Expression) -> Iterator[str]:
    known = _known(dataset)
    for field, text, condition, is_quoted in _texts(tree):
        problem = None if is_quoted else _syntax(text)
        if problem is None and not field.startswith(METADATA):
            problem = _difference(text, known.get(field, []))
        if problem is not None and not dataset.exists(condition):
            yield f"no datum has the {field} `{text}`: {problem}"


def _texts(tree: Expression) -> Iterator[tuple[str, str, Expression, bool]]:
    """Yield the field, the text, the condition and whether it is quoted, of each text that a match compares with."""
    for node, _ in nodes(tree):
        leaf = dict(node.readings or ()).get("text") if isinstance(node, Undeclared) else node
        for part, _ in () if leaf is None else nodes(leaf):
            whole = Undeclared(node.name, (("text", part),)) if isinstance(node, Undeclared) else part
            if isinstance(part, Components):
                yield part.field, ",".join(each or "" for each in part.parts), whole, False
            elif isinstance(part, Compare) and isinstance(part.value, str):
                yield part.field, part.value, whole, True


def _syntax(text: str) -> str | None:
    """Return what a text probably contains by mistake: another group, or a wildcard."""
    if re.search(r"\sand\s", text, re.IGNORECASE):
        return "write `;` between groups, not `and`"
    if "*" in text:
        return "`*` is an ordinary character. A text matches by its first components, so omit those that may vary"
    if ":" in text:
        return "write `;` between groups; if the colon belongs to the value, quote the value"
    return None


def _known(dataset: Dataset | Merged) -> dict[str, list[str]]:
    """Return the texts of the newest data: field → values, each once."""
    found: dict[str, dict[str, None]] = {}
    for datum in dataset.query(sort="-reftime", limit=_SAMPLE, with_data=False):
        for name, value in datum.metadata.items():
            if isinstance(value, str):
                found.setdefault(name, {})[value] = None
    return {name: [*values] for name, values in found.items()}


def _difference(text: str, values: list[str]) -> str | None:
    """Return how a text differs from values that may have been meant; None if it looks like one of them."""
    count = text.count(",") + 1
    firsts = {value: ",".join(value.split(",")[:count]) for value in values}
    if text in firsts.values():
        return None
    if same := [value for value, first in firsts.items() if first.casefold() == text.casefold()]:
        return f"case matters; there is {_listed(same)}"
    if "," in text and all(each in values for each in text.split(",")):
        return f"commas are part of a value; for one of several write `{' or '.join(text.split(','))}`"
    if ended := [value for value in values if value.endswith(f",{text}")]:
        return f"a text matches by its first components; there is {_listed(ended)}"
    if values and _form(text) not in map(_form, firsts.values()):
        return f"its values have another form, such as {_listed(values)}"
    return None


def _form(text: str) -> str:
    """Return a text with each run of letters as `a` and each run of digits as `0`."""
    for run, sign in _RUNS:
        text = run.sub(sign, text)
    return text


def _listed(values: list[str]) -> str:
    more = ", …" if len(values) > _SHOWN else ""
    return ", ".join(f"`{value}`" for value in values[:_SHOWN]) + more

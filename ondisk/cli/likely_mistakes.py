"""Notes on standard error about what looks mistaken: a match that found nothing, a number that no datum has."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import TYPE_CHECKING, TypeVar

from ondisk.cli.streams import complain
from ondisk.datum import CONTENT, METADATA
from ondisk.errors import InvalidInput, MatchError, OndiskError, shown

if TYPE_CHECKING:
    from ondisk import Dataset, Group, Merged
    from ondisk.matcher import Expression

_T = TypeVar("_T")
_SAMPLE = 1_000  # data, the newest ones: their values are compared with those of the match
_SHOWN = 3
_CLOSE = 0.8  # how alike two texts are, at least, if one may be meant by the other
_RUNS = [(re.compile(r"[^\W\d_]+"), "a"), (re.compile(r"\d+"), "0")]


def noting(items: Iterable[_T], dataset: Dataset | Merged, match: str | None) -> Iterator[_T]:
    """Return the items that a query found; without any, call `note_mistakes`."""
    found = iter(items)
    for first in found:
        return chain([first], found)
    note_mistakes(dataset, match)
    return found


def note_mistakes(dataset: Dataset | Merged, match: str | None) -> None:
    """Print why a match may have found nothing, if one of its values looks mistaken. Reads 1,000 data."""
    with contextlib.suppress(MatchError):  # a field has different types in several datasets
        for note in dict.fromkeys(_mistakes(dataset, _tree(dataset, match or ""))):
            complain("note", note)


def _tree(dataset: Dataset | Merged, match: str) -> Expression:
    import ondisk

    if isinstance(dataset, ondisk.Dataset):
        from ondisk.dataset.expression import expression

        return expression(match, dataset.config, dataset.path)
    from ondisk.matcher.aliases import NO_ALIASES
    from ondisk.matcher.parser import parse

    fields = {name: dataset.fields[name].kind for name in dataset.fields}
    return parse(match, fields, aliases=getattr(match, "aliases", NO_ALIASES))


def note_columns(
    dataset: Dataset | Merged, names: Iterable[str], match: str | None, sort: str | None, limit: int | None
) -> None:
    """Print a note for each column of content or metadata that none of the first 1,000 data of a query has."""
    lacking = dict.fromkeys(name for name in names if name.startswith((CONTENT, METADATA)))
    known: dict[str, None] = {}
    count = 0
    with contextlib.suppress(OndiskError):  # what was printed is complete: a note does not fail
        for datum in dataset.query(match, sort=sort, limit=min(_SAMPLE, limit or _SAMPLE)) if lacking else ():
            keys = datum.data if isinstance(datum.data, Mapping) else ()
            known |= dict.fromkeys(CONTENT + each for each in keys)
            known |= dict.fromkeys(METADATA + each for each in datum.metadata if each not in dataset.fields)
            count += 1
            if lacking.keys() <= known.keys():
                return
        for name in [name for name in lacking if count and name not in known]:
            others = [each for each in known if each.partition(".")[0] == name.partition(".")[0]]
            complain("note", f"none of the first {count} data that match has {shown(name)}{_there_is(name, others)}")


def check_numbers(groups: Iterable[Group], dataset: Dataset | Merged, match: str | None, of: str) -> Iterator[Group]:
    """Yield groups; then raise InvalidInput if no datum has the number `data.NAME`. Then reads 1,000 data."""
    is_any = is_number = False
    for group in groups:
        is_any, is_number = True, is_number or group.min is not None
        yield group
    if not is_any or is_number:
        return
    numbers: dict[str, None] = {}
    for datum in dataset.query(match, sort="-reftime", limit=_SAMPLE):
        items = datum.data.items() if isinstance(datum.data, Mapping) else ()
        numbers |= dict.fromkeys(CONTENT + key for key, value in items if type(value) in (int, float))
    problem = f"no datum has a number {of}{_there_is(of, [*numbers])}"
    raise InvalidInput(problem, hint="Name a number that the data have, or a declared field.")


def _there_is(text: str, known: list[str]) -> str:
    return f": there is {_listed(_similar(text, known) or known)}" if known else ""


def _similar(text: str, known: Iterable[str]) -> list[str]:
    """Return the known texts that may have been meant by a mistyped one: their numbers are the same."""
    from difflib import get_close_matches  # here, because only mistakes need it

    by_lower: dict[str, str] = {}
    for each in known:
        if re.findall(r"\d+", each) == re.findall(r"\d+", text):
            by_lower.setdefault(each.casefold(), each)
    return [by_lower[each] for each in get_close_matches(text.casefold(), by_lower, _SHOWN, _CLOSE)]


def _mistakes(dataset: Dataset | Merged, tree: Expression) -> Iterator[str]:
    known: dict[str, dict[str, None]] = {}
    for datum in dataset.query(sort="-reftime", limit=_SAMPLE, with_data=False):
        for name, value in datum.metadata.items():
            if isinstance(value, str):
                known.setdefault(name, {})[value] = None
    for field, text, condition, is_quoted in _texts(tree):
        problem = None if is_quoted else _syntax(text)
        if problem is None and not field.startswith(METADATA):
            problem = _difference(text, [*known.get(field, ())])
        if problem is not None and not dataset.exists(condition):
            yield f"no datum has the {field} `{text}`: {problem}"


def _texts(tree: Expression) -> Iterator[tuple[str, str, Expression, bool]]:
    """Yield the field, the text, the condition and whether it is quoted, of each text that a match compares with."""
    from ondisk.matcher import Compare, Components, Undeclared, nodes

    for node, _ in nodes(tree):
        leaf = dict(node.readings or ()).get("text") if isinstance(node, Undeclared) else node
        for part, _ in () if leaf is None else nodes(leaf):
            whole = Undeclared(node.name, (("text", part),)) if isinstance(node, Undeclared) else part
            if isinstance(part, Components):
                yield part.field, ",".join(each or "" for each in part.parts), whole, False
            elif isinstance(part, Compare) and isinstance(part.value, str):
                yield part.field, part.value, whole, True


def _syntax(text: str) -> str | None:
    if re.search(r"\sand\s", text, re.IGNORECASE):
        return "write `;` between groups, not `and`"
    if sign := re.match(r"!=|not\s", text, re.IGNORECASE):
        return f"the language has no `{sign[0].strip()}`; in Python, `~` negates a condition"
    if "*" in text:
        return "`*` is an ordinary character. A text matches by its first components, so omit those that may vary"
    if ":" in text:
        return "write `;` between groups; if the colon belongs to the value, quote the value"
    return None


def _difference(text: str, values: list[str]) -> str | None:
    """Return how a text differs from values that may have been meant; None if it looks like one of them."""
    count = text.count(",") + 1
    firsts = {value: ",".join(value.split(",")[:count]) for value in values}
    if text in firsts.values():
        return None
    if blanks := [value for value in values if ",".join(map(str.strip, value.split(","))) == text]:
        quoted = ", ".join(f'`"{value}"`' for value in blanks[:_SHOWN])
        return f"blanks beside a comma or at an end count only in quotes: write {quoted}"
    if "," in text and all(each in values for each in text.split(",")):
        return f"commas are part of a value; for one of several write `{' or '.join(text.split(','))}`"
    lower = text.casefold()
    others = [value for value, first in firsts.items() if first.casefold() == lower or value.endswith(f",{text}")]
    others = others or _similar(text, values)
    if not others and _form(text) not in map(_form, firsts.values()):
        others = values
    rule = "a text is the first components of a value, and case matters"
    return f"{rule}; there is {_listed(others)}" if others else None


def _form(text: str) -> str:
    """Return a text with each run of letters as `a` and each run of digits as `0`."""
    for run, sign in _RUNS:
        text = run.sub(sign, text)
    return text


def _listed(values: list[str]) -> str:
    more = ", …" if len(values) > _SHOWN else ""
    return ", ".join(f"`{value}`" for value in values[:_SHOWN]) + more

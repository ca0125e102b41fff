"""What pages show: values that the templates print, read from a dataset."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any, NamedTuple, Self

from ondisk.dataset.dataset import Dataset
from ondisk.dataset.query import Query
from ondisk.dataset.scan import headers
from ondisk.datum import CONTENT, Datum, from_microseconds
from ondisk.errors import InvalidInput, MatchError, OndiskError, command
from ondisk.errors import shown as quoted
from ondisk.index.field_values import FieldSummary, most_frequent_of_sums
from ondisk.maintenance import last_report
from ondisk.maintenance.last_report import LastReport
from ondisk.server.datasets import Served
from ondisk.server.pages.calendar import LEVELS, calendar, part_of, unit_of
from ondisk.server.pages.content import Node, cut, is_scalar, shown, text_of
from ondisk.server.pages.match import FORMATS, address, completions, condition, refined, removable, ways
from ondisk.server.pages.points import numeric_columns
from ondisk.tables.columns import keys_of, names_of_series

ROWS = 50  # data on a page
_MOST_ROWS = 100_000
_MOST_COLUMNS = 12
_VALUES, _COMPLETED = 12, 200
_SPANS = (("day", 1), ("7 days", 7), ("30 days", 30), ("365 days", 365))  # up to the last datum
_MOST_ITEMS = 1000
_LARGEST = 32 * 1024 * 1024  # bytes of a datum that a page reads
_LONGEST_MATCH = 8000  # characters: a longer one does not fit in the address of a page


class Asked(NamedTuple):
    name: str  # of the dataset
    path: str  # its folder, absolute
    base: str  # the address of the server
    match: str  # match, sort: as in `Dataset.query`; empty for none
    sort: str
    page: int  # from 1 on
    field: str  # whose values are counted
    y: str  # y, by: what a plot draws
    by: str | None

    @classmethod
    def of(cls, name: str, path: str, base: str, given: Mapping[str, str]) -> Self:
        """Read it; raise InvalidInput if a parameter is not valid."""
        page = given.get("page", "1")
        if not (page.isascii() and page.isdigit() and 0 < len(page) < 7 and 0 < int(page) <= _MOST_ROWS // ROWS):
            hint = "Select fewer data by time or by a field."
            raise InvalidInput(f"pages are numbered from 1 to {_MOST_ROWS // ROWS}, not {quoted(page)}", hint=hint)
        match = given.get("match", "").strip()
        if len(match) > _LONGEST_MATCH:
            raise InvalidInput(f"the match expression has {len(match)} characters; a page takes {_LONGEST_MATCH}")
        sort, field, y = (given.get(key, "").strip() for key in ("sort", "field", "y"))
        return cls(name, path, base, match, sort, int(page), field, y, given.get("by"))

    def link(self, to: str = "", /, **changed: object) -> str:
        """Return the address of a page of the dataset with the same query."""
        return address(self.name, to, **{"match": self.match, "sort": self.sort, **changed})


class Problem(NamedTuple):
    message: str
    hint: str
    # before, piece, after: the expression in three parts, of which the second is wrong; empty if that is not known
    before: str = ""
    piece: str = ""
    after: str = ""


def problem(dataset: Dataset, asked: Asked) -> Problem | None:
    try:
        Query(asked.match, asked.sort or None).check(dataset._access.current().index)
    except MatchError as error:
        position, piece = error.context.get("position"), error.context.get("piece")
        if isinstance(position, int) and isinstance(piece, str) and asked.match[position:].startswith(piece):
            end = position + max(1, len(piece))
            parts = asked.match[:position], asked.match[position:end], asked.match[end:]
            return Problem(error.message, error.hint, *parts)
        return Problem(error.message, error.hint)
    return None


class Listed(NamedTuple):
    name: str
    error: str  # why it cannot be read; the other values are empty then
    info: Mapping[str, Any]  # as `Dataset.info` returns it
    committed: datetime | None  # when it was changed last
    report: LastReport | None  # the last report about it


def listed(served: Served) -> Listed:
    try:
        with served.opened() as dataset:
            return Listed(served.name, "", *_known(dataset))
    except OndiskError as error:
        return Listed(served.name, error.message, {}, None, None)


def _known(dataset: Dataset) -> tuple[Mapping[str, Any], datetime | None, LastReport | None]:
    at = dataset.last_change()["committed_at"]
    return dataset.info(), None if at is None else from_microseconds(at), last_report.load(dataset._access.directory)


class Value(NamedTuple):
    """A value of a field that people can click."""

    text: str
    count: int  # type: ignore[assignment]  # not the method of tuples
    share: int  # its data, in percent of those of the most frequent value
    link: str  # the same query of only these data; empty if no match expression says it
    is_chosen: bool


class Facet(NamedTuple):
    name: str
    kind: str
    summary: FieldSummary | None  # None if they are not counted yet: that may take some time
    values: list[Value]
    more: str = ""  # the page of more values; empty on it


def overview(dataset: Dataset, asked: Asked) -> dict[str, Any]:
    total = dataset.summary(asked.match or None, fields=[])
    shown_calendar = None
    if total.begin is not None and total.end is not None:
        unit = unit_of(total.begin, total.end)
        with dataset.summary_by(part_of(unit), asked.match or None) as groups:
            counts = ((group.key, group.count) for group in groups if isinstance(group.key, datetime))
            shown_calendar = calendar(unit, total.begin, total.end, counts)
    info, committed, report = _known(dataset)
    return {
        "total": total,
        "calendar": shown_calendar,
        "levels": range(LEVELS + 1),
        "at": lambda name, page: asked.link(page, match=refined(asked.match, f"reftime: ={name}")),
        "facets": _facets(dataset, asked, "browse"),
        "numbers": [(name.removeprefix(CONTENT), asked.link("plot", y=name)) for name in numeric_columns(dataset)],
        "info": info,
        "committed": committed,
        "report": report,
        "toml": dataset.config.to_toml(),
        **_form(dataset, asked),
    }


def _form(dataset: Dataset, asked: Asked, page: str = "", **kept: object) -> dict[str, Any]:
    """Return what the box for the match expression shows, and what data may be missing."""

    def link(match: str) -> str:
        return asked.link(page, match=match, **kept)

    end = dataset.summary(fields=[]).end
    spans = [
        (text, f"reftime: >={end.date() - timedelta(days - 1)}")
        for text, days in _SPANS
        if end is not None and end.toordinal() >= days  # no calendar has days before the year 1
    ]
    return {
        "conditions": [(cut(group), link(rest)) for group, rest in removable(asked.match)],
        "spans": [(text, link(refined(asked.match, added))) for text, added in spans],
        "doubts": dataset.doubts(),
        "example": "" if end is None else f"reftime: ={end.date()}",
        "problem": None,
        "completions": [],
    }


def _facets(dataset: Dataset, asked: Asked, page: str) -> list[Facet]:
    """Return all fields, with their values if the sums of segments and days have them."""
    index = dataset._access.current().index
    tree = Query(asked.match).tree(index)
    with index.snapshot() as snapshot:
        found = {name: most_frequent_of_sums(snapshot, tree, name, _VALUES) for name in index.config.fields}
    return [_facet(dataset, asked, name, summary, page) for name, summary in found.items()]


def _facet(dataset: Dataset, asked: Asked, name: str, summary: FieldSummary | None, page: str) -> Facet:
    fields = dataset.config.fields
    most = max((count for _, count in summary.values), default=1) if summary is not None else 1
    values = []
    for value, count in summary.values if summary is not None else ():
        added = condition(name, value, fields)
        link = "" if added is None else asked.link(page, match=refined(asked.match, added))
        is_chosen = added is not None and any(added == group for group, _ in removable(asked.match))
        values.append(Value(cut(text_of(value)) or "(empty)", count, max(1, 100 * count // most), link, is_chosen))
    return Facet(name, fields[name].value, summary, values, asked.link("facet", field=name, sort=""))


def facet(dataset: Dataset, asked: Asked) -> dict[str, Any]:
    return {"facet": _counted(dataset, asked, _VALUES)}


def values(dataset: Dataset, asked: Asked) -> dict[str, Any]:
    return {"facet": _counted(dataset, asked, _MOST_ITEMS)._replace(more=""), **_form(dataset, asked)}


def _counted(dataset: Dataset, asked: Asked, most: int) -> Facet:
    if asked.field not in dataset.config.fields:
        raise InvalidInput(f"there is no field {quoted(asked.field)}")
    found = dataset.summary(asked.match or None, fields=[asked.field], values=most)
    return _facet(dataset, asked, asked.field, found.fields[asked.field], "browse")


def count(dataset: Dataset, asked: Asked) -> dict[str, Any]:
    return {"total": dataset.summary(asked.match or None, fields=[])}


def hints(dataset: Dataset, asked: Asked) -> dict[str, Any]:
    """Return what is wrong with a match expression that somebody is writing, and how it may continue."""
    index = dataset._access.current().index
    fields = dataset.config.fields

    def values_of(name: str) -> Iterable[Any]:
        if name not in fields:
            return []
        with index.snapshot() as snapshot:
            summary = most_frequent_of_sums(snapshot, Query().tree(index), name, _COMPLETED)
        return [] if summary is None else [value for value, _ in summary.values]

    found = [*islice(completions(asked.match, fields, values_of), 50)]
    return {"problem": problem(dataset, asked), "completions": found}


def browse(dataset: Dataset, asked: Asked) -> dict[str, Any]:
    first = (asked.page - 1) * ROWS
    order = {"sort": asked.sort or None, "limit": first + ROWS + 1}
    with dataset.query(asked.match or None, **order, with_data=False) as found:  # type: ignore[arg-type]
        rows = [*islice(found, first, None)]
    has_next = len(rows) > ROWS
    # Only the sums of segments and days are counted before the page is shown.
    return {
        **_table(dataset, asked, rows[:ROWS]),
        "first": first,
        "next": asked.link("browse", page=asked.page + 1) if has_next and first + ROWS < _MOST_ROWS else "",
        "is_cut": has_next and first + ROWS >= _MOST_ROWS,
        "previous": asked.link("browse", page=asked.page - 1) if asked.page > 1 else "",
        "facets": [Facet(name, kind.value, None, []) for name, kind in dataset.config.fields.items()],
        "downloads": [(title, asked.link("query", format=form)) for form, title in FORMATS.items()],
        "ways": ways(asked.base, asked.name, asked.path, asked.match, asked.sort),
        **_form(dataset, asked, "browse"),
    }


def mistaken(dataset: Dataset, asked: Asked, problem: Problem) -> dict[str, Any]:
    """Return what the page of data shows of a query that is not valid: only the box for the match expression."""
    return {**dict.fromkeys(("conditions", "spans", "doubts", "completions"), ()), "example": "", "problem": problem}


def _content(dataset: Dataset, found: Datum) -> tuple[dict[str, str] | None, Node | None, str]:
    """Return what a datum contains: its keys as texts, if all of them can be columns; all; why it cannot be read.

    Memory: its content until this returns; a very large one is not read.
    """
    place = found.location
    assert place is not None
    if place.size > _LARGEST:
        return None, Node("bytes", f"{place.size:,} bytes"), ""
    try:
        data = dataset.read(place).data
    except OndiskError as failed:
        return None, None, failed.message
    texts = None
    if isinstance(data, Mapping) and len(data) <= _MOST_COLUMNS and all(map(is_scalar, data.values())):
        texts = {str(key): _cell(value) for key, value in data.items()}
    return texts, shown(headers(place.segment, data) or data), ""


def _cell(value: Any) -> str:
    return cut(text_of(value)) if is_scalar(value) else shown(value).text


def _table(dataset: Dataset, asked: Asked, data: list[Datum]) -> dict[str, Any]:
    """Return the columns and the rows of a table: keys of the content are columns if those of all data can be.

    The texts of a column or row that has no link, no picture or no error are empty.
    """
    fields = [*dataset.config.fields]
    others = [name for name in keys_of(each.metadata for each in data) if name not in fields][:_MOST_COLUMNS]
    contents = [_content(dataset, each) for each in data]
    found = [texts for texts, _, error in contents if not error]
    keys = keys_of(each for each in found if each is not None)
    is_flat = 0 < len(keys) <= _MOST_COLUMNS and None not in found
    columns = [_column(asked, name) for name in ("reftime", *fields)]
    columns += [{"title": cut(name), "link": ""} for name in (*others, *(keys if is_flat else ["content"]))]
    rows = []
    for datum, (texts, content, error) in zip(data, contents, strict=True):
        cells = [_cell(datum.metadata[name]) if name in datum.metadata else "" for name in (*fields, *others)]
        if is_flat and texts is not None:
            cells += [texts.get(key, "") for key in keys]
            content = None
        place = datum.location
        assert place is not None
        where = {"match": "", "sort": "", "offset": place.offset, "size": place.size}
        is_picture = content is not None and content.kind == "picture"
        row = {"reftime": datum.reftime, "cells": cells, "content": content, "error": error}
        row["picture"] = asked.link(f"picture/{place.segment}", **where) if is_picture else ""
        row["download"] = asked.link(f"data/{place.segment}", **where)
        rows.append(row)
    return {"columns": columns, "rows": rows}


def _column(asked: Asked, name: str) -> dict[str, str]:
    """Return a column with a link to the same query in the order of this field, or in the opposite one."""
    order = {name: "ascending", f"-{name}": "descending"}.get(asked.sort, "none")
    if name == "reftime" and not asked.sort:
        order = "ascending"
    link = asked.link("browse", sort=f"-{name}" if order == "ascending" else name)
    return {"title": name, "link": link, "order": order}


def plot(dataset: Dataset, asked: Asked) -> dict[str, Any]:
    numbers = numeric_columns(dataset)
    groups = [*dataset.config.fields]
    series = [name for name in names_of_series(dataset.config) if name in groups]
    by = next(iter(series), "") if asked.by is None else asked.by
    y = asked.y or next(iter(numbers), "")
    if y and y not in numbers:
        numbers.append(y)
    return {
        "numbers": numbers,
        "groups": groups,
        "y": y,
        "by": by,
        "points": asked.link("points", sort="", y=y, by=by) if y else "",
        **_form(dataset, asked, "plot", y=y, by=by),
    }


def health(dataset: Dataset, asked: Asked) -> dict[str, Any]:
    info, committed, report = _known(dataset)
    findings = [] if report is None else [_found(asked.path, each) for each in report.findings[:_MOST_ITEMS]]
    return {
        "report": report,
        "findings": findings,
        "more": 0 if report is None else len(report.findings) - len(findings) + report.left_out,
        "changed_since": report is not None
        and committed is not None
        and committed.replace(microsecond=0) > report.time,
        "info": info,
        "committed": committed,
        "quarantine": [*islice(dataset.quarantine, _MOST_ITEMS)],
        "check": command("check", asked.path).strip("`"),
        "now": datetime.now(UTC),
        **_form(dataset, asked),
    }


def _found(path: str, each: Mapping[str, Any]) -> dict[str, Any]:
    """Return a finding of the last report with the command that mends it; that is empty if none does."""
    action, states = each["action"], each["states"]
    if action is not None:
        verb = "fix" if action in ("rescan", "remove from the index", "follow") else "repack"
        remedy = command(verb, path, "--yes").strip("`")
    elif "CORRUPTED" in states:
        remedy = command("fix", path, "--salvage", each["segment"], "--yes").strip("`")
    else:
        remedy = ""
    return {**each, "remedy": remedy}

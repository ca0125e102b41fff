"""Every example of docs/match.md is run."""

from __future__ import annotations

import doctest
import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from ondisk import items
from ondisk.datum import FieldType, canonical
from ondisk.errors import MatchError
from ondisk.matcher import matches, parse

TEXT = (Path(__file__).parents[2] / "docs" / "match.md").read_text(encoding="utf-8")
NOW = datetime(2008, 3, 25, 1, 2, 3, tzinfo=UTC)
FIELDS = {
    "station": FieldType.INTEGER,
    "product": FieldType.TEXT,
    "level": FieldType.REAL,
    "valid": FieldType.BOOLEAN,
    "made": FieldType.TIMESTAMP,
    "key": FieldType.BYTES,
}
READ = {
    "reftime": lambda text: datetime.fromisoformat(text).replace(tzinfo=UTC),
    "station": int,
    "product": str,
    "level": float,
    "valid": lambda text: text == "true",
    "made": lambda text: datetime.fromisoformat(text).replace(tzinfo=UTC),
    "key": bytes.fromhex,
    "metadata.sensor": json.loads,
}


def rows(*header: str) -> Iterator[list[str]]:
    """Yield the rows of every table whose header begins with these cells."""
    inside = False
    for line in TEXT.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
        if not cells:
            inside = False
        elif tuple(cells[: len(header)]) == header:
            inside = True
        elif inside and not cells[0].startswith("--"):
            yield cells


def data() -> dict[str, dict[str, object]]:
    kinds = {"reftime": FieldType.TIMESTAMP, **FIELDS}
    table = {}
    for letter, *cells in rows("datum"):
        given = zip(READ, cells, strict=True)
        values = {name: READ[name](cell) for name, cell in given if cell}
        table[letter] = {name: canonical(each, kinds[name]) if name in kinds else each for name, each in values.items()}
    return table


DATA = data()
ITEMS = [[cell.strip("`") for cell in row] for row in rows("item expression")]
EXAMPLES = [(cell.strip("`"), expected) for cell, expected in rows("expression", "matches")]
REFUSED = [cell.strip("`") for cell, _ in rows("refused", "because")]


def test_the_page_has_its_data_and_examples():
    assert "".join(DATA) == "ABCDEF"
    assert len(EXAMPLES) > 60
    assert len(REFUSED) > 20


@pytest.mark.parametrize(("expression", "expected"), EXAMPLES)
def test_an_example_matches_the_data_it_names(expression, expected):
    tree = parse(expression, FIELDS, now=NOW)
    found = [letter for letter, values in DATA.items() if matches(tree, values.get)]
    assert " ".join(found) == expected.replace("none", "")


@pytest.mark.parametrize("expression", REFUSED)
def test_what_the_page_calls_refused_is_refused_with_a_remedy(expression):
    with pytest.raises(MatchError) as caught:
        parse(expression, FIELDS, now=NOW)
    assert caught.value.hint
    assert "character" in caught.value.message


def test_the_python_examples_print_what_the_page_says():
    code = "\n".join(re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL))
    example = doctest.DocTestParser().get_doctest(code, {}, "match.md", "match.md", 0)
    assert len(example.examples) > 10
    output: list[str] = []
    failures, _ = doctest.DocTestRunner().run(example, out=output.append)
    assert not failures, "".join(output)


@pytest.mark.parametrize(
    ("expression", "match", "other"), [[c.strip("`") for c in row] for row in rows("item expression")]
)
def test_an_example_of_items_matches_the_one_and_not_the_other(expression, match, other):
    tree = parse(expression, dict.fromkeys(items.FIELDS, FieldType.ITEM), now=NOW)
    assert matches(tree, lambda _: match)
    assert not matches(tree, lambda _: other)

"""The same query elsewhere: a shell, Python and a server understand what a page shows to copy."""

from __future__ import annotations

import shlex
from urllib.parse import parse_qsl, unquote, urlsplit

from hypothesis import given
from hypothesis import strategies as st

from ondisk.server.pages.match import address, ways

NAMES = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1)


@given(NAMES, NAMES, st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")))
def test_a_query_can_be_copied_whatever_it_contains(name, path, match):
    command, python, url = ways("http://h:1", name, path, match, "-reftime").values()
    assert shlex.split(command) == ["ondisk", "query", path, *([match] if match else []), "--sort=-reftime"]
    compile(python, "<page>", "exec")
    found = urlsplit(url)
    assert unquote(found.path) == f"/dataset/{name}/query"
    wanted = {"match": match, "sort": "-reftime", "format": "csv"} if match else {"sort": "-reftime", "format": "csv"}
    assert dict(parse_qsl(found.query)) == wanted


def test_an_address_has_no_empty_parameters():
    assert address("a/b c", "browse", match="", page=None, sort="x") == "/dataset/a%2Fb%20c/browse?sort=x"
    assert address("a") == "/dataset/a"

from __future__ import annotations

import copy
import inspect
import pickle
import re
from pathlib import Path

import pytest

from ondisk import errors
from ondisk.dataset.append import AppendResult
from ondisk.errors import DiskFull, LockError, MatchError, OndiskError, StorageError

CLASSES = [each for _, each in inspect.getmembers(errors, inspect.isclass) if issubclass(each, OndiskError)]


def drawn() -> dict[str, tuple[str, str | None, int]]:
    """Return the tree of the docstring: class → (parent, built-in base, exit code)."""
    tree: dict[str, tuple[str, str | None, int]] = {}
    for line in (errors.__doc__ or "").splitlines():
        if found := re.fullmatch(r" +[├└]── (\w+)(?: \((\w+)\))? +([0-9]+)( .*)?", line):
            name, built_in, code, children = found.groups()
            tree[name] = ("OndiskError", built_in, int(code))
            for child, child_code in re.findall(r"(\w+) ([0-9]+)", children or ""):
                tree[child] = (name, None, int(child_code))
    return tree


def test_the_docstring_draws_the_tree_with_its_exit_codes():
    tree = drawn()
    assert {each.__name__ for each in CLASSES} == {"OndiskError", *tree}
    assert OndiskError.exit_code == 1
    for each in CLASSES:
        if each is not OndiskError:
            parent, built_in, code = tree[each.__name__]
            assert [base.__name__ for base in each.__bases__] == [parent, built_in][: 1 + (built_in is not None)]
            assert each.exit_code == code


def test_the_docstring_draws_the_tree_of_the_design():
    assert drawn()["TokenForeign"] == ("ReplicationError", None, 72)
    assert drawn()["StorageError"] == ("OndiskError", "OSError", 50)
    assert len(drawn()) == 30


def test_no_two_errors_end_with_the_same_code():
    codes = [each.exit_code for each in CLASSES]
    assert len(set(codes)) == len(codes)
    assert not {value for name, value in vars(errors).items() if name.startswith("EXIT_")} & {*codes}


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("travel", [lambda error: pickle.loads(pickle.dumps(error)), copy.copy, copy.deepcopy])
def test_an_error_survives_pickling_with_hint_and_context(kind, travel):
    error = kind("it is wrong", hint="Mend it.", line=7, path="a/b", errno=28)
    error.context["result"] = AppendResult(imported=3)
    again = travel(error)
    assert type(again) is kind
    assert (again.message, again.hint, again.context) == (error.message, error.hint, error.context)
    assert str(again) == str(error) == "it is wrong\nMend it."


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_an_error_without_a_hint_prints_only_its_message(kind):
    assert str(kind("it is wrong")) == "it is wrong"
    assert kind("it is wrong").context == {}


@pytest.mark.parametrize(
    ("kind", "built_in"), [(MatchError, ValueError), (LockError, TimeoutError), (DiskFull, OSError)]
)
def test_errors_are_caught_as_their_built_in_base_classes(kind, built_in):
    with pytest.raises(built_in):
        raise kind("it is wrong")


def test_a_storage_error_does_not_pretend_to_have_an_errno():
    assert StorageError("disk: it is wrong", errno=5).errno is None


def test_every_error_says_in_one_line_when_it_is_raised():
    assert all(re.fullmatch(r"[A-Z`].+[.]", (each.__doc__ or "").splitlines()[0]) for each in CLASSES)


def test_errors_import_nothing_of_ondisk():
    source = Path(errors.__file__).read_text()
    assert not re.search(r"^\s*(from|import) ondisk", source, re.MULTILINE)


def test_a_command_of_a_hint_can_be_copied():
    assert errors.command("fix", Path("/data/weather"), "--yes") == "`ondisk fix /data/weather --yes`"
    assert errors.command("fix", "/my data/it's", "--yes") == """`ondisk fix '/my data/it'"'"'s' --yes`"""


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (5, "5"),
        ("a'b", '"a\'b"'),
        ({"b": [1, (2.5,)], "a": None}, "{'b': [1, (2.5,)], 'a': None}"),
        (10**5000, "<an integer of 16610 bits>"),
        ({"n": [-(10**5000)]}, "{'n': [<an integer of 16610 bits>]}"),
        ("x" * 1000, f"'{'x' * 80}'…"),
        (b"x" * 1000, f"b'{'x' * 80}'…"),
        ([*range(100)], "[0, 1, 2, 3, 4, 5, …]"),
        ([[[[[[5]]]]]], "[[[[[…]]]]]"),
        ({"a": {"b": {"c": {"d": {"e": 5}}}}}, "{'a': {'b': {'c': {'d': {…}}}}}"),
    ],
    ids=range(10),
)
def test_a_value_in_a_message_is_cut(value, text):
    assert errors.shown(value) == text


def test_a_count_has_its_noun_and_verb_in_singular_or_plural():
    counted = errors.counted
    assert [counted(count, "datum", "was") for count in range(3)] == ["0 data were", "1 datum was", "2 data were"]
    assert [counted(count, "file", "has") for count in range(3)] == ["0 files have", "1 file has", "2 files have"]
    assert [counted(count, "byte") for count in range(3)] == ["0 bytes", "1 byte", "2 bytes"]

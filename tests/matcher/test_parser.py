from __future__ import annotations

import time
from contextlib import suppress
from datetime import UTC, datetime

import pytest

from ondisk.datum import FieldType
from ondisk.errors import InvalidInput, MatchError
from ondisk.matcher import And, Compare, Components, Everything, OneOf, Or, parse
from ondisk.matcher.parser import MAX_LENGTH

FIELDS = {
    "station": FieldType.INTEGER,
    "level": FieldType.REAL,
    "product": FieldType.TEXT,
    "valid": FieldType.BOOLEAN,
    "made": FieldType.TIMESTAMP,
    "key": FieldType.BYTES,
}


def read(text):
    return parse(text, FIELDS)


def refusal(text):
    with pytest.raises(MatchError) as caught:
        read(text)
    assert caught.value.hint
    return caught.value


@pytest.mark.parametrize("text", ["", "  ", "\n", ";", " ; \n\t;\r\n"])
def test_an_empty_expression_matches_everything(text):
    assert read(text) == Everything()


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("station:5", Compare("station", "=", 5)),
        ("STATION : == -5 ", Compare("station", "=", -5)),
        ("station:+5", Compare("station", "=", 5)),
        ("station:>=3,<10", And((Compare("station", ">=", 3), Compare("station", "<", 10)))),
        ("station:> 3", Compare("station", ">", 3)),
        ("station:9223372036854775807", Compare("station", "=", 2**63 - 1)),
        ("station:-9223372036854775808", Compare("station", "=", -(2**63))),
        ("level:5", Compare("level", "=", 5.0)),
        ("level:<=-.5e1", Compare("level", "<=", -5.0)),
        ("level:<inf", Compare("level", "<", float("inf"))),
        ("level:-Infinity", Compare("level", "=", float("-inf"))),
        ("valid:True", Compare("valid", "=", 1)),
        ("valid:false", Compare("valid", "=", 0)),
        ("key:00fF", Compare("key", "=", b"\x00\xff")),
        ("key:0x00fF", Compare("key", "=", b"\x00\xff")),
        ("key:0x", Compare("key", "=", b"")),
        ("made:>=1970-01-02", Compare("made", ">=", 86400_000_000)),
        ("reftime:>=1970-01-02", Compare("reftime", ">=", 86400_000_000)),
        ("product:VM2,2", Components("product", ("VM2", "2"))),
        ("product: GRIB1 , 98,,101 ", Components("product", ("GRIB1", "98", None, "101"))),
        ("product:,2,,", Components("product", (None, "2"))),
        ("product:a:b", Components("product", ("a:b",))),
        ("product:order", Components("product", ("order",))),
        ('product:"VM2,2"', Compare("product", "=", "VM2,2")),
        ('product:" a; b or ""c""\n"', Compare("product", "=", ' a; b or "c"\n')),
        ('product:"a, station: 5"', Compare("product", "=", "a, station: 5")),
        ("product:a, b: c", Components("product", ("a", "b: c"))),
        ('product:""', Compare("product", "=", "")),
        ('product:""""', Compare("product", "=", '"')),
    ],
)
def test_one_value_reads_as_one_condition(text, tree):
    assert read(text) == tree


def test_stored_values_have_the_type_of_the_field():
    assert type(read("level:5").value) is float
    assert type(read("valid:true").value) is int


def test_groups_are_joined_by_semicolons_and_line_breaks_and_must_all_match():
    tree = And((Compare("station", "=", 5), Compare("valid", "=", 1), Compare("level", "<", 2.0)))
    assert read("station:5;valid:true\nlevel:<2;") == tree


def test_a_field_that_is_there_twice_must_match_both_times():
    assert read("product:a; product:,b") == And((Components("product", ("a",)), Components("product", (None, "b"))))


def test_alternatives_are_joined_by_or_in_any_case():
    assert read("product:a or b OR c") == Or(tuple(Components("product", (name,)) for name in "abc"))


def test_equal_values_become_one_condition_however_many_they_are():
    tree = read("station:" + " or ".join(str(n % 5000) for n in range(10_000)))
    assert tree == OneOf("station", tuple(range(5000)))
    assert read("station:5 or 5") == Compare("station", "=", 5)


def test_reftime_needs_no_declaration():
    assert parse("reftime:>=1970", {}) == Compare("reftime", ">=", 0)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("station 5", "no colon"),
        ("statoin:5", "no field 'statoin'"),
        (":5", "no field"),
        ("station:", "nothing"),
        ("station:5 or", "nothing"),
        ("station:or 5", "nothing"),
        ("station:5 or or 7", "nothing"),
        ("station:5.0", "not an integer"),
        ("station:0x5", "not an integer"),
        ("station:1_000", "not an integer"),
        ("station:５", "not an integer"),
        ("station:>=", "not an integer"),
        ("station:5,7", "no operator"),
        ("station:>5,", "no operator"),
        ("station:9223372036854775808", "too large"),
        ("station:" + "9" * 5000, "too large"),
        ("level:nan", "not a number"),
        ("level:1e999", "too large"),
        ("level:-1e999", "too large"),
        ("level:.", "not a number"),
        ("valid:yes", "not a boolean"),
        ("valid:1", "not a boolean"),
        ("key:0", "not hexadecimal"),
        ("key:0xgg", "not hexadecimal"),
        ("product:,", "no component"),
        ("product:or", "nothing"),
        ('product:a"b"', "quoted in part"),
        ('product:"a" "b"', "quoted in part"),
        ('product:"a', "no end"),
        ('station:5; product:"a; level:3', "no end"),
        ("product:VM2, station:5", "'station:' begins a group inside the value of product"),
        ('product:"a" or b,Reftime :=2007', "'Reftime :' begins a group"),
        ("station:>=5, level:<2", "'level:' begins a group inside the value of station"),
        ("product:\ud800", "surrogate"),
        ('product:"\udfff"', "surrogate"),
    ],
)
def test_what_is_not_of_the_language_is_refused(text, says):
    assert says in refusal(text).message


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("station != 5", "has no `!=`"),
        ("station: !=5", "no `!=`"),
        ("reftime: !=2026", "no `!=`"),
        ("not station: 5", "no `not`"),
        ("station: 5 and product: VM2", "no `and`"),
        ('product: "a and b', 'Close it with "'),
        ("prodcut: rock", "Did you mean `product`?"),
        ("station: and", "Write digits only"),
        ("station: 2 or station: 3", "Write the field once: `station: 2 or 3`."),
        ("product: VM2 or Product : rock", "Write the field once: `product: "),
        ("reftime: =2026 or reftime: =2027", "Write the field once: `reftime: "),
        ("metadata.sensor: 2 or metadata.sensor: 3", "Write the field once: `metadata.sensor: "),
        ("station: 5 or product: VM2", "make two queries"),
        ("product: VM2 or station: 5", "quote the whole value"),
        ("metadata.sensor: 2 or station: 5", "make two queries"),
    ],
)
def test_what_other_languages_have_is_named(text, says):
    assert says in refusal(text).hint


def test_the_name_of_a_field_after_or_belongs_to_a_text_in_quotes():
    assert read('product: "VM2 or station: 5"') == Compare("product", "=", "VM2 or station: 5")


def test_an_error_says_where_it_is():
    error = refusal("station:5; product:VM2 or  ,,")
    assert error.context == {"piece": ",,", "position": 27}
    assert "character 28" in error.message


def test_an_error_for_an_unknown_field_names_the_one_that_was_likely_meant():
    assert refusal("Statoin:5").hint.startswith("Did you mean `station`? The fields are ")
    assert refusal("colour:blue").hint.startswith("The fields are key, level, made, product, reftime, station, valid")
    assert ".." not in refusal("statoin:5").hint


def test_an_error_does_not_repeat_a_long_text():
    assert len(str(refusal("station:" + "x" * 50_000))) < 300


def test_an_expression_that_is_too_long_is_refused():
    assert read("station:5" + " " * (MAX_LENGTH - 9)) == Compare("station", "=", 5)
    assert str(MAX_LENGTH) in refusal("station:5" + " " * (MAX_LENGTH - 8)).message


@pytest.mark.parametrize(
    "text",
    [
        "reftime:=" + "1 day before " * 7000 + "today",
        "reftime:=today" + " - 1 day" * 12_000,
        "reftime:=" + "1 day " * 16_000 + "ago",
        "reftime:" + ">=2007," * 14_000 + "<2008",
        ";" * MAX_LENGTH,
        "station:5;" * 10_000,
        'product:"' + '""' * 49_000 + '"',
        'product:"' * 11_000,
        "product:" + " or" * 33_000,
        "product:or" + " " * 99_000,
        "product:" + "," * 99_000,
        "product:" + ",station " * 12_000,
        "product:," + "a" * 99_000,
        "product:," + " " * 99_000,
        "x" * 99_000 + ":",
        "reftime:=" + ":00+" * 24_000,
        "reftime:" + "%1 " * 33_000,
        "reftime:%" + "1" * 99_000,
        "reftime:=" + "1." * 49_000,
        " " * 99_999 + "x",
        "station:" + " " * 99_000 + "x y",
    ],
    ids=lambda text: text[:24],
)
def test_the_longest_expressions_are_read_or_refused_quickly(text):
    begin = time.thread_time()
    with suppress(MatchError):
        read(text)
    assert time.thread_time() - begin < 5


def test_now_must_have_a_time_zone():
    with pytest.raises(InvalidInput, match="no time zone"):
        parse("reftime:=now", {}, now=datetime(2008, 1, 1))


def test_now_is_the_present_unless_given():
    begin = datetime.now(UTC)
    tree = parse("reftime:>=now", {})
    assert abs(tree.value / 1e6 - begin.timestamp()) < 10

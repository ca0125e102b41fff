"""Schemas as Spark's DDL writes them."""

from __future__ import annotations

import pytest

from ondisk.errors import InvalidInput
from ondisk.spark.ddl import parse_struct


@pytest.mark.parametrize(
    ("text", "simple"),
    [
        ("wind double", "struct<wind:double>"),
        ("a INT, b: string ,`c d` bigint", "struct<a:int,b:string,c d:bigint>"),
        ("at struct<x: int, y: struct<z: binary>>", "struct<at:struct<x:int,y:struct<z:binary>>>"),
        (
            "many array<array<real>>, other map<string, boolean>",
            "struct<many:array<array<float>>,other:map<string,boolean>>",
        ),
        ("s smallint, t tinyint, when timestamp", "struct<s:smallint,t:tinyint,when:timestamp>"),
    ],
)
def test_a_schema_is_read(text, simple):
    assert parse_struct(text).simpleString() == simple


@pytest.mark.parametrize(
    "text",
    [
        "",
        "wind",
        "wind double,",
        "wind double note",
        "a struct<>",
        "a array<int",
        "a map<int>",
        "a decimal(3,2)",
        "a b",
        "a int;",
    ],
)
def test_what_is_no_schema_is_refused_with_an_example(text):
    with pytest.raises(InvalidInput, match="is missing near") as caught:
        parse_struct(text)
    assert "wind double" in caught.value.hint

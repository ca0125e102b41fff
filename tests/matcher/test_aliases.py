"""Aliases stand for alternatives, as in arkimet's file; what cannot be meant is an error."""

from __future__ import annotations

import time

import pytest

from ondisk.datum import FieldType
from ondisk.errors import ConfigError, MatchError
from ondisk.matcher import parse
from ondisk.matcher.aliases import Aliases

FIELDS = {"timerange": FieldType.ITEM, "level": FieldType.ITEM, "quantity": FieldType.ITEM, "station": FieldType.TEXT}
TEXT = """
# as arkimet has it
[timerange]
c006 = Timedef,6h,1,6h
C012=Timedef,12h,1,12h
rain = c006 or c012
       or GRIB1,4,0h
[level]
g02 = GRIB1,105,2 or GRIB2S,103,0,2
[reftime]
recent = >=2026-11-01
"""


def aliases(text: str) -> Aliases:
    return Aliases.parse(text, "match-alias.conf")


def test_an_alias_means_its_alternatives():
    known = aliases(TEXT)
    for text, meant in {
        "timerange: rain": "timerange: Timedef,6h,1,6h or Timedef,12h,1,12h or GRIB1,4,0h",
        "timerange: RAIN or GRIB1,0": "timerange: Timedef,6h,1,6h or Timedef,12h,1,12h or GRIB1,4,0h or GRIB1,0",
        "level: g02; timerange: c006": "level: GRIB1,105,2 or GRIB2S,103,0,2; timerange: Timedef,6h,1,6h",
        "reftime: recent; station: rain": "reftime: >=2026-11-01; station: rain",
        "station: g02": "station: g02",
    }.items():
        assert parse(text, FIELDS, aliases=known) == parse(meant, FIELDS)


@pytest.mark.check
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[level]\na = b\nb = c or GRIB1,1\nc = a", "leads to itself: a → b → c → a"),
        ("[level]\na = A", "leads to itself: a → a"),
        ("[level]\ngrib1 = GRIB1,105", "is a value of level"),
        ("[product]\nVM2,1 = VM2,227", "is a value of product"),
        ("[quantity]\nacrr = ACRR,TH", "is a value of quantity"),
        ("[level]\na = GRIB1,1\nA = GRIB1,2", "already exists"),
        ("[prodcut]\na = GRIB1,1", "not a section of aliases"),
        ("a = GRIB1,1", "no section headers"),
        ("[level]\nGRIB1,1\n", "parsing errors"),
        ("[level]\n" + "".join(f"a{n} = a{n + 1}\n" for n in range(200)), "deeper than 50"),
        ("[level]\n" + "".join(f"a{n} = a{n + 1}\n" for n in reversed(range(200))), "deeper than 50"),
        ("[level]\na = " + " or ".join(f"GRIB1,{n}" for n in range(1001)), "stands for 1001 alternatives"),
    ],
)
def test_a_file_that_cannot_be_meant_is_an_error(text, said):
    with pytest.raises(ConfigError, match=said) as caught:
        aliases(text)
    assert caught.value.hint


@pytest.mark.check
def test_aliases_that_name_each_other_many_times_stay_small():
    lines = "".join(f"a{n} = a{n + 1} or a{n + 1}\n" for n in range(40))
    assert aliases(f"[level]\n{lines}a40 = GRIB1,1").find("level", "a0") == ("GRIB1,1",)
    begin = time.process_time()
    aliases("[task]\n" + "".join(f"a{n} = b{n} or c{n} or a{n + 1 if n % 40 else n}x\n" for n in range(4000)))
    assert time.process_time() - begin < 5  # 0.1 s alone


@pytest.mark.check
def test_an_error_in_what_an_alias_means_names_the_alias_and_the_file():
    with pytest.raises(MatchError, match=r"alias 'x' of level, in match-alias\.conf: '>5' is not a number"):
        parse("level: x", FIELDS, aliases=aliases("[level]\nx = GRIB1,100,>5"))

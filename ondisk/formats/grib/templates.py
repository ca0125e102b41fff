"""Where GRIB 2 product definition templates have what identifies a message: the octets of section 4.

Source: WMO no. 306, FM 92-XIV GRIB, templates 4.0 to 4.129, of versions up to 33; each octet was found by setting the
key of this meaning with ecCodes 2.50, and looking at which octets changed.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

# Templates | octet of the type of the process | how the time and the surfaces follow | other values.
#   -            background and process after it, unit of the forecast time 6 octets later, the time in four octets,
#                two surfaces of six octets
#   short-time   so, but the time has two octets
#   no-time      the surfaces follow the process
#   no-surfaces  the time, without surfaces
#   process      only the process
#   bare         only the type of the process
# Other values: type (ty), number (pf) and count (tf) of members, derived (d), probability (pt), percentile (pv),
# statistic (sp), with their first octet, and the number of octets if it is not one.
_TABLE = """
0 7 15 51 86 128 | 12 | - |
1 60 129 | 12 | - | ty35 pf36 tf37
2 3 4 | 12 | - | tf36 d35
5 | 12 | - | pt37
6 | 12 | - | pv35
8 105 | 12 | - | sp47
9 | 12 | - | pt37 sp60
10 | 12 | - | pv35 sp48
11 | 12 | - | ty35 pf36 tf37 sp50
12 | 12 | - | tf36 d35 sp49
13 | 12 | - | tf36 d35 sp81
14 | 12 | - | tf36 d35 sp77
20 | 12 | bare |
30 31 35 | 12 | process |
32 | 12 | no-surfaces |
33 | 12 | no-surfaces | ty24 pf25 tf26
34 | 12 | no-surfaces | ty24 pf25 tf26 sp39
40 | 14 | - |
41 | 14 | - | ty37 pf38 tf39
42 | 14 | - | sp49
43 | 14 | - | ty37 pf38 tf39 sp52
44 | 25 | short-time |
45 | 25 | - | ty48 pf49 tf50
46 | 25 | - | sp60
47 85 | 25 | - | ty48 pf49 tf50 sp63
48 | 36 | - |
49 | 36 | - | ty59 pf60 tf61
50 | 25 | - |
53 55 | 18 | - |
54 59 | 18 | - | ty41 pf42 tf43
56 | 18 | - | pf41 tf42
57 | 21 | - |
58 | 21 | - | ty44 pf45 tf46
61 | 12 | - | ty35 pf36 tf37 sp57
62 | 18 | - | sp53
63 | 18 | - | ty41 pf42 tf43 sp56
67 | 21 | - | sp56
68 | 21 | - | ty44 pf45 tf46 sp59
70 89 | 17 | - |
71 | 17 | - | ty40 pf41 tf42
72 | 17 | - | sp52
73 | 17 | - | ty40 pf41 tf42 sp55
76 | 15 | - |
77 | 15 | - | ty38 pf39 tf40
78 | 15 | - | sp50
79 | 15 | - | ty38 pf39 tf40 sp53
80 113 124 | 37 | - |
81 125 | 37 | - | ty60 pf61 tf62
82 | 26 | - | sp61
83 84 | 26 | - | ty49 pf50 tf51 sp64
87 | 12 | - | sp51
88 | 12 | no-time |
90 | 17 | - | sp56
91 | 12 | - | sp48
92 | 12 | no-time | ty27 pf28 tf29
93 | 17 | no-time |
94 | 17 | no-time | ty32 pf33 tf34
95 | 12 | no-time | sp27
96 | 12 | no-time | ty27 pf28 tf29 sp30
97 | 17 | no-time | sp32
98 | 17 | no-time | ty32 pf33 tf34 sp35
99 101 | 20 | no-surfaces |
100 102 | 20 | no-surfaces | ty31 pf32 tf33
103 108 | 23 | - |
104 109 | 23 | - | ty46 pf47 tf48
106 | 12 | - | ty59 pf60 tf61 sp47
107 | 12 | - | tf60 d59 sp47
110 | 23 | - | sp58
111 | 23 | - | ty46 pf47 tf48 sp61
112 | 12 | - | pt61 sp47
114 126 | 37 | - | sp72
115 | 37 | - | ty60 pf61:4 tf65:4
116 | 37 | - | ty60 pf61:4 tf65:4 sp81
117 | 12 | - | ty35 pf36:4 tf40:4
118 | 12 | - | ty35 pf36:4 tf40:4 sp56
119 121 | 12 | - | ty35 tf36:4 pt42
120 122 | 12 | - | ty35 tf36:4 pt42 sp65
123 | 12 | - | ty59 tf60:4 pt66 sp47
127 | 37 | - | ty60 pf61 tf62 sp75
"""

# Lists before what identifies the message: template → octet of their length, octets of an entry, entries in the table.
_LISTS = {33: (23, 11, 0), 34: (23, 11, 0), 53: (13, 2, 1), 54: (13, 2, 1),
          57: (20, 5, 0), 58: (20, 5, 0), 67: (20, 5, 0), 68: (20, 5, 0)}  # fmt: skip
_BANDS = {30: (14, 10), 31: (14, 11), 32: (23, 11), 33: (23, 11), 34: (23, 11)}


class Template(NamedTuple):
    """Where one template has its values. All are numbers of octets, which begin with 1; 0 if it has no such value."""

    type: int  # the type of the generating process
    # background, process: its identifiers
    background: int
    process: int
    time: int  # the first octet of the forecast time; its unit precedes it
    time_size: int  # octets of the forecast time
    surface: int  # the first octet of the first of two surfaces
    statistic: int  # the first statistic over a time
    length: int  # the first octet of how long that time is; its unit precedes it
    values: dict[str, tuple[int, int]]  # other values: key → first octet, and number of octets
    # a list that moves all after it: octet of its length, octets of an entry, entries that are counted in here
    list: tuple[int, int, int]
    bands: tuple[int, int]  # octet of the number of a satellite's bands, and octets of a band
    size: int  # octets of section 4 that these values need


@cache
def templates() -> dict[int, Template]:
    found = {}
    for line in _TABLE.split("\n"):
        if line:
            numbers, first, layout, others = (line + " ").split("|")
            for number in map(int, numbers.split()):
                found[number] = _template(number, int(first), layout.strip(), others.split())
    return found


def _template(number: int, first: int, layout: str, others: list[str]) -> Template:
    values: dict[str, tuple[int, int]] = {}
    for each in others:
        key = each.rstrip("0123456789:")
        octet, _, size = each[len(key) :].partition(":")
        values[key] = int(octet), int(size or 1)
    has_time = layout in ("-", "short-time", "no-surfaces")
    has_surfaces = layout in ("-", "short-time", "no-time")
    has_process = layout not in ("bare", "process")
    time_size = 2 if layout == "short-time" else 4
    time = first + 7 if has_time else 0
    statistic = values.pop("sp", (0, 1))[0]
    # Without a forecast time there is no type of time increment between the statistic and its length.
    length = statistic + (3 if has_time else 2) if statistic else 0
    surface = (time + time_size if has_time else first + 3) if has_surfaces else 0
    moving, bands = _LISTS.get(number, (0, 0, 0)), _BANDS.get(number, (0, 0))
    ends = [
        first,
        time + time_size - 1,
        surface + 11 if surface else 0,
        length + 3 if length else 0,
        bands[0],
        moving[0],
    ]
    ends += [octet + size - 1 + (9 if key == "pt" else 0) for key, (octet, size) in values.items()]
    return Template(
        type=first,
        background=first + 1 if has_process else 0,
        process={"bare": 0, "process": first + 1}.get(layout, first + 2),
        time=time,
        time_size=time_size,
        surface=surface,
        statistic=statistic,
        length=length,
        values=values,
        list=moving,
        bands=bands,
        size=max(ends),
    )

"""What precedes the data of a BUFR message: sections 0, 1, 2 and 3, of editions 2, 3 and 4.

    "BUFR", length (3), edition, section 1: identification, [section 2], section 3: descriptors, section 4: data, "7777"

Source: WMO no. 306, FM 94-XIV BUFR. A year of edition 2 or 3 is one of a century: 51 to 100 are 1951 to 2000.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from ondisk.errors import InvalidInput

Time: TypeAlias = tuple[int, int, int, int, int, int]

EDITIONS = (2, 3, 4)
_EDITION_AT, _BEGIN = 7, 8
_LEAST_1 = {2: 17, 3: 17, 4: 22}  # octets of section 1
_LEAST_2, _LEAST_3, _LEAST_4 = 4, 7, 4
_HAS_SECTION_2, _IS_COMPRESSED = 0x80, 0x40
_NO_SUBCATEGORY = 255  # before edition 4 there is no international one


class Sections(NamedTuple):
    identity: bytes  # edition, and what section 1 says beside time and update sequence number
    descriptors: bytes  # section 3 after its length: number of reports, flags, and descriptors of two bytes each
    update: int  # the update sequence number: 0 for the original message
    time: bytes  # the octets of the typical time of the data
    data: bytes  # section 4 after its length; empty if that is wrong


class Kind(NamedTuple):
    # centre, subcentre: where they are from
    centre: int
    subcentre: int
    # category, subcategory, local_subcategory: what their data are, by WMO's table A and the centre's
    category: int
    subcategory: int
    local_subcategory: int
    master_table: int  # 0 for meteorology
    # version, local_version: of the tables by which they are written
    version: int
    local_version: int
    reports: int  # number of subsets
    is_compressed: bool  # the values of all reports of an element are together
    descriptors: bytes  # two bytes each


def sections(message: bytes) -> Sections:
    """Return the parts of a message; raise InvalidInput if one of the sections 1 to 3 is too short or too long."""
    edition = message[_EDITION_AT]
    end = _end(message, 1, _BEGIN, _LEAST_1[edition])
    head = message[_EDITION_AT:end]  # octet n of section 1 is here at n
    if edition == 4:
        identity, update, flags, time = head[:1] + head[4:9] + head[11:16], head[9], head[10], head[16:23]
    else:
        identity, update, flags, time = head[:1] + head[4:7] + head[9:13], head[7], head[8], head[13:18]
    if flags & _HAS_SECTION_2:
        end = _end(message, 2, end, _LEAST_2)
    begin, end = end, _end(message, 3, end, _LEAST_3)
    size = int.from_bytes(message[end : end + 3], "big")
    is_whole = _LEAST_4 <= size <= len(message) - end
    data = message[end + _LEAST_4 : end + size] if is_whole else b""
    return Sections(identity, message[begin + 4 : end], update, time, data)


def reports(message: bytes) -> int:
    """Return the number of reports in a message that `sections` has divided."""
    at = _BEGIN + (message[8] << 16 | message[9] << 8 | message[10])
    if message[17 if message[_EDITION_AT] == 4 else 15] & _HAS_SECTION_2:
        at += int.from_bytes(message[at : at + 3], "big")
    return message[at + 4] << 8 | message[at + 5]


def _end(message: bytes, number: int, begin: int, least: int) -> int:
    size = int.from_bytes(message[begin : begin + 3], "big")
    if not least <= size <= len(message) - begin:
        raise InvalidInput(f"section {number} has {size} octets")
    return begin + size


def kind_of(identity: bytes, descriptors: bytes) -> Kind:
    """Return what sections 1 and 3 say of the kind of a message."""
    if identity[0] == 4:
        centre, subcentre = identity[2] << 8 | identity[3], identity[4] << 8 | identity[5]
        category, subcategory, local, *versions = identity[6:]
    else:
        centre, subcentre = (identity[3], identity[2]) if identity[0] == 3 else (identity[2] << 8 | identity[3], 0)
        category, local, *versions = identity[4:]
        subcategory = _NO_SUBCATEGORY
    return Kind(
        centre=centre,
        subcentre=subcentre,
        category=category,
        subcategory=subcategory,
        local_subcategory=local,
        master_table=identity[1],
        version=versions[0],
        local_version=versions[1],
        reports=descriptors[0] << 8 | descriptors[1],
        is_compressed=bool(descriptors[2] & _IS_COMPRESSED),
        descriptors=descriptors[3 : len(descriptors) - (len(descriptors) - 3) % 2],
    )


def time_of(octets: bytes) -> Time:
    """Return the typical time of the data of a message; before edition 4 it has no seconds."""
    if len(octets) == 7:
        high, low, month, day, hour, minute, second = octets
        return high << 8 | low, month, day, hour, minute, second
    year, month, day, hour, minute = octets
    return 1900 + year if year > 50 else 2000 + year, month, day, hour, minute, 0

"""Write the BUFR tables that ondisk ships: `python3 tools/make_bufr_tables.py ECCODES [--wmo WMO]`.

ECCODES is an unpacked package `libeccodes-data` of Debian (`apt-get download libeccodes-data`, then `dpkg -x FILE
ECCODES`), or an unpacked release of ecCodes. Both have WMO's tables of all versions and the tables of some centres, and
are under the Apache License 2.0. WMO is an unpacked release of WMO's repository BUFR4: if given, the newest version
here must be equal to it, else its differences are printed and nothing is written.

The result is `ondisk/formats/bufr/tables.json.gz`; `ondisk/formats/bufr/tables.py` says what is in it.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import hashlib
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

OLDEST, NEWEST = 6, 38
RESULT = Path(__file__).parents[1] / "ondisk" / "formats" / "bufr" / "tables.json.gz"
_KINDS = {"string": 1, "table": 2, "flag": 2}  # of elements; 0 for numbers
_SEQUENCE = re.compile(r'"([0-9]{6})"\s*=\s*\[([^\]]*)\]')

Table = dict[str, list[int]]


class Eccodes:
    """ecCodes' tables below a folder.

    Attributes:
        version: of ecCodes.
        sha256: of all files that were read, with their paths, in their order.
    """

    def __init__(self, folder: Path) -> None:
        found = sorted(folder.rglob("definitions/bufr/tables/0/wmo"))
        if not found:
            raise SystemExit(f"{folder}: no definitions/bufr/tables/0/wmo in it")
        self._root = found[0].parent
        self.version = _version(folder)
        self._hash = hashlib.sha256()

    @property
    def sha256(self) -> str:
        return self._hash.hexdigest()

    def folders(self) -> Iterator[tuple[int, int, str]]:
        """Yield the centre, the version (0 if it is not a number) and the folder of each centre's tables."""
        for path in sorted(self._root.glob("local/*/*/0/element.table")):
            version, centre = path.parts[-4:-2]
            yield int(centre), int(version) if version.isdecimal() else 0, str(path.parent.relative_to(self._root))

    def elements(self, folder: str) -> Table:
        """Return the elements of a folder: descriptor → width, scale, reference value, kind."""
        found = {}
        for line in self._read(folder, "element.table").splitlines():
            if line and not line.startswith("#"):
                code, _, kind, _, _, scale, reference, width, *_ = line.split("|")
                found[code] = [int(width), int(scale), int(reference), _KINDS.get(kind, 0)]
        return found

    def sequences(self, folder: str) -> Table:
        """Return the sequences of a folder: descriptor → descriptors."""
        text = self._read(folder, "sequence.def")
        return {code: [int(each) for each in re.findall("[0-9]+", body)] for code, body in _SEQUENCE.findall(text)}

    def _read(self, folder: str, name: str) -> str:
        path = self._root / folder / name
        if not path.exists():
            return ""
        content = path.read_bytes()
        self._hash.update(f"{folder}/{name}\n".encode() + content)
        return content.decode()


def _version(folder: Path) -> str:
    for path in folder.rglob("changelog.Debian.gz"):
        return gzip.decompress(path.read_bytes()).decode().partition("(")[2].partition(")")[0]
    for path in sorted(folder.glob("**/CMakeLists.txt")):
        if found := re.search(r"project\(\s*eccodes\s+VERSION\s+([0-9.]+)", path.read_text(), re.IGNORECASE):
            return found[1]
    raise SystemExit(f"{folder}: neither changelog.Debian.gz nor CMakeLists.txt says the version of ecCodes")


def add(runs: dict[str, list[list[int]]], version: int, table: Table) -> None:
    """Add what a version says, where it differs from the version before."""
    for code, says in table.items():
        known = runs.setdefault(code, [])
        if not known or known[-1][1:] != says:
            known.append([version, *says])


def is_local(code: str) -> bool:
    return int(code[1:3]) >= 48 or int(code[3:]) >= 192


def tables(eccodes: Eccodes) -> dict[str, object]:
    """Return all tables; see `ondisk.formats.bufr.tables`."""
    elements: dict[str, list[list[int]]] = {}
    sequences: dict[str, list[list[int]]] = {}
    for version in range(OLDEST, NEWEST + 1):
        add(elements, version, eccodes.elements(f"wmo/{version}"))
        add(sequences, version, eccodes.sequences(f"wmo/{version}"))
    centres: dict[int, dict[str, dict[str, list[list[int]]]]] = {}
    for centre, version, folder in sorted(eccodes.folders()):
        own = centres.setdefault(centre, {"elements": {}, "sequences": {}})
        for name, table in (("elements", eccodes.elements(folder)), ("sequences", eccodes.sequences(folder))):
            known = elements if name == "elements" else sequences
            add(own[name], version, {code: table[code] for code in table if is_local(code) or code not in known})
    source = {"name": "ecCodes", "version": eccodes.version, "sha256": eccodes.sha256}
    return {"source": source, "elements": elements, "sequences": sequences, "centres": centres}


def wmo_tables(folder: Path) -> tuple[Table, Table]:
    """Return the elements and sequences of WMO's release, as those of ecCodes; the kind of a number may be any."""
    elements, sequences = {}, {}
    for path in sorted(folder.rglob("BUFRCREX_TableB_en_*.csv")):
        for row in csv.DictReader(path.read_text("utf-8-sig").splitlines()):
            numbers = (row["BUFR_DataWidth_Bits"], row["BUFR_Scale"], row["BUFR_ReferenceValue"])
            if all(numbers):
                is_text = row["BUFR_Unit"].upper() == "CCITT IA5"
                elements[row["FXY"]] = [*(int(each.replace(" ", "")) for each in numbers), int(is_text)]
    for path in sorted(folder.rglob("BUFR_TableD_en_*.csv")):
        for row in csv.DictReader(path.read_text("utf-8-sig").splitlines()):
            sequences.setdefault(row["FXY1"], []).append(int(row["FXY2"]))
    if not elements or not sequences:
        raise SystemExit(f"{folder}: no BUFRCREX_TableB_en_*.csv and BUFR_TableD_en_*.csv in it")
    return elements, sequences


def differences(eccodes: Eccodes, folder: Path) -> list[str]:
    """Return how WMO's release differs from the newest version in ecCodes."""
    elements, sequences = wmo_tables(folder)
    own = eccodes.elements(f"wmo/{NEWEST}")
    plain = {code: [*says[:3], int(says[3] == 1)] for code, says in own.items()}
    pairs = [(elements, plain), (sequences, eccodes.sequences(f"wmo/{NEWEST}"))]
    return [
        f"{code}: WMO {wmo.get(code)}, ecCodes {other.get(code)}"
        for wmo, other in pairs
        for code in sorted(wmo.keys() | other.keys())
        if wmo.get(code) != other.get(code)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("eccodes", type=Path)
    parser.add_argument("--wmo", type=Path)
    arguments = parser.parse_args()
    if arguments.wmo and (found := differences(Eccodes(arguments.eccodes), arguments.wmo)):
        sys.exit("\n".join(found))
    made = tables(Eccodes(arguments.eccodes))
    content = json.dumps(made, separators=(",", ":"), sort_keys=True).encode()
    RESULT.write_bytes(gzip.compress(content, 9, mtime=0))
    print(json.dumps(made["source"]), RESULT.stat().st_size, "bytes")


if __name__ == "__main__":
    main()

"""The tables of BUFR, and the script that makes them."""

from __future__ import annotations

import gzip
import importlib.util
import json
from pathlib import Path

import pytest

from ondisk.formats.bufr.tables import CODE, NUMBER, TEXT, Element, Tables, descriptor

ROOT = Path(__file__).parents[3]
SHIPPED = ROOT / "ondisk" / "formats" / "bufr" / "tables.json.gz"


def element(code, *, centre=0, version=38, local=0):
    return Tables(centre, version, local).element(descriptor(code))


def test_elements_and_sequences_that_changed_are_those_of_their_version():
    content = json.loads(gzip.decompress(SHIPPED.read_bytes()))
    changed = [code for code, runs in content["elements"].items() if len(runs) > 1]
    assert (len(content["elements"]), len(changed)) == (1776, 42)
    sequences = [code for code, runs in content["sequences"].items() if len(runs) > 1]
    assert (len(content["sequences"]), len(sequences)) == (616, 40)
    sequences.remove("308008")  # version 38 does not have it
    for name, codes in (("elements", changed), ("sequences", sequences)):
        for code in codes:
            for version, *says in content[name][code]:
                of = Tables(0, version, 0)
                if name == "elements":
                    assert of.element(descriptor(code)) == tuple(says)
                else:
                    assert of.sequence(descriptor(code)) == [descriptor(f"{each:06}") for each in says]
    assert [element("014002", version=each) for each in (6, 13)] == [Element(12, -3, -2048, NUMBER)] * 2
    assert [element("014002", version=each) for each in (14, 38, 45)] == [Element(17, -3, -65536, NUMBER)] * 3


def test_elements_are_those_of_the_centre():
    assert element("005001") == Element(25, 5, -9000000, NUMBER)
    assert element("001011") == Element(72, 0, 0, TEXT)
    assert element("020003") == Element(9, 0, 0, CODE)
    assert element("001194", centre=200) == Element(128, 0, 0, TEXT)
    assert element("001194", centre=78, local=8) == Element(2, 0, 0, CODE)
    assert element("055255") is None
    assert Tables(98, 38, 0).sequence(descriptor("301001")) == [descriptor("001001"), descriptor("001002")]


def test_sequences_end():
    """No sequence contains itself, and none expands to very many descriptors."""
    of = Tables(0, 38, 0)

    def size(code, outer):
        assert code not in outer
        return 1 if code >> 14 < 3 else sum(size(each, (*outer, code)) for each in of.sequence(code) or [])

    content = json.loads(gzip.decompress(SHIPPED.read_bytes()))
    assert max(size(descriptor(code), ()) for code in content["sequences"]) < 500


def test_the_tables_are_small_and_their_source_is_named():
    assert SHIPPED.stat().st_size <= 60_000
    source = json.loads(gzip.decompress(SHIPPED.read_bytes()))["source"]
    notice = (ROOT / "NOTICE").read_text()
    assert source["name"] in notice
    assert source["version"] in notice
    assert source["sha256"] in notice


@pytest.fixture
def script():
    spec = importlib.util.spec_from_file_location("make_bufr_tables", ROOT / "tools" / "make_bufr_tables.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def write(path: Path, *lines: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines))


@pytest.mark.check
def test_the_script_makes_tables_of_what_eccodes_has(script, tmp_path, monkeypatch):
    root = tmp_path / "eccodes"
    wmo = root / "definitions" / "bufr" / "tables" / "0"
    for version in range(6, 39):
        width = 12 if version < 14 else 17
        write(
            wmo / "wmo" / str(version) / "element.table",
            "#code|abbreviation|type|name|unit|scale|reference|width|crex_unit|crex_scale|crex_width",
            f"014002|x|long|X|J m-2|-3|-2048|{width}|J m-2|-3|4",
            "001011|x|string|X|CCITT IA5|0|0|72|Character|0|9",
        )
        write(wmo / "wmo" / str(version) / "sequence.def", '"301001" = [  001001, 001002 ]')
    write(wmo / "local" / "1" / "98" / "0" / "element.table", "001193|x|table|X|Code table|0|0|3",
          "014002|x|table|X|Code table|0|0|3")  # fmt: skip
    write(root / "CMakeLists.txt", "project( eccodes VERSION 2.50.0 LANGUAGES C )")
    result = tmp_path / "tables.json.gz"
    monkeypatch.setattr(script, "RESULT", result)
    monkeypatch.setattr("sys.argv", ["make", str(root)])
    script.main()
    made = json.loads(gzip.decompress(result.read_bytes()))
    assert made.pop("source") | {"sha256": None} == {"name": "ecCodes", "version": "2.50.0", "sha256": None}
    assert made == {
        "elements": {"001011": [[6, 72, 0, 0, TEXT]], "014002": [[6, 12, -3, -2048, 0], [14, 17, -3, -2048, 0]]},
        "sequences": {"301001": [[6, 1001, 1002]]},
        "centres": {"98": {"elements": {"001193": [[1, 3, 0, 0, CODE]]}, "sequences": {}}},
    }
    before = result.read_bytes()
    release = tmp_path / "BUFR4"
    write(release / "BUFRCREX_TableB_en_01.csv", "FXY,BUFR_Unit,BUFR_Scale,BUFR_ReferenceValue,BUFR_DataWidth_Bits",
          "014002,J m-2,-3,-2048,17", "001011,CCITT IA5,0,0,72")  # fmt: skip
    write(release / "BUFR_TableD_en_01.csv", "FXY1,FXY2", "301001,001001", "301001,001002")
    monkeypatch.setattr("sys.argv", ["make", str(root), "--wmo", str(release)])
    script.main()
    assert result.read_bytes() == before
    write(release / "BUFR_TableD_en_01.csv", "FXY1,FXY2", "301001,001001")
    with pytest.raises(SystemExit, match="301001"):
        script.main()

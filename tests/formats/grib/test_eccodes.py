"""ecCodes says the same of messages: an oracle, where it is installed (`pip install eccodes`)."""

from __future__ import annotations

import random
import re
from datetime import UTC, datetime

import pytest

from ondisk.config import DatasetConfig
from ondisk.datum import microseconds
from ondisk.formats.grib import Grib
from ondisk.formats.grib.edition2 import templates

from .build import grib1, grid1

pytestmark = pytest.mark.slow
FORMAT = Grib(DatasetConfig.from_mapping({"format": "grib", "step": "daily"}))
SECONDS = {0: 60, 1: 3600, 2: 86400, 10: 10800, 11: 21600, 12: 43200}
LISTS = {30, 31, 32, 33, 34, 53, 54, 57, 58, 67, 68}  # whose counts ecCodes sets to what moves the rest
MEMBERS = {"ty": "typeOfEnsembleForecast", "pf": "perturbationNumber", "tf": "numberOfForecastsInEnsemble"}
SURFACES = [(1, None, None), (100, 0, 85000), (103, 0, 2), (103, 1, 15), (106, 2, 7), (111, 6, 250000), (150, 0, 3)]


@pytest.fixture
def eccodes():
    return pytest.importorskip("eccodes", reason="ecCodes is not installed")


def said(message):
    """Return the reftime, and all values that a message says of itself."""
    reftime, content = FORMAT.read(message)
    return reftime, content.all


class Message:
    """A message in ecCodes; keys that it does not have are None."""

    def __init__(self, eccodes, handle):
        self.eccodes, self.handle = eccodes, handle

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.eccodes.codes_release(self.handle)

    def __getitem__(self, key):
        try:
            return self.eccodes.codes_get(self.handle, key)
        except self.eccodes.CodesInternalError:
            return None

    def set(self, **keys):
        """Set keys; return whether the message has them all."""
        try:
            for key, value in keys.items():
                if value is None:
                    self.eccodes.codes_set_missing(self.handle, key)
                else:
                    self.eccodes.codes_set(self.handle, key, value)
        except self.eccodes.CodesInternalError:
            return False
        return True

    @property
    def content(self):
        return self.eccodes.codes_get_message(self.handle)

    @property
    def reftime(self):
        year, month, day = (self[key] for key in ("year", "month", "day"))
        if self["edition"] == 1:
            year, month, day = self["dataDate"] // 10000, self["dataDate"] // 100 % 100, self["dataDate"] % 100
        hour, minute, second = (self[key] for key in ("hour", "minute", "second"))
        return microseconds(datetime(year, month, day, hour, minute, second or 0, tzinfo=UTC))

    def corners(self):
        keys = ("latitudeOfFirstGridPoint", "longitudeOfFirstGridPoint", "latitudeOfLastGridPoint",
                "longitudeOfLastGridPoint")  # fmt: skip
        return [self[f"{key}InDegrees"] for key in keys]


def numbers(item):
    """Return the parts of an item by position, as numbers without units; None for those that are missing."""
    parts = (re.match(r"-|[0-9]+", part)[0] for part in item.partition(":")[0].split(",")[1:])
    return [None if part == "-" else int(part) for part in parts]


def pairs(item):
    return dict(re.findall(r"(\w+)=([^=]*)(?:,|$)", item))


def test_edition_1_by_octets(eccodes):
    draw = random.Random(20261129)
    for number in range(2000):
        values = {
            "time": (draw.randrange(1960, 2099), draw.randrange(1, 13), draw.randrange(1, 29), draw.randrange(24), 30),
            "centre": draw.randrange(1, 255),
            "subcentre": draw.randrange(255),
            "process": draw.randrange(255),
            "table": draw.randrange(1, 128),
            "parameter": draw.randrange(1, 255),
            "level": (number % 256, draw.randrange(256), draw.randrange(256)),
            "unit": draw.choice([*SECONDS]),
            "p1": draw.randrange(200),
            "time_range": draw.choice((0, 2, 3, 4, 5)),
            "grid": grid1(
                first=(draw.randrange(-90000, 90001), draw.randrange(-180000, 180001)),
                last=(draw.randrange(-90000, 90001), draw.randrange(-180000, 180001)),
                points=(draw.randrange(1, 60000), draw.randrange(1, 60000)),
            ),
            "data": bytes(20),
        }
        values["p2"] = draw.randrange(values["p1"], 256)
        content = grib1(**values)
        reftime, own = said(content)
        with Message(eccodes, eccodes.codes_new_from_message(content)) as theirs:
            assert reftime == theirs.reftime
            keys = ("centre", "subCentre", "generatingProcessIdentifier")
            assert numbers(own["origin"]) == [eccodes.codes_get_long(theirs.handle, key) for key in keys]
            assert numbers(own["product"])[1:] == [theirs["table2Version"], theirs["indicatorOfParameter"]]
            assert numbers(own["level"])[0] == eccodes.codes_get_long(theirs.handle, "indicatorOfTypeOfLevel")
            area = pairs(own["area"])
            assert [int(area[key]) for key in ("Ni", "Nj")] == [theirs["Ni"], theirs["Nj"]]
            corners = [int(area[key]) / 1e6 for key in ("latfirst", "lonfirst", "latlast", "lonlast")]
            assert corners == pytest.approx(theirs.corners())
            time_range = [theirs[key] for key in ("timeRangeIndicator", "P1", "P2")]
            assert numbers(own["timerange"]) == (time_range if time_range[0] else time_range[:2])
            assert own["step"] == values["p2" if time_range[0] else "p1"] * SECONDS[values["unit"]]


@pytest.mark.parametrize("number", sorted(templates().keys() - LISTS))
def test_each_template_of_edition_2_as_eccodes_writes_it(eccodes, number):
    draw = random.Random(number)
    template = templates()[number]
    for surface in SURFACES:
        with Message(eccodes, eccodes.codes_grib_new_from_samples("GRIB2")) as theirs:
            assert theirs.set(
                dataDate=20261120, dataTime=600, centre=80, subCentre=3, discipline=0, typeOfProcessedData=4
            )
            if not theirs.set(productDefinitionTemplateNumber=number):
                pytest.skip("ecCodes does not have this template")
            background, process, step = draw.randrange(255), draw.randrange(255), draw.randrange(100)
            theirs.set(parameterCategory=draw.randrange(190), parameterNumber=draw.randrange(190))
            theirs.set(typeOfGeneratingProcess=draw.randrange(20), backgroundProcess=background)
            theirs.set(generatingProcessIdentifier=process)
            kind, scale, value = surface
            if template.surface:
                assert theirs.set(
                    typeOfFirstFixedSurface=kind, scaleFactorOfFirstFixedSurface=scale,
                    scaledValueOfFirstFixedSurface=value, typeOfSecondFixedSurface=255,
                )  # fmt: skip
            unit = draw.choice([*SECONDS])
            length = draw.randrange(1, 50) if template.statistic else 0
            if template.time:
                assert theirs.set(indicatorOfUnitOfTimeRange=unit, forecastTime=step)
            if template.statistic:
                assert theirs.set(typeOfStatisticalProcessing=draw.randrange(10), lengthOfTimeRange=length)
                assert theirs.set(indicatorOfUnitForTimeRange=unit)
            for key in MEMBERS.keys() & template.values.keys():
                theirs.set(**{MEMBERS[key]: draw.randrange(1, 200)})
            reftime, own = said(theirs.content)
            assert reftime == theirs.reftime
            assert numbers(own["product"])[2:4] == [theirs["parameterCategory"], theirs["parameterNumber"]]
            keys = ("typeOfGeneratingProcess", "backgroundProcess", "generatingProcessIdentifier")
            for own_number, key in zip(numbers(own["origin"])[2:], keys, strict=True):
                assert theirs[key] in (own_number, None)
            if template.surface:
                assert own["level"] == "GRIB2S," + ",".join("-" if each is None else str(each) for each in surface)
                assert own.get("level_value") == (None if value is None else pytest.approx(value / 10**scale))
            if template.time:
                assert own["step"] == (step + length) * SECONDS[unit]
            if template.statistic and template.time:
                assert (own["stat"], own["period"]) == (theirs["typeOfStatisticalProcessing"], length * SECONDS[unit])
            definition = pairs(own["proddef"])
            assert [theirs[MEMBERS[key]] for key in MEMBERS.keys() & definition.keys()] == [
                int(definition[key]) for key in MEMBERS.keys() & definition.keys()
            ]


def test_grids_of_edition_2_as_eccodes_writes_them(eccodes):
    draw = random.Random(20261128)
    compared = 0
    for sample in ("regular_ll_sfc_grib2", "rotated_ll_sfc_grib2", "regular_gg_pl_grib2", "reduced_gg_pl_32_grib2"):
        for _ in range(50):
            with Message(eccodes, eccodes.codes_grib_new_from_samples(sample)) as theirs:
                theirs.set(latitudeOfFirstGridPoint=draw.randrange(0, 90_000_000), latitudeOfLastGridPoint=
                           draw.randrange(-90_000_000, 0), longitudeOfFirstGridPoint=draw.randrange(0, 180_000_000),
                           longitudeOfLastGridPoint=draw.randrange(180_000_000, 360_000_000))  # fmt: skip
                area = pairs(said(theirs.content)[1]["area"])
                keys = ("latfirst", "lonfirst", "latlast", "lonlast")
                found = [int(area[key]) / 1e6 for key in keys if key in area]
                assert found == pytest.approx(theirs.corners()[: len(found)])
                assert [int(area.get("Ni", -1)), int(area["tn"])] == [
                    theirs["Ni"] if "Ni" in area else -1,
                    theirs["gridDefinitionTemplateNumber"],
                ]
                compared += 1
    assert compared == 200

"""Create the input files of this folder, always with the same bytes: `python3 sample_datasets/make.py`.

Six invented stations report temperature, humidity and wind every hour of four days. As in practice, one part of the
files is late, and one is delivered twice. An invented model forecasts the temperature twice a day.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random

HERE = Path(__file__).parent
BEGIN = datetime(2026, 11, 17, tzinfo=UTC)
HOURS = 4 * 24
TEMPERATURE, HUMIDITY, WIND = 1, 2, 3  # the variables' numbers in VM2


@dataclass(frozen=True)
class Station:
    number: int
    name: str
    altitude: int  # metres

    @property
    def position(self) -> tuple[int, int]:
        """Latitude and longitude in hundredths of a degree, in the middle of an ocean."""
        return -4000 + 25 * (self.number - 101), -12000 + 40 * (self.number - 101)


STATIONS = [
    Station(101, "Northmoor", 12),
    Station(102, "Pinehill", 640),
    Station(103, "Lakeside", 210),
    Station(104, "Stonebridge", 95),
    Station(105, "Harbour Point", 3),
    Station(106, "Highfield", 1180),
]
LATE = STATIONS[3]  # its line was down in the afternoon of the second day


@dataclass(frozen=True)
class Observation:
    reftime: datetime
    station: Station
    temperature: float  # °C
    humidity: int  # %
    wind: float  # m/s

    @property
    def hour(self) -> int:
        """Hours since the beginning."""
        return (self.reftime - BEGIN) // timedelta(hours=1)

    @property
    def is_late(self) -> bool:
        return self.station is LATE and 36 <= self.hour < 48


def observations() -> list[Observation]:
    """Return all observations in order of time."""
    return sorted(
        (each for station in STATIONS for each in observed(station)),
        key=lambda each: (each.reftime, each.station.number),
    )


def observed(station: Station) -> Iterator[Observation]:
    """Yield the observations of a station: a day's round, a front on the third day, and a drift of its own."""
    random = Random(station.number)
    drift = random.uniform(-1, 1)
    for hour in range(HOURS):
        drift = 0.9 * drift + random.uniform(-0.4, 0.4)
        warmth = math.sin((hour % 24 - 9) * math.pi / 12)  # least at 03:00, most at 15:00
        front = math.exp(-(((hour - 58) / 9) ** 2))
        temperature = 9 - 0.0065 * station.altitude + 3.5 * warmth - 4 * front + drift
        humidity = min(100, round(78 - 9 * warmth + 20 * front - 2 * drift))
        wind = max(0, 2.5 + 0.002 * station.altitude + 7 * front + warmth + drift)
        yield Observation(BEGIN + timedelta(hours=hour), station, round(temperature, 1), humidity, round(wind, 1))


def vm2(data: Iterable[Observation]) -> bytes:
    """Write observations as VM2, a line for each variable."""
    lines = []
    for each in data:
        values = {TEMPERATURE: each.temperature, HUMIDITY: each.humidity, WIND: each.wind}
        for variable, value in values.items():
            lines.append(f"{each.reftime:%Y%m%d%H%M},{each.station.number},{variable},{value},,,000000000\n")
    return "".join(lines).encode()


def jsonl(data: Iterable[Observation]) -> bytes:
    """Write observations as JSON lines, a line for all variables."""
    lines = []
    for each in data:
        line = {
            "reftime": f"{each.reftime:%Y-%m-%dT%H:%M:%SZ}",
            "station": each.station.number,
            "name": each.station.name,
            "temperature": each.temperature,
            "humidity": each.humidity,
            "wind": each.wind,
        }
        lines.append(json.dumps(line) + "\n")
    return "".join(lines).encode()


def bufr(each: Observation, update: int = 0) -> bytes:
    """Write an observation as a BUFR message of edition 4; corrections have an update sequence number.

    Source: WMO no. 306, FM 94-XIV BUFR, version 29 of the tables.
    """
    time, (latitude, longitude) = each.reftime, each.station.position
    values = [  # X and Y of an element, the value, its width in bits
        (1, 1, 0, 7),  # block, which no country has
        (1, 2, each.station.number, 10),
        *((4, 1, time.year, 12), (4, 2, time.month, 4), (4, 3, time.day, 6), (4, 4, time.hour, 5), (4, 5, 0, 6)),
        (5, 2, latitude + 9000, 15),
        (6, 2, longitude + 18000, 16),
        (7, 1, each.station.altitude + 400, 15),
        (12, 101, round(100 * (each.temperature + 273.15)), 16),
        (13, 3, each.humidity, 7),
        (11, 2, round(10 * each.wind), 12),
    ]
    bits = "".join(f"{value:0{width}b}" for _, _, value, width in values)
    data = int(bits.ljust((len(bits) + 7) // 8 * 8, "0"), 2).to_bytes((len(bits) + 7) // 8, "big")
    clock = struct.pack(">HBBBBB", time.year, time.month, time.day, time.hour, 0, 0)
    sections = [
        # Of an unknown centre: surface data on land, synoptic observations.
        struct.pack(">BHHBBBBBBB", 0, 255, 0, update, 0, 0, 2, 0, 29, 0) + clock,
        struct.pack(">BHB", 0, 1, 128) + bytes(part for x, y, _, _ in values for part in (x, y)),
        b"\0" + data,
    ]
    body = b"".join((len(each) + 3).to_bytes(3, "big") + each for each in sections)
    return b"BUFR" + (len(body) + 12).to_bytes(3, "big") + b"\4" + body + b"7777"


def grib(run: datetime, step: int, surface: tuple[int, int]) -> bytes:
    """Write a forecast of the temperature as a GRIB message of edition 2: 12 by 8 points, one octet for each.

    Source: WMO no. 306, FM 92-XIV GRIB, version 29 of the tables.

    Args:
        step: hours from the run.
        surface: code of the type of level, and its value in Pa or m.
    """
    columns, rows, (south, west) = 12, 8, STATIONS[0].position
    corners = [(south + 50 * (rows - 1), west), (south, west + 50 * (columns - 1))]  # hundredths of a degree
    (first, last), missing = [(10_000 * y, 10_000 * (x % 36_000)) for y, x in corners], 0xFFFFFFFF
    pressure = surface[1] if surface[0] == 100 else 101_325
    warmth = 288 * (pressure / 101_325) ** 0.19 + 3 * math.sin(((run.hour + step) % 24 - 9) * math.pi / 12)
    field = [warmth + 8 * row / rows + math.sin(column) for row in range(rows) for column in range(columns)]
    packed = bytes(round(4 * (each - min(field))) for each in field)  # in quarters of a kelvin
    time, sign = (run.year, run.month, run.day, run.hour, run.minute, run.second), 1 << 31
    sections = [  # of an unknown centre: a forecast of a test model
        (1, struct.pack(">HHBBBHBBBBBBB", 255, 0, 29, 0, 1, *time, 2, 1)),
        (3, struct.pack(">BIBBHBBIBIBI", 0, columns * rows, 0, 0, 0, 6, 255, missing, 255, missing, 255, missing)
         + struct.pack(">IIIIiIBiIIIB", columns, rows, 0, missing, -first[0] | -sign, first[1], 48, -last[0] | -sign,
                       last[1], 500_000, 500_000, 0)),
        (4, struct.pack(">HHBBBBBHBBIBBIBBI", 0, 0, 0, 0, 2, 255, 255, 0, 0, 1, step, surface[0], 0, surface[1],
                        255, 255, missing)),
        (5, struct.pack(">IHfHHBB", len(field), 0, min(field), sign >> 16 | 2, 0, 8, 0)),
        (6, b"\xff"),
        (7, packed),
    ]  # fmt: skip
    body = b"".join(struct.pack(">IB", len(content) + 5, number) + content for number, content in sections)
    return b"GRIB\0\0\0\2" + struct.pack(">Q", len(body) + 20) + body + b"7777"


def files() -> dict[str, bytes]:
    """Return the name and content of every input file."""
    data = observations()
    late = [each for each in data if each.is_late]
    twice = [each for each in data if 66 <= each.hour < 72]
    synoptic = [each for each in data if each.hour % 6 == 0]
    corrected = replace(synoptic[8], temperature=synoptic[8].temperature + 1)
    runs = [BEGIN + timedelta(days=3, hours=hour) for hour in (0, 12)]
    surfaces = [(100, 50_000), (100, 85_000), (103, 2)]
    return {
        "forecast.grib": b"".join(grib(run, step, each) for run in runs for step in (0, 6, 12) for each in surfaces),
        "reports.bufr": b"".join(map(bufr, synoptic)) + bufr(corrected, update=1),
        "observations-1.vm2": vm2(each for each in data if each.hour < 72 and not each.is_late),
        "observations-2.vm2": vm2([*twice, *late, *(each for each in data if each.hour >= 72)]),
        "observations.jsonl": jsonl([*(each for each in data if not each.is_late), *late, *late]),
    }


if __name__ == "__main__":
    for name, content in files().items():
        (HERE / name).write_bytes(content)

"""What NetCDF files say of themselves."""

from __future__ import annotations

import io
import random
import struct
import tracemalloc
import zlib
from datetime import UTC, datetime

import pytest
from formats.hdf5_files import classic, h5py, netcdf4
from formats.test_odimh5 import format_of, said

from ondisk.errors import InvalidInput
from ondisk.formats import recognised

T = datetime(2026, 11, 20, 6, tzinfo=UTC)
TIME = {"time": ([6.0, 12.0], {"units": "hours since 2026-11-20 00:00:00", "calendar": "standard"})}
GRID = TIME | {"lat": ([46.75, 42.25], {"units": "degrees_north"}), "lon": ([8.25, 15.0], {})}
BUILDERS = [
    netcdf4,
    *(lambda *given, version=version, **more: classic(version, *given, **more) for version in (1, 2, 5)),
]


@pytest.mark.parametrize("build", BUILDERS)
def test_time_grid_and_names_of_the_variables(build):
    content = build(GRID)
    assert (recognised("x", content, "seg") or "seg") == "netcdf"
    assert said(content, "netcdf") == {
        "reftime": T,
        "quantity": "lat,lon,time",
        "area": "GRIB:latfirst=42250000,latlast=46750000,lonfirst=8250000,lonlast=15000000,type=0",
        "north": 46.75,
        "south": 42.25,
        "west": 8.25,
        "east": 15.0,
    }


@pytest.mark.check
@pytest.mark.parametrize("build", BUILDERS)
def test_the_reference_time_goes_before_the_first_time(build):
    earlier = datetime(2026, 11, 20, tzinfo=UTC)
    assert said(build(TIME, forecast_reference_time="2026-11-20 00:00:00"), "netcdf")["reftime"] == earlier
    region = said(build(TIME, institution="Arpae-Simc", region="adriatic"), "netcdf")
    assert (region["origin"], region["area"]) == ("GRIB1,255,255,255", "GRIB:")


@pytest.mark.check
@pytest.mark.parametrize("build", BUILDERS)
@pytest.mark.parametrize(
    ("variables", "attributes", "reason"),
    [
        (TIME, {"Conventions": "COARDS"}, "the attribute Conventions is 'COARDS', and does not begin with CF-"),
        ({"lat": ([1.0], {})}, {}, "it has no time: neither an attribute nor a variable dstart, time, ocean_time"),
        ({"time": ([6.0], {"units": "fortnights since 2026-11-20"})}, {}, "the units of its time are 'fortnights"),
        ({"time": ([1e300], {"units": "days since 2026-11-20"})}, {}, "its time, 1e+300 'days since"),
        ({"time": ([6.0], {"units": "s since 2026-11-20", "calendar": "noleap"})}, {}, "its calendar is 'noleap'"),
        (TIME, {"time": "yesterday"}, "its reference time, 'yesterday', is not a time"),
    ],
)
def test_a_file_without_a_time_is_refused(build, variables, attributes, reason):
    batch = next(format_of("netcdf").parse(io.BytesIO(build(variables, **attributes)), 10))
    assert [each.startswith(reason) for _, each in batch.refused] == [True], batch.refused


@pytest.mark.check
def test_values_of_other_files_are_not_read(tmp_path):
    (tmp_path / "secret").write_bytes(struct.pack("<d", 6.0))
    stream = io.BytesIO()
    with h5py.File(stream, "w") as file:
        file.attrs["Conventions"] = "CF-1.7"
        time = file.create_dataset("time", (1,), "<f8", external=[(str(tmp_path / "secret"), 0, 8)])
        time.attrs["units"] = "hours since 2026-11-20"
    with pytest.raises(InvalidInput, match="the values of '/time' are in another file"):
        format_of("netcdf").read(stream.getvalue())


@pytest.mark.check
@pytest.mark.parametrize("version", [1, 2, 5])
def test_hostile_headers_are_refused_and_nothing_else(version):
    chance, content, refused = random.Random(7), classic(version, GRID), 0
    for place in range(1000):
        changed = bytearray(content)
        for _ in range(chance.choice([1, 3])):
            changed[chance.randrange(4, len(changed))] = chance.choice([0, 255, chance.randrange(256)])
        if place % 5 == 0:
            del changed[chance.randrange(len(changed)) :]
        refused += len(next(format_of("netcdf").parse(io.BytesIO(changed), 10)).refused)
    assert 0 < refused < 1000


@pytest.mark.check
def test_a_header_that_claims_many_names_is_refused_at_once():
    with pytest.raises(InvalidInput, match="its header has more than 100000 names"):
        format_of("netcdf").read(b"CDF\1" + struct.pack(">III", 0, 10, 2**31) + b"\0" * 1000)


@pytest.mark.check
def test_a_file_may_have_more_times_than_are_read():
    many = {"time": ([6.0] * 1_100_000, TIME["time"][1])}
    for content in (netcdf4(many), classic(2, many)):
        assert said(content, "netcdf")["reftime"] == T


@pytest.mark.check
@pytest.mark.parametrize(
    "options", [{"compression": "gzip"}, {"compression": "gzip", "shuffle": True, "fletcher32": True}]
)
def test_compressed_values_are_read(options):
    stream = io.BytesIO(netcdf4(GRID))
    with h5py.File(stream, "r+") as file:
        del file["lat"]
        latitudes = [43 + each / 1000 for each in range(1000)]
        file.create_dataset("lat", data=latitudes, chunks=(100,), **options)
        file["lat"].make_scale("lat")
    assert said(stream.getvalue(), "netcdf")["north"] == 43.999


@pytest.mark.check
@pytest.mark.parametrize("name", ["time", "lat"])
def test_values_that_would_expand_without_end_are_refused(name):
    stream = io.BytesIO(netcdf4(GRID))
    with h5py.File(stream, "r+") as file:
        about = dict(file[name].attrs)
        del file[name]
        dataset = file.create_dataset(name, (10,), "<f8", chunks=(10,), compression="gzip")
        dataset.id.write_direct_chunk((0,), zlib.compress(b"\0" * 100_000_000))
        dataset.attrs.update({key: value for key, value in about.items() if key in ("units", "calendar")})
        dataset.make_scale(name)
    tracemalloc.start()
    (refused,) = next(format_of("netcdf").parse(io.BytesIO(stream.getvalue()), 10)).refused
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert refused[1] == f"a chunk of '/{name}' is larger than it says"
    assert peak < 16_000_000

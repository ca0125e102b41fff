"""ODIM and NetCDF files for tests, as small as they can be."""

from __future__ import annotations

import io
import struct

import pytest

h5py = pytest.importorskip("h5py")

SOURCE = "WMO:16144,RAD:IY46,PLC:itspc"
CORNERS = {
    "LL_lat": 42.5, "LR_lat": 42.25, "UL_lat": 46.75, "UR_lat": 46.5,
    "LL_lon": 8.5, "LR_lon": 14.75, "UL_lon": 8.25, "UR_lon": 15.0,
}  # fmt: skip
ENDS = {"start_lat": 44.5, "stop_lat": 44.25, "start_lon": 11.5, "stop_lon": 12.5}


def hdf5(groups: dict[str, dict]) -> bytes:
    """Return an HDF5 file: path of a group → its attributes."""
    stream = io.BytesIO()
    with h5py.File(stream, "w") as file:
        for path, attributes in groups.items():
            group = file.require_group(path)
            for name, value in attributes.items():
                group.attrs[name] = value.encode() if isinstance(value, str) else value
    return stream.getvalue()


def odim(object: str, groups: dict[str, dict] | None = None, **what) -> bytes:
    """Return an ODIM file with some groups besides `what` and `how`."""
    head = {"object": object, "date": "20261120", "time": "060000", "source": SOURCE} | what
    whole = {"/": {"Conventions": "ODIM_H5/V2_0"}, "what": head, "how": {"task": "ZLR-BB"}}
    return hdf5(whole | (groups or {}))


def volume(**what) -> bytes:
    """Return a polar volume of two scans."""
    return odim(
        "PVOL",
        {
            "where": {"lat": 44.5, "lon": 11.625},
            "dataset1/where": {"elangle": 0.5, "nbins": 500, "rscale": 250.0},
            "dataset1/data1/what": {"quantity": "DBZH"},
            "dataset2/where": {"elangle": 12.3456},
            "dataset2/how": {"radhoriz": 170.0},
            "dataset2/data1/what": {"quantity": "VRAD"},
            "dataset2/data2/what": {"quantity": "DBZH"},
        },
        **what,
    )


def image(product: str, *, object: str = "IMAGE", more: int = 0, where: dict = CORNERS, **what) -> bytes:
    """Return an image with one quantity, and so many more datasets."""
    groups = {"where": where, "dataset1/what": {"product": product} | what, "dataset1/data1/what": {"quantity": "TH"}}
    return odim(object, groups | {f"dataset{place + 2}/what": {"product": product} for place in range(more)})


def netcdf4(variables: dict[str, tuple[list[float], dict]], **attributes) -> bytes:
    """Return a NetCDF file of HDF5: name of a variable → its values, which are along a dimension of its name."""
    stream = io.BytesIO()
    with h5py.File(stream, "w") as file:
        file.attrs["Conventions"] = "CF-1.7"
        file.attrs.update(attributes)
        for name, (values, about) in variables.items():
            dataset = file.create_dataset(name, data=values)
            dataset.make_scale(name)
            dataset.attrs.update(about)
    return stream.getvalue()


def classic(version: int, variables: dict[str, tuple[list[float], dict]], **attributes) -> bytes:
    """Return a classic NetCDF file (version 1, 2 or 5); `time` is along the unlimited dimension."""
    count = struct.Struct(">Q" if version == 5 else ">I").pack
    place = struct.Struct(">I" if version == 1 else ">Q").pack

    def name(text):
        return count(len(text)) + text.encode() + b"\0" * (-len(text) % 4)

    def listed(tag, parts):
        return struct.pack(">I", tag if parts else 0) + count(len(parts)) + b"".join(parts)

    def listed_attributes(given):
        texts = [name(key) + struct.pack(">I", 2) + name(text) for key, text in given.items()]
        return listed(12, texts)

    def head(begins):
        parts = [
            name(each) + count(1) + count(number) + listed_attributes(about) + struct.pack(">I", 6) + count(0)
            + place(begins[number])
            for number, (each, (_, about)) in enumerate(variables.items())
        ]  # fmt: skip
        dimensions = [name(each) + count(0 if each == "time" else len(found)) for each, (found, _) in variables.items()]
        conventions = listed_attributes({"Conventions": "CF-1.7"} | attributes)
        return b"CDF" + bytes([version]) + count(1) + listed(10, dimensions) + conventions + listed(11, parts)

    begin, begins = len(head([0] * len(variables))), []
    for values, _ in variables.values():
        begins.append(begin)
        begin += 8 * len(values)
    return head(begins) + b"".join(struct.pack(f">{len(values)}d", *values) for values, _ in variables.values())

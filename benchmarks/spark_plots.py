"""Plots of the time of reading and writing by Spark against rows, and of reading against the requested part.

python benchmarks/spark_plots.py [--most 1000000] [--rounds 5] [--folder docs]

Writes spark-rows.svg, spark-selectivity.svg, and spark-writing.svg up to 1,000,000 rows; each day has 10,000 rows. With
--most 10000000 it needs 5 GB of disk and about ten minutes.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from datetime import timedelta
from math import log10
from pathlib import Path
from typing import Any

from measure import Report
from spark import BEGIN, STATION, SparkBench, medians

WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 640, 360, 60, 30, 50
COLOURS = ("#777777", "#d95f02", "#1b9e77", "#7570b3", "#e7298a", "#66a61e")
A_DAY = 10_000  # rows
WRITTEN = 1_000_000  # rows at most

Curves = dict[str, list[tuple[float, float]]]
"""Name → points: the requested rows, and seconds."""


def drawn(title: str, across: str, curves: Curves) -> str:
    """Draw curves, both axes logarithmic, as SVG."""
    points = [point for curve in curves.values() for point in curve]
    low = [min(log10(point[axis]) for point in points) for axis in (0, 1)]
    high = [max(log10(point[axis]) for point in points) for axis in (0, 1)]
    low[1], high[1] = low[1] - 0.1, high[1] + 0.1
    right, bottom = WIDTH - 190, HEIGHT - BOTTOM

    def place(x: float, y: float) -> tuple[float, float]:
        across, up = ((log10(value) - low[axis]) / (high[axis] - low[axis]) for axis, value in enumerate((x, y)))
        return round(LEFT + across * (right - LEFT), 1), round(bottom - up * (bottom - TOP), 1)

    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" style="font: 12px sans-serif">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="18" font-size="14">{title}</text>',
        f'<text x="{(LEFT + right) / 2}" y="{HEIGHT - 10}" text-anchor="middle">{across}</text>',
        f'<path d="M{LEFT} {TOP}V{bottom}H{right}" fill="none" stroke="black"/>',
    ]
    for x in sorted({point[0] for point in points}):
        at = place(x, 10 ** low[1])[0]
        lines.append(f'<text x="{at}" y="{bottom + 18}" text-anchor="middle">{x:,.10g}</text>')
    for y in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50):
        if low[1] <= log10(y) <= high[1]:
            at = place(10 ** low[0], y)[1]
            lines.append(f'<path d="M{LEFT} {at}H{right}" stroke="#dddddd"/>')
            lines.append(f'<text x="{LEFT - 6}" y="{at + 4}" text-anchor="end">{y:g} s</text>')
    for number, (name, curve) in enumerate(curves.items()):
        colour, at = COLOURS[number], TOP + 16 * number + 8
        joined = "L".join(f"{x} {y}" for x, y in (place(*point) for point in curve))
        lines.append(f'<path d="M{joined}" fill="none" stroke="{colour}" stroke-width="2"/>')
        lines.append(f'<text x="{right + 12}" y="{at}" fill="{colour}">{name}</text>')
    return "\n".join([*lines, "</svg>"]) + "\n"


def against_rows(bench: SparkBench, rounds: int, curves: Curves) -> None:
    """Measure one dataset: a query with few results, and a count of all rows."""
    day = f"{BEGIN:%Y-%m-%d}"
    match, where = f"reftime: ={day}; area: {STATION}", f"day = '{day}' AND area = '{STATION}'"

    def count(frame: Any) -> Any:
        return sorted(frame.groupBy("product").count().collect())

    works: dict[str, Callable[[], Any]] = {
        "a station's day, Parquet": lambda: len(bench.parquet.where(where).select("product").collect()),
        "… index_frame": lambda: len(bench.dataset.index_frame(bench.spark, match, ["product"]).collect()),
        "… format": lambda: len(bench.load(match=match, columns="product").collect()),
    }
    add(curves, bench.count, works, rounds)
    add(
        curves,
        bench.count,
        {
            "count all by product, Parquet": lambda: count(bench.parquet),
            "… by format": lambda: count(bench.load(columns="product")),
        },
        rounds,
    )


def against_selectivity(bench: SparkBench, rounds: int) -> Curves:
    """Measure one dataset: queries of more and more days."""
    curves: Curves = {}
    most = bench.count // A_DAY
    for days in sorted({max(1, most * part // 100) for part in (1, 2, 5, 10, 20, 50, 100)}):
        last = f"{BEGIN + timedelta(days=days - 1):%Y-%m-%d}"

        def total(frame: Any) -> Any:
            return frame.selectExpr("count(*)", "sum(crc32(data))").collect()

        works = {
            "data, Parquet": lambda last=last: total(bench.parquet.where(f"day <= '{last}'")),
            "data, format": lambda last=last: total(bench.load(match=f"reftime: <={last}", columns="data")),
        }
        add(curves, 100 * days / most, works, rounds)
    return curves


def add(curves: Curves, x: float, works: dict[str, Callable[[], Any]], rounds: int) -> None:
    for name, value in zip(works, medians(rounds, *works.values()), strict=True):
        curves.setdefault(name, []).append((x, value))


def main() -> None:
    parser = argparse.ArgumentParser(description="Plot the time of reading and writing by Spark.")
    parser.add_argument("--most", type=int, default=1_000_000, help="rows of the largest dataset")
    parser.add_argument("--rounds", type=int, default=5, help="of each measurement")
    parser.add_argument("--folder", type=Path, default=Path("docs"), help="where the plots go")
    arguments = parser.parse_args()
    rows: Curves = {}
    written: Curves = {}
    counts = [count for count in (10_000, 100_000, 1_000_000, 10_000_000) if count <= arguments.most]
    for count in counts:
        with tempfile.TemporaryDirectory() as folder:
            bench = SparkBench(Path(folder), count, arguments.rounds, Report(as_json=False), count // A_DAY)
            against_rows(bench, arguments.rounds, rows)
            if count <= WRITTEN:
                for name, value in zip(("Parquet", "format"), bench.written(count // A_DAY), strict=True):
                    written.setdefault(name, []).append((count, value))
            if count == counts[-1]:
                title = f"Data of the first days of {count:,} rows"
                selective = drawn(title, "per cent of all", against_selectivity(bench, arguments.rounds))
                arguments.folder.joinpath("spark-selectivity.svg").write_text(selective)
            bench.dataset.close()
    arguments.folder.joinpath("spark-rows.svg").write_text(drawn("Reading, against rows", "rows", rows))
    arguments.folder.joinpath("spark-writing.svg").write_text(drawn("Writing, against rows", "rows", written))
    bench.spark.stop()


if __name__ == "__main__":
    main()

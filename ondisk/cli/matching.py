"""The commands `query`, `summary` and `delete`: what is done with the data that match."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal

import ondisk
from ondisk.cli.arguments import (
    add_aliases,
    add_also,
    add_encrypted,
    add_match,
    check_options,
    column_types,
    count,
    names,
    path,
    use_aliases,
)
from ondisk.cli.dataset import open_dataset, open_to_read
from ondisk.cli.likely_mistakes import check_numbers, note_columns, note_mistakes, noting
from ondisk.cli.streams import Output, complain, complain_of_input, printable, values_of, write_stdout
from ondisk.errors import (
    EXIT_DATA_SKIPPED,
    EXIT_DONE,
    EXIT_FINDINGS,
    AuthenticationFailed,
    FrameCorrupt,
    InvalidInput,
    OndiskError,
    SegmentCorrupt,
    SegmentMissing,
    counted,
)

if TYPE_CHECKING:
    from ondisk import Dataset, Merged
    from ondisk.dataset.unreadable_data import Skipped
    from ondisk.files import ExportResult

_HINTS = 3
_PLOT = ".svg"
_QUERY_NEEDS = {
    "--columns": "--csv --parquet --arrow",
    "--overwrite": "--parquet --arrow",
    "--name --link": "--to",
}
_QUERY_EXCLUDES = {
    "--fields": "--data --index --csv --parquet --arrow",  # tables have --columns
    "--to": "--table --data --index --csv --parquet --arrow --fields",
}
_SUMMARY_NEEDS = {"--tz --min-max --plot": "--by", "--overwrite": "--plot"}
_SUMMARY_EXCLUDES = {"--by": "--fields --all-values"}


def add_query(parser: argparse.ArgumentParser) -> None:
    """Print the data that match, in order of reftime.

    ondisk query weather
    ondisk query weather 'reftime: >=2026-11-20; area: VM2,5' --sort -reftime --limit 10
    ondisk query weather 'area: VM2,5' --data > station5.vm2
    ondisk query events 'reftime: =2026-11-20; metadata.sensor: 7'
    ondisk query photos 'site: north' --to north --name '{reftime:%Y%m%d_%H%M}_{site}.jpg'
    ondisk query weather 'area: VM2,5' --also 'sites/*' --also /mnt/old/weather
    ondisk query stations --csv --columns reftime,station,data.temperature > stations.csv
    ondisk query stations 'reftime: =2026' --parquet stations.parquet
    """
    add_encrypted(parser)
    add_match(parser)
    add_also(parser)
    add_aliases(parser)
    parser.add_argument("--sort", metavar="S", help="[minute|hour|day|month|year:]field,...; -field is descending")
    parser.add_argument("--limit", metavar="N", type=count, help="print at most N data")
    parser.add_argument(
        "--skip-damaged", action="store_true", help="leave out data that cannot be read, and end with 8"
    )
    parser.add_argument("--complete", action="store_true", help="fail if data that match are offline")
    parser.add_argument("--fields", metavar="A,B", type=names, help="print only these metadata; tables have --columns")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print one JSON object per line")
    form.add_argument("--table", action="store_true", help="print tables as wide as the terminal, or wider if needed")
    form.add_argument("--data", action="store_true", help="print the stored bytes, which can be appended again")
    form.add_argument("--index", action="store_true", help="print their places: path, offset, length, reftime, items")
    form.add_argument("--csv", action="store_true", help="print CSV, with a header")
    form.add_argument("--parquet", metavar="FILE", type=path, help="write a file of Parquet")
    form.add_argument("--arrow", metavar="FILE", type=path, help="write a file of Arrow, which is Feather, too")
    parser.add_argument(
        "--columns", metavar="A,B", type=column_types, help="columns of --csv, --parquet, --arrow: reftime,data.wind"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace the file of --parquet or --arrow")
    parser.add_argument("--to", metavar="DIR", type=path, help="write each datum to a file in this folder")
    parser.add_argument(
        "--name", metavar="TEMPLATE", help="with --to: names, such as {reftime:%%Y%%m%%d_%%H%%M}_{site}.jpg"
    )
    parser.add_argument(
        "--link", action="store_true", help="with --to: make hard links, which share the bytes, instead of copies"
    )


def run_query(arguments: argparse.Namespace, output: Output) -> int:
    check_options(arguments, _QUERY_NEEDS, _QUERY_EXCLUDES)
    use_aliases(arguments)
    doubts: list[str] = []
    from ondisk.dataset.unreadable_data import Skipped  # here, as the parser does not need it

    skipped = Skipped()
    with open_to_read(arguments, doubts, complete=arguments.complete) as dataset:
        damaged = skipped if arguments.skip_damaged else "raise"
        choice = {"sort": arguments.sort, "limit": arguments.limit, "damaged": damaged}
        try:
            refused = _answer(dataset, arguments, choice, output)
        except (FrameCorrupt, SegmentCorrupt, SegmentMissing, AuthenticationFailed) as error:
            if not arguments.skip_damaged:
                error.hint = f"{error.hint} `--skip-damaged` returns the data that can be read.".strip()
            raise
        finally:
            _complain_of(skipped)
    return EXIT_DATA_SKIPPED if refused or skipped.count else EXIT_FINDINGS if doubts else EXIT_DONE


def _answer(dataset: Dataset | Merged, arguments: argparse.Namespace, choice: dict[str, Any], output: Output) -> int:
    if arguments.to is not None:
        return _export(dataset, arguments, choice, output)
    if arguments.parquet is not None or arguments.arrow is not None:
        _write(dataset, arguments, choice)
    elif arguments.index:
        from ondisk.dataset.datum_as_json import index_lines  # here, as only few commands need it

        del choice["damaged"]  # nothing is read
        found = dataset.query(arguments.match, with_data=False, **choice)
        write_stdout(index_lines(noting(found, dataset, arguments.match), arguments.dataset))
    elif arguments.data:
        write_stdout(noting(dataset.payloads(arguments.match, **choice), dataset, arguments.match))
    else:
        _print(dataset, arguments, choice, output)
    return 0


def _complain_of(skipped: Skipped) -> None:
    """Print which data were left out, and once what to do about each of the reasons."""
    for each in skipped.listed:
        complain("damaged", printable(str(each)))
    if skipped.count > len(skipped.listed):
        complain("damaged", f"and {skipped.count - len(skipped.listed)} more")
    if skipped.count:
        hints = [*dict.fromkeys(each.hint for each in skipped.listed if each.hint)][:_HINTS]
        complain("warning", "\n".join([f"{counted(skipped.count, 'datum', 'was')} left out", *hints]))


def _print(dataset: Dataset | Merged, arguments: argparse.Namespace, choice: dict[str, Any], output: Output) -> None:
    from ondisk.dataset.datum_as_json import names_of

    fields = names_of(arguments.fields, dataset.fields)
    found = noting(dataset.query(arguments.match, **choice), dataset, arguments.match)
    if arguments.csv:
        from ondisk.tables.columns import untyped  # here, as only few commands need it
        from ondisk.tables.csv_output import csv_of

        columns = untyped(arguments.columns)
        _note_labels(columns or (), dataset)
        write_stdout(csv_of(dataset, found, columns))
        note_columns(dataset, columns or (), arguments.match, arguments.sort, arguments.limit)
    elif arguments.table:
        from ondisk.cli.output import print_table

        known = [name for name in dataset.fields if name != "reftime"]
        print_table(found, known if fields is None else fields, datasets=not isinstance(dataset, ondisk.Dataset))
    else:
        output.data(found, fields)


def _note_labels(names: Iterable[str], dataset: Dataset | Merged) -> None:
    """Print a note for each column that is not the field with its name."""
    from ondisk.tables.columns import config_of, index_columns

    columns = index_columns(config_of(dataset), several=not isinstance(dataset, ondisk.Dataset))
    labels = {field: label for label, (field, _) in columns.items()}
    for name in names:
        if labels.get(name, name) != name:
            complain("note", f"the column {name} is not the field {name}, which is the column {labels[name]}")


def _write(dataset: Dataset | Merged, arguments: argparse.Namespace, choice: dict[str, Any]) -> None:
    from ondisk.dataset.output_file import check_free
    from ondisk.tables import installed

    with installed():
        from ondisk.tables.arrow_output import write

    form: Literal["parquet", "arrow"] = "arrow" if arguments.parquet is None else "parquet"
    file = getattr(arguments, form)
    check_free(file, overwrite=arguments.overwrite)
    _note_labels(arguments.columns or (), dataset)
    table = dataset.to_arrow(arguments.match, columns=arguments.columns, **choice)
    rows = write(table, file, form, overwrite=arguments.overwrite)
    if rows:
        note_columns(dataset, arguments.columns or (), arguments.match, arguments.sort, arguments.limit)
    else:
        note_mistakes(dataset, arguments.match)
    write_stdout([f"{rows} row{'s' * (rows != 1)} written to {printable(file)}\n".encode(errors="replace")])


def _export(dataset: Dataset | Merged, arguments: argparse.Namespace, choice: dict[str, Any], output: Output) -> int:
    from ondisk import files

    def report(result: ExportResult) -> int:
        counts = f"{counted(result.exported, 'file')} {'linked' if arguments.link else 'written'}"
        counts += f", {result.present} already there, {result.refused} refused"
        values = {"to": arguments.to, **values_of(result, "exported", "present", "refused", "bytes")}
        output.show([values], [f"{arguments.to}: {counts}; {counted(result.bytes, 'byte')}"])
        if not (result.exported or result.present or result.refused):
            note_mistakes(dataset, arguments.match)
        complain_of_input([("", reason) for _, reason in result.refusals], result.refused, [], 0, [], [])
        return result.refused

    if arguments.name is not None:
        choice = {"name": arguments.name, **choice}
    try:
        return report(files.export(dataset, arguments.match, arguments.to, link=arguments.link, **choice))
    except OndiskError as error:
        if "result" in error.context:
            report(error.context["result"])  # the files before the error are written
        raise


def add_summary(parser: argparse.ArgumentParser) -> None:
    """Count the data that match: their number, bytes, first and last reftime, and the values of fields.

    The 20 most frequent values of each field are listed, and of numbers and times the lowest and the highest.

    ondisk summary weather
    ondisk summary weather 'reftime: =2026-11' --json
    ondisk summary weather --fields area --all-values
    ondisk summary weather 'reftime: =2026' --by day --min-max temperature --plot 2026.svg
    ondisk summary weather --by day,station --tz Europe/Rome
    ondisk summary weather --also 'sites/*'
    """
    add_encrypted(parser)
    add_match(parser)
    add_also(parser)
    add_aliases(parser)
    parser.add_argument("--fields", metavar="A,B", type=names, help="count only the values of these fields")
    parser.add_argument("--all-values", action="store_true", help="list all values, not only the 20 most frequent")
    parser.add_argument("--by", metavar="G,H", help="count by hour, day, month, year or declared field, or by several")
    parser.add_argument("--tz", metavar="ZONE", help="with --by: the zone of days and hours, Europe/Rome; default: UTC")
    parser.add_argument(
        "--min-max", metavar="FIELD", help="with --by: the lowest, mean and highest value, also of data.NAME"
    )
    parser.add_argument("--plot", metavar="FILE.svg", type=path, help="with --by: draw the groups to a file")
    parser.add_argument("--overwrite", action="store_true", help="replace the file of --plot")


def run_summary(arguments: argparse.Namespace, output: Output) -> int:
    check_options(arguments, _SUMMARY_NEEDS, _SUMMARY_EXCLUDES)
    if arguments.plot is not None and not arguments.plot.endswith(_PLOT):
        raise InvalidInput(f"a plot is an SVG file, not {arguments.plot}", hint=f"Write a name that ends with {_PLOT}.")
    use_aliases(arguments)
    doubts: list[str] = []
    with open_to_read(arguments, doubts) as dataset:
        if arguments.by is not None:
            _show_groups(dataset, arguments, output)
        else:
            choice = {"values": None} if arguments.all_values else {}
            found = dataset.summary(arguments.match, fields=arguments.fields, **choice)
            output.summary(found)
            if not isinstance(dataset, ondisk.Dataset) and arguments.fields is None:
                from ondisk.dataset.merged import differing_types

                for name, types in differing_types(dataset.configs).items():
                    complain("note", f"{name} is {types}: its values are not counted")
            if not found.count:
                note_mistakes(dataset, arguments.match)
    return EXIT_FINDINGS if doubts else EXIT_DONE


def _show_groups(dataset: Dataset | Merged, arguments: argparse.Namespace, output: Output) -> None:
    from ondisk.dataset.output_file import check_free, output_file
    from ondisk.datum import CONTENT

    by, of = names(arguments.by), arguments.min_max
    if arguments.plot is not None:
        check_free(arguments.plot, overwrite=arguments.overwrite)  # before the data are counted
    with dataset.summary_by(arguments.by, arguments.match, min_max=of, tz=arguments.tz) as found:
        groups = noting(found, dataset, arguments.match)
        if of is not None and of.startswith(CONTENT):
            groups = check_numbers(groups, dataset, arguments.match, of)
        if arguments.plot is None:
            output.groups(groups, by, of)
            return
        from ondisk.cli.plot import MOST, plot  # here, because few commands draw

        drawn = [*islice(groups, MOST + 1)]
    if len(drawn) > MOST:
        raise InvalidInput(
            f"a plot has at most {MOST} groups", hint="Select fewer data, or group by day, month or year."
        )
    drawing = plot(drawn, by, of, "UTC" if arguments.tz is None else arguments.tz).encode()
    with output_file(arguments.plot, overwrite=arguments.overwrite) as file:
        file.write(0, drawing)
    output.show([{"plot": arguments.plot, "groups": len(drawn)}], [f"{arguments.plot}: {counted(len(drawn), 'group')}"])


def add_delete(parser: argparse.ArgumentParser) -> None:
    """Delete the data that match. A dry run without --yes.

    ondisk delete weather 'reftime: <2020'
    ondisk delete weather 'reftime: <2020' --yes
    """
    add_encrypted(parser)
    parser.add_argument("match", metavar="MATCH", help="a match expression; '' matches all data")
    add_aliases(parser)


def run_delete(arguments: argparse.Namespace, output: Output) -> int:
    doubts: list[str] = []
    use_aliases(arguments)
    with open_dataset(arguments.dataset, read_only=not arguments.yes, doubts=doubts) as dataset:
        if arguments.yes:
            count = dataset.delete(arguments.match)
            output.show([{"deleted": count}], [f"{counted(count, 'datum')} deleted"])
            remains = bool(dataset.quarantine.kept)
        else:
            from ondisk.dataset.auxiliary_files import check_takes_data

            check_takes_data(dataset.path, dataset.config)  # as the deletion does
            found = dataset.summary(arguments.match, fields=[])
            count = found.count
            remains = count > 0
            line = f"{counted(count, 'datum')} of {counted(found.size, 'byte')} would be deleted"
            output.show([{"would_delete": count, "size": found.size}], [line + "; --yes deletes them" * remains])
        if not count:
            note_mistakes(dataset, arguments.match)
    return EXIT_FINDINGS if remains or doubts else EXIT_DONE
